"""The turn loop end to end: turns, custom handlers, and conversations that end early."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from agentest import scenario, sequence
from agentest.agents.port import AgentReply
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.turn_progress import CallSource, TurnProgress
from agentest.conversation.user import ScriptedUser
from agentest.conversation.user_prompts import SILENCE
from agentest.domain.end_reason import Ending
from agentest.domain.results import RunResult
from agentest.domain.transcript import (
    NO_TEXT,
    Blame,
    Conversation,
    Failure,
    Remark,
    ToolCall,
    UnfinishedTurn,
    Usage,
)
from agentest.mocks.resolver import MockResolver
from agentest.models.port import ChatRequest, TransientError
from agentest.runner.session import Stop
from agentest.support.errors import AgentError, AgentestError
from agentest.testing import Raw, ScriptedAgent, ScriptedModel, arun_scenarios, run_scenarios, tool_call


def only(result: RunResult) -> Conversation:
    """Return the only conversation of a run."""
    (found,) = result.scenarios
    (held,) = found.conversations
    return held.conversation


def hold(agent: Any, *turns: str, tools: Mapping[str, Any] | None = None, **config: Any) -> Conversation:
    """Run one scripted conversation."""
    made = scenario("s", turns=list(turns) or ["Hi"], tools=dict(tools or {}))
    return only(run_scenarios([made], agent=agent, **config))


def failure(conversation: Conversation) -> Failure:
    assert conversation.ending is Ending.ERROR
    assert conversation.failure is not None
    return conversation.failure


# Turns


def test_turns() -> None:
    """Each turn has its message, reply, calls, time, and the tokens of all its requests."""
    script = [
        tool_call("find", q="a"),
        "Found a.",
        [tool_call("find", q="b"), tool_call("find", q="c")],
        "Both.",
    ]
    with ScriptedAgent(script) as agent:
        conversation = hold(agent, "One.", "Two.", tools={"find": sequence(1, 2, 3)})
    first, second = conversation.turns
    assert (first.turn_index, first.user_message, first.agent_message) == (0, "One.", "Found a.")
    assert (second.turn_index, second.user_message, second.agent_message) == (1, "Two.", "Both.")
    assert first.tool_calls == (ToolCall("find", {"q": "a"}, 1, True, 0),)
    assert [c.result for c in second.tool_calls] == [2, 3]
    assert {c.turn_index for c in second.tool_calls} == {1}
    assert (first.usage, first.requests, first.retries) == (Usage(20, 10), 2, 0)
    assert first.latency_ms > 0
    assert conversation.ending is Ending.SCRIPT
    assert conversation.failure is conversation.unfinished is None


def test_the_whole_history_is_sent() -> None:
    """Every request contains the whole conversation so far."""
    with ScriptedAgent([tool_call("find"), "Found.", "Bye."]) as agent:
        hold(agent, "One.", "Two.", tools={"find": "x"})
    *_, last = agent.requests
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    _, asked, result, said, _ = last["messages"]
    assert (asked["content"], asked["tool_calls"][0]["id"]) == (None, result["tool_call_id"])
    assert (result["content"], said["content"]) == ("x", "Found.")


def test_text_with_tool_calls() -> None:
    """Text sent with tool calls is not a reply, but stays in the history."""
    calls = [{"id": "1", **tool_call("find")}]
    with ScriptedAgent([{"content": "Let me see.", "tool_calls": calls}, "Found."]) as agent:
        conversation = hold(agent, tools={"find": "x"})
    assert [t.agent_message for t in conversation.turns] == ["Found."]
    assert agent.requests[1]["messages"][1]["content"] == "Let me see."


def test_tool_calls_without_ids() -> None:
    """Tool calls without an id get unique ids."""
    calls = [{"id": given, **tool_call("find")} for given in (None, "", 7)]
    with ScriptedAgent([{"tool_calls": calls}, "Found."]) as agent:
        hold(agent, tools={"find": sequence("a", "b", "c")})
    _, asked, *results = agent.requests[1]["messages"]
    ids = [call["id"] for call in asked["tool_calls"]]
    assert len({*ids}) == 3
    assert all(ids)
    assert [r["tool_call_id"] for r in results] == ids


def test_lone_surrogates() -> None:
    """An agent's lone surrogate becomes U+FFFD for mocks, models and the agent."""
    call = {"id": "1\ud83d", "type": "function"}
    arguments = '{"q\\ud83d": ["\\ud83d\\ude00", "\\udc00"]}'
    script = [
        {
            "content": "hm\ud83d",
            "tool_calls": [{**call, "function": {"name": "f\ud83d", "arguments": arguments}}],
        },
        "Done\ud83d.",
        "Bye.",
    ]
    seen: list[Any] = []

    def mock(args: Any, ctx: Any) -> str:
        seen.append(args)
        return "\udfff"

    made = scenario("s", goal="Talk.", tools={"f\ufffd": mock}, conversations_per_scenario=1)
    model = ScriptedModel(user=["Hi.", "Bye."])
    with ScriptedAgent(script) as agent:
        conversation = only(run_scenarios([made], agent=agent, model=model))
    assert conversation.failure is None
    assert seen == [{"q\ufffd": ["😀", "\ufffd"]}]
    assert [turn.agent_message for turn in conversation.turns] == ["Done\ufffd.", "Bye."]
    assert conversation.turns[0].remarks == (Remark("agent", "hm\ufffd"),)
    assert (conversation.tool_calls[0].name, conversation.tool_calls[0].args) == ("f\ufffd", seen[0])
    for sent in [*agent.requests, *(request.messages for request in model.requests)]:
        json.dumps(sent, ensure_ascii=False, default=dict).encode()


def test_lone_surrogates_from_handlers() -> None:
    """Lone surrogates in a handler's reply and calls are replaced as over HTTP."""

    async def handler(messages: Any, ctx: Any) -> str:
        return "got " + await ctx.resolve_tool("find", {"q": ["\ud83d"]}) + "\ud83d"

    (turn,) = hold(handler, tools={"find": lambda args, ctx: args["q"][0]}).turns
    assert turn.agent_message == "got \ufffd\ufffd"
    assert turn.tool_calls[0].args == {"q": ["\ufffd"]}


def test_max_turns() -> None:
    """A conversation that reaches the limit of turns ends without an error."""
    with ScriptedAgent(["Go on."]) as agent:
        model = ScriptedModel(user=["More."] * 20)
        made = scenario("s", goal="Talk.", max_turns=3, metrics=[], conversations_per_scenario=1)
        conversation = only(run_scenarios([made], agent=agent, model=model))
    assert len(conversation.turns) == 3
    assert conversation.ending is Ending.MAX_TURNS


# Early ends


def test_an_error_keeps_turns_and_calls() -> None:
    """The record has the completed turns, and the message and calls of the open one."""
    script = [tool_call("find"), "Found.", tool_call("book", n=1), Raw(b"boom", status=500)]
    with ScriptedAgent(script) as agent:
        conversation = hold(agent, "One.", "Two.", "Three.", tools={"find": "x", "book": "y"})
    assert [t.agent_message for t in conversation.turns] == ["Found."]
    call = ToolCall("book", {"n": 1}, "y", True, 1)
    assert conversation.unfinished == UnfinishedTurn(1, "Two.", (call,), 0, 2)
    assert [c.name for c in conversation.tool_calls] == ["find", "book"]
    assert len(conversation.started_turns) == 2
    assert failure(conversation).blame is Blame.AGENT
    assert "answered 500: boom" in failure(conversation).message


def test_an_unmocked_call_is_recorded() -> None:
    """The record ends with the call that ended the conversation."""
    calls = [tool_call("find"), tool_call("unknown", a=1), tool_call("find")]
    with ScriptedAgent([calls]) as agent:
        conversation = hold(agent, tools={"find": "x"})
    assert conversation.unfinished is not None
    assert conversation.unfinished.tool_calls == (
        ToolCall("find", {}, "x", True, 0),
        ToolCall("unknown", {"a": 1}, None, False, 0, error="no mock"),
    )
    assert "s-1" in failure(conversation).message


def test_retries_are_recorded() -> None:
    """Completed and unfinished turns record their retries and requests."""
    busy = Raw(b"busy", status=503, headers={"retry-after": "0"})
    answers = iter([busy, tool_call("find"), busy, busy, "Found.", busy, Raw(b"boom", status=500)])
    with ScriptedAgent(lambda _: next(answers)) as agent:
        conversation = hold(agent, "One.", "Two.", tools={"find": "x"})
    (first,) = conversation.turns
    assert (first.retries, first.requests) == (3, 5)
    assert conversation.unfinished == UnfinishedTurn(1, "Two.", (), 1, 2)


@pytest.mark.parametrize(
    "reply", ["", " \n", {"content": None}, {"content": []}, {"content": "", "tool_calls": []}]
)
def test_empty_replies(reply: Any) -> None:
    """A reply with neither text nor tool calls is the agent's error."""
    with ScriptedAgent([reply]) as agent:
        assert "neither text nor tool calls" in failure(hold(agent)).message


@pytest.mark.parametrize("silence", ["", " \n", {"content": None}, {"content": []}])
def test_a_hand_over(silence: Any) -> None:
    """A reply without text ends the turn if the agent called a tool in it."""
    with ScriptedAgent([tool_call("hand_over"), silence, "Hello again.", ""]) as agent:
        conversation = hold(agent, "A person, please.", "Thanks.", "Bye.", tools={"hand_over": {"ok": True}})
    assert [t.agent_message for t in conversation.turns] == ["", "Hello again."]
    assert [c.name for c in conversation.turns[0].tool_calls] == ["hand_over"]
    assert agent.requests[2]["messages"][-2:] == [
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Thanks."},
    ]
    assert "neither text nor tool calls" in failure(conversation).message


def test_a_hand_over_by_a_handler() -> None:
    """A handler may return no text only if it resolved a tool."""

    async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
        if ctx.turn_index == 0:
            await ctx.resolve_tool("hand_over")
        return ""

    conversation = hold(handler, "A person, please.", "Hello?", tools={"hand_over": None})
    assert [t.agent_message for t in conversation.turns] == [""]
    assert "neither text nor tool calls" in failure(conversation).message


def test_a_hand_over_is_described() -> None:
    """User and judges see a description instead of an empty reply."""
    made = scenario("s", goal="A person.", tools={"hand_over": 1}, conversations_per_scenario=1)
    model = ScriptedModel(user=["Hi.", "Hello?"], scores={"agent_behavior_failure": "no failure"})
    with ScriptedAgent([tool_call("hand_over"), "", "Here I am."]) as agent:
        conversation = only(run_scenarios([made], agent=agent, model=model))
    assert len(conversation.turns) == 2
    asked = {role: [r.messages for r in model.requests if r.key.role == role] for role in ("user", "judge")}
    assert {"role": "user", "content": SILENCE} in asked["user"][1]
    assert asked["judge"]
    assert all(NO_TEXT in "".join(m["content"] for m in messages) for messages in asked["judge"])


def test_a_model_that_fails() -> None:
    """If the user's model fails, the conversation ends without blaming the agent."""

    def down(_: ChatRequest) -> str:
        raise TransientError("503")

    made = scenario("s", goal="Talk.", conversations_per_scenario=1)
    with ScriptedAgent(["Hi."]) as agent:
        config = {"judge": {"retries": 0}}
        conversation = only(run_scenarios([made], agent=agent, model=ScriptedModel(answer=down), **config))
    assert failure(conversation).blame is Blame.MODEL
    assert (conversation.turns, conversation.unfinished) == ((), None)


def test_secrets_and_long_errors() -> None:
    """An error that repeats a secret is redacted and shortened to 500 characters."""
    body = b"your key sk-1234567890abcdef is wrong; Authorization: Bearer abcdefgh " + b"x" * 3_000
    with ScriptedAgent([Raw(body, status=401)]) as agent:
        message = failure(hold(agent)).message
    assert "1234567890" not in message
    assert "abcdefgh" not in message
    assert len(message) <= 500


# Custom handlers


async def _echo(messages: list[dict[str, Any]], ctx: Any) -> str:
    return f"{len(messages)}: {messages[-1]['content']}"


def _plain_echo(messages: list[dict[str, Any]], ctx: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{len(messages)}: {messages[-1]['content']}"}


class Echo:
    async def __call__(self, messages: list[dict[str, Any]], ctx: Any) -> str:
        return await _echo(messages, ctx)

    def plain(self, messages: list[dict[str, Any]], ctx: Any) -> dict[str, Any]:
        return _plain_echo(messages, ctx)


@pytest.mark.parametrize(
    "handler",
    [_echo, _plain_echo, Echo(), Echo().plain, Echo().__call__, lambda messages, ctx: _echo(messages, ctx)],
)
def test_kinds_of_handlers(handler: Callable[..., Any]) -> None:
    """Async and plain functions, methods and objects can be agents, with text or message replies."""
    conversation = hold(handler, "One.", "Two.")
    assert [t.agent_message for t in conversation.turns] == ["1: One.", "3: Two."]
    assert all(t.latency_ms > 0 for t in conversation.turns)


def test_a_handler_cannot_change_the_history() -> None:
    """Changes that a handler makes to its messages do not reach the next request."""

    def greedy(messages: list[dict[str, Any]], ctx: Any) -> str:
        said = len(messages)
        messages[0]["content"] = "changed"
        messages.clear()
        return str(said)

    assert [t.agent_message for t in hold(greedy, "One.", "Two.").turns] == ["1", "3"]


def _booked(resolved: Any) -> str:
    return f"Booked: {resolved['n']}"


async def _async_booking(messages: Any, ctx: Any) -> str:
    return _booked(await ctx.resolve_tool("book", {"n": len(messages)}))


def _plain_booking(messages: Any, ctx: Any) -> str:
    return _booked(ctx.resolve_tool("book", {"n": len(messages)}))


def _other_loop_booking(messages: Any, ctx: Any) -> str:
    return asyncio.run(_async_booking(messages, ctx))


@pytest.mark.parametrize("handler", [_async_booking, _plain_booking, _other_loop_booking])
def test_resolve_tool(handler: Callable[..., Any]) -> None:
    """`ctx.resolve_tool` answers through the mocks, in any kind of handler, and records the call."""

    async def book(n: int) -> dict[str, int]:
        await checkpoint()
        return {"n": n * 10}

    conversation = hold(handler, "One.", "Two.", tools={"book": book})
    assert [t.agent_message for t in conversation.turns] == ["Booked: 10", "Booked: 30"]
    assert [t.tool_calls for t in conversation.turns] == [
        (ToolCall("book", {"n": 1}, {"n": 10}, True, 0),),
        (ToolCall("book", {"n": 3}, {"n": 30}, True, 1),),
    ]


async def _forgets(messages: Any, ctx: Any) -> str:
    found = ctx.resolve_tool("book", {"n": 1})  # forgets
    return f"found {found}"


async def _stumbles(messages: Any, ctx: Any) -> str:
    found = ctx.resolve_tool("book", {"n": 1})  # stumbles
    return str(found["n"])


async def _swallows(messages: Any, ctx: Any) -> str:
    await ctx.resolve_tool("book", {"n": 1})
    ctx.resolve_tool("book", {"n": 2})  # swallows
    return "done"


def _forgets_in_another_loop(messages: Any, ctx: Any) -> str:
    return asyncio.run(_forgets(messages, ctx))


@pytest.mark.parametrize(
    ("handler", "mark", "said", "calls"),
    [
        (_forgets, "forgets", "", 0),
        (_forgets_in_another_loop, "forgets", "", 0),
        (
            _stumbles,
            "stumbles",
            "the handler raised TypeError: 'coroutine' object is not subscriptable ({}); ",
            0,
        ),
        (_swallows, "swallows", "", 1),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine .*_awaited_at:RuntimeWarning")
def test_a_call_that_is_not_awaited(handler: Callable[..., Any], mark: str, said: str, calls: int) -> None:
    """If a handler does not await `ctx.resolve_tool`, the error has the line of the call."""
    conversation = hold(handler, tools={"book": {"n": 1}})
    rows = Path(__file__).read_text().splitlines()
    line = next(at for at, row in enumerate(rows, 1) if row.endswith(f"  # {mark}"))
    said = said.format(f"test_conversation.py:{line + 1}")
    assert conversation.failure == Failure(
        Blame.AGENT,
        f"{said}test_conversation.py:{line}: the handler did not await ctx.resolve_tool('book'), so no tool "
        "ran: write `await ctx.resolve_tool('book', …)`",
    )
    assert len(conversation.tool_calls) == calls


def test_a_call_that_a_task_makes() -> None:
    """A call in a task counts as awaited, even if the handler does not wait for the task."""
    tasks = []

    async def handler(messages: Any, ctx: Any) -> str:
        tasks.append(asyncio.create_task(ctx.resolve_tool("book", {"n": 1})))
        return "done"

    conversation = hold(handler, tools={"book": {"n": 1}})
    assert (conversation.failure, len(conversation.tool_calls)) == (None, 1)


def test_resolve_tool_without_arguments() -> None:
    """Arguments are optional; one that is not a dict is recorded as invalid and gives an error."""

    def handler(messages: Any, ctx: Any) -> str:
        answers = [ctx.resolve_tool("find"), ctx.resolve_tool("find", [1]), ctx.resolve_tool("find", {1, 2})]
        return str([a if isinstance(a, str) else "error" in a for a in answers])

    conversation = hold(handler, tools={"find": "x"})
    assert conversation.turns[0].agent_message == "['x', True, True]"
    assert [bool(c.invalid_arguments) for c in conversation.tool_calls] == [False, True, True]


def test_tools_resolved_at_once() -> None:
    """Concurrent calls of a handler are recorded in the order they were made."""

    async def slow(ctx: Any) -> int:
        for _ in range(10 - ctx.call_index):
            await checkpoint()
        return int(ctx.call_index)

    async def handler(messages: Any, ctx: Any) -> str:
        return str(await asyncio.gather(*(ctx.resolve_tool("slow") for _ in range(5))))

    conversation = hold(handler, tools={"slow": slow})
    assert conversation.turns[0].agent_message == "[0, 1, 2, 3, 4]"
    assert [c.result for c in conversation.tool_calls] == [0, 1, 2, 3, 4]


def test_a_handler_that_returns_tool_calls() -> None:
    """Tool calls in a handler's message are answered as over HTTP."""

    def handler(messages: list[dict[str, Any]], ctx: Any) -> Any:
        if messages[-1]["role"] == "tool":
            return f"It is {messages[-1]['content']}."
        return {"content": None, "tool_calls": [{"id": "1", **tool_call("find")}]}

    conversation = hold(handler, tools={"find": "x"})
    assert conversation.turns[0].agent_message == "It is x."
    assert len(conversation.tool_calls) == 1


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no"), "the handler raised ValueError: no"),
        (TimeoutError("its own"), "the handler raised TimeoutError: its own"),
        (SystemExit(3), "the handler raised SystemExit: 3"),
        (AgentError("my words"), "my words"),
        (AgentestError("enough"), "enough"),
        (asyncio.CancelledError("by itself"), "the handler raised CancelledError: by itself"),
    ],
)
def test_handlers_that_raise(error: BaseException, message: str, in_thread: bool) -> None:
    """Any exception of a handler ends only its conversation, as the agent's failure."""

    def plain(messages: Any, ctx: Any) -> str:
        if messages[0]["content"] == "bad":
            raise error
        return "Fine."

    async def later(messages: Any, ctx: Any) -> str:
        return plain(messages, ctx)

    made = [scenario("bad", turns=["bad"]), scenario("good", turns=["good"])]
    result = run_scenarios(made, agent=plain if in_thread else later)
    bad, good = (found.conversations[0].conversation for found in result.scenarios)
    blame = failure(bad)
    place = (
        ""
        if isinstance(error, AgentestError)
        else f" (test_conversation.py:{plain.__code__.co_firstlineno + 2})"
    )
    assert blame == Failure(Blame.AGENT, message + place)
    assert good.turns[0].agent_message == "Fine."


@pytest.mark.parametrize("answer", [None, 5, b"x", [], {"content": 5}, object(), ("a", "b")])
def test_handlers_that_answer_nonsense(answer: Any) -> None:
    """A result that is not a message is the agent's error."""
    assert failure(hold(lambda messages, ctx: answer)).blame is Blame.AGENT


async def _hang(messages: Any, ctx: Any) -> str:
    await ctx.resolve_tool("find", {"q": "x"})
    await anyio.sleep_forever()
    return "never"


def test_hanging_handlers() -> None:
    """An async handler that hangs is cancelled at its timeout, and its calls are recorded."""
    conversation = hold(_hang, tools={"find": "x"}, request_timeout_ms=50)
    assert failure(conversation).message == "the handler of agent 'agent' did not answer within 0.05 s"
    assert conversation.unfinished is not None
    assert conversation.unfinished.tool_calls == (ToolCall("find", {"q": "x"}, "x", True, 0),)


@pytest.mark.slow
def test_handlers_that_never_end() -> None:
    """An async handler that ignores cancellation is abandoned, and other conversations continue."""

    async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
        while messages[0]["content"] == "stay":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        return "Fine."

    made = [scenario(name, turns=[name]) for name in ("stay", "go")]
    # So long that this process may be held up meanwhile: what does not count of that are whole heartbeats.
    result = run_scenarios(made, agent=handler, request_timeout_ms=300, concurrency=1)
    bad, good = (found.conversations[0].conversation for found in result.scenarios)
    assert failure(bad).blame is Blame.AGENT
    assert "did not answer within 0.3 s; it swallowed its cancellation and" in failure(bad).message
    assert good.turns[0].agent_message == "Fine."


@pytest.mark.slow
def test_handlers_that_block() -> None:
    """An async handler that blocks the event loop times out; one that only waits meanwhile does not."""

    async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
        if messages[0]["content"] == "block":
            threading.Event().wait(1.5)
        await asyncio.sleep(0.1)
        return "Fine."

    made = [scenario(name, turns=[name]) for name in ("wait", "block", "wait too")]
    result = run_scenarios(made, agent=handler, request_timeout_ms=1000, concurrency=3)
    first, late, last = (found.conversations[0].conversation for found in result.scenarios)
    assert failure(late) == Failure(Blame.AGENT, "the handler of agent 'agent' did not answer within 1 s")
    assert [c.turns[0].agent_message for c in (first, last)] == ["Fine.", "Fine."]
    assert all(c.turns[0].latency_ms < 1000 for c in (first, last))


@pytest.mark.slow
def test_plain_handlers_that_hang() -> None:
    """A plain handler that hangs is abandoned at its timeout; other conversations continue."""
    released = threading.Event()

    def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
        if messages[0]["content"] == "hang":
            released.wait(30)
        return "Fine."

    made = [scenario("bad", turns=["hang"]), scenario("good", turns=["go"] * 3)]
    result = run_scenarios(made, agent=handler, request_timeout_ms=1000, concurrency=1)
    released.set()
    bad, good = (found.conversations[0].conversation for found in result.scenarios)
    assert "did not answer within 1 s" in failure(bad).message
    assert len(good.turns) == 3


@pytest.mark.slow
def test_a_hanging_handler_does_not_keep_the_program(tmp_path: Path) -> None:
    """A program with a hanging plain handler still exits after its run."""
    program = tmp_path / "program.py"
    program.write_text(
        "import threading\n"
        "from agentest import scenario\n"
        "from agentest.testing import run_scenarios\n"
        "def handler(messages, ctx):\n"
        "    threading.Event().wait()\n"
        "result = run_scenarios([scenario('s', turns=['Hi'])], agent=handler, request_timeout_ms=50)\n"
        "print(result.scenarios[0].conversations[0].conversation.failure.message)\n"
    )
    found = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=True)
    assert "did not answer within 0.05 s" in found.stdout


def test_a_call_that_was_never_answered() -> None:
    """A call whose mock was running at the handler's timeout is recorded without a result."""

    times_up: list[anyio.CancelScope] = []

    async def slow(n: int) -> None:
        times_up[0].cancel()
        await anyio.sleep_forever()

    async def handler(messages: Any, ctx: Any) -> str:
        with anyio.CancelScope() as scope:
            times_up.append(scope)
            await ctx.resolve_tool("slow", {"n": 1})
        return "Given up."

    conversation = hold(handler, tools={"slow": slow})
    assert conversation.turns[0].agent_message == "Given up."
    (call,) = conversation.tool_calls
    assert (call.args, call.result, call.error) == ({"n": 1}, None, "cancelled before it answered")


# At once


@pytest.mark.slow
def test_two_hundred_conversations() -> None:
    """Two hundred concurrent conversations with one agent share nothing."""

    def answer(body: dict[str, Any]) -> Any:
        messages = body["messages"]
        mine = messages[0]["content"]
        if messages[-1]["role"] == "tool":
            return f"{mine} got {messages[-1]['content']}"
        return tool_call("remember", who=mine)

    def remember(who: str, ctx: Any) -> str:
        ctx.state.setdefault("who", []).append(who)
        return f"{ctx.call_index} {ctx.turn_index} {ctx.conversation_id} {','.join(ctx.state['who'])}"

    made = [
        scenario(f"s{i}", turns=[f"I am {i}.", "Again."], tools={"remember": remember}) for i in range(200)
    ]
    with ScriptedAgent(answer) as agent:
        result = run_scenarios(made, agent=agent, concurrency=200)
    assert len(agent.requests) == 800
    for i, found in enumerate(result.scenarios):
        me = f"I am {i}."
        first, second = found.conversations[0].conversation.turns
        assert (first.user_message, second.user_message) == (me, "Again.")
        assert first.agent_message == f"{me} got 0 0 s{i}-1 {me}"
        assert second.agent_message == f"{me} got 1 1 s{i}-1 {me},{me}"


def test_one_failing_among_many() -> None:
    """Conversations that end early do not affect concurrent ones."""

    def answer(body: dict[str, Any]) -> Any:
        number = int(body["messages"][0]["content"])
        return Raw(b"boom", status=500) if number % 3 == 0 else f"{number} is fine."

    made = [scenario(f"s{i}", turns=[str(i)]) for i in range(60)]
    with ScriptedAgent(answer) as agent:
        result = run_scenarios(made, agent=agent, concurrency=30)
    failed = {found.name for found in result.scenarios if found.conversations[0].conversation.failure}
    assert failed == {f"s{i}" for i in range(0, 60, 3)}


def test_a_cancelled_run() -> None:
    """A cancelled run ends at once despite a hanging handler, with the finished conversations."""
    made = [scenario("good", turns=["go"]), scenario("bad", turns=["hang"])]

    async def go() -> RunResult:
        stop = Stop()

        async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
            if messages[0]["content"] == "hang":
                stop.interrupt()
                await anyio.sleep_forever()
            return "Fine."

        return await arun_scenarios(made, agent=handler, stop=stop, concurrency=1)

    good, bad = anyio.run(go).scenarios
    assert [t.agent_message for t in good.conversations[0].conversation.turns] == ["Fine."]
    assert bad.conversations == ()


def test_a_handler_cannot_catch_what_ends_a_conversation() -> None:
    """An unmocked tool ends the conversation even if the handler catches the error."""

    async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
        try:
            await ctx.resolve_tool("unknown", {})
        except Exception:  # noqa: BLE001 - as careless handlers do
            return "all is well"
        return "never"

    result = run_scenarios([scenario("s", turns=["x"])], agent=handler)
    failure = result.scenarios[0].conversations[0].conversation.failure
    assert failure is not None
    assert "no mock" in failure.message


def test_an_answer_that_is_nested_too_deeply() -> None:
    """An answer nested too deeply to parse is the agent's error in any protocol."""

    class Deep:
        name = "deep"

        async def reply(self, messages: Any, ctx: Any) -> AgentReply:
            raise RecursionError

    conversation = asyncio.run(
        TurnLoop(
            ConversationSpec("s-1", "s", 1),
            Deep(),
            ScriptedUser(["Hi"]),
            MockResolver({}, scenario="s", conversation_id="s-1"),
        ).run()
    )
    assert failure(conversation) == Failure(Blame.AGENT, "the agent's answer is nested too deeply to be read")


class Broken(CallSource):
    """A source that breaks in one of its steps."""

    def __init__(self, step: str) -> None:
        self.step = step

    def begin_turn(self, turn_index: int) -> None:
        self.fail("begin_turn", turn_index)

    async def check(self, cause_of: Exception | None = None) -> None:
        self.fail("check", 1)

    async def complete(self, turn: TurnProgress) -> None:
        self.fail("complete", turn.turn_index)

    async def complete_late(self) -> None:
        self.fail("complete_late", 1)

    def doubt_of(self, turn_index: int) -> str | None:
        self.fail("doubt_of", turn_index)
        return None

    def close(self) -> None:
        self.fail("close", 1)

    def fail(self, step: str, turn_index: int) -> None:
        if step == self.step and turn_index == 1:
            raise KeyError(step)


class BrokenAttendant:
    async def answer(self, call: Any, proposed: Any) -> Any:
        raise KeyError("attendant")

    def noticed(self, *changes: Any) -> None:
        pass


class BrokenUser:
    async def next_message(self, turns: Any) -> Any:
        raise KeyError("user")


@pytest.mark.parametrize("tells", [True, False])
def test_an_exception_of_our_own_around_a_mock_is_never_the_agents_failure(tells: bool) -> None:
    """Whether the agent swallows it, or fails because of it."""
    mocks = MockResolver({"find": 1}, scenario="s", conversation_id="s-1")
    mocks.attended_by(BrokenAttendant())

    class Calls:
        name = "calls"

        async def reply(self, messages: Any, ctx: Any) -> AgentReply:
            try:
                await mocks.resolve("find", {}, 0)
            except Exception as error:
                if tells:
                    raise AgentError(f"the tool broke: {error}") from error
            return AgentReply("Nothing found.")

    spec = ConversationSpec("s-1", "s", 2)
    talked = asyncio.run(TurnLoop(spec, Calls(), ScriptedUser(["1"]), mocks).run())
    assert failure(talked).blame is Blame.INTERNAL
    text = failure(talked).message
    assert "the mock of 'find' could not be called: internal error: KeyError: 'attendant' (at " in text
    assert "test_conversation.py:" in text


def test_an_exception_of_a_user_is_never_the_agents_failure() -> None:
    mocks = MockResolver({}, scenario="s", conversation_id="s-1")
    talked = asyncio.run(TurnLoop(ConversationSpec("s-1", "s", 2), Echo(), BrokenUser(), mocks).run())
    assert failure(talked).blame is Blame.INTERNAL
    assert "internal error: KeyError: 'user' (at " in failure(talked).message


class Echo:
    name = "echo"

    def __init__(self, fails_in: int | None = None) -> None:
        self.fails_in = fails_in

    async def reply(self, messages: Any, ctx: Any) -> AgentReply:
        if ctx.turn_index == self.fails_in:
            raise AgentError("the agent broke")
        return AgentReply("Hi.")


@pytest.mark.parametrize("fails_in", [None, 1])
@pytest.mark.parametrize("step", ["begin_turn", "complete", "complete_late", "doubt_of", "close"])
def test_an_exception_of_a_call_source_is_never_the_agents_failure(step: str, fails_in: int | None) -> None:
    """The closed turns remain, and the failure names our part."""
    mocks = MockResolver({}, scenario="s", conversation_id="s-1")
    loop = TurnLoop(
        ConversationSpec("s-1", "s", 2), Echo(fails_in), ScriptedUser(["1", "2"]), mocks, [Broken(step)]
    )
    talked = asyncio.run(loop.run())
    assert talked.turns[0].agent_message == "Hi."
    if fails_in is None or step != "complete_late":  # it is not asked once a turn has failed
        assert failure(talked).blame is Blame.INTERNAL
        assert f"KeyError: '{step}'" in failure(talked).message


_A_RUN = """
import sys
from agentest import scenario
from agentest.testing import ScriptedAgent, run_scenarios
with ScriptedAgent(["Hello."]) as agent:
    result = run_scenarios([scenario("s", turns=["Hi."], expect={"says": "Hello"})], agent=agent)
print(result.scenarios[0].verdict.status, *(name for name in sys.modules if name.startswith("agentest.")))
"""


def test_a_plain_agent_loads_no_code_for_calls_that_it_cannot_make() -> None:
    """An HTTP agent has no other call sources, so their code is not imported."""
    ran = subprocess.run([sys.executable, "-c", _A_RUN], capture_output=True, text=True, check=True)
    status, *modules = ran.stdout.split()
    assert status == "passed"
    assert "agentest.conversation.turn_loop" in modules
    unneeded = ("conversation.in_process", "conversation.server", "agents.in_process.", "tracing.")
    assert [name for name in modules if name.removeprefix("agentest.").startswith(unneeded)] == []
