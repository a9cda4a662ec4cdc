"""The user that a model plays from a goal, a profile and knowledge, and the tools it can use."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentest.conversation.user import NextMessage, out_of_patience
from agentest.conversation.user_prompts import (
    MAX_ROUNDS,
    OPENING,
    STOP_MARK,
    ActingMessage,
    ActingOpening,
    OpeningMessage,
    ToolUse,
    UserMessage,
    reply_block,
    shortened_reply,
    user_prompt,
)
from agentest.domain.end_reason import Ending
from agentest.domain.transcript import ToolCall, Turn
from agentest.mocks.resolver import MockResolver
from agentest.models.port import CallKey, Message, Model
from agentest.scenarios.model import Scenario
from agentest.support.errors import MockError, ModelError
from agentest.support.json_text import reject_constant, well_formed
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import cut, data_block, shortened


class SimulatedUser:
    """A user played by a model, with its own tools. `attempt`: number of earlier attempts (`user.check`)."""

    def __init__(
        self,
        model: Model,
        scenario: Scenario,
        scope: str = "",
        conversation: int = 1,
        *,
        attempt: int = 0,
        tools: UserTools | None = None,
    ) -> None:
        self._model = model
        self._prompt = user_prompt(scenario)
        self._patience = scenario.patience
        self._key = CallKey("user", scope, conversation, sample=attempt)
        self._tools = tools

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        if out_of_patience(self._patience, turns):
            return Ending.GAVE_UP
        key = replace(self._key, turn=len(turns))
        answer = await (
            self._answer_after_tools(turns, key, self._tools) if self._tools else self._answer(turns, key)
        )
        return (answer.ending or NextMessage(answer.message)) if turns else _opening(answer)

    async def _answer(self, turns: Sequence[Turn], key: CallKey) -> UserMessage:
        shape = UserMessage if turns else OpeningMessage
        return await self._model.ask(self._messages(turns), shape, key)

    async def _answer_after_tools(self, turns: Sequence[Turn], key: CallKey, tools: UserTools) -> UserMessage:
        """Return the user's message after it has used its tools. Raises ModelError if it never writes one."""
        shape = ActingMessage if turns else ActingOpening
        for used in range(MAX_ROUNDS + 1):
            answer = await self._model.ask(self._messages(turns), shape, key)
            if not answer.tool_calls:
                return answer
            if used < MAX_ROUNDS:
                await tools.use(answer, len(turns))
        raise ModelError(
            f"the simulated user used its own tools more than {MAX_ROUNDS} times before its message of turn "
            f"{len(turns)} without writing one (inference failure)"
        )

    def _messages(self, turns: Sequence[Turn]) -> list[Message]:
        """Return the conversation from the user's side: its own messages are the assistant's."""
        reply_text = reply_block if self._tools else shortened_reply
        messages: list[Message] = [
            {"role": "system", "content": self._prompt},
            {"role": "user", "content": OPENING},
        ]
        for turn in turns:
            messages += self._tool_messages(turn.turn_index)
            messages.append({"role": "assistant", "content": turn.user_message})
            messages.append({"role": "user", "content": reply_text(turn)})
        return messages + self._tool_messages(len(turns))

    def _tool_messages(self, turn_index: int) -> list[Message]:
        return self._tools.messages(turn_index) if self._tools else []


def _opening(answer: UserMessage) -> NextMessage:
    return NextMessage(answer.message.replace(STOP_MARK, "").strip(), answer.ending)


_RESULT_CHARS = 20_000
_NAME_CHARS = 100
_UNSENT_TEXT_NOTE = (
    "What you wrote besides was not sent, and nothing has ended: you could not know yet what the tool would "
    "show. Write it now if it still holds."
)


@dataclass(frozen=True, slots=True)
class _Round:
    """One answer of the model with tool calls, and their results."""

    uses: Sequence[ToolUse]
    results: Sequence[str]
    has_extra_text: bool

    @property
    def messages(self) -> list[Message]:
        request = json.dumps({"tool_calls": [use.model_dump() for use in self.uses]}, ensure_ascii=False)
        blocks = [_block(use, result) for use, result in zip(self.uses, self.results, strict=True)]
        answer = "\n".join([*blocks, *([_UNSENT_TEXT_NOTE] if self.has_extra_text else [])])
        return [{"role": "assistant", "content": request}, {"role": "user", "content": answer}]


class UserTools:
    """The user's tools in one conversation, answered by `mocks`. A call belongs to the turn that follows."""

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
        """Make the calls of an answer in order; an invalid one gets an error. Raises what a mock raised."""
        results = [await self._result(use, turn_index) for use in answer.tool_calls]
        self._rounds[turn_index].append(_Round(answer.tool_calls, results, answer.has_extra_text))

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
