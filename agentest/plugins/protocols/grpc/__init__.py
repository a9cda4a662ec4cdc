"""Agents behind a gRPC method."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "grpc",
        settings=f"{__name__}.settings:GrpcAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.settings:GrpcProbe",
        help="a gRPC method",
        docs="agents/grpc",
    )
