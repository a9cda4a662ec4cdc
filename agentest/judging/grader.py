"""Graders: they look at a finished conversation and give every turn its score.

A case of an evaluation set brings its own, one for each criterion; they know what the case expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentest.config.models import ModelWish
from agentest.domain.results import MetricResult, Skipped, Unscored
from agentest.domain.transcript import Conversation
from agentest.models.port import CallKey, Model
from agentest.support.calling import ends_the_run, words_of


@dataclass(frozen=True, slots=True)
class Graded:
    """A grader's results: by turn, and of the conversation as a whole.

    Scores of turns are averaged over all turns of all conversations. A turn that the grader has nothing to
    say about is left out. Where it could score no turn at all, `whole` says why (Skipped).
    """

    turns: Mapping[int, MetricResult] = field(default_factory=dict)
    whole: MetricResult | None = None


class Grader(Protocol):
    """Scores the turns of a finished conversation. Holds nothing of any conversation."""

    @property
    def name(self) -> str:
        """The metric's name: the key of its criterion."""
        ...

    @property
    def judge(self) -> ModelWish | None:
        """Whom it wishes to ask; None: the configured judge."""
        ...

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        """The scores. `model` is the one that it wishes for, or the configured judge; None in an offline run.

        `key` says whose calls these are; a grader that asks more than once makes each key its own
        (`replace(key, turn=…, sample=…)`).
        """
        ...

    def most_calls(self, turns: int) -> int:
        """How often a judge is asked at most about a conversation of so many turns, where one is."""
        ...


async def graded(
    grader: Grader,
    conversation: Conversation,
    model: Model | None,
    key: CallKey,
    redact: Callable[[str], str] = str,
) -> Graded:
    """What the grader says. Whatever its code raises makes the conversation Unscored."""
    try:
        graded = await grader.grade(conversation, model, key)
    except BaseException as error:
        if ends_the_run(error):
            raise
        return Graded(whole=Unscored(redact(f"{type(error).__name__}: {words_of(error)}")))
    turns = {index: _redacted(result, redact) for index, result in graded.turns.items()}
    return Graded(turns, _redacted(graded.whole, redact) if graded.whole else None)


def for_information(grade: Graded) -> Graded:
    """The grade of a metric that decides nothing: what could not be scored is skipped, and says why."""
    turns = {index: _not_missed(result) for index, result in grade.turns.items()}
    return Graded(turns, _not_missed(grade.whole) if grade.whole else None)


def _not_missed(result: MetricResult) -> MetricResult:
    return (
        Skipped(f"for information, and not scored: {result.error}")
        if isinstance(result, Unscored)
        else result
    )


def _redacted(result: MetricResult, redact: Callable[[str], str]) -> MetricResult:
    return replace(result, error=redact(result.error)) if isinstance(result, Unscored) else result
