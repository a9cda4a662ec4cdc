"""Agents behind a WebSocket."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "websocket",
        settings="agentest.plugins.protocols.websocket.settings:WebSocketAgent",
        client=f"{__name__}.client:open_agent",
        probe="agentest.plugins.authoring.detect.protocol_probes:probe_websocket",
        docs="agents/websocket",
    )
