"""What calls that nobody could see leave open in a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentest.domain.metrics import ABOUT_CALLS
from agentest.domain.results import ConversationResult, Reason, ReasonKind, Score, Status, Verdict
from agentest.domain.results.warnings import VerdictWarning, WarningCode
from agentest.domain.tool_visibility import SeenBy, Sight, cannot_be_seen
from agentest.runner.plan import Unit


def unreached_servers(unit: Unit, reached: Callable[[str, str], bool]) -> tuple[str, ...]:
    """The keys of the mock servers that the unit needs and to which no client of its agent connected.

    Args:
        reached: whether one connected (agent, key).
    """
    about, scenario = unit.about, unit.scenario
    if not about.mock_servers or not scenario.speaks_of_calls:
        return ()
    missing = tuple(key for key in about.mock_servers if not reached(unit.agent, key))
    if any(map(_was_served, unit.kept.conversations.values())):  # in the run that this one resumes
        return ()
    needed = about.tools.beside.keys_of({*scenario.tools, *scenario.named_tools})
    if needed:
        return tuple(key for key in missing if key in needed)
    return missing if len(missing) == len(about.mock_servers) else ()


def _was_served(result: ConversationResult) -> bool:
    calls = result.conversation.tool_calls
    return any(SeenBy.MOCK_SERVER in (call.seen_by, *call.also_seen_by) for call in calls)


def never_connected(unit: Unit, servers: Sequence[str]) -> Reason:
    """Why a unit cannot pass: nobody connected to these mock servers in the whole run."""
    return Reason(
        Status.ERRORED,
        ReasonKind.CONVERSATION,
        f"no client ever connected to {' and '.join(servers)} of agent {unit.agent!r}, so it got its tools "
        "elsewhere, and real ones may have run. Give the agent the address ({{mcp_url}}, {{rest_url}}; "
        "AGENTEST_MCP_URL, AGENTEST_REST_URL) in place of the real server's",
    )


def partial_visibility(
    unit: Unit, conversations: Sequence[ConversationResult], verdict: Verdict
) -> tuple[VerdictWarning, ...]:
    """What could not be proven of a scenario, as only some calls of its agent can be seen.

    Nothing where that errs the scenario anyway, or where the agent's answers showed all of its calls.
    """
    about = unit.about
    if about.sight is not Sight.PARTIAL or verdict.status is Status.ERRORED:
        return ()
    if about.told_counts and conversations and all(c.conversation.tells_calls for c in conversations):
        return ()
    unproven = [*_mocks_never_called(unit, conversations), *_judged_calls(conversations)]
    if not unproven:
        return ()
    return (
        VerdictWarning(
            code=WarningCode.PARTIAL_VISIBILITY,
            scenario=unit.scenario.name,
            message=f"{cannot_be_seen(unit.agent)} (tool_visibility: partial): {'; '.join(unproven)}",
            agent=unit.agent,
            file=unit.file,
            line=unit.scenario.line,
        ),
    )


def _mocks_never_called(unit: Unit, conversations: Sequence[ConversationResult]) -> list[str]:
    called = {call.name for each in conversations for call in each.conversation.tool_calls}
    lost = [name for name in unit.scenario.tools if name not in called | unit.about.tools.listed]
    if not lost:
        return []
    return [f"the agent may have run tools of its own in place of these mocks: {', '.join(lost)}"]


def _judged_calls(conversations: Sequence[ConversationResult]) -> list[str]:
    """The metrics of tool calls that were judged by the calls that were seen."""
    found = dict.fromkeys(
        name
        for each in conversations
        for name, result in each.metric_results
        if name in ABOUT_CALLS and isinstance(result, Score)
    )
    return [f"judged by the calls that were seen: {', '.join(found)}"] if found else []
