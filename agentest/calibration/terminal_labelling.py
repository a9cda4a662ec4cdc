"""Labeling in the terminal: a person answers the judge's questions without seeing the judge's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from agentest.calibration.labelling_session import (
    LabellingSession,
    answer_choices,
    displayed_turns,
    full_question,
    has_several_values,
    known_facts,
    short_question,
)
from agentest.calibration.labels import (
    Label,
    LabelledConversation,
    LabelQuestion,
    Value,
    choices,
    format_label_value,
    parse_value,
)
from agentest.judging.judge_input import JudgeBackground
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean_rows
from agentest.support.text import count

ReadLine = Callable[[], str | None]
Write = Callable[[str], None]
_HELP = "a number answers, words behind it are kept as a note; ? the whole question, s skip, b back, q quit"
_RULE = "─" * 72
_LONG = 300
"""Longer instructions and tools are not repeated if they have just been shown."""
_ONCE = ("told", "tools")
_AS_BEFORE = "(as before)"


@dataclass(slots=True)
class DialogueOutcome:
    """The numbers of questions that one dialogue labeled, skipped and left open."""

    labelled: int = 0
    skipped: int = 0
    left: int = 0


@dataclass(slots=True)
class Dialogue:
    """Ask a person one question after another."""

    session: LabellingSession
    read_line: ReadLine
    write: Write

    def run(self, questions: Sequence[LabelQuestion]) -> DialogueOutcome:
        """Ask until no question is left, the person quits, or the input ends. Labels are stored at once."""
        conversations = self.session.gathered.conversations
        skipped, at = 0, 0
        displayed: tuple[str, int | None] | None = None
        self.write(f"{count(len(questions), 'question')}; {_HELP}\n")
        answered: set[LabelQuestion] = set()
        while at < len(questions):
            question = questions[at]
            if (question.conversation, question.turn) != displayed:
                before = conversations[displayed[0]].background if displayed else None
                self._write_rows(transcript(conversations[question.conversation], question.turn, before))
                displayed = (question.conversation, question.turn)
            text = short_question(question)
            self._write_rows([f"[{at + 1}/{len(questions)}] {text}", *keys(question.metric)])
            step = self._answer(question)
            if step is None:
                break
            if isinstance(step, Label):
                self.session.save(step)
                answered.add(question)
                self.write(f"  → {format_label_value(step.value)}\n")
            at = max(0, at - 1) if step == "back" else at + 1
            skipped += step == "skip"
        return DialogueOutcome(len(answered), skipped, len(questions) - len(answered))

    def _write_rows(self, rows: Iterable[str]) -> None:
        self.write("".join(f"{clean_rows(row)}\n" for row in rows))

    def _answer(self, question: LabelQuestion) -> Label | str | None:
        """Return a label, `skip`, or `back`; None to quit."""
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
                    self._write_rows([full_question(question), *keys(question.metric)])
                    continue
            try:
                value = parse_typed_value(question.metric, word)
            except ValueError as error:
                self._write_rows([f"  {error}; {_HELP}"])
                continue
            return self.session.label(question, value, note.strip())


def parse_typed_value(metric: str, word: str) -> Value:
    """Parse typed input: a number, or comma-separated numbers for labels. Raises ValueError."""
    if not choices(metric):
        return parse_value(metric, word)
    values = {choice.key: choice.value for choice in answer_choices(metric)}
    numbers = [each for each in word.split(",") if each]
    if not numbers or not values.keys() >= set(numbers):
        first, *_, last = values
        raise ValueError(f"expected a number from {first} to {last}, found {word!r:.40}")
    chosen = [values[each] for each in numbers]
    return parse_value(metric, chosen if len(chosen) > 1 else chosen[0])


def keys(metric: str) -> Iterator[str]:
    """Yield the possible keys, one per row."""
    if choices(metric):
        for choice in answer_choices(metric):
            yield f"  {choice.key}  {choice.value}" + (f": {choice.meaning}" if choice.meaning else "")
    elif anchored := [choice for choice in answer_choices(metric) if choice.meaning]:
        yield from (f"  {choice.key}  {choice.meaning}" for choice in reversed(anchored))
        yield "  4 and 2 lie between"
    if has_several_values(metric):
        yield "  several: 1,3"


def transcript(
    conversation: LabelledConversation, turn: int | None, before: JudgeBackground | None = None
) -> Iterator[str]:
    """Yield the known facts and the conversation up to a turn.

    Args:
        turn: None for the whole conversation.
        before: the facts about the conversation that was shown last.
    """
    yield _RULE
    displayed = dict(known_facts(before)) if before else {}
    for name, text in known_facts(conversation.background):
        again = name in _ONCE and text == displayed.get(name) and len(text) > _LONG
        yield _message_text(name, _AS_BEFORE if again else text)
    for each in displayed_turns(conversation, turn):
        yield ""
        yield f"turn {each.index}" + ("  ← this one" if each.is_asked_about else "")
        yield from (_message_text(who, text) for who, text in each.rows)
    yield ""


def _message_text(who: str, text: str) -> str:
    """Format a message. Rows after the first are indented, so that they cannot imitate another speaker."""
    return f"{who:9}" + f"\n{' ' * 9}".join(text.splitlines())
