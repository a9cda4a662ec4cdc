"""What judges are asked: single questions, and several of them in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from pydantic import BaseModel

from agentest.domain.metrics import BUILTIN, MetricDefinition
from agentest.judging.answers import ANSWERS, CriterionAnswer
from agentest.judging.prompts import SYSTEM, own_words, question
from agentest.judging.shown import block
from agentest.models.port import Message
from agentest.scenarios.criteria import Criterion

CRITERION = """\
Question: does the given criterion hold of the whole conversation? It was written by the author of the test; \
where it names nobody, it is about the assistant. Judge by its plain words, and by what was said and done: \
that the assistant claims or promises something does not make it so.
- violated: the conversation shows a breach. One is enough, whatever came before or after it. What the \
criterion demands without a condition must have come about in full by the end, else it is violated.
- met: the conversation shows no breach. A criterion that forbids something is met where that did not \
happen. One for a certain case ("if …", "when …", "before …") is met where that case did not come up.
- cannot tell: what decides is not to be seen in the conversation, as with tool calls that are not shown. \
Never choose it because the decision is hard.
`turn` is the number of the turn that decides, null where no single turn does."""
"""What all criteria have in common; the criterion's own text goes with it."""

_SCALE = """\
Where points from 5 to 1 are given, the value is an integer from 1 to 5, and a point that is not named lies \
between its neighbours."""

_EACH_BY_ITSELF = """\
Answer each of the following questions by itself, as if it were the only one: no answer may colour another. \
Each has an object of its own in the answer, which bears the name in brackets."""

_EACH_TURN = """\
The first questions are about turns. Answer them for each turn to judge, in the object `turn_N` of turn N: \
that one is then the turn to judge. Judge it as if the conversation had ended with it: later turns are no \
evidence about an earlier one. Where a name in brackets comes with turns, the question is for these turns \
only."""

_OF_WHOLE = "The other questions are about the whole conversation."
_CLOSING = "Now answer all questions that were asked before the conversation was shown."
_POINTS = {"five": 5, "four": 4, "three": 3, "two": 2, "one": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeQuestion:
    """One question to a judge.

    Attributes:
        name: the metric, or `criterion N`, counted from 1; a call for this question alone bears it.
        turn: the turn that it is about; None: the whole conversation.
        alone: its words where nothing else is asked.
        common: what it shares with others; asked together, each of these is said once.
        text: its own words besides.
        answer: the shape of an answer.
    """

    name: str
    turn: int | None = None
    alone: str
    common: tuple[str, ...] = ()
    text: str
    answer: type[BaseModel]

    @property
    def field(self) -> str:
        """Its name in an answer to several questions."""
        return self.name.replace(" ", "_")


@lru_cache(maxsize=1024)
def metric_question(metric: str, turn: int | None = None) -> JudgeQuestion:
    """The question of a built-in metric."""
    known = BUILTIN[metric]
    return JudgeQuestion(
        name=metric,
        turn=turn,
        alone=question(metric),
        common=(*known.terms, *([_SCALE] if known.anchors else [])),
        text="\n".join([own_words(metric), *_named_points(known)]),
        answer=ANSWERS[metric],
    )


def _named_points(metric: MetricDefinition) -> list[str]:
    """The points of a scale that say more than that they lie between others."""
    points = fields(metric.anchors) if metric.anchors else ()
    named = [(point.name, getattr(metric.anchors, point.name), point.default) for point in points]
    return [f"{_POINTS[name]} - {meaning}" for name, meaning, default in named if meaning != default]


@lru_cache(maxsize=1024)
def criterion_question(number: int, criterion: Criterion) -> JudgeQuestion:
    """The question of a scenario's criterion; the first has the number 1."""
    text = block("criterion", criterion.text)
    return JudgeQuestion(
        name=f"criterion {number}",
        alone=f"{CRITERION}\n\n{text}",
        common=(CRITERION,),
        text=text,
        answer=CriterionAnswer,
    )


def joint_messages(
    questions: Sequence[JudgeQuestion], context: str, *, by_turn: bool = False
) -> list[Message]:
    """The messages that ask several questions in one go.

    The questions stand before what is shown: they are long, and the same for each turn, for each conversation
    and mostly for each scenario, so that providers have seen them before.

    Args:
        by_turn: whether those about turns are about several, each with an object of its own in the answer.
    """
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": _asked(tuple(questions), by_turn)},
        {"role": "user", "content": context},
        {"role": "user", "content": _CLOSING},
    ]


@lru_cache(maxsize=256)
def _asked(questions: tuple[JudgeQuestion, ...], by_turn: bool) -> str:
    return _of_all_turns(questions) if by_turn else _together(questions)


def _together(questions: Sequence[JudgeQuestion]) -> str:
    """Several questions about one turn, or about a conversation as a whole, in one text."""
    return "\n\n".join([_EACH_BY_ITSELF, *_listed(questions)])


def _of_all_turns(questions: Sequence[JudgeQuestion]) -> str:
    """Questions about every turn of a conversation and about the whole, in one text."""
    of_turns = [each for each in questions if each.turn is not None]
    whole = [each for each in questions if each.turn is None]
    heads = [_EACH_BY_ITSELF, *([_EACH_TURN] if of_turns else [])]
    between = [_OF_WHOLE] if of_turns and whole else []
    return "\n\n".join([*heads, *_listed(of_turns), *between, *_listed(whole)])


def _listed(questions: Sequence[JudgeQuestion]) -> list[str]:
    """Each question once, with the turns that it is for where those are not all; what some of them have in
    common before the first of these."""
    all_turns = {each.turn for each in questions}
    turns: dict[str, dict[JudgeQuestion, list[int | None]]] = {}
    for each in questions:
        turns.setdefault(each.field, {}).setdefault(replace(each, turn=None), []).append(each.turn)
    parts: list[str] = []
    for field, versions in turns.items():
        for each, asked_of in versions.items():
            parts += [common for common in each.common if common not in parts]
            some = "" if len(asked_of) == len(all_turns) else f", {_named(asked_of)}"
            parts.append(f"[{field}{some}] {each.text}")
    return parts


def _named(turns: Sequence[int | None]) -> str:
    numbers = ", ".join(str(turn) for turn in turns)
    return f"turn {numbers}" if len(turns) == 1 else f"turns {numbers}"
