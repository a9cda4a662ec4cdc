"""Tool calls that an agent's answers tell of, brought to `name`, `args` and `result`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentest.agents.json_reader import arguments_text, shown
from agentest.agents.port import Notes
from agentest.domain.messages import ToolRequest
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError

_NAMES = ("name", "tool", "tool_name", "toolName")
_ARGS = ("args", "arguments", "input", "parameters", "params")
_RESULTS = ("result", "output", "response")
_IDS = ("id", "call_id", "tool_call_id", "callId", "toolCallId")
_HOW = {
    "tool_calls": "name, args and result, like tools[].{name: tool, args: input, result: output}",
    "tool_request": "id, name and args, like {id: call_id, name: tool, args: input}",
}
"""What the path of a key has to give."""
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
class ToldCall:
    """One call as the answer tells of it."""

    id: str
    """"" where it has none."""
    name: str
    args: Any
    result: Any = None
    problem: str | None = None

    def is_same(self, other: ToldCall) -> bool:
        """Whether both may be one call that was told twice: by its id, else by name and arguments."""
        if self.id or other.id:
            return self.id == other.id
        return (self.name, self.args) == (other.name, other.args)


class ToldCalls:
    """The calls of one answer, in order. What is told again under an id adds to what was told before."""

    def __init__(self) -> None:
        self._calls: list[ToldCall] = []
        self._latest: dict[str, int] = {}
        """Id → place of the last call that has it."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __iter__(self) -> Iterator[ToldCall]:
        return iter(self._calls)

    def take(self, found: Any) -> None:
        """Add what a `tool_calls` path has found. Raises AgentError for what is no call."""
        for item in _items(found, "tool_calls"):
            self._add(item)

    def _add(self, item: Mapping[str, Any]) -> None:
        identifier = _identifier(item)
        known = self._latest.get(identifier) if identifier else None
        if known is None or _is_another(item, self._calls[known]):
            self._latest[identifier] = len(self._calls)
            self._calls.append(_read(item, "tool_calls"))
        else:
            self._calls[known] = _with_more(self._calls[known], item)

    def united_with(self, earlier: Sequence[ToldCall]) -> tuple[ToldCall, ...]:
        """These calls after those of an earlier answer that this one does not tell of again."""
        again, lead = _by_mark(self._calls), []
        for call in earlier:
            alike = again.get(_mark(call), [])
            same = next((i for i, each in enumerate(alike) if each.is_same(call)), None)
            if same is None:
                lead.append(call)
            else:
                del alike[same]
        return (*lead, *self._calls)


def asked_calls(found: Any) -> tuple[ToolRequest, ...]:
    """The calls that a `tool_request` path has found. Raises AgentError for what is no call."""
    calls = (_read(item, "tool_request") for item in _items(found, "tool_request"))
    return tuple(ToolRequest(call.id, call.name, arguments_text(call.args)) for call in calls)


def _by_mark(calls: Sequence[ToldCall]) -> dict[tuple[str, str], list[ToldCall]]:
    found: dict[tuple[str, str], list[ToldCall]] = {}
    for call in calls:
        found.setdefault(_mark(call), []).append(call)
    return found


def _mark(call: ToldCall) -> tuple[str, str]:
    """In what calls that are the same do not differ: only those of one mark need to be compared."""
    return ("id", call.id) if call.id else ("name", call.name)


def fresh(calls: Sequence[ToldCall], before: Sequence[ToldCall]) -> tuple[ToldCall, ...]:
    """The calls without those of earlier turns, where an answer begins with all of them again.

    They are known by ids that are long enough to be unique: `1` or `call_1` may begin anew in every turn, and
    a call that was made twice must not count once.
    """
    begins = calls[: len(before)]
    echoed = len(begins) == len(before) and all(
        len(new.id) >= _UNIQUE_CHARS and new.is_same(old) and new.name == old.name and new.args == old.args
        for new, old in zip(begins, before, strict=True)
    )
    return tuple(calls[len(before) :] if before and echoed else calls)


def note_untold(notes: Notes, answer: Any) -> None:
    """Say where an answer seems to tell of tool calls, as no path says it."""
    names = _USUAL_KEYS if isinstance(answer, Mapping) else ()
    for name in names:
        if _looks_like_calls(answer.get(name)):
            return notes.add(
                "calls",
                f"its answers seem to tell of tool calls at `{name}`, and nobody looks there: say by "
                "`tool_calls`, a JMESPath to {name, args, result}, where they stand",
            )


def _looks_like_calls(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, Mapping) and any(name in first for name in (*_NAMES, "function"))


def as_tool_calls(calls: Iterable[ToldCall], turn_index: int) -> tuple[ToolCall, ...]:
    """The calls for the record of a turn."""
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


def _items(found: Any, key: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(found, list):
        for item in found:
            yield from _items(item, key)
    elif isinstance(found, Mapping):
        if any(value is not None for value in found.values()):  # what a path makes of an event without calls
            yield found
    elif found not in (None, False, ""):
        raise AgentError(f"`{key}` finds what is no tool call: {shown(found)}; {_how(key)}")


def _how(key: str) -> str:
    return f"write `{key}` so that it gives {_HOW[key]}"


def _read(item: Mapping[str, Any], key: str) -> ToldCall:
    told = _unfolded(item)
    name = _first(told, (*_NAMES, "function"))
    if not isinstance(name, str) or not name:
        raise AgentError(f"a tool call of the agent has no `name`: {shown(item)}; {_how(key)}")
    args, problem = _arguments(_given_arguments(told, key))
    result = _first(told, _RESULTS)
    return ToldCall(
        id=_identifier(item),
        name=name,
        args=args,
        result=None if result is _MISSING else result,
        problem=problem,
    )


def _given_arguments(told: Mapping[str, Any], key: str) -> Any:
    args = _first(told, _ARGS)
    if args is _MISSING:
        _check_nothing_is_lost(told, key)
    return args


def _check_nothing_is_lost(item: Mapping[str, Any], key: str) -> None:
    """Refuse a call whose arguments may stand under a name that nobody knows: bans would miss them."""
    known = {*_NAMES, *_RESULTS, *_IDS, "function"}
    strange = [
        name for name, value in item.items() if name not in known and isinstance(value, Mapping | list)
    ]
    if strange:
        raise AgentError(
            f"a tool call of the agent has no `args`, but {', '.join(strange)}: {shown(item)}; {_how(key)}"
        )


def _is_another(item: Mapping[str, Any], known: ToldCall) -> bool:
    """Whether this is another call under an id that was used before: some servers number them anew."""
    told = _unfolded(item)
    name, args = _first(told, (*_NAMES, "function")), _first(told, _ARGS)
    if isinstance(name, str) and name and name != known.name:
        return True
    given = args is not _MISSING and args not in (None, {}, "")
    return given and known.result is not None and _arguments(args)[0] != known.args


def _unfolded(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The call with what OpenAI's form has below `function`."""
    function = item.get("function")
    return {**item, **function} if isinstance(function, Mapping) else item


def _with_more(call: ToldCall, told_again: Mapping[str, Any]) -> ToldCall:
    item = _unfolded(told_again)
    args, result = _first(item, _ARGS), _first(item, _RESULTS)
    if args is not _MISSING and args not in (None, {}, ""):
        read, problem = _arguments(args)
        call = replace(call, args=read, problem=problem)
    if result is not _MISSING and result is not None:
        call = replace(call, result=result)
    return call


def _first(item: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((item[name] for name in names if name in item), _MISSING)


def _identifier(item: Mapping[str, Any]) -> str:
    value = _first(item, _IDS)
    return "" if value is _MISSING or value is None else str(value)


def _arguments(value: Any) -> tuple[Any, str | None]:
    """The argument object, and what is wrong with it."""
    if value is _MISSING or value is None or value == "":
        return {}, None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            return value, f"the arguments are not JSON: {error}"
    if not isinstance(value, Mapping):
        return value, f"the arguments are a {type(value).__name__}, expected an object"
    return value, None
