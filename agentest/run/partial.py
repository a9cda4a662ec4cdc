"""What calls that nobody could see leave open in a scenario."""

from __future__ import annotations

from collections.abc import Sequence

from agentest.metrics import ABOUT_CALLS
from agentest.results import ConversationResult, Reason, ReasonKind, Score, Status, Verdict
from agentest.results.warnings import VerdictWarning, WarningCode
from agentest.run.plan import Unit
from agentest.sight import Sight, cannot_be_seen


def needs_mock_server(unit: Unit) -> bool:
    """Whether the unit means nothing where no client connects to its agent's mock servers."""
    return bool(unit.about.mock_servers) and unit.scenario.speaks_of_calls


def never_connected(unit: Unit) -> Reason:
    """Why a unit cannot pass: nobody connected to its agent's mock servers in the whole run."""
    servers = " and ".join(unit.about.mock_servers)
    return Reason(
        Status.ERRORED,
        ReasonKind.CONVERSATION,
        f"no client ever connected to {servers} of agent {unit.agent!r}, so it got its tools elsewhere, "
        "and real ones may have run. Give the agent the address ({{mcp_url}}, {{rest_url}}; "
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
