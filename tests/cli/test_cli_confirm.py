"""`judge.confirm` on the command line: recordings, budgets, counts, workers, fingerprints, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from model_server import Answer, ModelServer, Received, completion, error
from project import Project
from timeless import timeless

from agentest.testing import ScriptedAgent

SCENARIO = 'scenario("s", turns=["Book a slot."], goal="Book a slot.", conversations_per_scenario=2)'


def differing(received: Received) -> Answer:
    """The judge says that the goal was missed, and the second model that it was reached."""
    outcome = "reached" if received.body["model"] == "second" else "not reached"
    return completion({"reason": f"it was {outcome}", "outcome": outcome})


def asked(model: ModelServer) -> list[str]:
    return [received.body["model"] for received in model.received]


def configure(project: Project, agent: ScriptedAgent, model: ModelServer, **judge: Any) -> None:
    options = {"base_url": model.base_url, "api_key": "sk-of-the-test"}
    named = {"provider": "openai-compatible", "model": "first", "provider_options": options}
    settings = {"judge": {"confirm": "second", "retries": 0, **judge}, "metrics": ["goal_completion"]}
    settings["thresholds"] = {"goal_completion": 0.5}
    project.config(agent.endpoint, **named, **settings)
    project.scenario(SCENARIO)


def usage(project: Project) -> Any:
    return project.results["summary"]["usage"]["byRole"]["judge"]["calls"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_difference_is_recorded_replayed_and_counted(project: Project, workers: str) -> None:
    """Calls of the second model count as the judge's, also with workers; a replay needs no model."""
    with ScriptedAgent(["Done."]) as agent, ModelServer(script=differing) as model:
        configure(project, agent, model)
        done = project.run("--record", "--workers", workers)
        assert done.returncode == 2, done.stdout
        assert sorted(asked(model)) == ["first", "first", "second", "second"]
        assert usage(project) == 4
        first = timeless(project.results)
        assert first["models"]["judge.confirm"] == "second"
        assert "first answered 'not reached' (it was not reached)" in done.stdout
        model.received.clear()
        done = project.run("--replay", "--workers", workers)
        assert done.returncode == 2
        assert model.received == []
        assert timeless(project.results) == first
        configure(project, agent, model, confirm="third")
        done = project.run("--replay")
        assert done.returncode == 2
        assert "third" in done.stderr


def test_the_budget_counts_the_second_model(project: Project) -> None:
    """Both models share `--max-llm-calls`; an unconfirmed failure does not count."""
    with ScriptedAgent(["Done."]) as agent, ModelServer(script=differing) as model:
        configure(project, agent, model)
        done = project.run("--conversations", "1", "--max-llm-calls", "1")
        assert done.returncode == 2
        assert asked(model) == ["first"]


@pytest.mark.parametrize(
    ("batch", "judge", "total"), [(False, 2 * 2, 4), ("turn", 2 * 2, 4), ("conversation", 2 * 2, 4)]
)
def test_a_dry_run_counts_its_calls(project: Project, batch: Any, judge: int, total: int) -> None:
    """It has one more call per conversation, since nothing about turns can fail."""
    with ScriptedAgent(["Done."]) as agent, ModelServer(script=differing) as model:
        configure(project, agent, model, batch=batch)
        done = project.run("--dry-run")
        assert done.returncode == 0
        assert model.received == []
        [line] = [line for line in done.stdout.splitlines() if line.endswith("  s")]
        assert [int(n) for n in line.split()[:4]] == [0, judge, 0, total]


def test_offline_it_has_no_effect(project: Project) -> None:
    """No model is called and no key needed; without a judge, a message says that confirm has no effect."""
    with ScriptedAgent(["Done."]) as agent, ModelServer(script=differing) as model:
        project.scenario('scenario("s", turns=["Hi"])')
        project.config(agent.endpoint, model="openai/gpt-5-mini", judge={"confirm": "anthropic/claude-x"})
        done = project.run("--offline")
        assert done.returncode == 0, done.stderr
        assert "judge.confirm" not in done.stdout + done.stderr
        project.config(agent.endpoint, judge={"confirm": "anthropic/claude-x"})
        done = project.run()
        assert done.returncode == 0, done.stderr
        assert "`judge.confirm` has no effect: no model judges" in done.stdout + done.stderr
        assert model.received == []


def test_a_missing_key_ends_the_run_before_it_begins(project: Project) -> None:
    """The error has the file, the configuration key and the variable to set."""
    with ScriptedAgent(["Done."]) as agent:
        project.scenario('scenario("s", turns=["Hi"])')
        keys = {"model": "openai/gpt-5-mini", "provider_options": {"api_key": "k"}}
        project.config(agent.endpoint, **keys, judge={"confirm": "anthropic/claude-x"})
        done = project.run()
        assert done.returncode == 2
        assert "agentest.config.yaml: judge.confirm: model anthropic/claude-x needs a key" in done.stderr
        assert agent.requests == []


def test_the_same_model_cannot_confirm(project: Project) -> None:
    with ScriptedAgent(["Done."]) as agent, ModelServer(script=differing) as model:
        configure(project, agent, model, confirm="first")
        done = project.run()
        assert done.returncode == 1
        assert "`judge.confirm` is first, the judge's own model" in done.stdout + done.stderr


def test_another_confirming_model_is_another_run(project: Project) -> None:
    """A run resumes only with conversations judged in the same way."""
    warmer = {"model": "second", "temperature": 0.5}
    with ScriptedAgent(["Done."]) as agent, ModelServer(script=differing) as model:
        found = []
        for confirm in ("second", warmer, "third", None, "second"):
            configure(project, agent, model, confirm=confirm)
            project.run()
            found.append(fingerprint(project))
    assert found[0] == found[4]
    assert len(set(found)) == 4


def fingerprint(project: Project) -> str:
    """Return the scenario's fingerprint in the journal of the latest run."""
    lines = (project.root / ".agentest" / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    [planned] = json.loads(lines[0])["planned"]
    return str(planned["fingerprint"])


def test_the_key_of_the_confirming_model_is_hidden(project: Project) -> None:
    """No report shows it, even if the model's server repeats it."""

    def repeats(received: Received) -> Answer:
        second = received.body["model"] == "second"
        return error(400, received.headers["authorization"]) if second else differing(received)

    with ScriptedAgent(["Done."]) as agent, ModelServer(script=repeats) as model:
        own = {"base_url": model.base_url, "api_key": "sk-only-of-the-second"}
        configure(project, agent, model, confirm={"model": "second", "provider_options": own})
        done = project.run()
        sent = {received.body["model"]: received.headers["authorization"] for received in model.received}
        assert sent == {"first": "Bearer sk-of-the-test", "second": "Bearer sk-only-of-the-second"}
        assert "second gave no usable answer" in json.dumps(project.results)
        assert "sk-only-of-the-second" not in json.dumps(project.results) + done.stdout + done.stderr
