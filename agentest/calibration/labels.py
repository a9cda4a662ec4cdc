"""Questions about conversations, and the labels with which people answer them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from agentest.domain.metrics import (
    ABOUT_CALLS,
    BUILTIN,
    CRITERIA,
    GOAL,
    METRICS,
    NO_FAILURE,
    Kind,
    MetricLevel,
    metric_name,
)
from agentest.domain.results import CriterionOutcome, GoalOutcome
from agentest.domain.transcript import Turn
from agentest.judging.judge_input import JudgeBackground
from agentest.store.codec import CODECS
from agentest.support.json_text import plain
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

MOST_OF_A_FAULT = 3
"""The highest number from 1 to 5 that counts as a fault."""
_ID_CHARS = 12
_QUOTED = re.compile(r"\s*[0-9]\s*")
"""A number as text; no number has more than one digit."""

Value = int | str | tuple[str, ...]
"""A number from 1 to 5, a goal's outcome, a criterion's outcome, or labels by precedence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledConversation:
    """A self-contained conversation as judges see it.

    Attributes:
        id: unique in the file; a hash of the content if it is not given.
        scenario, source: for people: the name of the scenario, and where the conversation was found.
        criteria: sentences that should hold for it.
        complete: True if the conversation ended; if False, there are no questions about it as a whole.
    """

    id: str
    background: JudgeBackground
    turns: tuple[Turn, ...]
    criteria: tuple[str, ...] = ()
    scenario: str = ""
    source: str = ""
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelQuestion:
    """The question that a label answers: a metric of a turn or a conversation, or one criterion."""

    conversation: str
    turn: int | None
    metric: str
    """A built-in metric, or CRITERIA."""
    criterion: str = ""

    @property
    def description(self) -> str:
        """Describe the question for people, without its conversation."""
        what = f"criterion {self.criterion!r}" if self.criterion else self.metric
        return what if self.turn is None else f"{what}, turn {self.turn}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One person's answer. If a person has two labels for one question, the later one counts."""

    question: LabelQuestion
    value: Value
    by: str = ""
    at: str = ""
    """Time in ISO 8601."""
    note: str = ""


@dataclass(slots=True)
class LabelSet:
    """The content of a labels file."""

    conversations: dict[str, LabelledConversation] = field(default_factory=dict)
    labels: list[Label] = field(default_factory=list)

    def by_question(self) -> dict[LabelQuestion, dict[str, Label]]:
        """Map question → person → their last label, in the order in which questions were first answered."""
        by_question: dict[LabelQuestion, dict[str, Label]] = {}
        for label in self.labels:
            by_question.setdefault(label.question, {})[label.by] = label
        return by_question


def content_id(
    background: JudgeBackground, criteria: Sequence[str], turns: Sequence[Turn], *, complete: bool = True
) -> str:
    """Return an id made of the content, because ids of a run repeat from run to run."""
    known = CODECS.write(replace(background, started_at=""))
    if not background.date:
        del known["date"]  # leave the ids of conversations without a date as they always were
    content = {
        "background": known,
        "criteria": list(criteria),
        "turns": [[turn.user_message, turn.agent_message, *map(_call, turn.tool_calls)] for turn in turns],
        "complete": complete,
    }
    text = json.dumps(plain(content), sort_keys=True, ensure_ascii=True)
    return "c-" + hashlib.sha256(text.encode()).hexdigest()[:_ID_CHARS]


def _call(call: Any) -> list[Any]:
    return [call.name, call.args, call.result]


def known_metric(name: str) -> str:
    """Return the metric's canonical name if it can be labeled. Raises ValueError."""
    metric = metric_name(name)
    if metric == CRITERIA or metric in BUILTIN:
        return metric
    if metric in METRICS:
        raise ValueError(
            f"{name!r} compares with what an evaluation set expects: its judge cannot be calibrated yet; "
            f"labels are for {', '.join([*BUILTIN, CRITERIA])}"
        )
    raise ValueError(f"there is no metric {name!r}; {did_you_mean(name, [*BUILTIN, CRITERIA])}")


def metrics_named(names: Iterable[str]) -> tuple[str, ...]:
    """Return the named metrics in the order of the table; all if none is named. Raises ValueError."""
    wanted = set(map(known_metric, names))
    return tuple(name for name in (*BUILTIN, CRITERIA) if not wanted or name in wanted)


def questions_of(conversation: LabelledConversation, metrics: Iterable[str]) -> Iterator[LabelQuestion]:
    """Yield every question about a conversation for these metrics, in reading order."""
    names = tuple(metrics)
    for turn in conversation.turns:
        for metric in names:
            if metric in BUILTIN and BUILTIN[metric].level is MetricLevel.TURN:
                yield LabelQuestion(conversation=conversation.id, turn=turn.turn_index, metric=metric)
    if not conversation.complete:
        return
    background = conversation.background
    if GOAL in names and (background.goal or background.expected_outcome):
        yield LabelQuestion(conversation=conversation.id, turn=None, metric=GOAL)
    for text in conversation.criteria if CRITERIA in names else ():
        yield LabelQuestion(conversation=conversation.id, turn=None, metric=CRITERIA, criterion=text)


def is_answerable(question: LabelQuestion, conversation: LabelledConversation) -> bool:
    """Return False for a question about tool calls that are not visible, which a run does not ask either."""
    return not (question.metric in ABOUT_CALLS and conversation.background.unseen)


def choices(metric: str) -> Mapping[str, str]:
    """Return the answers to a metric's question with their meaning; {} for numbers from 1 to 5."""
    if metric == CRITERIA:
        return {CriterionOutcome.MET: "", CriterionOutcome.VIOLATED: "", CriterionOutcome.CANNOT_TELL: ""}
    if metric == GOAL:
        return {
            GoalOutcome.REACHED: "what the user came for is done",
            GoalOutcome.REACHED_WRONGLY: "it is done, but with harm, a leak or something forbidden",
            GoalOutcome.RIGHTLY_NOT_REACHED: "it could not or must not be done, and the user was told",
            GoalOutcome.NOT_REACHED: "it should have been done, and was not",
        }
    return BUILTIN[metric].labels


def parse_value(metric: str, raw: Any) -> Value:
    """Parse the value of a label: letter case does not matter, and numbers may be quoted.

    Raises ValueError, which states the expected values.
    """
    if metric not in (CRITERIA, GOAL) and BUILTIN[metric].kind is Kind.SCALE:
        return _number(raw)
    known = choices(metric)
    if metric == CRITERIA:
        return _choice(known, raw)
    if metric == GOAL:
        number = _whole_number(raw)
        if number in (0, 1):
            return str(GoalOutcome.REACHED if number else GoalOutcome.NOT_REACHED)
        return _choice(known, raw)
    return _labels(known, [_choice(known, each) for each in (raw if isinstance(raw, list) else [raw])])


def _choice(known: Iterable[str], raw: Any) -> str:
    names = {name.casefold(): str(name) for name in known}
    choice = names.get(" ".join(raw.casefold().replace("_", " ").split())) if isinstance(raw, str) else None
    if choice is None:
        raise ValueError(f"expected one of {', '.join(map(repr, names.values()))}, found {raw!r:.80}")
    return choice


def _number(raw: Any) -> int:
    number = _whole_number(raw)
    if number is None or not 1 <= number <= 5:
        raise ValueError(f"expected a whole number from 1 to 5, found {raw!r:.80}")
    return number


def _whole_number(raw: Any) -> int | None:
    """Return a whole number, also if it is quoted; None for anything else."""
    if isinstance(raw, str):
        return int(raw) if _QUOTED.fullmatch(raw) else None
    if isinstance(raw, bool) or not isinstance(raw, int | float) or raw not in range(10):
        return None
    return int(raw)


def _labels(known: Iterable[str], chosen: Sequence[str]) -> tuple[str, ...]:
    if not chosen:
        raise ValueError(f"expected a label; where nothing failed, write {NO_FAILURE!r}")
    if NO_FAILURE in chosen and len(set(chosen)) > 1:
        raise ValueError(
            f"{NO_FAILURE!r} and {next(g for g in chosen if g != NO_FAILURE)!r} exclude each other"
        )
    return tuple(label for label in known if label in chosen)


def is_fault(value: Value) -> bool:
    """Return True if a value reports a fault."""
    if isinstance(value, int):
        return value <= MOST_OF_A_FAULT
    if isinstance(value, tuple):
        return value != (NO_FAILURE,)
    return value in (GoalOutcome.NOT_REACHED, GoalOutcome.REACHED_WRONGLY, CriterionOutcome.VIOLATED)


def format_label_value(value: Value) -> str:
    """Format a value for people."""
    return " + ".join(value) if isinstance(value, tuple) else str(value)
