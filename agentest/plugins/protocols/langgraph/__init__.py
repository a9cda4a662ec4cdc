"""Graphs behind a LangGraph server: threads, runs, interrupts."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "langgraph",
        settings=f"{__name__}.settings:LangGraphAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.settings:LangGraphProbe",
        help="a LangGraph server",
        words="langchain langgraphserver langgraphplatform approvals",
        docs="agents/langgraph",
    )
