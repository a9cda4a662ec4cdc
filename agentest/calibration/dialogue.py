"""Labelling in the terminal: a person answers the judge's questions, and sees no judge's answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentest.calibration.labels import (
    Label,
    LabelledConversation,
    Question,
    Value,
    choices,
    in_sight,
    parsed_value,
    questions_of,
    shown_value,
)
from agentest.calibration.sheet import transcript
from agentest.domain.metrics import BUILTIN, CRITERIA, NO_FAILURE
from agentest.judging.questions import CRITERION, metric_question
from agentest.support.terminal import clean_rows
from agentest.support.text import count

ReadLine = Callable[[], str | None]
Write = Callable[[str], None]
_HELP = "a number answers, words behind it are kept as a note; ? the whole question, s skip, b back, q quit"
_SCALE = "1 to 5"


class Keep(Protocol):
    """Keeps a label at once."""

    def add(self, conversation: LabelledConversation, label: Label) -> None: ...


@dataclass(slots=True)
class Said:
    """What a person has answered in this sitting."""

    labelled: int = 0
    skipped: int = 0
    left: int = 0


def open_questions(
    conversations: Iterable[LabelledConversation], metrics: Sequence[str], answered: Iterable[Question]
) -> list[Question]:
    """What is still to be asked, in an order that tells nothing of what a judge thinks.

    Conversations come by a hash of their id, so that those of one scenario do not stand together; within
    one, turns come as they were spoken.
    """
    done = set(answered)
    shuffled = sorted(conversations, key=lambda each: hashlib.sha256(each.id.encode()).digest())
    return [
        question
        for conversation in shuffled
        for question in questions_of(conversation, metrics)
        if question not in done and in_sight(question, conversation)
    ]


@dataclass(slots=True)
class Dialogue:
    """Asks one question after another."""

    conversations: Mapping[str, LabelledConversation]
    keep: Keep
    read_line: ReadLine
    write: Write
    now: Callable[[], str]
    """The time, in ISO 8601."""
    by: str = ""

    def run(self, questions: Sequence[Question]) -> Said:
        """Ask until there is no question left, or the person quits, or the input ends."""
        said, at = Said(left=len(questions)), 0
        shown: tuple[str, int | None] | None = None
        self.write(f"{count(len(questions), 'question')}; {_HELP}\n")
        answered: set[Question] = set()
        while at < len(questions):
            question = questions[at]
            if (question.conversation, question.turn) != shown:
                before = self.conversations[shown[0]].background if shown else None
                self._say(transcript(self.conversations[question.conversation], question.turn, before))
                shown = (question.conversation, question.turn)
            self._say([f"[{at + 1}/{len(questions)}] {asked(question)}", *keys(question.metric)])
            step = self._answer(question)
            if step is None:
                break
            if isinstance(step, Label):
                self.keep.add(self.conversations[question.conversation], step)
                answered.add(question)
                self.write(f"  → {shown_value(step.value)}\n")
            at = max(0, at - 1) if step == "back" else at + 1
            said.skipped += step == "skip"
        said.labelled, said.left = len(answered), len(questions) - len(answered)
        return said

    def _say(self, rows: Iterable[str]) -> None:
        self.write("".join(f"{clean_rows(row)}\n" for row in rows))

    def _answer(self, question: Question) -> Label | str | None:
        """A label, `skip` or `back`; None to quit."""
        while True:
            self.write("> ")
            line = self.read_line()
            if line is None:
                self.write("\n")
                return None
            word, _, note = line.strip().partition(" ")
            match word.lower():
                case "q" | "quit":
                    return None
                case "s" | "skip":
                    return "skip"
                case "b" | "back":
                    return "back"
                case "?":
                    self._say([whole(question), *keys(question.metric)])
                    continue
            try:
                value = typed_value(question.metric, word)
            except ValueError as error:
                self._say([f"  {error}; {_HELP}"])
                continue
            return Label(question=question, value=value, by=self.by, at=self.now(), note=note.strip())


def typed_value(metric: str, word: str) -> Value:
    """The value of what was typed: a number, or for labels several with commas. Raises ValueError."""
    known = list(choices(metric))
    if not known:
        return parsed_value(metric, word)
    by_key = {str(number): name for number, name in enumerate(known, start=_first_key(metric))}
    numbers = [each for each in word.split(",") if each]
    if not numbers or not by_key.keys() >= set(numbers):
        first, *_, last = by_key
        raise ValueError(f"expected a number from {first} to {last}, found {word!r:.40}")
    found = [by_key[each] for each in numbers]
    return parsed_value(metric, found if len(found) > 1 else found[0])


def _first_key(metric: str) -> int:
    """Labels are counted from 0, which stands for no failure."""
    return 0 if NO_FAILURE in choices(metric) else 1


def keys(metric: str) -> Iterator[str]:
    """What can be typed, a row each."""
    known = choices(metric)
    if anchors := None if metric == CRITERIA else BUILTIN[metric].anchors:
        yield from (f"  {n}  {text}" for n, text in ((5, anchors.five), (3, anchors.three), (1, anchors.one)))
        yield "  4 and 2 lie between"
    for number, (name, meaning) in enumerate(known.items(), start=_first_key(metric)):
        yield f"  {number}  {name}" + (f": {meaning}" if meaning else "")
    if NO_FAILURE in known:
        yield "  several: 1,3"


def asked(question: Question) -> str:
    """The question in short."""
    if question.metric == CRITERIA:
        return f"criterion: {question.criterion}"
    text = _plain_question(question)
    end = text.find("?")
    where = "" if question.turn is None else f" (turn {question.turn})"
    return f"{question.metric}{where}: {text[: end + 1] if end >= 0 else text.splitlines()[0]}"


def whole(question: Question) -> str:
    """The question as judges are asked it: who goes by other rules answers another one."""
    if question.metric == CRITERIA:
        return f"{CRITERION}\n\n{question.criterion}"
    return metric_question(question.metric, question.turn).alone


def _plain_question(question: Question) -> str:
    return whole(question).removeprefix("Question:").strip()
