"""`LocalEvalService`: conversations held first and evaluated later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentest.evalset.api.in_process import AgentLike, configuration, criteria_of, mocks, read_set, run_result
from agentest.evalset.api.service_requests import (
    EvaluateRequest,
    InferenceRequest,
    InferenceResult,
    evaluate_request,
    inference_request,
)
from agentest.evalset.cases import CaseSet, unchecked
from agentest.evalset.formats.criteria import Criteria
from agentest.evalset.formats.model import EvalCase, EvalSet, Invocation
from agentest.evalset.metrics.own import EvalStatus
from agentest.evalset.metrics.own_grader import actual_invocations
from agentest.evalset.planning import eval_plan
from agentest.results import ConversationResult, MetricVerdict, RunResult, ScenarioResult, Status
from agentest.run.prepare import Request, prepared_for
from agentest.transcript import Blame, Conversation, Ending, Failure
from agentest.verdict import turn_verdict

_STATUS = {Status.PASSED: EvalStatus.PASSED, Status.FAILED: EvalStatus.FAILED}


@dataclass(frozen=True, slots=True)
class EvalMetricResult:
    """A metric's score, None where there is none, and its status."""

    metric_name: str
    threshold: float
    score: float | None
    eval_status: EvalStatus


@dataclass(frozen=True, slots=True)
class EvalMetricResultPerInvocation:
    """An invocation beside what was expected, and its scores by each criterion."""

    actual_invocation: Invocation
    expected_invocation: Invocation | None
    eval_metric_results: Sequence[EvalMetricResult] = ()


@dataclass(frozen=True, slots=True)
class EvalCaseResult:
    """The result of one case."""

    eval_set_id: str
    eval_id: str
    final_eval_status: EvalStatus
    overall_eval_metric_results: Sequence[EvalMetricResult]
    eval_metric_result_per_invocation: Sequence[EvalMetricResultPerInvocation]
    session_id: str
    scenario: ScenarioResult = field(repr=False)
    """The case in Agentest's own results, with the reasons of its verdict."""


class LocalEvalService:
    """Holds the conversations of a set first and evaluates them later, as often as one likes.

    Requests are values of `service_requests`, or mappings with ADK's keys in either spelling.
    """

    def __init__(self, agent: AgentLike, *, tools: Mapping[str, Any] | None = None) -> None:
        self._root = Path.cwd()
        self._loaded, self._name = configuration(agent, self._root)
        self._tools = mocks(tools)

    async def perform_inference(
        self, request: InferenceRequest | Mapping[str, Any]
    ) -> AsyncIterator[InferenceResult]:
        """Hold every case's conversation once. Results come when all have been held."""
        eval_set = inference_request(request).selected()
        chosen = CaseSet(read_set(eval_set), Criteria(()), self._tools, graded=False)
        result = await self._run([chosen])
        for scenario, case in zip(result.scenarios, eval_set.eval_cases, strict=True):
            yield _inference(scenario, eval_set.eval_set_id, case)

    async def evaluate(self, request: EvaluateRequest | Mapping[str, Any]) -> AsyncIterator[EvalCaseResult]:
        """Evaluate conversations that were held. Results come when all have been evaluated."""
        asked = evaluate_request(request)
        criteria, codes = criteria_of(asked.criteria, asked.evaluators, self._root)
        # Held several times, a case has one name more than once: a place of its own tells each apart.
        places = {f"inference-{n}": one for n, one in enumerate(asked.inference_results, start=1)}
        sets = [
            CaseSet(read_set(EvalSet(one.eval_set_id, (one.case,)), Path(place)), criteria, {}, codes)
            for place, one in places.items()
        ]
        result = await self._run(sets, {place: _conversation(one) for place, one in places.items()})
        for scenario, one in zip(result.scenarios, asked.inference_results, strict=True):
            yield _case_result(scenario, one)

    async def _run(
        self, sets: Sequence[CaseSet], held: Mapping[str, Conversation] | None = None
    ) -> RunResult:
        """Run the sets. `held`: the path of each → the conversation that was held already."""
        plan = eval_plan(sets, self._loaded.config, self._name, 1, self._root)
        finished = None if held is None else {unit.scope: [held[unit.file]] for unit in plan.units}
        prepared = prepared_for(Request(self._root), self._loaded, plan, _notes(sets))
        return await run_result(prepared, finished=finished)


def _notes(sets: Sequence[CaseSet]) -> list[str]:
    """What no criterion compares with, said once for all conversations of a case."""
    if not sets:
        return []
    cases = {case.eval_id: case for chosen in sets for case in chosen.read.eval_set.eval_cases}
    whole = EvalSet(sets[0].read.eval_set.eval_set_id, tuple(cases.values()))
    return list(unchecked(replace(sets[0], read=read_set(whole))))


def _conversation(one: InferenceResult) -> Conversation:
    """What was held; a conversation without a turn where nothing could be."""
    if one.conversation is not None:
        return one.conversation
    failure = Failure(Blame.INTERNAL, one.error_message or "no conversation was held")
    return Conversation(one.session_id, (), Ending.ERROR, failure)


def _inference(scenario: ScenarioResult, eval_set_id: str, case: EvalCase) -> InferenceResult:
    if not scenario.conversations:
        problem = scenario.verdict.reasons[0].message
        return InferenceResult(eval_set_id, case.eval_id, None, "", case, problem)
    held = scenario.conversations[0].conversation
    return InferenceResult(
        eval_set_id,
        case.eval_id,
        None if held.failure else actual_invocations(held),
        held.conversation_id,
        case,
        held.failure.message if held.failure else None,
        held,
    )


def _case_result(scenario: ScenarioResult, one: InferenceResult) -> EvalCaseResult:
    return EvalCaseResult(
        eval_set_id=one.eval_set_id,
        eval_id=one.eval_case_id,
        final_eval_status=_eval_status(scenario.verdict.status),
        overall_eval_metric_results=[_metric(verdict) for verdict in scenario.metric_verdicts],
        eval_metric_result_per_invocation=[
            invocation
            for conversation in scenario.conversations
            for invocation in _invocations(scenario, conversation, one)
        ],
        session_id=one.session_id,
        scenario=scenario,
    )


def _invocations(
    scenario: ScenarioResult, conversation: ConversationResult, one: InferenceResult
) -> list[EvalMetricResultPerInvocation]:
    expected = one.case.conversation or ()
    actual = actual_invocations(conversation.conversation)
    metrics = {turn.turn_index: turn.metrics for turn in conversation.turns}
    return [
        EvalMetricResultPerInvocation(
            invocation,
            expected[n] if n < len(expected) else None,
            [
                _metric(turn_verdict(name, threshold, metrics.get(n, {}).get(name)))
                for name, threshold in scenario.thresholds.items()
            ],
        )
        for n, invocation in enumerate(actual)
    ]


def _metric(verdict: MetricVerdict) -> EvalMetricResult:
    return EvalMetricResult(
        metric_name=verdict.name,
        threshold=verdict.threshold,
        score=verdict.score,
        eval_status=_eval_status(verdict.status),
    )


def _eval_status(status: Status) -> EvalStatus:
    return _STATUS.get(status, EvalStatus.NOT_EVALUATED)
