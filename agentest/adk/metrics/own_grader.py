"""Grading by an evaluator of the user's own: what it is given, and what is said where it fails."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import TypeAdapter

from agentest.adk.formats.model import Invocation
from agentest.adk.metrics.base import CriterionGrader
from agentest.adk.metrics.own import EvalMetric, Evaluator
from agentest.adk.metrics.own_code import OwnMetric, made_for
from agentest.adk.metrics.own_results import NoResult, Terms, graded_by
from agentest.domain.results import Unscored
from agentest.domain.transcript import Conversation
from agentest.judging.grading import Graded
from agentest.models.port import CallKey, Model
from agentest.store.invocations import turn_invocation
from agentest.support.calling import ends_the_run, result_of, words_of
from agentest.support.deadlines import TimeLimit
from agentest.support.json_text import copied

_INVOCATION = TypeAdapter(Invocation)
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class CustomGrader(CriterionGrader):
    """Grades by code of the user's own."""

    own: OwnMetric

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        """The scores by invocation. Whatever the code raises leaves the conversation Unscored."""
        del model, key  # such code has ways of its own
        actual, limit = actual_invocations(conversation), TimeLimit(_TIMEOUT_S)
        try:
            returned = await result_of(self._evaluate, actual, limit=limit)
            return graded_by(returned, Terms(len(actual), self._threshold, self.own.interval))
        except BaseException as error:
            if ends_the_run(error):
                raise
            return Graded(whole=Unscored(self._told(error, limit)))

    @property
    def _threshold(self) -> float:
        """The threshold by which the code says what passes."""
        code = self.own.code
        return code.threshold if isinstance(code, Evaluator) else self.criterion.threshold

    def _evaluate(self, actual: list[Invocation]) -> Any:
        turns = self.case.conversation
        expected = None if turns is None else deepcopy(list(turns[: len(actual)]))  # it belongs to all runs
        scenario = self.case.conversation_scenario
        threshold, written = self.criterion.threshold, self.criterion.written
        if isinstance(self.own.code, Evaluator | type):
            evaluator = made_for(self.own.code, threshold, written)
            return _call(evaluator.evaluate_invocations, actual, expected, scenario)
        metric = EvalMetric(self.criterion.metric, None, SimpleNamespace(**deepcopy(dict(written))))
        return _call(self.own.code, metric, actual, expected, scenario)

    def _told(self, error: BaseException, limit: TimeLimit) -> str:
        """What went wrong: with which evaluator, and for which case."""
        who = f"{self.own.name}, case {self.case.eval_id!r}"
        if isinstance(error, NoResult):
            return f"{error} ({who})"
        if isinstance(error, TimeoutError) and limit.expired:
            return f"the evaluator gave no result within {_TIMEOUT_S:g} s ({who})"
        where = _line_in(self.own.code, error)
        return f"the evaluator raised {type(error).__name__}: {words_of(error)} ({who}{where})"


def actual_invocations(conversation: Conversation) -> list[Invocation]:
    """The conversation's turns as invocations."""
    return [
        _INVOCATION.validate_python(
            copied(turn_invocation(turn, f"{conversation.conversation_id}-{turn.turn_index}"))
        )
        for turn in conversation.turns
    ]


def _call(function: Callable[..., Any], *args: object) -> Any:
    """Call with as many arguments as the function takes: later ones were added to ADK over time."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*args)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return function(*args[: len(positional)])


def _line_in(code: Any, error: BaseException) -> str:
    """Where in the file of the evaluator the error came up; "" where that is not known."""
    try:
        file = inspect.getsourcefile(
            code if inspect.isroutine(code) or isinstance(code, type) else type(code)
        )
    except TypeError:
        return ""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f", {Path(file).name} line {lines[-1]}" if file and lines else ""
