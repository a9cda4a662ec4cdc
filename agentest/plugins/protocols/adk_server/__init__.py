"""Agents of Google's ADK behind its own server."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type, and the plugin for its server."""
    plugin.agent_type(
        "adk",
        settings=f"{__name__}.settings:AdkAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.settings:AdkServerProbe",
        help="google-adk's own server",
        words="googleadk session-state",
        docs="adk-agents",
    )
    plugin.hook("agentest.adk_plugin.FILE", f"{__name__}.settings:PLUGIN_FILE")
