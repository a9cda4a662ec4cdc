"""The warnings that question a scenario's verdict, and what they make of it in strict mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agentest.domain.metrics import BUILTIN, GOAL, METRICS, PASS_RATE, Kind
from agentest.domain.results import (
    ConversationResult,
    MetricResult,
    Reason,
    ReasonKind,
    RunWarning,
    ScenarioResult,
    Score,
    Skipped,
    Status,
    Verdict,
    VerdictWarning,
    WarningCode,
)
from agentest.domain.tool_visibility import Sight
from agentest.domain.transcript import ToolCall, Turn, mismatch
from agentest.runner.plan import Plan, Unit
from agentest.runner.tool_names import NamedTool, is_known
from agentest.runner.vacuous_checks import vacuous_checks
from agentest.scenarios.calls import AnyOf, names_in
from agentest.scenarios.model import Scenario
from agentest.scenarios.names import ToolName, name_text
from agentest.scenarios.trajectory import Trajectory
from agentest.support.error_texts import reads_like_error
from agentest.support.text import shortened

_LATE = (WarningCode.UNKNOWN_TOOL, WarningCode.NO_CALL_SEEN)
"""Known only when the whole run is."""
_EXACT_MODES = ("strict", "unordered", "within")
"""They forbid every call that is not expected."""
_SHOWN_TOOLS = 5
_SHOWN_CHARS = 80


def unit_warnings(
    unit: Unit, conversations: Sequence[ConversationResult], *, complete: bool
) -> tuple[VerdictWarning, ...]:
    """What questions the verdict on a unit, as far as its own conversations show it.

    Args:
        complete: whether these are all of its conversations.
    """
    found = [*_mocks_that_raised(unit, conversations)]
    # An agent that only failed has shown nothing of its checks and mocks.
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
    """Scope of a unit → what questions the verdict on it, as only the whole run shows it.

    Args:
        results: by scope; those that are missing were never begun.
        sights: of the whole run. Of unseen calls nobody knows which tools there are.
        silent: the units of agents that were never seen to call a tool.
    """
    called = frozenset[str]().union(*(result.totals.called for result in results.values()))
    found: dict[str, list[VerdictWarning]] = {}
    for unit in plan.units:
        seen = unit.scope in results and sights[unit.agent] is not Sight.UNSEEN
        for tool in plan.unknown_tools.get(unit.scope, ()) if seen else ():
            if not is_known(tool.name, called):
                found.setdefault(unit.scope, []).append(_unknown_tool(unit, tool))
        if seen and _is_doubted(unit, results[unit.scope], sights[unit.agent]):
            found.setdefault(unit.scope, []).append(_kept_back(unit))
    for warning, units in silent.items():
        for unit in units:
            no_call = _warning(unit, WarningCode.NO_CALL_SEEN, warning.message)
            found.setdefault(unit.scope, []).append(no_call)
    return {scope: tuple(warnings) for scope, warnings in found.items()}


def amended(result: ScenarioResult, late: Sequence[VerdictWarning], *, strict: bool) -> ScenarioResult:
    """A finished unit with the warnings of the whole run in place of those that an earlier run had."""
    own = tuple(w for w in result.verdict_warnings if w.code not in _LATE and w not in late)
    return (
        result
        if not result.verdict_warnings and not late
        else questioned(result, (*own, *late), strict=strict)
    )


def questioned(result: ScenarioResult, warnings: Sequence[VerdictWarning], *, strict: bool) -> ScenarioResult:
    """The result with these warnings and no others. In strict mode each of them is a reason to err.

    What a run did not come to its end with has no verdict yet that could be questioned.
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
    """The result without some of its warnings, and as strict as it was."""
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


def _is_doubted(unit: Unit, result: ScenarioResult, sight: Sight) -> bool:
    """Whether calls of the unit may be hidden, as other conversations showed that the agent hides some."""
    shown = result.totals.keeps_calls_back or unit.about.sight is Sight.PARTIAL
    return sight is Sight.PARTIAL and not shown and unit.scenario.speaks_of_calls


def _kept_back(unit: Unit) -> VerdictWarning:
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
    """Whether the scenario says what must hold, beyond the scores of judges."""
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
    """Whether a metric was judged that can fail a scenario without a threshold."""
    return any(_decides(name, score) for name, score in result.metric_results)


def _decides(metric: str, result: MetricResult) -> bool:
    if metric in BUILTIN:
        return not isinstance(result, Skipped) and (metric == GOAL or METRICS[metric].kind is Kind.LABEL)
    # Of custom metrics those that give labels.
    return isinstance(result, Score) and isinstance(result.value, str)


def _error_replies(unit: Unit, conversations: Sequence[ConversationResult]) -> Iterator[VerdictWarning]:
    scenario = unit.scenario
    is_read = scenario.check or any(not each.never for each in scenario.expect)
    if is_read or any(map(_is_judged, conversations)):
        return
    turns = [turn for each in conversations for turn in each.conversation.turns]
    errors = [turn for turn in turns if reads_like_error(turn.agent_message)]
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
    """Whether a judge has read the replies for something that decides."""
    judged = any(criterion.required and not criterion.not_asked for criterion in result.criteria)
    return judged or _has_deciding_score(result)


def _is_checked(scenario: Scenario, turn: Turn) -> bool:
    """Whether the script says what the reply of a turn must hold."""
    expect = scenario.turns[turn.turn_index].expect if turn.turn_index < len(scenario.turns) else None
    return expect is not None and bool(expect.contains or expect.regex or expect.json_schema or expect.says)


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
    """Whether the scenario itself says that the tool need not, or must not, be called."""
    return any(_forbids(each, tool) for each in scenario.trajectories) or any(
        _leaves_out(each, tool) for each in scenario.trajectory
    )


def _forbids(trajectory: Trajectory, tool: str) -> bool:
    bans = [each.name for each in trajectory.forbidden]
    bans += [name for o in trajectory.orders if o.kind == "never_after" for name in names_in(o.first)]
    return trajectory.limit_of(tool) == 0 or trajectory.max_calls == 0 or _any_is(bans, tool)


def _leaves_out(trajectory: Trajectory, tool: str) -> bool:
    """Whether no call at all is expected, or one of the tool is an alternative to others."""
    if not trajectory.expected:
        return trajectory.expected is not None and trajectory.match_mode in _EXACT_MODES
    named = [name for step in trajectory.expected for name in names_in(step)]
    required = [step.name for step in trajectory.expected if not isinstance(step, AnyOf)]
    return _any_is(named, tool) and not _any_is(required, tool)


def _any_is(names: Iterable[ToolName], tool: str) -> bool:
    return any(is_known(name, (tool,)) for name in names)


def _mocks_that_fit_no_call(
    unit: Unit, conversations: Sequence[ConversationResult]
) -> Iterator[VerdictWarning]:
    """A tool that was called, and of whose calls none had arguments that its mock takes."""
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
