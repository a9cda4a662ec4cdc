"""Backends of the Vercel AI SDK: UI message streams, data streams, text streams."""

from agentest.plugin import Plugin


def hand_in(plugin: Plugin) -> None:
    """Hand in the agent type."""
    plugin.agent_type(
        "ai_sdk",
        settings=f"{__name__}.settings:AiSdkAgent",
        client=f"{__name__}.client:open_agent",
        probe=f"{__name__}.settings:AiSdkProbe",
        help="a chat endpoint of Vercel's AI SDK",
        words="vercel vercelai vercelaisdk usechat nextjs pydanticai client-tools approvals",
        docs="agents/vercel-ai-sdk",
    )
