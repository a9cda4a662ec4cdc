"""Agents that speak A2A (Agent2Agent), versions 1.0 and 0.3."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "a2a",
        settings=f"{__name__}.settings:A2aAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.discovery:A2aProbe",
        help="an A2A agent",
        words="pydanticai googleadk",
        docs="agents/a2a",
    )
