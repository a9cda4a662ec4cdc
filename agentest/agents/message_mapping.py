"""A turn with an agent that sends messages of its own form: what each of them tells, by the user's paths.

For agents that stay connected for a conversation: programs that write lines, WebSockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.call_mapping import ToldCalls, as_tool_calls, asked_calls, note_untold
from agentest.agents.json_reader import read_any, shown
from agentest.agents.port import AgentReply, NoReply, Notes
from agentest.agents.reply_paths import (
    no_place,
    note_place,
    nothing_found,
    text_of,
    usual_place,
    where_text_is,
)
from agentest.config.agents.base import DialogueAgent
from agentest.domain.messages import Message, ToolRequest, ToolResult
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError
from agentest.support.json_path import JsonPath
from agentest.support.templates import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Where messages have what. None: they do not have it."""

    reply: JsonPath | None = None
    delta: JsonPath | None = None
    tool_calls: JsonPath | None = None
    error: JsonPath | None = None
    done: JsonPath | None = None
    tool_request: JsonPath | None = None
    tool_response: Template | None = None

    @classmethod
    def of(cls, settings: DialogueAgent) -> Form:
        """The form that the settings describe."""
        names = ("reply", "delta", "tool_calls", "error", "done", "tool_request")
        texts = {name: getattr(settings, name) for name in names}
        paths = {name: None if text is None else JsonPath(text) for name, text in texts.items()}
        response = settings.tool_response
        return cls(**paths, tool_response=None if response is None else Template(response))

    def response(self, result: ToolResult) -> Any:
        """The message that answers a tool request."""
        assert self.tool_response is not None, "checked with the configuration: it goes with `tool_request`"
        return self.tool_response.filled(
            {"tool.id": result.request_id, "tool.name": result.name, "tool.result": read_any(result.text)}
        )


@dataclass(slots=True)
class Hearing:
    """What has been heard in a turn so far."""

    form: Form
    turn_index: int
    notes: Notes
    done: bool = False
    _deltas: list[str] = field(default_factory=list)
    _reply: str | None = None
    _calls: ToldCalls = field(default_factory=ToldCalls)
    _taken: tuple[ToolCall, ...] = ()
    """The calls that have been taken, as they were then."""
    _requests: list[ToolRequest] = field(default_factory=list)
    _last: Any = None

    def hear(self, message: Any) -> bool:
        """Take a message in, a JSON value; whether it had text. Raises AgentError for an error.

        Calls first: what an agent did before it failed stays in the record.
        """
        form, self._last = self.form, message
        self._check_whole(message)
        if form.tool_calls is not None:
            self._calls.take(form.tool_calls.find(message))
        else:
            note_untold(self.notes, message)
        if form.tool_request is not None:
            self._requests += asked_calls(form.tool_request.find(message))
        if form.error is not None and form.error.holds(message):
            told = shown(form.error.find(message))
            raise AgentError(f"the agent reports an error (`error: {form.error.text}`): {told}")
        return self._hear_text(message)

    def _hear_text(self, message: Any) -> bool:
        form = self.form
        delta = form.delta and text_of(form.delta.find(message))
        if delta:
            self._deltas.append(delta)
        reply = self._reply_in(message)
        if reply is not None:
            self._reply = reply
        self.done = reply is not None if form.done is None else form.done.holds(message)
        return bool(delta or reply)

    def _check_whole(self, message: Any) -> None:
        """Refuse half an object where objects are looked into: calls that it tells of would be missed."""
        paths = (self.form.reply, self.form.delta, self.form.tool_calls, self.form.done)
        if isinstance(message, str) and message.lstrip().startswith("{") and any(paths):
            raise AgentError(f"a message of the agent is not JSON: {shown(message)}")

    def hear_late(self, message: Any) -> None:
        """Take the calls that a message tells of which came before the user spoke."""
        if self.form.tool_calls is not None:
            self._calls.take(self.form.tool_calls.find(message))

    def _reply_in(self, message: Any) -> str | None:
        if self.form.reply is not None:
            return text_of(self.form.reply.find(message))
        place = None if self.form.delta is not None else usual_place(message)
        if place is None:
            return None
        note_place(self.notes, place)
        return text_of(place.find(message))

    @property
    def asks(self) -> bool:
        """Whether a tool is asked for."""
        return bool(self._requests)

    def requests(self) -> AgentReply:
        """The tools that are asked for in the middle of the turn, which then goes on."""
        requests, self._requests = tuple(self._requests), []
        calls, retells = self._news()
        return AgentReply(text=None, tool_requests=requests, observed=calls, retells=retells)

    def answer(self) -> AgentReply:
        """The reply at the end of the turn. Raises AgentError where no message had one."""
        text = self._reply if self._reply is not None else "".join(self._deltas) or None
        if text is None and not self._calls:
            raise AgentError(self._nothing())
        calls, retells = self._news()
        return AgentReply(text=text, observed=calls, retells=retells)

    def no_reply(self, problem: str, retries: int = 0) -> NoReply:
        """The error that ends the turn, with the calls that were told until then."""
        calls, retells = self._news()
        return NoReply(problem, retries, calls, retells=retells)

    def _nothing(self) -> str:
        for key, path in (("reply", self.form.reply), ("delta", self.form.delta)):
            if path is not None:
                return nothing_found(key, path, self._last)
        return no_place(self._last)

    def _news(self) -> tuple[tuple[ToolCall, ...], bool]:
        """The calls that were not taken yet, or of which more was told since; whether there are such."""
        calls, before = as_tool_calls(self._calls, self.turn_index), self._taken
        self._taken = calls
        changed = tuple(call for call, told in zip(calls, before, strict=False) if call != told)
        return (*changed, *calls[len(before) :]), bool(changed)

    @property
    def is_silent(self) -> bool:
        """Whether no message has come."""
        return self._last is None

    def what_came(self) -> str:
        """The last message, for errors."""
        if self._last is None:
            return "it sent no message in this turn"
        return f"{where_text_is(self._last)} in its last message: {shown(self._last)}"


def last_results(messages: Sequence[Message]) -> list[ToolResult]:
    """The tool results that came last, in order: what the agent waits for, in the middle of a turn."""
    results: list[ToolResult] = []
    for message in reversed(messages):
        if not isinstance(message, ToolResult):
            break
        results.insert(0, message)
    return results
