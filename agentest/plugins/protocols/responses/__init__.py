"""Agents that speak OpenAI's Responses."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "responses",
        settings="agentest.plugins.protocols.responses.settings:ResponsesAgent",
        client=f"{__name__}.client:open_agent",
        probe="agentest.plugins.authoring.detect.protocol_probes:probe_responses",
        docs="agents/responses",
    )
