"""Agents that speak Anthropic's Messages API."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "anthropic_messages",
        settings="agentest.plugins.protocols.anthropic_messages.settings:AnthropicMessagesAgent",
        client=f"{__name__}.client:open_agent",
        probe="agentest.plugins.authoring.detect.protocol_probes:probe_anthropic_messages",
        docs="agents/anthropic",
    )
