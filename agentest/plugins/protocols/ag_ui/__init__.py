"""Agents behind AG-UI: runs of a thread, reported as streams of events."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "ag_ui",
        settings="agentest.plugins.protocols.ag_ui.settings:AgUiAgent",
        client=f"{__name__}.client:open_agent",
        probe="agentest.plugins.authoring.detect.protocol_probes:probe_ag_ui",
        docs="agents/ag-ui",
    )
