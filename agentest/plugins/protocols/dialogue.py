"""Messages of the user's own form: the settings that describe them, and the reader of what an agent sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from agentest.agents import reply_detection as detection
from agentest.agents.json_reader import excerpt, read_any
from agentest.agents.port import AgentNotes, AgentReply, NoReply
from agentest.agents.reported_calls import (
    ReportedCalls,
    as_tool_calls,
    note_unmapped_calls,
    requested_tool_calls,
)
from agentest.config.agents.base import AnyAgent
from agentest.config.fields import PathText
from agentest.domain.messages import Message, ToolRequest, ToolResult
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import ToolCall
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, errors_as
from agentest.support.jmespath_expressions import JsonPath
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template, check_names

OF_TOOL = ("tool.id", "tool.name", "tool.result", "tool.text")  # placeholders in `tool_response`


class DialogueAgent(AnyAgent):
    """Base class of agents whose messages are read by paths (`MessagePaths`)."""

    reply: PathText | None = None
    delta: PathText | None = None
    done: PathText | None = None
    tool_calls: PathText | None = None
    error: PathText | None = None
    tool_request: PathText | None = None
    tool_response: Any = None

    @property
    def natural_visibility(self) -> ToolVisibility:
        if self.tool_request is not None:
            return ToolVisibility.RETURNED
        return ToolVisibility.UNSEEN if self.tool_calls is None else ToolVisibility.REPORTED

    def _check_dialogue(self) -> None:
        if (self.tool_request is None) != (self.tool_response is None):
            raise ValueError("`tool_request` and `tool_response` belong together: set both or neither")
        if self.delta is not None and self.done is None and self.reply is None:
            raise ValueError("`delta` needs `done`: which message is a turn's last, like type == 'end'")
        with errors_as(ValueError, "`tool_response` "):
            check_names(self.tool_response, OF_TOOL)


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
    _requests: list[ToolRequest] = field(default_factory=list)
    _last: Any = None
    _first_ms: float | None = None

    def hear(self, message: Any, limit: TimeLimit | None = None) -> None:
        """Read a message, which is a JSON value. `limit` says when its text came. Raises AgentError.

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
        delta = form.delta and detection.text_of(form.delta.find(message))
        if delta:
            self._deltas.append(delta)
        path = form.reply
        if path is None and form.delta is None:
            path = detection.find_reply_path(message)
            if path is not None:
                detection.note_guessed_path(self.notes, path)
        reply = None if path is None else detection.text_of(path.find(message))
        if reply is not None:
            self._reply = reply
        self.done = reply is not None if form.done is None else form.done.holds(message)
        if limit and (delta or reply) and self._first_ms is None:
            self._first_ms = limit.elapsed * 1000

    def hear_late(self, message: Any) -> None:
        """Record the calls of a message that arrived before the user's next message."""
        if self.form.tool_calls is not None:
            self._calls.take(self.form.tool_calls.find(message))

    @property
    def is_over(self) -> bool:
        """True if the turn is done, or waits for tools that the agent requests."""
        return self.done or bool(self._requests)

    def reply(self, limit: TimeLimit, retries: int = 0) -> AgentReply:
        """Return the reply, or the requests in a turn that is not done, with the times of this block."""
        reply = self.answer() if self.done else self.requests()
        first_ms, self._first_ms = self._first_ms, None
        return replace(reply, latency_ms=limit.elapsed * 1000, first_token_ms=first_ms, retries=retries)

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
                    raise AgentError(detection.empty_path_message(key, path, self._last))
            raise AgentError(detection.missing_reply_message(self._last))
        calls, retells = self._unreported_calls()
        return AgentReply(text=text, observed=calls, retells=retells)

    def no_reply(self, problem: str, retries: int = 0) -> NoReply:
        """Return the error that ends the turn, with the calls reported so far."""
        calls, retells = self._unreported_calls()
        return NoReply(problem, retries, calls, retells=retells)

    def _unreported_calls(self) -> tuple[tuple[ToolCall, ...], bool]:
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
        return f"{detection.where_text_is(self._last)} in its last message: {excerpt(self._last)}"


def last_results(messages: Sequence[Message]) -> list[ToolResult]:
    """Return the trailing tool results, in order. In the middle of a turn, the agent waits for these."""
    results: list[ToolResult] = []
    for message in reversed(messages):
        if not isinstance(message, ToolResult):
            break
        results.insert(0, message)
    return results
