"""Runs with models: usage, budgets, recordings, batches, outages."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from model_server import RESET, Answer, ModelServer, Received, best, error
from project import Project, interrupt

from agentest.testing import ScriptedAgent

SCHEMA = Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json"


def schema(received: Received) -> dict[str, Any]:
    form = received.body.get("response_format") or {}
    found: dict[str, Any] = form.get("json_schema", {}).get("schema", {})
    return found


def properties(received: Received) -> dict[str, Any]:
    found: dict[str, Any] = schema(received).get("properties", {})
    return found


def configure(project: Project, agent: ScriptedAgent, model: ModelServer | None, **keys: Any) -> None:
    named = {}
    if model:
        options = {"base_url": model.base_url, "api_key": "sk-secret-of-the-test"}
        named = {"provider": "openai-compatible", "model": "m", "provider_options": options}
    project.config(agent.endpoint, conversations_per_scenario=2, **named, **keys)


def comparable(text: str) -> str:
    """results.json without times and the slowest turns."""
    timeless = re.sub(r'"(\w+Ms|startedAt)": [^,}\n]+', r'"\1": 0', text)
    return re.sub(r'"slowestTurns": \[[^]]*\]', '"slowestTurns": []', timeless)


def results(project: Project) -> str:
    return (project.root / ".agentest" / "results.json").read_text()


def test_a_judged_run_counts_calls_and_tokens(project: Project) -> None:
    """Calls and tokens are counted by role; an unknown price is not 0."""
    project.scenario('scenario("s", goal="Get help.")')
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        configure(project, agent, model)
        done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    found = project.results
    validate(found, json.loads(SCHEMA.read_text()))
    by_role = found["summary"]["usage"]["byRole"]
    assert by_role["user"]["calls"] == 2 * 3
    assert by_role["judge"]["calls"] == 2 * (2 + 1)
    assert found["summary"]["llmCalls"] == len(model.received)
    assert found["summary"]["usage"]["cost"] is None
    assert "cost unknown" in done.stdout


@pytest.mark.parametrize(("batch", "calls"), [(True, 3), ("conversation", 1)], ids=["turn", "conversation"])
def test_a_batch_takes_one_call(project: Project, batch: Any, calls: int) -> None:
    """With judge.batch a turn or a conversation takes one call, and a replay gives the same."""
    project.scenario('scenario("s", goal="Get help.", criteria=["Is polite"])')
    with ScriptedAgent(["sure"]) as agent:
        with ModelServer(script=best) as model:
            configure(project, agent, model, judge={"batch": batch})
            assert project.run("--record").returncode == 0
        recorded = results(project)
        assert project.results["summary"]["usage"]["byRole"]["judge"]["calls"] == 2 * calls
        assert project.scenario_result("s")["averages"] == {
            **dict.fromkeys(["helpfulness", "coherence", "relevance", "faithfulness", "verbosity"], 5),
            "goal_completion": 1,
        }
        for held in project.scenario_result("s")["conversations"]:
            assert [criterion["result"] for criterion in held["criteria"]] == ["met"]
        configure(project, agent, None, judge={"batch": batch})
        assert project.run("--replay").returncode == 0
    assert comparable(results(project)) == comparable(recorded)


def test_a_replay_gives_the_same_results_without_a_model(project: Project) -> None:
    """The replay is identical apart from times, without model or key."""
    project.scenario('scenario("s", goal="Get help.")\nscenario("t", goal="Get more.")')
    with ScriptedAgent(["sure"]) as agent:
        with ModelServer(script=best) as model:
            configure(project, agent, model)
            assert project.run("--record").returncode == 0
        recorded = results(project)
        configure(project, agent, None)
        done = project.run("--replay")
    assert done.returncode == 0, done.stdout + done.stderr
    assert comparable(results(project)) == comparable(recorded)
    cassettes = list((project.root / ".agentest" / "cassettes").glob("*.jsonl"))
    assert len(cassettes) == 2
    assert not any("sk-secret" in cassette.read_text() for cassette in cassettes)


def test_a_replay_without_an_answer_stops(project: Project) -> None:
    """If the agent's reply changed, the replay stops and names the scenario to record again."""
    project.scenario('scenario("s", goal="Get help.")')
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        configure(project, agent, model)
        project.run("--record")
    with ScriptedAgent(["something else"]) as changed:
        configure(project, changed, None)
        done = project.run("--replay")
        assert done.returncode == 2
        assert "nothing to replay" in done.stderr
        assert "--record --scenario s" in done.stderr
        with ModelServer(script=best) as model:
            configure(project, changed, model)
            assert project.run("--replay-or-record").returncode == 0
            asked = len(model.received)
            assert project.run("--replay-or-record").returncode == 0
            assert len(model.received) == asked


def test_replay_and_record_need_a_recording_and_a_model(project: Project) -> None:
    """The error says what to do."""
    project.scenario('scenario("s", goal="g")')
    project.config("http://127.0.0.1:9/")
    assert "agentest run --record" in project.run("--replay").stderr
    assert "needs a model" in project.run("--record").stderr
    assert "exclude each other" in project.run("--record", "--replay").stderr


def test_a_damaged_cassette_says_where(project: Project) -> None:
    """A truncated cassette is refused with file and line before the run."""
    project.scenario('scenario("s", goal="g")')
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        configure(project, agent, model)
        project.run("--record")
        (cassette,) = (project.root / ".agentest" / "cassettes").glob("*.jsonl")
        lines = cassette.read_text().splitlines(keepends=True)
        cassette.write_text("".join(lines[:-2]))
        configure(project, agent, None)
        before = len(agent.requests)
        done = project.run("--replay")
    assert done.returncode == 2
    assert cassette.name in done.stderr
    assert len(agent.requests) == before


def test_a_number_of_calls_is_never_exceeded(project: Project) -> None:
    """--max-llm-calls stops the run with all finished scenarios, without one more call."""
    project.scenario('scenario("s", goal="g")\nscenario("script", turns=["x"])')
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        configure(project, agent, model)
        done = project.run("--max-llm-calls", "7")
        assert 0 < len(model.received) <= 7
    assert done.returncode == 2
    assert "--max-llm-calls" in done.stderr
    assert "--max-llm-calls" in project.results["stopped"]
    assert project.scenario_result("s")["status"] == "errored"


def test_a_cost_needs_a_price(project: Project) -> None:
    """--max-cost is refused if the model's price is unknown, before anything is spent."""
    project.scenario('scenario("s", goal="g")')
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        configure(project, agent, model)
        done = project.run("--max-cost", "1")
        assert not model.received
    assert done.returncode == 2
    assert "--max-llm-calls" in done.stderr


def test_a_cost_is_a_number(project: Project) -> None:
    """A limit that no cost can exceed is refused as a mistake."""
    done = project.run("--max-cost", "nan")
    assert done.returncode == 2
    assert "'--max-cost': nan is not a number" in done.stderr


def test_a_cost_limit_stops_the_run(project: Project) -> None:
    """With a known price --max-cost stops the run, and the results have the cost."""
    project.scenario('scenario("s", goal="g", conversations_per_scenario=40)')

    def expensive(received: Received) -> Answer:
        answer = json.loads(best(received).body)
        answer["usage"] = {"prompt_tokens": 100_000, "completion_tokens": 10_000}
        return Answer(json.dumps(answer).encode())

    with ScriptedAgent(["sure"]) as agent, ModelServer(script=expensive) as model:
        project.config(
            agent.endpoint, model="openai/gpt-4o-mini", provider_options={"base_url": model.base_url}
        )
        done = project.run("--max-cost", "0.05", "--concurrency", "1")
    assert done.returncode == 2
    assert "--max-cost" in done.stderr
    assert 0.05 <= project.results["summary"]["usage"]["cost"] < 10


def test_a_dry_run_makes_no_calls(project: Project) -> None:
    """--dry-run prints the maximum of calls without calling an agent or model."""
    project.scenario('scenario("s", goal="g", max_turns=4, conversations_per_scenario=3)')
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        configure(project, agent, model)
        done = project.run("--dry-run")
        assert not agent.requests
        assert not model.received
    assert done.returncode == 0
    assert re.search(r"12\s+15\s+1\s+28\s+s$", done.stdout, re.M), done.stdout


@pytest.mark.parametrize(
    ("fault", "most"),
    [(error(500), 150), (error(401), 3), (error(429, headers={"retry-after": "40000"}), 3), (RESET, 150)],
    ids=["500", "401", "daily quota", "reset"],
)
@pytest.mark.slow
def test_a_dead_model_ends_a_long_run_soon(project: Project, fault: Answer, most: int) -> None:
    """If a model is clearly down, 300 conversations are errored after few calls and one deadline.

    A scenario that needs no model runs to its end.
    """
    project.scenario('scenario("s", goal="g", conversations_per_scenario=300)\nscenario("x", turns=["y"])')
    with ScriptedAgent(["sure"]) as agent, ModelServer(fault) as model:
        configure(project, agent, model, user={"deadline_ms": 3000}, judge={"deadline_ms": 3000})
        done = project.run()
        assert len(model.received) <= most
    assert done.returncode == 2, done.stdout
    assert project.scenario_result("s")["status"] == "errored"
    assert project.scenario_result("x")["status"] == "passed"
    assert len(project.scenario_result("s")["conversations"]) == 300


class Outage:
    """Gives good answers except to some requests in the middle, which never count as answered."""

    def __init__(self, good: int, bad: int, fault: Answer) -> None:
        self.good, self.bad, self.fault = good, bad, fault
        self.asked = 0
        self.begun = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, received: Received) -> Answer:
        with self._lock:
            self.asked += 1
            number = self.asked
        if self.good < number <= self.good + self.bad:
            self.begun.set()
            return self.fault
        return best(received)


@pytest.mark.parametrize(
    ("fault", "workers"),
    [(error(503), "1"), (error(500), "1"), (RESET, "1"), (error(429), "1"), (error(503), "2")],
    ids=["503", "500", "reset", "429", "503 with workers"],
)
@pytest.mark.slow
def test_an_outage_in_the_middle_of_a_run(project: Project, fault: Answer, workers: str) -> None:
    """A model that recovers after an outage of any kind costs no conversation."""
    scenarios = "\n".join(f'scenario("s{n}", goal="g", conversations_per_scenario=3)' for n in range(6))
    project.scenario(scenarios)
    outage = Outage(100, 8, fault)  # those under way fail at once; then one probe at a time does
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=outage) as model:
        configure(project, agent, model, judge={"batch": False})
        done = project.run("--workers", workers, "--concurrency", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert outage.asked > 108
    assert project.results["summary"]["usage"]["byRole"]["judge"]["calls"] >= 18 * (2 * 6 + 1)
    assert all(c["passed"] for n in range(6) for c in project.scenario_result(f"s{n}")["conversations"])


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("fault", [error(503), error(500), RESET], ids=["503", "500", "reset"])
@pytest.mark.slow
def test_a_model_that_is_down_at_first(project: Project, fault: Answer, workers: str) -> None:
    """A model that is down at the start of a run costs no conversation."""
    project.scenario('scenario("s", goal="g", conversations_per_scenario=12)')
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=Outage(0, 16, fault)) as model:
        configure(project, agent, model)
        done = project.run("--workers", workers, "--concurrency", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(c["passed"] for c in project.scenario_result("s")["conversations"])


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (error(500), r"answered 500: no \(tried \d times\); other requests were answered"),
        (error(401), "answered 401: no; other requests are answered"),
        (error(404), "answered 404: no; other requests are answered"),
        (RESET, r"\(tried \d times\); other requests were answered"),
    ],
    ids=["500", "401", "404", "reset"],
)
@pytest.mark.slow
def test_one_question_that_is_never_answered(
    project: Project, fault: Answer, expected: str, workers: str
) -> None:
    """A question that always fails while others succeed makes only its conversations errored."""
    project.scenario(
        'scenario("bad", goal="the bad goal", conversations_per_scenario=6)\n'
        'scenario("good", goal="g", conversations_per_scenario=12)'
    )

    def script(received: Received) -> Answer:
        return fault if "the bad goal" in json.dumps(received.body) else best(received)

    with ScriptedAgent(["sure"]) as agent, ModelServer(script=script) as model:
        configure(project, agent, model, user={"retries": 1}, judge={"retries": 1})
        done = project.run("--workers", workers, "--concurrency", "6")
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(c["passed"] for c in project.scenario_result("good")["conversations"])
    bad = project.scenario_result("bad")["conversations"]
    assert len(bad) == 6
    for conversation in bad:
        assert re.search(f"the simulated user: model m: .*{expected}", conversation["error"])


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.slow
def test_a_model_that_dies_ends_a_run_after_one_deadline(project: Project, workers: str) -> None:
    """The run waits once for a model that never recovers, not in each call; stderr says so."""
    project.scenario(
        "\n".join(f'scenario("s{n}", goal="g", conversations_per_scenario=50)' for n in range(4))
    )
    outage = Outage(60, 10**9, error(503, "down \x1b[31m"))
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=outage) as model:
        # Time enough for a probe, without which nothing is said, also where a machine stalls.
        configure(project, agent, model, user={"deadline_ms": 6000}, judge={"deadline_ms": 6000})
        done = project.run("--concurrency", "6", "--workers", workers)
    assert done.returncode == 2, done.stdout
    assert outage.asked < 60 + 100
    assert all(len(scenario["conversations"]) == 50 for scenario in project.results["scenarios"])
    assert re.search(
        r"agentest: model m does not answer \(.* 503: down .*waiting for it, at most [0-6] s", done.stderr
    )


def test_ctrl_c_while_a_model_is_waited_for(project: Project) -> None:
    """Ctrl-C does not wait for a model that is down; the wait has been reported by then."""
    project.scenario('scenario("s", goal="g", conversations_per_scenario=50)')
    outage = Outage(30, 10**9, error(503))
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=outage) as model:
        configure(project, agent, model)
        process = project.start()
        assert process.stderr is not None
        assert "waiting for it, at most" in process.stderr.readline()
        code, out, err = interrupt(process)
    assert code == 130, out + err
    assert project.results["interrupted"] is True


@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_of_an_hour_ends_a_run(project: Project, status: int) -> None:
    """If a server requests an hour, 300 conversations fail at once, with that reason."""
    project.scenario('scenario("s", goal="g", conversations_per_scenario=300)')
    with (
        ScriptedAgent(["sure"]) as agent,
        ModelServer(error(status, "later", {"retry-after": "3600"})) as model,
    ):
        configure(project, agent, model)
        done = project.run()
        assert len(model.received) <= 30
    assert done.returncode == 2
    assert "it asks to wait 3600 s" in done.stdout
