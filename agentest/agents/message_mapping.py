"""Read the messages of agents with a custom message format, using the paths of the configuration.

For agents that stay connected for a whole conversation: programs that write lines, and WebSockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.call_mapping import ReportedCalls, as_tool_calls, asked_calls, note_unmapped_calls
from agentest.agents.json_reader import read_any, shown
from agentest.agents.port import AgentNotes, AgentReply, NoReply
from agentest.agents.reply_paths import (
    empty_path_message,
    find_reply_path,
    missing_reply_message,
    note_guessed_path,
    text_of,
    where_text_is,
)
from agentest.config.agents.base import DialogueAgent
from agentest.domain.messages import Message, ToolRequest, ToolResult
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError
from agentest.support.json_path import JsonPath
from agentest.support.templates import Template


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
            {"tool.id": result.request_id, "tool.name": result.name, "tool.result": read_any(result.text)}
        )


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
        self._check_not_truncated(message)
        if form.tool_calls is not None:
            self._calls.take(form.tool_calls.find(message))
        else:
            note_unmapped_calls(self.notes, message)
        if form.tool_request is not None:
            self._requests += asked_calls(form.tool_request.find(message))
        if form.error is not None and form.error.holds(message):
            error = shown(form.error.find(message))
            raise AgentError(f"the agent reports an error (`error: {form.error.text}`): {error}")
        return self._read_text(message)

    def _read_text(self, message: Any) -> bool:
        form = self.form
        delta = form.delta and text_of(form.delta.find(message))
        if delta:
            self._deltas.append(delta)
        reply = self._reply_in(message)
        if reply is not None:
            self._reply = reply
        self.done = reply is not None if form.done is None else form.done.holds(message)
        return bool(delta or reply)

    def _check_not_truncated(self, message: Any) -> None:
        """Reject a truncated object if paths are configured, because its calls would be missed."""
        paths = (self.form.reply, self.form.delta, self.form.tool_calls, self.form.done)
        if isinstance(message, str) and message.lstrip().startswith("{") and any(paths):
            raise AgentError(f"a message of the agent is not JSON: {shown(message)}")

    def hear_late(self, message: Any) -> None:
        """Record the calls of a message that arrived before the user's next message."""
        if self.form.tool_calls is not None:
            self._calls.take(self.form.tool_calls.find(message))

    def _reply_in(self, message: Any) -> str | None:
        if self.form.reply is not None:
            return text_of(self.form.reply.find(message))
        place = None if self.form.delta is not None else find_reply_path(message)
        if place is None:
            return None
        note_guessed_path(self.notes, place)
        return text_of(place.find(message))

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
            raise AgentError(self._no_reply_message())
        calls, retells = self._unreported_calls()
        return AgentReply(text=text, observed=calls, retells=retells)

    def no_reply(self, problem: str, retries: int = 0) -> NoReply:
        """Return the error that ends the turn, with the calls reported so far."""
        calls, retells = self._unreported_calls()
        return NoReply(problem, retries, calls, retells=retells)

    def _no_reply_message(self) -> str:
        for key, path in (("reply", self.form.reply), ("delta", self.form.delta)):
            if path is not None:
                return empty_path_message(key, path, self._last)
        return missing_reply_message(self._last)

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
        return f"{where_text_is(self._last)} in its last message: {shown(self._last)}"


def last_results(messages: Sequence[Message]) -> list[ToolResult]:
    """Return the trailing tool results, in order. In the middle of a turn, the agent waits for these."""
    results: list[ToolResult] = []
    for message in reversed(messages):
        if not isinstance(message, ToolResult):
            break
        results.insert(0, message)
    return results
