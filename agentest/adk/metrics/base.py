"""What all graders of an evaluation set's cases have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentest.adk.formats.criteria import Criterion
from agentest.adk.formats.model import EvalCase, Rubric
from agentest.adk.metrics.facts import NOTHING_KNOWN, AgentFacts
from agentest.config.wishes import ModelWish
from agentest.domain.metrics import ADK_METRICS
from agentest.domain.transcript import Conversation
from agentest.judging.grading import Graded, Grader
from agentest.models.port import CallKey, Model


@dataclass(frozen=True, slots=True)
class CriterionGrader(ABC):
    """Grades a case's conversations by one criterion."""

    case: EvalCase
    criterion: Criterion
    facts: AgentFacts = field(default=NOTHING_KNOWN, kw_only=True)
    """What judges are told of the agent."""

    @property
    def name(self) -> str:
        return self.criterion.metric

    @property
    def judge(self) -> ModelWish | None:
        return self.criterion.judge if asks_a_judge(self.name) else None

    @abstractmethod
    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        """The scores, as `evaluate.grading.Grader` says."""

    def most_calls(self, turns: int) -> int:
        """A question for every turn and sample, where the metric is judged at all."""
        if not asks_a_judge(self.name):
            return 0  # whether an evaluator of the user's own asks anybody is not known
        return turns * (self.criterion.num_samples or ADK_METRICS[self.name].samples)


def asks_a_judge(metric: str) -> bool:
    """Whether a metric of ADK's or of ours asks a judge; one of the user's own has ways of its own."""
    return metric in ADK_METRICS and ADK_METRICS[metric].judged


def rubric_lines(graders: Iterable[Grader]) -> list[str]:
    """The rubrics that the criteria give to these graders, under the metrics that share them."""
    metrics: dict[tuple[Rubric, ...], dict[str, None]] = {}
    for grader in graders:
        if isinstance(grader, CriterionGrader) and grader.criterion.rubrics:
            metrics.setdefault(grader.criterion.rubrics, {})[grader.name] = None
    return [line for rubrics, names in metrics.items() for line in _lines(rubrics, names)]


def _lines(rubrics: Iterable[Rubric], metrics: Iterable[str]) -> list[str]:
    texts = (f"  {one.rubric_id}: {one.rubric_content.text_property}" for one in rubrics)
    return [f"rubrics of {', '.join(metrics)}", *texts]
