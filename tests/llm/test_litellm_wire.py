"""Claude and Gemini through litellm, end to end over their own wire formats, on loopback.

`litellm_wire_probe` asks in a process of its own; the tests look at what came of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project import clean_environment
from provider_wire import KEY

PROBE = Path(__file__).parent.parent / "support" / "litellm_wire_probe.py"
BOTH = pytest.mark.parametrize("model", ["claude", "gemini"])


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What came of every case of the probe."""
    done = subprocess.run(
        [sys.executable, str(PROBE)], env=clean_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def bodies(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [received["body"] for received in case["received"]]


@pytest.mark.parametrize("case", ["claude", "old claude", "gemini"])
def test_an_answer_of_the_form(told: dict[str, Any], case: str) -> None:
    """A valid answer comes with the first request, in which the form stands as the provider wants it."""
    assert [(t["value"], t["calls"]) for t in told[case]["told"]] == [(5, 1)] * len(told[case]["told"])
    body = bodies(told[case])[0]
    form = {
        "claude": lambda: body["output_format"]["schema"],
        "old claude": lambda: body["tools"][0]["input_schema"],
        "gemini": lambda: body["generationConfig"]["response_json_schema"],
    }[case]()
    assert form["properties"]["value"]["enum"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("case", ["claude", "old claude"])
def test_the_shared_part_is_marked_for_claude(told: dict[str, Any], case: str) -> None:
    """The turn, which all its judges share, ends with the one cache mark; the question comes after it."""
    turn, question = bodies(told[case])[0]["messages"][0]["content"]
    assert turn["cache_control"] == {"type": "ephemeral"}
    assert turn["text"].startswith("<data>")
    assert json.dumps(bodies(told[case])[0]).count("cache_control") == 1
    assert "cache_control" not in question


@BOTH
def test_what_is_shared_is_read_from_the_cache(told: dict[str, Any], model: str) -> None:
    """The second judge of a turn finds most of its prompt cached, and that is counted among its tokens."""
    tokens = told[model]["usage"]["tokens"]
    assert tokens["cached_tokens"] > 0.9 * tokens["prompt_tokens"] / 2
    assert tokens["prompt_tokens"] > 1000
    assert told[model]["usage"]["cost"] > 0


def test_without_marks_nothing_is_cached(told: dict[str, Any]) -> None:
    """`judge: {cache: false}` sends no mark, and Claude caches nothing."""
    case = told["claude uncached"]
    assert "cache_control" not in json.dumps(bodies(case))
    assert case["usage"]["tokens"]["cached_tokens"] == 0


@pytest.mark.parametrize(("model", "completion"), [("claude", 7), ("gemini", 7 + 5)])
def test_completion_tokens_are_counted(told: dict[str, Any], model: str, completion: int) -> None:
    """All that a model wrote is counted, Gemini's thoughts among it."""
    assert told[model]["usage"]["tokens"]["completion_tokens"] == 2 * completion


@BOTH
def test_a_form_that_is_refused(told: dict[str, Any], model: str) -> None:
    """A 400 about the form leads to one that works, with the schema in the prompt, and is remembered."""
    case = told[f"{model} ladder"]
    assert [t["value"] for t in case["told"]] == [5, 5]
    first, *_, last = case["told"]
    assert first["calls"] > 1
    assert last["calls"] == 1
    assert "JSON Schema" in json.dumps(bodies(case)[-1])


@pytest.mark.parametrize(("case", "pause_s"), [("claude 429", 1.0), ("gemini 429", 1.2)])
def test_the_pause_that_was_asked_for(told: dict[str, Any], case: str, pause_s: float) -> None:
    """After a 429 nobody asks before the time that Claude's header or Gemini's body names."""
    assert told[case]["told"] == [{"value": 5, "calls": 2}]
    assert told[case]["took_s"] >= pause_s
    assert told[case]["usage"]["retries"] == 1


@pytest.mark.parametrize(("case", "failures"), [("claude 5xx", 2), ("gemini 503", 1)])
def test_failures_that_pass(told: dict[str, Any], case: str, failures: int) -> None:
    """After 529, 500 and 503 it is asked again until there is an answer."""
    assert told[case]["told"] == [{"value": 5, "calls": failures + 1}]
    assert len(told[case]["received"]) == failures + 1


def test_failures_that_stay(told: dict[str, Any]) -> None:
    """A model that stays overloaded is asked as often as `retries` says; the error tells what it said."""
    (answer,) = told["claude 529 for ever"]["told"]
    assert answer["calls"] == 2
    assert "Overloaded" in answer["error"]
    assert "tried 2 times" in answer["error"]


@BOTH
def test_a_wrong_key(told: dict[str, Any], model: str) -> None:
    """A wrong key is asked with once, and the error says so without showing it."""
    (answer,) = told[f"{model} 401"]["told"]
    assert (answer["calls"], answer["kind"]) == (1, "ModelUnavailable")
    assert "AuthenticationError" in answer["error"]
    assert "wrong-key" not in answer["error"]


def test_a_model_that_hangs(told: dict[str, Any]) -> None:
    """A request without an answer ends by the time-out, is made again, and then is an error."""
    case = told["claude hangs"]
    (answer,) = case["told"]
    assert "no answer within 0.4 s (tried 2 times)" in answer["error"]
    assert len(case["received"]) == 2
    assert case["took_s"] < 5


@pytest.mark.parametrize("case", ["claude refuses", "gemini blocks"])
def test_a_model_that_refuses(told: dict[str, Any], case: str) -> None:
    """An answer that a content filter stopped is not asked for again, and the error says why."""
    (answer,) = told[case]["told"]
    assert answer["calls"] == 1
    assert "content filter" in answer["error"]


def test_what_litellm_stumbles_over(told: dict[str, Any]) -> None:
    """An answer that litellm cannot read is an error of one line, without its traceback and links."""
    (answer,) = told["claude nonsense"]["told"]
    assert "Traceback" not in answer["error"]
    assert "\n" not in answer["error"]


def test_a_base_url_with_its_version(told: dict[str, Any]) -> None:
    """`base_url` may end with `/v1`, as Anthropic's own does."""
    assert told["claude by /v1"]["told"] == [{"value": 5, "calls": 1}]
    assert told["claude by /v1"]["received"][0]["path"] == "/v1/messages"


def test_a_whole_run(told: dict[str, Any]) -> None:
    """`agentest run` with Gemini as the user and Claude as the judge: every call is answered and counted."""
    run = told["run"]
    summary = run["results"]["summary"]
    assert run["status"] == 0
    (scenario,) = run["results"]["scenarios"]
    assert scenario["status"] == "passed"
    assert [len(c["turns"]) for c in scenario["conversations"]] == [2, 2]
    # Two turns each: a user's message and seven judges (six where no tool was called); goal; one dedup.
    by_role = summary["usage"]["byRole"]
    assert {role: used["calls"] for role, used in by_role.items()} == {"user": 4, "judge": 28, "dedup": 1}
    assert run["requests"] == {"gemini": 4, "claude": 29}
    assert run["marks"] == 28  # all but the dedup's: it is asked once
    assert by_role["judge"]["cachedTokens"] > 0
    assert KEY not in json.dumps(run["results"])


def test_nobody_else_is_asked(told: dict[str, Any]) -> None:
    """Nothing is looked up or connected to beyond loopback; it would have failed."""
    assert told["guard"] == "192.0.2.1 is not loopback"
    assert told["abroad"] == []


def test_no_warnings(told: dict[str, Any]) -> None:
    """Users see no warning of litellm's."""
    assert told["warnings"] == []
