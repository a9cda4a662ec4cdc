"""Values for placeholders such as `{{message}}` and `{{session_id}}` in requests to an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentest.agents.port import TurnContext
from agentest.domain.messages import AgentMessage, Message, UserText
from agentest.support.errors import CannotSend
from agentest.support.templates import Template, Values
from agentest.support.text import turn_name
from agentest.support.trace_context import turn_of_requests

if TYPE_CHECKING:
    from agentest.support.jmespath_expressions import PathTemplate

_NOTHING_SAVED: Mapping[str, Any] = {}


class TurnValues:
    """The placeholder values of one request (implements `support.templates.Values`).

    The names are those of `config.agents.base.PLACEHOLDERS`, and `state.KEY` for the session's state.
    """

    def __init__(
        self, messages: Sequence[Message], ctx: TurnContext, saved: Mapping[str, Any] = _NOTHING_SAVED
    ) -> None:
        """Create the values of a turn. `saved` (name → value) takes precedence over all others."""
        self._messages = messages
        self._ctx = ctx
        self._saved = saved

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with the addresses of the mock servers and the trace context of this turn."""
        turn, servers = turn_of_requests(), self._ctx.servers
        named = {"TRACEPARENT": turn.traceparent, "BAGGAGE": turn.baggage} if turn else {}
        return {**(servers.by_variable if servers else {}), **named}

    def __getitem__(self, name: str) -> Any:
        """Return the value of a placeholder. Raises CannotSend if it has none in this turn."""
        if name in self._saved:
            return self._saved[name]
        match name.split("."):
            case ["message"]:
                return last_message(self._messages)
            case ["messages"]:
                return conversation_texts(self._messages)
            case ["session_id"]:
                return self._ctx.session_id
            case ["turn_index"]:
                return self._ctx.turn_index
            case ["scenario"]:
                return self._ctx.scenario
            case ["date"]:
                return self._ctx.date
            case ["mcp_url" | "rest_url" | "model_url" | "otlp_url"] if self._ctx.servers:
                return self._ctx.servers.by_placeholder[name]
            case ["state", *keys]:
                return self._state_value(name, keys)
        raise CannotSend(f"{{{{{name}}}}} has no value in {turn_name(self._ctx.turn_index)}")

    def _state_value(self, name: str, keys: Sequence[str]) -> Any:
        value: Any = self._ctx.session.state if self._ctx.session else {}
        for key in keys:
            if not isinstance(value, Mapping) or key not in value:
                raise CannotSend(
                    f"{{{{{name}}}}} has no value: the state of the scenario's `session` has no {key!r}; "
                    f'write it into the scenario: session={{"state": {{"{keys[0]}": …}}}}'
                )
            value = value[key]
        return value


class PartialValues:
    """Values, some still unknown. Templates may omit only keys that hold nothing but such a value."""

    def __init__(self, values: Values, absent: frozenset[str]) -> None:
        self._values = values
        self._absent = absent

    def __getitem__(self, name: str) -> Any:
        if name not in self._absent:
            return self._values[name]
        raise CannotSend(
            f"{{{{{name}}}}} has no value before the agent has answered, and only keys that hold nothing "
            "else are left out until then: let an earlier request save it, or put it into a key of its own"
        )


class ValuesOrNone:
    """Values, with None for those that are still unknown."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except CannotSend:
            return None


def holds_for(condition: PathTemplate, saved: Mapping[str, Any], values: Values) -> bool:
    return condition.filled(ValuesOrNone(values)).holds(saved)


def last_message(messages: Sequence[Message]) -> str:
    """Return the user's last message."""
    return next((m.text for m in reversed(messages) if isinstance(m, UserText)), "")


_USUAL_FORM = {role: Template({"role": role, "content": "{{content}}"}) for role in ("user", "assistant")}


def conversation_texts(messages: Sequence[Message], forms: Mapping[str, Template] = _USUAL_FORM) -> list[Any]:
    """Return the conversation's texts in the form of their role, without tool calls."""
    return [
        forms["user" if isinstance(message, UserText) else "assistant"].filled(
            {"content": message.text or ""}
        )
        for message in messages
        if isinstance(message, UserText) or (isinstance(message, AgentMessage) and message.text)
    ]
