"""Graphs on a LangGraph server: requests, runs, and every kind of failure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dirty_equals import IsStr
from pydantic import TypeAdapter, ValidationError
from talking import Held, as_json, held, looked
from wire import Answer, hang, http

from agentest import scenario
from agentest.config.agent_types import AgentConfig, visibility_of_agent
from agentest.domain.results import RunResult
from agentest.domain.tool_visibility import ToolVisibility
from agentest.plugins.protocols.approvals import (
    Decision,
    approvals_of,
    asked_tools,
    is_approval,
    question_text,
    resume,
)
from agentest.plugins.protocols.langgraph.client import thread_of
from agentest.plugins.protocols.langgraph.messages import calls_of, text_of
from agentest.support.errors import MockError
from agentest.testing import run_scenarios

GRAPH = {"type": "langgraph", "assistant_id": "shop"}
Wire = dict[str, Any]


def human(text: str, **more: Any) -> Wire:
    return {"type": "human", "content": text, **more}


def ai(text: Any, id: str | None = None, *calls: Wire, **more: Any) -> Wire:
    return {"type": "ai", "content": text, "id": id, "tool_calls": list(calls), **more}


def call(name: str, id: str, **args: Any) -> Wire:
    return {"name": name, "args": args, "id": id, "type": "tool_call"}


def tool(id: str, content: str, **more: Any) -> Wire:
    return {"type": "tool", "content": content, "tool_call_id": id, "id": f"t-{id}", **more}


def stream(*events: tuple[str, Any]) -> bytes:
    body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
    return http(f": ping\n\n{body}".encode(), headers=("content-type: text/event-stream",))


def added(*messages: Wire, node: str = "model", inside: str = "") -> tuple[str, Any]:
    return f"updates{inside}", {node: {"messages": list(messages)}}


def state(*messages: Wire, next: tuple[str, ...] = (), **values: Any) -> bytes:
    return as_json({"values": {"messages": list(messages), **values}, "next": list(next)})


def talk(*answers: Answer, lines: tuple[str, ...] = ("Hi",), **config: Any) -> Held:
    return held({**GRAPH, **config}, lines, *answers)


STOCK = ai("Let me see.", "a1", call("stock", "c1", item="lamp"))
ANSWER = tool("c1", '{"left": 3}')
HELLO = (stream(added(ai("Hello.", "a2"))), state(human("Hi"), ai("Hello.", "a2")))


def test_a_conversation() -> None:
    """Each turn is one run in the same thread; its calls, remarks and tokens follow the user's message."""
    usage = {"input_tokens": 10, "output_tokens": 5, "input_token_details": {"cache_read": 4}}
    first = [STOCK, ANSWER, ai([{"type": "text", "text": "Three."}], "a2", usage_metadata=usage)]
    told = talk(
        stream(("metadata", {"run_id": "r"}), added(STOCK), added(ANSWER, node="tools"), added(first[2])),
        state(human("Lamps?"), *first, basket=[]),
        stream(added(ai("Bye.", "a3"))),
        state(human("Lamps?"), *first, human("Bye"), ai("Bye.", "a3"), basket=[1]),
        lines=("Lamps?", "Bye"),
        body={"config": {"configurable": {"user": "{{session_id}}"}}, "input": {"lang": "en"}},
    )
    assert told.replies == ["Three.", "Bye."]
    assert told.calls == [("stock", {"item": "lamp"}, {"left": 3}, "agent")]
    turn, last = told.conversation.turns
    assert ([r.text for r in turn.remarks], turn.model_calls) == (["Let me see."], 2)
    assert (turn.usage.prompt_tokens, turn.usage.completion_tokens, turn.usage.cached_tokens) == (10, 5, 4)
    assert (turn.state_after, last.state_after) == ({"basket": []}, {"basket": [1]})
    assert (turn.tool_calls[0].call_id, last.tool_calls) == ("c1", ())
    run, read, again, _ = told.requests
    thread = thread_of("session-1")
    assert run.line == f"POST /threads/{thread}/runs/stream HTTP/1.1" == again.line
    assert read.line == f"GET /threads/{thread}/state HTTP/1.1"
    assert run.headers["accept"] == "text/event-stream"
    given = run.body.pop("input")
    assert given.pop("messages") == [{"role": "user", "content": "Lamps?", "id": IsStr()}]
    assert given == {"lang": "en"}
    assert run.body == {
        "assistant_id": "shop",
        "if_not_exists": "create",
        "stream_mode": ["updates"],
        "stream_subgraphs": True,
        "config": {"configurable": {"user": "session-1"}},
    }


def test_calls_that_the_state_does_not_show() -> None:
    """Calls of subgraphs, and those that a graph removed from its state, are recorded."""
    inner = ai("", "b1", call("reserve", "c2", item="lamp"))
    told = talk(
        stream(
            added(STOCK, inside="|worker:1"),
            added(ANSWER, node="tools", inside="|worker:1"),
            added(inner),
            added(tool("c2", "out of stock", status="error"), node="tools"),
            added(ai("Done.", "a9", name="boss")),
            ("updates", {"forget": {"messages": [{"type": "remove", "id": "b1"}]}}),
        ),
        state(ai("Done.", "a9", name="boss")),
    )
    assert told.replies == ["Done."]
    assert told.calls == [
        ("stock", {"item": "lamp"}, {"left": 3}, "agent"),
        ("reserve", {"item": "lamp"}, "out of stock", "agent"),
    ]
    assert told.conversation.tool_calls[1].error == "out of stock"


def test_what_is_told_twice_is_one() -> None:
    """Nodes that give their messages again, with an id or before they have one, add nothing."""
    function = {"name": "stock", "arguments": '{"item": "lamp"}'}
    bare = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": function}]}
    final = ai("Three.", "a2")
    told = talk(
        stream(
            added(bare), added(ANSWER, node="tools"), added(human("Hi"), STOCK, ANSWER, final, node="graph")
        ),
        state(human("Hi"), STOCK, ANSWER, final),
        stream(added(STOCK, final, human("More"), ai("No.", "a4"), node="graph")),
        state(human("Hi"), STOCK, ANSWER, final, human("More"), ai("No.", "a4")),
        lines=("Hi", "More"),
    )
    assert (told.replies, len(told.calls)) == (["Three.", "No."], 1)
    assert [turn.model_calls for turn in told.conversation.turns] == [2, 1]


def test_calls_under_one_id() -> None:
    """Another name under an id that was used before is another call."""
    asked = ai("", "a1", call("stock", "c1"), call("pay", "c1"))
    told = talk(stream(added(asked), added(ANSWER, node="tools"), added(ai("So.", "a2"))), state())
    assert [name for name, *_ in told.calls] == ["stock", "pay"]


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed"])
def test_a_server_that_cannot_stream(status: str) -> None:
    """Later requests wait for the result; one note says that subgraphs are not visible."""
    final = as_json({"messages": [human("Hi"), STOCK, ANSWER, ai("Three.", "a2")]})
    told = talk(http(b"{}", status), final, final, lines=("Hi", "Hi"))
    assert [r.line.split()[1].rpartition("/")[2] for r in told.requests] == ["stream", "wait", "wait"]
    assert "stream_mode" not in told.requests[1].body
    assert (told.replies, len(told.calls)) == (["Three.", "Three."], 2)
    (note,) = told.notes
    assert "has no /runs/stream, so only calls that its final state shows are seen" in note


def test_tokens_are_timed() -> None:
    """With `streaming: true` tokens are requested, and the first of the model's text is timed."""
    chunk, meta = {"type": "AIMessageChunk", "content": "Hel", "id": "a2"}, {"langgraph_node": "model"}
    run = stream(("messages|x:1", [chunk, meta]), added(ai("Hello.", "a2")), ("dance", {}), ("end", None))
    told = talk(run, HELLO[1], streaming=True)
    assert told.requests[0].body["stream_mode"] == ["updates", "messages-tuple"]
    assert told.conversation.turns[0].first_token_ms is not None
    assert talk(*HELLO).conversation.turns[0].first_token_ms is None
    assert told.notes == ["agent 'agent': 1 event of unknown type 'dance' was ignored"]


QUESTION = {"value": {"question": "Order?"}, "id": "i1"}
ORDER = ai("I will.", "a1", call("order", "c1", item="lamp"))


@pytest.mark.parametrize(
    ("approvals", "resume"), [("approve", True), ("deny", False), ("ask", "Yes, please")], ids=str
)
def test_an_interrupt(approvals: str, resume: object) -> None:
    """It is answered at once or by the user's next message; the call belongs to the turn of the answer."""
    done = [human("Hi"), ORDER, tool("c1", '{"ordered": 1}'), ai("Done.", "a2")]
    asked = stream(added(ORDER), ("updates", {"__interrupt__": [QUESTION]}))
    finished = stream(added(done[2], node="tools"), added(done[3]))
    told = talk(
        asked,
        state(human("Hi"), ORDER, next=("tools",)),
        finished,
        state(*done),
        *HELLO,
        lines=("Hi", "Yes, please") if approvals == "ask" else ("Hi",),
        approvals=approvals,
    )
    assert told.replies == (["Order?", "Done."] if approvals == "ask" else ["Done."])
    assert told.requests[2].body["command"] == {"resume": resume}
    assert "input" not in told.requests[2].body
    last = told.conversation.turns[-1]
    assert [(c.name, c.result, c.turn_index) for c in last.tool_calls] == [
        ("order", {"ordered": 1}, len(told.replies) - 1)
    ]
    assert len(told.calls) == 1


def test_a_configured_answer_to_interrupts() -> None:
    """`body.command` sets the answer to interrupts with another format."""
    told = talk(
        stream(("updates", {"__interrupt__": [QUESTION]})),
        state(human("Hi"), next=("x",)),
        *HELLO,
        lines=("Hi", "no"),
        body={"command": {"resume": {"answer": "{{message}}", "by": "{{session_id}}"}}},
    )
    assert told.requests[2].body["command"] == {"resume": {"answer": "no", "by": "session-1"}}
    assert "command" not in told.requests[0].body


REQUEST = {"name": "order", "args": {"n": 1}}
CARD = {"action_request": {"action": "order", "args": {}}, "config": {"allow_respond": False}}


@pytest.mark.parametrize(
    ("value", "asks", "yes", "no"),
    [
        ("Sure?", "Sure?", "Yes", "No, wait"),
        ({"odd": 1}, '{"odd": 1}', "Yes", "No, wait"),
        (
            {"action_requests": [REQUEST, {**REQUEST, "description": "Pay 5"}]},
            'order({"n": 1})\nPay 5',
            {"decisions": [{"type": "approve"}] * 2},
            {"decisions": [{"type": "reject", "message": "No, wait"}] * 2},
        ),
        (
            {"action_requests": [REQUEST], "review_configs": [{"allowed_decisions": ["respond"]}]},
            'order({"n": 1})',
            {"decisions": [{"type": "respond", "message": "Yes"}]},
            {"decisions": [{"type": "respond", "message": "No, wait"}]},
        ),
        (
            {"type": "tool_approval", **REQUEST, "description": "Order one?"},
            "Order one?",
            {"i1": {"type": "approve"}},
            {"i1": {"type": "reject", "message": "No, wait"}},
        ),
        ([CARD], "order({})", [{"type": "accept", "args": None}], [{"type": "ignore", "args": None}]),
    ],
    ids=["text", "object", "middleware", "respond", "per-call", "inbox"],
)
def test_forms_of_interrupts(value: Any, asks: str, yes: Any, no: Any) -> None:
    """The question becomes the reply, and the user's text the answer in the format of the question."""
    interrupts = [{"value": value, "id": "i1"}]
    assert question_text(interrupts) == asks
    assert resume(interrupts, Decision(True, "Yes")) == yes
    assert resume(interrupts, Decision(False, "No, wait")) == no


@pytest.mark.parametrize(("allowed", "approved"), [(["approve", "edit"], False), (["edit"], True)])
def test_a_decision_that_the_agent_does_not_allow(allowed: list[str], approved: bool) -> None:
    """The graph would fail, and the agent would be blamed."""
    value = {"action_requests": [REQUEST], "review_configs": [{"allowed_decisions": allowed}]}
    interrupts = [{"value": value, "id": "i1"}]
    assert asked_tools(interrupts) == ["order"]
    assert approvals_of(interrupts, Decision(approved)) == {}
    with pytest.raises(MockError, match="`allowed_decisions` rule that out"):
        resume(interrupts, Decision(approved))


def test_several_interrupts_at_once() -> None:
    """Each is answered by its id."""
    both = [{"value": "A?", "id": "1"}, {"value": {"action_requests": [REQUEST]}, "id": "2"}]
    assert question_text(both) == 'A?\n\norder({"n": 1})'
    assert resume(both, Decision(approved=True)) == {"1": True, "2": {"decisions": [{"type": "approve"}]}}
    refused = {"decisions": [{"type": "reject", "message": "The user refused."}]}
    assert resume(both, Decision(approved=False)) == {"1": False, "2": refused}


@pytest.mark.parametrize(
    ("words", "agrees"),
    [
        ("yes", True),
        ("Yes, please.", True),
        ("OK", True),
        ("go ahead", True),
        ("yesterday", False),
        ("No", False),
        ("Yes, but only two", False),
        ("sure, if it is cheap", False),
        ("okay, don't", False),
        ("How much is it?", False),
        ("", False),
    ],
)
def test_what_is_an_approval(words: str, agrees: bool) -> None:
    """Only a yes that takes nothing back."""
    assert is_approval(words) is agrees


PAGE = http(b"<html>Sign in</html>", headers=("content-type: text/html",))
FAILED = {"error": "RuntimeError", "message": "on fire"}


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([stream(("error", FAILED))], "agent: the graph failed: RuntimeError: on fire"),
        ([as_json({"__error__": FAILED})], "agent: the graph failed: RuntimeError: on fire"),
        ([as_json({"__error__": "gone"})], "agent: the graph failed: gone"),
        ([stream()], "ended without any event"),
        (
            [stream(added(STOCK)), state(human("Hi"), STOCK, next=("tools",))],
            "the agent's stream was cut: the graph goes on with tools",
        ),
        (
            [stream(added(STOCK)), http(b"", "404 Not Found")],
            "stream was cut: it ended without `event: end`",
        ),
        (
            [stream(("updates", {"__interrupt__": []})), state(human("Hi"), next=("pay",))],
            "the graph stopped at a breakpoint before pay, without a question",
        ),
        ([stream(), state()], "ended without any event"),
        ([stream(added(human("Hi"))), state(human("Hi"))], "agent: the agent's reply is empty"),
        ([PAGE], "a web page, not JSON (is this the address of a LangGraph server"),
        ([http(b"event: updates\ndata: {\n\n", headers=("content-type: text/event-stream",))], "is not JSON"),
        ([stream(added(ai(7, "a1"))), state(human("Hi"))], "neither text nor a list of blocks: 7"),
        (
            [stream(added(ai("", "a1", {"id": "c"}))), state(human("Hi"))],
            'agent: a tool call of the graph has no name: {"id": "c"}',
        ),
        (
            [
                stream(("updates", {"n": {"answer": "Hi!"}})),
                as_json({"values": {"answer": "Hi!"}, "next": []}),
            ],
            "state has no `messages`: set `reply` to the path of the reply in it; found text at `answer`",
        ),
        (
            [http(b'{"detail": "no"}', "422 No"), as_json([{"graph_id": "a"}, {"graph_id": "b"}])],
            "internal: the LangGraph server has no graph 'shop': set assistant_id of agent 'agent' to one",
        ),
        ([http(b'{"detail": "no"}', "422 No"), as_json([{"graph_id": "shop"}])], "agent: http"),
        (
            [http(b"{}", "404 No")] * 2 + [http(b"", "404 No")],
            "answered 404 (is this the address of a LangGraph",
        ),
        ([http(b'{"detail": "bad UUID"}', "400 Bad Request")], "answered 400: bad UUID"),
    ],
    ids=[
        "error-event",
        "error-in-json",
        "error-of-text",
        "no-event",
        "cut",
        "cut-without-state",
        "breakpoint",
        "empty-stream",
        "nothing-said",
        "page",
        "no-json",
        "odd-content",
        "nameless-call",
        "no-messages",
        "other-graphs",
        "refused",
        "no-address",
        "bad-request",
    ],
)
def test_errors(answers: list[Answer], problem: str) -> None:
    """Each error has what was found, what was expected, and a helpful key if there is one."""
    told = talk(*answers)
    assert problem in told.problem
    assert told.conversation.turns == ()


def test_calls_before_an_error_stay() -> None:
    """Calls before the graph failed are recorded."""
    told = talk(stream(added(STOCK), added(ANSWER, node="tools"), ("error", FAILED)))
    assert told.calls == [("stock", {"item": "lamp"}, {"left": 3}, "agent")]


def test_a_run_that_takes_too_long() -> None:
    """The message names the option without which `langgraph dev` takes one run at a time."""
    told = held(GRAPH, ["Hi"], hang, timeout_s=0.1)
    assert "; `langgraph dev` takes one run at a time unless it was" in told.problem
    assert "--n-jobs-per-worker 20" in told.problem


def test_a_server_with_one_graph() -> None:
    """Without `assistant_id` the only graph is used; several are listed in the error."""
    one, two = [{"graph_id": "shop"}] * 2, [{"graph_id": "shop"}, {"graph_id": "bank"}]
    told = talk(as_json(one), *HELLO, assistant_id=None)
    assert told.requests[1].body["assistant_id"] == "shop"
    problem = talk(as_json(two), assistant_id=None).problem
    assert problem.startswith("internal: agent 'agent' has no assistant_id: set it in the agent's")
    assert problem.endswith("(the server has shop, bank)")


ELSEWHERE = {"body": {"input": {"question": "{{message}}"}}, "reply": "answer.text"}


def test_a_state_of_another_shape() -> None:
    """`reply` is a path into the state, `input` is as it is written, and the calls are unseen by default."""
    values = {"question": "Hi", "answer": {"text": "Hello."}}
    run = stream(("updates", {"answer": {"answer": values["answer"]}}))
    told = talk(run, as_json({"values": values, "next": []}), **ELSEWHERE)
    assert (told.replies, told.requests[0].body["input"]) == (["Hello."], {"question": "Hi"})
    assert told.conversation.turns[0].state_after == values
    nothing = talk(run, as_json({"values": {"answr": "Hello."}, "next": []}), **ELSEWHERE)
    assert "`reply: answer.text` finds nothing" in nothing.problem
    assert "found text at `answr`" in nothing.problem
    settings: Any = TypeAdapter(AgentConfig).validate_python({**GRAPH, "endpoint": "http://h", **ELSEWHERE})
    assert visibility_of_agent(settings) is ToolVisibility.UNSEEN


def test_parts_of_messages() -> None:
    """Text blocks are joined and others dropped; provider and invalid calls count as calls."""
    unknown: list[object] = []
    blocks = [{"type": "thinking"}, "One ", {"type": "text", "text": "two."}, {"type": "hum"}]
    assert text_of(ai(blocks), lambda *kind: unknown.append(kind)) == "One two."
    assert unknown == [("content block", "hum")]
    broken = {"name": "pay", "args": "{5", "id": "c2", "error": None}
    searched = {"type": "server_tool_call", "name": "web", "args": {"q": "x"}, "id": "c3"}
    again = [
        ai("", "x", call("a", "c", n=1)),
        tool("c", "1"),
        ai("", "y", call("b", "c", n=2)),
        tool("c", "2"),
    ]
    assert [(c.name, c.result) for c in calls_of(again, 0, {})] == [("a", "1"), ("b", "2")]
    found = calls_of(
        [ai([searched], "a", invalid_tool_calls=[broken]), tool("c9", "[1]", name="late")], 0, {}
    )
    assert [(c.name, c.args, c.result, c.invalid_arguments) for c in found] == [
        ("late", None, [1], "the graph's messages contain only its result"),
        ("pay", "{5", None, "the arguments are not valid JSON"),
        ("web", {"q": "x"}, None, None),
    ]


def test_a_tool_that_ends_the_turn() -> None:
    """The answer of a tool with `return_direct` is the reply; text with its call is not."""
    told = talk(stream(added(STOCK), added(ANSWER)), state(human("Hi"), STOCK, ANSWER))
    assert told.replies == ['{"left": 3}']


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"endpoint": "http://h/runs/wait"}, "the address of the LangGraph server alone"),
        (
            {"tool_visibility": "returned"},
            "an agent of type langgraph with these settings runs its tools itself",
        ),
        ({"reply": "answer["}, "answer\\["),
        ({"body": {"assistant_id": "x"}}, "`assistant_id` is set by Agentest: write `assistant_id` beside"),
        ({"body": {"input": []}}, "`input` must be an object"),
        ({"body": {"command": {"goto": "x"}}}, "`command` is how interrupts are answered"),
        ({"body": {"input": {"x": "{{mesage}}"}}}, "did you mean `message`"),
        ({"approvals": "yes"}, "approve"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_are_wrong(wrong: dict[str, Any], message: str) -> None:
    """They are refused with what to write instead."""
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(AgentConfig).validate_python({**GRAPH, "endpoint": "http://h", **wrong})


def test_probing() -> None:
    """A LangGraph server is known by its /info; its first graph is proposed."""
    info, found = as_json({"version": "1", "langgraph_py_version": "1.2"}), as_json([{"graph_id": "shop"}])
    settings = {"type": "langgraph", "endpoint": "", "assistant_id": "shop"}
    assert looked("langgraph", "/chat", info, found) == settings
    assert looked("langgraph", "/chat", as_json({"version": "1"})) is None


class Server:
    """A LangGraph server in this process: its threads keep what their state has a place for."""

    def __init__(self) -> None:
        self.threads: dict[str, Wire] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        thread = scope["path"].split("/")[2]
        body = json.loads((await receive())["body"] or b"{}")
        if scope["path"].endswith("/state"):
            await _send(send, as_json({"values": self.threads[thread], "next": []}))
            return
        values = self.threads.setdefault(thread, {"messages": [], "user": None})
        given = body["input"]
        values["user"] = given.get("user", values["user"])
        said = [human(m["content"], id=m["id"]) for m in given["messages"]]
        n = len(values["messages"])
        wanted = call("note", f"c{n}", thread=thread, said=said[0]["content"])
        new = [ai("", f"{n}a", wanted), tool(f"c{n}", f"{n}"), ai(f"{values['user']} {n} {thread}", f"{n}b")]
        values["messages"] += [*said, *new]
        await _send(send, stream(added(*new)))


async def _send(send: Any, answer: bytes) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    kind = next(line for line in head.split(b"\r\n") if line.startswith(b"content-type")).partition(b": ")[2]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


def ran(**options: Any) -> RunResult:
    made = scenario("s", **options)
    return run_scenarios([made], agent={**GRAPH, "app": Server()}, concurrency=50)


def test_fifty_conversations_at_once() -> None:
    """Each has its own thread, and no call, message or state of another."""
    result = ran(turns=["one", "two"], conversations_per_scenario=50)
    held = [c.conversation for c in result.scenarios[0].conversations]
    threads = [thread_of(one.session_id or "") for one in held]
    assert len(set(threads)) == 50
    for one, thread in zip(held, threads, strict=True):
        assert [turn.agent_message for turn in one.turns] == [f"None 0 {thread}", f"None 4 {thread}"]
        assert [c.args for c in one.tool_calls] == [
            {"thread": thread, "said": said} for said in ("one", "two")
        ]


def test_the_state_of_the_session() -> None:
    """It is part of the graph's input; if the graph has no such key the scenario is errored."""
    (kept,) = ran(
        turns=["Hi"], session={"state": {"user": "Ann"}}, final_session_state={"user": "Ann"}
    ).scenarios
    assert (kept.verdict.status, kept.conversations[0].conversation.initial_state) == (
        "passed",
        {"user": "Ann"},
    )
    (lost,) = ran(turns=["Hi"], session={"state": {"usr": "Ann"}}).scenarios
    failure = lost.conversations[0].conversation.failure
    assert lost.verdict.status == "errored"
    assert failure is not None
    assert "has 'usr', and that of the graph has no such key (it has messages, user)" in failure.message


def test_threads() -> None:
    """A session that is a UUID is the thread's, and every other one has a thread that is a UUID."""
    mine = "0d2a2f4e-1d1c-4f6a-9a7b-0d2a2f4e1d1c"
    assert thread_of(mine) == mine
    assert thread_of("a") == thread_of("a") != thread_of("b")
