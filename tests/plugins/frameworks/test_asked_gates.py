"""Tools of handlers and applications that call the mocks themselves: their conversations, and losses.

A small tool stands for those of frameworks, which are in tests/plugins/frameworks/test_mock_lines.py.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import agentest
from agentest import scenario
from agentest.agents.port import AgentReply, TurnContext
from agentest.domain.results import RunResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Blame, Conversation
from agentest.plugins.frameworks.client import AskedCall, decide, with_decisions
from agentest.plugins.frameworks.tool_gate import ToolGate, gate_for_wrapped_tool
from agentest.support.errors import AgentestError, UsageError
from agentest.testing import run_scenarios

REAL: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_real() -> Iterator[None]:
    REAL.clear()
    yield
    REAL.clear()


def really(q: Any) -> str:
    REAL.append(q)
    return f"really {q}"


async def find(q: Any, gate: ToolGate | None = None) -> Any:
    """A tool that asks before it runs."""
    gate = gate_for_wrapped_tool("find", gate)
    if gate is None:
        return really(q)

    async def run() -> str:
        return really(q)

    return (await gate.answer("find", {"q": q}, run)).value


def find_plainly(q: Any, gate: ToolGate | None = None) -> Any:
    gate = gate_for_wrapped_tool("find", gate)
    return really(q) if gate is None else gate.answer_plainly("find", {"q": q}, lambda: really(q)).value


Work = Callable[[str], Awaitable[Any]]


def app_of(work: Work, start: Callable[[], Any] = lambda: None) -> Any:
    """An application that answers with what `work` gives for a message."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return await send({"type": "lifespan.shutdown.complete"})
        body = json.loads((await receive())["body"])
        answer = json.dumps(await work(body["message"])).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


def agent_of(work: Work, **settings: Any) -> dict[str, Any]:
    http = {"type": "http", "endpoint": "/", "body": {"message": "{{message}}"}, "reply": "reply"}
    return {**http, "app": app_of(work, settings.pop("start", lambda: None)), **settings}


def run(work: Work, *turns: str, tools: Any = None, agent: Any = None, **settings: Any) -> RunResult:
    made = scenario("s", turns=[*turns] or ["lamp"], tools={"find": 7} if tools is None else tools)
    wanted = {"tool_visibility": "returned", **(agent or {})}
    return run_scenarios([made], agent=agent_of(work, **wanted), **settings)


def held(result: RunResult, index: int = 0) -> Conversation:
    return result.scenarios[index].conversations[0].conversation


def reply(text: Any) -> dict[str, Any]:
    return {"reply": str(text)}


async def in_the_task(said: str) -> Any:
    return reply(await find(said))


async def in_a_thread(said: str) -> Any:
    return reply(await asyncio.to_thread(find_plainly, said))


async def plainly(said: str) -> Any:
    return reply(find_plainly(said))


@pytest.mark.parametrize("work", [in_the_task, in_a_thread, plainly], ids=lambda work: work.__name__)
def test_an_application_asks_the_mocks_of_its_conversation(work: Work) -> None:
    """In tasks, threads and plain code the mocks of the request's own conversation answer."""
    made = [scenario(f"s{n}", turns=["a", "b"], tools={"find": n}) for n in range(10)]
    result = run_scenarios(made, agent=agent_of(work, tool_visibility="returned"), concurrency=10)
    for n in range(10):
        calls = [(c.args, c.result, c.turn_index, c.mocked, c.seen_by) for c in held(result, n).tool_calls]
        assert calls == [
            ({"q": "a"}, n, 0, True, SeenBy.CALLER),
            ({"q": "b"}, n, 1, True, SeenBy.CALLER),
        ]
    assert REAL == []


def test_work_after_the_answer_is_of_its_turn() -> None:
    """A call by work that goes on behind the answer is recorded in the turn that began it."""
    later: list[asyncio.Task[Any]] = []

    async def find_later(said: str) -> None:
        with suppress(AgentestError):
            await find(said)

    async def work(said: str) -> Any:
        if said == "last":
            await asyncio.gather(*later)
        else:
            later.append(asyncio.create_task(find_later(said)))
        return reply("ok")

    calls = held(run(work, "first", "last")).turns[0].tool_calls
    assert [(c.args, c.result) for c in calls] == [({"q": "first"}, 7)]
    later.clear()
    failure = held(run(work, "first", "last", tools={"other": 1})).failure
    assert failure is not None
    assert "called tool 'find', which has no mock" in failure.message
    assert "let tools without a mock run, the real ones" in failure.message


def test_work_after_the_conversation_is_not_answered() -> None:
    """When its conversation has ended, a call is not answered, and the real tool does not run."""
    later: list[Any] = []

    async def wait_and_find(goes: asyncio.Event) -> Any:
        await goes.wait()
        return await find("late")

    async def work(said: str) -> Any:
        if said == "begin":
            goes = asyncio.Event()
            later.extend((goes, asyncio.create_task(wait_and_find(goes))))
            return reply("ok")
        later[0].set()
        (error,) = await asyncio.gather(later[1], return_exceptions=True)
        return reply(error)

    made = [scenario(each, turns=[each], tools={"find": 7}) for each in ("begin", "end")]
    result = run_scenarios(made, agent=agent_of(work, tool_visibility="returned"), concurrency=1)
    assert held(result, 1).turns[0].agent_message == (
        "tool 'find' was called when its conversation had ended; it was not run"
    )
    assert (held(result).tool_calls, held(result, 1).tool_calls, REAL) == ((), (), [])


def test_a_call_that_lost_its_conversation() -> None:
    """It is not run; the conversations that it may be of are errored, though the application swallows it."""

    async def work(said: str) -> Any:
        with ThreadPoolExecutor(1, "lost") as threads:
            (error,) = await asyncio.gather(
                asyncio.wrap_future(threads.submit(find_plainly, said)), return_exceptions=True
            )
        return reply(f"swallowed {type(error).__name__}")

    found = run(work)
    failure = held(found).failure
    assert failure is not None
    assert failure.blame is Blame.MOCK
    assert "tool 'find' was called where it is not known for which conversation" in failure.message
    assert "in thread 'lost_0'" in failure.message
    assert found.scenarios[0].verdict.status == "errored"
    assert REAL == []


def test_work_that_began_with_the_application() -> None:
    """A worker that the startup began belongs to no conversation: its calls are refused."""
    queue: list[asyncio.Queue[Any]] = []

    async def worker() -> None:
        said, done = await queue[0].get()
        try:
            done.set_result(await find(said))
        except AgentestError as error:
            done.set_result(str(error))

    def start() -> None:
        queue.append(asyncio.Queue())
        queue.append(asyncio.create_task(worker()))  # type: ignore[arg-type]

    async def work(said: str) -> Any:
        done = asyncio.get_running_loop().create_future()
        await queue[0].put((said, done))
        return reply(await done)

    failure = held(run(work, agent={"start": start})).failure
    assert failure is not None
    assert "not known for which conversation" in failure.message
    assert REAL == []


def test_a_handler_may_say_whose_it_is() -> None:
    """With ctx a tool is answered even in a thread that knows nothing; a mock may call the real tool."""

    async def handler(messages: Any, ctx: Any) -> str:
        gate = ToolGate.of(ctx)
        with ThreadPoolExecutor(1, "lost") as threads:
            found = threads.submit(find_plainly, messages[-1]["content"], gate)
            return str(await asyncio.wrap_future(found))

    async def real(q: Any) -> Any:
        return await find(q)

    for mock, said in ((7, "7"), (real, "really lamp"), (lambda q: find_plainly(q), "really lamp")):
        made = scenario("s", turns=["lamp"], tools={"find": mock})
        talked = held(run_scenarios([made], agent={"type": "custom", "handler": handler}))
        assert talked.turns[0].agent_message == said
        assert [(c.name, c.mocked) for c in talked.tool_calls] == [("find", True)]
    assert REAL == ["lamp"] * 2


def test_the_real_tool_where_it_may() -> None:
    """With passthrough it runs and is recorded; outside of runs it runs, in any thread."""
    talked = held(run(in_the_task, tools={"other": 1}, unmocked_tools="passthrough"))
    assert [(c.result, c.mocked, c.seen_by) for c in talked.tool_calls] == [
        ("really lamp", False, SeenBy.AGENT)
    ]
    thread = threading.Thread(target=find_plainly, args=("sofa",))
    thread.start()
    thread.join()
    assert asyncio.run(find("chair")) == "really chair"
    assert REAL == ["lamp", "sofa", "chair"]


def test_in_a_server_that_a_run_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with mock servers has its mocks there: nothing real runs without a word."""
    monkeypatch.setenv("AGENTEST_MCP_URL", "http://127.0.0.1:1/mcp")
    with pytest.raises(AgentestError, match=r"'find' was not run.*at the mock server \(\$AGENTEST_MCP_URL"):
        find_plainly("lamp")
    assert REAL == []


def test_calls_that_the_protocol_also_reports() -> None:
    """A call answered in the application and reported is one; one only reported ran for real."""

    def telling(ask: bool) -> Work:
        async def work(said: str) -> Any:
            result = await find(said) if ask else really(said)
            return {**reply(result), "calls": [{"name": "find", "args": {"q": said}, "result": result}]}

        return work

    talked = held(run(telling(True), agent={"tool_calls": "calls"}))
    assert [(c.mocked, c.seen_by, c.also_seen_by) for c in talked.tool_calls] == [
        (True, SeenBy.CALLER, (SeenBy.AGENT,))
    ]
    found = run(telling(False), agent={"tool_calls": "calls"})
    failure = held(found).failure
    assert failure is not None
    assert "ran tool 'find' itself: no mock was called, and the real tool ran" in failure.message
    assert "(agentest.mocks)" in failure.message
    assert found.scenarios[0].verdict.status == "errored"


def test_invalid_arguments() -> None:
    """An invalid ctx and an unknown framework are errors of one sentence."""
    with pytest.raises(UsageError, match=r"`ctx` is 'ctx'; expected the ctx that a handler is given"):
        agentest.mocks.langchain([], "ctx")  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="no attribute 'crewai'"):
        _ = agentest.mocks.crewai  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["langchain", "openai_agents", "pydantic_ai", "adk"])
def test_a_framework_that_is_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the missing package."""
    package = {"langchain": "langchain_core", "openai_agents": "agents", "adk": "google.adk"}.get(name, name)
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(UsageError, match="is not installed where Agentest runs, or too old"):
        getattr(agentest.mocks, name)(*([] if name == "adk" else [[]]))


def test_a_hand_made_context() -> None:
    """A test of only a handler can make its context, with or without an event loop."""
    own = TurnContext("c", "s", 0, lambda name, args: [name, args], session_id="x")
    gate = ToolGate.of(own)
    assert find_plainly(1, gate) == ["find", {"q": 1}]
    assert asyncio.run(find(2, gate)) == ["find", {"q": 2}]


@pytest.mark.parametrize("approve", [{"pay": True, "refund": False}, {"pay": False, "refund": True}])
def test_decided_calls_keep_their_order(approve: dict[str, bool]) -> None:
    gate = ToolGate(TurnContext("c", "s", 0, lambda *_: None, session_id="x", approve=approve))
    decide(gate, [AskedCall("pay", {}, "c1"), AskedCall("refund", {}, "c2")])
    observed = with_decisions(AgentReply("Done."), gate).observed
    assert [(call.name, call.ran) for call in observed] == [*approve.items()]
