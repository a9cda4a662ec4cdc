"""Write spans as redacted JSON lines of limited size, for the viewer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agentest.mock_servers.port import Identity
from agentest.support.json_text import encoded
from agentest.tracing.conventions import Span, model_of, tool_of
from agentest.tracing.span_calls import ParsedSpan

MOST_CHARS = 10_000
"""Maximum length of a value in characters."""
_MAX_READ = 4 * MOST_CHARS
MOST_BYTES = 5_000_000
"""Maximum size per conversation in bytes."""
_MAX_ITEMS = 200
_MAX_DEPTH = 6

TurnOf = Callable[[ParsedSpan], int]


@dataclass(slots=True)
class _WaitingSpans:
    who: Identity
    lines: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Span id → its line, completed when its turn is known."""
    room: int = MOST_BYTES
    is_full: bool = False


class SpanWriter:
    """Writes the spans of conversations. `write` receives each line; None stores nothing."""

    def __init__(self, write: Callable[[bytes], object] | None, redact: Callable[[str], str]) -> None:
        self._write = write
        self._redact = redact
        self._waiting: dict[str, _WaitingSpans] = {}

    def hold(self, who: Identity, span: Span) -> None:
        """Store a span until `write`."""
        if self._write is None:
            return
        waiting = self._waiting.setdefault(who.key, _WaitingSpans(who))
        if not waiting.is_full:
            waiting.lines[span.span_id] = self._form(span)

    def write(self, key: str, turn_of: TurnOf, spans: Mapping[str, ParsedSpan]) -> None:
        """Write the stored spans of a conversation."""
        waiting = self._waiting.get(key)
        if waiting is None or self._write is None:
            return
        lines, waiting.lines = waiting.lines, {}
        for span_id, form in lines.items():
            self._add(waiting, {**_place(waiting.who, turn_of(spans[span_id])), **form})

    def _add(self, waiting: _WaitingSpans, line: dict[str, Any]) -> None:
        if self._write is None or waiting.is_full:
            return
        text = encoded(line) + b"\n"
        waiting.room -= len(text)
        waiting.is_full = waiting.room < 0
        if waiting.is_full:
            text = encoded({**_place(waiting.who, line["turnIndex"]), "cut": True}) + b"\n"
        self._write(text)

    def _form(self, span: Span) -> dict[str, Any]:
        tool, model = tool_of(span), model_of(span)
        return {
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

    def _text(self, text: str) -> str:
        if len(text) <= _MAX_READ:
            whole = self._redact(text)  # redact before cutting, because part of a secret is still a secret
            return whole if len(whole) <= MOST_CHARS else f"{whole[:MOST_CHARS]}… ({len(whole):,} characters)"
        # Only the beginning of a very long text is read, and a secret may be cut where it ends.
        start = self._redact(text[:_MAX_READ])
        return f"{start[: max(0, min(MOST_CHARS, len(start) - MOST_CHARS))]}… ({len(text):,} characters)"

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


def _place(who: Identity, turn_index: int) -> dict[str, Any]:
    return {
        "conversationId": who.conversation_id,
        "scenario": who.scenario,
        "agent": who.agent,
        "turnIndex": turn_index,
    }


def _iso_time(since_1970_ns: int) -> str | None:
    try:
        return datetime.fromtimestamp(since_1970_ns / 1e9, UTC).isoformat(timespec="microseconds")
    except (OverflowError, ValueError, OSError):
        return None
