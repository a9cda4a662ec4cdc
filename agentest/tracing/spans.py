"""Spans as values, in no wire's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
"""By the number that stands for them on the wire."""
STATUSES = ("unset", "ok", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """Something that happened during a span, like an exception."""

    name: str
    at_ns: int = 0
    """Since 1970."""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One step of an agent, as its instrumentation tells of it."""

    trace_id: str
    """32 lower-case hex digits."""
    span_id: str
    """16 lower-case hex digits."""
    parent_id: str | None = None
    """None: it is the first of its trace."""
    name: str = ""
    kind: str = KINDS[0]
    start_ns: int = 0
    """Since 1970."""
    end_ns: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: str = STATUSES[0]
    status_message: str = ""
    events: tuple[SpanEvent, ...] = ()
    scope: str = ""
    """The instrumentation that made it."""
    service: str = ""

    @property
    def error(self) -> str | None:
        """What went wrong in it; None: nothing, as far as it tells."""
        if self.status != "error":
            return None
        raised = (event.attributes.get("exception.message") for event in self.events)
        told = (self.status_message, *raised, self.attributes.get("error.type"))
        return next((str(text) for text in told if text), "it failed")
