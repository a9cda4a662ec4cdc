"""Who talks to the agent: a script, a model, or, without a model, the scenario's own facts.

A user holds nothing of a conversation: what it says next depends on the turns so far.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentest.conversation.user_prompts import OPENING, reply_seen, user_prompt
from agentest.endings import Ending
from agentest.llm.port import CallKey, Message, Model
from agentest.messages import Attachment, UserText
from agentest.scenarios.definition import Scenario
from agentest.transcript import Turn

STOP_MARK = "[[STOP]]"


@dataclass(frozen=True, slots=True)
class Said:
    """A user's message. `last`: the user has nothing to add after the agent's reply to it."""

    text: str
    last: bool = False
    attachments: tuple[Attachment, ...] = ()
    """Files that go with the text."""


class User(Protocol):
    """Someone who talks to the agent."""

    ending: Ending
    """How a conversation ends when this user has nothing more to say."""

    async def next_message(self, turns: Sequence[Turn]) -> Said | None:
        """The next message, or None to end the conversation. Raises ModelError."""
        ...


class ScriptedUser:
    """Says the messages of a script, whatever the agent replies."""

    ending = Ending.SCRIPT

    def __init__(self, messages: Sequence[str | UserText]) -> None:
        self._messages = tuple(UserText(one) if isinstance(one, str) else one for one in messages)

    async def next_message(self, turns: Sequence[Turn]) -> Said | None:
        at = len(turns)
        if at >= len(self._messages):
            return None
        message = self._messages[at]
        return Said(message.text, at == len(self._messages) - 1, message.attachments)


class UserMessage(BaseModel, defer_build=True):
    """What a simulated user's model answers."""

    model_config = ConfigDict(frozen=True)

    message: str = Field(description="What the user says next to the assistant.")
    should_stop: bool = Field(description="True when the user has nothing more to say.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.should_stop and not self.message.strip():
            raise ValueError("`message` is empty; say something, or set should_stop")
        return self


class OpeningMessage(UserMessage):
    """The first message: it is sent in any case, so it may not be empty."""

    @model_validator(mode="after")
    def _opens(self) -> Self:
        if not self.message.replace(STOP_MARK, "").strip():
            raise ValueError("`message` is empty; a conversation begins with something said")
        return self


class SimulatedUser:
    """A user played by a model."""

    ending = Ending.SATISFIED

    def __init__(self, model: Model, scenario: Scenario, scope: str, conversation: int) -> None:
        self._model = model
        self._prompt = user_prompt(scenario)
        self._scope = scope
        self._conversation = conversation

    async def next_message(self, turns: Sequence[Turn]) -> Said | None:
        key = CallKey("user", self._scope, self._conversation, len(turns))
        messages = self._messages(turns)
        if not turns:
            return self._first(await self._model.ask(messages, OpeningMessage, key))
        answer = await self._model.ask(messages, UserMessage, key)
        if answer.should_stop or STOP_MARK in answer.message:
            return None
        return Said(answer.message)

    def _first(self, answer: UserMessage) -> Said:
        stop = answer.should_stop or STOP_MARK in answer.message
        return Said(answer.message.replace(STOP_MARK, "").strip(), stop)

    def _messages(self, turns: Sequence[Turn]) -> list[Message]:
        """The conversation as the user sees it: its own lines are the model's, the agent's the other's."""
        messages: list[Message] = [
            {"role": "system", "content": self._prompt},
            {"role": "user", "content": OPENING},
        ]
        for turn in turns:
            messages.append({"role": "assistant", "content": turn.user_message})
            messages.append({"role": "user", "content": reply_seen(turn)})
        return messages


_WORD = re.compile(r"\w+")
_QUESTION_MARKS = "?？؟"
# A full stop inside a number or an abbreviation does not end a sentence; a space after it does.
_SENTENCE_ENDS = ("\n", ". ", "! ", "? ", "؟ ", "？", "。", "！")
_SAY_NOTHING = frozenset(
    _WORD.findall(
        "a an and any are as at be by can could d did do does for from had has have how i if in is it ll m "
        "may me my of on or our please re s shall should so t that the then there this to us ve was we were "
        "what when where which who whom whose why will with would you your"
    )
)


class OfflineUser:
    """A user without a model: says the goal, then answers with what it knows, each fact once.

    Deterministic: the fact that shares most words of meaning with the agent's last question comes next, the
    earliest listed where several share as many; it stops when no fact is left.
    """

    ending = Ending.SATISFIED

    def __init__(self, scenario: Scenario) -> None:
        self._goal = scenario.goal
        self._knowledge = scenario.knowledge

    async def next_message(self, turns: Sequence[Turn]) -> Said | None:
        if not turns:
            return Said(self._goal)
        left = list(self._knowledge)
        for turn in turns[1:]:
            left.remove(turn.user_message)
        if not left:
            return None
        asked = _words(_last_question(turns[-1].agent_message))
        return Said(max(left, key=lambda fact: len(asked & _words(fact))))


def _last_question(text: str) -> str:
    end = max(text.rfind(mark) for mark in _QUESTION_MARKS)
    if end < 0:
        return text
    question = text[:end].rstrip(_QUESTION_MARKS + "!")
    return question[max(question.rfind(mark) for mark in _SENTENCE_ENDS) + 1 :]


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(text)) - _SAY_NOTHING
