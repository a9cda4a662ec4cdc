"""Agents of OpenAI's Assistants API and of Azure AI Foundry."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "assistants",
        settings="agentest.plugins.protocols.assistants.settings:AssistantsAgent",
        client=f"{__name__}.client:open_agent",
        docs="agents/assistants",
    )
