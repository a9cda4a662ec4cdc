"""What judges are asked: single questions, and several of them in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from agentest.evaluate.answers import ANSWERS, CriterionAnswer
from agentest.evaluate.prompts import question
from agentest.evaluate.shown import block
from agentest.scenarios.criteria import Criterion

CRITERION = """\
Question: did the assistant keep to the criterion below over the whole conversation? The criterion was \
written by the author of the test. Judge by its plain words alone, and by what was said and done.
- violated: the conversation shows a breach. One breach is enough, whatever came before or after it. What a \
criterion demands without a condition must have happened by the end of the conversation, else it is \
violated.
- met: the conversation shows no breach. A criterion that forbids something is met where that did not \
happen. One that holds only for a certain case ("if …", "when …", "before …") is met where that case did \
not come up.
- cannot tell: what decides is not to be seen in the conversation, as with tool calls that are not shown. \
Never choose it because the decision is hard.
`turn` is the number of the turn that decides, null where no single turn does."""
"""What all criteria have in common; the criterion's own text follows."""

_EACH_BY_ITSELF = """\
Answer each of the following questions by itself, as if it were the only one: no answer may colour another. \
Each has an object of its own in the answer, which bears the name in brackets."""

_EACH_TURN = """\
The first questions are about turns. Answer them for each turn, in the object `turn_N` of turn N: that one \
is then the turn to judge. Judge it as if the conversation had ended with it: later turns are no evidence \
about an earlier one. Where a name in brackets comes with turns, the question is for these turns only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeQuestion:
    """One question to a judge.

    Attributes:
        name: the metric, or `criterion N`, counted from 1; a call for this question alone bears it.
        turn: the turn that it is about; None: the whole conversation.
        common: what it shares with others of its kind; asked together, that is said once.
        answer: the shape of an answer.
    """

    name: str
    turn: int | None = None
    common: str = ""
    text: str
    answer: type[BaseModel]

    @property
    def alone(self) -> str:
        """The question where nothing else is asked."""
        return f"{self.common}\n\n{self.text}" if self.common else self.text

    @property
    def field(self) -> str:
        """Its name in an answer to several questions."""
        return self.name.replace(" ", "_")


def metric_question(metric: str, turn: int | None = None) -> JudgeQuestion:
    """The question of a built-in metric."""
    text = question(metric, first_turn=turn == 0)
    return JudgeQuestion(name=metric, turn=turn, text=text, answer=ANSWERS[metric])


def criterion_question(number: int, criterion: Criterion) -> JudgeQuestion:
    """The question of a scenario's criterion; the first has the number 1."""
    text = block("criterion", criterion.text)
    return JudgeQuestion(name=f"criterion {number}", common=CRITERION, text=text, answer=CriterionAnswer)


def together(questions: Sequence[JudgeQuestion]) -> str:
    """Several questions about one turn, or about a conversation as a whole, in one text."""
    return "\n\n".join([_EACH_BY_ITSELF, *_listed(questions)])


def of_all_turns(questions: Sequence[JudgeQuestion]) -> str:
    """Questions about every turn of a conversation and about the whole, in one text."""
    of_turns = [each for each in questions if each.turn is not None]
    whole = [each for each in questions if each.turn is None]
    heads = [_EACH_BY_ITSELF, *([_EACH_TURN] if of_turns else [])]
    between = ["The other questions are about the whole conversation."] if of_turns and whole else []
    return "\n\n".join([*heads, *_listed(of_turns), *between, *_listed(whole)])


def _listed(questions: Sequence[JudgeQuestion]) -> list[str]:
    """Each question once, with the turns that it is for where those are not all."""
    all_turns = {each.turn for each in questions}
    turns: dict[tuple[str, str], list[int | None]] = {}
    for each in questions:
        turns.setdefault((each.field, each.text), []).append(each.turn)
    parts: list[str] = []
    said = {""}
    for each in questions:
        asked_of = turns.pop((each.field, each.text), None)
        if asked_of is None:
            continue
        if each.common not in said:
            said.add(each.common)
            parts.append(each.common)
        some = "" if len(asked_of) == len(all_turns) else f", {_named(asked_of)}"
        parts.append(f"[{each.field}{some}] {each.text}")
    return parts


def _named(turns: Sequence[int | None]) -> str:
    numbers = ", ".join(str(turn) for turn in turns)
    return f"turn {numbers}" if len(turns) == 1 else f"turns {numbers}"
