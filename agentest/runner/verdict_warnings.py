"""The warnings that question a verdict: a table of their codes with what finds each, and how strict mode
treats them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from agentest.config.agents.companion_servers import unreached
from agentest.domain.metrics import ABOUT_CALLS, BUILTIN, GOAL, METRICS, PASS_RATE, Kind
from agentest.domain.results import (
    ConversationResult,
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
from agentest.domain.tool_visibility import Approval, SeenBy, ToolVisibility, cannot_be_seen
from agentest.domain.transcript import ToolCall, Turn, is_unreadable, mismatch
from agentest.domain.truncation import reads_like_error
from agentest.mocks.binding import BoundFunction, Mock, steps_of, tool_specs
from agentest.runner.known_tools import NamedTool, is_known, keyed_trajectories, named_tools, nearest_tool
from agentest.runner.plan import Plan, Unit
from agentest.scenarios.model import FOUND, Scenario
from agentest.scenarios.trajectory import (
    AnyOf,
    ExpectedCall,
    ToolName,
    Trajectory,
    is_one_tool,
    name_text,
    names_in,
)
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import first_names, shortened, turn_name

_SHOWN_TOOLS = 5
_SHOWN_CHARS = 80
_PROBES = ("a", "7", "…", "Ж", "{", "A longer reply, with 2 words or more.")
"""Texts that no pattern matches together unless it matches everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitEvidence:
    """The evidence for warnings about a unit."""

    unit: Unit
    conversations: Sequence[ConversationResult]
    verdict: Verdict

    @property
    def scenario(self) -> Scenario:
        return self.unit.scenario

    @property
    def called(self) -> frozenset[str]:
        """The tools that were called."""
        return frozenset(call.name for each in self.conversations for call in each.conversation.tool_calls)


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """The evidence for warnings that only the whole run shows."""

    plan: Plan
    results: Mapping[str, ScenarioResult]  # by scope; a unit without a result never began
    visibilities: Mapping[str, ToolVisibility]
    """Tool visibility in the whole run. Tools of unseen calls cannot be known."""
    silent: Mapping[RunWarning, Sequence[Unit]]  # the units of agents that never called a tool
    picked: bool = False

    def units_with_visible_calls(self) -> Iterator[Unit]:
        """Yield the units whose calls are visible, as far as they began."""
        for unit in self.plan.units:
            if unit.scope in self.results and self.visibilities[unit.agent] is not ToolVisibility.UNSEEN:
                yield unit


Finding = tuple[str, Sequence[str]] | tuple[str, Sequence[str], bool]
"""A message, the tools that it is about, and True if it questions no verdict: a note."""


def unit_warnings(evidence: UnitEvidence, *, complete: bool) -> tuple[VerdictWarning, ...]:
    """Return what questions the verdict on a unit by its conversations; `complete`: these are all of them."""
    # An agent that only failed says nothing about the unit's checks and mocks.
    is_conclusive = complete and any(each.conversation.failure is None for each in evidence.conversations)
    return tuple(
        _warning(evidence.unit, code, *finding)
        for code, find in UNIT_WARNINGS.items()
        if is_conclusive or code in _ALWAYS
        for finding in find(evidence)
    )


def run_warnings(evidence: RunEvidence) -> dict[str, tuple[VerdictWarning, ...]]:
    """Return scope of a unit → what questions its verdict, based on the whole run."""
    warnings: dict[str, tuple[VerdictWarning, ...]] = {}
    for code, find in RUN_WARNINGS.items():
        for unit, finding in find(evidence):
            warnings[unit.scope] = (*warnings.get(unit.scope, ()), _warning(unit, code, *finding))
    return warnings


def amended(result: ScenarioResult, late: Sequence[VerdictWarning], *, strict: bool) -> ScenarioResult:
    """Replace the whole-run warnings of a finished unit, which may come from an earlier run."""
    of_unit = tuple(w for w in result.verdict_warnings if w.code not in _ONLY_OF_RUN and w not in late)
    changes = result.verdict_warnings or late
    return questioned(result, (*of_unit, *late), strict=strict) if changes else result


def questioned(result: ScenarioResult, warnings: Sequence[VerdictWarning], *, strict: bool) -> ScenarioResult:
    """Return the result with exactly these warnings, errored by them if `strict` and not interrupted."""
    others = tuple(r for r in result.verdict.reasons if r.kind is not ReasonKind.WARNING)
    status = result.verdict.status
    if status is Status.ERRORED and not others:
        status = Status.PASSED
    decided = not any(reason.kind is ReasonKind.INTERRUPTED for reason in others)
    if strict and decided and status is not Status.SKIPPED:
        doubts = [Reason(Status.ERRORED, ReasonKind.WARNING, each.text) for each in warnings if not each.note]
        others, status = (*others, *doubts), Status.ERRORED if doubts and status is Status.PASSED else status
    return replace(result, verdict=Verdict(status, others), verdict_warnings=tuple(warnings))


def without(result: ScenarioResult, dropped: Iterable[VerdictWarning]) -> ScenarioResult:
    """Remove some warnings from the result, with the same strictness."""
    gone = tuple(dropped)
    strict = any(reason.kind is ReasonKind.WARNING for reason in result.verdict.reasons)
    left = [warning for warning in result.verdict_warnings if warning not in gone]
    return questioned(result, left, strict=strict) if gone else result


def _warning(
    unit: Unit, code: WarningCode, message: str, tools: Sequence[str], note: bool = False
) -> VerdictWarning:
    return VerdictWarning(
        code=code,
        scenario=unit.scenario.name,
        message=message,
        agent=unit.agent,
        file=unit.file,
        line=unit.scenario.line,
        tools=tuple(tools),
        note=note,
    )


def _only_replies(evidence: UnitEvidence) -> Iterator[Finding]:
    if _is_judged_otherwise(evidence):
        return
    results = chain.from_iterable(each.metric_results for each in evidence.conversations)
    skipped = any(isinstance(score, Skipped) for _, score in results)
    why = "the only check was that the agent replied"
    why += ", because the judged metrics need a `model`" if skipped else ""
    line = 'expect={"says": "…"}' if evidence.unit.file.endswith(".py") else 'expect: {says: "…"}'
    yield f"{why}. Add what a reply must contain to the scenario: {line}", ()


def _is_judged_otherwise(evidence: UnitEvidence) -> bool:
    return _declares_check(evidence.unit) or any(map(_has_deciding_score, evidence.conversations))


def _declares_check(unit: Unit) -> bool:
    scenario = unit.scenario
    return (
        _can_pass_unseen(unit)
        or bool(scenario.trajectories or scenario.expect or scenario.checks or unit.graders)
        or any(criterion.required for criterion in scenario.criteria)
        or any(turn.expect for turn in scenario.turns)
        or scenario.final_session_state is not None
        or not unit.thresholds.keys() <= {PASS_RATE}
    )


def _can_pass_unseen(unit: Unit) -> bool:
    scenario = unit.scenario
    is_guarded = scenario.is_guarded or scenario.attack is not None or scenario.final_state is not None
    about_calls = any(each.about_calls for each in scenario.trajectories)
    return is_guarded or about_calls or any(grader.name in ABOUT_CALLS for grader in unit.graders)


def _has_deciding_score(result: ConversationResult) -> bool:
    return any(
        not isinstance(score, Skipped) and (name == GOAL or METRICS[name].kind is Kind.LABEL)
        if name in BUILTIN  # custom metrics decide if they return labels
        else isinstance(score, Score) and isinstance(score.value, str)
        for name, score in result.metric_results
    )


def _error_replies(evidence: UnitEvidence) -> Iterator[Finding]:
    scenario, conversations = evidence.scenario, evidence.conversations
    is_read = scenario.checks or any(not each.never for each in scenario.expect)
    if is_read or any(map(_is_judged, conversations)):
        return
    turns = [turn for each in conversations for turn in each.conversation.turns]
    errors = [turn for turn in turns if reads_like_error(turn.agent_message)]
    unchecked = [turn for turn in errors if not _is_checked(scenario, turn)]
    if not unchecked:
        return
    times = f"{len(unchecked)} replies read" if unchecked[1:] else "a reply reads"
    example = shortened(unchecked[0].agent_message.strip(), _SHOWN_CHARS)
    message = (
        f"{times} like an error ({example!r}), but nothing checks the reply: add `expect` "
        f"with what the agent should say"
    )
    yield message, ()


def _is_judged(result: ConversationResult) -> bool:
    judged = any(criterion.required and not criterion.not_asked for criterion in result.criteria)
    return judged or _has_deciding_score(result)


def _is_checked(scenario: Scenario, turn: Turn) -> bool:
    expect = scenario.turns[turn.turn_index].expect if turn.turn_index < len(scenario.turns) else None
    if expect is None:
        return False
    patterns = (pattern for pattern in expect.regex if not _matches_any_text(pattern))
    return bool(expect.contains or any(patterns) or expect.json_schema or expect.says)


def _mocks_never_called(evidence: UnitEvidence) -> Iterator[Finding]:
    scenario, called = evidence.scenario, evidence.called
    if scenario.case is not None:  # `--mocks` is one file for all cases
        return
    if scenario.faults or scenario.injections or scenario.attack or FOUND in scenario.tags:
        return  # they keep an agent from calls, or it must not make them
    idle = [tool for tool in scenario.tools if tool not in called and not _may_be_idle(scenario, tool)]
    if not idle:
        return
    names = first_names(idle, _SHOWN_TOOLS)
    message = (
        f"the mock of tool {idle[0]!r} was never called: remove it or forbid its calls"
        if len(idle) == 1
        else f"{len(idle)} of {len(scenario.tools)} mocks were never called ({names}): remove or forbid them"
    )
    yield message, idle, len(idle) < len(scenario.tools) or _is_judged_otherwise(evidence)


def _may_be_idle(scenario: Scenario, tool: str) -> bool:
    for each in scenario.trajectories:
        bans = [banned.name for banned in each.forbidden]
        bans += [name for o in each.orders if o.kind == "never_after" for name in names_in(o.first)]
        if each.limit_of(tool) == 0 or each.max_calls == 0 or _any_matches(bans, tool):
            return True
    if scenario.turns and all(any(map(_allows_no_call, turn.trajectory)) for turn in scenario.turns):
        return True
    return any(_is_optional(each, tool) for each in scenario.trajectory)


def _allows_no_call(trajectory: Trajectory) -> bool:
    return trajectory.expected is not None and not trajectory.expected and trajectory.forbids_others


def _is_optional(trajectory: Trajectory, tool: str) -> bool:
    if not trajectory.expected:
        return _allows_no_call(trajectory)
    named = [name for step in trajectory.expected for name in names_in(step)]
    required = [step.name for step in trajectory.expected if not isinstance(step, AnyOf)]
    return _any_matches(named, tool) and not _any_matches(required, tool)


def _any_matches(names: Iterable[ToolName], tool: str) -> bool:
    return any(is_known(name, (tool,)) for name in names)


def _mocks_that_do_not_fit(evidence: UnitEvidence) -> Iterator[Finding]:
    calls: dict[str, list[ToolCall]] = {}
    for each in evidence.conversations:
        for call in each.conversation.tool_calls:
            calls.setdefault(call.name, []).append(call)
    for tool, made in calls.items():
        if misfits := [call for call in made if mismatch(call)]:
            times = "" if len(misfits) == 1 else f" {len(misfits)} times"
            at_server = misfits[0].seen_by is SeenBy.MOCK_SERVER
            what = "in a way that does not fit" if at_server else "with arguments that its mock does not take"
            cause = "its mock, or the description of the tools" if at_server else "the parameters of the mock"
            message = (
                f"{tool} was called{times} {what}: {mismatch(misfits[0])}. The agent received an error; if "
                f"the call is right, correct {cause}"
            )
            yield message, [tool], len(misfits) < len(made)


def _mocks_that_raised(evidence: UnitEvidence) -> Iterator[Finding]:
    errors_by_mock: dict[tuple[str, str], list[str]] = {}
    for result in evidence.conversations:
        for call in (*result.conversation.tool_calls, *result.conversation.user_calls):
            if call.raised:
                errors_by_mock.setdefault((call.name, call.raised), []).append(call.error or "")
    for (tool, raised), errors in errors_by_mock.items():
        times = f" ({len(errors)} times)" if len(errors) > 1 else ""
        first_row = errors[0].strip().partition("\n")[0]
        message = (
            f"the mock of tool {tool!r} raised {raised}{times}: {first_row}. Fix the mock, or raise "
            'ToolError("…") if the tool should fail'
        )
        yield message, [tool]


def _calls_with_invalid_arguments(evidence: UnitEvidence) -> Iterator[Finding]:
    calls = [call for each in evidence.conversations for call in each.conversation.tool_calls]
    if unreadable := [call for call in calls if is_unreadable(call)]:
        tools = list(dict.fromkeys(call.name for call in unreadable))
        names, sent = ", ".join(tools[:_SHOWN_TOOLS]), shortened(str(unreadable[0].args), _SHOWN_CHARS)
        message = f"the agent called {names} with arguments that are not a JSON object, so no tool ran: "
        yield f"{message}{sent!r}. Fix the arguments that the agent sends.", tools


def _simulated_tools(evidence: UnitEvidence) -> Iterator[Finding]:
    calls = (call for each in evidence.conversations for call in each.conversation.tool_calls)
    if tools := sorted({call.name for call in calls if call.simulated}):
        names = ", ".join(tools[:_SHOWN_TOOLS])
        yield f"a model answered {names}, which had no mock. Add mocks, or explore with --no-strict", tools


def _shared_sessions(evidence: UnitEvidence) -> Iterator[Finding]:
    for result in evidence.conversations:
        if foreign := result.conversation.foreign_session:
            yield (
                f"a reply in conversation {result.conversation.conversation_id} "
                f"({turn_name(foreign[0])}) carries the session id of another conversation, "
                f"{foreign[1]}: the agent shares state between conversations. "
                "Repair the agent, or set exclusive: true",
                (),
            )
            return


def _vacuous_checks(evidence: UnitEvidence) -> Iterator[Finding]:
    if evidence.scenario.case is None:
        yield from ((message, ()) for message in _checks_that_cannot_fail(evidence.unit))
    turns = [turn for each in evidence.conversations for turn in each.conversation.turns]
    met = {fault.kind for turn in turns for fault in turn.faults}
    for number, fault in enumerate(evidence.scenario.model_faults):
        if fault.kind not in met:
            due = f"{fault.kind!r}, due from request {fault.at} on"
            yield f"model_faults[{number}]: no request of the agent to its model met the fault {due}", ()
    if evidence.scenario.faults or evidence.scenario.injections:
        yield from _changes_without_effect(evidence)
    conversations = [each.conversation for each in evidence.conversations]
    calls = [call for each in conversations for call in each.tool_calls]
    decided = {call.name for call in calls if call.approval in (Approval.GRANTED, Approval.DENIED)}
    answered = {turn.turn_index for each in conversations for turn in each.turns if turn.approvals}
    answered |= {call.turn_index for call in calls if call.name in decided}
    own = {at for at, turn in enumerate(evidence.scenario.turns) if turn.approve is not None}
    turns_of = {"approve": answered - own, **{f"turns[{at}].approve": answered & {at} for at in own}}
    for key, approve in evidence.scenario.approve_keys.items():
        if isinstance(approve, Mapping):
            for tool in sorted(approve.keys() - decided):
                yield f"{key}.{tool}: the agent never asked for approval of {tool!r}", [tool]
        elif not turns_of[key]:
            yield f"{key}: the agent never asked for approval", ()


def _changes_without_effect(evidence: UnitEvidence) -> Iterator[Finding]:
    most: Counter[str] = Counter()
    for each in evidence.conversations:
        most |= Counter(call.name for call in each.conversation.tool_calls)
    for number, fault in enumerate(evidence.scenario.faults):
        if most[str(fault.tool)] < fault.at:
            message = f"faults[{number}]: no call met the fault {fault.kind!r}, due from call {fault.at} on"
            yield message, [str(fault.tool)]
    for number, injected in enumerate(evidence.scenario.injections):
        if injected.place in evidence.scenario.tools and not most[injected.place]:
            yield f"inject[{number}]: {injected.place} was never called, so nobody read it", [injected.place]


def _checks_that_cannot_fail(unit: Unit) -> Iterator[str]:
    scenario = unit.scenario
    for name, least in unit.thresholds.items():
        if name == PASS_RATE and least <= 0:
            yield f"thresholds.{name}: {least:g} is met even if every conversation fails"
        elif name in METRICS and least <= (1 if METRICS[name].kind is Kind.SCALE else 0):
            yield f"thresholds.{name}: no average is below {least:g}"
    turns = len(scenario.turns) if scenario.scripted else unit.max_turns
    for key, trajectory in keyed_trajectories(scenario):
        expected = trajectory.expected
        if not (
            trajectory.forbidden
            or trajectory.orders
            or expected
            or (expected is not None and trajectory.forbids_others)
            or trajectory.max_calls is not None
            or trajectory.max_calls_per_tool not in (None, {})
            or trajectory.min_calls
            or (trajectory.max_turns is not None and trajectory.max_turns < turns)
        ):
            yield f"{key} requires nothing, so every conversation meets it"
        for banned in trajectory.forbidden:
            yield from _unknown_arguments(key, banned, scenario.tools)
    for at, turn in enumerate(scenario.turns):
        for pattern in turn.expect.regex if turn.expect else ():
            if _matches_any_text(pattern) and pattern.search("") is not None:
                yield f"turns[{at}].expect.regex: {pattern.pattern!r} matches every reply"
    if scenario.final_state is not None and not _is_state_written(scenario):
        yield "final_state: no mock of the scenario takes `ctx`, so none can change the state"


def _unknown_arguments(key: str, banned: ExpectedCall, tools: Mapping[str, Mock]) -> Iterator[str]:
    if not is_one_tool(banned.name) or banned.name not in tools or not banned.args:
        return
    [spec] = tool_specs({str(banned.name): tools[str(banned.name)]})
    known = spec.parameters.get("properties")
    if known is None or spec.parameters.get("additionalProperties") is not False:
        return
    for name in banned.args:
        if re.split(r"[.\[]", name)[0] not in known and name not in known:
            yield f"{key}.forbidden: the mock of tool {banned.name!r} has no parameter {name!r}"


def _matches_any_text(pattern: re.Pattern[str]) -> bool:
    looks_for_absence = "(?!" in pattern.pattern or "(?<!" in pattern.pattern
    return not looks_for_absence and all(map(pattern.search, _PROBES))


def _is_state_written(scenario: Scenario) -> bool:
    steps = chain.from_iterable(map(steps_of, chain(scenario.tools.values(), scenario.user_tools.values())))
    return any(isinstance(step, BoundFunction) and step.receives_context for step in steps)


def _unproven_by_visible_calls(evidence: UnitEvidence) -> Iterator[Finding]:
    unit, conversations, traits = evidence.unit, evidence.conversations, evidence.unit.traits
    if traits.visibility is not ToolVisibility.PARTIAL or evidence.verdict.status is Status.ERRORED:
        return
    if traits.replies_show_calls and conversations and all(c.conversation.tells_calls for c in conversations):
        return
    listed = traits.tools.mock_servers.listed()
    unseen_tools = [name for name in unit.scenario.tools if name not in evidence.called | listed]
    judged = dict.fromkeys(
        name
        for each in conversations
        for name, result in each.metric_results
        if name in ABOUT_CALLS and isinstance(result, Score)
    )
    mocks = f"the agent may have run tools of its own in place of these mocks: {', '.join(unseen_tools)}"
    metrics = f"judged by the calls that were seen: {', '.join(judged)}"
    unproven = [*([mocks] if unseen_tools else []), *([metrics] if judged else [])]
    if unproven:
        yield f"{cannot_be_seen(unit.agent)} (tool_visibility: partial): {'; '.join(unproven)}", ()


def _unknown_tools(evidence: RunEvidence) -> Iterator[tuple[Unit, Finding]]:
    totals = [result.totals for result in evidence.results.values()]
    offered = frozenset[str]().union(*(each.offered for each in totals))
    known = offered.union(*(each.called for each in totals))
    for unit in evidence.units_with_visible_calls():
        unknown = evidence.plan.unknown_tools.get(unit.scope, ())
        named = {tool.name: tool for tool in reversed(unknown)}
        if offered and "model_gateway" in unit.traits.mock_servers:
            # A part of the agent may call its model past the gateway, so a mock proves no tool to be seen.
            mocks = [NamedTool("tools", name) for name in unit.scenario.tools if not unit.scenario.case]
            named |= {tool.name: tool for tool in reversed([*named_tools(unit.scenario), *mocks])}
        for tool in named.values():
            if is_known(tool.name, known):
                continue
            near = nearest_tool(tool.name, offered)
            hint = f" (did you mean {near!r}?)" if near else ""
            name = name_text(tool.name)
            what = "names tool" if isinstance(tool.name, str) else "has the pattern"
            why = (
                f"no mock, no schema and no call of this run knows: check the spelling{hint}, mock the tool, "
                f"or write under `agent`: tools: [{name}]"
            )
            if tool not in unknown:
                why = (
                    f"agent {unit.agent!r} offered its model in no turn, so its calls cannot be seen. If a "
                    f"part of the agent has it, give that part {{{{model_url}}}}; else remove the name{hint}"
                )
            # A scenario that was left out may call the tool, or its agent may offer it there.
            yield unit, (f"{tool.key} {what} {name!r}, which {why}", [name], evidence.picked)


def _calls_hidden_in_other_units(evidence: RunEvidence) -> Iterator[tuple[Unit, Finding]]:
    for unit in evidence.units_with_visible_calls():
        shown = evidence.results[unit.scope].totals.withholds_calls
        shown |= unit.traits.visibility is ToolVisibility.PARTIAL
        is_partial = evidence.visibilities[unit.agent] is ToolVisibility.PARTIAL
        if is_partial and not shown and unit.scenario.speaks_of_calls:
            yield unit, (f"in another scenario, {unit.traits.unreported}", ())


def _without_visible_calls(evidence: RunEvidence) -> Iterator[tuple[Unit, Finding]]:
    for warning, units in evidence.silent.items():
        for unit in units:
            note = evidence.picked and _declares_check(unit) and not _can_pass_unseen(unit)
            note = note or FOUND in unit.scenario.tags  # its calls were seen, and it must not make them
            yield unit, (warning.message, (), note)


UNIT_WARNINGS: Mapping[WarningCode, Callable[[UnitEvidence], Iterator[Finding]]] = {
    WarningCode.ONLY_REPLIES: _only_replies,
    WarningCode.ERROR_REPLY: _error_replies,
    WarningCode.VACUOUS_CHECK: _vacuous_checks,
    WarningCode.MOCK_NEVER_CALLED: _mocks_never_called,
    WarningCode.MOCK_MISFIT: _mocks_that_do_not_fit,
    WarningCode.INVALID_ARGUMENTS: _calls_with_invalid_arguments,
    WarningCode.MOCK_RAISED: _mocks_that_raised,
    WarningCode.SIMULATED_TOOLS: _simulated_tools,
    WarningCode.SHARED_SESSION: _shared_sessions,
    WarningCode.PARTIAL_VISIBILITY: _unproven_by_visible_calls,
}
"""Code → what finds the warning in a unit, in the order in which warnings are shown."""
_ALWAYS = (
    WarningCode.MOCK_MISFIT,
    WarningCode.INVALID_ARGUMENTS,
    WarningCode.MOCK_RAISED,
    WarningCode.SIMULATED_TOOLS,
    WarningCode.SHARED_SESSION,
    WarningCode.PARTIAL_VISIBILITY,
)
"""Warnings about a unit that need neither all of its conversations nor one without a failure."""
RUN_WARNINGS: Mapping[WarningCode, Callable[[RunEvidence], Iterator[tuple[Unit, Finding]]]] = {
    WarningCode.UNKNOWN_TOOL: _unknown_tools,
    WarningCode.PARTIAL_VISIBILITY: _calls_hidden_in_other_units,
    WarningCode.NO_CALL_SEEN: _without_visible_calls,
}
"""Code → what finds the warning in the whole run."""
_ONLY_OF_RUN = RUN_WARNINGS.keys() - UNIT_WARNINGS.keys()


def unreached_servers(unit: Unit, reached: Callable[[str, str], bool]) -> tuple[str, ...]:
    """Return the keys of the mock servers that the unit needs and that no client of its agent reached."""
    traits, scenario = unit.traits, unit.scenario
    if not traits.mock_servers or not scenario.speaks_of_calls:
        return ()
    missing = tuple(key for key in traits.mock_servers if not reached(unit.agent, key))
    for result in unit.finished_part.conversations:  # of the resumed run
        calls = result.conversation.tool_calls
        if any({SeenBy.MOCK_SERVER, SeenBy.MODEL} & {call.seen_by, *call.also_seen_by} for call in calls):
            return ()
    needed = traits.tools.mock_servers.keys_of({*scenario.tools, *scenario.named_tools})
    if needed:
        return tuple(key for key in missing if key in needed)
    return missing if len(missing) == len(traits.mock_servers) else ()


def never_connected(unit: Unit, servers: Sequence[str]) -> Reason:
    """Return why a unit cannot pass: no client connected to these mock servers in the whole run."""
    return Reason(Status.ERRORED, ReasonKind.CONVERSATION, unreached(unit.agent, servers))
