"""Agent types beyond chat completions and HTTP: each has a folder with its settings and its client."""

from agentest.plugin import Plugin

plugin = Plugin("protocols")


def _hand_in(
    name: str, kind: str, help: str, words: str = "", docs: str = "", folder: str = "", probe: str = ""
) -> None:
    """Add a type. Its settings are the class `kind` + `Agent`, and its probe is `kind` + `Probe`."""
    place = f"{__package__}.{folder or name}"
    plugin.agent_type(
        name,
        settings=f"{place}.settings:{kind}Agent",
        client=f"{place}.client:open_agent",
        probe=f"{place}.{probe or f'settings:{kind}Probe'}" if name != "command" else "",
        help=help,
        words=words,
        docs=docs or f"agents/{name.replace('_', '-')}",
    )


_hand_in("a2a", "A2a", "an A2A agent", "pydanticai googleadk", probe="discovery:A2aProbe")
_hand_in(
    "adk",
    "Adk",
    "google-adk's own server",
    "googleadk session-state approvals",
    docs="adk-agents",
    folder="adk_server",
    probe="settings:AdkServerProbe",
)
plugin.hook("agentest.adk_plugin.FILE", f"{__package__}.adk_server.settings:PLUGIN_FILE")
_hand_in("ag_ui", "AgUi", "an AG-UI endpoint", "copilotkit pydanticai client-tools approvals")
_hand_in(
    "ai_sdk",
    "AiSdk",
    "a chat endpoint of Vercel's AI SDK",
    "vercel vercelai vercelaisdk usechat nextjs pydanticai client-tools approvals",
    docs="agents/vercel-ai-sdk",
)
_hand_in(
    "anthropic_messages",
    "AnthropicMessages",
    "an endpoint of Anthropic's Messages API",
    "anthropic claude client-tools",
)
_hand_in("command", "Command", "a program", "cli shell process program")
_hand_in("grpc", "Grpc", "a gRPC method")
_hand_in(
    "langgraph", "LangGraph", "a LangGraph server", "langchain langgraphserver langgraphplatform approvals"
)
_hand_in("realtime", "Realtime", "an endpoint of OpenAI's Realtime API")
_hand_in(
    "responses",
    "Responses",
    "an endpoint of OpenAI's Responses API",
    "openai client-tools",
    docs="agents/openai-responses",
)
_hand_in("websocket", "WebSocket", "a WebSocket endpoint", "ws wss socket")
