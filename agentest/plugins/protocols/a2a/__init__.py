"""Agents that speak A2A (Agent2Agent), versions 1.0 and 0.3."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "a2a",
        settings="agentest.plugins.protocols.a2a.settings:A2aAgent",
        client=f"{__name__}.client:open_agent",
        probe="agentest.plugins.authoring.detect.protocol_probes:probe_a2a",
        docs="agents/a2a",
    )
