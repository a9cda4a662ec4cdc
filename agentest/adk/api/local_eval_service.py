"""`LocalEvalService`: conversations held first and evaluated later."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentest.adk.api.evaluation_results import (
    EvalCaseResult,
    EvalMetricResult,
    EvalMetricResultPerInvocation,
    eval_status,
    metric_result,
    overall_information,
    overall_reason,
    turn_information,
    turn_result,
)
from agentest.adk.api.in_process import AgentLike, configuration, criteria_of, mocks, read_set
from agentest.adk.api.service_requests import (
    EvaluateRequest,
    InferenceRequest,
    InferenceResult,
    evaluate_request,
    inference_request,
)
from agentest.adk.api.streaming import results_as_they_come
from agentest.adk.cases import CaseSet, unchecked
from agentest.adk.formats.criteria import Criteria
from agentest.adk.formats.model import EvalCase, EvalSet
from agentest.adk.metrics.own_grader import actual_invocations
from agentest.adk.planning import eval_plan
from agentest.domain.end_reason import Ending
from agentest.domain.results import ConversationResult, MetricResult, ScenarioResult
from agentest.domain.transcript import Blame, Conversation, Failure
from agentest.runner.prepare import Request, prepared_for


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
        """Hold every case's conversation once. Each is given when it has ended, so their order may differ.

        Leaving the loop early ends the conversations that are under way.
        """
        eval_set = inference_request(request).selected()
        chosen = CaseSet(read_set(eval_set), Criteria(()), self._tools, graded=False)
        cases = {case.eval_id: case for case in eval_set.eval_cases}
        async with aclosing(self._results([chosen])) as results:
            async for scenario in results:
                case = cases[scenario.case.eval_id if scenario.case else ""]
                yield _inference(scenario, eval_set.eval_set_id, case)

    async def evaluate(self, request: EvaluateRequest | Mapping[str, Any]) -> AsyncIterator[EvalCaseResult]:
        """Evaluate conversations that were held. Each is given when it is evaluated."""
        asked = evaluate_request(request)
        criteria, codes = criteria_of(asked.criteria, asked.evaluators, self._root)
        # Held several times, a case has one name more than once: a place of its own tells each apart.
        places = {f"inference-{n}": one for n, one in enumerate(asked.inference_results, start=1)}
        sets = [
            CaseSet(read_set(EvalSet(one.eval_set_id, (one.case,)), Path(place)), criteria, {}, codes)
            for place, one in places.items()
        ]
        held = {place: _conversation(one) for place, one in places.items()}
        async with aclosing(self._results(sets, held)) as results:
            async for scenario in results:
                yield _case_result(scenario, places[scenario.file])

    def _results(
        self, sets: Sequence[CaseSet], held: Mapping[str, Conversation] | None = None
    ) -> AsyncGenerator[ScenarioResult]:
        """Run the sets. `held`: the path of each → the conversation that was held already."""
        plan = eval_plan(sets, self._loaded.config, self._name, 1, self._root, self._loaded.redact)
        finished = None if held is None else {unit.scope: [held[unit.file]] for unit in plan.units}
        prepared = prepared_for(Request(self._root), self._loaded, plan, _notes(sets))
        return results_as_they_come(prepared, finished)


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
        final_eval_status=eval_status(scenario.verdict.status),
        overall_eval_metric_results=[
            *(metric_result(one, overall_reason(one.name, scenario)) for one in scenario.metric_verdicts),
            *(overall_information(name, scenario) for name in scenario.information),
        ],
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
            _metric_results(scenario, (metrics.get(n, {}), conversation.metrics)),
        )
        for n, invocation in enumerate(actual)
    ]


def _metric_results(
    scenario: ScenarioResult, metrics: Sequence[Mapping[str, MetricResult]]
) -> list[EvalMetricResult]:
    return [
        *(turn_result(name, threshold, metrics) for name, threshold in scenario.thresholds.items()),
        *(turn_information(name, metrics) for name in scenario.information),
    ]
