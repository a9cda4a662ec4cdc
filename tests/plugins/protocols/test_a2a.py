"""A2A agents over real sockets: what is sent, what is read in either version, and every wrong answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import hurrying
import pytest
from a2a_server import (
    CARD,
    A2aServer,
    Answer,
    Asked,
    Http,
    Stream,
    Told,
    artifact,
    card,
    data,
    message,
    old,
    old_card,
    piece,
    serving,
    task,
    text,
    update,
)
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from project import Project
from pydantic import ValidationError

from agentest.agents.port import (
    AccessDenied,
    AgentReply,
    ConversationalAgent,
    NoReply,
    Resources,
    TurnContext,
)
from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe, probe_of
from agentest.config.config import Config
from agentest.domain.messages import Attachment, Session, UserText
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, Remark, ToolCall, Usage
from agentest.plugins.protocols.a2a.client import open_agent
from agentest.plugins.protocols.a2a.reply import (
    check_ended_well,
    parts_of,
    read_calls,
    read_reply_text,
    read_usage,
)
from agentest.plugins.protocols.a2a.settings import A2aAgent
from agentest.plugins.protocols.a2a.task import AgentWork
from agentest.support.errors import AgentError, AgentestError, CannotSend
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client

HI = UserText("Hi")
DONE = task(artifacts=[artifact("a", "Hello.")])
UNKNOWN_METHOD = Told(-32601, "Method not found")


@asynccontextmanager
async def opened(
    endpoint: str, notes: list[str] | None = None, timeout_s: float = 10.0, **config: Any
) -> AsyncIterator[ConversationalAgent]:
    """The client, without pauses between polls."""
    on_note = (notes if notes is not None else []).append
    settings = A2aAgent(type="a2a", endpoint=endpoint, **config)

    async def at_once(_: float) -> None:
        await checkpoint()

    async with AsyncExitStack() as closing, open_client(AddressGuard()) as client:
        resources = Resources(
            client=client,
            timeout_s=timeout_s,
            threads=anyio.CapacityLimiter(1),
            root=Path(),
            closing=closing,
            on_note=on_note,
        )
        yield open_agent("agent", settings, resources, at_once)


def context(turn: int = 0, session: Session | None = None, scenario: str = "s") -> TurnContext:
    return TurnContext("c-1", scenario, turn, print, session, session_id="our-id")


async def conversation(
    client: ConversationalAgent, *said: str | UserText, session: Session | None = None
) -> list[AgentReply]:
    """Its replies, turn by turn."""
    async with client.conversation() as partner:
        return [
            await partner.reply([one if isinstance(one, UserText) else UserText(one)], context(turn, session))
            for turn, one in enumerate(said)
        ]


class Talk:
    """A conversation with an agent that answers so: the replies, the error that ended it, what was sent."""

    def __init__(
        self,
        *answers: Any,
        said: Sequence[str | UserText] = (HI,),
        cards: dict[str, Any] | None = None,
        at: str = "",
        rest: bool = False,
        session: Session | None = None,
        **config: Any,
    ) -> None:
        """The last of `answers` is given for ever. `at`: the endpoint's path."""
        self.replies: list[AgentReply] = []
        self.error: AgentestError | None = None
        self.notes: list[str] = []
        self.server = A2aServer(self._answer(answers), {CARD: card()} if cards is None else cards, rest)
        hurrying.run(self._go, said, at, session, config)

    def _answer(self, answers: Sequence[Any]) -> Answer:
        if len(answers) == 1 and callable(answers[0]):
            return answers[0]
        return lambda _: answers[min(len(self.server.asked), len(answers)) - 1]

    async def _go(
        self, said: Sequence[str | UserText], at: str, session: Session | None, config: dict[str, Any]
    ) -> None:
        async with (
            serving(self.server),
            opened(self.server.url + at, self.notes, **config) as client,
            client.conversation() as partner,
        ):
            for turn, one in enumerate(said):
                asked = [one if isinstance(one, UserText) else UserText(one)]
                try:
                    self.replies.append(await partner.reply(asked, context(turn, session)))
                except AgentestError as error:
                    self.error = error
                    return

    @property
    def reply(self) -> AgentReply:
        assert self.error is None, self.error
        return self.replies[0]

    @property
    def problem(self) -> str:
        assert isinstance(self.error, NoReply | AccessDenied), (self.error, self.replies)
        return str(self.error)

    @property
    def sent(self) -> list[Asked]:
        return self.server.asked


def made(name: str, args: Any, result: Any = None, turn: int = 0) -> ToolCall:
    return ToolCall(name, args, result, mocked=False, turn_index=turn, seen_by=SeenBy.AGENT)


def function(kind: str, prefix: str = "adk_", **content: Any) -> dict[str, Any]:
    return data(content, **{f"{prefix}type": kind})


# What is sent.


def test_requests() -> None:
    """Each version has its method, header and parts; fields of the body are sent along, files as parts."""
    files = (
        Attachment(mime_type="image/png", base64="iVBOR/8=", name="a.png"),
        Attachment(mime_type="application/pdf", uri="https://h/bill.pdf"),
    )
    body = {
        "metadata": {"customer": "{{state.customer}}"},
        "message": {"metadata": {"turn": "{{turn_index}}"}},
        "configuration": {"acceptedOutputModes": ["text/plain"]},
    }
    options: dict[str, Any] = {
        "said": [UserText("EndpointProbe", files)],
        "body": body,
        "session": Session(state={"customer": "Ann"}),
        "headers": {"X-Session": "{{session_id}}"},
    }
    (new,) = Talk(DONE, **options).sent
    assert (new.path, new.method, new.headers["a2a-version"]) == ("/", "SendMessage", "1.0")
    assert (new.headers["x-session"], new.accept) == ("our-id", "application/json")
    sent = new.params["message"]
    assert sent.pop("messageId")
    assert new.params == {
        "metadata": {"customer": "Ann"},
        "configuration": {"acceptedOutputModes": ["text/plain"]},
        "message": {
            "metadata": {"turn": 0},
            "role": "ROLE_USER",
            "parts": [
                {"text": "EndpointProbe"},
                {"raw": "iVBOR/8=", "mediaType": "image/png", "filename": "a.png"},
                {"url": "https://h/bill.pdf", "mediaType": "application/pdf"},
            ],
        },
    }
    (old_one,) = Talk(old(DONE), cards={CARD: old_card()}, **options).sent
    assert old_one.method == "message/send"
    assert "a2a-version" not in old_one.headers
    assert old_one.params["configuration"] == {"acceptedOutputModes": ["text/plain"], "blocking": True}
    assert old_one.params["message"].pop("messageId")
    assert old_one.params["message"] == {
        "metadata": {"turn": 0},
        "kind": "message",
        "role": "user",
        "parts": [
            {"kind": "text", "text": "EndpointProbe"},
            {"kind": "file", "file": {"bytes": "iVBOR/8=", "mimeType": "image/png", "name": "a.png"}},
            {"kind": "file", "file": {"uri": "https://h/bill.pdf", "mimeType": "application/pdf"}},
        ],
    }


def test_http_and_json() -> None:
    """If a card offers only HTTP+JSON, it is used, and tasks are polled by GET."""
    card_of_it = card("/api", binding="HTTP+JSON")
    answers = (task("working"), task(artifacts=[artifact("a", "Hello.")])["task"])
    talk = Talk(*answers, cards={CARD: card_of_it}, rest=True)
    assert talk.reply.text == "Hello."
    assert [one.path for one in talk.sent] == ["/api/message:send", "/api/tasks/t-1"]
    assert talk.sent[0].params["message"]["parts"] == [{"text": "Hi"}]
    streamed = Talk(
        Stream([piece("a", "Hel"), piece("a", "lo", append=True), update("completed")]),
        cards={CARD: card_of_it},
        rest=True,
        streaming=True,
    )
    assert (streamed.reply.text, streamed.server.methods) == ("Hello", ["message:stream"])
    failed = Http(500, '{"error": {"code": 500, "status": "INTERNAL", "message": "unknown exception"}}')
    assert "answered 500: " in Talk(failed, cards={CARD: card_of_it}, rest=True).problem
    lost = Http(404, '{"error": {"code": 404, "details": [{"reason": "TASK_NOT_FOUND"}]}}')
    asks = task("input-required", "Order it?", id="t-7")
    problem = Talk(asks, lost, said=["order", "yes"], cards={CARD: card_of_it}, rest=True).problem
    assert problem.endswith("answers what task t-7 had asked: the agent has lost it")


def test_contexts_and_tasks() -> None:
    """The server's context goes with every later message, a task's id only while it waits for an answer."""
    asks = task("input-required", "Order it?", id="t-7")
    talk = Talk(asks, DONE, said=["order", "yes", "thanks"])
    assert [reply.text for reply in talk.replies] == ["Order it?", "Hello.", "Hello."]
    ids = [[one.params["message"].get(key) for key in ("contextId", "taskId")] for one in talk.sent]
    assert ids == [[None, None], ["ctx-1", "t-7"], ["ctx-1", None]]
    named = Talk(DONE, session=Session(session_id="own-1"))
    assert named.sent[0].params["message"]["contextId"] == "own-1"
    templated = Talk(
        message("a", contextId="theirs"), said=["1", "2"], body={"message": {"contextId": "{{session_id}}"}}
    )
    assert [one.params["message"]["contextId"] for one in templated.sent] == ["our-id", "theirs"]


# Finding the agent.

LANGGRAPH_CARD = f"{CARD}?assistant_id=42"


@pytest.mark.parametrize(
    ("at", "cards", "path"),
    [
        ("", {CARD: card("/rpc")}, "/rpc"),
        ("/", {"/.well-known/agent.json": old_card("/rpc")}, "/rpc"),
        ("/rpc", {CARD: card("/rpc")}, "/rpc"),
        ("/b", {CARD: card("/a")}, "/b"),
        ("/shop", {f"/shop{CARD}": card("/shop/rpc")}, "/shop/rpc"),
        (CARD, {CARD: card("/rpc")}, "/rpc"),
        (f"/shop{CARD}", {f"/shop{CARD}": card("http://10.0.0.9:1/inner")}, "/shop"),
        ("/a2a/42", {LANGGRAPH_CARD: card("/a2a/42")}, "/a2a/42"),
        (LANGGRAPH_CARD, {LANGGRAPH_CARD: card("/a2a/42")}, "/a2a/42"),
        ("/rpc", {}, "/rpc"),
        ("/rpc?key=k", {CARD: card("/rpc")}, "/rpc"),
        ("", {CARD: {"name": "no card"}}, "/"),
    ],
    ids=["root", "old_card", "its_own", "of_another", "below", "card", "card_elsewhere", "langgraph",
         "langgraph_card", "none", "query", "no_card"],
)  # fmt: skip
def test_the_endpoint_may_be_root_address_or_card(at: str, cards: dict[str, Any], path: str) -> None:
    """Whichever of them is configured, messages go to the agent's own address."""
    talk = Talk(DONE, cards=cards, at=at)
    assert talk.reply.text == "Hello."
    assert {one.path for one in talk.sent} == {path}


def test_a_card_with_another_address() -> None:
    """Requests stay at the endpoint, with one note; behind a root the card's path is tried, too."""
    elsewhere = {CARD: card("http://10.1.2.3:9999/inner/rpc")}
    talk = Talk(DONE, cards=elsewhere, said=["1", "2"])
    assert {one.path for one in talk.sent} == {"/"}
    (note,) = talk.notes
    assert "its card names another address, http://10.1.2.3:9999/inner/rpc; requests go to the" in note

    def only_inner(asked: Asked) -> Any:
        return DONE if asked.path == "/inner/rpc" else Http(404)

    assert Talk(only_inner, cards=elsewhere).reply.text == "Hello."
    for url in ("http://localhost:{port}/", "http://0.0.0.0:{port}/", "http://[::", ""):
        talk = Talk(DONE, cards={CARD: card(url)})
        assert (talk.reply.text, talk.notes) == ("Hello.", [])
    stripped = Talk(lambda one: DONE if one.path == "/shop" else Http(405), cards={f"/shop{CARD}": card("/")},
                    at="/shop")  # fmt: skip
    assert stripped.reply.text == "Hello."


def test_the_version_is_detected_once() -> None:
    """Of many concurrent conversations one tries the versions, and the others use its result."""

    def knows_0_3(asked: Asked) -> Any:
        return old(DONE) if asked.method.startswith("message/") else UNKNOWN_METHOD

    async def go() -> tuple[A2aServer, list[str]]:
        texts: list[str] = []
        async with serving(A2aServer(knows_0_3)) as server, opened(server.url) as client:

            async def talk() -> None:
                texts.extend(str(reply.text) for reply in await conversation(client, "1", "2"))

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(talk)
        return server, texts

    server, texts = anyio.run(go)
    assert texts == ["Hello."] * 40
    assert server.methods.count("SendMessage") == 1
    assert server.card_paths == [CARD, "/.well-known/agent.json"]


@pytest.mark.parametrize(
    ("cards", "settings", "methods"),
    [
        ({}, {}, ["SendMessage", "message/send"]),
        ({CARD: card()}, {}, ["SendMessage", "message/send"]),
        ({CARD: old_card()}, {}, ["message/send"]),
        ({CARD: {**old_card(), **card()}}, {"protocol_version": 0.3}, ["message/send"]),
        ({CARD: {**card(), **old_card(protocolVersion="0.2.6")}}, {}, ["SendMessage", "message/send"]),
        ({CARD: old_card(preferredTransport="GRPC",
                         additionalInterfaces=[{"url": "/", "transport": "JSONRPC"}])}, {}, ["message/send"]),
    ],
    ids=["no_card", "card_errs", "card", "wished", "both", "additional"],
)  # fmt: skip
def test_versions(cards: dict[str, Any], settings: dict[str, Any], methods: list[str]) -> None:
    """The newest version is tried unless card or configuration differ, then 0.3 if it is unknown."""

    def knows_0_3(asked: Asked) -> Any:
        return old(DONE) if asked.method.startswith("message/") else Told(-32009, "version")

    def says_so_by_status(asked: Asked) -> Any:
        known = asked.method.startswith("message/")
        return old(DONE) if known else Http(404, '{"error": {"code": -32601}}')

    assert Talk(says_so_by_status, cards=cards, **settings).server.methods == methods
    talk = Talk(knows_0_3, cards=cards, said=["1", "2"], **settings)
    assert talk.reply.text == "Hello."
    assert talk.server.methods == [*methods, "message/send"]


# What is read.

THOUGHT = text("Hm.", metadata={"adk_thought": True})
FILE = {"raw": "eA==", "filename": "bill.pdf", "mediaType": "application/pdf"}
OLD_FILE = {"kind": "file", "file": {"uri": "https://h/a.png", "mimeType": "image/png"}}
EARLIER = [message("before", user=True), message("old words", messageId="m-0")]
READ: dict[str, tuple[Any, str, list[str]]] = {
    "message": ({"message": message("Hel", "lo")}, "Hello", []),
    "artifacts": (task(artifacts=[artifact("a", "One."), artifact("b", "Two.")]), "One.\n\nTwo.", []),
    "pieces": (task(artifacts=[artifact("a", "some", " tex", "t")]), "some text", []),
    "status": (task("completed", "All done."), "All done.", []),
    "both": (
        task("completed", "Here it is.", artifacts=[artifact("a", "A poem.")]),
        "A poem.",
        ["Here it is."],
    ),
    "history": (task(history=[message("hi", user=True), message("Hello.")]), "Hello.", []),
    "remarks": (
        task(artifacts=[artifact("a", "Done.")], history=[message("hi", user=True), message("Let me see.")]),
        "Done.",
        ["Let me see."],
    ),
    "earlier": (task("completed", "New.", history=[*EARLIER, message("hi", user=True)]), "New.", []),
    "data": (task(artifacts=[artifact("a", data({"price": 5}))]), '{"price": 5}', []),
    "text_and_data": (task(artifacts=[artifact("a", "Five.", data({"price": 5}))]), "Five.", []),
    "file": (task(artifacts=[artifact("a", "See:", FILE)]), "See:\n[file: bill.pdf, application/pdf]", []),
    "old_file": (task(artifacts=[artifact("a", OLD_FILE)]), "[file: image/png, https://h/a.png]", []),
    "thought": (task(artifacts=[artifact("a", THOUGHT, "Yes.")]), "Yes.", []),
    "asks": (task("input-required", "Which?", artifacts=[artifact("a", "Draft.")]), "Which?", ["Draft."]),
    "interrupt": (
        task("input-required", artifacts=[artifact("a", data({"id": "9", "value": {"question": "Buy?"}}))]),
        '{"question": "Buy?"}',
        [],
    ),
    "mixed": ({"task": old(DONE)}, "Hello.", []),
    "bare": (DONE["task"], "Hello.", []),
    "repeated": (
        task(
            artifacts=[artifact("a", "Done.")], history=[message("Do"), message("Done."), message("Done. ")]
        ),
        "Done.",
        [],
    ),
}


@pytest.mark.parametrize(("result", "said", "remarks"), READ.values(), ids=READ)
def test_the_reply(result: Any, said: str, remarks: list[str]) -> None:
    """The reply is the text of message, artifacts, status or history; other texts are remarks."""
    for answer, cards in ((result, {CARD: card()}), (_old_form(result), {CARD: old_card()})):
        talk = Talk(answer, cards=cards)
        assert talk.reply.text == said
        assert talk.reply.remarks == tuple(Remark("agent", one) for one in remarks)
        assert (talk.reply.tells_calls, talk.reply.observed, talk.notes) == (False, (), [])


def _old_form(result: dict[str, Any]) -> Any:
    return old(result) if len(result) == 1 and "kind" not in result else result


FAILED = {
    "failed": (task("failed", "the oven is broken"), "the agent's task failed: the oven is broken"),
    "silent": (task("TASK_STATE_FAILED"), "the agent's task failed, and it does not say why"),
    "rejected": (task("rejected", "not mine"), "the agent rejected the task: not mine"),
    "canceled": (task("cancelled"), "the agent canceled the task, and it does not say why"),
    "auth": (task("auth-required", "log in"), r"wants credentials \(auth-required\): log in; `headers`"),
    "told": (Told(-32603, "boom"), "answered SendMessage with error -32603, internal error: boom$"),
    "details": (Told(-32602, "bad", [{"field": "a"}]), r'invalid parameters: bad \(\{"field": "a"\}\)$'),
    "type": (Told(-32005, "no images", [{"reason": "X"}]), "unsupported content type: no images$"),
    "extension": (Told(-32008, "x"), "an extension is required: name it in `headers` as A2A-Extensions: x"),
    "odd": (Told("E1", "boom"), 'answered with an error: {"code": "E1"'),  # type: ignore[arg-type]
    "empty": (task(), "the agent's reply is empty: its task is completed, and neither artifacts"),
    "empty_artifact": (
        task("completed", "Thinking.", artifacts=[artifact("a", "")], history=[message("On it.")]),
        "the agent's reply is empty: its task is completed, and its artifacts have no text",
    ),
    "blank": ({"message": message(" ")}, "the agent's reply is empty: its message has no text"),
    "no_state": ({"task": {"id": "t", "status": {}}}, "a task of the agent has no state: {}"),
    "no_status": ({"task": {"id": "t"}}, "the agent's task has no status, and the keys id"),
    "no_id": ({"task": {"status": {"state": "working"}}}, "a task in the state working, without an id"),
    "other": ({"choices": []}, "the agent answered with no task or message: there is nothing to wait for"),
    "list": ([], r"neither a task nor a message of A2A: \[\]"),
    "parts": ({"message": {"parts": "Hi"}}, "`parts` of the agent's message are not a list of objects: Hi"),
    "text": ({"message": {"parts": [{"text": 5}]}}, "`text` of a part of the agent's answer is not a text"),
    "history": (task(history={}), "`history` of the agent's answer is not a list: {}"),
    "call": (task(history=[message(function("function_call"))]), "`function_call` of the agent has no name"),
    "page": (Http(200, "<html>Log in</html>"), "a web page, not JSON .is this the address of an A2A agent"),
    "text_body": (Http(200, "Hello!"), "the agent's answer is not JSON: 'Hello!'"),
    "nothing": (Http(200), "the agent's answer is empty"),
    "place": (Http(404, "Not Found"), "answered 404 .is this the address of an A2A agent: its server's root"),
    "server": (Http(500, "oops"), "answered 500: oops"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "problem"), FAILED.values(), ids=FAILED)
def test_wrong_answers(answer: Any, problem: str) -> None:
    """Every end but completion is an error that shows what was found."""
    talk = Talk(answer)
    with pytest.raises(NoReply, match=problem):
        raise NoReply(talk.problem)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_empty_artifact(streaming: bool) -> None:
    """An artifact without text is the reply if the agent called a tool; no remark replaces it."""
    call = function("function_call", name="pay", id="1", args={})
    working = message("On it.", call, function("function_response", name="pay", id="1", response={"ok": 1}))
    whole = task("completed", "Done.", artifacts=[artifact("a", "")], history=[working])
    events = [task("working"), update("working", working), piece("a", ""), update("completed", "Done.")]
    talk = Talk(Stream(events) if streaming else whole, streaming=streaming)
    assert (talk.reply.text, [call.name for call in talk.reply.observed]) == (None, ["pay"])
    assert "On it." in [remark.text for remark in talk.reply.remarks]


def test_answers_nested_deeply() -> None:
    """However deep, an answer is a reply or the agent's error, in words."""
    for depth in (100, 400, 900, 100_000):
        nested = "[" * depth + "1.0" + "]" * depth
        call = '{"data": {"name": "pay", "args": {"a": NESTED}}, "metadata": {"adk_type": "function_call"}}'
        for part in (f'{{"data": {nested}}}', call.replace("NESTED", nested)):
            body = f'{{"result": {{"message": {{"messageId": "m", "parts": [{part}, {{"text": "Hi"}}]}}}}}}'
            talk = Talk(Http(200, body))
            assert talk.error is None or "nested" in talk.problem or "not JSON" in talk.problem, depth


KEYS = ["task", "message", "statusUpdate", "artifactUpdate", "kind", "id", "status", "state", "parts", "text"]
KEYS += ["data", "metadata", "final", "history", "artifacts", "artifact", "artifactId", "append", "adk_type"]
KEYS += ["name", "tool_results"]
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(-3, 3) | st.sampled_from(["", "x", "TASK_STATE_WORKING", "m"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=4))
@settings(max_examples=60, deadline=None)
def test_whatever_comes(results: list[Any]) -> None:
    """Work takes any JSON, or refuses it as the agent's error."""
    work = AgentWork(on_unknown=lambda _, __: None)
    with suppress(AgentError):
        for result in results:
            work.take(result, 1.0)
        check_ended_well(work, "")
        read_reply_text(work, "agent", {})
        read_calls(parts_of(work), 0)
        read_usage(work, set())


def test_content_types() -> None:
    """JSON is an answer with any content type, even if a stream was requested."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": DONE})
    for kind in ("text/plain", "text/html", "text/event-stream", "application/a2a+json"):
        answer = Http(200, body, {"content-type": kind})
        assert [Talk(answer, streaming=streaming).reply.text for streaming in (False, True)] == ["Hello."] * 2


def test_credentials() -> None:
    """If credentials are missing, the error has what the card requires."""
    schemes = {
        "a": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
        "b": {"type": "http", "scheme": "bearer"},
    }
    cards = {CARD: card(securitySchemes=schemes)}
    problem = Talk(Http(401, "who?"), cards=cards).problem
    assert problem.endswith("its card asks for a key in the header X-Key or a header Authorization: Bearer …")
    assert "its card asks for a key" in Talk(task("auth-required"), cards=cards).problem
    assert "its card" not in Talk(Http(403, "no")).problem


def test_a_card_with_nothing_that_is_spoken() -> None:
    """A card of gRPC alone, or of HTTP+JSON in 0.3's form, is an error that names it."""
    problem = Talk(DONE, cards={CARD: card("localhost:50051", binding="GRPC")}).problem
    assert "the agent's card offers GRPC 1.0 at localhost:50051; spoken here are JSON-RPC" in problem
    problem = Talk(DONE, cards={CARD: old_card(preferredTransport="HTTP+JSON")}).problem
    assert "HTTP+JSON 0.3.0 at /" in problem


def test_no_known_version() -> None:
    """If no version works, the error has the answer to each."""
    problem = Talk(UNKNOWN_METHOD, cards={}).problem
    assert "SendMessage with error -32601" in problem
    assert "; then: the agent answered message/send with error -32601" in problem


# Tasks that take longer.


def test_tasks_are_polled_until_they_end() -> None:
    """A submitted task is polled; each of its texts is one remark."""
    history = [message("hi", user=True), message("On it.", messageId="m-1")]
    answers = (
        task("submitted"),
        task("working", message("On it."))["task"],
        task("working", message("On it."))["task"],
        task(artifacts=[artifact("a", "Done.")], history=history)["task"],
    )
    talk = Talk(*answers)
    assert talk.server.methods == ["SendMessage", "GetTask", "GetTask", "GetTask"]
    assert [one.params for one in talk.sent[1:]] == [{"id": "t-1"}] * 3
    assert (talk.reply.text, {remark.text for remark in talk.reply.remarks}) == ("Done.", {"On it."})
    old_talk = Talk(old(task("submitted")), old(DONE), cards={CARD: old_card()})
    assert (old_talk.reply.text, old_talk.server.methods[1]) == ("Hello.", "tasks/get")


@pytest.mark.slow
def test_a_task_that_never_ends() -> None:
    """All polls share the timeout; observed calls are kept, and the last state is named."""
    called = message(function("function_call", id="c", name="pay", args={}), messageId="m-1")
    asked: list[Any] = []

    def working(request: Any) -> Any:
        asked.append(request)
        if len(asked) == 3:  # so the answer to the second has been read
            hurrying.hurry()
        return task("submitted") if len(asked) == 1 else task("working", called)

    talk = Talk(working, timeout_s=60.0)
    assert "the agent's task is still in the state working after 60 s (request_timeout_ms)" in talk.problem
    assert isinstance(talk.error, NoReply)
    assert talk.error.observed == (made("pay", {}),)


def test_another_task() -> None:
    """The answer to a poll with another task is an error."""
    asked = task("working", id="t-7")
    assert "the task t-8 instead of t-7" in Talk(asked, task("completed", id="t-8")).problem


def test_a_lost_task_and_a_lost_context() -> None:
    """If a server has forgotten a task or context, the error says so."""
    asks = task("input-required", "Order it?", id="t-7")
    lost = Told(-32001, "Task t-7 not found")
    problem = Talk(asks, lost, said=["order", "yes"]).problem
    assert "the message answers what task t-7 had asked: the agent has lost it" in problem
    assert "unknown task: Task t-7 not found" in problem
    assert Talk(DONE, lost, said=["1", "2"]).problem.endswith("the agent has lost the conversation")
    other = {"message": message("Who are you?", contextId="ctx-2")}
    assert "answered in another context (contextId ctx-2)" in Talk(DONE, other, said=["1", "2"]).problem


def test_a_task_that_goes_on_shows_what_is_new() -> None:
    """Artifacts, words and calls of earlier turns, which the task still has, belong to their turn alone."""
    call = function("function_call", id="c-1", name="look", args={})
    first = [message("order", user=True), message(call, messageId="m-1")]
    later = [*first, message("Order it?", messageId="m-2"), message("Sure.", messageId="m-3")]
    asks = task("input-required", message("Order it?", messageId="m-2"), history=first,
                artifacts=[artifact("a", "Draft.")])  # fmt: skip
    ends = task(history=later, artifacts=[artifact("a", "Draft. Final."), artifact("b", "Ordered.")])
    one, two = Talk(asks, ends, said=["order", "yes"]).replies
    assert (one.text, one.observed) == ("Order it?", (made("look", {}),))
    assert (two.text, two.observed) == (" Final.\n\nOrdered.", ())
    assert two.remarks == (Remark("agent", "Sure."),)


# Streams.

BEGUN = task("submitted", history=[message("hi", user=True)])


def test_a_stream() -> None:
    """Pieces are joined despite other events; the first is timed, and remarks are kept."""
    events = [
        BEGUN,
        update("working", "Let me see."),
        ": still there\n\n",
        "data: \n\n",
        piece("a", "Hel"),
        piece("b", "Two", append=True),
        piece("a", "lo", append=True),
        piece("b", "."),
        update("completed"),
    ]
    for version, change in ((card(), lambda event: event), (old_card(), old)):
        told = [event if isinstance(event, str) else change(event) for event in events]
        talk = Talk(Stream(told), cards={CARD: version}, streaming=True)
        assert talk.reply.text == "Hello\n\n."
        assert talk.reply.remarks == (Remark("agent", "Let me see."),)
        assert talk.reply.first_token_ms is not None
        assert talk.sent[0].accept == "text/event-stream"
    assert talk.server.methods == ["message/stream"]


STREAMS: dict[str, tuple[list[Any], str | None]] = {
    "message": ([{"message": message("Hello.")}], "Hello."),
    "final": ([old(BEGUN), old(update("completed", "Hello.", final=True))], "Hello."),
    "no_final": ([BEGUN, update("input-required", "Hello.")], "Hello."),
    "goes_on": ([old(BEGUN), old(update("input-required", "Wait.", final=False)),
                 old(update("completed", "Hello.", final=True))], "Hello."),
    "task": ([BEGUN, DONE], "Hello."),
    "replaced": ([piece("a", "Hel", append=True), piece("a", "Hello."), update("completed")], "Hello."),
    "growing": ([BEGUN, update("working", "Hel"), update("working", "Hello."), piece("a", "Hello."),
                 update("completed")], "Hello."),
    "no_task": ([update("working"), update("completed", "Hello.")], "Hello."),
    "after_the_end": ([BEGUN, update("completed", "Hello."), update("failed")], "Hello."),
    "cut": ([BEGUN, piece("a", "Hel")], None),
    "nothing": ([], None),
}  # fmt: skip


@pytest.mark.parametrize(("events", "said"), STREAMS.values(), ids=STREAMS)
def test_ends_of_streams(events: list[Any], said: str | None) -> None:
    """A stream ends with a message or an ending status; without one it was cut, whatever came before."""
    talk = Talk(Stream(events), streaming=True)
    if said is None:
        assert "the agent's stream was cut: it ended without a message and without a status" in talk.problem
    else:
        assert (talk.reply.text, talk.reply.remarks) == (said, _waiting(events))


def _waiting(events: list[Any]) -> tuple[Remark, ...]:
    return (Remark("agent", "Wait."),) if "Wait." in str(events) else ()


def test_errors_in_streams() -> None:
    """An error in a stream, and a connection that is lost in it, keep the calls that came before."""
    call = function("function_call", id="c", name="pay", args={"n": 1.0})
    before = [BEGUN, update("working", message(call, messageId="m-1"))]
    talk = Talk(Stream([*before, Told(-32603, "boom")]), streaming=True)
    assert talk.problem == "the agent answered SendStreamingMessage with error -32603, internal error: boom"
    cut = Talk(Stream(before, cut=True), streaming=True)
    for one in (talk, cut):
        assert isinstance(one.error, NoReply)
        assert one.error.observed == (made("pay", {"n": 1}),)
    assert "is not JSON: 'oops'" in Talk(Stream(["data: oops\n\n"]), streaming=True).problem
    plain = 'event: error\ndata: "down"\n\n'
    assert Talk(Stream([plain]), streaming=True).problem == "the agent answered with an error: down"


def test_what_is_not_known_is_counted() -> None:
    """Events and parts of unknown type, and updates of other tasks, are ignored and noted at the end."""
    strange = {"kind": "weather", "sky": "blue"}
    foreign = {"artifactUpdate": {"taskId": "t-9", "artifact": artifact("z", "Not mine.")}}
    events = [BEGUN, strange, strange, foreign, piece("a", "Hello.", {"kind": "smell"}), update("completed")]
    talk = Talk(Stream(events), streaming=True)
    assert talk.reply.text == "Hello."
    assert [note.removeprefix("agent 'agent': ") for note in talk.notes] == [
        "2 events of unknown type 'weather' were ignored",
        "1 update of unknown type 'of another task' was ignored",
        "1 part of unknown type 'smell' was ignored",
    ]


def test_an_agent_that_does_not_stream() -> None:
    """If the card says so, whole answers are requested, with a note; otherwise the error has advice."""
    talk = Talk(DONE, cards={CARD: card(capabilities={"streaming": False})}, said=["1", "2"], streaming=True)
    assert (talk.reply.text, talk.server.methods) == ("Hello.", ["SendMessage"] * 2)
    assert len(talk.notes) == 1
    refused = Talk(Told(-32004, "no streams"), streaming=True)
    assert refused.problem.endswith("if it does not stream, leave `streaming` out")
    assert Talk(DONE, streaming=True).reply.text == "Hello."


# Calls.

CALL = function("function_call", id="c-1", name="reserve", args={"n": 2.0})
RESPONSE = function("function_response", id="c-1", name="reserve", response={"ok": True, "left": 1.0})
MADE = made("reserve", {"n": 2}, {"ok": True, "left": 1})
ADK = {"adk_app_name": "shop", "adk_session_id": "s", "adk_author": "shop", "adk_event_id": "e-1"}
USED = {"adk_usage_metadata": {"promptTokenCount": 7.0, "candidatesTokenCount": 3.0}}


def test_calls_of_google_adk() -> None:
    """Its data parts are calls, each once and with its result, whole or streamed; it reports all."""
    said = [message("hi", user=True), message(CALL, messageId="1"), message(RESPONSE, messageId="2")]
    whole = task(history=said, artifacts=[artifact("a", "Done.")], metadata={**ADK, **USED})
    reply = Talk(whole).reply
    assert (reply.text, reply.observed, reply.remarks, reply.tells_calls) == ("Done.", (MADE,), (), True)
    assert (reply.usage, reply.model_calls, reply.author) == (Usage(7, 3), None, None)
    assert [call.call_id for call in reply.observed] == ["c-1"]
    streamed = [
        BEGUN,
        update("working", metadata={"adk_app_name": "shop"}),
        update("working", message(CALL, messageId="1"), metadata={**ADK, **USED}),
        update("working", message("Hm.", messageId="3"), metadata={**ADK, "adk_author": "helper"}),
        update("working", message(RESPONSE, messageId="2"), metadata=ADK),
        update("working", message("Done.", messageId="4"), metadata={**ADK, **USED, "adk_event_id": "e-2"}),
        piece("a", "Done.", metadata=ADK),
        update("completed", metadata=ADK),
    ]
    reply = Talk(Stream(streamed), streaming=True).reply
    assert (reply.text, reply.observed, reply.tells_calls) == ("Done.", (MADE,), True)
    assert (reply.usage, reply.model_calls, reply.author) == (Usage(14, 6), 2, "shop")
    assert reply.remarks == (Remark("helper", "Hm."),)


def test_google_adk_in_artifacts() -> None:
    """Its newer form has an artifact for each event: the last text is the reply, the others are remarks."""
    parts = (CALL, RESPONSE, text("Let me see."), text("Done."))
    events = [artifact(f"a{n}", part, metadata={**ADK, **USED, "adk_event_id": f"e-{n}"})
              for n, part in enumerate(parts)]  # fmt: skip
    reply = Talk(task(artifacts=events)).reply
    assert (reply.text, reply.observed, reply.tells_calls) == ("Done.", (MADE,), True)
    assert reply.remarks == (Remark("shop", "Let me see."),)
    assert (reply.usage, reply.model_calls) == (Usage(28, 12), 4)


def test_google_adk_without_a_text() -> None:
    """A tool's answer without a summary, or a call that waits for the user, becomes the reply."""
    said = [message("hi", user=True), message(CALL, messageId="1"), message(RESPONSE, messageId="2")]
    answer = Talk(task(history=said, artifacts=[artifact("a", RESPONSE)], metadata=ADK)).reply
    assert (answer.text, answer.observed) == ('{"ok": true, "left": 1.0}', (MADE,))
    waits = Talk(task("input-required", message(CALL, messageId="1"), metadata=ADK)).reply
    assert (waits.text, waits.observed) == (
        '{"name": "reserve", "args": {"n": 2.0}}',
        (made("reserve", {"n": 2}),),
    )


def test_calls_of_other_servers() -> None:
    """Calls with another prefix or without ids are read; whether they are all is unknown."""
    calls = [
        function("function_call", "kagent_", name="look", args={}),
        function("function_call", "", name="look", args={"n": 1}),
        function("function_response", "", name="look", response=[1]),
        function("function_response", "kagent_", name="look", response=[2]),
        data({"name": "ran"}, type="other"),
    ]
    reply = Talk(task("completed", "Done.", history=[message(call) for call in calls])).reply
    assert reply.observed == (made("look", {}, [1]), made("look", {"n": 1}, [2]))
    assert not reply.tells_calls


def test_calls_of_which_responses_alone_tell() -> None:
    """A response without its call reports one, and under one id another name is another call."""
    calls = [
        function("function_call", id="1", name="look", args={}),
        function("function_response", id="1", name="look", response=[1]),
        function("function_call", id="1", name="pay", args={}),
        function("function_response", id="7", name="reserve", response=[2]),
    ]
    reply = Talk(task("completed", "Done.", history=[message(call) for call in calls])).reply
    assert [(call.name, call.result) for call in reply.observed] == [
        ("look", [1]),
        ("pay", None),
        ("reserve", [2]),
    ]
    assert reply.observed[2].invalid_arguments


def results(*told: dict[str, Any]) -> dict[str, Any]:
    return data({"tool_results": list(told)})


def test_calls_of_langgraph() -> None:
    """Results are calls without known arguments; its history has all turns, and each call counts once."""

    def result(n: int, content: str) -> dict[str, Any]:
        return {"toolCallId": f"call-{n}", "name": "look", "content": content, "status": "success"}

    def turn(n: int, *told: dict[str, Any]) -> list[dict[str, Any]]:
        place = {"taskId": f"t-{n}"}
        return [message("hi", user=True, **place), message(results(*told), messageId=f"r-{n}", **place),
                message("Done.", messageId=f"d-{n}", **place)]  # fmt: skip

    first = turn(1, result(1, '{"in": 3}'))
    second = [*first, *turn(2, result(1, "none"), {**result(2, "broken"), "status": "error"})]
    answers = (
        task(id="t-1", history=first, artifacts=[artifact("a", "Done.")]),
        task(id="t-2", history=second, artifacts=[artifact("b", "Done.")]),
        task(id="t-3", artifacts=[artifact("c", "Bye.")], history=[*second, message("bye", user=True)]),
    )
    extension = {"uri": "https://langchain.com/a2a/extensions/history-scope/v1"}
    cards = {CARD: card(capabilities={"extensions": [extension]})}
    one, two, three = Talk(*answers, said=["1", "2", "3"], cards=cards).replies

    def untold(result: Any, turn: int, error: str | None = None) -> ToolCall:
        return ToolCall("look", None, result, False, turn, ARGUMENTS_UNKNOWN, error, SeenBy.AGENT)

    assert one.observed == (untold({"in": 3}, 0),)
    assert [call.call_id for call in two.observed] == ["call-1", "call-2"]
    assert two.observed == (untold("none", 1), untold("broken", 1, "broken"))
    assert three.observed == ()
    assert all(reply.tells_calls for reply in (one, two, three))
    assert [reply.tells_calls for reply in Talk(*answers, said=["1", "2", "3"]).replies] == [
        True,
        True,
        False,
    ]


# Conversations, settings, and what finds the agent.


def test_fifty_conversations_at_once() -> None:
    """None has a word, a context or a call of another."""

    def answer(asked: Asked) -> Any:
        sent = asked.params["message"]
        who = sent.get("contextId") or sent["parts"][0]["text"]
        call = function("function_call", id="call-1", name=f"tool_{who}", args={})
        said = [message(call, messageId=f"{who}-{sent['messageId']}")]
        return task(id=sent["messageId"], contextId=who, history=said, artifacts=[artifact("a", who)])

    async def go() -> dict[str, list[AgentReply]]:
        held: dict[str, list[AgentReply]] = {}
        async with serving(A2aServer(answer, {CARD: card()})) as server, opened(server.url) as client:

            async def talk(who: str) -> None:
                held[who] = await conversation(client, who, "go on")

            async with anyio.create_task_group() as tasks:
                for n in range(50):
                    tasks.start_soon(talk, f"u{n}")
        return held

    for who, replies in anyio.run(go).items():
        assert [reply.text for reply in replies] == [who, who]
        assert [reply.observed for reply in replies] == [
            (made(f"tool_{who}", {}, turn=turn),) for turn in (0, 1)
        ]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"tool_visibility": "returned"},
            "an agent of type a2a with these settings runs its tools itself and hands no call to the caller",
        ),
        ({"protocol_version": 2}, "Input should be '1.0' or '0.3'"),
        ({"protocolVersion": True}, "Input should be '1.0' or '0.3'"),
        ({"body": {"message": "x"}}, "`body.message` is not an object"),
        ({"body": {"message": {"parts": []}}}, "`body.message.parts` is what each message of the user has"),
        ({"body": {"configuration": {"historyLength": 1}}}, "historyLength` would cut off the calls"),
        ({"body": {"metadata": {"a": "{{nobody}}"}}}, "the placeholder {{nobody}}, which stands for nothing"),
        ({"endpoint": "ftp://h"}, "http"),
        ({"cardURL": "x"}, "card"),
    ],
    ids=["returned", "version", "bool", "message", "parts", "history", "placeholder", "endpoint", "unknown"],
)
def test_invalid_settings(settings: dict[str, Any], problem: str) -> None:
    """Each is refused when the configuration is read, with the valid values."""
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"agent": {"type": "a2a", "endpoint": "http://h", **settings}})
    assert problem in str(caught.value)


def test_settings_that_can_be() -> None:
    """Numbers are versions, and a state is for agents whose settings send it."""
    plain = A2aAgent(type="a2a", endpoint="http://h", protocol_version=1.0)  # type: ignore[arg-type]
    assert plain.protocol_version == "1.0"
    assert plain.state_refusal is not None
    assert "{{state.customer}}" in plain.state_refusal
    sends = A2aAgent(type="a2a", endpoint="http://h", body={"metadata": {"c": "{{state.customer}}"}})
    assert sends.state_refusal is None
    with pytest.raises(ValueError, match="the body of 'agent'"):
        A2aAgent(type="a2a", endpoint="http://h", body={"metadata": {"c": object()}}).check_can_be_sent()


def test_what_cannot_be_sent() -> None:
    """A placeholder without a value is the scenario's error, not the agent's."""
    talk = Talk(DONE, body={"metadata": {"customer": "{{state.customer}}"}})
    assert isinstance(talk.error, CannotSend)
    assert talk.sent == []


def found(path: str, cards: dict[str, Any]) -> DetectedProtocol | None:
    async def go() -> DetectedProtocol | None:
        async with serving(A2aServer(lambda _: DONE, cards)) as server, open_client(AddressGuard()) as client:
            return await probe_of("a2a").find(EndpointProbe(server.url + path, client))

    return anyio.run(go)


def test_the_probe() -> None:
    """An endpoint with a card is an A2A agent, identified by its address; others are not."""
    seen = found("/rpc", {CARD: card("/rpc")})
    assert seen is not None
    assert seen.settings["type"] == "a2a"
    assert seen.settings["endpoint"].endswith("/rpc")
    assert seen.because == "its agent card offers A2A 1.0"
    at_the_root = found("/elsewhere", {CARD: card("/")})
    assert at_the_root is not None
    assert at_the_root.settings["endpoint"].endswith("/")
    assert found("/", {CARD: {"name": "x"}}) is None
    assert found("/", {}) is None


APP = """
import json

TASK = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
PART = {"data": {"id": "1", "name": "reserve_item", "args": {}}, "metadata": {"adk_type": "function_call"}}


async def app(scope, receive, send):
    assert scope["type"] == "http", "no lifespan here"
    body = json.loads((await receive()).get("body") or b"{}")
    if body.get("method") == "SendMessage":
        said = [{"role": "ROLE_AGENT", "messageId": "m", "parts": [PART]}]
        task = {**TASK, "history": said, "artifacts": [{"artifactId": "a", "parts": [{"text": "Reserved."}]}]}
        status, answer = 200, {"jsonrpc": "2.0", "id": 1, "result": {"task": task}}
    else:
        status, answer = 404, {}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
"""


def test_the_command_line(tmp_path: Path) -> None:
    """An application in this process: a banned call that it reports fails the run."""
    project = Project(tmp_path)
    project.write("shop.py", APP)
    project.scenario('scenario("bans", turns=["Hi"], trajectory={"forbidden": ["reserve_item"]})\n')
    agent = {"type": "a2a", "app": "shop:app", "toolVisibility": "reported"}
    project.write("agentest.config.yaml", json.dumps({"agent": agent, "reporters": ["console", "json"]}))
    ran = project.run()
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "reserve_item called although it is forbidden" in ran.stdout
    (turn,) = project.scenario_result("bans")["conversations"][0]["turns"]
    assert turn["agentMessage"] == "Reserved."
    assert [(call["name"], call["seenBy"], call["mocked"]) for call in turn["toolCalls"]] == [
        ("reserve_item", "agent", False)
    ]
