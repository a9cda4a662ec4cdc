"""Agents that are programs: each message starts or feeds a process."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "command",
        settings="agentest.plugins.protocols.command.settings:CommandAgent",
        client=f"{__name__}.client:open_agent",
        docs="agents/command",
    )
