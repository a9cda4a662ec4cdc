"""What all graders of an evaluation set's cases have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from agentest.config.wishes import ModelWish
from agentest.evalset.formats.criteria import Criterion
from agentest.evalset.formats.model import EvalCase
from agentest.evalset.metrics.facts import NOTHING_KNOWN, AgentFacts
from agentest.evaluate.grading import Graded
from agentest.llm.port import CallKey, Model
from agentest.transcript import Conversation


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
        return self.criterion.judge

    @abstractmethod
    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        """The scores, as `evaluate.grading.Grader` says."""
