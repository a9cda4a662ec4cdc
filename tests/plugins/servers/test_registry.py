"""Whose call is it? Conversations begin, call, end and are cancelled in any order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import fake_time
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from agentest.agents.call_source_addresses import Addresses
from agentest.plugins.servers.active_conversations import HEADER, Names, Registry, ServerGroup, names_of
from agentest.plugins.servers.port import CallOutcome, Identity, RealAnswer, ServedAnswer, ServedCall
from agentest.support.trace_context import TraceContext, new_key


class Talk:
    """A conversation that runs or waits to, and the calls it received."""

    def __init__(self, registry: Registry, name: str, agent: str) -> None:
        self.who = Identity(
            key=new_key(), session_id=f"session-{name}", conversation_id=name, scenario="s", agent=agent
        )
        self.given: list[str] = []
        self.doubts: list[str] = []
        self.failed, self.at_work_s = False, 0.0
        self.scope = anyio.CancelScope()
        self._registry = registry
        self._begun, self._end, self._ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def answer(self, call: ServedCall) -> ServedAnswer:
        self.given.append(call.arguments["of"])
        return ServedAnswer(how=CallOutcome.ANSWERED, result=self.who.conversation_id)

    async def answered(self, number: int, answer: RealAnswer) -> None:
        raise AssertionError

    async def refused(self, why: str) -> None:
        self.doubts.append(why)

    async def hold(self) -> None:
        with self.scope:
            async with self._registry.under_way(self.who, self) as stay:
                self._begun.set()
                await self._end.wait()
                stay.failed, stay.at_work_s = self.failed, self.at_work_s
        self._ended.set()

    async def begun(self) -> Talk:
        await self._begun.wait()
        return self

    async def over(self, *, failed: bool = False, at_work_s: float = 0.0) -> None:
        self.failed, self.at_work_s = failed, at_work_s
        self._end.set()
        await self._ended.wait()

    @property
    def has_begun(self) -> bool:
        return self._begun.is_set()

    @property
    def is_under_way(self) -> bool:
        return self.has_begun and not self._ended.is_set()

    @property
    def waits(self) -> bool:
        return not self.has_begun and not self._ended.is_set()


class Agents:
    """A run with the agents `shop`, which calls tools, and `desk`, whose servers are others."""

    def __init__(self, tasks: TaskGroup, *, exclusive: bool = False) -> None:
        self.notes: list[str] = []
        self.shop = ServerGroup(("shop",), Addresses(), exclusive=exclusive)
        self.desk = ServerGroup(("desk",), Addresses(), exclusive=False)
        self.registry = Registry((self.shop, self.desk), self.notes.append)
        self.talks: list[Talk] = []
        self._tasks = tasks

    async def start(self, agent: str = "shop") -> Talk:
        """A conversation that begins as soon as it may."""
        talk = Talk(self.registry, f"c{len(self.talks)}", agent)
        self.talks.append(talk)
        self._tasks.start_soon(talk.hold)
        for _ in range(3):
            await checkpoint()
        return talk

    async def call(self, owner: Talk, names: Names | None = None) -> str | None:
        """Make a call for `owner`; return who answered it, or None if it was refused."""
        call = ServedCall(tool="stock", arguments={"of": owner.who.conversation_id})
        answer = await self.registry.answer(self.shop, names or (), call)
        return None if answer.how is CallOutcome.REFUSED else answer.result

    async def prove(self) -> None:
        """Two conversations whose calls name them: from then on many may be under way."""
        for _ in range(2):
            talk = await (await self.start()).begun()
            assert await self.call(talk, carried(talk)) == talk.who.conversation_id
            await talk.over()

    @property
    def errors(self) -> dict[str, int]:
        """Why calls have made the run errored, and how often."""
        return {one.why: number for one, number in self.registry.unclaimed.items()}


def carried(talk: Talk, turn: int = 0) -> Names:
    """The trace that instrumented agents pass on."""
    return names_of(TraceContext(talk.who.key, turn).headers({}))


def certain(text: str) -> Names:
    return names_of({HEADER: text})


def among(test: Callable[[Agents], Awaitable[None]], *, exclusive: bool = False) -> None:
    """Run a test with fake time; conversations that still go on at its end are cancelled."""

    async def go() -> None:
        async with anyio.create_task_group() as tasks:
            await test(Agents(tasks, exclusive=exclusive))
            tasks.cancel_scope.cancel()

    fake_time.run(go)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "call", "late", "frozen", "end", "fail", "cancel", "stray"]),
        st.integers(0, 7),
    ),
    max_size=40,
)


@given(STEPS)
def test_named_calls_never_reach_another_conversation(steps: list[tuple[str, int]]) -> None:
    """Whatever starts, ends, is cancelled or calls late, a call reaches the conversation it names or none; in
    the end every waiting conversation has started."""

    async def test(agents: Agents) -> None:
        lawful = 0
        for step, at in steps:
            if step == "cancel" and agents.talks:
                agents.talks[at % len(agents.talks)].scope.cancel()
                await checkpoint()
            talks = [talk for talk in agents.talks if talk.has_begun]  # nobody knows the names of others
            talk = talks[at % len(talks)] if talks else None
            if step == "start" or talk is None:
                await agents.start()
            elif step in ("call", "late"):
                told = await agents.call(talk, carried(talk, at))
                assert (told == talk.who.conversation_id) == talk.is_under_way
                lawful += talk.is_under_way
            elif step == "frozen":
                other = talks[-1 - at % len(talks)]
                assert await agents.call(talk, carried(other)) in (None, other.who.conversation_id)
                if other.is_under_way:  # nobody could tell: it is no wrong call of ours
                    other.given.pop()
            elif step == "stray":
                assert await agents.call(talk, certain("f" * 24)) is None
            elif step in ("end", "fail") and talk.is_under_way:
                await talk.over(failed=step == "fail")
        for talk in agents.talks:
            assert set(talk.given) <= {talk.who.conversation_id}
        assert sum(len(talk.given) for talk in agents.talks) == lawful
        await all_end(agents)

    among(test)


@given(STEPS, st.booleans())
def test_unnamed_calls_go_to_the_running_conversation(steps: list[tuple[str, int]], promised: bool) -> None:
    """Without names, one conversation runs at a time and gets all calls."""

    async def test(agents: Agents) -> None:
        for step, at in steps:
            talks = agents.talks
            now = [talk for talk in talks if talk.is_under_way]
            assert len(now) <= 1 or not promised
            if step == "start" or not talks:
                await agents.start()
            elif step in ("call", "stray", "frozen") and now:
                told = await agents.call(now[0])
                assert told == (now[0].who.conversation_id if len(now) == 1 else None)
            elif step == "cancel":
                talks[at % len(talks)].scope.cancel()
                await checkpoint()
            elif step in ("end", "fail") and now:
                await now[0].over(failed=step == "fail")
        for talk in agents.talks:
            assert set(talk.given) <= {talk.who.conversation_id}
        await all_end(agents)

    among(test, exclusive=promised)


async def settled() -> None:
    for _ in range(5):
        await checkpoint()


async def all_end(agents: Agents) -> None:
    """End running conversations until none waits, so that none is forgotten."""
    await settled()  # one that was cancelled may just be making room for the next
    while now := [talk for talk in agents.talks if talk.is_under_way]:
        for talk in now:
            await talk.over()
        await settled()
    assert not any(talk.waits for talk in agents.talks)


def test_two_hundred_at_once() -> None:
    """When two conversations have been named, two hundred are under way together, each with its own calls."""

    async def test(agents: Agents) -> None:
        await agents.prove()
        talks = [await agents.start() for _ in range(200)]
        assert all(talk.is_under_way for talk in talks)
        for talk in [*talks, *reversed(talks)]:
            await agents.call(talk, carried(talk))
        assert all(talk.given == [talk.who.conversation_id] * 2 for talk in talks)
        assert agents.errors == {}

    among(test)


def test_the_first_call_without_a_name_among_many_is_refused_and_ends_that() -> None:
    """An ambiguous call is refused with a note; from then on one conversation runs at a time."""

    async def test(agents: Agents) -> None:
        await agents.prove()
        first, second = await agents.start(), await agents.start()
        assert await agents.call(first) is None
        assert agents.errors == {"it names no conversation, and 2 conversations are under way": 1}
        third = await agents.start()
        assert third.waits
        assert await agents.call(second, carried(second)) == "c3"
        await first.over()
        assert third.waits
        await second.over()
        assert await agents.call(await third.begun()) == "c4"
        assert len(agents.notes) == 1
        assert "exclusive: true" in agents.notes[0]

    among(test)


def test_a_client_that_was_opened_in_the_first_conversation() -> None:
    """Its calls always have the first trace: they are refused in the second conversation, and answered if the
    user promises that one runs at a time."""

    async def found(agents: Agents) -> None:
        first = await (await agents.start()).begun()
        assert await agents.call(first, carried(first)) == "c0"
        await first.over()
        second = await (await agents.start()).begun()
        assert await agents.call(second, carried(first)) is None
        assert [*agents.errors] == ["it belongs to conversation c0 of agent 'shop', which has ended"]
        assert (await agents.start()).waits

    async def promised(agents: Agents) -> None:
        first = await (await agents.start()).begun()
        await first.over()
        second = await (await agents.start()).begun()
        assert await agents.call(second, carried(first)) == "c1"
        assert agents.errors == {}

    among(found)
    among(promised, exclusive=True)


@pytest.mark.parametrize("exclusive", [False, True])
def test_late_calls_of_a_failed_conversation(exclusive: bool) -> None:
    """A named call of a failed conversation reaches no other, and is not an error of the run."""

    async def test(agents: Agents) -> None:
        first = await (await agents.start()).begun()
        await first.over(failed=True)
        assert await agents.call(first, carried(first)) is None
        assert agents.errors == {}
        second = await (await agents.start()).begun()
        assert await agents.call(first, carried(first)) is None
        assert second.given == []
        assert len(agents.errors) == exclusive
        assert len(second.doubts) == 1  # its client may have an old name

    among(test, exclusive=exclusive)


def test_late_calls_where_names_are_right() -> None:
    """A call that names a conversation which has ended is of that one, and no other is doubted."""

    async def test(agents: Agents) -> None:
        await agents.prove()
        ended, other = await agents.start(), await agents.start()
        await ended.over()
        assert await agents.call(ended, carried(ended)) is None
        assert len(agents.errors) == 1
        assert other.doubts == []

    among(test)


@pytest.mark.parametrize("exclusive", [False, True])
def test_an_agent_that_was_given_up_may_go_on(exclusive: bool) -> None:
    """Calls without names that come after a time-out are not those of the next conversation: it waits."""

    async def test(agents: Agents) -> None:
        first = await (await agents.start()).begun()
        await first.over(failed=True, at_work_s=30.0)
        second = await agents.start()
        assert second.waits
        assert await agents.call(first) is None
        assert agents.errors == {}
        begun = anyio.current_time()
        assert await agents.call(await second.begun()) == "c1"
        assert anyio.current_time() - begun == 30.0
        assert "waits 30 s" in agents.notes[0]

    among(test, exclusive=exclusive)


@pytest.mark.parametrize("named", [True, False])
def test_a_conversation_that_is_stopped(named: bool) -> None:
    """Calls after a run was stopped, from agents that do not know, are not an error."""

    async def test(agents: Agents) -> None:
        talk = await (await agents.start()).begun()
        talk.scope.cancel()
        await checkpoint()
        assert await agents.call(talk, carried(talk) if named else None) is None
        assert agents.errors == {}

    among(test)


def test_named_calls_need_no_pause() -> None:
    """If calls name their conversation, there is no wait for an abandoned agent."""

    async def test(agents: Agents) -> None:
        await agents.prove()
        await (await agents.start()).over(failed=True, at_work_s=30.0)
        assert (await agents.start()).is_under_way
        assert agents.notes == []

    among(test)


def test_names_of_others() -> None:
    """An unknown name, one of another agent's servers, one of a session; foreign traces identify nothing."""

    async def test(agents: Agents) -> None:
        await agents.prove()
        mine, desk = await agents.start(), await agents.start("desk")
        assert desk.is_under_way
        assert await agents.call(mine, certain("nobody")) is None
        assert await agents.call(mine, carried(desk)) is None
        assert await agents.call(mine, certain("session-c2")) == "c2"
        assert await agents.call(mine, names_of({"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})) == "c2"
        assert [*agents.errors] == [
            f"the header {HEADER} names 'nobody', which is not a conversation of this run",
            "the header baggage names conversation c3 of agent 'desk', whose servers are others",
        ]

    among(test)
