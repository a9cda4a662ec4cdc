"""W3C trace context: headers that connect an agent's own requests with a turn of a conversation.

Each conversation has a globally unique key of 24 hex digits. The trace id of a turn consists of the key and
the number of the turn. Programs that pass on `traceparent` or `baggage`, as instrumented programs do, thus
name the conversation and the turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from secrets import token_hex
from urllib.parse import unquote

from agentest.support.lazy_dataclasses import dataclass

KEY_CHARS = 24
_CONVERSATION = "agentest.conversation"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_MAX_TURNS = 16**8


def new_key() -> str:
    """Return a new conversation key of lower-case hex digits."""
    return token_hex(KEY_CHARS // 2)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A turn of a conversation, as named in requests."""

    conversation: str
    turn_index: int

    @property
    def trace_id(self) -> str:
        return f"{self.conversation}{self.turn_index % _MAX_TURNS:08x}"

    @property
    def span_id(self) -> str:
        """The id of our request's span, the parent of the agent's first span."""
        return self.conversation[-16:]

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    @property
    def baggage(self) -> str:
        return f"{_CONVERSATION}={self.conversation}"

    def headers(self, agent_headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request, by lower-case name.

        The user's headers have precedence: a `traceparent` stays as it is, and a `baggage` gets ours
        appended.
        """
        agent_baggage = agent_headers.get("baggage")
        baggage = f"{agent_baggage},{self.baggage}" if agent_baggage else self.baggage
        return {"traceparent": agent_headers.get("traceparent", self.traceparent), "baggage": baggage}


@dataclass(slots=True)
class SentRequests:
    """The requests that were sent for a turn."""

    requests: int = 0
    """Number of answered requests that named the turn. Each starts one span in an instrumented agent."""
    stays_open: bool = False
    """True if one opened a connection that later turns use as well. Its span ends with the conversation."""


_CURRENT: ContextVar[tuple[TraceContext, SentRequests] | None] = ContextVar("agentest_turn", default=None)


@contextmanager
def in_turn(turn: TraceContext | None) -> Iterator[SentRequests]:
    """Name this turn in all requests sent inside of the block, and count them. None names no turn."""
    sent = SentRequests()
    token = _CURRENT.set((turn, sent) if turn else None)
    try:
        yield sent
    finally:
        _CURRENT.reset(token)


def turn_of_requests() -> TraceContext | None:
    """Return the turn that requests have to name; None if there is none."""
    current = _CURRENT.get()
    return current[0] if current else None


def note_request(*, stays_open: bool = False) -> None:
    """Count an answered request that named the turn, or a program that was started with its name.

    `stays_open`: later turns use it as well.
    """
    if current := _CURRENT.get():
        current[1].requests += 1
        current[1].stays_open |= stays_open


def named_in_trace(traceparent: str | None) -> str | None:
    """Return the part of a trace id that may be a conversation key. Only its issuer can tell."""
    match = _TRACEPARENT.fullmatch(traceparent.strip().lower()) if traceparent else None
    return match[1][:KEY_CHARS] if match else None


def turn_in_trace(trace_id: str) -> int:
    """Return the turn number in a trace id of ours."""
    return int(trace_id[KEY_CHARS:], 16)


def named_in_baggage(baggage: str | None) -> str | None:
    """Return the conversation that a `baggage` header names; None if it names none."""
    for member in (baggage or "").split(","):
        name, _, value = member.partition(";")[0].partition("=")
        if name.strip() == _CONVERSATION and value.strip():
            return unquote(value.strip())
    return None
