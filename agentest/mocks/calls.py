"""The tool calls of one conversation, each recorded once, whoever tells of it and how often.

The agent may hand a call to us, its protocol may report the same call, and further sources may have seen it,
too. What is one call is decided here, once for all sources: by id; else, between different sources alone, by
order, name and arguments within a turn. Two equal calls that one source tells of are two calls. A call that a
mock server was asked for may be told of in other words (`one_call`); it is recorded in the server's.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from time import perf_counter
from typing import Any

from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import ToolCall
from agentest.mocks.http_response import HttpResponse
from agentest.mocks.one_call import alike, is_called, same
from agentest.support.replacing import replace

_OF_THE_PROTOCOL = frozenset({SeenBy.CALLER, SeenBy.AGENT})
"""They have their ids from one protocol: where these differ, so do the calls."""
_BEST_FIRST = (SeenBy.CALLER, SeenBy.MOCK_SERVER, SeenBy.AGENT, SeenBy.SPANS)
"""Who knows most of a call: first those who answer it."""


class RecordedCall:
    """A call in the record. It may be answered, and told of again, after it has been recorded."""

    __slots__ = ("_began", "_told", "call", "http", "status")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.http: HttpResponse | None = None
        """The status and headers that the mock wishes, for whoever answers over HTTP."""
        self.status: int | None = None
        """The status with which the real tool answered, where the call is a request of HTTP."""
        self._told = {call.seen_by: call}
        self._began = perf_counter()

    def is_seen_by(self, source: SeenBy) -> bool:
        return source in self._told or source in self.call.also_seen_by

    def as_told_by(self, source: SeenBy) -> ToolCall:
        """The call in the source's own words, else as it is recorded."""
        return self._told.get(source, self.call)

    def answered(self, **answer: Any) -> None:
        """Note what it was answered: fields of ToolCall. The first answer says how long that took."""
        took = self.call.duration_ms
        took = (perf_counter() - self._began) * 1000 if took is None else took
        self.call = replace(self.call, **answer, duration_ms=took)

    def add(self, told: ToolCall) -> None:
        """Note what a further source tells of it, or what one tells again."""
        self.call = _merged(self.call, told)
        self._told[told.seen_by] = told


class CallRecord:
    """All calls of one conversation in their order. Threads of handlers may add to it."""

    def __init__(self, mocked: Container[str] = ()) -> None:
        """`mocked`: names of tools that have mocks: none of these is a framework's name of another one."""
        self._mocked = mocked
        self._calls: list[RecordedCall] = []
        self._by_id: defaultdict[str, list[RecordedCall]] = defaultdict(list)
        self._by_turn: defaultdict[int, list[RecordedCall]] = defaultdict(list)
        self._sources: defaultdict[int, set[SeenBy]] = defaultdict(set)
        self._asked: list[ToolCall] = []
        """Calls that waited for approval and were decided in a later turn, as they were while they waited."""
        self._lock = threading.RLock()
        self.on_change: Callable[[RecordedCall], object] = lambda _: None
        """Receives each call that is recorded, and again whenever more is known of it."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(recorded.call for recorded in self._calls)

    @property
    def statuses(self) -> tuple[int | None, ...]:
        """Of each of the `calls` the status of HTTP with which the real tool answered."""
        return tuple(recorded.status for recorded in self._calls)

    def of_turn(self, turn_index: int) -> tuple[ToolCall, ...]:
        """The calls of a turn, in the order in which they were made."""
        return tuple(recorded.call for recorded in self._calls if recorded.call.turn_index == turn_index)

    def asked_in(self, turn_index: int) -> tuple[ToolCall, ...]:
        """The calls that waited for approval in a turn and that a later turn has."""
        return tuple(call for call in self._asked if call.turn_index == turn_index)

    def begin(self, call: ToolCall) -> RecordedCall:
        """Record a call that is about to be answered: always a new one, whatever was told before."""
        with self._lock:
            return self._insert(call, None)

    def finish(self, recorded: RecordedCall, **answer: Any) -> None:
        """Set what the call was answered: fields of ToolCall."""
        with self._lock:
            recorded.answered(**answer)
        self.on_change(recorded)

    def observe(self, calls: Sequence[ToolCall], *, retold: bool = False) -> None:
        """Record calls that one or more sources tell of, in their order.

        Args:
            retold: whether a source may tell again what it has told before, as a snapshot of the history
                does. Then its calls with the same id, name and arguments are the same.
        """
        with self._lock:
            for call in calls:
                self._drop_waiting(call)
            known = self._known(calls, retold)
            following: RecordedCall | None = None
            # From the last to the first: a call that is new stands before the one that followed it.
            for call, recorded in zip(reversed(calls), reversed(known), strict=True):
                if recorded is None:
                    recorded = self._insert(call, following)
                else:
                    self._merge(recorded, call)
                following = recorded

    def _drop_waiting(self, told: ToolCall) -> None:
        """Take out a call that waited for approval and of which more is told now: it belongs to this turn."""
        for recorded in list(self._by_id.get(told.call_id or "", ())):
            call = recorded.call
            if call.approval is Approval.PENDING and (call.name, call.seen_by) == (told.name, told.seen_by):
                self._calls.remove(recorded)
                self._by_turn[call.turn_index].remove(recorded)
                self._by_id[told.call_id or ""].remove(recorded)
                if call.turn_index != told.turn_index:
                    self._asked.append(call)

    def _insert(self, call: ToolCall, before: RecordedCall | None) -> RecordedCall:
        recorded = RecordedCall(call)
        at = len(self._calls) if before is None else self._calls.index(before)
        self._calls.insert(at, recorded)
        mine = self._by_turn[call.turn_index]
        mine.insert(mine.index(before) if before in mine else len(mine), recorded)
        self._sources[call.turn_index].add(call.seen_by)
        if call.call_id:
            self._by_id[call.call_id].append(recorded)
        self.on_change(recorded)
        return recorded

    def _merge(self, recorded: RecordedCall, told: ToolCall) -> None:
        if told.call_id and recorded not in self._by_id[told.call_id]:
            self._by_id[told.call_id].append(recorded)
        recorded.add(told)
        self._sources[recorded.call.turn_index].add(told.seen_by)
        self.on_change(recorded)

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
        self._add_alike(known, calls, taken)
        return known

    def _by_its_id(
        self, call: ToolCall, taken: Container[RecordedCall | None], retold: bool
    ) -> RecordedCall | None:
        for recorded in self._by_id.get(call.call_id or "", ()):
            again = recorded.is_seen_by(call.seen_by)
            if recorded in taken or (again and not retold):
                continue
            told = recorded.as_told_by(call.seen_by)
            if again and told.name == call.name and _same_arguments(told.args, call.args):
                return recorded
            if not again and self._may_be(recorded, call):
                same_turn = told.turn_index == call.turn_index
                if same_turn or _same_arguments(told.args, call.args):
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

    def _add_alike(
        self,
        known: list[RecordedCall | None],
        calls: Sequence[ToolCall],
        taken: set[RecordedCall | None],
    ) -> None:
        """For calls that are not known yet the ones that a mock server was asked for, in other words.

        First those that can be one alone: the others have a choice.
        """
        open_ones = {i: self._alike(call, taken) for i, call in enumerate(calls) if known[i] is None}
        for i, candidates in sorted(open_ones.items(), key=lambda each: len(each[1])):
            known[i] = next((one for one in candidates if one not in taken), None)
            taken.add(known[i])

    def _alike(self, call: ToolCall, taken: Container[RecordedCall | None]) -> list[RecordedCall]:
        """The served calls of the turn that this may be, the likeliest first."""
        if SeenBy.MOCK_SERVER not in self._sources[call.turn_index]:
            return []
        found = [
            recorded
            for recorded in self._by_turn[call.turn_index]
            if recorded not in taken
            and not recorded.is_seen_by(call.seen_by)
            and recorded.is_seen_by(SeenBy.MOCK_SERVER)
            and self._may_be(recorded, call)
            and _alike_arguments(recorded.call.args, call.args)
        ]
        return sorted(found, key=lambda one: _distance(one.call, call))

    def _may_be(self, recorded: RecordedCall, call: ToolCall) -> bool:
        """Whether a call may be of the recorded one's tool, which has a longer name in a framework."""
        name = recorded.call.name
        if name == call.name:
            return True
        return (
            call.name not in self._mocked
            and recorded.is_seen_by(SeenBy.MOCK_SERVER)
            and is_called(call.name, name)
        )


def _distance(recorded: ToolCall, call: ToolCall) -> tuple[bool, bool]:
    return recorded.name != call.name, not _same_arguments(recorded.args, call.args)


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
        duration_ms=other.duration_ms if best.duration_ms is None else best.duration_ms,
        round=other.round if best.round is None else best.round,
        approval=best.approval or other.approval,
        by_real_tool=best.by_real_tool or other.by_real_tool,
    )
    if best.mocked or best.result is not None or best.error:
        return made
    return replace(made, result=other.result, error=other.error)


def _rank(call: ToolCall) -> tuple[bool, int]:
    return not call.mocked, _BEST_FIRST.index(call.seen_by)


def _same_arguments(one: Any, other: Any) -> bool:
    """Whether two sources mean the same arguments; one that does not tell them (None) says nothing else."""
    return _agree(same, one, other)


def _alike_arguments(one: Any, other: Any) -> bool:
    """The same of what frameworks have changed on the way."""
    return _agree(alike, one, other)


def _agree(compare: Callable[[Any, Any], bool], one: Any, other: Any) -> bool:
    if one is None or other is None:
        return True
    try:
        return compare(one, other)
    except RecursionError:
        return False
