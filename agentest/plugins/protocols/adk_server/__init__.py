"""Agents of Google's ADK behind its own server."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "adk",
        settings="agentest.plugins.protocols.adk_server.settings:AdkAgent",
        client=f"{__name__}.client:open_agent",
        probe="agentest.plugins.authoring.detect.protocol_probes:probe_adk_server",
        docs="agents/adk",
    )
