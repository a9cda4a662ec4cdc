"""Graders score every turn of a finished conversation.

A case of an evaluation set brings its own graders, one for each criterion, which know what the case expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Protocol

from agentest.config.models import RequestedModel
from agentest.domain.results import MetricResult, Unscored
from agentest.domain.transcript import Conversation
from agentest.models.port import CallKey, Model
from agentest.support.calling import ends_the_run, message_of_error
from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraderResult:
    """A grader's results by turn and for the conversation as a whole.

    Scores of turns are averaged over all turns of all conversations. A turn that the grader does not score is
    left out. If it could score no turn at all, `whole` is Skipped and gives the reason.
    """

    turns: Mapping[int, MetricResult] = field(default_factory=dict)
    conversation: MetricResult | None = None


class Grader(Protocol):
    """Scores the turns of a finished conversation. It stores no state of any conversation."""

    @property
    def name(self) -> str:
        """The metric's name: the key of its criterion."""

    @property
    def judge(self) -> RequestedModel | None:
        """The model to use; None: the configured judge."""

    @property
    def rubrics(self) -> tuple[str, ...]:
        """The rubrics that it judges by: `ID: TEXT`."""

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> GraderResult:
        """Return the scores.

        Args:
            model: the requested model or the configured judge; None in an offline run.
            key: identifies the calls; a grader that makes several must make each key unique
                (`replace(key, turn=…, sample=…)`).
        """

    def most_calls(self, turns: int) -> int:
        """Return the maximum number of judge calls for a conversation with this number of turns."""


async def graded(
    grader: Grader,
    conversation: Conversation,
    model: Model | None,
    key: CallKey,
    redact: Callable[[str], str] = str,
) -> GraderResult:
    """Return the grader's scores. Any exception in its code makes the conversation Unscored."""
    try:
        graded = await grader.grade(conversation, model, key)
    except BaseException as error:
        if ends_the_run(error):
            raise
        graded = GraderResult(conversation=Unscored(f"{type(error).__name__}: {message_of_error(error)}"))

    def of(result: MetricResult) -> MetricResult:
        return replace(result, error=redact(result.error)) if isinstance(result, Unscored) else result

    turns = {index: of(result) for index, result in graded.turns.items()}
    return GraderResult(turns, of(graded.conversation) if graded.conversation else None)
