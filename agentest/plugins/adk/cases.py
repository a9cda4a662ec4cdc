"""Turn the cases of evaluation sets into units for the runner: scenarios with references and graders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from agentest.conversation.simulated_user import check_instructions
from agentest.domain import results
from agentest.domain.messages import Session
from agentest.domain.transcript import Conversation
from agentest.judging.grader import Grader
from agentest.mocks.binding import Mock, RecordedAnswer
from agentest.plugins.adk.formats.criteria import STOP_SIGNAL, Criteria, MetricCriterion
from agentest.plugins.adk.formats.eval_set import (
    INVOCATION,
    AgentestKeys,
    ConversationScenario,
    EvalCase,
    Invocation,
    answered_calls,
    can_fail,
    invocation_json,
    text_of,
    tool_calls,
    user_message,
)
from agentest.plugins.adk.formats.personas import persona_text
from agentest.plugins.adk.formats.set_reader import ReadSet
from agentest.plugins.adk.metrics.custom_metrics import CustomMetricCode
from agentest.plugins.adk.metrics.deterministic import expects_responses, expects_state
from agentest.plugins.adk.metrics.grader import NOTHING_KNOWN, AgentFacts, facts_of, uses_judge
from agentest.plugins.adk.metrics.grader_factory import make_grader
from agentest.runner.plan import Unit
from agentest.scenarios.model import ConversationPlan, Scenario, ScriptedTurn
from agentest.store.adk_results import turn_invocation, unwrapped
from agentest.support.errors import UsageError, errors_as
from agentest.support.files import shown_path
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import first_names, sentences

_FactsOfCase = Callable[[EvalCase], AgentFacts]  # return what judges may know about an agent in a case
_SHOWN_CASES = 5


@dataclass(frozen=True, slots=True)
class CaseSet:
    """An evaluation set with its criteria and the mocks of its tools."""

    read: ReadSet
    criteria: Criteria
    tools: Mapping[str, Mock] = field(default_factory=dict)
    evaluators: Mapping[str, CustomMetricCode] = field(default_factory=dict)  # metric → custom evaluator
    graded: bool = True  # if False, run the conversations without grading them


class NothingToEvaluate(ValueError):
    """The case has nothing that any metric could score, so it is not run."""


def case_entries(
    sets: Sequence[CaseSet],
    agents: Sequence[str],
    num_runs: int,
    root: Path,
    known: Mapping[str, AgentFacts] = MappingProxyType({}),
    redact: Callable[[str], str] = str,
    date: str | None = None,
) -> list[Unit | results.ScenarioResult]:
    """Plan a unit for every case and agent, in the order of the files.

    Args:
        known: agent → facts from its settings, for judges.
        redact: removes secrets from what the sets recorded about agents.
        date: the configured date, for cases without their own.

    Cases that cannot be evaluated become errored results. Raises UsageError, which names the file, if the
    criteria contradict a case.
    """
    facts = {
        agent: partial(facts_of, known=known.get(agent, NOTHING_KNOWN), redact=redact) for agent in agents
    }
    placed = [(chosen, shown_path(chosen.read.path, root)) for chosen in sets]
    cases = [(*at, case) for at in placed for case in at[0].read.eval_set.eval_cases]
    names = _scenario_names(
        [(case.eval_id, chosen.read.eval_set.eval_set_id, file) for chosen, file, case in cases]
    )
    return [
        entry
        for (chosen, file, case), name in zip(cases, names, strict=True)
        for entry in _entries(case, chosen, name, file, facts, num_runs, date)
    ]


def _scenario_names(cases: Sequence[tuple[str, str, str]]) -> list[str]:
    """Name the scenarios by case id, with the set's id or the file in front if the id alone is ambiguous."""
    forms = [(eval_id, f"{set_id}/{eval_id}", f"{file}/{eval_id}") for eval_id, set_id, file in cases]
    lengths = [0] * len(forms)
    alike: Sequence[int] = range(len(forms))
    while alike:
        times = Counter(form[n] for form, n in zip(forms, lengths, strict=True))
        alike = [i for i, n in enumerate(lengths) if times[forms[i][n]] > 1 and n < len(forms[i]) - 1]
        for i in alike:
            lengths[i] += 1
    return [form[n] for form, n in zip(forms, lengths, strict=True)]


def _entries(
    case: EvalCase,
    chosen: CaseSet,
    name: str,
    file: str,
    agents: Mapping[str, _FactsOfCase],
    num_runs: int,
    date: str | None,
) -> Iterator[Unit | results.ScenarioResult]:
    line = chosen.read.lines.get(case.eval_id, 0)
    try:
        scenario = _scenario(case, chosen, name, line)
        scenario = replace(scenario, date=scenario.date or date)
        criteria = applicable_criteria(case, chosen.criteria) if chosen.graded else ()
    except NothingToEvaluate as problem:
        reason = results.Reason(results.Status.ERRORED, results.ReasonKind.UNSCORED, str(problem))
        verdict = results.Verdict(results.Status.ERRORED, (reason,))
        case_id = results.CaseId(chosen.read.eval_set.eval_set_id, case.eval_id)
        yield from (
            results.ScenarioResult(
                name, agent, file, line, verdict, case=case_id, tags=_settings(case).tags or ()
            )
            for agent in agents
        )
        return
    most = len(scenario.turns) + 1 if scenario.scripted else chosen.criteria.user.max_allowed_invocations
    thresholds = {each.metric: each.threshold for each in criteria if not each.information}
    thresholds |= scenario.thresholds
    information = tuple(criterion.metric for criterion in criteria if criterion.information)
    for agent, facts in agents.items():
        try:
            graders = _graders(case, chosen, criteria, replace(facts(case), date=scenario.date or ""))
        except UsageError as problem:
            at = f"{file}:{line}" if line else file
            raise UsageError(f"{at}: {problem}") from problem
        scope = f"{name!r} @ {agent!r}"
        unit = Unit(scenario, agent, file, scope, "", num_runs, most, (), thresholds, graders)
        yield replace(unit, information=information)


def _graders(
    case: EvalCase, chosen: CaseSet, criteria: Sequence[MetricCriterion], facts: AgentFacts
) -> tuple[Grader, ...]:
    loose = bool(_settings(case).any_args_where_absent)
    return tuple(
        make_grader(case, replace(each, any_args_where_absent=loose), chosen.evaluators, facts)
        for each in criteria
    )


def applicable_criteria(case: EvalCase, criteria: Criteria) -> tuple[MetricCriterion, ...]:
    """Return the criteria that apply to a case, in addition to its own expectations.

    Raises NothingToEvaluate if the case has neither.
    """
    has = _metrics_with_data(case, criteria.adapts)
    applicable = tuple(criterion for criterion in criteria.criteria if has.get(criterion.metric, True))
    if can_fail(_settings(case).expectations) or any(not criterion.information for criterion in applicable):
        return applicable
    if not criteria.criteria:
        raise NothingToEvaluate("not evaluated: the criteria name no metric")
    if all(criterion.information for criterion in criteria.criteria):
        raise NothingToEvaluate("not evaluated: the criteria name no metric that passes or fails a case")
    if not criteria.adapts:
        raise NothingToEvaluate(
            "not evaluated: the criteria compare with reference answers, a final_session_state or "
            "intermediate responses, which the case does not have; name another criterion, or run the other "
            "cases alone"
        )
    raise NothingToEvaluate(
        "not evaluated: the default criteria compare with expected tool calls and responses, and the case "
        "has neither; name criteria in a test_config.json beside the file, or with --config-file-path"
    )


def _metrics_with_data(case: EvalCase, adapts: bool) -> dict[str, bool]:
    """Map each of Agentest's metrics, and with `adapts` ADK's, to whether the case has data for it."""
    turns = case.conversation or ()
    answers = any(turn.final_response is not None for turn in turns)
    calls = any(turn.intermediate_data is not None for turn in turns)
    ours = {
        "reference_answer_match": answers or not calls,
        "final_session_state_match": expects_state(case),
        "intermediate_responses_match": expects_responses(case),
    }
    return {**ours, "tool_trajectory_avg_score": calls, "response_match_score": answers} if adapts else ours


def unchecked_notes(chosen: CaseSet) -> Iterator[str]:
    """Yield a note for each expectation, judge, and setting that no criterion uses."""
    yield from chosen.criteria.notes
    metrics = {criterion.metric for criterion in chosen.criteria.criteria}
    kinds = [("final_session_state_match", "a final_session_state", expects_state)]
    if not any(c.include_intermediate_responses_in_final for c in chosen.criteria.criteria):
        kinds.append(("intermediate_responses_match", "intermediate responses", expects_responses))
    for metric, what, expects in kinds:
        cases = [case.eval_id for case in chosen.read.eval_set.eval_cases if expects(case)]
        if cases and metric not in metrics and chosen.graded:
            which = first_names(cases, _SHOWN_CASES)
            who = f"case {which} has" if len(cases) == 1 else f"cases {which} have"
            yield (
                f"{chosen.read.path}: {who} {what}, which no criterion compares with: add "
                f'"{metric}": 1.0 to the criteria to have it checked'
            )
    for criterion in chosen.criteria.criteria:
        if criterion.judge and not uses_judge(criterion.metric):
            yield f"{criterion.judge.location}: names a judge or its settings, but this metric uses no judge"


def _scenario(case: EvalCase, chosen: CaseSet, name: str, line: int) -> Scenario:
    given = case.session_input
    scenario = Scenario(
        name=name,
        file=str(chosen.read.path),
        line=line,
        tools=chosen.tools,
        case=results.CaseId(chosen.read.eval_set.eval_set_id, case.eval_id),
        session=Session(given.app_name, given.user_id, given.state, given.session_id) if given else None,
        recorded=recorded_answers(case),
        tags=_settings(case).tags or (),
        **_settings(case).expectations,
    )
    if case.conversation is not None:
        if not case.conversation:
            raise NothingToEvaluate("not evaluated: the conversation has no invocation")
        return replace(scenario, turns=tuple(_turn(each, n) for n, each in enumerate(case.conversation, 1)))
    conversation_scenario = case.conversation_scenario
    assert conversation_scenario is not None, "a case has a conversation or a scenario"
    return replace(
        scenario,
        # An offline user states the goal, and then the plan, sentence by sentence.
        goal=conversation_scenario.starting_prompt,
        knowledge=tuple(sentences(conversation_scenario.conversation_plan)),
        plan=_plan(conversation_scenario, chosen.criteria),
    )


def _plan(scenario: ConversationScenario, criteria: Criteria) -> ConversationPlan:
    """Return the plan of the simulated user. Raises ConfigError if the instructions cannot be filled in."""
    instructions, persona = criteria.user.custom_instructions, scenario.user_persona
    if instructions:
        check_instructions(instructions, persona=persona is not None)
    # The criterion of the user simulator names the stop signal.
    signals = [c.stop_signal for c in criteria.criteria if c.metric == "per_turn_user_simulator_quality_v1"]
    stop_signal = signals[0] if signals else STOP_SIGNAL
    return ConversationPlan(
        starting_prompt=scenario.starting_prompt,
        plan=scenario.conversation_plan,
        persona=persona_text(persona, stop_signal) if persona else "",
        instructions=instructions,
        stop_signal=stop_signal,
        model=criteria.user.model,
    )


def _settings(case: EvalCase) -> AgentestKeys:
    return case.agentest or AgentestKeys()


def _turn(invocation: Invocation, number: int) -> ScriptedTurn:
    """Return the user's message. Raises NothingToEvaluate if it is empty or has parts that cannot be sent."""
    with errors_as(NothingToEvaluate, "not evaluated: "):
        message = user_message(invocation.user_content, invocation.invocation_id or str(number))
    return ScriptedTurn(message.text, reference=_reference(invocation), attachments=message.attachments)


def _reference(invocation: Invocation) -> results.Reference:
    response, data = invocation.final_response, invocation.intermediate_data
    calls = tuple(results.ReferenceCall(call.name or "", call.args) for call in tool_calls(data))
    return results.Reference(
        None if response is None else text_of(response),
        None if data is None else calls,
        invocation_json(invocation),
    )


def recorded_answers(case: EvalCase) -> tuple[RecordedAnswer, ...]:
    """Return the case's recorded tool responses, each with the call that it answers.

    Responses and calls are paired by id. Without ids, the first response of a tool answers its first call.
    """
    return tuple(
        RecordedAnswer(call.name or "", call.args or {}, response.response and unwrapped(response.response))
        for turn in case.conversation or ()
        for call, response in answered_calls(turn.intermediate_data)
        if response is not None
    )


def recorded_case(conversation: Conversation, created: float, keys: AgentestKeys | None = None) -> EvalCase:
    """Convert a conversation to a case with its id, and each turn to an invocation.

    The case has no `session_input`, because results do not show how the agent stores its sessions.
    """
    id = conversation.conversation_id
    made = (turn_invocation(turn, f"{id}-{turn.turn_index}") for turn in conversation.turns)
    invocations = (INVOCATION.validate_python({**each, "creationTimestamp": created}) for each in made)
    return EvalCase(id, tuple(invocations), creation_timestamp=created, agentest=keys)
