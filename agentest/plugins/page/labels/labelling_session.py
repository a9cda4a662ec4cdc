"""Labeling: list the questions, show one, and store its answer, for the terminal and the page.

A person must not be influenced by the judge: a run's judgment of a question is revealed only together with
the person's own answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from agentest.domain.metrics import BUILTIN, CRITERIA, GOAL, NO_FAILURE
from agentest.domain.results import (
    ConversationResult,
    CriterionOutcome,
    GoalOutcome,
    MetricResult,
    Score,
    Skipped,
    Unscored,
)
from agentest.domain.transcript import NO_TEXT, StateChange, Turn, call_text
from agentest.judging.judge_input import JudgeBackground, JudgeQuestion
from agentest.judging.questions import CRITERION, prompt_of
from agentest.plugins.page.labels.agreement import JudgeAnswer, JudgeOutcome, Pair
from agentest.plugins.page.labels.conversations_to_label import GatheredConversations
from agentest.plugins.page.labels.judge_answers import value_of
from agentest.plugins.page.labels.labels import (
    Label,
    LabelledConversation,
    LabelQuestion,
    LabelSet,
    LabelsFile,
    Value,
    choices,
    format_label_value,
    is_answerable,
    parse_value,
    questions_of,
)
from agentest.report.console.transcript import value_text
from agentest.scenarios.discovery import matches_name
from agentest.support.dates import prompt_date, without_marks
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.statistics.intervals import wilson
from agentest.support.terminal import clean_rows
from agentest.support.text import count, turn_name

NOT_ASKED = "The judge was not asked this question in that run."


class AnswerConflict(UsageError):
    """The same person has answered the question in another session since it was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChoice:
    """A possible answer. `key` is the key to type."""

    key: str
    value: int | str
    meaning: str


@dataclass(frozen=True, slots=True)
class QuestionView:
    """A question with its person's answer.

    Attributes:
        times: number of times that the person has answered; saving requires that it is unchanged.
        judge: the person's answer and the judge's, or why there is none, once the person has answered.
    """

    question: LabelQuestion
    conversation: LabelledConversation
    times: int = 0
    mine: Label | None = None
    judge: Pair | Unscored | None = None


def current_time() -> str:
    """Return the current time in ISO 8601."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabellingSession:
    """One person's labels of collected conversations, in one file."""

    gathered: GatheredConversations
    file: LabelsFile
    by: str = ""
    now: Callable[[], str] = current_time

    def labels(self) -> LabelSet:
        """Return the file's current content; empty if there is no file. Raises UsageError."""
        return self.file.read() if self.file.path.exists() else LabelSet()

    def conversations(self, scenarios: tuple[str, ...] = ()) -> list[LabelledConversation]:
        """Return the conversations of scenarios whose names contain one of the texts; all without a text."""
        conversations = self.gathered.conversations.values()
        return [each for each in conversations if not scenarios or matches_name(each.scenario, scenarios)]

    def answered(self, labels: LabelSet) -> Mapping[LabelQuestion, Label]:
        """Return the person's last label of each question."""
        return {question: mine[-1] for question, mine in self._mine(labels).items()}

    def _mine(self, labels: LabelSet) -> dict[LabelQuestion, list[Label]]:
        mine: dict[LabelQuestion, list[Label]] = {}
        for label in labels.labels:
            if label.by == self.by:
                mine.setdefault(label.question, []).append(label)
        return mine

    def opened(self, question: LabelQuestion, labels: LabelSet | None = None) -> QuestionView:
        """Return a question to answer. Raises LookupError if there is no such question."""
        conversation = self.gathered.conversations[question.conversation]
        if question not in questions_of(conversation, [question.metric]) or not is_answerable(
            question, conversation
        ):
            raise LookupError(question)
        mine = self._mine(self.labels() if labels is None else labels).get(question, [])
        last = mine[-1] if mine else None
        stored = self.gathered.judged.get(question.conversation)
        judge = compare_with_judge(last, stored) if last else None
        return QuestionView(question, conversation, times=len(mine), mine=last, judge=judge)

    def agreement(self, questions: Sequence[LabelQuestion], labels: LabelSet) -> tuple[int, int]:
        """Return how many answers are on the judge's side, of how many that a judge has answered, too."""
        mine, judged = self.answered(labels), self.gathered.judged
        answered = [each for each in questions if each in mine]
        compared = [compare_with_judge(mine[each], judged.get(each.conversation)) for each in answered]
        pairs = [each for each in compared if isinstance(each, Pair)]
        return sum(each.same_side for each in pairs), len(pairs)

    def label(self, question: LabelQuestion, value: Value, note: str) -> Label:
        """Return the person's answer to a question, to be saved."""
        return Label(question=question, value=value, by=self.by, at=self.now(), note=note)

    def save(self, label: Label, times: int | None = None) -> QuestionView:
        """Save an answer, and return its question with the judge's answer.

        Args:
            times: number of times that the person had answered when the question was shown; None replaces any
                answer.

        Raises LookupError and UsageError. Raises AnswerConflict, and writes nothing, if there is a newer
        answer.
        """
        labels = self.labels()
        before = self.opened(label.question, labels)
        if times is not None and before.times != times:
            raise AnswerConflict("This question was answered in another place since it was shown here.")
        new = [] if before.conversation.id in labels.conversations else [before.conversation]
        self.file.append(*new, label)
        return self.opened(label.question)

    def undo(self, question: LabelQuestion) -> QuestionView:
        """Take back the person's last answer to a question. Raises LookupError and UsageError."""
        mine = self.opened(question).mine
        if mine is None or not self.file.remove_last(mine):
            raise UsageError(
                f"Only the last line of {self.file.path.name} can be taken back, and it is another one. "
                "Answer the question again instead: the later answer counts."
            )
        return self.opened(question)


def open_questions(
    conversations: Iterable[LabelledConversation],
    metrics: Sequence[str],
    answered: Iterable[LabelQuestion],
    *,
    judgments: Mapping[str, ConversationResult] | None = None,
    labels: LabelSet | None = None,
) -> list[LabelQuestion]:
    """Return the unanswered questions, those from which a calibration learns most first.

    First come questions on which people disagree or the judge's samples differ, then others that the judge
    was asked, then the rest. Within these, conversations are sorted by a hash of their id, so that those of
    one scenario are spread out and the order reveals no answer; turns are in order.

    Args:
        judgments: conversation → the run's judgment.
        labels: all people's answers.
    """
    done = set(answered)
    by_question = labels.by_question() if labels else {}
    shuffled = sorted(conversations, key=lambda each: hashlib.sha256(each.id.encode()).digest())
    questions = [
        question
        for conversation in shuffled
        for question in questions_of(conversation, metrics)
        if question not in done and is_answerable(question, conversation)
    ]

    def rank(question: LabelQuestion) -> int:
        if len({label.value for label in by_question.get(question, {}).values()}) > 1:
            return 0
        stored = (judgments or {}).get(question.conversation)
        if stored is None:
            return 2
        return 0 if _is_unsure(question, stored) else int(isinstance(judged(question, stored), Unscored)) + 1

    return sorted(questions, key=rank)


def _is_unsure(question: LabelQuestion, stored: ConversationResult) -> bool:
    if question.metric == CRITERIA:
        samples: Sequence[object] = next(
            (each.samples for each in stored.criteria if each.text == question.criterion), ()
        )
    else:
        score = _metric_result(question, stored)
        samples = score.samples if isinstance(score, Score) else ()
    return len(set(samples)) > 1


def compare_with_judge(label: Label, stored: ConversationResult | None) -> Pair | Unscored:
    """Pair a person's label with the run's judgment; `stored` is None outside a run."""
    answer = judged(label.question, stored) if stored else Unscored(NOT_ASKED)
    if isinstance(answer, Unscored):
        return answer
    return Pair(question=label.question, people=label.value, judge=answer)


def judged(question: LabelQuestion, stored: ConversationResult) -> JudgeOutcome:
    """Return the run's judgment of a question."""
    if question.metric == CRITERIA:
        criterion = next((each for each in stored.criteria if each.text == question.criterion), None)
        if criterion is None or criterion.not_asked or criterion.without_model:
            return Unscored(NOT_ASKED)
        return JudgeAnswer(str(criterion.result), criterion.reason)
    match _metric_result(question, stored):
        case None:
            return Unscored(NOT_ASKED)
        case Score() as score:
            return JudgeAnswer(value_of(question.metric, score), score.reason)
        case Skipped(why):
            return Unscored(why)
        case unscored:
            return unscored


def _metric_result(question: LabelQuestion, stored: ConversationResult) -> MetricResult | None:
    metrics = stored.metrics
    if question.metric != GOAL and question.turn is not None:
        turn = next((each for each in stored.turns if each.turn_index == question.turn), None)
        metrics = turn.metrics if turn else {}
    return metrics.get(question.metric)


_USEFUL = (10, 20, 50, 100, 200, 500)


def progress_text(labelled: int) -> str:
    """Say how many labels there are, the next useful number of them, and how exact agreement is then."""
    following = next((n for n in _USEFUL if n > labelled), None)
    if following is None:
        return f"{count(labelled, 'label')}: enough to know agreement within ±3 points"
    interval = wilson(0.8 * following, following)
    assert interval is not None
    return (
        f"{count(labelled, 'label')}; {following - labelled} more make {following}, "
        f"enough to know agreement within ±{round(50 * (interval.high - interval.low))} points"
    )


_WORST = (GoalOutcome.NOT_REACHED, CriterionOutcome.VIOLATED)


def answer_choices(metric: str) -> tuple[AnswerChoice, ...]:
    """Return the possible answers in the order of their keys. As in the terminal, 0 means no failure."""
    known = choices(metric)
    first = 0 if NO_FAILURE in known else 1
    if known:
        return tuple(
            AnswerChoice(key=str(number), value=str(name), meaning=meaning)
            for number, (name, meaning) in enumerate(known.items(), start=first)
        )
    points = enumerate(reversed(BUILTIN[metric].anchors), start=1)
    return tuple(AnswerChoice(key=str(n), value=n, meaning=meaning) for n, meaning in points)


def shortcuts(choices: Sequence[AnswerChoice]) -> Mapping[str, str | None]:
    """Return the keys of the `best` answer, of the `worst`, and of the one that stands `alone`, or None.

    Numbers end with the best one, names start with it.
    """
    if isinstance(choices[0].value, int):
        return {"best": choices[-1].key, "worst": choices[0].key, "alone": None}
    keys = {each.value: each.key for each in choices}
    worst = next((keys[value] for value in _WORST if value in keys), None)
    return {"best": choices[0].key, "worst": worst, "alone": keys.get(NO_FAILURE)}


def has_several_values(metric: str) -> bool:
    """Return True if an answer can have several labels."""
    return metric != CRITERIA and NO_FAILURE in choices(metric)


def short_question(question: LabelQuestion) -> str:
    """Return the question in short form."""
    if question.metric == CRITERIA:
        return f"criterion: {question.criterion}"
    text = full_question(question).removeprefix("Question:").strip()
    end = text.find("?")
    where = "" if question.turn is None else f" ({turn_name(question.turn)})"
    return f"{question.metric}{where}: {text[: end + 1] if end >= 0 else text.splitlines()[0]}"


def full_question(question: LabelQuestion) -> str:
    """Return the question as judges see it, so that people apply the same rules."""
    if question.metric == CRITERIA:
        return f"{CRITERION}\n\n{question.criterion}"
    return prompt_of(JudgeQuestion(question.metric, question.turn)).alone


_JUDGED_CHARS, _EARLIER_CHARS, _OF_WHOLE_CHARS = 20_000, 1_500, 6_000
"""Characters of a tool result that judges see: in the last turn, in earlier ones, in a whole conversation."""
Row = tuple[str, str]  # a label, such as a speaker, and a text


def known_facts(background: JudgeBackground) -> tuple[Row, ...]:
    """Return the known facts about the conversation, without empty ones."""
    facts = {
        "goal": background.goal,
        "profile": background.profile,
        "knows": "\n".join(background.knowledge),
        "expected": background.expected_outcome,
        "told": background.instructions,
        "tools": background.tools,
        "began": without_marks(prompt_date(background.date or None, background.started_at)),
        "unseen": background.unseen,
        "history": "\n".join(f"{each.role}: {each.text}" for each in background.history),
    }
    return tuple((name, text) for name, text in facts.items() if text)


def displayed_turns(
    conversation: LabelledConversation, turn: int | None
) -> Iterator[tuple[int, tuple[Row, ...]]]:
    """Yield index and rows of the turns up to and including `turn`; all if it is None."""
    turns = conversation.turns if turn is None else conversation.turns[: turn + 1]
    for last, each in pairwise((None, *turns)):
        if each is not None:
            earlier = _OF_WHOLE_CHARS if turn is None else _EARLIER_CHARS
            limit = _JUDGED_CHARS if each is turns[-1] else earlier
            yield each.turn_index, tuple(_turn_rows(each, last, limit))


def _turn_rows(turn: Turn, before: Turn | None, limit: int) -> Iterator[Row]:
    yield "user", turn.user_message
    for call in turn.tool_calls:
        yield "tool", f"{call_text(call)} → {_cut(value_text(call.result), limit)}"
        if call.error:
            yield "error", _cut(call.error, limit)
    for remark in turn.remarks:
        yield "said", f"{remark.author}: {remark.text}"
    if state := _state_text(turn, before):
        yield "state", _cut(state, _EARLIER_CHARS)
    yield "agent", turn.agent_message or NO_TEXT


def _state_text(turn: Turn, before: Turn | None) -> str:
    if not turn.state_after:
        return ""
    if before is None or before.state_after is None:
        return value_text(turn.state_after)
    change = StateChange.between(before.state_after, turn.state_after)
    changes = {"added": change.added, "changed": change.changed, "removed": change.removed}
    return "\n".join(f"{what}: {value_text(values)}" for what, values in changes.items() if values)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} characters more)"


ReadLine = Callable[[], str | None]
Write = Callable[[str], None]
_HELP = "a number answers, words after it are stored as a note; ? the whole question, s skip, b back, q quit"
_RULE = "─" * 72
_LONG = 300  # longer instructions and tools are not repeated if they have just been shown
_ONCE = ("told", "tools")
_AS_BEFORE = "(as before)"


@dataclass(slots=True)
class Dialogue:
    """Ask a person one question after another."""

    session: LabellingSession
    read_line: ReadLine
    write: Write

    def run(self, questions: Sequence[LabelQuestion]) -> int:
        """Ask until no question is left, the person quits, or the input ends. Labels are stored at once.

        Returns the number of questions that were labeled.
        """
        conversations = self.session.gathered.conversations
        at = 0
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
        return len(answered)

    def _write_rows(self, rows: Iterable[str]) -> None:
        self.write("".join(f"{clean_rows(row)}\n" for row in rows))

    def _answer(self, question: LabelQuestion) -> Label | str | None:
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
    for index, rows in displayed_turns(conversation, turn):
        yield ""
        yield turn_name(index) + ("  ← this one" if index == turn else "")
        yield from (_message_text(who, text) for who, text in rows)
    yield ""


def _message_text(who: str, text: str) -> str:
    """Format a message. Rows after the first are indented, so that they cannot imitate another speaker."""
    return f"{who:9}" + f"\n{' ' * 9}".join(text.splitlines())
