"""Graphs behind a LangGraph server: threads, runs, interrupts."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "langgraph",
        settings="agentest.plugins.protocols.langgraph.settings:LangGraphAgent",
        client=f"{__name__}.client:open_agent",
        probe="agentest.plugins.authoring.detect.protocol_probes:probe_langgraph",
        docs="agents/langgraph",
    )
