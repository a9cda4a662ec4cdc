"""Extract tool calls and model usage from the spans of a turn. Several spans may describe one of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from functools import partial, reduce
from operator import add
from typing import Any

from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, ToolCall, Usage
from agentest.plugins.servers.port import Identity, SpanCall, shortened_without_secrets
from agentest.plugins.servers.traces import conventions
from agentest.support.json_text import encoded
from agentest.support.lazy_dataclasses import dataclass

_SEPARATORS = ("__", "_", ".", "/", ":", "-")
_MAX_ENCLOSING = 300  # maximum number of enclosing spans to follow, because longer chains would take minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSpan:
    """A span with the values read from it."""

    trace_id: str
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int = 0
    scope: str = ""
    agentic: bool = False
    tool: conventions.ToolSpan | None = None
    model: conventions.ModelSpan | None = None


@dataclass(slots=True)
class _CallSpans:
    spans: list[ParsedSpan]

    @property
    def scopes(self) -> set[str]:
        return {span.scope for span in self.spans}

    @property
    def tools(self) -> list[conventions.ToolSpan]:
        return [span.tool for span in self.spans if span.tool]

    @property
    def name(self) -> str:
        return self.tools[0].name

    @property
    def call_id(self) -> str | None:
        return next((tool.call_id for tool in self.tools if tool.call_id), None)

    @property
    def arguments(self) -> Any:
        values = [tool.arguments for tool in self.tools if tool.has_arguments]
        return next((each for each in values if isinstance(each, Mapping)), values[0] if values else None)

    @property
    def bare_value(self) -> Any:
        return next((tool.arguments for tool in self.tools if tool.is_bare), None)


def calls_of(spans: Sequence[ParsedSpan], turn_index: int) -> tuple[SpanCall, ...]:
    """Return the tool calls that the spans of a turn describe, in the order in which they started."""
    calls = list(_calls(spans))
    requested = _RequestedCalls(_models(spans), calls)
    return tuple(_span_call(call, requested, turn_index) for call in calls)


def usage_of(spans: Sequence[ParsedSpan]) -> tuple[Usage, int | None]:
    """Return the tokens that models used, and the number of model calls; None if spans describe none."""
    chains = _models(spans)
    return reduce(add, (_innermost(chain).usage for chain in chains), Usage()), len(chains) or None


def _span_call(call: _CallSpans, requested: _RequestedCalls, turn_index: int) -> SpanCall:
    problem = None
    if (arguments := call.arguments) is None:
        arguments = requested.arguments_of(call)
        problem = ARGUMENTS_UNKNOWN if arguments is None else None
    elif not isinstance(arguments, Mapping):
        problem = "the arguments are not a JSON object"
    made = ToolCall(
        name=call.name,
        args=dict(arguments) if isinstance(arguments, Mapping) else arguments,
        result=next((tool.result for tool in call.tools if tool.result is not None), None),
        mocked=False,
        turn_index=turn_index,
        invalid_arguments=problem,
        error=next((tool.error for tool in call.tools if tool.error), None),
        seen_by=SeenBy.SPANS,
        call_id=call.call_id,
    )
    return SpanCall(spans=frozenset(span.span_id for span in call.spans), call=made)


def _calls(spans: Sequence[ParsedSpan]) -> Iterator[_CallSpans]:
    """Group spans that describe one call.

    Spans belong together if one encloses another with the same name, or if different instrumentations report
    the same id, or the same arguments at the same time. Two separate spans of one instrumentation are two
    calls.
    """
    calls = list(_by_id(spans))
    unique: list[_CallSpans] = []
    open_by_name: dict[str, list[_CallSpans]] = {}
    for call in calls:
        begin, _ = _time(call.spans)
        # Calls come in the order in which they started, so a call that has ended overlaps no later one.
        alike = [each for each in open_by_name.get(call.name, ()) if _time(each.spans)[1] >= begin]
        same = max(
            (each for each in alike if not each.scopes & call.scopes and _have_same_arguments(each, call)),
            key=lambda each: _overlap(each.spans, call.spans),
            default=None,
        )
        if same:
            same.spans += call.spans
        else:
            unique.append(call)
            alike.append(call)
        open_by_name[call.name] = alike
    return iter(unique)


def _time(spans: Sequence[ParsedSpan]) -> tuple[int, int]:
    return min(span.start_ns for span in spans), max(max(span.start_ns, span.end_ns) for span in spans)


def _overlap(first: Sequence[ParsedSpan], other: Sequence[ParsedSpan]) -> int:
    (begin, end), (other_begin, other_end) = _time(first), _time(other)
    return min(end, other_end) - max(begin, other_begin)


def _have_same_arguments(first: _CallSpans, other: _CallSpans) -> bool:
    values = first.arguments, other.arguments
    if None not in values:
        try:
            return bool(values[0] == values[1])
        except RecursionError:
            return False
    known = values[0] if values[1] is None else values[1]
    bare = first.bare_value if other.bare_value is None else other.bare_value
    return bare is None or not isinstance(known, Mapping) or _is_bare_value(bare, known)


def _by_id(spans: Sequence[ParsedSpan]) -> Iterator[_CallSpans]:
    by_id = {span.span_id: span for span in spans}
    tools = sorted((span for span in spans if span.tool), key=lambda span: span.start_ns)
    outer = _outermost(tools, by_id)
    calls: dict[str, _CallSpans] = {}
    by_call_id: dict[tuple[str, str], list[_CallSpans]] = {}
    for span in tools:
        if outer[span.span_id] is span and span.tool:
            call_id = span.tool.call_id
            alike = by_call_id.setdefault((call_id, span.tool.name), []) if call_id else []
            same = next((call for call in alike if span.scope not in call.scopes), None)
            if same:
                same.spans.append(span)
                calls[span.span_id] = same
            else:
                alike.append(calls.setdefault(span.span_id, _CallSpans([span])))
    for span in tools:
        first = outer[span.span_id]
        if first is not span:
            calls[first.span_id].spans.append(span)
    return iter({id(call): call for call in calls.values()}.values())


def _outermost(tools: Sequence[ParsedSpan], by_id: Mapping[str, ParsedSpan]) -> dict[str, ParsedSpan]:
    def nearest(span: ParsedSpan) -> ParsedSpan | None:
        return next((above for above in _enclosing_spans(span, by_id) if _is_same(above, span)), None)

    outermost: dict[str, ParsedSpan] = {}
    for span in tools:
        path: dict[str, None] = {}
        at, above = span, nearest(span)
        while at.span_id not in outermost and at.span_id not in path and above:
            path[at.span_id] = None
            at, above = above, nearest(above)
        outermost |= dict.fromkeys([*path, at.span_id], outermost.get(at.span_id, at))
    return outermost


def _enclosing_spans(span: ParsedSpan, by_id: Mapping[str, ParsedSpan]) -> Iterator[ParsedSpan]:
    known = {span.span_id}
    above = by_id.get(span.parent_id or "")
    while above and above.span_id not in known and len(known) <= _MAX_ENCLOSING:
        known.add(above.span_id)
        yield above
        above = by_id.get(above.parent_id or "")


def _is_same(outer: ParsedSpan, inner: ParsedSpan) -> bool:
    first, other = outer.tool, inner.tool
    if not first or not other or not same_tool(first.name, other.name):
        return False
    of_one_source = outer.scope == inner.scope
    if first.name != other.name:
        # A tool may call another tool whose name ends like its own: each has keys that the other lacks.
        args, more = first.arguments, other.arguments
        are_known = isinstance(args, Mapping) and isinstance(more, Mapping)
        if of_one_source or (are_known and not (args.keys() <= more.keys() or more.keys() <= args.keys())):
            return False
    return not (of_one_source and first.call_id and other.call_id and first.call_id != other.call_id)


def same_tool(first: str, other: str) -> bool:
    """Return True if two names refer to one tool. MCP clients often prefix the server's name."""
    shorter, longer = sorted((first, other), key=len)
    return longer == shorter or any(longer.endswith(f"{between}{shorter}") for between in _SEPARATORS)


def _models(spans: Sequence[ParsedSpan]) -> list[list[conventions.ModelSpan]]:
    by_id = {span.span_id: span for span in spans}
    models = sorted((span for span in spans if span.model), key=lambda span: span.start_ns)
    around = {span.span_id: [each for each in _enclosing_spans(span, by_id) if each.model] for span in models}
    outer = {each.span_id for above in around.values() for each in above}
    inner = [span for span in models if span.span_id not in outer]
    within = Counter(each.span_id for span in inner for each in around[span.span_id])
    chains = [[span, *(e for e in around[span.span_id] if within[e.span_id] == 1)] for span in inner]

    def is_same(first: Sequence[ParsedSpan], other: Sequence[ParsedSpan]) -> bool:
        if {span.scope for span in first} & {span.scope for span in other}:
            return False
        one, two = (_innermost([s.model for s in each if s.model]).usage for each in (first, other))
        return not one.total_tokens or not two.total_tokens or one == two

    unique: list[list[ParsedSpan]] = []
    running: list[list[ParsedSpan]] = []
    for chain in chains:
        begin, _ = _time(chain[:1])
        running = [each for each in running if _time(each[:1])[1] >= begin]
        same = max(
            (each for each in running if is_same(each, chain)),
            key=lambda each: _overlap(each[:1], chain[:1]),
            default=None,
        )
        if same:
            same += chain
        else:
            unique.append(chain)
            running.append(chain)
    return [[span.model for span in chain if span.model] for chain in unique]


def _innermost(chain: Sequence[conventions.ModelSpan]) -> conventions.ModelSpan:
    return next((tool for tool in chain if tool.usage.total_tokens), chain[0])


class _RequestedCalls:
    """Calls requested by models. Each is used for one call whose arguments no tool span contains."""

    def __init__(self, chains: Sequence[Sequence[conventions.ModelSpan]], made: Sequence[_CallSpans]) -> None:
        self._made = Counter(call.name for call in made)
        self._calls = [
            call for chain in chains for call in max((each.requested_calls for each in chain), key=len)
        ]

    def arguments_of(self, call: _CallSpans) -> Mapping[str, Any] | None:
        requested = self._by_id(call) if call.call_id else None
        requested = requested or self._by_value(call)
        if requested is None:
            return None
        self._calls.remove(requested)
        return requested.arguments

    def _by_id(self, call: _CallSpans) -> conventions.RequestedCall | None:
        named = (each for each in self._calls if each.call_id == call.call_id and each.name == call.name)
        return next(named, None)

    def _by_value(self, call: _CallSpans) -> conventions.RequestedCall | None:
        mine = [each for each in self._calls if each.name == call.name]
        if call.bare_value is None:
            return mine[0] if len(mine) == self._made[call.name] == 1 and not call.call_id else None
        return next((each for each in mine if _is_bare_value(call.bare_value, each.arguments)), None)


def _is_bare_value(value: Any, arguments: Mapping[str, Any]) -> bool:
    values = list(arguments.values())
    if len(values) != 1:
        return False
    return bool(value == values[0] or str(value) in (str(values[0]), json.dumps(values[0])))


MOST_CHARS = 10_000  # maximum length of a value in characters
MOST_BYTES = 5_000_000  # maximum size per conversation in bytes
_MAX_ITEMS = 200
_MAX_DEPTH = 6

TurnOf = Callable[[ParsedSpan], int]


@dataclass(slots=True)
class _WaitingSpans:
    identity: Identity
    lines: dict[str, dict[str, Any]] = field(default_factory=dict)
    room: int = MOST_BYTES  # bytes that may still be written; negative if the last line was cut


class SpanWriter:
    """Writes the spans of conversations. `write` receives each line; None stores nothing."""

    def __init__(self, write: Callable[[bytes], object] | None, redact: Callable[[str], str]) -> None:
        self._write = write
        self._text = partial(shortened_without_secrets, most=MOST_CHARS, redact=redact)
        self._waiting: dict[str, _WaitingSpans] = {}

    def add(self, identity: Identity, span: conventions.Span) -> None:
        """Store a span until `write`."""
        if self._write is None:
            return
        waiting = self._waiting.setdefault(identity.key, _WaitingSpans(identity))
        if waiting.room >= 0:
            tool, model = conventions.tool_of(span), conventions.model_of(span)
            waiting.lines[span.span_id] = {
                "traceId": span.trace_id,
                "spanId": span.span_id,
                "parentSpanId": span.parent_id,
                "name": self._text(span.name),
                "kind": span.kind,
                "about": "tool" if tool else "model" if model else None,
                "startedAt": _iso_time(span.start_ns),
                "durationMs": max(0, span.end_ns - span.start_ns) / 1e6,
                "status": span.status,
                "error": self._text(span.error) if span.error else None,
                "service": self._text(span.service),
                "scope": self._text(span.scope),
                "attributes": self._bounded(dict(span.attributes)),
                "events": [
                    {
                        "name": self._text(event.name),
                        "at": _iso_time(event.at_ns),
                        "attributes": self._bounded(dict(event.attributes)),
                    }
                    for event in span.events[:_MAX_ITEMS]
                ],
            }

    def write(self, key: str, turn_of: TurnOf, spans: Mapping[str, ParsedSpan]) -> None:
        """Write the stored spans of a conversation, and a line that says if more were cut."""
        waiting = self._waiting.get(key)
        if waiting is None or self._write is None:
            return
        lines, waiting.lines = waiting.lines, {}
        for span_id, form in lines.items():
            if waiting.room < 0:
                return
            at = {
                "conversationId": waiting.identity.conversation_id,
                "scenario": waiting.identity.scenario,
                "agent": waiting.identity.agent,
                "turnIndex": turn_of(spans[span_id]),
            }
            text = encoded({**at, **form}) + b"\n"
            waiting.room -= len(text)
            self._write(text if waiting.room >= 0 else encoded({**at, "cut": True}) + b"\n")

    def _bounded(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict | list) and depth == _MAX_DEPTH:
            return "…"
        if isinstance(value, dict):
            items = list(value.items())[:_MAX_ITEMS]
            return {self._text(str(key)): self._bounded(each, depth + 1) for key, each in items}
        if isinstance(value, list):
            return [self._bounded(each, depth + 1) for each in value[:_MAX_ITEMS]]
        return value


def _iso_time(since_1970_ns: int) -> str | None:
    try:
        return datetime.fromtimestamp(since_1970_ns / 1e9, UTC).isoformat(timespec="microseconds")
    except (OverflowError, ValueError, OSError):
        return None
