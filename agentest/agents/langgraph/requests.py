"""What is sent to a LangGraph server: runs with a user's message, and runs that answer interrupts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from agentest.agents.chat_completions.attachments import content_of
from agentest.agents.langgraph.turns import Sent
from agentest.config.agents.langgraph import LangGraphAgent
from agentest.domain.messages import UserText
from agentest.support.templates import Template, Values

_TOKENS = "messages-tuple"
_MESSAGE = {"message", "messages"}


def thread_of(session_id: str) -> str:
    """The thread of a session: these servers take UUIDs alone."""
    try:
        return str(UUID(session_id))
    except ValueError:
        return str(uuid5(NAMESPACE_URL, f"agentest:{session_id}"))


class Requests:
    """Makes the bodies of runs from what the configuration says."""

    def __init__(self, config: LangGraphAgent) -> None:
        body = dict(config.body)
        self._input = Template(body.pop("input", {}))
        self._resume = Template(body.pop("command", None))
        self._body = Template(body)
        modes = ["updates", _TOKENS] if config.streaming else ["updates"]
        self._streamed = {"stream_mode": modes, "stream_subgraphs": True}
        self._placed = Template([config.body, config.headers]).names
        self._adds_message = not ("messages" in config.body.get("input", {}) or self._input.names & _MESSAGE)

    def state_keys(self, state: Mapping[str, Any]) -> list[str]:
        """The keys of a session's state that go into the graph's; `body` and `headers` place the others."""
        if "state" in self._placed:
            return []
        placed = {name.split(".")[1] for name in self._placed if name.startswith("state.")}
        return [key for key in state if key not in placed]

    def run(
        self, assistant: str, said: UserText, sent: Sent, state: Mapping[str, Any], values: Values
    ) -> dict[str, Any]:
        """The body of a run with a user's message; `state` goes into that of the graph."""
        given = {key: state[key] for key in self.state_keys(state)} | self._input.filled(values)
        if self._adds_message:
            message = {"role": "user", "content": content_of(said), "id": sent.id}
            given = {"messages": [message], **given}
        return {**self._common(assistant, values), "if_not_exists": "create", "input": given}

    def answer(self, assistant: str, resume: Any, values: Values) -> dict[str, Any]:
        """The body of a run that answers interrupts."""
        return {**self._common(assistant, values), "command": {"resume": resume}}

    def own_resume(self, values: Values) -> Any:
        """The answer to interrupts that the configuration writes out (`body.command.resume`); None: none."""
        command = self._resume.filled(values)
        return None if command is None else command["resume"]

    def _common(self, assistant: str, values: Values) -> dict[str, Any]:
        return {**self._body.filled(values), **self._streamed, "assistant_id": assistant}
