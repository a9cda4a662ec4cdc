"""Agents behind a gRPC method."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "grpc",
        settings="agentest.plugins.protocols.grpc.settings:GrpcAgent",
        client=f"{__name__}.client:open_agent",
        docs="agents/grpc",
    )
