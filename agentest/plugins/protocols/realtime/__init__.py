"""Agents that speak OpenAI's Realtime API."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "realtime",
        settings=f"{__name__}.settings:RealtimeAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.settings:RealtimeProbe",
        help="an endpoint of OpenAI's Realtime API",
        docs="agents/realtime",
    )
