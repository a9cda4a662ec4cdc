"""Answers of a given shape from models that may not know how to give one: reading, repairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from pydantic import BaseModel

from agentest.models.port import Answer, Answers, CallKey, Level, Message, Question
from agentest.models.reader import Unreadable, read
from agentest.support.errors import InvalidAnswer
from agentest.support.json_text import well_formed
from agentest.support.redact import HIDDEN

MAX_REPAIRS = 2
HIDDEN_NOTE = (
    f"In the above, {HIDDEN} stands in place of a secret. Take it that the secret itself was written there."
)
_SHOWN_ANSWER_CHARS = 10_000


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer."""

    text: str


class Left(BaseModel):
    """What can be used of an answer that is wrong in parts: a Problem stands in place of what cannot."""

    @property
    def any(self) -> bool:
        """Whether anything can be used."""
        return any(part.any if isinstance(part, Left) else _usable(part) for _, part in self)

    @property
    def whole(self) -> bool:
        """Whether everything can be used."""
        return all(part.whole if isinstance(part, Left) else _usable(part) for _, part in self)

    def completed_by(self, later: Self) -> Self:
        """This one, with what a later answer gives in place of what cannot be used: a model that is asked
        again may give nothing but what was wrong, or judge all else anew."""
        parts = {name: _completed(part, getattr(later, name)) for name, part in self}
        return self.model_construct(**parts)


def _usable(part: object) -> bool:
    return not isinstance(part, Problem)


def _completed(part: Any, later: Any) -> Any:
    if isinstance(part, Left) and isinstance(later, Left):
        return part.completed_by(later)
    return later if isinstance(part, Problem) else part


class StructuredModel:
    """A model that is asked for an answer of a given shape.

    An answer of another shape is asked for again with what was wrong, at most twice.

    Args:
        hide: hides secrets in what it is sent, unless it plays the user: that one may need what it knows.
    """

    def __init__(self, answers: Answers, hide: Callable[[str], str] = str) -> None:
        self.name = answers.name
        self._answers = answers
        self._hide = hide

    @property
    def level(self) -> Level | None:
        """How the form of an answer is asked for; None: nobody is asked, as the answers are recorded."""
        return getattr(self._answers, "level", None)

    async def ask(self, messages: Sequence[Message], answer: type[Answer], key: CallKey) -> Answer:
        """An answer of the given shape. Raises ModelUnavailable or InvalidAnswer.

        A shape may have an attribute `what_is_left`, a `Left`: what can be used of any of the answers is
        gathered in that one, the first for each part, where the first of them is not as it should be.
        """
        if key.role != "user":
            messages = _without_secrets(messages, self._hide)
        asked, left = list(messages), None
        for repair in range(MAX_REPAIRS + 1):
            reply = await self._answers.answer(Question(_well_formed(asked), answer, key, repair))
            if reply.refusal:
                if left:
                    return cast("Answer", left)
                raise InvalidAnswer(f"model {self.name} refused to answer: {reply.refusal}")
            try:
                found = read(reply.text, answer)
                # A repair mends what was wrong, and takes nothing back.
                return cast("Answer", _left(reply.text, answer, left)) if left else found
            except Unreadable as error:
                left = _left(reply.text, answer, left)
                if left and (left.whole or repair == MAX_REPAIRS):
                    return cast("Answer", left)
                if repair == MAX_REPAIRS:
                    raise InvalidAnswer(_invalid(self.name, reply.text, error)) from None
                asked = [*messages, *_repair(reply.text, error)]
        raise AssertionError("unreachable: the last repair either answers or raises")


def _left(text: str, answer: type[BaseModel], earlier: Left | None) -> Left | None:
    """What can be used of an answer that is wrong in parts, and of those before it.

    None where nothing can be, or the shape does not know how to tell.
    """
    shape: type[Left] | None = getattr(answer, "what_is_left", None)
    try:
        found = read(text, shape) if shape else None
    except Unreadable:
        return earlier
    if found is None or not found.any:
        return earlier
    return earlier.completed_by(found) if earlier else found


def _well_formed(messages: Sequence[Message]) -> list[Message]:
    """The messages as any protocol can carry them: an agent may have put half a surrogate pair into one."""
    return [{**message, "content": well_formed(message["content"])} for message in messages]


def _without_secrets(messages: Sequence[Message], hide: Callable[[str], str]) -> Sequence[Message]:
    """The messages with secrets hidden, and with a word about it if any are: they may have been before."""
    hidden = [{**message, "content": hide(message["content"])} for message in messages]
    if not any(HIDDEN in message["content"] for message in hidden):
        return messages
    return [*hidden[:-1], {**hidden[-1], "content": f"{hidden[-1]['content']}\n\n{HIDDEN_NOTE}"}]


def _repair(text: str, error: Unreadable) -> list[Message]:
    return [
        {"role": "assistant", "content": text or "(empty)"},
        {
            "role": "user",
            "content": f"That answer cannot be used: {error}. "
            "Answer again, with one JSON object of the required form and nothing else.",
        },
    ]


def _invalid(model: str, text: str, error: Unreadable) -> str:
    shown = text if len(text) <= _SHOWN_ANSWER_CHARS else text[:_SHOWN_ANSWER_CHARS] + "…"
    return f"model {model} gave no usable answer, asked {MAX_REPAIRS + 1} times: {error}; it wrote: {shown!r}"
