"""Map tool calls in an agent's answers, found by the user's paths, to `name`, `args` and `result`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from agentest.agents.json_reader import arguments_text, excerpt, objects_in, read_any, read_arguments
from agentest.agents.port import AgentNotes, AgentReply, NoReply
from agentest.agents.reply_paths import (
    empty_path_message,
    find_reply_path,
    missing_reply_message,
    note_guessed_path,
    text_of,
    where_text_is,
)
from agentest.domain.messages import Message, ToolRequest, ToolResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.plugins.protocols.settings.dialogue import DialogueAgent
from agentest.support.errors import AgentError
from agentest.support.json_path import JsonPath
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template

_NAMES = ("name", "tool", "tool_name", "toolName")
_ARGS = ("args", "arguments", "input", "parameters", "params")
_RESULTS = ("result", "output", "response")
_IDS = ("id", "call_id", "tool_call_id", "callId", "toolCallId")
_EXAMPLES = {
    "tool_calls": "name, args and result, like tools[].{name: tool, args: input, result: output}",
    "tool_request": "id, name and args, like {id: call_id, name: tool, args: input}",
}
"""Key → an example of the form that its path has to return."""
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

    id: str
    """"" if the call has no id."""
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
        self._latest: dict[str, int] = {}
        """Id → index of the last call with this id."""

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
    """Return the call with the fields of OpenAI's nested `function` object merged in."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePaths:
    """The paths to the parts of a message. None for parts that messages do not have."""

    reply: JsonPath | None = None
    delta: JsonPath | None = None
    tool_calls: JsonPath | None = None
    error: JsonPath | None = None
    done: JsonPath | None = None
    tool_request: JsonPath | None = None
    tool_response: Template | None = None

    @classmethod
    def of(cls, settings: DialogueAgent) -> MessagePaths:
        """Return the form that the settings describe."""
        names = ("reply", "delta", "tool_calls", "error", "done", "tool_request")
        texts = {name: getattr(settings, name) for name in names}
        paths = {name: None if text is None else JsonPath(text) for name, text in texts.items()}
        response = settings.tool_response
        return cls(**paths, tool_response=None if response is None else Template(response))

    def response(self, result: ToolResult) -> Any:
        """Return the message that answers a tool request."""
        assert self.tool_response is not None, "checked with the configuration: it goes with `tool_request`"
        return self.tool_response.filled(
            {
                "tool.id": result.request_id,
                "tool.name": result.name,
                "tool.result": read_any(result.text),
                "tool.text": result.text,
            }
        )


def check_no_error(path: JsonPath | None, message: Any) -> None:
    """Raise AgentError if the path of errors finds one."""
    if path is not None and path.holds(message):
        error = excerpt(path.find(message))
        raise AgentError(f"the agent reports an error (`error: {path.text}`): {error}")


@dataclass(slots=True)
class TurnReader:
    """The messages received in one turn so far."""

    form: MessagePaths
    turn_index: int
    notes: AgentNotes
    done: bool = False
    _deltas: list[str] = field(default_factory=list)
    _reply: str | None = None
    _calls: ReportedCalls = field(default_factory=ReportedCalls)
    _reported_calls: tuple[ToolCall, ...] = ()
    """The calls that were already reported, with their state at that time."""
    _requests: list[ToolRequest] = field(default_factory=list)
    _last: Any = None

    def hear(self, message: Any) -> bool:
        """Read a message, which is a JSON value. Returns True if it contains text. Raises AgentError.

        Calls are read first, so that the transcript includes what the agent did before an error.
        """
        form, self._last = self.form, message
        is_mapped = any((form.reply, form.delta, form.tool_calls, form.done))
        if is_mapped and isinstance(message, str) and message.lstrip().startswith("{"):
            # The calls of a truncated object would be missed.
            raise AgentError(f"a message of the agent is not JSON: {excerpt(message)}")
        if form.tool_calls is not None:
            self._calls.take(form.tool_calls.find(message))
        else:
            note_unmapped_calls(self.notes, message)
        if form.tool_request is not None:
            self._requests += requested_tool_calls(form.tool_request.find(message))
        check_no_error(form.error, message)
        delta = form.delta and text_of(form.delta.find(message))
        if delta:
            self._deltas.append(delta)
        reply = self._reply_in(message)
        if reply is not None:
            self._reply = reply
        self.done = reply is not None if form.done is None else form.done.holds(message)
        return bool(delta or reply)

    def hear_late(self, message: Any) -> None:
        """Record the calls of a message that arrived before the user's next message."""
        if self.form.tool_calls is not None:
            self._calls.take(self.form.tool_calls.find(message))

    def _reply_in(self, message: Any) -> str | None:
        if self.form.reply is not None:
            return text_of(self.form.reply.find(message))
        path = None if self.form.delta is not None else find_reply_path(message)
        if path is None:
            return None
        note_guessed_path(self.notes, path)
        return text_of(path.find(message))

    @property
    def asks(self) -> bool:
        """True if the agent requests a tool."""
        return bool(self._requests)

    def requests(self) -> AgentReply:
        """Return the tools requested so far in the turn, which then continues."""
        requests, self._requests = tuple(self._requests), []
        calls, retells = self._unreported_calls()
        return AgentReply(text=None, tool_requests=requests, observed=calls, retells=retells)

    def answer(self) -> AgentReply:
        """Return the reply at the end of the turn. Raises AgentError if no message contained one."""
        text = self._reply if self._reply is not None else "".join(self._deltas) or None
        if text is None and not self._calls:
            for key, path in (("reply", self.form.reply), ("delta", self.form.delta)):
                if path is not None:
                    raise AgentError(empty_path_message(key, path, self._last))
            raise AgentError(missing_reply_message(self._last))
        calls, retells = self._unreported_calls()
        return AgentReply(text=text, observed=calls, retells=retells)

    def no_reply(self, problem: str, retries: int = 0) -> NoReply:
        """Return the error that ends the turn, with the calls reported so far."""
        calls, retells = self._unreported_calls()
        return NoReply(problem, retries, calls, retells=retells)

    def _unreported_calls(self) -> tuple[tuple[ToolCall, ...], bool]:
        """Return the new and changed calls since the last report, and whether any call changed."""
        calls, before = as_tool_calls(self._calls, self.turn_index), self._reported_calls
        self._reported_calls = calls
        changed = tuple(call for call, old in zip(calls, before, strict=False) if call != old)
        return (*changed, *calls[len(before) :]), bool(changed)

    @property
    def is_silent(self) -> bool:
        """True if no message has arrived."""
        return self._last is None

    def what_came(self) -> str:
        """Describe the last message, for errors."""
        if self._last is None:
            return "it sent no message in this turn"
        return f"{where_text_is(self._last)} in its last message: {excerpt(self._last)}"


def last_results(messages: Sequence[Message]) -> list[ToolResult]:
    """Return the trailing tool results, in order. In the middle of a turn, the agent waits for these."""
    results: list[ToolResult] = []
    for message in reversed(messages):
        if not isinstance(message, ToolResult):
            break
        results.insert(0, message)
    return results
