"""A person talks to an agent: what is reported it, and calls that are answered by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import tool_agents
from project import Project, free_port

from agentest.domain.end_reason import Ending
from agentest.domain.transcript import Conversation, Turn, UnfinishedTurn
from agentest.mocks.answering import ManualAnswer
from agentest.plugins.page.talk.talk import (
    FREE,
    STOPPED,
    ActionNotPossible,
    CallInbox,
    CallState,
    PersonConversation,
    PersonUser,
    TalkChoice,
    TalkEvent,
    choices,
    prepare_talk,
)
from agentest.runner.prepare import RunRequest
from agentest.support.errors import UsageError
from agentest.testing import ScriptedAgent, tool_call

SCENARIO = 'scenario("books", goal="Book.", tools={"find": sequence({"n": 1}, {"n": 2}), "fail": raises})'
RAISES = "def raises():\n    raise RuntimeError('closed')\n"


def is_awaited(person: PersonUser) -> bool:
    """True if the conversation waits for the person's message."""
    return person._next is not None and not person._next.done()


class Talked:
    """A conversation under way, with what was reported it."""

    def __init__(self, root: Path, choice: TalkChoice) -> None:
        self.chosen = prepare_talk(RunRequest(root), choice)
        self.told: list[TalkEvent] = []
        self.calls: list[CallState] = []
        self.changed = asyncio.Event()
        self.visitor = PersonUser(self._listen)
        self.desk = CallInbox(self._call)
        self.talking = PersonConversation(
            self.chosen.prepared,
            self.chosen.unit,
            "c1",
            self.visitor,
            self._tell,
            lambda _, mocks: mocks.attended_by(self.desk),
        )

    def _listen(self) -> None:
        self.changed.set()

    def _tell(self, what: TalkEvent) -> None:
        self.told.append(what)
        self.changed.set()

    def _call(self, call: CallState) -> None:
        self.calls.append(call)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def said(self, text: str) -> None:
        """Say something when it is listened to."""
        await self.until(lambda: is_awaited(self.visitor))
        self.visitor.say(text)

    async def waiting(self) -> CallState:
        await self.until(lambda: bool(self.calls) and self.calls[-1].waiting)
        return self.calls[-1]

    @property
    def results(self) -> list[tuple[str, Any, str | None, bool]]:
        """The last state of each call: name, result, error, by hand."""
        last = {seen.number: seen for seen in self.calls}
        return [(s.call.name, s.call.result, s.call.error, s.by_hand) for s in last.values()]


def talked(
    root: Path, choice: TalkChoice, person: Callable[[Talked], Awaitable[None]]
) -> tuple[Talked, Conversation | None]:
    """A conversation with this person, and what came of it."""

    async def go() -> tuple[Talked, Conversation | None]:
        held = Talked(root, choice)
        with anyio.fail_after(30):
            task = asyncio.create_task(held.talking.run())
            await person(held)
            return held, await task

    return anyio.run(go)


BOOKS = TalkChoice(file="a.sim.py", scenario="books")


def set_up(project: Project, endpoint: str, scenario: str = SCENARIO) -> None:
    project.config(endpoint)
    project.scenario(RAISES + scenario)


def test_events_are_sent_in_order(project: Project) -> None:
    """Messages, calls and replies arrive in order, and the conversation matches."""

    async def person(held: Talked) -> None:
        await held.said("Hello")
        await held.until(lambda: any(isinstance(each, Turn) for each in held.told))
        await held.until(lambda: is_awaited(held.visitor))
        assert held.visitor.leave()

    with ScriptedAgent([tool_call("find", day="friday"), "One is free."]) as agent:
        set_up(project, agent.endpoint)
        held, came = talked(project.root, BOOKS, person)
    assert [type(each).__name__ for each in held.told] == ["Unit", "UnfinishedTurn", "Turn"]
    assert [seen.answered for seen in held.calls] == [False, True]
    assert held.results == [("find", {"n": 1}, None, False)]
    assert came is not None
    assert came.ending is Ending.SATISFIED
    assert came.turns == held.talking.turns


def test_an_answer_is_changed_by_hand(project: Project) -> None:
    """A held call shows its mock's answer; the agent gets and the record stores what the person sends. An
    error is one of the tool. The mock was called, so its sequence continues."""

    async def person(held: Talked) -> None:
        held.desk.hold(calls=True)
        await held.said("Hello")
        first = await held.waiting()
        assert first.proposed is not None
        assert first.proposed.result == {"n": 1}
        assert not first.answered
        held.desk.give(first.number, ManualAnswer(result={"n": 100000000000000000001}))
        await held.until(lambda: len({seen.number for seen in held.calls}) == 2 and held.calls[-1].waiting)
        held.desk.give(1, ManualAnswer(error="closed for today"))
        await held.until(lambda: len({seen.number for seen in held.calls}) == 3 and held.calls[-1].waiting)
        held.desk.give(2, None)
        with pytest.raises(ActionNotPossible):
            held.desk.give(2, None)
        await held.until(lambda: is_awaited(held.visitor))
        held.visitor.leave()

    script = [tool_call("find"), [tool_call("find"), tool_call("fail")], "Done."]
    with ScriptedAgent(script) as agent:
        set_up(project, agent.endpoint)
        held, _ = talked(project.root, BOOKS, person)
        results = [m["content"] for m in agent.requests[-1]["messages"] if m["role"] == "tool"]
    assert results == [
        '{"n": 100000000000000000001}',
        '{"error": "closed for today"}',
        '{"error": "closed"}',
    ]
    assert held.results == [
        ("find", {"n": 100000000000000000001}, None, True),
        ("find", {"error": "closed for today"}, "closed for today", True),
        ("fail", {"error": "closed"}, "closed", False),
    ]


def test_unmocked_calls_are_answered_by_hand(project: Project) -> None:
    """Without a scenario every call waits for the person."""

    async def person(held: Talked) -> None:
        await held.said("Hello")
        call = await held.waiting()
        assert call.proposed is None
        with pytest.raises(ActionNotPossible, match="nothing mocks"):
            held.desk.give(call.number, None)
        held.desk.hold(calls=False)  # there is nothing that it could go on with
        held.desk.give(call.number, ManualAnswer(result="a text"))
        await held.until(lambda: is_awaited(held.visitor))
        held.visitor.leave()

    with ScriptedAgent([tool_call("any", x=1), "Done."]) as agent:
        project.config(agent.endpoint)
        held, came = talked(project.root, TalkChoice(), person)
        assert agent.requests[-1]["messages"][-1]["content"] == "a text"
    assert held.chosen.unit.scenario.name == FREE
    assert came is not None
    assert came.tool_calls[0].mocked


def test_letting_go_releases_the_calls_that_wait(project: Project) -> None:
    """If calls are no longer held, a waiting one continues with its mock's answer."""

    async def person(held: Talked) -> None:
        held.desk.hold(calls=True)
        await held.said("Again")
        await held.waiting()
        held.desk.hold(calls=False)
        await held.until(lambda: is_awaited(held.visitor))
        held.visitor.leave()

    with ScriptedAgent([tool_call("find"), "One."]) as agent:
        set_up(project, agent.endpoint)
        held, _ = talked(project.root, BOOKS, person)
    assert [by_hand for _, _, _, by_hand in held.results] == [False]


def test_it_is_stopped_in_the_middle_of_a_turn(project: Project) -> None:
    """Stop ends it at once, while a call waits or the agent works; completed turns are kept."""

    async def person(held: Talked) -> None:
        await held.said("Hello")
        await held.until(lambda: is_awaited(held.visitor))
        held.desk.hold(calls=True)
        held.visitor.say("Find one")
        await held.waiting()
        with pytest.raises(ActionNotPossible, match="at work"):
            held.visitor.say("Hurry")
        assert not held.visitor.leave()
        held.talking.stop()

    with ScriptedAgent(["Hi.", tool_call("find"), "Never said."]) as agent:
        set_up(project, agent.endpoint)
        _, came = talked(project.root, BOOKS, person)
    conversation = came
    assert conversation is not None
    assert [turn.agent_message for turn in conversation.turns] == ["Hi."]
    assert conversation.failure is not None
    assert conversation.failure.message == STOPPED
    assert conversation.unfinished is not None
    assert conversation.unfinished.user_message == "Find one"
    assert conversation.unfinished.tool_calls[0].error == "cancelled before it answered"


def test_an_agent_that_dies_ends_it(project: Project) -> None:
    """An agent's error ends the conversation; an unreachable agent is reported before it starts."""

    async def person(held: Talked) -> None:
        await held.said("Hello")

    with ScriptedAgent([{"role": "assistant", "content": ""}]) as agent:
        set_up(project, agent.endpoint)
        held, came = talked(project.root, BOOKS, person)
    assert came is not None
    assert came.failure is not None
    assert isinstance(held.told[-1], UnfinishedTurn)

    async def nobody(held: Talked) -> None:
        del held

    set_up(project, f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(UsageError, match="agent"):
        talked(project.root, BOOKS, nobody)


def test_calls_of_handlers_and_of_threads_come_here_too(project: Project) -> None:
    """An agent in this process hands its calls over while it answers; the person is reported limits."""
    project.write(
        "agentest.config.py",
        "def plain(messages, ctx):\n"
        "    ctx.record_tool('own', {}, 1)\n"
        "    return 'got ' + str(ctx.resolve_tool('find', {}))\n"
        "async def handler(messages, ctx):\n"
        "    return 'got ' + str(await ctx.resolve_tool('find', {}))\n"
        "config = {'agent': {'type': 'custom', 'handler': handler},"
        " 'agents': {'plain': {'type': 'custom', 'handler': plain}}}\n",
    )
    project.scenario(RAISES + SCENARIO)

    async def person(held: Talked) -> None:
        held.desk.hold(calls=True)
        await held.said("Hello")
        call = await held.waiting()
        held.desk.give(call.number, ManualAnswer(result={"n": 7}))
        await held.until(lambda: is_awaited(held.visitor))
        held.visitor.leave()

    for agent, calls in ((None, ["find"]), ("plain", ["own", "find"])):
        held, came = talked(project.root, TalkChoice(file="a.sim.py", scenario="books", agent=agent), person)
        assert came is not None
        assert came.turns[0].agent_message == "got {'n': 7}"
        assert [name for name, *_ in held.results] == calls
        assert "30 s (request_timeout_ms)" in held.chosen.about_calls


def test_calls_at_mock_servers_are_answered_by_hand(project: Project) -> None:
    """A call that comes to a mock server waits like any other, and the agent gets what the person sends."""
    project.write(
        "agentest.config.py",
        f"import sys\nsys.path.append({str(Path(tool_agents.__file__).parent)!r})\n"
        "from tool_agents import tool_agent\n"
        "config = {'agent': {'type': 'custom', 'handler': tool_agent(), 'mcp_mock': {}}}\n",
    )
    project.scenario('scenario("books", goal="g", tools={"stock": {"n": 1}, "cancel": {"n": 2}})')

    async def person(held: Talked) -> None:
        held.desk.hold(calls=True)
        await held.said("stock tea; cancel tea")
        for answer in (ManualAnswer(result={"n": 70}), None):
            call = await held.waiting()
            held.desk.give(call.number, answer)
            await held.until(
                lambda number=call.number: held.calls[-1].number > number or is_awaited(held.visitor)
            )
        await held.until(lambda: is_awaited(held.visitor))
        held.visitor.leave()

    held, came = talked(project.root, BOOKS, person)
    assert came is not None
    assert came.failure is None
    assert came.turns[0].agent_message == '{"n": 70} {"n": 2}'
    assert held.results == [("stock", {"n": 70}, None, True), ("cancel", {"n": 2}, None, False)]
    assert "30 s (request_timeout_ms)" in held.chosen.about_calls


def test_choices(project: Project) -> None:
    """Scenarios and agents are listed, and broken files with their place; others have a reason."""
    project.config("http://127.0.0.1:9/", agents={"other": {"endpoint": "http://127.0.0.1:9/"}})
    project.scenario('scenario("one", goal="g")\nscenario("two", goal="g", skip="later")')
    project.write("b.sim.py", "from agentest import scenario\n\nscenario(\n")
    project.write("outside.py", "raise SystemExit('never imported')")
    found = choices(RunRequest(project.root))
    assert [each.name for each in found.scenarios] == ["one", "two"]
    assert found.agents == ("agent", "other")
    assert found.broken[0].startswith("b.sim.py:3: ")
    refused = {
        "two": ("a.sim.py", r"\(skipped\): later"),
        "three": ("a.sim.py", "no scenario"),
        "any": ("outside.py", "is not a scenario file of this project"),
        "up": ("../a.sim.py", "is not a scenario file of this project"),
    }
    for name, (file, why) in refused.items():
        with pytest.raises(UsageError, match=why):
            prepare_talk(RunRequest(project.root), TalkChoice(file=file, scenario=name))


def test_several_agents_are_chosen_from(project: Project) -> None:
    """If a scenario runs with several agents, one must be named."""
    project.config("http://127.0.0.1:9/", compare=[{"name": "new", "endpoint": "http://127.0.0.1:9/new"}])
    project.scenario('scenario("one", goal="g")')
    with pytest.raises(UsageError, match="choose agent, new"):
        prepare_talk(RunRequest(project.root), TalkChoice(file="a.sim.py", scenario="one"))
    chosen = prepare_talk(RunRequest(project.root), TalkChoice(file="a.sim.py", scenario="one", agent="new"))
    assert chosen.unit.agent == "new"
    assert "no request to the agent is open" in chosen.about_calls
