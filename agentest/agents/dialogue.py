"""A turn with an agent that sends messages of its own form: what each of them tells, by the user's paths.

For agents that stay connected for a conversation: programs that write lines, WebSockets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.paths import text_of, where_text_is
from agentest.agents.port import AgentReply
from agentest.agents.reading import shown, text_or_none
from agentest.errors import AgentError
from agentest.messages import Message, ToolRequest, ToolResult
from agentest.sight import SeenBy
from agentest.support.json_path import JsonPath
from agentest.support.templates import Template
from agentest.transcript import ToolCall

_USUAL = ("reply", "response", "answer", "message", "output", "text", "content")
"""Where the reply stands that no key points to, if exactly one of them is there."""


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
    def of(cls, settings: Any) -> Form:
        """The form that settings with keys of these names describe."""
        names = ("reply", "delta", "tool_calls", "error", "done", "tool_request")
        texts = {name: getattr(settings, name) for name in names}
        paths = {name: None if text is None else JsonPath(text) for name, text in texts.items()}
        response = settings.tool_response
        return cls(**paths, tool_response=None if response is None else Template(response))

    def response(self, result: ToolResult) -> Any:
        """The message that answers a tool request."""
        assert self.tool_response is not None, "checked with the configuration: it goes with `tool_request`"
        return self.tool_response.filled(
            {"tool.id": result.request_id, "tool.name": result.name, "tool.result": _json(result.text)}
        )


@dataclass(slots=True)
class Hearing:
    """What has been heard in a turn so far."""

    form: Form
    turn_index: int
    done: bool = False
    _deltas: list[str] = field(default_factory=list)
    _reply: str | None = None
    _calls: list[ToolCall] = field(default_factory=list)
    _requests: list[ToolRequest] = field(default_factory=list)
    _last: Any = None

    def hear(self, message: Any) -> bool:
        """Take a message in, a JSON value; whether it had text. Raises AgentError for an error."""
        form, self._last = self.form, message
        if form.error is not None and form.error.holds(message):
            raise AgentError(f"the agent reports an error: {shown(form.error.find(message))}")
        if form.tool_calls is not None:
            self._calls += told_calls(form.tool_calls.find(message), self.turn_index)
        if form.tool_request is not None and (asked := form.tool_request.find(message)):
            self._requests.append(_request(asked))
        delta = form.delta and text_of(form.delta.find(message))
        if delta:
            self._deltas.append(delta)
        reply = self._reply_in(message)
        if reply is not None:
            self._reply = reply
        self.done = reply is not None if form.done is None else form.done.holds(message)
        return bool(delta or reply)

    def _reply_in(self, message: Any) -> str | None:
        if self.form.reply is not None:
            return text_of(self.form.reply.find(message))
        return None if self.form.delta is not None else usual_reply(message)

    @property
    def asks(self) -> bool:
        """Whether a tool is asked for."""
        return bool(self._requests)

    def taken_requests(self) -> tuple[ToolRequest, ...]:
        """The tool requests that have not been taken yet."""
        taken, self._requests = tuple(self._requests), []
        return taken

    def taken_calls(self) -> tuple[ToolCall, ...]:
        """The calls that were told and have not been taken yet."""
        taken, self._calls = tuple(self._calls), []
        return taken

    def answer(self) -> AgentReply:
        """The reply at the end of the turn. Raises AgentError where no message had one."""
        text = self._reply if self._reply is not None else "".join(self._deltas) or None
        calls = self.taken_calls()
        if text is None and not calls:
            raise AgentError(f"the agent's messages have no reply; {self.what_came()}")
        return AgentReply(text, observed=calls)

    def what_came(self) -> str:
        """The last message, for errors."""
        if self._last is None:
            return "it sent no message in this turn"
        return f"{where_text_is(self._last)} in its last message: {shown(self._last)}"


def usual_reply(message: Any) -> str | None:
    """The text of a message whose form nobody described: itself, or what stands at one of the usual keys."""
    if isinstance(message, str):
        return message
    found = [message[key] for key in _USUAL if key in message] if isinstance(message, Mapping) else []
    return text_of(found[0]) if len(found) == 1 else None


def told_calls(found: Any, turn_index: int) -> tuple[ToolCall, ...]:
    """Calls that the agent tells of: one or more `{name, args, result}`. Raises AgentError for others."""
    items = [] if found is None else found if isinstance(found, list) else [found]
    return tuple(_call(item, turn_index) for item in items if item is not None)


def _call(item: Any, turn_index: int) -> ToolCall:
    name = item.get("name") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(name, str) or not name:
        raise AgentError(
            f"`tool_calls` finds {shown(item)}, expected calls as {{name, args, result}}; bring them into "
            "that form by the path: tools[].{name: tool, args: input, result: output}"
        )
    args, result = item.get("args"), item.get("result")
    args = {} if args is None else _json(args)
    return ToolCall(
        name,
        args,
        result,
        False,
        turn_index,
        seen_by=SeenBy.AGENT,
        call_id=text_or_none(item.get("id")),
    )


def _request(asked: Any) -> ToolRequest:
    name = asked.get("name") if isinstance(asked, Mapping) else None
    if not isinstance(asked, Mapping) or not isinstance(name, str) or not name:
        raise AgentError(f"`tool_request` finds {shown(asked)}, expected {{id, name, args}}")
    args = asked.get("args")
    text = args if isinstance(args, str) else json.dumps({} if args is None else args)
    identifier = asked.get("id")
    return ToolRequest("" if identifier is None else text_of(identifier) or "", name, text)


def last_results(messages: Sequence[Message]) -> list[ToolResult]:
    """The tool results that came last, in order: what the agent waits for, in the middle of a turn."""
    results: list[ToolResult] = []
    for message in reversed(messages):
        if not isinstance(message, ToolResult):
            break
        results.insert(0, message)
    return results


def _json(value: Any) -> Any:
    """A text that is JSON as its value, everything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
