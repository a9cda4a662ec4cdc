"""Agent types beyond chat completions and HTTP: each has a folder with its settings and its client."""

from agentest.plugin import Plugin

plugin = Plugin("protocols")


def _hand_in(
    name: str, settings: str, probe: str, help: str, words: str = "", docs: str = "", folder: str = ""
) -> None:
    place = f"{__package__}.{folder or name}"
    plugin.agent_type(
        name,
        settings=f"{place}.settings:{settings}",
        client=f"{place}.client:open_agent",
        probe=probe and f"{place}.{probe}",
        help=help,
        words=words,
        docs=docs or f"agents/{name.replace('_', '-')}",
    )


_hand_in("a2a", "A2aAgent", "discovery:A2aProbe", "an A2A agent", "pydanticai googleadk")
_hand_in(
    "adk",
    "AdkAgent",
    "settings:AdkServerProbe",
    "google-adk's own server",
    "googleadk session-state approvals",
    docs="adk-agents",
    folder="adk_server",
)
plugin.hook("agentest.adk_plugin.FILE", f"{__package__}.adk_server.settings:PLUGIN_FILE")
_hand_in(
    "ag_ui",
    "AgUiAgent",
    "settings:AgUiProbe",
    "an AG-UI endpoint",
    "copilotkit pydanticai client-tools approvals",
)
_hand_in(
    "ai_sdk",
    "AiSdkAgent",
    "settings:AiSdkProbe",
    "a chat endpoint of Vercel's AI SDK",
    "vercel vercelai vercelaisdk usechat nextjs pydanticai client-tools approvals",
    docs="agents/vercel-ai-sdk",
)
_hand_in(
    "anthropic_messages",
    "AnthropicMessagesAgent",
    "settings:AnthropicMessagesProbe",
    "an endpoint of Anthropic's Messages API",
    "anthropic claude client-tools",
)
_hand_in("command", "CommandAgent", "", "a program", "cli shell process program")
_hand_in("grpc", "GrpcAgent", "settings:GrpcProbe", "a gRPC method")
_hand_in(
    "langgraph",
    "LangGraphAgent",
    "settings:LangGraphProbe",
    "a LangGraph server",
    "langchain langgraphserver langgraphplatform approvals",
)
_hand_in("realtime", "RealtimeAgent", "settings:RealtimeProbe", "an endpoint of OpenAI's Realtime API")
_hand_in(
    "responses",
    "ResponsesAgent",
    "settings:ResponsesProbe",
    "an endpoint of OpenAI's Responses API",
    "openai client-tools",
    docs="agents/openai-responses",
)
_hand_in("websocket", "WebSocketAgent", "settings:WebSocketProbe", "a WebSocket endpoint", "ws wss socket")
