"""Agents that speak OpenAI's Realtime API."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "realtime",
        settings="agentest.plugins.protocols.realtime.settings:RealtimeAgent",
        client=f"{__name__}.client:open_agent",
        docs="agents/realtime",
    )
