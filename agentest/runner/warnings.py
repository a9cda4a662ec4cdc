"""The warnings about a unit or a run: those that question a verdict, and those that only inform.

`questioned` applies strict mode. `slimmed` drops from a conversation what no later report needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from agentest.domain.goal_outcome import goal_outcome, goal_reason
from agentest.domain.metrics import ABOUT_CALLS, BUILTIN, GOAL, METRICS, PASS_RATE, Kind
from agentest.domain.reasons import threshold_counted_trajectories
from agentest.domain.results import (
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    GoalOutcome,
    MetricResult,
    Reason,
    ReasonKind,
    RunWarning,
    ScenarioResult,
    Score,
    Skipped,
    Status,
    TrajectoryResult,
    TurnEvaluation,
    Verdict,
    VerdictWarning,
    WarningCode,
)
from agentest.domain.tool_visibility import SeenBy, Sight
from agentest.domain.transcript import ToolCall, Turn, mismatch
from agentest.domain.verdict import conversation_passed
from agentest.runner.plan import Plan, Unit
from agentest.runner.tools import NamedTool, is_known
from agentest.runner.vacuous_checks import matches_any_text, vacuous_checks
from agentest.scenarios.calls import AnyOf, ToolName, name_text, names_in
from agentest.scenarios.model import Scenario
from agentest.scenarios.trajectory import Trajectory
from agentest.support.replacing import replace
from agentest.support.text import shortened

_ERROR_CHARS = 1_000
_ERROR_TEXT = re.compile(
    r"""\s*(?:
        [\w.]*(?:error|exception)\s*:\s
        | \{\s*"error"
        | (?:http(?:/[\d.]+)?|error|status)\s+(?:code\s+)?[45]\d\d\b
        | (?:[45]\d\d\s*[:-]?\s+)?
          (?:internal\s+server\s+error|bad\s+gateway|service\s+unavailable|gateway\s+time-?out)
        | .*traceback\s\(most\ recent\ call\ last\)
    )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_LATE = (WarningCode.UNKNOWN_TOOL, WarningCode.NO_CALL_SEEN)
"""Warnings that are known only after the whole run."""
_EXACT_MODES = ("strict", "unordered", "within")
"""Match modes that forbid every unexpected call."""
_SHOWN_TOOLS = 5
_SHOWN_CHARS = 80


def unit_warnings(
    unit: Unit, conversations: Sequence[ConversationResult], *, complete: bool
) -> tuple[VerdictWarning, ...]:
    """Return what questions the verdict on a unit, based on its own conversations.

    Args:
        complete: True if these are all of its conversations.
    """
    found = [*_mocks_that_raised(unit, conversations)]
    # An agent that only failed says nothing about the unit's checks and mocks.
    if complete and any(each.conversation.failure is None for each in conversations):
        found = [
            *_only_replies(unit, conversations),
            *_error_replies(unit, conversations),
            *(_warning(unit, WarningCode.VACUOUS_CHECK, message) for message in vacuous_checks(unit)),
            *_mocks_never_called(unit, conversations),
            *_mocks_that_fit_no_call(unit, conversations),
            *found,
        ]
    return tuple(found)


def run_warnings(
    plan: Plan,
    results: Mapping[str, ScenarioResult],
    sights: Mapping[str, Sight],
    silent: Mapping[RunWarning, Sequence[Unit]],
) -> dict[str, tuple[VerdictWarning, ...]]:
    """Return scope of a unit → what questions its verdict, based on the whole run.

    Args:
        results: by scope; a unit without a result never began.
        sights: tool visibility in the whole run. Tools of unseen calls cannot be known.
        silent: the units of agents that never called a tool.
    """
    called = frozenset[str]().union(*(result.totals.called for result in results.values()))
    found: dict[str, list[VerdictWarning]] = {}
    for unit in plan.units:
        seen = unit.scope in results and sights[unit.agent] is not Sight.UNSEEN
        for tool in plan.unknown_tools.get(unit.scope, ()) if seen else ():
            if not is_known(tool.name, called):
                found.setdefault(unit.scope, []).append(_unknown_tool(unit, tool))
        if seen and _may_hide_calls(unit, results[unit.scope], sights[unit.agent]):
            found.setdefault(unit.scope, []).append(_hidden_calls_warning(unit))
    for warning, units in silent.items():
        for unit in units:
            no_call = _warning(unit, WarningCode.NO_CALL_SEEN, warning.message)
            found.setdefault(unit.scope, []).append(no_call)
    return {scope: tuple(warnings) for scope, warnings in found.items()}


def amended(result: ScenarioResult, late: Sequence[VerdictWarning], *, strict: bool) -> ScenarioResult:
    """Replace the whole-run warnings of a finished unit, which may come from an earlier run."""
    own = tuple(w for w in result.verdict_warnings if w.code not in _LATE and w not in late)
    return (
        result
        if not result.verdict_warnings and not late
        else questioned(result, (*own, *late), strict=strict)
    )


def questioned(result: ScenarioResult, warnings: Sequence[VerdictWarning], *, strict: bool) -> ScenarioResult:
    """Return the result with exactly these warnings. In strict mode each of them makes it errored.

    An interrupted unit has no verdict that could be questioned.
    """
    kept = tuple(r for r in result.verdict.reasons if r.kind is not ReasonKind.WARNING)
    status = result.verdict.status
    if status is Status.ERRORED and not kept:
        status = Status.PASSED
    decided = not any(reason.kind is ReasonKind.INTERRUPTED for reason in kept)
    if strict and decided and status is not Status.SKIPPED:
        kept += tuple(Reason(Status.ERRORED, ReasonKind.WARNING, warning.text) for warning in warnings)
        status = Status.ERRORED if warnings and status is Status.PASSED else status
    return replace(result, verdict=Verdict(status, kept), verdict_warnings=tuple(warnings))


def without(result: ScenarioResult, dropped: Iterable[VerdictWarning]) -> ScenarioResult:
    """Remove some warnings from the result, with the same strictness."""
    gone = tuple(dropped)
    strict = any(reason.kind is ReasonKind.WARNING for reason in result.verdict.reasons)
    left = [warning for warning in result.verdict_warnings if warning not in gone]
    return questioned(result, left, strict=strict) if gone else result


def _warning(unit: Unit, code: WarningCode, message: str, tools: Sequence[str] = ()) -> VerdictWarning:
    return VerdictWarning(
        code=code,
        scenario=unit.scenario.name,
        message=message,
        agent=unit.agent,
        file=unit.file,
        line=unit.scenario.line,
        tools=tuple(tools),
    )


def _may_hide_calls(unit: Unit, result: ScenarioResult, sight: Sight) -> bool:
    """Return True if the unit's calls may be hidden because other conversations showed that some are."""
    shown = result.totals.keeps_calls_back or unit.about.sight is Sight.PARTIAL
    return sight is Sight.PARTIAL and not shown and unit.scenario.speaks_of_calls


def _hidden_calls_warning(unit: Unit) -> VerdictWarning:
    message = f"in another scenario, {unit.about.untold}"
    return _warning(unit, WarningCode.PARTIAL_VISIBILITY, message)


def _unknown_tool(unit: Unit, tool: NamedTool) -> VerdictWarning:
    name = name_text(tool.name)
    what = "names tool" if isinstance(tool.name, str) else "has the pattern"
    message = (
        f"{tool.key} {what} {name!r}, which no mock, no schema and no call of this run knows: check the "
        "spelling, or name the tool in the agent's `tools`"
    )
    return _warning(unit, WarningCode.UNKNOWN_TOOL, message, [name])


def _only_replies(unit: Unit, conversations: Sequence[ConversationResult]) -> Iterator[VerdictWarning]:
    if _declares_check(unit) or any(map(_has_deciding_score, conversations)):
        return
    skipped = any(isinstance(score, Skipped) for each in conversations for _, score in each.metric_results)
    why = (
        "the judged metrics were skipped, as no model is configured; configure one or add"
        if skipped
        else "add"
    )
    message = (
        f"the only check was that the agent replied: {why} a check that needs no model (`expect`, "
        "`trajectory` or `check`)"
    )
    yield _warning(unit, WarningCode.ONLY_REPLIES, message)


def _declares_check(unit: Unit) -> bool:
    """Return True if the scenario has checks other than judges' scores."""
    scenario = unit.scenario
    states = (scenario.final_state, scenario.final_session_state, scenario.check)
    return (
        bool(scenario.trajectories or scenario.expect or unit.graders)
        or any(criterion.required for criterion in scenario.criteria)
        or any(turn.expect for turn in scenario.turns)
        or any(each is not None for each in states)
        or not unit.thresholds.keys() <= {PASS_RATE}
    )


def _has_deciding_score(result: ConversationResult) -> bool:
    """Return True if a metric was judged that can fail a scenario without a threshold."""
    return any(_decides(name, score) for name, score in result.metric_results)


def _decides(metric: str, result: MetricResult) -> bool:
    if metric in BUILTIN:
        return not isinstance(result, Skipped) and (metric == GOAL or METRICS[metric].kind is Kind.LABEL)
    # Custom metrics that return labels.
    return isinstance(result, Score) and isinstance(result.value, str)


def _error_replies(unit: Unit, conversations: Sequence[ConversationResult]) -> Iterator[VerdictWarning]:
    scenario = unit.scenario
    is_read = scenario.check or any(not each.never for each in scenario.expect)
    if is_read or any(map(_is_judged, conversations)):
        return
    turns = [turn for each in conversations for turn in each.conversation.turns]
    errors = [turn for turn in turns if _reads_like_error(turn.agent_message)]
    found = [turn for turn in errors if not _is_checked(scenario, turn)]
    if not found:
        return
    times = f"{len(found)} replies read" if found[1:] else "a reply reads"
    message = (
        f"{times} like an error ({shortened(found[0].agent_message.strip(), _SHOWN_CHARS)!r}), and nothing "
        "checks what is said: add `expect` with what the agent should say"
    )
    yield _warning(unit, WarningCode.ERROR_REPLY, message)


def _is_judged(result: ConversationResult) -> bool:
    """Return True if a judge has read the replies for a deciding metric."""
    judged = any(criterion.required and not criterion.not_asked for criterion in result.criteria)
    return judged or _has_deciding_score(result)


def _is_checked(scenario: Scenario, turn: Turn) -> bool:
    """Return True if the script has checks for the reply of a turn."""
    expect = scenario.turns[turn.turn_index].expect if turn.turn_index < len(scenario.turns) else None
    if expect is None:
        return False
    patterns = (pattern for pattern in expect.regex if not matches_any_text(pattern))
    return bool(expect.contains or any(patterns) or expect.json_schema or expect.says)


def _mocks_never_called(unit: Unit, conversations: Sequence[ConversationResult]) -> Iterator[VerdictWarning]:
    scenario = unit.scenario
    if scenario.case is not None:  # `--mocks` is one file for all cases
        return
    called = {call.name for each in conversations for call in each.conversation.tool_calls}
    idle = [tool for tool in scenario.tools if tool not in called and not _may_be_idle(scenario, tool)]
    if not idle:
        return
    more = f" and {len(idle) - _SHOWN_TOOLS} more" if len(idle) > _SHOWN_TOOLS else ""
    shown = ", ".join(idle[:_SHOWN_TOOLS]) + more
    message = (
        f"the mock of tool {idle[0]!r} was never called: remove it or forbid its calls"
        if len(idle) == 1
        else f"{len(idle)} of {len(scenario.tools)} mocks were never called ({shown}): remove or forbid them"
    )
    yield _warning(unit, WarningCode.MOCK_NEVER_CALLED, message, idle)


def _may_be_idle(scenario: Scenario, tool: str) -> bool:
    """Return True if the scenario itself says that the tool may, or must, stay unused."""
    return any(_forbids(each, tool) for each in scenario.trajectories) or any(
        _is_optional(each, tool) for each in scenario.trajectory
    )


def _forbids(trajectory: Trajectory, tool: str) -> bool:
    bans = [each.name for each in trajectory.forbidden]
    bans += [name for o in trajectory.orders if o.kind == "never_after" for name in names_in(o.first)]
    return trajectory.limit_of(tool) == 0 or trajectory.max_calls == 0 or _any_matches(bans, tool)


def _is_optional(trajectory: Trajectory, tool: str) -> bool:
    """Return True if no call is expected at all, or one of the tool only as an alternative."""
    if not trajectory.expected:
        return trajectory.expected is not None and trajectory.match_mode in _EXACT_MODES
    named = [name for step in trajectory.expected for name in names_in(step)]
    required = [step.name for step in trajectory.expected if not isinstance(step, AnyOf)]
    return _any_matches(named, tool) and not _any_matches(required, tool)


def _any_matches(names: Iterable[ToolName], tool: str) -> bool:
    return any(is_known(name, (tool,)) for name in names)


def _mocks_that_fit_no_call(
    unit: Unit, conversations: Sequence[ConversationResult]
) -> Iterator[VerdictWarning]:
    """Warn about tools that were called only with arguments that their mock does not accept."""
    calls: dict[str, list[ToolCall]] = {}
    for each in conversations:
        for call in each.conversation.tool_calls:
            calls.setdefault(call.name, []).append(call)
    for tool, made in calls.items():
        if all(map(mismatch, made)):
            message = (
                f"no call of tool {tool!r} had arguments that its mock takes ({mismatch(made[0])}), so the "
                "agent only got errors: correct the mock's parameters, or the agent's description of the tool"
            )
            yield _warning(unit, WarningCode.MOCK_MISFIT, message, [tool])


def _mocks_that_raised(unit: Unit, conversations: Sequence[ConversationResult]) -> Iterator[VerdictWarning]:
    found: dict[tuple[str, str], list[str]] = {}
    for result in conversations:
        for call in (*result.conversation.tool_calls, *result.conversation.user_calls):
            if call.raised:
                found.setdefault((call.name, call.raised), []).append(call.error or "")
    for (tool, raised), errors in found.items():
        times = f" ({len(errors)} times)" if len(errors) > 1 else ""
        first_row = errors[0].strip().partition("\n")[0]
        message = (
            f"the mock of tool {tool!r} raised {raised}{times}: {first_row}. Fix the mock, or raise "
            'ToolError("…") if the tool should fail'
        )
        yield _warning(unit, WarningCode.MOCK_RAISED, message, [tool])


_FINAL_STATES = ("final_session_state", "final_state")


def _checks_the_goal(scenario: Scenario) -> bool:
    """Return True if a required call or a final state shows if the goal was reached.

    If there is an expected outcome, a call alone does not show it: the call may be a lookup.
    """
    # `within` makes every expected call optional.
    requires_call = any(each.expected and each.match_mode != "within" for each in scenario.trajectory)
    state = scenario.final_session_state is not None or scenario.final_state is not None
    return state or (requires_call and not scenario.expected_outcome)


def disagreements(scenario: Scenario, conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
    """Warn if the judge contradicts required calls or a final state, once per direction."""
    if not _checks_the_goal(scenario):
        return ()
    found = [(each, _reached(each), goal_outcome(each)) for each in conversations]
    missed = [each for each, reached, said in found if reached is True and said is GoalOutcome.NOT_REACHED]
    reached = [each for each, reached, said in found if reached is False and said is GoalOutcome.REACHED]
    return (*_goals_warning(missed, _DONE), *_goals_warning(reached, _UNDONE))


def criteria_not_judged(scenario: Scenario, metrics: Collection[str]) -> Iterator[str]:
    """Warn if a scenario has criteria that nothing judges.

    Args:
        metrics: those that are judged if there is a goal.
    """
    named = [name for name in scenario.metrics or () if name in BUILTIN]
    for_nothing = [name for name in named if name != GOAL or not scenario.expected_outcome]
    if for_nothing and not scenario.goal and scenario.case is None:
        yield f"{', '.join(for_nothing)}: not judged, as the scenario has no `goal`"
    if scenario.expected_outcome and GOAL not in metrics:
        yield f"nobody judges the `expected_outcome`, as {GOAL} is not among the metrics"


def calls_not_judged(scenario: Scenario, conversations: Sequence[ConversationResult]) -> Iterator[str]:
    """Warn if the scenario sets a metric of tool calls but no turn could be judged, as no tool is known.

    Metrics of the configuration are not meant for this scenario in particular.
    """
    turns = [turn for each in conversations for turn in each.turns]
    for name in ABOUT_CALLS.intersection(scenario.metrics or ()):
        if scenario.goal and turns and not any(name in turn.metrics for turn in turns):
            yield (
                f"{name}: judged in no turn, as no tool call was seen and no tool of the agent is known; "
                "`tools` of the agent or of the scenario name them"
            )


_DONE = (
    "the judge says that the goal was not reached{where}, but the required calls and the final state are as "
    "expected: {why}"
)
_UNDONE = (
    "the judge says that the goal was reached{where}, but the required calls or the final state are not as "
    "expected: {why}"
)


def _reached(result: ConversationResult) -> bool | None:
    """Return True if required calls and final state show that the goal was reached; None: unknown."""
    trajectory = result.trajectory
    checks = (*(check for turn in result.turns for check in turn.checks), *result.checks)
    state = [check for check in checks if check.check in _FINAL_STATES]
    if result.conversation.failure or any(each.error for each in (*state, trajectory) if each):
        return None
    if trajectory is not None and trajectory.missing_calls:
        return False
    if any(not check.passed for check in state):
        return False
    # Extra calls, or calls in another order, say nothing about the goal.
    return True if trajectory is None or trajectory.matched else None


def _goals_warning(conversations: Sequence[ConversationResult], text: str) -> Iterator[str]:
    if conversations:
        first, more = conversations[0], len(conversations) - 1
        where = f" in {first.conversation.conversation_id}" + (f" and {more} more" if more else "")
        yield text.format(where=where, why=goal_reason(first) or "it gives no reason")


_SHOWN = 3


def warnings_of(conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
    """Return one text for each tool that was called with arguments its mock does not accept."""
    misfits: dict[str, list[ToolCall]] = {}
    for result in conversations:
        for call in result.conversation.tool_calls:
            if mismatch(call):
                misfits.setdefault(call.name, []).append(call)
    return tuple(_totals_warning(name, calls) for name, calls in misfits.items())


def _totals_warning(name: str, calls: Sequence[ToolCall]) -> str:
    times = "" if len(calls) == 1 else f" {len(calls)} times"
    at_server = calls[0].seen_by is SeenBy.MOCK_SERVER
    what = "in a way that does not fit" if at_server else "with arguments that its mock does not take"
    mend = "its mock, or the description of the tools" if at_server else "the parameters of the mock"
    return (
        f"{name} was called{times} {what}: {mismatch(calls[0])}. The agent was answered an error; if the "
        f"call is right, mend {mend}"
    )


def tools_without_model(scenario: Scenario, conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
    """Warn if the user has tools but no model that decides when to use them."""
    idle = idle_user(scenario)
    if idle is None or any(each.conversation.user_calls for each in conversations):
        return ()
    return (idle,)


def idle_user(scenario: Scenario) -> str | None:
    """Return why a user without a model uses none of its tools, with a remedy; None if it has none."""
    if not scenario.user_tools:
        return None
    tools = ", ".join(scenario.user_tools)
    return (
        f"the simulated user used none of its tools ({tools}): offline it says its facts and does nothing "
        "else; configure a model, or name one with --model, to have it use them"
    )


def held_again(slug: str, whys: Mapping[int, str]) -> tuple[str, ...]:
    """Return a text about conversations that ran again, naming the first of them and the reason.

    Args:
        slug: prefix of the ids of the conversations.
        whys: number of a conversation → what its simulated user did wrong.
    """
    if not whys:
        return ()
    shown = "; ".join(f"{slug}-{number}, as {whys[number].rstrip('.')}" for number in sorted(whys)[:_SHOWN])
    more = f"; and {len(whys) - _SHOWN} more" if len(whys) > _SHOWN else ""
    what = "1 conversation was" if len(whys) == 1 else f"{len(whys)} conversations were"
    return (f"{what} held again, the first did not count: {shown}{more}",)


def without_unneeded_parts(result: ConversationResult) -> ConversationResult:
    """Drop texts, arguments and reasons from a passed conversation, because no later report needs them.

    A conversation with a problem stays complete. So does one whose unexpected calls only count, because it is
    shown when its scenario ends.
    """
    if result.failures or not conversation_passed(result) or threshold_counted_trajectories(result):
        return result
    turns = tuple(_slim_turn(turn) for turn in result.conversation.turns)
    return replace(
        result,
        conversation=replace(result.conversation, turns=turns, mock_state=None),
        turns=tuple(map(_slim_evaluation, result.turns)),
        metrics=_slim_metrics(result.metrics),
        trajectory=_slim_trajectory(result.trajectory),
        criteria=tuple(map(_slim_criterion, result.criteria)),
    )


def _slim_turn(turn: Turn) -> Turn:
    calls = tuple(
        replace(call, args={} if isinstance(call.args, Mapping) else "", result=None)
        for call in turn.tool_calls
    )
    # The scenario's warnings are about replies that read like errors.
    reply = shortened(turn.agent_message) if _reads_like_error(turn.agent_message) else ""
    return replace(turn, user_message="", agent_message=reply, tool_calls=calls, remarks=(), state_after=None)


def _slim_evaluation(turn: TurnEvaluation) -> TurnEvaluation:
    if not turn.metrics and turn.trajectory is None:
        return turn
    return replace(turn, metrics=_slim_metrics(turn.metrics), trajectory=_slim_trajectory(turn.trajectory))


def _slim_trajectory(trajectory: TrajectoryResult | None) -> TrajectoryResult | None:
    if trajectory is None:
        return None
    parts = tuple(filter(None, map(_slim_trajectory, trajectory.parts)))
    return replace(trajectory, alignment=(), alignment_more=0, parts=parts)


def _slim_metrics(metrics: Mapping[str, MetricResult]) -> dict[str, MetricResult]:
    return {
        name: _slim_score(result) if isinstance(result, Score) else result for name, result in metrics.items()
    }


def _slim_score(score: Score) -> Score:
    """Retain the reason if a goal was not reached or wrongly reached, which the verdict shows."""
    missed = score.outcome is not None and score.outcome is not GoalOutcome.REACHED
    return score if missed else replace(score, reason="")


def _slim_criterion(criterion: CriterionResult) -> CriterionResult:
    return replace(criterion, reason="") if criterion.result is CriterionOutcome.MET else criterion


Held = tuple[Unit, ScenarioResult]


def unanswered(plan: Plan, results: Mapping[str, ScenarioResult]) -> tuple[RunWarning, ...]:
    """Return a warning for each tool whose calls were answered with null.

    Args:
        results: by scope of the unit; a unit without a result never began.
    """
    held = [(unit, results[unit.scope]) for unit in plan.units if unit.scope in results]
    tools = dict.fromkeys(tool for _, result in held for tool in result.totals.unanswered)
    return tuple(
        _unanswered_warning(tool, [one for one in held if tool in one[1].totals.unanswered]) for tool in tools
    )


def _unanswered_warning(tool: str, held: Sequence[Held]) -> RunWarning:
    units = [unit for unit, _ in held]
    calls = sum(result.totals.unanswered[tool] for _, result in held)
    of_cases = units[0].scenario.case is not None
    message = (
        f"{calls} call{'s' * (calls != 1)} of tool {tool!r} {'was' if calls == 1 else 'were'} answered with "
        f"null, as nothing here answers {'it' if calls == 1 else 'them'} ({_scenario_list(units, of_cases)})"
        f"{_other_arguments(tool, units)}. {_remedy(tool, of_cases)}"
    )
    first = units[0]
    return RunWarning(message, first.agent, first.file, first.scenario.line)


def _scenario_list(units: Iterable[Unit], of_cases: bool) -> str:
    names = list(dict.fromkeys(unit.scenario.name for unit in units))
    what = ("case" if of_cases else "scenario") + "s" * (len(names) != 1)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {', '.join(map(repr, names[:_SHOWN]))}{more}"


def _other_arguments(tool: str, units: Iterable[Unit]) -> str:
    """Note that a recorded answer may be wrong for other arguments."""
    recorded = any(answer.name == tool for unit in units for answer in unit.scenario.recorded or ())
    return ": what the set recorded answers calls with other arguments" if recorded else ""


def _remedy(tool: str, of_cases: bool) -> str:
    mocks = f'tools = {{"{tool}": …}}'
    if of_cases:
        return (
            f"To answer them: --mocks FILE with {mocks}, or `tool_responses` in the set; to have them fail "
            "their cases: --unmocked-tools error"
        )
    return (
        f"To answer them: {mocks.replace(' = ', '=')} in the scenario; to have them fail it: "
        "--unmocked-tools error"
    )


def _reads_like_error(text: str) -> bool:
    """Return True if a text begins as an exception or a server's error page does, or has a traceback."""
    return _ERROR_TEXT.match(text[:_ERROR_CHARS]) is not None
