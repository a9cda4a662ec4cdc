"""The simulated user's own tools in one conversation: calls, results, and how its model sees them.

Agent, judges of turns and trajectories do not see these calls, which have a separate record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentest.conversation.user_prompts import ActingMessage, ToolUse
from agentest.domain.transcript import ToolCall
from agentest.mocks.resolver import MockResolver
from agentest.models.port import Message
from agentest.support.errors import MockError
from agentest.support.json_text import reject_constant, well_formed
from agentest.support.text import cut, data_block, shortened

_RESULT_CHARS = 20_000
_NAME_CHARS = 100
_UNSENT = (
    "What you wrote besides was not sent, and nothing has ended: you could not know yet what the tool would "
    "show. Write it now if it still holds."
)


@dataclass(frozen=True, slots=True)
class _Round:
    """One answer of the model with tool calls, and their results."""

    uses: Sequence[ToolUse]
    results: Sequence[str]
    said_besides: bool

    @property
    def messages(self) -> list[Message]:
        asked = json.dumps({"tool_calls": [use.model_dump() for use in self.uses]}, ensure_ascii=False)
        blocks = [_block(use, result) for use, result in zip(self.uses, self.results, strict=True)]
        shown = "\n".join([*blocks, *([_UNSENT] if self.said_besides else [])])
        return [{"role": "assistant", "content": asked}, {"role": "user", "content": shown}]


class UserTools:
    """The user's tools in one conversation. Each call is recorded with the turn that follows it.

    Args:
        mocks: answers and records the calls; shares the conversation's state.
    """

    def __init__(self, mocks: MockResolver) -> None:
        self._mocks = mocks
        self._names = tuple(spec.name for spec in mocks.specs())
        self._rounds: defaultdict[int, list[_Round]] = defaultdict(list)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls so far, in order."""
        return self._mocks.calls

    def messages(self, turn_index: int) -> list[Message]:
        """Return the tool calls before the user's message of a turn, as its model sees them."""
        return [message for each in self._rounds[turn_index] for message in each.messages]

    async def use(self, answer: ActingMessage, turn_index: int) -> None:
        """Make the calls of an answer, one after another.

        An invalid call is answered with an error that the model can correct. Raises MockError, or the
        AgentestError that a mock raised.
        """
        results = [await self._result(use, turn_index) for use in answer.tool_calls]
        self._rounds[turn_index].append(_Round(answer.tool_calls, results, answer.said_besides))

    async def _result(self, use: ToolUse, turn_index: int) -> str:
        name = well_formed(use.name)
        if name not in self._names:
            problem = f"you have no tool {shortened(name, _NAME_CHARS)!r}; yours are {', '.join(self._names)}"
            args = _parsed(use.arguments)
            return self._mocks.refuse(shortened(name, _NAME_CHARS), args, turn_index, problem)
        try:
            return await self._mocks.resolve_json(name, use.arguments, turn_index)
        except MockError as error:
            raise MockError(f"{error} (one of the simulated user's own tools, `user_tools`)") from error


def _parsed(arguments: str) -> Any:
    """Return the arguments for the record; the text itself if it is not JSON."""
    try:
        return json.loads(arguments, parse_constant=reject_constant) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def _block(use: ToolUse, result: str) -> str:
    """Format the result of a call. JSON prevents foreign text from starting a line."""
    name = json.dumps(shortened(use.name, _NAME_CHARS), ensure_ascii=False)
    lines = (f"tool: {cut(name, _RESULT_CHARS)}", f"result: {cut(_in_json(result), _RESULT_CHARS)}")
    return data_block("tool_result", "\n".join(lines))


def _in_json(result: str) -> str:
    """Return the result unchanged if it is JSON, else as a JSON string."""
    try:
        return json.dumps(json.loads(result), ensure_ascii=False)
    except (ValueError, RecursionError):
        return json.dumps(result, ensure_ascii=False)
