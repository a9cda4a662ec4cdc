"""The users that talk to the agent: a script, a model, or without a model the scenario's facts.

A user has no memory of its own: its next message depends only on the turns so far and on its calls of its own
tools (`user_tools`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from agentest.domain.end_reason import Ending
from agentest.domain.messages import Attachment, UserText
from agentest.domain.transcript import Turn
from agentest.scenarios.model import Scenario
from agentest.support.errors import ModelError
from agentest.support.lazy_dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class NextMessage:
    """A user's message. `ends`: how the conversation ends after the agent's reply; None: it continues."""

    text: str
    ends: Ending | None = None
    attachments: tuple[Attachment, ...] = ()
    keep: int | None = None
    """How many turns the agent still knows; it is made to forget later ones. None: all of them."""


class UserLeftRole(ModelError):
    """The model that plays the user has taken the part of the assistant: the conversation is invalid."""


class User(Protocol):
    """A participant that talks to the agent."""

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        """Return the next message, or how the conversation ends. Raises ModelError."""


class ScriptedUser:
    """Sends the messages of a script, regardless of the agent's replies. `then` goes on after them."""

    def __init__(self, messages: Sequence[str | UserText], then: User | None = None) -> None:
        self._messages = tuple(UserText(text) if isinstance(text, str) else text for text in messages)
        self._then = then

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        at = len(turns)
        if at >= len(self._messages):
            return await self._then.next_message(turns) if self._then else Ending.SCRIPT
        message, is_last = self._messages[at], at == len(self._messages) - 1 and not self._then
        return NextMessage(message.text, Ending.SCRIPT if is_last else None, message.attachments)


class RedactedUser:
    """A user whose model receives the agent's replies without secrets. Its own messages are unchanged."""

    def __init__(self, user: User, hide: Callable[[str], str]) -> None:
        self._user = user
        self._hide = hide

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        redacted = [replace(turn, agent_message=self._hide(turn.agent_message)) for turn in turns]
        return await self._user.next_message(redacted)


def out_of_patience(patience: int | None, turns: Sequence[Turn]) -> bool:
    """Return True if the agent repeated one reply as often as a scenario's `patience` allows.

    Only turns without tool calls count. Case, spaces and punctuation are ignored. With a patience of 1, the
    user's model alone decides, because a single reply repeats nothing.
    """
    if patience is None or not 1 < patience <= len(turns):
        return False
    last = turns[-patience:]
    texts = [turn.agent_message for turn in last]
    words = {" ".join(_WORD.findall(text.casefold())) or text.strip() for text in texts}
    return not any(turn.tool_calls for turn in last) and len(words) == 1


_WORD = re.compile(r"\w+")


class MutatedUser:
    """A user whose messages are changed as they go out, which it does not know.

    Args:
        change: returns the message with an index as it is sent.
    """

    def __init__(self, user: User, change: Callable[[int, str], str]) -> None:
        self._user = user
        self._change = change
        self._said: dict[int, str] = {}

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        plain = [
            replace(turn, user_message=self._said.get(n, turn.user_message)) for n, turn in enumerate(turns)
        ]
        message = await self._user.next_message(plain)
        if isinstance(message, Ending):
            return message
        self._said[len(turns)] = message.text
        return replace(message, text=self._change(len(turns), message.text))


_QUESTION_MARKS = "?？؟"
# A period inside a number or an abbreviation does not end a sentence; a following space does.
_SENTENCE_ENDS = ("\n", ". ", "! ", "? ", "؟ ", "？", "。", "！")
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and any are as at be by can could d did do does for from had has have how i if in is it ll m "
        "may me my of on or our please re s shall should so t that the then there this to us ve was we were "
        "what when where which who whom whose why will with would you your"
    )
)


class OfflineUser:
    """A user without a model: states the goal, then answers with its facts, each once.

    Deterministic: the next fact is the one that shares most content words with the agent's last question, or
    the first of several. It stops when no fact is left, or when the agent has repeated a reply as often as
    the scenario's `patience` allows.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._goal = scenario.goal
        self._patience = scenario.patience
        self._knowledge = scenario.knowledge

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        if not turns:
            return NextMessage(self._goal)
        if out_of_patience(self._patience, turns):
            return Ending.GAVE_UP
        left = list(self._knowledge)
        for turn in turns:
            if turn.user_message in left:
                left.remove(turn.user_message)
        if not left:
            return Ending.SATISFIED
        question = _words(_last_question(turns[-1].agent_message))
        return NextMessage(max(left, key=lambda fact: len(question & _words(fact))))


def _last_question(text: str) -> str:
    end = max(text.rfind(mark) for mark in _QUESTION_MARKS)
    if end < 0:
        return text
    question = text[:end].rstrip(_QUESTION_MARKS + "!")
    return question[max(question.rfind(mark) for mark in _SENTENCE_ENDS) + 1 :]


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(text)) - _STOP_WORDS
