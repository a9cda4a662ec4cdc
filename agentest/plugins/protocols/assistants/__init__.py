"""Agents of OpenAI's Assistants API and of Azure AI Foundry."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "assistants",
        settings=f"{__name__}.settings:AssistantsAgent",
        client=f"{__name__}.client:open_agent",
        help="an endpoint of OpenAI's Assistants API",
        words="openaiassistants azureaifoundry foundry azureagents approvals",
        docs="agents/assistants",
    )
