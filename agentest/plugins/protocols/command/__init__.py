"""Agents that are programs: each message starts or feeds a process."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "command",
        settings=f"{__name__}.settings:CommandAgent",
        client=f"{__name__}.client:open_agent",
        help="a program",
        words="cli shell process program",
        docs="agents/command",
    )
