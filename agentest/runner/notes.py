"""Notes about a unit or a run that inform, and question no verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from agentest.domain.goal_outcome import goal_outcome, goal_reason
from agentest.domain.metrics import ABOUT_CALLS, BUILTIN, GOAL
from agentest.domain.results import ConversationResult, GoalOutcome, RunWarning, ScenarioResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall, mismatch
from agentest.domain.verdict import undecisive_problems
from agentest.runner.plan import Plan, Unit
from agentest.scenarios.model import Scenario

_FINAL_STATES = ("final_session_state", "final_state")
_SHOWN = 3


def unit_notes(
    unit: Unit,
    conversations: Sequence[ConversationResult],
    thresholds: Mapping[str, float],
    *,
    has_user_model: bool,
) -> tuple[str, ...]:
    """Return the notes about a unit, in the order in which they are shown."""
    return (
        *_misfit_notes(conversations),
        *disagreements(unit.scenario, conversations),
        *_criteria_not_judged(unit.scenario, unit.metrics),
        *undecisive_problems(conversations, thresholds),
        *_calls_not_judged(unit.scenario, conversations),
        *(() if has_user_model else _tools_without_model(unit.scenario, conversations)),
    )


def _checks_the_goal(scenario: Scenario) -> bool:
    """Return True if a final state, or a required call that is no lookup, shows if the goal was reached."""
    # `within` makes every expected call optional.
    requires_call = any(each.expected and each.match_mode != "within" for each in scenario.trajectory)
    state = scenario.final_session_state is not None or scenario.final_state is not None
    return state or (requires_call and not scenario.expected_outcome)


def disagreements(scenario: Scenario, conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
    """Warn if the judge contradicts required calls or a final state, once per direction."""
    if not _checks_the_goal(scenario):
        return ()
    outcomes = [(each, _reached(each), goal_outcome(each)) for each in conversations]
    missed = [
        each for each, reached, outcome in outcomes if reached is True and outcome is GoalOutcome.NOT_REACHED
    ]
    reached = [
        each for each, reached, outcome in outcomes if reached is False and outcome is GoalOutcome.REACHED
    ]
    return (*_goals_warning(missed, _GOAL_MISSED), *_goals_warning(reached, _GOAL_REACHED))


def _criteria_not_judged(scenario: Scenario, metrics: Collection[str]) -> Iterator[str]:
    """Warn if a scenario has criteria that nothing judges. `metrics`: those judged if there is a goal."""
    named = [name for name in scenario.metrics or () if name in BUILTIN]
    for_nothing = [name for name in named if name != GOAL or not scenario.expected_outcome]
    if for_nothing and not scenario.goal and scenario.case is None:
        yield f"{', '.join(for_nothing)}: not judged, as the scenario has no `goal`"
    if scenario.expected_outcome and GOAL not in metrics:
        yield f"nobody judges the `expected_outcome`, as {GOAL} is not among the metrics"


def _calls_not_judged(scenario: Scenario, conversations: Sequence[ConversationResult]) -> Iterator[str]:
    """Warn if the scenario's own metric of tool calls was judged in no turn, as no tool is known."""
    turns = [turn for each in conversations for turn in each.turns]
    for name in ABOUT_CALLS.intersection(scenario.metrics or ()):
        if scenario.goal and turns and not any(name in turn.metrics for turn in turns):
            yield (
                f"{name}: judged in no turn, as no tool call was seen and no tool of the agent is known; "
                "`tools` of the agent or of the scenario name them"
            )


_GOAL_MISSED = (
    "the judge says that the goal was not reached{where}, but the required calls and the final state are as "
    "expected: {why}"
)
_GOAL_REACHED = (
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


def _misfit_notes(conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
    """Return one text for each tool that was called with arguments its mock does not accept."""
    misfits: dict[str, list[ToolCall]] = {}
    for result in conversations:
        for call in result.conversation.tool_calls:
            if mismatch(call):
                misfits.setdefault(call.name, []).append(call)
    return tuple(_misfit_note(name, calls) for name, calls in misfits.items())


def _misfit_note(name: str, calls: Sequence[ToolCall]) -> str:
    times = "" if len(calls) == 1 else f" {len(calls)} times"
    at_server = calls[0].seen_by is SeenBy.MOCK_SERVER
    what = "in a way that does not fit" if at_server else "with arguments that its mock does not take"
    mend = "its mock, or the description of the tools" if at_server else "the parameters of the mock"
    return (
        f"{name} was called{times} {what}: {mismatch(calls[0])}. The agent was answered an error; if the "
        f"call is right, mend {mend}"
    )


def _tools_without_model(scenario: Scenario, conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
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


def rerun_notes(slug: str, reasons: Mapping[int, str]) -> tuple[str, ...]:
    """Return a text about conversations that ran again. `reasons`: by number; `slug` begins their ids."""
    if not reasons:
        return ()
    examples = "; ".join(
        f"{slug}-{number}, as {reasons[number].rstrip('.')}" for number in sorted(reasons)[:_SHOWN]
    )
    more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    what = "1 conversation was" if len(reasons) == 1 else f"{len(reasons)} conversations were"
    return (f"{what} held again, the first did not count: {examples}{more}",)


Held = tuple[Unit, ScenarioResult]


def unanswered(plan: Plan, results: Mapping[str, ScenarioResult]) -> tuple[RunWarning, ...]:
    """Return a warning for each tool whose calls were answered with null."""
    finished = [(unit, results[unit.scope]) for unit in plan.units if unit.scope in results]
    tools = dict.fromkeys(tool for _, result in finished for tool in result.totals.unanswered)
    return tuple(
        _unanswered_warning(tool, [each for each in finished if tool in each[1].totals.unanswered])
        for tool in tools
    )


def _unanswered_warning(tool: str, finished: Sequence[Held]) -> RunWarning:
    units = [unit for unit, _ in finished]
    calls = sum(result.totals.unanswered[tool] for _, result in finished)
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
