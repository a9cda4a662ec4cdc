"""Agents that call a model through the gateway: every call is seen, and mocked tools never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_provider import FORM_OF, ROOTS, Conversation, Provider, Refused, Said, served

from agentest.agents.listener import listen
from agentest.config.agents.companion_servers import ModelGateway
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.mocks.binding import RecordedAnswer, bind
from agentest.mocks.resolver import MockResolver
from agentest.plugins.servers.model_gateway.conversation import GatewayConversation
from agentest.plugins.servers.model_gateway.gateway_conversations import GatewayTraffic
from agentest.plugins.servers.model_gateway.server import GatewayHandler
from agentest.plugins.servers.port import Identity, ModelAccess, ModelFaults
from agentest.plugins.servers.server_calls import MockServerCalls
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client
from agentest.support.trace_context import new_key

pytestmark = pytest.mark.anyio
TOKEN = "token-of-the-gateway"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Gateway:
    """A gateway before a scripted provider, as a run opens it."""

    provider: Provider
    traffic: GatewayTraffic
    client: httpx.AsyncClient
    origin: str
    """With the token."""
    notes: list[str]
    upstream: dict[Any, str]
    """Provider → address, as the gateway has it."""
    faults: ModelFaults | None = None

    @asynccontextmanager
    async def talk(
        self,
        form: str,
        name: str,
        *,
        stream: bool = False,
        mocks: dict[str, Any] | None = None,
        recorded: Sequence[RecordedAnswer] | None = None,
    ) -> AsyncIterator[Talk]:
        """Begin a conversation whose tool `find` is mocked; `send` is a real one."""
        resolver = MockResolver(
            {"find": bind(lambda q: {"mocked": q})} if mocks is None else mocks,
            scenario=name,
            conversation_id=name,
            unmocked_tools="passthrough" if self.traffic.allows_real else "error",
            recorded=recorded,
        )
        who = Identity(key=new_key(), session_id=None, conversation_id=name, scenario=name, agent="shop")
        serving = MockServerCalls(who, resolver)
        serving.seen_by = SeenBy.MODEL
        access = ModelAccess(
            mocked=frozenset(spec.name for spec in resolver.specs()),
            opening=name,
            timeout_s=30,
            recorded=frozenset(answer.name for answer in recorded or ()),
            faults=self.faults,
        )
        async with self.traffic.under_way(who, serving, access) as known:
            lane = f"/lane/{known.lane}" if known.lane else ""
            base = f"{self.origin}{lane}/{ROOTS[form]}"
            agent = Conversation(FORM_OF[form](), base, self.client, stream=stream)
            yield Talk(agent, known, serving, resolver)


@dataclass
class Talk:
    """One conversation: the agent, and what Agentest knows of it."""

    agent: Conversation
    known: GatewayConversation
    serving: MockServerCalls
    resolver: MockResolver
    turn: int = field(default=-1)

    async def say(self, text: str) -> str:
        self.turn += 1
        self.serving.begin_turn(self.turn)
        with self.known.said(text):
            return await self.agent.say(text)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(call for turn in range(self.turn + 1) for call in self.resolver.record.of_turn(turn))


@asynccontextmanager
async def gateway(
    *, allows_real: bool = True, provider: Provider | None = None, lanes: int = 1, **settings: Any
) -> AsyncIterator[Gateway]:
    provider = provider or Provider()
    notes: list[str] = []
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(served(provider.app()))
        config = ModelGateway(
            upstream={"openai": f"{upstream}/v1", "anthropic": upstream, "google": upstream}, **settings
        )
        client = await stack.enter_async_context(open_client(AddressGuard()))
        traffic = GatewayTraffic(
            agent="shop",
            mocks=config.mocks,
            allows_real=allows_real or not config.mocks,
            on_note=notes.append,
            on_request=lambda: None,
            overrides={"shop": config.override},
            lanes=lanes,
        )
        handler = GatewayHandler(config, traffic, client, TOKEN).handle
        origin = f"{await listen(handler, config, 'model_gateway', stack, notes.append)}/{TOKEN}"
        agents = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=30))
        yield Gateway(provider, traffic, agents, origin, notes, config.upstream)


BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
EACH_FORM = pytest.mark.parametrize("form", FORM_OF)


def made(calls: Sequence[ToolCall]) -> list[tuple[str, Any, bool]]:
    return [(call.name, call.args["q"], call.mocked) for call in calls]


@EACH_FORM
@BOTH_WAYS
async def test_mocked_calls_are_answered_inside_and_remembered_in_later_turns(
    form: str, stream: bool
) -> None:
    async with gateway() as gate, gate.talk(form, "a", stream=stream) as talk:
        replies = [
            await talk.say(text) for text in ("look one", "recall", "both two", "look three", "recall")
        ]

    assert replies[0] == "Done."
    assert "one" in replies[1]
    assert replies[2].endswith("Done.")
    assert replies[4] == "I recall " + " ".join(
        str({kind: value})
        for kind, value in (
            ("mocked", "one"),
            ("mocked", "two"),
            ("real", "two"),
            ("mocked", "two2"),
            ("mocked", "three"),
        )
    )
    assert talk.agent.ran == [("send", {"q": "two"})]
    assert made(talk.calls) == [
        ("find", "one", True),
        ("find", "two", True),
        ("send", "two", False),
        ("find", "two2", True),
        ("find", "three", True),
    ]
    assert {call.seen_by for call in talk.calls} == {SeenBy.MODEL}
    assert [call.result for call in talk.calls][2] == {"real": "two"}
    assert gate.provider.refused == []


@EACH_FORM
@BOTH_WAYS
async def test_each_request_to_the_model_continues_the_one_before(form: str, stream: bool) -> None:
    async with gateway() as gate, gate.talk(form, "a", stream=stream) as talk:
        for text in ("look one", "both two", "look one", "recall"):
            await talk.say(text)

    histories = gate.provider.histories
    for before, after in pairwise(histories):
        assert after[: len(before)] == before


@EACH_FORM
@BOTH_WAYS
async def test_twenty_conversations_at_once_are_told_apart(form: str, stream: bool) -> None:
    names = [f"n{i}" for i in range(20)]
    recalled: dict[str, str] = {}

    async def hold(gate: Gateway, name: str) -> None:
        async with gate.talk(form, name, stream=stream) as talk:
            await talk.say(f"both {name}")
            recalled[name] = await talk.say(f"recall of {name}")
            assert made(talk.calls) == [
                ("find", name, True),
                ("send", name, False),
                ("find", f"{name}2", True),
            ]

    async with gateway() as gate, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(hold, gate, name)
    assert recalled == {
        name: f"I recall {{'mocked': '{name}'}} {{'real': '{name}'}} {{'mocked': '{name}2'}}"
        for name in names
    }


@EACH_FORM
@BOTH_WAYS
async def test_a_tool_without_a_mock_never_runs_if_it_may_not(form: str, stream: bool) -> None:
    async with gateway(allows_real=False) as gate, gate.talk(form, "a", stream=stream) as talk:
        with pytest.raises(Refused, match="has no mock"):
            await talk.say("both one")
        talk.agent.history.clear()
        with pytest.raises(Refused, match="has no mock"):  # clients repeat failed requests
            await talk.agent.say("both one")

    assert talk.agent.ran == []
    assert [call.name for call in talk.calls] == ["find", "send"]
    assert len(gate.provider.histories) == 1
    with pytest.raises(Exception, match="has no mock"):
        await talk.serving.check()


@EACH_FORM
async def test_without_mocks_calls_are_only_seen(form: str) -> None:
    async with gateway(mocks=False) as gate, gate.talk(form, "a", mocks={}) as talk:
        await talk.say("both one")

    assert [name for name, _ in talk.agent.ran] == ["find", "send", "find"]
    assert made(talk.calls) == [("find", "one", False), ("send", "one", False), ("find", "one2", False)]


@EACH_FORM
@BOTH_WAYS
async def test_a_model_that_never_ends_its_mocked_calls_is_an_error(form: str, stream: bool) -> None:
    def again(history: Sequence[Said]) -> tuple[str, list[tuple[str, Any]]]:
        return "", [("find", {"q": str(len(history))})]

    async with gateway(provider=Provider(again)) as gate, gate.talk(form, "a", stream=stream) as talk:
        with pytest.raises(Refused, match="more than 25 times"):
            await talk.say("look one")

    assert len(talk.calls) == 26


async def test_requests_that_nobody_can_place_are_refused_if_they_offer_a_mocked_tool() -> None:
    async with gateway() as gate, gate.talk("chat", "a") as first, gate.talk("chat", "b") as second:
        first.known.texts.append("look one")
        second.known.texts.append("look one")
        with pytest.raises(Refused, match="2 conversations may have made it"):
            await first.agent.say("look one")

    assert gate.provider.histories == []
    assert first.serving.doubt_of(0) == second.serving.doubt_of(0)
    assert "could not be placed" in gate.notes[0]


async def test_a_late_request_of_an_ended_conversation_is_not_taken_for_one_of_another() -> None:
    async with gateway() as gate:
        async with gate.talk("chat", "a") as first:
            await first.say("look one")
        async with gate.talk("chat", "b") as second:
            second.known.texts.append("look two")
            with pytest.raises(Refused, match="conversation a of agent 'shop', which has ended"):
                await first.agent.say("look one again")

    assert second.calls == ()


@EACH_FORM
@pytest.mark.parametrize("passes", [False, True], ids=["at once", "later"])
async def test_a_job_that_goes_on_after_its_conversation_is_not_taken_for_one_of_the_only_other(
    form: str, passes: bool
) -> None:
    async with gateway() as gate:
        async with gate.talk(form, "a") as first:
            await first.say("look one")
        if passes:
            first.known.idle_at = 0.0
        async with gate.talk(form, "b") as second:
            second.known.texts.append("hello, my dear friend")
            job = Conversation(FORM_OF[form](), f"{gate.origin}/{ROOTS[form]}", gate.client)
            if passes:
                await job.say("look job")
            else:
                with pytest.raises(Refused, match="2 conversations may have made it"):
                    await job.say("look job")
            await second.say("look two")
            assert made(second.resolver.calls)[-1] == ("find", "two", True)

    assert len(second.resolver.calls) == 1 + passes


@pytest.mark.parametrize("more", ["", " for two"])
async def test_conversations_that_begin_alike_run_one_after_the_other(more: str) -> None:
    order: list[str] = []

    async def hold(gate: Gateway, number: int) -> None:
        async with gate.talk("chat", f"same{more * (number % 2)}") as talk:
            order.append(f"begin {number}")
            assert await talk.say("look one") == "Done."
            order.append(f"end {number}")

    async with gateway() as gate, anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(hold, gate, number)
    assert [each.partition(" ")[0] for each in order] == ["begin", "end"] * 3
    assert len(gate.notes) == 1
    assert "run one after the other" in gate.notes[0]
    assert "server.copies: 4" in gate.notes[0]


async def test_an_address_that_names_the_conversation_decides() -> None:
    async with gateway() as gate, gate.talk("chat", "a") as first, gate.talk("chat", "b") as second:
        for talk in (first, second):
            talk.agent.base = f"{gate.origin}/c/{talk.known.who.key}/openai"
            assert await talk.say("look one") == "Done."

    assert made(first.calls) == made(second.calls) == [("find", "one", True)]


async def test_what_is_no_request_to_a_model_passes_through() -> None:
    async with gateway() as gate, gate.talk("chat", "a"):
        response = await gate.client.post(f"{gate.origin}/openai/v1/embeddings", json={"input": "x"})

    assert response.status_code == 500  # the scripted provider knows no embeddings


ROUND = st.tuples(
    st.sampled_from(["", "One moment."]), st.lists(st.sampled_from(["find", "send"]), min_size=1, max_size=3)
)
TURN = st.lists(ROUND, max_size=3)
ANSWERS = st.sampled_from(["Done.", "Fine."])


@given(
    turns=st.lists(st.tuples(TURN, ANSWERS, st.sampled_from(["go on", "again"])), min_size=1, max_size=4),
    form=st.sampled_from([*FORM_OF]),
    stream=st.booleans(),
)
def test_the_model_always_sees_a_valid_history_that_only_grows(
    turns: list[tuple[list[tuple[str, list[str]]], str, str]], form: str, stream: bool
) -> None:
    def reply(history: Sequence[Said]) -> tuple[str, list[tuple[str, Any]]]:
        users = [i for i, each in enumerate(history) if each.role == "user"]
        rounds, answer, _ = turns[len(users) - 1]
        number = sum(each.role == "model" for each in history[users[-1] :])
        if number == len(rounds):
            return answer, []
        text, names = rounds[number]
        return text, [(name, {"q": f"{len(users)}.{number}.{i}"}) for i, name in enumerate(names)]

    async def hold() -> None:
        async with gateway(provider=provider) as gate, gate.talk(form, "a", stream=stream) as talk:
            for rounds, answer, text in turns:
                before = len(talk.calls)
                assert (await talk.say(text)).endswith(answer)
                names = [name for _, names in rounds for name in names]
                assert [call.name for call in talk.calls[before:]] == names
            assert {name for name, _ in talk.agent.ran} <= {"send"}

    provider = Provider(reply)
    anyio.run(hold)
    assert provider.refused == []
    for before, after in pairwise(provider.histories):
        assert after[: len(before)] == before
