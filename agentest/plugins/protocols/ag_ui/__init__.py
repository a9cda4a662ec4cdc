"""Agents behind AG-UI: runs of a thread, reported as streams of events."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "ag_ui",
        settings=f"{__name__}.settings:AgUiAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.settings:AgUiProbe",
        help="an AG-UI endpoint",
        words="copilotkit pydanticai client-tools approvals",
        docs="agents/ag-ui",
    )
