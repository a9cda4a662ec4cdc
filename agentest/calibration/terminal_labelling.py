"""Labeling in the terminal: a person answers the judge's questions without seeing the judge's answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from agentest.calibration.labels import (
    Label,
    LabelledConversation,
    LabelQuestion,
    Value,
    choices,
    is_answerable,
    parse_value,
    questions_of,
    shown_value,
)
from agentest.domain.metrics import BUILTIN, CRITERIA, NO_FAILURE
from agentest.domain.transcript import NO_TEXT, StateChange, ToolCall, Turn, call_text
from agentest.judging.judge_input import JudgeBackground
from agentest.judging.questions import CRITERION, metric_question
from agentest.support.dates import format_date
from agentest.support.json_text import NotJson, json_text
from agentest.support.terminal import clean_rows
from agentest.support.text import count

ReadLine = Callable[[], str | None]
Write = Callable[[str], None]
_HELP = "a number answers, words behind it are kept as a note; ? the whole question, s skip, b back, q quit"
_SCALE = "1 to 5"


class LabelSink(Protocol):
    """Stores a label immediately."""

    def add(self, conversation: LabelledConversation, label: Label) -> None: ...


@dataclass(slots=True)
class SessionLabels:
    """The labels of one session."""

    labelled: int = 0
    skipped: int = 0
    left: int = 0


def open_questions(
    conversations: Iterable[LabelledConversation], metrics: Sequence[str], answered: Iterable[LabelQuestion]
) -> list[LabelQuestion]:
    """Return the unanswered questions, in an order that reveals nothing about the judge.

    Conversations are sorted by a hash of their id, so that those of one scenario are spread out. Within a
    conversation, turns are in order.
    """
    done = set(answered)
    shuffled = sorted(conversations, key=lambda each: hashlib.sha256(each.id.encode()).digest())
    return [
        question
        for conversation in shuffled
        for question in questions_of(conversation, metrics)
        if question not in done and is_answerable(question, conversation)
    ]


@dataclass(slots=True)
class Dialogue:
    """Ask a person one question after another."""

    conversations: Mapping[str, LabelledConversation]
    keep: LabelSink
    read_line: ReadLine
    write: Write
    now: Callable[[], str]
    """Returns the current time in ISO 8601."""
    by: str = ""

    def run(self, questions: Sequence[LabelQuestion]) -> SessionLabels:
        """Ask until no question is left, the person quits, or the input ends."""
        said, at = SessionLabels(left=len(questions)), 0
        shown: tuple[str, int | None] | None = None
        self.write(f"{count(len(questions), 'question')}; {_HELP}\n")
        answered: set[LabelQuestion] = set()
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
                    self._say([whole(question), *keys(question.metric)])
                    continue
            try:
                value = parse_typed_value(question.metric, word)
            except ValueError as error:
                self._say([f"  {error}; {_HELP}"])
                continue
            return Label(question=question, value=value, by=self.by, at=self.now(), note=note.strip())


def parse_typed_value(metric: str, word: str) -> Value:
    """Parse typed input: a number, or comma-separated numbers for labels. Raises ValueError."""
    known = list(choices(metric))
    if not known:
        return parse_value(metric, word)
    by_key = {str(number): name for number, name in enumerate(known, start=_first_key(metric))}
    numbers = [each for each in word.split(",") if each]
    if not numbers or not by_key.keys() >= set(numbers):
        first, *_, last = by_key
        raise ValueError(f"expected a number from {first} to {last}, found {word!r:.40}")
    found = [by_key[each] for each in numbers]
    return parse_value(metric, found if len(found) > 1 else found[0])


def _first_key(metric: str) -> int:
    """Return the first key: labels count from 0, which means no failure."""
    return 0 if NO_FAILURE in choices(metric) else 1


def keys(metric: str) -> Iterator[str]:
    """Yield the possible keys, one per row."""
    known = choices(metric)
    if anchors := None if metric == CRITERIA else BUILTIN[metric].anchors:
        yield from (f"  {n}  {text}" for n, text in ((5, anchors.five), (3, anchors.three), (1, anchors.one)))
        yield "  4 and 2 lie between"
    for number, (name, meaning) in enumerate(known.items(), start=_first_key(metric)):
        yield f"  {number}  {name}" + (f": {meaning}" if meaning else "")
    if NO_FAILURE in known:
        yield "  several: 1,3"


def asked(question: LabelQuestion) -> str:
    """Return the question in short form."""
    if question.metric == CRITERIA:
        return f"criterion: {question.criterion}"
    text = _plain_question(question)
    end = text.find("?")
    where = "" if question.turn is None else f" (turn {question.turn})"
    return f"{question.metric}{where}: {text[: end + 1] if end >= 0 else text.splitlines()[0]}"


def whole(question: LabelQuestion) -> str:
    """Return the question as judges see it, so that people apply the same rules."""
    if question.metric == CRITERIA:
        return f"{CRITERION}\n\n{question.criterion}"
    return metric_question(question.metric, question.turn).alone


def _plain_question(question: LabelQuestion) -> str:
    return whole(question).removeprefix("Question:").strip()


_RULE = "─" * 72
_JUDGED_CHARS, _EARLIER_CHARS, _OF_WHOLE_CHARS = 20_000, 1_500, 6_000
"""Characters of a tool result that judges see: in the last turn, in earlier ones, in a whole conversation."""
_LONG = 300
"""Longer instructions and tools are not repeated if they have just been shown."""
_ONCE = ("told", "tools")
_AS_BEFORE = "(as before)"
Row = tuple[str, str]
"""A label, such as a speaker, and a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """A turn to show. `asked` is True for the turn that the question is about."""

    index: int
    asked: bool
    rows: tuple[Row, ...]


def known(background: JudgeBackground) -> tuple[Row, ...]:
    """Return the known facts about the conversation, without empty ones."""
    facts = {
        "goal": background.goal,
        "profile": background.profile,
        "knows": "\n".join(background.knowledge),
        "expected": background.expected_outcome,
        "told": background.instructions,
        "tools": background.tools,
        "began": format_date(background.date or None, background.started_at),
        "unseen": background.unseen,
    }
    return tuple((name, text) for name, text in facts.items() if text)


def shown_turns(conversation: LabelledConversation, turn: int | None) -> Iterator[ShownTurn]:
    """Yield the turns up to and including `turn`; all if it is None."""
    turns = conversation.turns if turn is None else conversation.turns[: turn + 1]
    for last, each in pairwise((None, *turns)):
        if each is not None:
            earlier = _OF_WHOLE_CHARS if turn is None else _EARLIER_CHARS
            limit = _JUDGED_CHARS if each is turns[-1] else earlier
            asked = each.turn_index == turn
            yield ShownTurn(index=each.turn_index, asked=asked, rows=tuple(_turn(each, last, limit)))


def transcript(
    conversation: LabelledConversation, turn: int | None, before: JudgeBackground | None = None
) -> Iterator[str]:
    """Yield the known facts and the conversation up to a turn.

    Args:
        turn: None for the whole conversation.
        before: the facts about the conversation that was shown last.
    """
    yield _RULE
    shown = dict(known(before)) if before else {}
    for name, text in known(conversation.background):
        again = name in _ONCE and text == shown.get(name) and len(text) > _LONG
        yield _message_text(name, _AS_BEFORE if again else text)
    for each in shown_turns(conversation, turn):
        yield ""
        yield f"turn {each.index}" + ("  ← this one" if each.asked else "")
        yield from (_message_text(who, text) for who, text in each.rows)
    yield ""


def _turn(turn: Turn, before: Turn | None, limit: int) -> Iterator[Row]:
    yield "user", turn.user_message
    for call in turn.tool_calls:
        yield "tool", f"{call_text(call)} → {_cut(_result(call), limit)}"
        if call.error:
            yield "error", _cut(call.error, limit)
    for remark in turn.remarks:
        yield "said", f"{remark.author}: {remark.text}"
    if state := _state_text(turn, before):
        yield "state", _cut(state, _EARLIER_CHARS)
    yield "agent", turn.agent_message or NO_TEXT


def _state_text(turn: Turn, before: Turn | None) -> str:
    """Return the session's state after the first turn, and later changes of it; "" if unknown."""
    if not turn.state_after:
        return ""
    if before is None or before.state_after is None:
        return _text(turn.state_after)
    change = StateChange.between(before.state_after, turn.state_after)
    changes = {"added": change.added, "changed": change.changed, "removed": change.removed}
    return "\n".join(f"{what}: {_text(values)}" for what, values in changes.items() if values)


def _result(call: ToolCall) -> str:
    return call.result if isinstance(call.result, str) else _text(call.result)


def _text(value: object) -> str:
    try:
        return json_text(value)
    except NotJson:
        return repr(value)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} characters more)"


def _message_text(who: str, text: str) -> str:
    """Format a message. Rows after the first are indented, so that they cannot imitate another speaker."""
    return f"{who:9}" + f"\n{' ' * 9}".join(text.splitlines())
