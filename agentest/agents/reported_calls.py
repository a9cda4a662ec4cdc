"""Map tool calls in an agent's answers, found by the user's paths, to `name`, `args` and `result`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentest.agents.json_reader import arguments_text, excerpt, objects_in, read_arguments
from agentest.agents.port import AgentNotes
from agentest.domain.messages import ToolRequest
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass

_NAMES = ("name", "tool", "tool_name", "toolName")
_ARGS = ("args", "arguments", "input", "parameters", "params")
_RESULTS = ("result", "output", "response")
_IDS = ("id", "call_id", "tool_call_id", "callId", "toolCallId")
_EXAMPLES = {
    "tool_calls": "name, args and result, like tools[].{name: tool, args: input, result: output}",
    "tool_request": "id, name and args, like {id: call_id, name: tool, args: input}",
}
_USUAL_KEYS = (
    "tool_calls",
    "toolCalls",
    "tools",
    "calls",
    "steps",
    "function_calls",
    "functionCalls",
    "actions",
)
_MISSING = object()
_UNIQUE_CHARS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCall:
    """One tool call as an answer reports it."""

    id: str  # "" if the call has no id
    name: str
    args: Any
    result: Any = None
    problem: str | None = None

    def is_same(self, other: ReportedCall) -> bool:
        """Return True if both may be one call: equal ids, or without ids equal names and arguments."""
        if self.id or other.id:
            return self.id == other.id
        return (self.name, self.args) == (other.name, other.args)


class ReportedCalls:
    """The calls of one answer, in order. A repeated id adds to the earlier report of that call."""

    def __init__(self) -> None:
        self._calls: list[ReportedCall] = []
        self._latest: dict[str, int] = {}  # id → index of the last call with this id

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __iter__(self) -> Iterator[ReportedCall]:
        return iter(self._calls)

    def take(self, entries: Any) -> None:
        """Add the calls that a `tool_calls` path found. Raises AgentError for values that are not calls."""
        for item in _items(entries, "tool_calls"):
            identifier = _identifier(item)
            known = self._latest.get(identifier) if identifier else None
            if known is None or _is_new_call(item, self._calls[known]):
                self._latest[identifier] = len(self._calls)
                self._calls.append(_read(item, "tool_calls"))
            else:
                self._calls[known] = _merged(self._calls[known], item)

    def united_with(self, earlier: Sequence[ReportedCall]) -> tuple[ReportedCall, ...]:
        """Return the calls of an earlier answer that are not repeated here, followed by these calls."""
        again: dict[tuple[bool, str], list[ReportedCall]] = {}  # so that only calls with one key are compared
        for call in self._calls:
            again.setdefault((bool(call.id), call.id or call.name), []).append(call)
        lead = []
        for call in earlier:
            alike = again.get((bool(call.id), call.id or call.name), [])
            same = next((i for i, each in enumerate(alike) if each.is_same(call)), None)
            if same is None:
                lead.append(call)
            else:
                del alike[same]
        return (*lead, *self._calls)


def requested_tool_calls(entries: Any) -> tuple[ToolRequest, ...]:
    """Return the calls that a `tool_request` path found. Raises AgentError for values that are not calls."""
    calls = (_read(item, "tool_request") for item in _items(entries, "tool_request"))
    return tuple(ToolRequest(call.id, call.name, arguments_text(call.args)) for call in calls)


def without_repeated_calls(
    calls: Sequence[ReportedCall], before: Sequence[ReportedCall]
) -> tuple[ReportedCall, ...]:
    """Return the calls without those of earlier turns, if the answer repeats all of them at its start.

    Repetitions are recognized only by ids that are long enough to be unique. Short ids such as `1` or
    `call_1` may restart in every turn, and two real calls must not count as one.
    """
    begins = calls[: len(before)]
    echoed = len(begins) == len(before) and all(
        len(new.id) >= _UNIQUE_CHARS and new.is_same(old) and new.name == old.name and new.args == old.args
        for new, old in zip(begins, before, strict=True)
    )
    return tuple(calls[len(before) :] if before and echoed else calls)


def note_unmapped_calls(notes: AgentNotes, answer: Any) -> None:
    """Add a note if an answer seems to contain tool calls, but no path is configured for them."""
    for name in _USUAL_KEYS:
        first = next(iter(objects_in(answer.get(name))), {}) if isinstance(answer, Mapping) else {}
        if any(key in first for key in (*_NAMES, "function")):
            return notes.add(
                "calls",
                f"its answers seem to report tool calls at `{name}`, and nothing reads them: set "
                "`tool_calls`, a JMESPath to {name, args, result}",
            )


def as_tool_calls(calls: Iterable[ReportedCall], turn_index: int) -> tuple[ToolCall, ...]:
    """Convert the calls to the transcript's `ToolCall`."""
    return tuple(
        ToolCall(
            name=call.name,
            args=call.args,
            result=call.result,
            mocked=False,
            turn_index=turn_index,
            invalid_arguments=call.problem,
            seen_by=SeenBy.AGENT,
            call_id=call.id or None,
        )
        for call in calls
    )


def _items(entries: Any, key: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(entries, list):
        for item in entries:
            yield from _items(item, key)
    elif isinstance(entries, Mapping):
        if any(value is not None for value in entries.values()):  # all null: an event without calls
            yield entries
    elif entries not in (None, False, ""):
        raise AgentError(f"`{key}` finds an entry that is not a tool call: {excerpt(entries)}; {_hint(key)}")


def _hint(key: str) -> str:
    return f"write `{key}` so that it gives {_EXAMPLES[key]}"


def _read(item: Mapping[str, Any], key: str) -> ReportedCall:
    fields = _flattened(item)
    name, args = _first_value(fields, (*_NAMES, "function")), _first_value(fields, _ARGS)
    if not isinstance(name, str) or not name:
        raise AgentError(f"a tool call of the agent has no `name`: {excerpt(item)}; {_hint(key)}")
    known = {*_NAMES, *_RESULTS, *_IDS, "function"}
    strange = [key for key, value in fields.items() if key not in known and isinstance(value, Mapping | list)]
    if args is _MISSING and strange:
        # Bans would not see arguments under an unknown name.
        raise AgentError(
            f"a tool call of the agent has no `args`, but {', '.join(strange)}: {excerpt(fields)}; "
            f"{_hint(key)}"
        )
    read, problem = read_arguments(None if args is _MISSING else args)
    result = _first_value(fields, _RESULTS)
    return ReportedCall(
        id=_identifier(item),
        name=name,
        args=read,
        result=None if result is _MISSING else result,
        problem=problem,
    )


def _is_new_call(item: Mapping[str, Any], known: ReportedCall) -> bool:
    """Return True if the item is a new call under a used id, as from servers that restart their numbering."""
    fields = _flattened(item)
    name, args = _first_value(fields, (*_NAMES, "function")), _first_value(fields, _ARGS)
    if isinstance(name, str) and name and name != known.name:
        return True
    has_args = args is not _MISSING and args not in (None, {}, "")
    return has_args and known.result is not None and read_arguments(args)[0] != known.args


def _flattened(item: Mapping[str, Any]) -> Mapping[str, Any]:
    function = item.get("function")
    return {**item, **function} if isinstance(function, Mapping) else item


def _merged(call: ReportedCall, told_again: Mapping[str, Any]) -> ReportedCall:
    item = _flattened(told_again)
    args, result = _first_value(item, _ARGS), _first_value(item, _RESULTS)
    if args is not _MISSING and args not in (None, {}, ""):
        read, problem = read_arguments(args)
        call = replace(call, args=read, problem=problem)
    if result is not _MISSING and result is not None:
        call = replace(call, result=result)
    return call


def _first_value(item: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((item[name] for name in names if name in item), _MISSING)


def _identifier(item: Mapping[str, Any]) -> str:
    value = _first_value(item, _IDS)
    return "" if value is _MISSING or value is None else str(value)
