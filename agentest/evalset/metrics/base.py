"""What all graders of an evaluation set's cases have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from agentest.evalset.formats.criteria import Criterion
from agentest.evalset.formats.model import EvalCase
from agentest.evaluate.grading import Graded
from agentest.llm.port import CallKey, Model
from agentest.transcript import Conversation


@dataclass(frozen=True, slots=True)
class CriterionGrader(ABC):
    """Grades a case's conversations by one criterion."""

    case: EvalCase
    criterion: Criterion

    @property
    def name(self) -> str:
        return self.criterion.metric

    @abstractmethod
    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        """The scores, as `evaluate.grading.Grader` says."""
