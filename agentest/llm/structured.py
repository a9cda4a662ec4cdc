"""Answers of a given shape from models that may not know how to give one: reading, repairs."""

from __future__ import annotations

from collections.abc import Sequence

from agentest.errors import InvalidAnswer
from agentest.llm.port import Answer, Answers, CallKey, Message, Question
from agentest.llm.reader import Unreadable, read
from agentest.support.json_text import well_formed

MAX_REPAIRS = 2
_SHOWN_ANSWER_CHARS = 10_000


class StructuredModel:
    """A model that is asked for an answer of a given shape.

    An answer of another shape is asked for again with what was wrong, at most twice.
    """

    def __init__(self, answers: Answers) -> None:
        self.name = answers.name
        self._answers = answers

    async def ask(self, messages: Sequence[Message], answer: type[Answer], key: CallKey) -> Answer:
        """An answer of the given shape. Raises ModelUnavailable or InvalidAnswer.

        A shape may have an attribute `what_is_left`, another shape: the last answer is read in that one where
        nothing else can be read of it.
        """
        asked = list(messages)
        for repair in range(MAX_REPAIRS + 1):
            reply = await self._answers.answer(Question(_well_formed(asked), answer, key, repair))
            if reply.refusal:
                raise InvalidAnswer(f"model {self.name} refused to answer: {reply.refusal}")
            try:
                return read(reply.text, answer)
            except Unreadable as error:
                if repair == MAX_REPAIRS:
                    if left := _left(reply.text, answer):
                        return left
                    raise InvalidAnswer(_invalid(self.name, reply.text, error)) from None
                asked = [*messages, *_repair(reply.text, error)]
        raise AssertionError("unreachable: the last repair either answers or raises")


def _left(text: str, answer: type[Answer]) -> Answer | None:
    """What can be used of an answer that is wrong in parts, where its shape knows how to tell."""
    shape: type[Answer] | None = getattr(answer, "what_is_left", None)
    try:
        return read(text, shape) if shape else None
    except Unreadable:
        return None


def _well_formed(messages: Sequence[Message]) -> list[Message]:
    """The messages as any protocol can carry them: an agent may have put half a surrogate pair into one."""
    return [{**message, "content": well_formed(message["content"])} for message in messages]


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
