"""The spans of one conversation: in which turn each began, and whether those of a turn are complete."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from agentest.mock_servers.port import AskedTurn, Identity
from agentest.support.text import count
from agentest.support.trace_context import TraceContext, turn_in_trace
from agentest.tracing.reading import SpanSeen

PATIENCE_S = 2.0
"""How long spans of a turn are waited for after its reply."""
CHECK = (
    "are the agent's framework and its web server instrumented (opentelemetry-instrument CMD, or what the "
    "framework offers), is an exporter of OTLP over HTTP installed, does its environment have the variables "
    "of docs/traces.md, and are spans sampled?"
)


@dataclass(slots=True)
class Held:
    """A conversation and its spans."""

    who: Identity
    spans: dict[str, SpanSeen] = field(default_factory=dict)
    """By id."""
    claimed: set[str] = field(default_factory=set)
    """Traces that are not named like it, and belong to it all the same."""
    turns: dict[int, AskedTurn] = field(default_factory=dict)
    came: anyio.Event = field(default_factory=anyio.Event)
    lost: str | None = None
    """Why spans of it may be missing for good."""

    def note(self, lost: str | None = None) -> None:
        """Wake up who waits for spans."""
        self.lost = self.lost or lost
        self.came.set()
        self.came = anyio.Event()

    def turn_of(self, span: SpanSeen) -> int:
        """The turn in which a span began."""
        if span.trace_id in self.claimed:
            return max((t for t, asked in self.turns.items() if asked.began_ns <= span.start_ns), default=0)
        turn = turn_in_trace(span.trace_id)
        # A connection that stays open names the turn in which it was opened.
        while (after := self.turns.get(turn + 1)) and not after.requests and after.began_ns <= span.start_ns:
            turn += 1
        return turn

    def of_turn(self, turn_index: int) -> list[SpanSeen]:
        return [span for span in self.spans.values() if self.turn_of(span) == turn_index]

    def is_complete(self, asked: AskedTurn) -> bool:
        """Whether everything that began with our requests of a turn has ended.

        A span ends after those within it, and is sent after them.
        """
        opened = self._opened(asked)
        if self._ended(opened) >= opened.requests > 0:
            return True
        named = any(span.trace_id not in self.claimed for span in self.spans.values())
        return not named and self._claimed_in(asked) >= asked.asks > 0

    def _opened(self, asked: AskedTurn) -> AskedTurn:
        """The turn whose requests were used: an earlier one, where a connection stays open."""
        while not asked.requests and asked.turn_index - 1 in self.turns:
            asked = self.turns[asked.turn_index - 1]
        return asked

    def _ended(self, asked: AskedTurn) -> int:
        turn = TraceContext(self.who.key, asked.turn_index)
        return sum(
            span.trace_id == turn.trace_id and span.parent_id == turn.span_id for span in self.spans.values()
        )

    def _claimed_in(self, asked: AskedTurn) -> int:
        """How many traces with an agent's work, that are not named like ours, have ended in a turn."""
        mine = [span for span in self.of_turn(asked.turn_index) if span.trace_id in self.claimed]
        ended = {span.trace_id for span in mine if span.parent_id is None}
        return len(ended & {span.trace_id for span in mine if span.agentic})

    def missing(self, asked: AskedTurn) -> str | None:
        """Why there may be more spans of a turn; None: it is complete."""
        if self.lost:
            return self.lost
        if self.is_complete(asked):
            return None
        opened = self._opened(asked)
        if not self.spans:
            return "traces incomplete: no span of this conversation has come"
        when = f" {PATIENCE_S:g} s after the reply" if asked.wait else ", of a connection that stays open"
        return (
            f"traces incomplete: the spans of {self._ended(opened)} of "
            f"{count(opened.requests or opened.asks, 'request')} in turn {opened.turn_index} had ended{when}"
        )
