"""Budgets on the command line: a run finishes what it starts, and `--resume` repeats no calls."""

from __future__ import annotations

import json
import shutil
from itertools import count
from typing import Any

import pytest
from model_server import Answer, ModelServer, Received, best, completion, model_keys
from project import Project, wait_until

from agentest.testing import ScriptedAgent

SCENARIOS = "for n in range({}):\n    scenario(f's{{n}}', goal='Get help.'{})\n"


def finished(project: Project) -> int:
    return sum(len(scenario["conversations"]) for scenario in project.results["scenarios"])


def stored_answers(project: Project) -> list[str]:
    return [str(path) for path in (project.root / ".agentest" / "runs").glob("*/answers/*")]


def forget_runs(project: Project) -> None:
    shutil.rmtree(project.root / ".agentest")


def repeating(received: Received) -> Answer:
    """Answer only behavior questions: each reply is repetitive, which is not severe."""
    form = received.body["response_format"]["json_schema"]["schema"]["properties"]
    if "should_stop" in form:
        return best(received)
    text = "\n".join(message["content"] for message in received.body["messages"])
    ids = [json.loads(line)["id"] for line in text.split("\n") if line.startswith('{"id"')]
    if "causes" in form:
        return completion({"causes": [{"title": "says it twice", "groups": ids}]})
    if "groups" in form:
        group = {"explanation": "why", "label": f"label {ids[0]}", "severity": "low", "occurrences": ids}
        return completion({"groups": [group]})
    return completion({"reason": "again", "value": "repetition", "labels": ["repetition"]})


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        pytest.param([], {}, id="one process"),
        pytest.param(["--workers", "2"], {}, id="workers"),
        pytest.param([], {"parallel": False}, id="conversations one after another"),
        pytest.param(["--concurrency", "1"], {"exclusive": True}, id="an exclusive agent"),
        pytest.param([], {"judge": {"batch": "conversation", "samples": 3}}, id="samples of batches"),
    ],
)
def test_a_budget_buys_conversations_and_nothing_is_paid_twice(
    project: Project, options: list[str], keys: dict[str, Any]
) -> None:
    """Half of the calls finish almost half of the conversations, in order; --resume runs the rest."""
    project.scenario(SCENARIOS.format(4, ""))
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        about = {"endpoint": agent.endpoint, **({"exclusive": True} if keys.pop("exclusive", 0) else {})}
        project.config(
            agent.endpoint, **{"agent": about}, conversations_per_scenario=2, **model_keys(model), **keys
        )
        assert project.run(*options).returncode == 0
        whole = len(model.received)
        forget_runs(project)
        budget = whole // 2 + 1
        done = project.run("--max-llm-calls", str(budget), *options)
        paid = len(model.received) - whole
        assert done.returncode == 2, done.stdout + done.stderr
        assert paid <= budget
        assert finished(project) >= 3
        assert project.scenario_result("s0")["status"] == "passed"
        assert "agentest run --resume runs the rest" in done.stderr
        runs = 1
        while done.returncode == 2 and runs < 5:
            before = finished(project)
            done = project.run("--max-llm-calls", str(budget), "--resume", *options)
            assert finished(project) > before
            runs += 1
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(model.received) - whole == whole
    assert project.results["summary"]["llmCalls"] == whole
    assert runs <= 3
    assert not stored_answers(project)[1:]  # only the first run's


def test_a_conversation_that_needs_more_than_the_budget_is_finished_over_several_runs(
    project: Project,
) -> None:
    """Its model responses are stored and reused, and each run says what it still needs."""
    project.scenario(SCENARIOS.format(1, ""))
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        project.config(agent.endpoint, conversations_per_scenario=1, **model_keys(model))
        assert project.run().returncode == 0
        whole = len(model.received)
        first = project.run("--max-llm-calls", "2")
        assert finished(project) == 0
        assert f"one of scenario 's0' takes about {whole} calls; its 2 answers are stored" in first.stderr
        second = project.run("--max-llm-calls", "2", "--resume")
        assert "its 4 answers are stored, and agentest run --resume goes on from there" in second.stderr
        third = project.run("--resume")  # without a budget, too
        assert third.returncode == 0, third.stderr
        assert len(model.received) == 2 * whole
    assert project.results["summary"]["llmCalls"] == whole


def test_scripts_that_call_no_model_do_not_make_other_conversations_seem_free(project: Project) -> None:
    """The need of a simulated conversation is unknown until one has finished, so the first runs alone."""
    script = "scenario('a script', turns=['Hi'])\n"
    project.scenario(script + SCENARIOS.format(1, ""))
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        project.config(agent.endpoint, conversations_per_scenario=3, concurrency=1, **model_keys(model))
        assert project.run("--scenario", "s0").returncode == 0
        each = len(model.received) // 3
        forget_runs(project)
        project.config(agent.endpoint, conversations_per_scenario=3, **model_keys(model))
        done = project.run("--max-llm-calls", str(2 * each))
        assert done.returncode == 2, done.stderr
    assert finished(project) >= 2  # the script, and at least the conversation that ran alone


def test_a_killed_run_keeps_model_responses(project: Project) -> None:
    """Responses are stored at once: a killed run repeats at most calls of conversations in progress."""
    project.scenario(SCENARIOS.format(2, ""))
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        project.config(agent.endpoint, conversations_per_scenario=2, **model_keys(model))
        assert project.run().returncode == 0
        whole = len(model.received)
        forget_runs(project)
        process = project.start("--max-llm-calls", str(whole), "--concurrency", "1")
        wait_until(lambda: len(model.received) >= whole + 4)
        process.kill()
        process.communicate()
        done = project.run("--max-llm-calls", str(whole), "--resume", "--concurrency", "1")
        assert done.returncode == 0, done.stderr
        assert len(model.received) - 2 * whole <= 4  # one user, and judges of the turns before


def test_the_budget_reserves_a_call_for_grouping(project: Project) -> None:
    """A started scenario reserves a call for grouping, so that finished ones have a verdict."""
    project.scenario(SCENARIOS.format(3, ""))
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=repeating) as model:
        keys = {"metrics": ["agent_behavior_failure"], "judge": {"batch": False}}
        project.config(agent.endpoint, conversations_per_scenario=2, **model_keys(model), **keys)
        assert project.run().returncode == 0, project.results
        each = (len(model.received) - 4) // 6  # three groupings, and what joins them
        for budget in range(2 * each - 1, 4 * each + 4, 5):
            forget_runs(project)
            project.run("--max-llm-calls", str(budget))
            for scenario in project.results["scenarios"]:
                whole = len(scenario["conversations"]) == 2
                assert scenario["status"] == ("passed" if whole else "errored"), budget


def test_a_sufficient_budget_delays_nothing(project: Project) -> None:
    """Concurrency is the same as without a budget, although costs are unknown."""
    together, most, numbers = 0, 0, count()

    def watched(body: dict[str, Any]) -> str:
        nonlocal together, most
        together += 1
        most = max(most, together)
        wait_until(lambda: most == 6)  # all of them are here
        together -= 1
        return f"answer {next(numbers)}"

    project.scenario(SCENARIOS.format(6, ", max_turns=1"))
    with ScriptedAgent(watched) as agent, ModelServer(script=best) as model:
        project.config(agent.endpoint, conversations_per_scenario=1, **model_keys(model))
        assert project.run("--max-llm-calls", "100000").returncode == 0


def test_a_run_says_that_it_will_exceed_its_budget(project: Project) -> None:
    """The forecast uses run.json of the last complete run with a model, and reads no journal."""
    project.scenario(SCENARIOS.format(4, ""))
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        project.config(agent.endpoint, conversations_per_scenario=1, **model_keys(model))
        assert project.run().returncode == 0
        whole = len(model.received)
        assert project.run("--offline").returncode in (0, 2)
        assert project.run("--max-llm-calls", "1").returncode == 2
        for file in (project.root / ".agentest" / "runs").glob("*/*"):
            if file.name in ("journal.jsonl", "results.json"):
                file.unlink()
        done = project.run("--max-llm-calls", str(whole // 2))
        enough = project.run("--max-llm-calls", str(whole))
    expected = (
        f"about {whole} model calls are expected, and --max-llm-calls allows {whole // 2}: about 2 of 4"
    )
    assert expected in done.stderr
    assert "are expected" not in enough.stderr
    assert enough.returncode == 0


def test_money_buys_conversations_of_unknown_cost(project: Project) -> None:
    """If the server omits `usage`, the bound of each call decides how many conversations start."""
    project.scenario(SCENARIOS.format(40, ""))

    def silent(received: Received) -> Answer:
        answer = json.loads(best(received).body)
        del answer["usage"]
        return Answer(json.dumps(answer).encode())

    with ScriptedAgent(["sure"]) as agent, ModelServer(script=silent) as model:
        options = {"base_url": model.base_url}
        more = {"provider_options": options, "conversations_per_scenario": 1}
        project.config(agent.endpoint, model="openai/gpt-4o-mini", **more)
        done = project.run("--max-cost", "0.02", "--concurrency", "2")
        assert done.returncode == 2
        assert "that --max-cost allows were spent" in done.stderr, done.stderr
        assert 1 < finished(project) < 40


def test_money_buys_conversations(project: Project) -> None:
    """--max-cost: the first conversation gives the cost of the others; then as many start as fit."""
    project.scenario(SCENARIOS.format(8, ""))

    def priced(received: Received) -> Answer:
        answer = json.loads(best(received).body)
        answer["usage"] = {"prompt_tokens": 10_000, "completion_tokens": 0}
        return Answer(json.dumps(answer).encode())

    with ScriptedAgent(["sure"]) as agent, ModelServer(script=priced) as model:
        options = {"base_url": model.base_url}
        project.config(
            agent.endpoint,
            model="openai/gpt-4o-mini",
            provider_options=options,
            conversations_per_scenario=1,
        )
        assert project.run().returncode == 0
        whole, cost = len(model.received), project.results["summary"]["usage"]["cost"]
        forget_runs(project)
        done = project.run("--max-cost", f"{cost / 2 + 1e-6:.6f}")
        assert done.returncode == 2
        assert finished(project) >= 3
        assert "USD that --max-cost allows" in done.stderr or "no more model calls" in done.stderr
        assert project.run("--max-cost", f"{cost:.6f}", "--resume").returncode == 0
        assert len(model.received) == 2 * whole
    assert project.results["summary"]["usage"]["cost"] == pytest.approx(cost)
