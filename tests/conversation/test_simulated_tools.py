"""Tools without mocks that a model answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest

from agentest.conversation.simulated_tools import SimulatedTools
from agentest.domain.results import Status
from agentest.domain.transcript import ToolCall
from agentest.report.agent import report_text
from agentest.report.content import RunReport
from agentest.scenarios.definition import scenario
from agentest.store.codec import CODECS
from agentest.support.errors import ConfigError
from agentest.testing import CallKey, ChatRequest, ScriptedAgent, ScriptedModel, run_scenarios, tool_call

READ, MOVE = tool_call("get_booking", id="17"), tool_call("move_booking", id="17", day="friday")


def world(request: ChatRequest) -> dict[str, Any]:
    """A model with one booking, which moves."""
    asked = json.loads(request.messages[-1]["content"])
    state = json.loads(asked["state"]) or {"day": "monday"}
    if asked["call"]["tool"] == "move_booking":
        state["day"] = asked["call"]["args"]["day"]
    return {"state": json.dumps(state), "result": json.dumps({"id": "17", **state})}


def held(
    answer: Callable[[ChatRequest], Mapping[str, Any]] | None, *steps: Any, **options: Any
) -> tuple[Any, ScriptedModel, Any]:
    """Run one scripted scenario with simulated tools. Returns its result, the model, and the whole run."""
    model = ScriptedModel(answer=answer)
    settings = {key: options.pop(key) for key in ("unmocked_tools", "strict", "offline") if key in options}
    given = {"tools": "simulate", **options}
    made = scenario("moves a booking", turns=["Move booking 17 to Friday"], metrics=[], **given)
    with ScriptedAgent([*steps, "Moved."]) as agent:
        run = run_scenarios(
            [made], agent=agent, model=model if answer else None, conversations_per_scenario=1, **settings
        )
    return run.scenarios[0], model, run


def results(result: Any) -> list[Any]:
    return [call.result for call in result.conversations[0].conversation.tool_calls]


def test_a_model_keeps_one_state_and_reads_agree_with_writes() -> None:
    """A repeated read makes no model call until the next write. Every call is marked."""
    result, model, run = held(world, READ, READ, MOVE, READ)
    days = [each["day"] for each in results(result)]
    assert days == ["monday", "monday", "friday", "friday"]
    assert len(model.requests) == 3
    calls = result.conversations[0].conversation.tool_calls
    assert all(call.simulated and call.mocked for call in calls)
    assert CODECS.write(calls[0])["simulated"] is True
    assert "simulated-tools" in [each.code for each in result.verdict_warnings]
    assert run.usage.calls == 3
    assert report_text(RunReport(run), [])[0].endswith("; simulated by a model: get_booking, move_booking")


def test_mocks_come_first_and_the_rest_is_simulated() -> None:
    """With `unmocked_tools: simulate`, only tools without a mock are simulated."""
    tools = {"get_booking": {"id": "17", "day": "tuesday"}}
    result, model, _ = held(world, READ, MOVE, tools=tools, unmocked_tools="simulate")
    assert [each["day"] for each in results(result)] == ["tuesday", "friday"]
    assert [call.simulated for call in result.conversations[0].conversation.tool_calls] == [False, True]
    assert len(model.requests) == 1


def test_a_simulated_state_never_passes_a_final_state() -> None:
    """The check is errored even if the state matches."""
    result, _, _ = held(world, MOVE, state={"day": "friday"}, final_state={"day": "friday"})
    assert result.verdict.status is Status.ERRORED
    assert "the state is simulated" in str(result.conversations[0].checks)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "no model is configured to simulate it"),
        (lambda _: {"state": "{}", "result": "no JSON"}, "simulated no usable result of tool 'get_booking'"),
        (lambda _: {"state": "[]", "result": "1"}, "state is not a JSON object"),
    ],
    ids=["no model", "no JSON", "no state"],
)
def test_without_a_usable_answer_the_conversation_is_errored(
    answer: Callable[[ChatRequest], Mapping[str, Any]] | None, message: str
) -> None:
    """An answer is requested again once."""
    result, model, _ = held(answer, READ)
    assert result.verdict.status is Status.ERRORED
    failure = result.conversations[0].conversation.failure
    assert failure
    assert message in failure.message
    assert len(model.requests) == (2 if answer else 0)
    assert not any(each.code == "simulated-tools" for each in result.verdict_warnings)


def test_a_result_obeys_the_schema_of_its_tool() -> None:
    """The first answer violates it; the second is used. An error needs no schema."""
    answers = iter([{"day": 5}, {"day": "friday"}, {"error": "unknown id"}])
    model = ScriptedModel(answer=lambda _: {"state": "{}", "result": json.dumps(next(answers))})
    schema = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}
    tools = SimulatedTools(model, CallKey("user", "s"), returns={"get_booking": schema})

    async def ask(id: str) -> Any:
        return await tools.answer(ToolCall("get_booking", {"id": id}, None, True, 0), ())

    assert anyio.run(ask, "17") == {"day": "friday"}
    assert anyio.run(ask, "18") == {"error": "unknown id"}
    assert "5 is not of type 'string'" in model.requests[1].messages[-1]["content"]


def test_calls_at_once_are_answered_one_after_the_other() -> None:
    """Each call starts from the state that the one before it left, so no change is lost."""

    class SlowModel(ScriptedModel):
        async def ask(self, *args: Any, **options: Any) -> Any:
            answer = await super().ask(*args, **options)
            await anyio.wait_all_tasks_blocked()
            return answer

    def book(request: ChatRequest) -> dict[str, Any]:
        booked = 1 + (json.loads(json.loads(request.messages[-1]["content"])["state"]) or {"n": 0})["n"]
        return {"state": json.dumps({"n": booked}), "result": json.dumps(booked)}

    tools, numbers = SimulatedTools(SlowModel(answer=book), CallKey("user", "s")), []

    async def ask(id: int) -> None:
        numbers.append(await tools.answer(ToolCall("book", {"id": id}, None, True, 0), ()))

    async def both() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(ask, 1)
            group.start_soon(ask, 2)

    anyio.run(both)
    assert sorted(numbers) == [1, 2]


def test_an_agent_that_runs_its_own_tools_is_refused() -> None:
    """Its real tools would run, and nothing would be simulated."""
    made = scenario("moves a booking", turns=["Move booking 17"], tools="simulate")
    agent = {"endpoint": "http://127.0.0.1:9/", "tool_visibility": "unseen"}
    with pytest.raises(ConfigError, match="cannot reach the tools of agent"):
        run_scenarios([made], agent=agent, model=ScriptedModel(answer=world))
