"""Calls that arrive in the run's process are answered in the worker that runs their conversation."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from project import Project, interrupt, wait_until
from stock_agent import StockAgent

from agentest.agents.call_source_addresses import Addresses
from agentest.plugins.servers.active_conversations import Registry, ServerGroup, names_of
from agentest.plugins.servers.port import (
    ActivePeriod,
    CallOutcome,
    Identity,
    ModelAccess,
    RealAnswer,
    ServedAnswer,
    ServedCall,
    TurnTraces,
)
from agentest.plugins.servers.worker_calls import MockProxy, ProxiedConversations
from agentest.support.errors import AgentError, MockError
from agentest.support.trace_context import new_key
from agentest.workers.channel import Link, deliver, remote

CALLS = "calls"


class Conversation:
    """A conversation of a worker, and its received calls."""

    def __init__(self, name: str) -> None:
        self.who = Identity(key=new_key(), session_id=None, conversation_id=name, scenario="s", agent="shop")
        self.calls: list[Any] = []
        self.doubts: list[str] = []
        self.real: list[Any] = []
        self.hangs = anyio.Event()
        self.cancelled = anyio.Event()
        self.outside: list[str] = []

    async def answer(self, call: ServedCall) -> ServedAnswer:
        self.calls.append(call.problem or call.arguments)
        match call.tool:
            case "real":
                return ServedAnswer(how=CallOutcome.REAL, number=7)
            case "hang":
                await self._hang()
            case "break":
                raise LookupError("a mistake of ours")
            case "deep":
                return ServedAnswer(how=CallOutcome.ANSWERED, result=deep())
        return ServedAnswer(how=CallOutcome.ANSWERED, result={"of": self.who.conversation_id})

    async def _hang(self) -> None:
        try:
            self.hangs.set()
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()

    async def answered(self, number: int, answer: RealAnswer) -> None:
        self.real.append((number, answer.result, answer.failed))

    async def refused(self, why: str, *, ours: bool = False) -> None:
        self.doubts.append(f"our fault: {why}" if ours else why)

    @asynccontextmanager
    async def waiting(self) -> Any:
        self.outside.append("out")
        yield
        self.outside.append("in")


def deep() -> Any:
    value: Any = None
    for _ in range(100_000):
        value = [value]
    return value


class Scale:
    """A run with one worker: both ends of their link, in one process."""

    def __init__(self, *, exclusive: bool = False) -> None:
        self.notes: list[str] = []
        self.group = ServerGroup(("shop",), Addresses(mcp="http://127.0.0.1:1/mcp"), exclusive=exclusive)
        self.registry = Registry((self.group,), self.notes.append)
        self.gone = anyio.Event()

    async def call(
        self,
        owner: Conversation,
        tool: str = "t",
        arguments: Any = None,
        *,
        named: bool = True,
        real: Any = None,
    ) -> ServedAnswer:
        names = names_of({}, owner.who.key) if named else ()
        call = ServedCall(tool=tool, arguments={} if arguments is None else arguments)
        return await self.registry.answer(self.group, names, call, real)


@asynccontextmanager
async def scaled(*, exclusive: bool = False) -> Any:
    """A run and its worker."""
    ours, theirs = socket.socketpair()
    scale = Scale(exclusive=exclusive)
    async with anyio.create_task_group() as tasks:
        hosted = ProxiedConversations(remote(CALLS, lambda message: there.send(message)))
        there = await Link.over(theirs, lambda message: deliver(message, {CALLS: hosted}), lambda: None)
        guests: MockProxy

        def on_disconnect() -> None:
            guests.close()
            scale.gone.set()

        here = await Link.over(ours, lambda message: deliver(message, {CALLS: guests}), on_disconnect)
        guests = MockProxy(scale.registry, remote(CALLS, here.send), tasks, "the tape")
        async with hosted.answering():
            yield scale, hosted, there
        await there.close()
        await here.close()
        tasks.cancel_scope.cancel()


def scaling(use: Callable[[Scale, ProxiedConversations, Link], Awaitable[None]], **settings: Any) -> None:
    async def go() -> None:
        async with scaled(**settings) as (scale, hosted, there):
            await use(scale, hosted, there)

    anyio.run(go)


async def settled() -> None:
    """Wait until messages have gone to and fro."""
    for _ in range(20):
        await checkpoint()


def test_calls_and_answers() -> None:
    """A conversation of a worker gets its addresses, its calls, and what real tools answered; after its end
    its calls are refused."""

    async def use(scale: Scale, hosted: ProxiedConversations, _: Link) -> None:
        one = Conversation("c1")
        async with hosted.under_way(one.who, one, one.waiting) as stay:
            assert stay.addresses.mcp == f"http://127.0.0.1:1/mcp/{one.who.key}"
            assert (await scale.call(one, arguments={"a": [1, None, "ü"]})).result == {"of": "c1"}
            assert one.calls == [{"a": [1, None, "ü"]}]

            async def real() -> RealAnswer:
                return RealAnswer(result={"n": 1}, raw="as it came")

            answer = await scale.call(one, "real", real=real)
            assert (answer.how, answer.result, answer.real) == (CallOutcome.ANSWERED, {"n": 1}, "as it came")
            assert one.real == [(7, {"n": 1}, False)]
        assert (await scale.call(one)).how is CallOutcome.REFUSED
        assert sum(scale.registry.unclaimed.values()) == 1
        assert one.outside == []

    scaling(use)


def test_a_call_that_may_be_of_a_workers_conversation() -> None:
    """The worker knows of the refusal before the caller does."""

    async def use(scale: Scale, hosted: ProxiedConversations, _: Link) -> None:
        one = Conversation("one")
        async with hosted.under_way(one.who, one):
            call = ServedCall(tool="t", arguments={})
            answer = await scale.registry.answer(scale.group, names_of({}, "f" * 24), call)
            assert answer.how is CallOutcome.REFUSED
            assert "names 'ffff" in one.doubts[0]

    scaling(use)


def test_values_that_cannot_be_sent() -> None:
    """Deeply nested arguments and answers, and a bug of ours, still give answers."""

    async def use(scale: Scale, hosted: ProxiedConversations, _: Link) -> None:
        one = Conversation("c1")
        async with hosted.under_way(one.who, one):
            assert (await scale.call(one, arguments={"a": deep()})).result == {"of": "c1"}
            assert one.calls == ["the arguments are nested too deeply"]
            for tool, message in (("deep", "nested too deeply"), ("break", "LookupError: a mistake of ours")):
                answer = await scale.call(one, tool)
                assert answer.how is CallOutcome.FAILED
                assert message in answer.message

    scaling(use)


def test_waiting_outside_and_leaving_before_the_beginning() -> None:
    """Waiting takes no place; one cancelled meanwhile blocks no other."""

    async def use(scale: Scale, hosted: ProxiedConversations, _: Link) -> None:
        first, second, third = (Conversation(f"c{n}") for n in range(3))
        begun = anyio.Event()
        given_up = anyio.CancelScope()

        async def hold(one: Conversation, scope: anyio.CancelScope) -> None:
            with scope:
                async with hosted.under_way(one.who, one, one.waiting):
                    assert (await scale.call(one, named=False)).result == {"of": one.who.conversation_id}
                    begun.set()

        async with anyio.create_task_group() as tasks:
            async with hosted.under_way(first.who, first):
                tasks.start_soon(hold, second, given_up)
                await settled()
                tasks.start_soon(hold, third, anyio.CancelScope())
                await settled()
                assert (second.outside, third.outside) == (["out"], ["out"])
                given_up.cancel()
                await settled()
                assert not begun.is_set()
            await begun.wait()
        assert third.outside == ["out", "in"]
        assert second.calls == []

    scaling(use, exclusive=True)


def test_a_caller_that_goes_away() -> None:
    """A mock whose caller has gone is cancelled in its worker."""

    async def use(scale: Scale, hosted: ProxiedConversations, _: Link) -> None:
        one = Conversation("c1")
        async with hosted.under_way(one.who, one), anyio.create_task_group() as tasks:
            tasks.start_soon(scale.call, one, "hang")
            await one.hangs.wait()
            tasks.cancel_scope.cancel()
        await one.cancelled.wait()

    scaling(use)


def test_a_worker_that_dies() -> None:
    """Its calls are refused, those under way too, and what waited for its conversations begins."""

    async def use(scale: Scale, hosted: ProxiedConversations, there: Link) -> None:
        one, waits = Conversation("c1"), Conversation("c2")
        answers: list[ServedAnswer] = []
        begun = anyio.Event()

        async def call() -> None:
            answers.append(await scale.call(one, "hang"))

        async def begin() -> None:
            async with scale.registry.under_way(waits.who, waits):
                begun.set()

        async with hosted.under_way(one.who, one), anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await one.hangs.wait()
            tasks.start_soon(begin)
            await settled()
            assert not begun.is_set()
            await there.close()
            await scale.gone.wait()
            await begun.wait()
        assert answers[0].how is CallOutcome.REFUSED
        assert (await scale.call(one)).how is CallOutcome.REFUSED
        assert scale.registry.unclaimed == {}

    scaling(use, exclusive=True)


def test_a_conversation_that_is_stopped() -> None:
    """Calls after a run was stopped, from agents that do not know, are not an error."""

    async def use(scale: Scale, hosted: ProxiedConversations, _: Link) -> None:
        one = Conversation("c1")
        with anyio.CancelScope() as scope:
            async with hosted.under_way(one.who, one):
                scope.cancel()
                await checkpoint()
        await settled()
        assert (await scale.call(one)).how is CallOutcome.REFUSED
        assert scale.registry.unclaimed == {}

    scaling(use)


def test_a_call_in_the_moment_of_the_end() -> None:
    """A call in transit when its conversation ends is refused, with a note."""

    async def use(scale: Scale, hosted: ProxiedConversations, _: Link) -> None:
        one = Conversation("c1")
        answers: list[ServedAnswer] = []

        async def call() -> None:
            answers.append(await scale.call(one))

        async with anyio.create_task_group() as tasks, hosted.under_way(one.who, one) as stay:
            assert isinstance(stay, ActivePeriod)
            tasks.start_soon(call)
            await checkpoint()
        assert answers[0].how is CallOutcome.REFUSED
        assert [each.why for each in scale.registry.unclaimed] == [
            "it belongs to conversation c1 of agent 'shop', which has ended"
        ]

    scaling(use)


class FakeGateway:
    """A model gateway with one conversation, kept while `place` is set."""

    lane = 2

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.problem: Exception | None = None
        self.rests: list[tuple[str, float]] = []
        self.place = anyio.Event()
        self.place.set()

    @asynccontextmanager
    async def under_way(self, who: Any, serving: Any, access: ModelAccess, outside: Any) -> Any:
        if not self.place.is_set():
            async with outside():
                await self.place.wait()
        self.heard.append(access.recordings)
        yield self

    def rest(self, key: str, seconds: float) -> None:
        self.rests.append((key, seconds))

    @contextmanager
    def said(self, text: str) -> Iterator[None]:
        self.heard.append(text)
        try:
            yield
        except BaseException:
            self.heard.append("given up")
            raise
        self.heard.append("replied")

    async def has_heard(self) -> None:
        self.heard.append("known")

    async def error_of(self, agent_error: Exception | None) -> Exception | None:
        return self.problem and type(self.problem)(f"{self.problem}: {agent_error}")

    async def end_turn(self) -> TurnTraces:
        if self.problem:
            raise self.problem
        return TurnTraces(model_calls=3)


ACCESS = ModelAccess(mocked=frozenset({"t"}), opening="hello", timeout_s=20)


def test_a_model_gateway_knows_a_workers_messages() -> None:
    """It gets the text before the agent does, and its errors end the conversation in the worker."""

    async def use(scale: Scale, hosted: ProxiedConversations, _: Link) -> None:
        gateway, one = FakeGateway(), Conversation("c1")
        scale.group.model_traffic = gateway
        async with hosted.under_way(one.who, one, one.waiting, ACCESS) as stay:
            model = stay.model
            assert model is not None
            assert model.lane == 2
            with model.said("hello"):
                await model.has_heard()
                assert gateway.heard == ["the tape", "hello", "known"]
            assert await model.error_of(None) is None
            assert (await model.end_turn()).model_calls == 3
            gateway.problem = MockError("no answer")
            with pytest.raises(LookupError), model.said("again"):
                raise LookupError
            error = await model.error_of(AgentError("status 500"))
            assert (type(error), str(error)) == (MockError, "no answer: status 500")
            with pytest.raises(MockError, match="no answer"):
                await model.end_turn()
            gateway.problem = LookupError("a mistake of ours")
            with pytest.raises(RuntimeError, match="LookupError: a mistake of ours"):
                await model.end_turn()
            stay.failed, stay.at_work_s = True, 30.0
        await settled()
        assert gateway.heard[3:] == ["replied", "again", "given up"]
        assert gateway.rests == [(one.who.key, 30.0)]

    scaling(use)


def test_a_workers_conversation_waits_outside_for_its_place_at_the_gateway() -> None:
    async def use(scale: Scale, hosted: ProxiedConversations, _: Link) -> None:
        gateway, one = FakeGateway(), Conversation("c1")
        gateway.place = anyio.Event()
        scale.group.model_traffic = gateway

        async def hold() -> None:
            async with hosted.under_way(one.who, one, one.waiting, ACCESS):
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await settled()
            assert one.outside == ["out"]
            gateway.place.set()
        assert one.outside == ["out", "in"]

    scaling(use)


def test_the_gateway_knows_that_an_agent_is_still_at_work_when_its_worker_dies() -> None:
    async def use(scale: Scale, hosted: ProxiedConversations, there: Link) -> None:
        gateway, one = FakeGateway(), Conversation("c1")
        scale.group.model_traffic = gateway
        async with hosted.under_way(one.who, one, one.waiting, ACCESS) as stay:
            assert stay.model is not None
            with stay.model.said("hello"):
                await stay.model.has_heard()
                await there.close()
                await scale.gone.wait()
                assert gateway.heard[-1] == "given up"
                await settled()
                assert gateway.rests == [(one.who.key, ACCESS.timeout_s)]

    scaling(use)


SCENARIOS = """
for n in range(6):
    scenario(
        f"s{n}", turns=["tea milk", "coffee" if n else "bread"], conversations_per_scenario=2,
        tools={"stock": (lambda n: lambda args, ctx: {**args, "n": n, "i": ctx.call_index})(n)},
        trajectory={"expected": ["stock", call("stock", item="milk"), call("stock", item="coffee")]},
    )
"""


def told(project: Project) -> Any:
    """The outcome of each conversation."""
    return [
        (
            s["name"],
            s["status"],
            [
                [(c["name"], c["args"], c["result"], c["seenBy"]) for c in t["toolCalls"]]
                for held in s["conversations"]
                for t in held["turns"]
            ],
        )
        for s in project.results["scenarios"]
    ]


@pytest.mark.parametrize("nameless", [False, True])
def test_results_are_those_of_one_process(project: Project, nameless: bool) -> None:
    """With workers, the scenario's mocks answer each call in order, whether calls name their conversation or
    one runs at a time over all workers."""
    project.scenario(SCENARIOS)
    with StockAgent() as agent:
        agent.configure(project, nameless=nameless, tool_visibility="reported")
        alone = project.run()
        one = told(project)
        workers = project.run("--workers", "2")
        assert told(project) == one
    assert [status for _, status, _ in one] == ["failed", *["passed"] * 5]
    assert workers.returncode == alone.returncode == 1, workers.stdout
    assert workers.stderr == alone.stderr
    assert ("one at a time" in alone.stderr) is nameless
    calls = one[3][2]
    assert calls[:2] == [
        [
            ("stock", {"item": "tea"}, {"item": "tea", "n": 3, "i": 0}, "mock-server"),
            ("stock", {"item": "milk"}, {"item": "milk", "n": 3, "i": 1}, "mock-server"),
        ],
        [("stock", {"item": "coffee"}, {"item": "coffee", "n": 3, "i": 2}, "mock-server")],
    ]


def test_an_interrupt_while_others_wait(project: Project) -> None:
    """Ctrl-C ends a run whose conversations wait until one that hangs has ended."""
    project.scenario("for n in range(4):\n    scenario(f's{n}', turns=['hang'], tools={'stock': 1})")
    with StockAgent() as agent:
        agent.configure(project, nameless=True, exclusive=True, tool_visibility="reported")
        process = project.start("--workers", "2")
        wait_until(lambda: agent.hangs)
        status, out, err = interrupt(process)
    assert status == 130, out + err
    assert "Traceback" not in err
