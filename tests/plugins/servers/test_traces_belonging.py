"""Whose spans are these: given to their conversation and turn, complete or not, and received over HTTP."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anyio

from agentest.agents.listener import listen
from agentest.config.agents.companion_servers import Traces
from agentest.plugins.servers.port import Identity, SpanRequest, TurnTraces
from agentest.plugins.servers.traces.collector import Collector
from agentest.plugins.servers.traces.server import spans_in_json, trace_application
from agentest.plugins.servers.traces.span_calls import MOST_BYTES, MOST_CHARS, SpanWriter
from agentest.support.trace_context import TraceContext, new_key

LONG_S = 60.0
Attributes = dict[str, Any]


def an_identity(session: str | None = None) -> Identity:
    key = new_key()
    return Identity(key=key, session_id=session, conversation_id=f"c-{key[:4]}", scenario="s", agent="shop")


def sent(
    number: int, trace_id: str, parent: str | None, attributes: Attributes | None = None, **more: Any
) -> Attributes:
    """A span as JSON has it; the number is its id and its beginning."""
    pairs = [
        {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}
        for key, value in (attributes or {}).items()
    ]
    span = {"traceId": trace_id, "spanId": f"{number:016x}", "name": f"span {number}", "attributes": pairs}
    parents = {"parentSpanId": parent} if parent else {}
    return {**span, **parents, "startTimeUnixNano": number, "endTimeUnixNano": number + 1, **more}


def request(*spans: Attributes) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}).encode()


def a_tool(name: str = "stock", **args: Any) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.arguments": args,
    }


@dataclass
class Lab:
    """A collector, and its notes."""

    patience_s: float = 0.0
    alone: bool = False
    notes: list[str] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.collector = Collector(
            "shop",
            one_at_a_time=lambda: self.alone,
            writer=SpanWriter(lambda line: self.lines.append(json.loads(line)), self.redacted),
            on_note=self.notes.append,
            patience_s=self.patience_s,
        )

    @staticmethod
    def redacted(text: str) -> str:
        return text.replace("s3cret", "***")

    def begin(self, session: str | None = None) -> Identity:
        who = an_identity(session)
        self.collector.begin(who)
        return who

    def add(self, *spans: Attributes) -> None:
        self.collector.add(spans_in_json(request(*spans)))

    def turn(self, who: Identity, index: int, number: int, *tools: Attributes) -> list[Attributes]:
        """The spans of a turn's request: what is in it, and the server's span, which ends last."""
        context = TraceContext(who.key, index)
        root = sent(number, context.trace_id, context.span_id)
        inner = [
            sent(number + at, context.trace_id, root["spanId"], tool)
            for at, tool in enumerate(tools, start=1)
        ]
        return [*inner, root]

    def asked(self, who: Identity, index: int = 0, began: int = 0, **more: Any) -> SpanRequest:
        known = {"asks": 1, "requests": 1, **more}
        return SpanRequest(key=who.key, turn_index=index, began_ns=began, **known)

    def told(self, who: Identity, index: int = 0, began: int = 0, **more: Any) -> TurnTraces:
        asked = self.asked(who, index, began, wait=False, **more)
        return run(lambda: self.collector.spans_of(asked))


def run(function: Callable[[], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        with anyio.fail_after(LONG_S):
            return await function()

    return anyio.run(go)


def names(told: TurnTraces) -> list[tuple[str, Any]]:
    return [(each.call.name, each.call.args) for each in told.calls]


@contextmanager
def closed(lab: Lab) -> Iterator[list[str]]:
    yield lab.notes
    lab.collector.close()


def test_spans_go_to_their_conversation_and_turn() -> None:
    """Concurrent conversations each get their own calls, in order, however spans arrive."""
    lab = Lab()
    first, second = lab.begin(), lab.begin()
    mine = lab.turn(first, 0, 1, a_tool(n=1), a_tool(n=2))
    lab.add(*reversed(mine), *lab.turn(second, 0, 20, a_tool(n=3)), *lab.turn(first, 1, 40, a_tool(n=4)))
    lab.add(*mine)  # an exporter that got no answer sends a batch again
    assert names(lab.told(first)) == [("stock", {"n": 1}), ("stock", {"n": 2})]
    assert names(lab.told(second)) == [("stock", {"n": 3})]
    assert names(told := lab.told(first, 1)) == [("stock", {"n": 4})]
    assert told.missing is None


def test_a_turn_is_complete_when_each_request_has_ended() -> None:
    """Spans of tools are not enough: the request's own span ends last, and there is one for each request."""
    lab = Lab()
    who = lab.begin()
    tool, root = lab.turn(who, 0, 1, a_tool(n=1))
    lab.add(tool)
    told = lab.told(who)
    assert names(told) == [("stock", {"n": 1})]
    assert "the spans of 0 of 1 request in turn 1 had ended" in (told.missing or "")
    lab.add(root)
    assert lab.told(who).missing is None
    assert "the spans of 1 of 2 requests" in (lab.told(who, requests=2).missing or "")


def test_it_waits_until_the_spans_are_there() -> None:
    """A turn without spans waits, and gets them as soon as they arrive."""
    lab = Lab(patience_s=LONG_S)
    who, got = lab.begin(), []

    async def go() -> None:
        async def ask() -> None:
            got.append(await lab.collector.spans_of(lab.asked(who)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.lowlevel.checkpoint()
            for span in lab.turn(who, 0, 1, a_tool(n=1)):
                assert not got
                lab.add(span)

    run(go)
    assert names(got[0]) == [("stock", {"n": 1})]
    assert got[0].missing is None


def test_there_is_no_wait_for_an_agent_without_spans() -> None:
    """After three turns without spans, later ones are incomplete at once."""
    lab = Lab()
    who, told = lab.begin(), []

    async def go() -> None:
        for turn in range(4):
            lab.collector.patience_s = 0.0 if turn < 3 else 2 * LONG_S  # that would be felt
            told.append(await lab.collector.spans_of(lab.asked(who, turn)))

    run(go)
    assert {each.missing for each in told} == {"traces incomplete: no span of this conversation was received"}
    lab.collector.end(who.key)
    with closed(lab) as notes:
        pass
    assert "no span was received; are the agent's framework and its web server instrumented" in notes[0]


def test_a_session_names_traces_that_nobody_passed_on() -> None:
    """google-adk names the session in some of its spans: the trace is its, with what came before that."""
    lab = Lab()
    who, other = lab.begin("session-1"), lab.begin("session-2")
    inside = {"gen_ai.conversation.id": "session-1"}
    for number, trace in ((10, "a" * 32), (30, "c" * 32)):
        lab.add(sent(number + 2, trace, f"{number + 1:016x}", a_tool(n=number)))
        lab.add(sent(number + 1, trace, f"{number:016x}", inside), sent(number, trace, None))
    assert names(lab.told(who, 0, began=5)) == [("stock", {"n": 10}), ("stock", {"n": 30})]
    second = lab.told(who, 1, began=25)  # now that it is known when that turn began
    assert names(second) == [("stock", {"n": 30})]
    assert second.missing is None
    assert lab.told(other).missing
    assert names(lab.told(who, 2, began=50)) == []
    assert lab.told(who, 2, began=50).missing  # its spans have not come yet


def test_unnamed_traces_go_only_to_a_single_conversation() -> None:
    """If conversations run one at a time, an agent's trace belongs to the running one."""
    lab = Lab(alone=True)
    who = lab.begin()
    lab.add(sent(1, "b" * 32, None, {"http.route": "/health"}))
    lab.add(sent(3, "a" * 32, f"{2:016x}", a_tool(n=1)), sent(2, "a" * 32, None))
    told = lab.told(who)
    assert names(told) == [("stock", {"n": 1})]
    assert told.missing is None
    crowd = Lab()
    one = crowd.begin()
    crowd.add(sent(3, "a" * 32, f"{2:016x}", a_tool(n=1)), sent(2, "a" * 32, None))
    assert names(crowd.told(one)) == []
    crowd.add(*crowd.turn(one, 0, 10))
    crowd.collector.end(one.key)
    with closed(crowd) as notes:
        pass
    assert [note for note in notes if "1 span of tools or models belong to no conversation" in note]


def test_a_processor_may_copy_the_baggage_into_spans() -> None:
    """An attribute with the conversation's key names it."""
    lab = Lab()
    who, _ = lab.begin(), lab.begin()
    lab.add(sent(3, "a" * 32, None, {**a_tool(n=1), "agentest.conversation": who.key}))
    assert names(lab.told(who)) == [("stock", {"n": 1})]


def test_a_connection_that_stays_open_has_many_turns() -> None:
    """Spans of a WebSocket have the trace of its first turn; time separates later ones."""
    lab = Lab()
    who = lab.begin()
    *first, root = lab.turn(who, 0, 10, a_tool(n=1))
    context = TraceContext(who.key, 0)
    lab.add(*first, sent(31, context.trace_id, root["spanId"], a_tool(n=2)))
    assert "of 1 request in turn 1" in (lab.told(who, 0, began=5).missing or "")
    told = lab.told(who, 1, began=30, requests=0)
    assert names(told) == [("stock", {"n": 2})]
    assert "of 1 request in turn 1" in (told.missing or "")
    assert names(lab.told(who, 0, began=5)) == [("stock", {"n": 1})]
    lab.add(root)  # it is closed at last
    assert lab.told(who, 1, began=30, requests=0).missing is None


def test_late_and_lost_spans_are_noted() -> None:
    """Late spans were not judged, and a refused batch may affect any conversation."""
    lab = Lab()
    who, other = lab.begin(), lab.begin()
    lab.add(*lab.turn(who, 0, 1))
    lab.collector.end(who.key)
    lab.add(*lab.turn(who, 0, 5, a_tool(n=1)))
    lab.add(*lab.turn(other, 0, 20))
    lab.collector.refuse("the body is too long")
    assert "spans were refused, the body is too long" in (lab.told(other).missing or "")
    assert lab.told(who).missing
    with closed(lab) as notes:
        pass
    assert "1 span of tools came after their conversation had ended" in notes[0]
    assert "1 request refused: the body is too long" in notes[1]


def test_kept_spans_are_redacted_and_bounded() -> None:
    """Each span's line has its conversation and call; long values are cut, secrets hidden."""
    lab = Lab()
    who = lab.begin()
    spans = lab.turn(who, 0, 1, a_tool(key="s3cret", text="x" * MOST_CHARS))
    lab.add(*spans)
    lab.told(who)
    place = {"conversationId": who.conversation_id, "scenario": "s", "agent": "shop", "turnIndex": 0}
    for line in lab.lines:
        assert line.items() >= place.items()
    tool, root = lab.lines
    assert (tool["about"], tool["parentSpanId"], tool["durationMs"]) == ("tool", root["spanId"], 1e-6)
    args = tool["attributes"]["gen_ai.tool.call.arguments"]
    assert args.startswith('{"key": "***"')
    assert args.endswith("characters)")
    many = [a_tool(text="x" * 9_000) for _ in range(MOST_BYTES // 9_000 + 5)]
    lab.add(*lab.turn(who, 1, 100, *many))
    assert len(names(lab.told(who, 1))) == len(many)  # all count; not all are kept
    assert lab.lines[-1] == {**place, "turnIndex": 1, "cut": True}
    assert sum(len(json.dumps(line)) for line in lab.lines) < MOST_BYTES * 1.01


async def posted(url: str, body: bytes, **headers: str) -> tuple[int, str, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=named) as response:
        return response.status, response.content_type, await response.read()


def test_the_receiver_answers_as_exporters_understand() -> None:
    """Protobuf or JSON, packed or not, is taken; what is wrong is refused with a status that ends retries."""
    lab = Lab()
    who = lab.begin()
    spans = request(*lab.turn(who, 0, 1, a_tool(n=1)))
    json_, proto = {"content_type": "application/json"}, {"content_type": "application/x-protobuf"}

    async def go() -> None:
        async with AsyncExitStack() as stack:
            origin = await listen(
                trace_application(lab.collector, 50_000), Traces(), "traces", stack, lab.notes.append
            )
            traces = f"{origin}/v1/traces"
            packed = gzip.compress(spans)
            answers = [
                await posted(traces, packed, content_encoding="gzip", **json_),
                await posted(traces, b"", **proto),
                await posted(f"{origin}/v1/logs", b"whatever", **proto),
                await posted(f"{origin}/v1/metrics", b"{}", **json_),
            ]
            assert [(status, body) for status, _, body in answers] == [
                (200, b"{}"),
                (200, b""),
                (200, b""),
                (200, b"{}"),
            ]
            assert [kind for _, kind, _ in answers[:2]] == ["application/json", "application/x-protobuf"]
            assert names(await lab.collector.spans_of(lab.asked(who))) == [("stock", {"n": 1})]
            status, kind, body = await posted(traces, b"garbage \xff", **proto)
            assert (status, kind) == (400, "application/x-protobuf")
            assert body[:3] == b"\x08\x03\x12"
            assert b"not an ExportTraceServiceRequest in protobuf" in body
            status, _, body = await posted(traces, b"{", **json_)
            assert (status, json.loads(body)["code"]) == (400, 3)
            assert (await posted(traces, b"hi", content_type="text/plain"))[0] == 415
            assert (await posted(traces, b"no gzip", content_encoding="gzip", **json_))[0] == 400
            assert (await posted(traces, b" " * 60_000, **json_))[0] == 413
            bomb = gzip.compress(b" " * 10_000_000)
            assert (await posted(traces, bomb, content_encoding="gzip", **json_))[0] == 413

    run(go)
    assert "spans were refused" in (lab.told(who).missing or "")
