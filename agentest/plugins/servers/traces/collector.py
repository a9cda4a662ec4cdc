"""Collect received spans and assign each to its conversation.

A trace belongs to the conversation whose key its id starts with, else to the one whose key or session one of
its spans names, else to the only running conversation if they run one at a time. A trace that matches none is
counted, and never assigned to another conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace

import anyio

from agentest.plugins.servers.port import Identity, SpanRequest, TurnTraces
from agentest.plugins.servers.traces.conventions import Span, is_agentic, model_of, session_of, tool_of
from agentest.plugins.servers.traces.span_calls import ParsedSpan, SpanWriter, calls_of, usage_of
from agentest.support.deadlines import TimeLimit
from agentest.support.function_threads import in_thread
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, turn_name
from agentest.support.trace_context import KEY_CHARS, TraceContext, turn_in_trace

PATIENCE_S = 2.0  # seconds to wait for a turn's spans after its reply
CHECK = (
    "are the agent's framework and its web server instrumented (opentelemetry-instrument CMD, or what the "
    "framework offers), is an exporter of OTLP over HTTP installed, does its environment have the variables "
    "that `agentest docs traces` lists, and are spans sampled?"
)


@dataclass(slots=True)
class ConversationSpans:
    """A conversation and its spans."""

    identity: Identity
    spans: dict[str, ParsedSpan] = field(default_factory=dict)  # spans by id
    claimed: set[str] = field(default_factory=set)
    """Traces that belong to the conversation although their ids do not start with its key."""
    turns: dict[int, SpanRequest] = field(default_factory=dict)
    has_new: anyio.Event = field(default_factory=anyio.Event)
    lost: str | None = None  # why spans may be missing permanently; None if none are

    def note(self, lost: str | None = None) -> None:
        """Wake up all code that waits for spans."""
        self.lost = self.lost or lost
        self.has_new.set()
        self.has_new = anyio.Event()

    def turn_of(self, span: ParsedSpan) -> int:
        """Return the turn in which a span started."""
        if span.trace_id in self.claimed:
            return max(
                (t for t, request in self.turns.items() if request.began_ns <= span.start_ns), default=0
            )
        turn = turn_in_trace(span.trace_id)
        # A connection that stays open has the id of the turn in which it was opened.
        while (after := self.turns.get(turn + 1)) and not after.requests and after.began_ns <= span.start_ns:
            turn += 1
        return turn

    def of_turn(self, turn_index: int) -> list[ParsedSpan]:
        return [span for span in self.spans.values() if self.turn_of(span) == turn_index]

    def is_complete(self, request: SpanRequest) -> bool:
        """Return True if everything that started with the requests of a turn has ended.

        A span ends after the spans within it, and is sent after them.
        """
        opened = self._opened(request)
        if self._ended(opened) >= opened.requests > 0:
            return True
        named = any(span.trace_id not in self.claimed for span in self.spans.values())
        return not named and self._claimed_in(request) >= request.asks > 0

    def _opened(self, request: SpanRequest) -> SpanRequest:
        while not request.requests and request.turn_index - 1 in self.turns:
            request = self.turns[request.turn_index - 1]
        return request

    def _ended(self, request: SpanRequest) -> int:
        turn = TraceContext(self.identity.key, request.turn_index)
        return sum(
            span.trace_id == turn.trace_id and span.parent_id == turn.span_id for span in self.spans.values()
        )

    def _claimed_in(self, request: SpanRequest) -> int:
        mine = [span for span in self.of_turn(request.turn_index) if span.trace_id in self.claimed]
        ended = {span.trace_id for span in mine if span.parent_id is None}
        return len(ended & {span.trace_id for span in mine if span.agentic})

    def missing(self, request: SpanRequest) -> str | None:
        """Return why spans of a turn may be missing; None if the turn is complete."""
        if self.lost:
            return self.lost
        if self.is_complete(request):
            return None
        opened = self._opened(request)
        if not self.spans:
            return "traces incomplete: no span of this conversation was received"
        when = f" {PATIENCE_S:g} s after the reply" if request.wait else ", of a connection that stays open"
        requests = count(opened.requests or opened.asks, "request")
        return (
            f"traces incomplete: the spans of {self._ended(opened)} of {requests} "
            f"in {turn_name(opened.turn_index)} had ended{when}"
        )


_MAX_FRUITLESS_TURNS = 3  # turns without any span after which later turns are not waited for
_MAX_SPANS = 20_000
_MAX_STRAYS = 20_000
_MAX_STRAY_CHARS = 100_000_000  # maximum size of their attributes in characters, in total
_MAX_PROBLEMS = 10
_MANY_SPANS = 500
_ATTRIBUTE = "agentest.conversation"


@dataclass(slots=True)
class Collector:
    """Stores the spans of agents that share a receiver."""

    agent: str  # the first of them
    one_at_a_time: Callable[[], bool]  # returns True if conversations run one at a time
    writer: SpanWriter
    on_note: Callable[[str], None]
    patience_s: float = PATIENCE_S
    _running: dict[str, ConversationSpans] = field(default_factory=dict)  # running conversations by key
    _by_session: dict[str, ConversationSpans] = field(default_factory=dict)
    _ended: dict[str, Identity] = field(default_factory=dict)
    _strays: OrderedDict[str, list[Span]] = field(default_factory=OrderedDict)
    """Trace id → spans whose conversation is not known yet."""
    _stray_spans: int = 0
    _stray_chars: int = 0
    _has_spans: bool = False
    _fruitless: int = 0
    _incomplete: int = 0
    _late: int = 0
    _foreign: int = 0
    _refused: dict[str, int] = field(default_factory=dict)

    def begin(self, identity: Identity) -> None:
        """Register a conversation that begins."""
        conversation = self._running[identity.key] = ConversationSpans(identity)
        if identity.session_id:
            self._by_session[identity.session_id] = conversation

    def end(self, key: str) -> None:
        """Remove a conversation that has ended."""
        conversation = self._running.pop(key)
        self._by_session.pop(conversation.identity.session_id or "", None)
        self._ended[key] = conversation.identity
        self.writer.write(key, conversation.turn_of, conversation.spans)

    def add(self, spans: Iterable[Span]) -> None:
        """Store received spans."""
        touched: dict[str, ConversationSpans] = {}
        for span in spans:
            conversation = self._conversation_of(span)
            if conversation:
                self._store(conversation, span)
                touched[conversation.identity.key] = conversation
        for conversation in touched.values():
            conversation.note()

    def refuse(self, problem: str) -> None:
        """Record a request that could not be read. Any running conversation may lack its spans."""
        if problem not in self._refused and len(self._refused) >= _MAX_PROBLEMS:
            problem = "other problems"
        self._refused[problem] = self._refused.get(problem, 0) + 1
        for conversation in self._running.values():
            conversation.note(lost=f"traces incomplete: spans were refused, {problem}")

    async def spans_of(self, request: SpanRequest) -> TurnTraces:
        """Return what the spans of a turn show (`SpanSource`)."""
        conversation = self._running.get(request.key)
        if conversation is None:
            return TurnTraces(missing="traces incomplete: the conversation has ended")
        conversation.turns[request.turn_index] = request
        if request.wait:
            await self._wait(conversation, request)
        mine = conversation.of_turn(request.turn_index)
        self.writer.write(request.key, conversation.turn_of, conversation.spans)

        def read() -> TurnTraces:
            usage, model_calls = usage_of(mine)
            calls = calls_of(mine, request.turn_index)
            return TurnTraces(calls=calls, usage=usage, model_calls=model_calls)

        # With many spans, other conversations continue meanwhile.
        traces: TurnTraces = await in_thread(read) if len(mine) > _MANY_SPANS else read()
        missing = conversation.missing(request)
        if request.wait and missing:
            self._incomplete += 1
        return replace(traces, missing=missing)

    async def _wait(self, conversation: ConversationSpans, request: SpanRequest) -> None:
        if not self._has_spans and self._fruitless >= _MAX_FRUITLESS_TURNS:
            return
        try:
            with TimeLimit(self.patience_s):
                while not conversation.lost and not conversation.is_complete(request):
                    await conversation.has_new.wait()
        except TimeoutError:
            self._fruitless += 1

    def _conversation_of(self, span: Span) -> ConversationSpans | None:
        key = span.trace_id[:KEY_CHARS]
        conversation = self._running.get(key)
        if conversation:
            return conversation
        if key in self._ended:
            self._late += tool_of(span) is not None
            return None
        return self._claiming_conversation(span)

    def _claiming_conversation(self, span: Span) -> ConversationSpans | None:
        conversation = next((each for each in self._running.values() if span.trace_id in each.claimed), None)
        if conversation:
            return conversation
        key = span.attributes.get(_ATTRIBUTE)
        conversation = self._running.get(key) if isinstance(key, str) else None
        conversation = conversation or self._by_session.get(session_of(span) or "")
        if conversation is None and len(self._running) == 1 and self.one_at_a_time() and is_agentic(span):
            conversation = next(iter(self._running.values()))
        if conversation is None:
            self._strays.setdefault(span.trace_id, []).append(span)
            self._stray_spans += 1
            self._stray_chars += _size_in_chars(span)
            while self._stray_spans > _MAX_STRAYS or self._stray_chars > _MAX_STRAY_CHARS:
                self._foreign += self._take_of_agents(next(iter(self._strays)))
            return None
        conversation.claimed.add(span.trace_id)
        for stray in self._take_strays(span.trace_id):
            self._store(conversation, stray)
        return conversation

    def _take_strays(self, trace_id: str) -> Sequence[Span]:
        spans = self._strays.pop(trace_id, ())
        self._stray_spans -= len(spans)
        self._stray_chars -= sum(map(_size_in_chars, spans))
        return spans

    def _take_of_agents(self, trace_id: str) -> int:
        spans = self._take_strays(trace_id)
        return sum(tool_of(span) is not None or model_of(span) is not None for span in spans)

    def _store(self, conversation: ConversationSpans, span: Span) -> None:
        self._has_spans = True
        if span.span_id in conversation.spans:
            return  # a batch that was sent again
        if len(conversation.spans) >= _MAX_SPANS:
            conversation.note(
                lost=f"traces incomplete: it sent more than {_MAX_SPANS:,} spans in one conversation"
            )
            return
        conversation.spans[span.span_id] = ParsedSpan(
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_id=span.parent_id,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            scope=span.scope,
            agentic=is_agentic(span),
            tool=tool_of(span),
            model=model_of(span),
        )
        self.writer.add(conversation.identity, span)

    def close(self) -> None:
        """Report findings at the end of the run."""
        for note in self._notes(has_strays=bool(self._strays)):
            self.on_note(note)

    def _notes(self, *, has_strays: bool) -> Iterable[str]:
        agent = f"agent {self.agent!r}"
        if not self._has_spans and self._ended:
            problem = f"no span was received; {CHECK}"
            if has_strays:
                problem = f"spans were received, but none belongs to a conversation; {_PROPAGATE}"
            yield f"traces of {agent}: {problem}"
        elif self._incomplete:
            yield (
                f"traces of {agent} were incomplete in {count(self._incomplete, 'turn')}: spans came too "
                "late, or not at all; set OTEL_BSP_SCHEDULE_DELAY=200 so that they are sent earlier"
            )
        strays = self._foreign + sum(map(self._take_of_agents, list(self._strays)))
        if self._has_spans and strays:
            yield (
                f"traces of {agent}: {count(strays, 'span')} of tools or models belong to no conversation "
                f"and were not counted; {_PROPAGATE}"
            )
        if self._late:
            yield (
                f"traces of {agent}: {count(self._late, 'span')} of tools came after their conversation had "
                "ended, and were not judged (OTEL_BSP_SCHEDULE_DELAY is the delay before spans are sent)"
            )
        for problem, number in self._refused.items():
            yield f"traces of {agent}: {count(number, 'request')} refused: {problem}"


_PROPAGATE = (
    "let its web server pass on the `traceparent` of requests, as instrumented servers do, or name the "
    "session in its spans (gen_ai.conversation.id or session.id, with the value of {{session_id}})"
)


def _size_in_chars(span: Span) -> int:
    mappings = (span.attributes, *(event.attributes for event in span.events))
    return sum(len(value) for each in mappings for value in each.values() if isinstance(value, str | list))
