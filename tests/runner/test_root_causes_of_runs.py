"""Root causes of whole runs: many failures with few causes, and the cost of joining them."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import builders
import pytest

from agentest import call, scenario
from agentest.domain.results import RunResult, ScenarioResult, Severity, Status, UniqueError
from agentest.domain.root_causes import root_causes
from agentest.domain.transcript import Usage
from agentest.judging.cause_joining import MOST_GROUPS
from agentest.models.admission import LocalGate
from agentest.models.caller import LiveModel
from agentest.models.circuit import Places
from agentest.models.port import ChatReply, ChatRequest, Ledger
from agentest.models.structured_output import StructuredModel
from agentest.runner.plan import Options
from agentest.runner.run_summary import JoinedCauses, joined_causes
from agentest.scenarios.model import Scenario
from agentest.support.errors import UsageError
from agentest.testing import ScriptedAgent, ScriptedModel, arun_scenarios, run_scenarios, tool_call

BOOKING = [call("create_booking", time="10:30")]


def booked(number: int) -> Scenario:
    """A scenario that the agent fails: every fifth user wants a text message, which has no mock."""
    texted = number % 5 == 0
    return scenario(
        f"s{number}",
        turns=["Text me." if texted else f"Book for {number}."],
        tools={"create_booking": {"ok": True}},
        trajectory=None if texted else {"match_mode": "contains", "expected": BOOKING},
    )


def wrong_agent(body: dict[str, Any]) -> Any:
    """Book at a wrong time, or send a text message."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return "Done."
    if "Text" in last["content"]:
        return [tool_call("send_sms", to="0151")]
    number = last["content"].removeprefix("Book for ").removesuffix(".")
    return [tool_call("create_booking", time=f"09:{number}")]


def counted(result: RunResult) -> dict[str, tuple[int, int]]:
    return {cause.title: (cause.scenarios, cause.conversations) for cause in root_causes(result)}


@pytest.mark.slow
def test_640_failing_scenarios_have_two_causes() -> None:
    """The run lists two causes for 640 failures, each with an example."""
    with ScriptedAgent(wrong_agent) as server:
        result = run_scenarios([booked(n) for n in range(640)], agent=server, concurrency=40)
    assert len(result.with_status(Status.FAILED)) == 640
    assert counted(result) == {
        "create_booking: time differs": (512, 512),
        "send_sms has no mock": (128, 128),
    }
    first, second = root_causes(result)
    assert first.example.text == "create_booking: time: expected '10:30', got '09:1'"
    assert (first.example.conversation_id, first.example.turn_index) == ("s1-1", 0)
    assert second.example.conversation_id == "s0-1"
    assert len(first.places) == 40


LABEL = {"agent_behavior_failure": "repetition"}


class Grouping(ScriptedModel):
    """Labels the failures of each scenario, and joins the labels of all."""

    def __init__(self, label: Callable[[str], str], joining: Callable[[list[str]], Any]) -> None:
        super().__init__(user=["hi", "again"], scores=LABEL)
        self._label = label
        self._joining = joining

    async def complete(self, request: ChatRequest) -> ChatReply:
        if request.key.role != "dedup":
            return await super().complete(request)
        self.requests.append(request)
        text = "\n".join(message["content"] for message in request.messages[:2])
        ids = [json.loads(line)["id"] for line in text.split("\n") if line.startswith('{"id"')]
        answer = self._joining(ids) if request.schema_name == "Causes" else self._grouped(request, ids)
        return ChatReply(answer if isinstance(answer, str) else json.dumps(answer), Usage(100, 20), self.name)

    def _grouped(self, request: ChatRequest, ids: list[str]) -> Any:
        label = self._label(request.key.scope)
        group = {"label": label, "severity": "critical", "occurrences": ids, "explanation": "why"}
        return {"groups": [group]}


def talks(number: int) -> list[Scenario]:
    return [scenario(f"s{n}", goal="Get help.", conversations_per_scenario=2) for n in range(number)]


def together(ids: list[str]) -> Any:
    return {"causes": [{"title": "says it twice", "groups": ids}]}


def ran(model: ScriptedModel, number: int = 30, **more: Any) -> RunResult:
    with ScriptedAgent(lambda _: "sure") as server:
        return run_scenarios(talks(number), agent=server, model=model, metrics=list(LABEL), **more)


def asked(model: ScriptedModel, name: str) -> int:
    return sum(request.schema_name == name for request in model.requests)


def test_one_bug_in_30_scenarios_is_one_cause() -> None:
    """Different labels are joined by one further call, which usage counts."""
    model = Grouping(lambda scope: f"label of {scope}", together)
    result = ran(model)
    assert counted(result) == {"says it twice": (30, 60)}
    assert asked(model, "Causes") == 1
    assert asked(model, "Groups") <= 30
    assert result.joining["dedup"].calls == 1
    in_scenarios = sum(used.calls for s in result.scenarios for used in s.usage.values())
    assert result.usage.calls == in_scenarios + 1 == len(model.requests)


def test_the_question_is_the_same_whichever_scenario_ends_first() -> None:
    """A replay finds the recorded answer by the text of the question."""
    questions = []
    for scenarios in (talks(4), talks(4)[::-1]):
        model = Grouping(lambda scope: f"label of {scope}", together)
        with ScriptedAgent(lambda _: "sure") as server:
            run_scenarios(scenarios, agent=server, model=model, metrics=list(LABEL), concurrency=1)
        questions.append([r.messages for r in model.requests if r.schema_name == "Causes"])
    assert questions[0] == questions[1]
    assert len(questions[0]) == 1


def test_one_label_needs_no_further_call() -> None:
    """Groups with the same label are one cause without a model call."""
    model = Grouping(lambda _: "Says it twice.", together)
    result = ran(model, 3)
    assert counted(result) == {"Says it twice.": (3, 6)}
    assert asked(model, "Causes") == 0
    assert not result.joining


def test_groups_of_one_scenario_need_no_further_call() -> None:
    """The scenario's own call has already separated them."""

    class Apart(Grouping):
        def _grouped(self, request: ChatRequest, ids: list[str]) -> Any:
            group = {"severity": "critical", "explanation": "why"}
            return {"groups": [{**group, "label": f"label {id}", "occurrences": [id]} for id in ids]}

    model = Apart(str, together)
    assert len(counted(ran(model, 1))) > 1
    assert asked(model, "Causes") == 0


@pytest.mark.parametrize(
    "answer", [{"causes": []}, {"causes": [{"title": "x", "groups": ["G77"]}]}, "no JSON"]
)
def test_a_call_that_fails_changes_no_verdict(answer: Any) -> None:
    """Groups stay separate, statuses stay the same, and the run continues."""
    model = Grouping(lambda scope: f"label of {scope}", lambda _: answer)
    result = ran(model, 3)
    assert len(counted(result)) == 3
    plain = ran(Grouping(lambda _: "the same", together), 3)
    assert [s.verdict.status for s in result.scenarios] == [s.verdict.status for s in plain.scenarios]
    assert result.stopped is None
    assert not result.interrupted


def test_a_run_says_where_groups_were_too_many_to_compare() -> None:
    """Groups that were not compared stay separate, and a note says so."""
    found = [
        builders.scenario_result(
            f"s{n}", (), errors=[UniqueError(f"label {n}", Severity.LOW, (f"s{n}-1-F1",), "why")]
        )
        for n in range(MOST_GROUPS + 1)
    ]
    notes: list[str] = []
    ledger = Ledger()
    model = Grouping(str, lambda ids: {"causes": [{"title": "t", "groups": [id]} for id in ids]})
    live = LiveModel(model, ledger, LocalGate("m", Places(4)))
    connections = SimpleNamespace(models=SimpleNamespace(judge=StructuredModel(live)), ledger=ledger)

    async def join(scenarios: list[ScenarioResult], reason: str | None = None) -> JoinedCauses:
        stop = SimpleNamespace(reason=reason, over=False, called=anyio.Event())
        session = SimpleNamespace(stop=stop, say=notes.append, on_note=notes.append)
        return await joined_causes(scenarios, session, connections)  # type: ignore[arg-type]

    assert anyio.run(join, found).joins == ()
    assert notes == ["only the worst 1000 of 1001 groups of judged failures were compared"]
    notes.clear()
    anyio.run(join, found[1:])
    assert notes == []
    model.requests.clear()
    assert anyio.run(join, found[:2], "interrupted").joins == ()
    assert model.requests == []


def test_a_run_that_was_stopped_joins_nothing() -> None:
    """A run stopped by --fail-fast makes no joining call."""
    model = Grouping(lambda scope: f"label of {scope}", together)
    result = ran(model, 6, options=Options(fail_fast=True), concurrency=2)
    assert result.stopped
    assert asked(model, "Causes") == 0


def test_a_handler_that_breaks_is_one_cause_of_all_scenarios() -> None:
    """Errors of an agent in this process are grouped, too."""

    async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
        raise UsageError(f"no route for {messages[-1]['content']!r}")

    async def run() -> RunResult:
        scenarios = [scenario(f"s{n}", turns=[f"hello {n}"]) for n in range(5)]
        return await arun_scenarios(scenarios, agent=handler)

    (cause,) = root_causes(anyio.run(run))
    assert (cause.scenarios, cause.conversations) == (5, 5)
    assert "no route for …" in cause.title
