"""The record of a conversation's tool calls, which decides which reports of several sources are one call."""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from http import HTTPStatus
from time import perf_counter
from typing import Any

from agentest.domain.tool_visibility import DENIED, Approval, SeenBy
from agentest.domain.transcript import WAITS_FOR_APPROVAL, ToolCall
from agentest.support.calling import message_of_error
from agentest.support.errors import AgentError
from agentest.support.json_text import NotJson, json_text, safe_repr, well_formed, well_formed_value
from agentest.support.lazy_dataclasses import dataclass, replace

_FAILING = 400
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TRANSPORT_HEADERS = frozenset({"connection", "content-encoding", "content-length", "transfer-encoding"})


class HttpResponse(Exception):
    """The answer of a tool that is an HTTP request. A mock function may return or raise it.

    If the agent's tools do not call the mocks over HTTP, the agent receives the body. From status 400 on, it
    receives the body as a failed tool call, if its protocol can express that.

    Args:
        status: from 200 to 599.
        body: a JSON value. From status 400 on, text is sent as `{"error": text}`, and None as the status's
            reason phrase.
        headers: in addition to the transport headers.

    Raises ValueError.
    """

    def __init__(self, status: int, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"HttpResponse: status is {status!r}, expected a number from 200 to 599")
        self.status = status
        self.body = body
        self.headers = {str(name): str(value) for name, value in (headers or {}).items()}
        for name, value in self.headers.items():
            if not _NAME.fullmatch(name) or any(ord(char) < 32 and char != "\t" for char in value):
                raise ValueError(f"HttpResponse: {name!r}: {value!r} is not a header")
            if name.lower() in _TRANSPORT_HEADERS:
                raise ValueError(f"HttpResponse: the header {name!r} is written by the server; leave it out")
        super().__init__(status, body)

    @property
    def failed(self) -> bool:
        return self.status >= _FAILING

    @property
    def sent(self) -> Any:
        """The body as it is sent."""
        if not self.failed or not (self.body is None or isinstance(self.body, str)):
            return self.body
        return {"error": self.body or _reason_phrase(self.status)}

    def __str__(self) -> str:
        try:
            text = self.body if isinstance(self.body, str) else json_text(self.body)
        except NotJson:
            text = ""
        return _reason_phrase(self.status) if self.body is None else f"{_reason_phrase(self.status)}: {text}"


def _reason_phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


_PROTOCOL_SOURCES = frozenset({SeenBy.CALLER, SeenBy.AGENT})
"""Sources whose ids come from one protocol, so that different ids are different calls."""
_SOURCE_RANKING = (SeenBy.CALLER, SeenBy.MOCK_SERVER, SeenBy.MODEL, SeenBy.AGENT, SeenBy.SPANS)


class RecordedCall:
    """A recorded call, which may be answered or reported again later."""

    __slots__ = ("_began", "_reports", "call", "http", "status")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.http: HttpResponse | None = None
        """The status and headers that the mock sets, for servers that answer over HTTP."""
        self.status: int | None = None  # the real tool's HTTP status, if the call is an HTTP request
        self._reports = {call.seen_by: call}
        self._began = perf_counter()

    def is_seen_by(self, source: SeenBy) -> bool:
        return source in self._reports or source in self.call.also_seen_by

    def as_reported_by(self, source: SeenBy) -> ToolCall:
        """Return the call as the source reported it, else as recorded."""
        return self._reports.get(source, self.call)

    def answered(self, **answer: Any) -> None:
        """Note the answer: fields of ToolCall. The first answer determines the duration."""
        took = self.call.duration_ms
        took = (perf_counter() - self._began) * 1000 if took is None else took
        self.call = replace(self.call, **answer, duration_ms=took)

    def add(self, reported: ToolCall) -> None:
        """Add a report of a further source, or an updated one."""
        self.call = _merged(self.call, reported)
        self._reports[reported.seen_by] = reported


@dataclass(frozen=True, slots=True, kw_only=True)
class MockOutcome:
    """The outcome of a call, as it is recorded and as the agent receives it."""

    result: Any = None
    sent: Any = None
    as_text: bool = False  # True if it is sent as plain text: a date needs quotes only in JSON
    error: str | None = None
    invalid_arguments: str | None = None
    http: HttpResponse | None = None
    raised: str | None = None  # the exception that the mock's code raised by mistake, and its location


class CallRecord:
    """All calls of one conversation, in order, from any thread. `mocked`: the names of tools with mocks."""

    def __init__(self, mocked: Container[str] = ()) -> None:
        self._mocked = mocked
        self._calls: list[RecordedCall] = []
        self._by_id: defaultdict[str, list[RecordedCall]] = defaultdict(list)
        self._by_turn: defaultdict[int, list[RecordedCall]] = defaultdict(list)
        self._sources: defaultdict[int, set[SeenBy]] = defaultdict(set)
        self._moved_to_later_turn: list[ToolCall] = []
        """Calls that waited for approval and were decided in a later turn, as they were while they waited."""
        self._lock = threading.RLock()
        self.on_change: Callable[[RecordedCall], object] = lambda _: None
        """Receives each new call, and again after every change."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(recorded.call for recorded in self._calls)

    @property
    def statuses(self) -> tuple[int | None, ...]:
        """The real tool's HTTP status of each of the `calls`."""
        return tuple(recorded.status for recorded in self._calls)

    def of_turn(self, turn_index: int) -> tuple[ToolCall, ...]:
        """Return the calls of a turn, in the order in which they were made."""
        return tuple(recorded.call for recorded in self._calls if recorded.call.turn_index == turn_index)

    def moved_from(self, turn_index: int) -> tuple[ToolCall, ...]:
        """Return the calls that waited for approval in a turn and moved to a later turn."""
        return tuple(call for call in self._moved_to_later_turn if call.turn_index == turn_index)

    def begin(self, call: ToolCall) -> RecordedCall:
        """Record a call that is about to be answered. It is always a new call."""
        with self._lock:
            return self._insert(call, None)

    def finish(self, recorded: RecordedCall, result: Any, *, error: str | None = None, **answer: Any) -> Any:
        """Set the answer to the call, with further fields of ToolCall. Returns the result."""
        with self._lock:
            recorded.answered(result=result, error=error, **answer)
        self.on_change(recorded)
        return result

    def observe(self, calls: Sequence[ToolCall], *, may_repeat: bool = False) -> None:
        """Record calls that one or more sources report, in order.

        Args:
            may_repeat: True if a source may repeat earlier reports, as a snapshot of the history does. Its
                calls with the same id, name and arguments are then the same.
        """
        with self._lock:
            for call in calls:
                self._drop_waiting(call)
            known = self._known(calls, may_repeat)
            following: RecordedCall | None = None
            # Backwards, because a new call is inserted before the one that followed it.
            for call, recorded in zip(reversed(calls), reversed(known), strict=True):
                if recorded is None:
                    recorded = self._insert(call, following)
                else:
                    if call.call_id and recorded not in self._by_id[call.call_id]:
                        self._by_id[call.call_id].append(recorded)
                    recorded.add(call)
                    self._sources[recorded.call.turn_index].add(call.seen_by)
                    self.on_change(recorded)
                following = recorded

    def _drop_waiting(self, reported: ToolCall) -> None:
        for recorded in list(self._by_id.get(reported.call_id or "", ())):
            call = recorded.call
            if call.approval is Approval.PENDING and (call.name, call.seen_by) == (
                reported.name,
                reported.seen_by,
            ):
                self._calls.remove(recorded)
                self._by_turn[call.turn_index].remove(recorded)
                self._by_id[reported.call_id or ""].remove(recorded)
                if call.turn_index != reported.turn_index:
                    self._moved_to_later_turn.append(call)

    def _insert(self, call: ToolCall, before: RecordedCall | None) -> RecordedCall:
        recorded = RecordedCall(call)
        at = len(self._calls) if before is None else self._calls.index(before)
        self._calls.insert(at, recorded)
        in_turn = self._by_turn[call.turn_index]
        in_turn.insert(in_turn.index(before) if before in in_turn else len(in_turn), recorded)
        self._sources[call.turn_index].add(call.seen_by)
        if call.call_id:
            self._by_id[call.call_id].append(recorded)
        self.on_change(recorded)
        return recorded

    def _known(self, calls: Sequence[ToolCall], may_repeat: bool) -> list[RecordedCall | None]:
        known: list[RecordedCall | None] = []
        matched: set[RecordedCall | None] = set()
        for call in calls:
            known.append(self._by_its_id(call, matched, may_repeat))
            matched.add(known[-1])
        for i, call in enumerate(calls):
            if known[i] is None:
                known[i] = self._by_its_form(call, matched)
                matched.add(known[i])
        self._match_server_calls(known, calls, matched)
        return known

    def _by_its_id(
        self, call: ToolCall, matched: Container[RecordedCall | None], may_repeat: bool
    ) -> RecordedCall | None:
        for recorded in self._by_id.get(call.call_id or "", ()):
            again = recorded.is_seen_by(call.seen_by)
            if recorded in matched or (again and not may_repeat):
                continue
            reported = recorded.as_reported_by(call.seen_by)
            if again and reported.name == call.name and _same_arguments(reported.args, call.args):
                return recorded
            if not again and self._may_be(recorded, call):
                same_turn = reported.turn_index == call.turn_index
                if same_turn or _same_arguments(reported.args, call.args):
                    return recorded
        return None

    def _by_its_form(self, call: ToolCall, matched: Container[RecordedCall | None]) -> RecordedCall | None:
        if self._sources[call.turn_index] <= {call.seen_by}:
            return None
        for recorded in self._by_turn[call.turn_index]:
            reported = recorded.call
            if recorded in matched or recorded.is_seen_by(call.seen_by) or reported.name != call.name:
                continue
            if not _have_different_ids(reported, call) and _same_arguments(reported.args, call.args):
                return recorded
        return None

    def _match_server_calls(
        self, known: list[RecordedCall | None], calls: Sequence[ToolCall], matched: set[RecordedCall | None]
    ) -> None:
        """Match the remaining calls with mock server calls under other names or arguments.

        Begins with calls that have only one candidate, because the others have a choice.
        """
        by_call = {
            i: self._server_candidates(call, matched) for i, call in enumerate(calls) if known[i] is None
        }
        for i, candidates in sorted(by_call.items(), key=lambda each: len(each[1])):
            known[i] = next((candidate for candidate in candidates if candidate not in matched), None)
            matched.add(known[i])

    def _server_candidates(
        self, call: ToolCall, matched: Container[RecordedCall | None]
    ) -> list[RecordedCall]:
        if SeenBy.MOCK_SERVER not in self._sources[call.turn_index]:
            return []
        candidates = [
            recorded
            for recorded in self._by_turn[call.turn_index]
            if recorded not in matched
            and not recorded.is_seen_by(call.seen_by)
            and recorded.is_seen_by(SeenBy.MOCK_SERVER)
            and self._may_be(recorded, call)
            and _agree(alike, recorded.call.args, call.args)  # despite changes that frameworks make
        ]
        return sorted(
            candidates,
            key=lambda each: (each.call.name != call.name, not _same_arguments(each.call.args, call.args)),
        )

    def _may_be(self, recorded: RecordedCall, call: ToolCall) -> bool:
        name = recorded.call.name
        if name == call.name:
            return True
        return (
            call.name not in self._mocked
            and recorded.is_seen_by(SeenBy.MOCK_SERVER)
            and is_called(call.name, name)
        )


def _have_different_ids(first: ToolCall, second: ToolCall) -> bool:
    of_one_protocol = {first.seen_by, second.seen_by} <= _PROTOCOL_SOURCES
    return of_one_protocol and bool(first.call_id and second.call_id) and first.call_id != second.call_id


def _merged(recorded: ToolCall, reported: ToolCall) -> ToolCall:
    best, other = sorted(
        (recorded, reported), key=lambda call: (not call.mocked, _SOURCE_RANKING.index(call.seen_by))
    )
    sources = {recorded.seen_by, *recorded.also_seen_by, reported.seen_by}
    arguments = best if best.args or not other.args else other
    merged = replace(
        best,
        args=arguments.args,
        invalid_arguments=arguments.invalid_arguments,
        turn_index=recorded.turn_index,
        call_id=best.call_id or other.call_id,
        also_seen_by=tuple(each for each in _SOURCE_RANKING if each in sources and each is not best.seen_by),
        duration_ms=other.duration_ms if best.duration_ms is None else best.duration_ms,
        round=other.round if best.round is None else best.round,
        approval=best.approval or other.approval,
        by_real_tool=best.by_real_tool or other.by_real_tool,
        simulated=best.simulated or other.simulated,
    )
    if best.mocked or best.result is not None or best.error:
        return merged
    return replace(merged, result=other.result, error=other.error)


def _same_arguments(first: Any, second: Any) -> bool:
    return _agree(same, first, second)


def _agree(compare: Callable[[Any, Any], bool], first: Any, second: Any) -> bool:
    if first is None or second is None:
        return True
    try:
        return compare(first, second)
    except RecursionError:
        return False


def same(first: Any, second: Any) -> bool:
    """Return True if two values are equal in JSON: 1 equals 1.0, but true does not."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return isinstance(first, bool) is isinstance(second, bool) and bool(first == second)


def alike(first: Any, second: Any) -> bool:
    """Return True if two values may be the same: one source may omit what the other fills in."""
    if isinstance(first, dict) and isinstance(second, dict):
        first, second = _without_nulls(first), _without_nulls(second)
        is_part = first.keys() <= second.keys() or second.keys() <= first.keys()
        return is_part and all(alike(first[key], second[key]) for key in first.keys() & second.keys())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(alike, first, second))
    if isinstance(first, str) is not isinstance(second, str):
        return _as_number(first) is not None and _as_number(first) == _as_number(second)
    return same(first, second)


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _as_number(value: Any) -> float | str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower()
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_called(name: str, tool: str) -> bool:
    """Return True if a framework may call the tool by this name.

    `mcp__shop__check_stock`, `shop.check_stock` and `shop_check_stock` are names of `check_stock`.
    """
    long, short = _normalized_name(name), _normalized_name(tool)
    return long == short or long.endswith(f"_{short}")


def _normalized_name(name: str) -> str:
    """Return a name with uniform separators, because some models' names have no dots and dashes."""
    return re.sub(r"\W", "_", name)


def tool_called(name: str, tools: Iterable[str], others: Container[str] = ()) -> str | None:
    """Return the tool that a framework calls by this name; None if it is not a tool or one of `others`."""
    candidates = [tool for tool in tools if is_called(name, tool)]
    if name in candidates:
        return name
    return None if name in others else max(candidates, key=len, default=None)


class PendingRealCall:
    """A call that was recorded before the agent's own tool runs, to be completed with its outcome."""

    def __init__(self, record: CallRecord, call: RecordedCall, redact: Callable[[str], str]) -> None:
        self._record = record
        self._call = call
        self._redact = redact
        self.approval: Approval | None = None  # set it if the user has approved the call

    def answered(self, result: Any) -> None:
        """Record the tool's return value. A value that is not JSON is stored as its repr."""
        self._record.finish(self._call, recordable(result), approval=self.approval)

    def failed(self, error: BaseException) -> None:
        """Record the exception that the tool raised."""
        message = self._redact(message_of_error(error) or type(error).__name__)
        self._record.finish(self._call, {"error": message}, error=message, approval=self.approval)

    def not_run(self, approval: Approval) -> None:
        """Record that the tool asked for the user's approval before it did anything, and has not got it."""
        error = WAITS_FOR_APPROVAL if approval is Approval.PENDING else DENIED
        self._record.finish(self._call, None, error=error, approval=approval)


_SHOWN_CHARS = 80
_MAX_NAME_CHARS = 256


def recordable_call(call: ToolCall) -> ToolCall:
    """Return a call without invalid characters."""
    return replace(
        call,
        name=well_formed(call.name),
        args=well_formed_value(call.args),
        result=well_formed_value(call.result),
        call_id=call.call_id and well_formed(call.call_id),
    )


def recordable(value: Any) -> Any:
    """Return a JSON value without invalid characters. A value that is not JSON becomes its repr."""
    try:
        plain = json.loads(json_text(value))
    except NotJson:
        plain = safe_repr(value)
    return well_formed_value(plain)


def check_tool_name(name: str) -> None:
    """Raise AgentError for an invalid tool name, because names appear unchanged in messages and reports."""
    if len(name) > _MAX_NAME_CHARS:
        raise AgentError(
            f"the agent called a tool whose name has {len(name)} characters, more than {_MAX_NAME_CHARS}: "
            f"{name[:_SHOWN_CHARS]!r}…"
        )


def shortened_args(args: Any) -> str:
    """Return the beginning of arguments, which may be any value, for a message."""
    try:
        text = json_text(args)
    except NotJson:
        text = repr(args)
    return text[:_SHOWN_CHARS]
