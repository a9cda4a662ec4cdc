"""Backends of the Vercel AI SDK: UI message streams, data streams, text streams."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "ai_sdk",
        settings="agentest.plugins.protocols.ai_sdk.settings:AiSdkAgent",
        client=f"{__name__}.client:open_agent",
        probe="agentest.plugins.authoring.detect.protocol_probes:probe_ai_sdk",
        docs="agents/ai-sdk",
    )
