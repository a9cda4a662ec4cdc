"""Agents that speak Anthropic's Messages API."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "anthropic_messages",
        settings=f"{__name__}.settings:AnthropicMessagesAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.settings:AnthropicMessagesProbe",
        help="an endpoint of Anthropic's Messages API",
        words="anthropic claude client-tools",
        docs="agents/anthropic-messages",
    )
