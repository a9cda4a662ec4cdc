"""Agents behind a WebSocket."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "websocket",
        settings=f"{__name__}.settings:WebSocketAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.settings:WebSocketProbe",
        help="a WebSocket endpoint",
        words="ws wss socket",
        docs="agents/websocket",
    )
