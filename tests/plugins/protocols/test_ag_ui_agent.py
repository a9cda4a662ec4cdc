"""Agents behind AG-UI in conversations: threads, tools of the client, approvals, and a whole run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from ag_ui_events import FINISHED, STARTED, Event, answer, call, held, listed, run, snapshot, stream, text
from project import Project
from wire import http, wire

from agentest import scenario
from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe, probe_of
from agentest.config.file import load_values
from agentest.domain.messages import Attachment, Session, UserText
from agentest.domain.results import RunResult, Status
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Blame, Remark
from agentest.plugins.protocols.ag_ui.settings import AgUiAgent
from agentest.support.errors import ConfigError
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client
from agentest.testing import run_scenarios


def find(q: str) -> dict[str, Any]:
    """Looks a thing up."""
    return {"found": q}


def test_a_thread() -> None:
    """Every run brings the whole thread: ids as the agent gave them, those of users new, one session."""
    first = run(
        *text("EndpointProbe.", "a-1"), *call("c-1", "find", {"n": 1}, q="x"), *text("One.", "a-2", name="x")
    )
    body = {
        "messages": [{"role": "system", "content": "Be brief."}],
        "context": [{"description": "today", "value": "{{turn_index}}"}],
        "forwardedProps": {"tenant": "{{session_id}}"},
    }
    conversation, opened = held(["Hi", "And?"], first, run(*text("Two.", "a-3")), body=body)
    one, two = (request.body for request in opened.requests)
    system, asked = one["messages"]
    assert (system["content"], asked["role"], asked["content"]) == ("Be brief.", "user", "Hi")
    assert two["messages"][:-1] == [
        system,
        asked,
        {"id": "a-1", "role": "assistant", "content": "EndpointProbe."},
        {"id": "c-1", "role": "assistant", "toolCalls": [listed("c-1", "find", '{"q": "x"}')]},
        {"id": "of-c-1", "role": "tool", "toolCallId": "c-1", "content": '{"n": 1}'},
        {"id": "a-2", "role": "assistant", "name": "x", "content": "One."},
    ]
    assert two["messages"][-1]["content"] == "And?"
    assert len({system["id"], asked["id"], two["messages"][-1]["id"], one["runId"], two["runId"]}) == 5
    session = conversation.session_id
    assert one["threadId"] == two["threadId"] == one["forwardedProps"]["tenant"] == session
    assert [sent["context"][0]["value"] for sent in (one, two)] == [0, 1]
    assert opened.requests[0].headers["accept"] == "text/event-stream"
    assert sorted(one) == [
        "context", "forwardedProps", "messages", "runId", "state", "threadId", "tools",
    ]  # fmt: skip


def test_what_a_provider_wants_back() -> None:
    """Reasoning and encrypted values go back with the thread, and are not a part of the reply."""
    thought = {"type": "REASONING_MESSAGE_CONTENT", "messageId": "th", "delta": "hm"}
    secret = {
        "type": "REASONING_ENCRYPTED_VALUE",
        "subtype": "message",
        "entityId": "th",
        "encryptedValue": "e",
    }
    conversation, opened = held(["Hi", "Bye"], run(thought, secret, *text("Hello.")))
    assert conversation.turns[0].agent_message == "Hello."
    sent = opened.requests[1].body["messages"][1]
    assert sent == {"id": "th", "role": "reasoning", "content": "hm", "encryptedValue": "e"}


def test_files() -> None:
    """Files are sent as parts by their type; one with an address that is not a web URL is refused."""
    files = (
        Attachment(mime_type="image/png", base64="aGk="),
        Attachment(mime_type="application/pdf", uri="https://x.test/a.pdf"),
    )
    _, opened = held([UserText("See", files)], run(*text("Ok.")))
    assert opened.requests[0].body["messages"][0]["content"] == [
        {"type": "text", "text": "See"},
        {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}},
        {
            "type": "document",
            "source": {"type": "url", "value": "https://x.test/a.pdf", "mimeType": "application/pdf"},
        },
    ]
    far = Attachment(mime_type="image/png", uri="gs://b/a.png", origin="user_content")
    refused, _ = held([UserText("See", (far,))], run())
    assert refused.failure is not None
    assert refused.failure.blame is Blame.INTERNAL
    assert "user_content has a part" in refused.failure.message


def test_tools_of_the_client() -> None:
    """Mocks are declared with their schemas; calls without result are answered by them in the next run."""
    mixed = run(
        *text("EndpointProbe."),
        *call("c-1", "own", {"n": 1}),
        *call("c-2", "find", q="x"),
        *call("c-3", "send"),
    )
    conversation, opened = held(
        ["Hi"],
        mixed,
        run(answer("c-2", "echo"), *text("Done.")),
        tools={"find": find, "send": {"sent": True}},
    )
    (turn,) = conversation.turns
    assert (turn.agent_message, turn.remarks) == ("Done.", (Remark("shop", "EndpointProbe."),))
    assert [(made.name, made.mocked, made.seen_by, made.result) for made in turn.tool_calls] == [
        ("own", False, SeenBy.AGENT, {"n": 1}),
        ("find", True, SeenBy.CALLER, {"found": "x"}),
        ("send", True, SeenBy.CALLER, {"sent": True}),
    ]
    declared, any_send = opened.requests[0].body["tools"]
    assert (declared["name"], declared["description"]) == ("find", "Looks a thing up.")
    assert declared["parameters"]["properties"] == {"q": {"type": "string"}}
    assert any_send["parameters"] == {"type": "object", "additionalProperties": True}
    results = opened.requests[1].body["messages"][-2:]
    assert [(m["role"], m["toolCallId"], m["content"]) for m in results] == [
        ("tool", "c-2", '{"found": "x"}'),
        ("tool", "c-3", '{"sent": true}'),
    ]
    assert opened.requests[0].body["threadId"] == opened.requests[1].body["threadId"]


def test_which_tools_are_declared() -> None:
    """`client_tools` names them, mocked or not; one that is called without a mock ends the conversation."""
    conversation, opened = held(
        ["Hi"], run(*call("c-1", "pay")), tools={"find": find}, client_tools=["find", "pay"]
    )
    assert [tool["name"] for tool in opened.requests[0].body["tools"]] == ["find", "pay"]
    assert conversation.failure is not None
    assert "the agent called tool 'pay', which has no mock" in conversation.failure.message
    _, opened = held(["Hi"], run(*text("Hi.")), tools={"find": find}, client_tools=[])
    assert opened.requests[0].body["tools"] == []


@pytest.mark.parametrize(
    "server",
    [
        {"mcp_mock": {"port": 8931}},
        {"rest_mock": {"openapi": "api.yaml", "port": 8931}},
        {"model_gateway": {"port": 8931}},
    ],
    ids=["mcp", "rest", "model gateway"],
)
def test_what_mock_servers_answer_is_not_declared(server: dict[str, Any]) -> None:
    """The agent has those tools itself, and two of one name are a conflict; named ones are declared."""
    _, opened = held(["Hi"], run(*text("Hi.")), tools={"find": find}, **server)
    assert opened.requests[0].body["tools"] == []
    _, opened = held(["Hi"], run(*text("Hi.")), tools={"find": find}, client_tools=["find"], **server)
    assert [tool["name"] for tool in opened.requests[0].body["tools"]] == ["find"]


def test_mocks_that_the_gateway_does_not_answer_are_declared() -> None:
    gateway = {"port": 8931, "mocks": False}
    _, opened = held(["Hi"], run(*text("Hi.")), tools={"find": find}, model_gateway=gateway)
    assert [tool["name"] for tool in opened.requests[0].body["tools"]] == ["find"]


def test_tools_of_the_configuration() -> None:
    """The declaration in `tools` replaces the mock's; missing parts come from the mock."""
    schema = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 9}}}
    told = [{"name": "find", "parameters": schema}, {"name": "send", "description": "Sends."}, "other"]
    mocks = {"find": find, "send": 1}
    _, opened = held(["Hi"], run(*text("Hi.")), tools=mocks, agent_tools=told)
    one, two = opened.requests[0].body["tools"]
    assert one == {"name": "find", "description": "Looks a thing up.", "parameters": schema}
    assert (two["name"], two["description"]) == ("send", "Sends.")


ITS_OWN: dict[str, list[Event]] = {
    "it_went_on": [*call("c-1", "own", q="x"), *text("Done.")],
    "others_are_pending": [
        *call("c-1", "own", q="x"),
        *text("Done."),
        {**FINISHED, "outcome": {"type": "success", "pendingToolCallIds": ["c-9"]}},
    ],
}


@pytest.mark.parametrize("events", ITS_OWN.values(), ids=ITS_OWN)
def test_calls_whose_results_are_not_told(events: list[Event]) -> None:
    """A call that was not declared, and after which the agent went on, is its own, whatever came of it."""
    conversation, opened = held(["Hi"], stream(STARTED, *events, FINISHED), tools={"find": find})
    assert [(made.name, made.seen_by, made.result) for made in conversation.tool_calls] == [
        ("own", SeenBy.AGENT, None)
    ]
    assert (conversation.turns[0].agent_message, len(opened.requests)) == ("Done.", 1)


CONFLICT = "name conflicts with existing tool: 'find'."
CONFLICTS = {
    "told": stream(STARTED, {"type": "RUN_ERROR", "message": CONFLICT}),
    "refused": http(json.dumps({"detail": CONFLICT}).encode(), "400 Bad Request"),
}


@pytest.mark.parametrize("answered", CONFLICTS.values(), ids=CONFLICTS)
def test_a_tool_that_the_agent_has_itself(answered: bytes) -> None:
    """The refusal of a declared name suggests the key to set; other errors do not."""
    mocks = {"find": find, "send": 1}
    conversation, _ = held(["Hi"], answered, tools=mocks)
    assert conversation.failure is not None
    assert conversation.failure.blame is Blame.AGENT
    assert CONFLICT in conversation.failure.message
    assert 'set `client_tools: ["send"]` and leave the mock out' in conversation.failure.message
    assert "If the agent has it itself, set model_gateway: {port: 8900}" in conversation.failure.message
    later = stream(STARTED, *text("Looking"), {"type": "RUN_ERROR", "message": "find is down"})
    for body in (later, http(b"find", "500 No"), stream(STARTED)):
        other, _ = held(["Hi"], body, tools={"findings": 1})
        assert other.failure is not None
        assert "client_tools" not in other.failure.message
    unnamed, _ = held(["Hi"], stream({"type": "RUN_ERROR", "message": "internal error"}), tools=mocks)
    assert unnamed.failure is not None
    assert "Agentest declared tools 'find', 'send' to it. If it has one of them" in unnamed.failure.message
    many = "Maximum concurrent executions (10) reached"
    crowded, _ = held(["Hi"], stream({"type": "RUN_ERROR", "message": many}), tools=mocks)
    assert crowded.failure is not None
    assert f"{many}; the agent accepts no more runs at once: lower `concurrency`" in crowded.failure.message


@pytest.mark.parametrize("declared", [None, []], ids=["declared", "not_declared"])
def test_a_mock_that_was_ignored(declared: list[str] | None) -> None:
    """If the agent runs a mocked tool itself, nothing passes, and the call is recorded."""
    events = run(*call("c-1", "find", {"n": 1}, q="x"), *text("Done."))
    conversation, _ = held(["Hi", "Again"], events, tools={"find": find}, client_tools=declared)
    assert conversation.failure is not None
    assert conversation.failure.blame is Blame.INTERNAL
    assert "ran tool 'find' itself: the scenario's mock was ignored" in conversation.failure.message
    assert "`client_tools`" in conversation.failure.message
    assert [(made.name, made.mocked) for made in conversation.tool_calls] == [("find", False)]


ASKED: Event = {
    "id": "int-c-1",
    "reason": "tool_call",
    "message": "Approve pay?",
    "toolCallId": "c-1",
    "responseSchema": {
        "type": "object",
        "properties": {
            "approved": {"type": "boolean"},
            "reason": {"type": "string"},
            "x": {"type": "object"},
        },
        "required": ["approved"],
    },
}


def interrupted(*events: Event, **changes: Any) -> bytes:
    questions = {"type": "interrupt", "interrupts": [{**ASKED, **changes}]}
    return stream(STARTED, *events, {**FINISHED, "outcome": questions})


NEW = interrupted(*call("c-1", "pay", amount=5))
SCHEMALESS = interrupted(*call("c-1", "pay", amount=5), responseSchema=None)
OLD = run(
    *call("c-1", "pay", amount=5),
    {"type": "CUSTOM", "name": "on_interrupt", "value": json.dumps({"question": "Approve pay?"})},
)
GRAPH = interrupted(
    *call("c-1", "pay", amount=5),
    toolCallId=None,
    responseSchema=None,
    metadata={"langgraph": {"raw": {"action_requests": [{"name": "pay", "args": {}}]}}},
)


def payload(value: Any) -> dict[str, Any]:
    return {"resume": [{"interruptId": "int-c-1", "status": "resolved", "payload": value}]}


APPROVALS: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "yes": (NEW, "Yes, please.", payload({"approved": True})),
    "no": (NEW, "No, too dear.", payload({"approved": False, "reason": "No, too dear."})),
    "a_question": (NEW, "Why?", payload({"approved": False, "reason": "Why?"})),
    "approve": (NEW, "", payload({"approved": True})),
    "deny": (NEW, "", payload({"approved": False})),
    "without_schema": (SCHEMALESS, "No.", payload({"approved": False, "reason": "No."})),
    "old_words": (OLD, "Only if cheap", {"forwardedProps": {"command": {"resume": "Only if cheap"}}}),
    "old_approve": (OLD, "", {"forwardedProps": {"command": {"resume": True}}}),
    "old_deny": (OLD, "", {"forwardedProps": {"command": {"resume": False}}}),
    "graph_yes": (GRAPH, "Yes", payload({"decisions": [{"type": "approve"}]})),
}


@pytest.mark.parametrize("case", APPROVALS)
def test_approvals(case: str) -> None:
    """The agent's question is its reply and the user's next message the answer, or the configuration is."""
    first, words, answers = APPROVALS[case]
    setting = case.rpartition("_")[2] if not words else "ask"
    after = run(answer("c-1", {"paid": True}), *text("Paid."))
    conversation, opened = held(["Pay", words] if words else ["Pay"], first, after, approvals=setting)
    assert conversation.failure is None
    if words:
        assert "pay" in conversation.turns[0].agent_message
        assert conversation.turns[0].tool_calls == ()
    last = conversation.turns[-1]
    (made,) = last.tool_calls
    assert (last.agent_message, made.name, made.args, made.result) == (
        "Paid.", "pay", {"amount": 5}, {"paid": True},
    )  # fmt: skip
    sent = opened.requests[1].body
    assert {key: sent[key] for key in answers} == answers
    assert [message["content"] for message in sent["messages"] if message["role"] == "user"] == ["Pay"]


def test_a_resumed_graph() -> None:
    """A waiting call in a snapshot that is repeated when the run resumes is one call."""
    asked = {"id": "u", "role": "user", "content": "Pay"}
    waiting = {"id": "a-1", "role": "assistant", "toolCalls": [listed("c-1", "pay", '{"amount": 5}')]}
    question = {"type": "CUSTOM", "name": "on_interrupt", "value": "Pay 5?", "rawEvent": {"id": "i-1"}}
    result = {"id": "t-1", "role": "tool", "toolCallId": "c-1", "content": "ok"}
    said = {"id": "a-2", "role": "assistant", "content": "Paid."}
    again = [*call("c-1", "pay", "ok", amount=5), snapshot(asked, waiting, result, said)]
    conversation, _ = held(["Pay", "yes"], run(snapshot(asked, waiting), question), run(*again))
    assert [turn.agent_message for turn in conversation.turns] == ["Pay 5?", "Paid."]
    assert [(made.name, made.args, made.result) for made in conversation.tool_calls] == [
        ("pay", {"amount": 5}, "ok")
    ]


def test_an_approval_with_a_mocked_call() -> None:
    """The mock answers first, then one request has both answers."""
    first = interrupted(*call("c-1", "pay", amount=5), *call("c-2", "find", q="x"))
    after = run(answer("c-1", "ok"), *text("Paid."))
    conversation, opened = held(["Pay", "Yes"], first, after, tools={"find": find})
    assert [turn.agent_message for turn in conversation.turns] == ["Approve pay?", "Paid."]
    assert [[made.name for made in turn.tool_calls] for turn in conversation.turns] == [["find"], ["pay"]]
    sent = opened.requests[1].body
    assert (sent["resume"][0]["payload"], sent["messages"][-1]["role"]) == ({"approved": True}, "tool")


def test_a_duplicate_approval() -> None:
    """A client call that repeats the interrupt's question is not a mocked call, and is counted."""
    notes: list[str] = []
    first = interrupted(*call("c-1", "pay", amount=5), *call("c-2", "confirm_changes"))
    after = run(answer("c-1", "ok"), *text("Paid."))
    conversation, _ = held(["Pay", "Yes"], first, after, notes=notes.append)
    assert [made.name for made in conversation.tool_calls] == ["pay"]
    assert notes == ["agent 'shop': 1 unanswered call of unknown type 'confirm_changes' was ignored"]


def test_an_agent_that_asks_for_ever() -> None:
    """Approvals that never end are the agent's error, and each of the calls before is on record."""
    again = interrupted(answer("c-1", "ok"), *call("c-1", "pay", amount=5))
    conversation, opened = held(["Pay"], again, approvals="approve")
    assert conversation.failure is not None
    assert "asked for approval more than 50 times" in conversation.failure.message
    assert len(opened.requests) == 50


class Echo:
    """An ASGI application whose agent repeats the thread and last message in texts and calls."""

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = json.loads((await receive())["body"])
        said = [m["content"] for m in body["messages"] if m["role"] == "user"]
        word = f"{body['threadId']} {len(said)} {said[-1]}"
        events = [STARTED, *call("c-1", "own", "ok", word=word), *text(word, "a-1"), FINISHED]
        if body["messages"][-1]["role"] == "user":
            events = [STARTED, *call("c-2", "find", q=word), FINISHED]
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in events:
            await anyio.lowlevel.checkpoint()
            line = f"data: {json.dumps(event)}\n\n".encode()
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def conversations_of(result: RunResult) -> list[Any]:
    return [one.conversation for one in result.scenarios[0].conversations]


def test_fifty_concurrent_conversations() -> None:
    """None has a call, text or thread of another."""
    made = scenario("talk", turns=["one", "two"], tools={"find": find}, conversations_per_scenario=50)
    result = run_scenarios([made], agent={"type": "ag_ui", "app": Echo()}, concurrency=50)
    seen = set()
    for conversation in conversations_of(result):
        assert conversation.failure is None
        for turn, word in zip(conversation.turns, ("1 one", "2 two"), strict=True):
            expected = f"{conversation.session_id} {word}"
            assert [list(c.args.values()) for c in turn.tool_calls] == [[expected], [expected]]
            assert turn.agent_message == expected
        seen.add(conversation.session_id)
    assert len(seen) == 50


def test_once_a_mock_was_ignored_no_tool_runs_again() -> None:
    """After the first conversation in which the real tool ran, no further one is begun; none passes."""
    made = scenario("talk", turns=["one"], tools={"own": 1, "find": find}, conversations_per_scenario=3)
    result = run_scenarios([made], agent={"type": "ag_ui", "app": Echo()}, concurrency=1)
    messages = [one.failure.message for one in conversations_of(result)]
    assert "ran tool 'own' itself: the scenario's mock was ignored" in messages[0]
    assert all("this conversation was not begun" in message for message in messages[1:])
    assert result.scenarios[0].verdict.status is Status.ERRORED


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not_streaming": ({"streaming": False}, "AG-UI is a stream of events; leave the key out"),
    "thread": ({"body": {"threadId": "x"}}, "`threadId` is set by Agentest: it is the session's id"),
    "tools": ({"body": {"tools": []}}, "`client_tools` names those to declare"),
    "state": ({"body": {"state": 1}}, "`state` must be an object"),
    "messages": ({"body": {"messages": ["Hi"]}}, "must be messages with a `role`"),
    "twice": ({"client_tools": ["a", "a"]}, "names each tool once"),
    "approvals": ({"approvals": "maybe"}, "'approve', 'deny' or 'ask'"),
    "placeholder": ({"body": {"context": [{"value": "{{mesage}}"}]}}, "did you mean"),
    "key": ({"clientTool": []}, "client_tools"),
}


@pytest.mark.parametrize(("settings", "says"), BAD.values(), ids=BAD)
def test_bad_settings(settings: dict[str, Any], says: str) -> None:
    """A setting that means nothing is refused before anything is sent."""
    agent = {"type": "ag_ui", "endpoint": "http://h/", **settings}
    with pytest.raises(ConfigError) as caught:
        load_values({"agent": agent}, "test", Path.cwd(), {})
    assert says in str(caught.value)


def test_either_spelling() -> None:
    """Keys may be in camelCase, as in TypeScript."""
    agent = AgUiAgent.model_validate({"type": "ag_ui", "endpoint": "http://h/", "clientTools": ["a"]})
    assert (agent.client_tools, agent.approvals, agent.streaming) == (("a",), "ask", True)


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        ("422 No", b'{"detail":[{"loc":["body","threadId"]},{"loc":["body","runId"]}]}', True),
        ("422 No", b'{"detail":[{"loc":["body","question"]}]}', False),
        ("200 OK", b"threadId runId", False),
    ],
    ids=["ag_ui", "another", "a_page"],
)
def test_the_probe(status: str, body: bytes, found: bool) -> None:
    """An endpoint that misses what every run has speaks AG-UI; nothing else does."""

    async def go() -> DetectedProtocol | None:
        async with wire(http(body, status), for_looks=True) as opened, open_client(AddressGuard()) as client:
            return await probe_of("ag_ui").find(EndpointProbe(opened.url, client))

    finding = anyio.run(go)
    assert (finding is not None) is found
    if finding:
        assert finding.settings["type"] == "ag_ui"


APP = """
import json

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    last = json.loads((await receive())["body"])["messages"][-1]["content"]
    events = [{"type": "RUN_STARTED", "threadId": "t", "runId": "r"}]
    if last in ("reserve", "find"):
        events.append({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": last})
        events.append({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"q": "x"}'})
    if last == "reserve":
        events.append({"type": "TOOL_CALL_RESULT", "toolCallId": "c", "messageId": "m", "content": "ok"})
    if last != "find":
        events.append({"type": "TEXT_MESSAGE_CONTENT", "messageId": "a", "delta": f"You said {last}."})
    events.append({"type": "RUN_FINISHED", "threadId": "t", "runId": "r"})
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    data = "".join(f"data: {json.dumps(event)}\\n\\n" for event in events)
    await send({"type": "http.response.body", "body": data.encode()})
"""
SCENARIOS = """
scenario("banned", turns=["reserve"], trajectory={"forbidden": ["reserve"]})
scenario("mocked", turns=["find"], tools={"find": {"n": 7}}, trajectory={"expected": [call("find", q="x")]})
"""


def test_the_command_line(tmp_path: Path) -> None:
    """Configuration alone is enough for workers, a comparison, bans that are broken, mocks, and a chat."""
    project = Project(tmp_path)
    agent = {"type": "ag_ui", "name": "one", "app": "shop:app"}
    project.config("", agent=agent, compare=[{"name": "two"}])
    project.write("shop.py", APP)
    project.scenario(SCENARIOS)
    done = project.run("--workers", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    stored = json.loads((tmp_path / ".agentest" / "results.json").read_text())
    for each in stored["scenarios"]:
        for found in each["agents"]:
            (made,) = found["conversations"][0]["turns"][0]["toolCalls"]
            told = (found["status"], made["seenBy"], made["mocked"], made["result"])
            banned = ("failed", "agent", False, "ok")
            assert told == (banned if each["name"] == "banned" else ("passed", "caller", True, {"n": 7}))
    assert {agent["toolCalls"] for agent in stored["agents"].values()} == {"returned"}
    chat = project.agentest("chat", "--scenario", "mocked", "--agent", "one", typed="find\n/quit\n")
    assert "tool   find(q='x') → {'n': 7}" in chat.stdout, chat.stdout + chat.stderr


def test_a_session_that_is_named() -> None:
    """A scenario that names its session goes on in that thread."""
    _, opened = held(["Hi"], run(*text("Hi.")), session=Session(session_id="mine"))
    assert opened.requests[0].body["threadId"] == "mine"
