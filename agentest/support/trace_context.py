"""W3C trace context: the names under which an agent's own requests lead back to one of our conversations.

A conversation of a run has a key of 24 hex digits that no other has, in any run. The trace of each of its
turns begins with it and ends with the number of the turn, so that whoever passes `traceparent` or `baggage`
on, as instrumented programs do by themselves, names conversation and turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from secrets import token_hex
from urllib.parse import unquote

KEY_CHARS = 24
_CONVERSATION = "agentest.conversation"
"""The key of the baggage."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_MAX_TURNS = 16**8


def new_key() -> str:
    """A key for a conversation, of lower-case hex digits."""
    return token_hex(KEY_CHARS // 2)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One turn of a conversation, as requests name it."""

    conversation: str
    """The key of the conversation."""
    turn_index: int

    @property
    def trace_id(self) -> str:
        return f"{self.conversation}{self.turn_index % _MAX_TURNS:08x}"

    @property
    def span_id(self) -> str:
        """The span under which the agent's first one stands: our request."""
        return self.conversation[-16:]

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    @property
    def baggage(self) -> str:
        return f"{_CONVERSATION}={self.conversation}"

    def headers(self, own: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request, by lower-case name. What the user wrote is kept: a `traceparent` as it
        is, a `baggage` with ours behind it."""
        told = own.get("baggage")
        baggage = f"{told},{self.baggage}" if told else self.baggage
        return {"traceparent": own.get("traceparent", self.traceparent), "baggage": baggage}


@dataclass(slots=True)
class Sent:
    """What was sent for a turn."""

    requests: int = 0
    """Those that named the turn and were answered: each begins one span in an agent that is instrumented."""
    stays_open: bool = False
    """Whether one opened what is used in later turns, too: its span ends with the conversation."""


_CURRENT: ContextVar[tuple[TraceContext, Sent] | None] = ContextVar("agentest_turn", default=None)
"""The turn for which requests are sent. Every request of a turn names it, whichever client sends it."""


@contextmanager
def in_turn(turn: TraceContext | None) -> Iterator[Sent]:
    """Have requests that are sent meanwhile name a turn, and count them; None: nothing is named."""
    sent = Sent()
    token = _CURRENT.set((turn, sent) if turn else None)
    try:
        yield sent
    finally:
        _CURRENT.reset(token)


def turn_of_requests() -> TraceContext | None:
    """The turn that requests are to name; None: none."""
    current = _CURRENT.get()
    return current[0] if current else None


def note_request(*, stays_open: bool = False) -> None:
    """Count a request that named the turn, once it is answered; a program that was started with its name.

    `stays_open`: later turns use it, too.
    """
    if current := _CURRENT.get():
        current[1].requests += 1
        current[1].stays_open |= stays_open


def trace_of(traceparent: str | None) -> tuple[str, str] | None:
    """The ids of trace and parent span in a `traceparent`; None where it is none."""
    match = _TRACEPARENT.fullmatch(traceparent.strip().lower()) if traceparent else None
    return (match[1], match[2]) if match else None


def named_in_trace(traceparent: str | None) -> str | None:
    """The part of a trace that may be the key of a conversation: whoever issued it knows."""
    ids = trace_of(traceparent)
    return ids[0][:KEY_CHARS] if ids else None


def turn_in_trace(trace_id: str) -> int:
    """The number of the turn in a trace of ours."""
    return int(trace_id[KEY_CHARS:], 16)


def named_in_baggage(baggage: str | None) -> str | None:
    """The conversation that a `baggage` header names; None where it names none."""
    for member in (baggage or "").split(","):
        name, _, value = member.partition(";")[0].partition("=")
        if name.strip() == _CONVERSATION and value.strip():
            return unquote(value.strip())
    return None
