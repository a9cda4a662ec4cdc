from agentest.config.agents.chat_completions import AsgiAgent as AsgiAgent
from agentest.config.agents.chat_completions import ChatCompletionsAgent as ChatCompletionsAgent
from agentest.config.agents.http import HttpTemplateAgent as HttpTemplateAgent
from agentest.config.agents.in_process import CustomAgent as CustomAgent
from agentest.config.agents.server import Server as Server
from agentest.config.config import Config as Config
from agentest.config.models import JudgeSettings as JudgeSettings
from agentest.config.models import ModelSettings as ModelSettings
from agentest.config.models import ProviderOptions as ProviderOptions
from agentest.plugins.frameworks.adk_settings import AdkModuleAgent as AdkModuleAgent
from agentest.plugins.protocols.a2a.settings import A2aAgent as A2aAgent
from agentest.plugins.protocols.adk_server.settings import AdkAgent as AdkAgent
from agentest.plugins.protocols.ag_ui.settings import AgUiAgent as AgUiAgent
from agentest.plugins.protocols.ai_sdk.settings import AiSdkAgent as AiSdkAgent
from agentest.plugins.protocols.anthropic_messages.settings import (
    AnthropicMessagesAgent as AnthropicMessagesAgent,
)
from agentest.plugins.protocols.command.settings import CommandAgent as CommandAgent
from agentest.plugins.protocols.grpc.settings import GrpcAgent as GrpcAgent
from agentest.plugins.protocols.langgraph.settings import LangGraphAgent as LangGraphAgent
from agentest.plugins.protocols.realtime.settings import RealtimeAgent as RealtimeAgent
from agentest.plugins.protocols.responses.settings import ResponsesAgent as ResponsesAgent
from agentest.plugins.protocols.websocket.settings import WebSocketAgent as WebSocketAgent
