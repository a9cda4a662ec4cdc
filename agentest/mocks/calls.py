"""The tool calls of one conversation, each recorded once, whoever tells of it and how often.

The agent may hand a call to us, its protocol may report the same call, and further sources may have seen it,
too. What is one call is decided here, once for all sources: by id; else, between different sources alone, by
order, name and arguments within a turn. Two equal calls that one source tells of are two calls.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from agentest.mocks.http_response import HttpResponse
from agentest.sight import SeenBy
from agentest.transcript import ToolCall

_OF_THE_PROTOCOL = frozenset({SeenBy.CALLER, SeenBy.AGENT})
"""They have their ids from one protocol: where these differ, so do the calls."""
_BEST_FIRST = (SeenBy.CALLER, SeenBy.MOCK_SERVER, SeenBy.AGENT, SeenBy.SPANS)
"""Who knows most of a call: first those who answer it."""


class RecordedCall:
    """A call in the record. It may be answered, and told of again, after it has been recorded."""

    __slots__ = ("call", "http")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.http: HttpResponse | None = None
        """The status and headers that the mock wishes, for whoever answers over HTTP."""

    def is_seen_by(self, source: SeenBy) -> bool:
        return source is self.call.seen_by or source in self.call.also_seen_by


class CallRecord:
    """All calls of one conversation in their order. Threads of handlers may add to it."""

    def __init__(self) -> None:
        self._calls: list[RecordedCall] = []
        self._by_id: defaultdict[str, list[RecordedCall]] = defaultdict(list)
        self._by_turn: defaultdict[int, list[RecordedCall]] = defaultdict(list)
        self._sources: defaultdict[int, set[SeenBy]] = defaultdict(set)
        self._lock = threading.RLock()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(recorded.call for recorded in self._calls)

    def of_turn(self, turn_index: int) -> tuple[ToolCall, ...]:
        """The calls of a turn, in the order in which they were made."""
        return tuple(recorded.call for recorded in self._calls if recorded.call.turn_index == turn_index)

    def begin(self, call: ToolCall) -> RecordedCall:
        """Record a call that is about to be answered: always a new one, whatever was told before."""
        with self._lock:
            return self._insert(call, None)

    def finish(self, recorded: RecordedCall, **answer: Any) -> None:
        """Set what the call was answered: fields of ToolCall."""
        with self._lock:
            recorded.call = replace(recorded.call, **answer)

    def observe(self, calls: Sequence[ToolCall], *, retold: bool = False) -> None:
        """Record calls that one or more sources tell of, in their order.

        Args:
            retold: whether a source may tell again what it has told before, as a snapshot of the history
                does. Then its calls with the same id, name and arguments are the same.
        """
        with self._lock:
            known = self._known(calls, retold)
            following: RecordedCall | None = None
            # From the last to the first: a call that is new stands before the one that followed it.
            for call, recorded in zip(reversed(calls), reversed(known), strict=True):
                if recorded is None:
                    recorded = self._insert(call, following)
                else:
                    self._merge(recorded, call)
                following = recorded

    def _insert(self, call: ToolCall, before: RecordedCall | None) -> RecordedCall:
        recorded = RecordedCall(call)
        at = len(self._calls) if before is None else self._calls.index(before)
        self._calls.insert(at, recorded)
        mine = self._by_turn[call.turn_index]
        mine.insert(mine.index(before) if before in mine else len(mine), recorded)
        self._sources[call.turn_index].add(call.seen_by)
        if call.call_id:
            self._by_id[call.call_id].append(recorded)
        return recorded

    def _merge(self, recorded: RecordedCall, told: ToolCall) -> None:
        if told.call_id and not recorded.call.call_id:
            self._by_id[told.call_id].append(recorded)
        recorded.call = _merged(recorded.call, told)
        self._sources[recorded.call.turn_index].add(told.seen_by)

    def _known(self, calls: Sequence[ToolCall], retold: bool) -> list[RecordedCall | None]:
        """For each call the recorded one that it is; each recorded one is at most one of them."""
        known: list[RecordedCall | None] = []
        taken: set[RecordedCall | None] = set()
        for call in calls:
            known.append(self._by_its_id(call, taken, retold))
            taken.add(known[-1])
        for i, call in enumerate(calls):
            if known[i] is None:
                known[i] = self._by_its_form(call, taken)
                taken.add(known[i])
        return known

    def _by_its_id(
        self, call: ToolCall, taken: Container[RecordedCall | None], retold: bool
    ) -> RecordedCall | None:
        for recorded in self._by_id.get(call.call_id or "", ()):
            told = recorded.call
            again = recorded.is_seen_by(call.seen_by)
            if recorded in taken or told.name != call.name or (again and not retold):
                continue
            same_turn = told.turn_index == call.turn_index
            if (same_turn and not again) or _same_arguments(told.args, call.args):
                return recorded
        return None

    def _by_its_form(self, call: ToolCall, taken: Container[RecordedCall | None]) -> RecordedCall | None:
        if self._sources[call.turn_index] <= {call.seen_by}:
            return None
        for recorded in self._by_turn[call.turn_index]:
            told = recorded.call
            if recorded in taken or recorded.is_seen_by(call.seen_by) or told.name != call.name:
                continue
            if not _told_apart(told, call) and _same_arguments(told.args, call.args):
                return recorded
        return None


def _told_apart(one: ToolCall, other: ToolCall) -> bool:
    """Whether ids of one protocol say that these are two calls."""
    of_one_protocol = {one.seen_by, other.seen_by} <= _OF_THE_PROTOCOL
    return of_one_protocol and bool(one.call_id and other.call_id) and one.call_id != other.call_id


def _merged(recorded: ToolCall, told: ToolCall) -> ToolCall:
    """One call of what two sources know of it: who answered it knows best, the other fills in."""
    best, other = sorted((recorded, told), key=_rank)
    sources = {recorded.seen_by, *recorded.also_seen_by, told.seen_by}
    arguments = best if best.args or not other.args else other
    made = replace(
        best,
        args=arguments.args,
        invalid_arguments=arguments.invalid_arguments,
        turn_index=recorded.turn_index,
        call_id=best.call_id or other.call_id,
        also_seen_by=tuple(each for each in _BEST_FIRST if each in sources and each is not best.seen_by),
    )
    if best.mocked or best.result is not None or best.error:
        return made
    return replace(made, result=other.result, error=other.error)


def _rank(call: ToolCall) -> tuple[bool, int]:
    return not call.mocked, _BEST_FIRST.index(call.seen_by)


def _same_arguments(one: Any, other: Any) -> bool:
    """Whether two sources mean the same arguments; one that does not tell them (None) says nothing else."""
    if one is None or other is None:
        return True
    try:
        return _same(one, other)
    except RecursionError:
        return False


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON: 1 is 1.0, and true is neither."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
