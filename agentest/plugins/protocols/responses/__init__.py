"""Agents that speak OpenAI's Responses."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "responses",
        settings=f"{__name__}.settings:ResponsesAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.settings:ResponsesProbe",
        help="an endpoint of OpenAI's Responses API",
        words="openai client-tools",
        docs="agents/openai-responses",
    )
