"""Bypass detection: tools that an agent ran itself although a scenario mocks them.

`BypassDetector` is for protocols that let either side run a tool: it remembers an agent's tools over all
conversations. `MockedTools` checks the recorded calls of one conversation, whatever their source.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from agentest.agents.port import MockBypassed, TurnContext
from agentest.domain.messages import Message, ToolResult, ToolSpec
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall, are_arguments_unknown
from agentest.mocks.calls import tool_called
from agentest.support.errors import CannotSend
from agentest.support.json_text import NotJson, json_text
from agentest.support.lazy_dataclasses import dataclass

REFUSED = "Agentest did not answer this call"
"""The beginning of every refusal message, because agents may report it."""


class BypassDetector:
    """The tools that one agent was seen to run itself, over all its conversations."""

    def __init__(self, agent: str, *, handed_over: str = "", left_out: str = "") -> None:
        """Set the instructions for error messages: how such an agent can hand a call to its client, and what
        to remove together with the mock if the real tool may run.
        """
        self._agent = agent
        self._how_to_hand_over = handed_over
        self._also_remove = left_out
        self._names: dict[str, None] = {}
        self.unreachable: str | None = None
        """Why mocks cannot reach this agent at all, if a conversation has shown that."""

    def check_before(self, ctx: TurnContext) -> None:
        """Raise CannotSend if the scenario mocks a tool that the agent runs itself, since it would run again.

        Tools are not checked here if mocks may have answered such calls: the turn loop checks those.
        """
        if self.unreachable and ctx.tools:
            raise CannotSend(f"this conversation was not begun: {self.unreachable}")
        if names := self._mocked(self._names, ctx):
            raise CannotSend(
                f"this conversation was not begun: in another one agent {self._agent!r} ran "
                f"{quote_tool_names(names)} itself, which the scenario mocks, and the real tool would run "
                "again. That conversation says what can be done"
            )

    def check_after(
        self, observed: Sequence[ToolCall], ctx: TurnContext, not_run: Collection[str] = ()
    ) -> None:
        """Raise MockBypassed if the agent itself ran a tool that the scenario mocks.

        Mocks have answered the observed calls whose ids are in `not_run`.
        """
        ran = [call.name for call in observed if call.ran and call.call_id not in not_run]
        self._names |= dict.fromkeys(ran)
        if names := self._mocked(ran, ctx):
            raise MockBypassed(
                f"agent {self._agent!r} ran {quote_tool_names(names)} itself: the scenario's mock was "
                f"ignored, and the real tool ran. If it may run, remove its mock{self._also_remove}; "
                f"otherwise {self._how_to_hand_over}",
                observed,
                tools=names,
            )

    def _mocked(self, names: Iterable[str], ctx: TurnContext) -> list[str]:
        mocked = set() if ctx.mocks_inside else {tool.name for tool in ctx.tools}
        return [name for name in dict.fromkeys(names) if name in mocked]


def ids_of_mocked_calls(messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of calls that mocks have answered."""
    return frozenset(message.request_id for message in messages if isinstance(message, ToolResult))


def quote_tool_names(names: Sequence[str]) -> str:
    """Return `tool 'find'`, or `tools 'find', 'book'`."""
    return f"tool{'' if len(names) == 1 else 's'} {', '.join(map(repr, names))}"


@dataclass(frozen=True, slots=True)
class MockedTools:
    """The tools of one scenario that mocks answer. No call of the agent may bypass them."""

    agent: str
    tools: Sequence[ToolSpec]
    own: Container[str] = ()
    """Names of the agent's own tools, which are not mistaken for mocks with a similar name."""
    remedy: str = "have the agent hand the call to its caller (a handler: ctx.resolve_tool)"
    """How mocks can answer such an agent's calls, as an instruction."""
    exact: bool = False  # True if the agent calls tools by their exact names; only frameworks lengthen names

    def check(self, calls: Sequence[ToolCall]) -> None:
        """Raise MockBypassed if the agent made a call, not rejected, that a mock should have answered."""
        mocked = {tool.name: tool.parameters for tool in self.tools}
        names: dict[str, str] = {}
        for call in calls:
            is_past_mocks = call.ran and not call.mocked and call.seen_by in (SeenBy.AGENT, SeenBy.SPANS)
            if not is_past_mocks or (self.exact and call.name not in mocked):
                continue
            tool = tool_called(call.name, mocked, self.own)
            if tool is None:
                continue
            _, begins, rest = _text(call).partition(REFUSED)
            if begins:
                refusal = f"{begins}{rest}".splitlines()[0].rstrip('"}] ')
                raise MockBypassed(
                    f"agent {self.agent!r} called {call.name!r}, and got no mock's answer, but "
                    f"{refusal!r}. Its behavior with an answer is unknown"
                )
            if not refused_by_framework(call, mocked[tool]):
                names[call.name] = tool
        if names:
            raise MockBypassed(self._message(names), tools=tuple(names))

    def _message(self, names: Mapping[str, str]) -> str:
        other = next((name for name, mock in names.items() if name != mock), None)
        way_out = f"it may run, remove its mock; otherwise {self.remedy}"
        if other is not None:
            way_out = (
                f"{other!r} is not the tool of mock {names[other]!r}, list it in the agent's `tools`; "
                f"{self.remedy}"
            )
        return (
            f"agent {self.agent!r} ran {quote_tool_names(tuple(names))} itself: no mock was called, and the "
            f"real tool ran. If {way_out}"
        )


_FRAMEWORKS_WORDS = re.compile(
    r"validation errors? for|field required|input should be|invalid_type|is a required property"
    r"|is not of type|additional properties are not allowed|mandatory input parameters"
    r"|invalid (?:input|arguments|tool call|tool parameters)|did not match (?:expected )?schema"
    r"|does not match (?:expected )?schema|unknown tool|no such tool|not a valid tool|tool \S+ not found"
    r"|unexpected keyword argument|fix the errors and try again|not run: no answer",
    re.IGNORECASE,
)
"""How frameworks word a rejected call: pydantic-ai, LangGraph, google-adk, the AI SDK, FastMCP, the libraries
that they check arguments with, and the gate of agents in this process about calls that they did not run.
"""
_OPENS_WRONG = re.compile(
    r"error|invalid|unknown tool|no such tool|not found|not a valid|not match|unexpected", re.IGNORECASE
)
_OPENING_CHARS = 100
"""A rejection appears within this many characters; later text may belong to a tool's result."""
_SOUNDS_WRONG = re.compile(r"error|invalid|required|missing|expected|fail|not allowed", re.IGNORECASE)
_SHOWN_CHARS = 4000


def refused_by_framework(call: ToolCall, parameters: Mapping[str, Any]) -> bool:
    """Return True if a framework seems to have rejected a call before any tool ran: its arguments do not fit.

    `parameters` is the JSON Schema of the tool's arguments, as far as known.
    """
    text = _text(call)
    opens_wrong = call.error is not None or _OPENS_WRONG.search(text[:_OPENING_CHARS])
    if opens_wrong and _FRAMEWORKS_WORDS.search(text):
        return True
    if are_arguments_unknown(call):
        return False  # unknown whether the arguments fit
    sounds_wrong = call.error is not None or call.result is None or _SOUNDS_WRONG.search(text) is not None
    return sounds_wrong and not _fits(call.args, parameters)


def _text(call: ToolCall) -> str:
    result = call.result
    if not isinstance(result, str):
        try:
            result = json_text(result)
        except NotJson:
            result = repr(result)
    return f"{call.error or ''} {result}"[:_SHOWN_CHARS]


def _fits(args: Any, parameters: Mapping[str, Any]) -> bool:
    from agentest.support.json_schema import schema_validator

    try:
        return bool(schema_validator(parameters, lambda *_: True).is_valid(args))
    except Exception:  # noqa: BLE001 - jsonschema raises many kinds for an invalid schema
        return True  # unknown, so nothing shows that the call was rejected: it counts as one that ran
