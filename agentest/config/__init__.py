"""The configuration: keys, defaults and rules.

    from agentest.config import ChatCompletionsAgent, Config

Names are loaded on first use, so that importing one part does not import the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentest.config.agents.a2a import A2aAgent as A2aAgent
    from agentest.config.agents.adk import AdkAgent as AdkAgent
    from agentest.config.agents.adk import AdkModuleAgent as AdkModuleAgent
    from agentest.config.agents.ag_ui import AgUiAgent as AgUiAgent
    from agentest.config.agents.ai_sdk import AiSdkAgent as AiSdkAgent
    from agentest.config.agents.anthropic_messages import AnthropicMessagesAgent as AnthropicMessagesAgent
    from agentest.config.agents.chat_completions import AsgiAgent as AsgiAgent
    from agentest.config.agents.chat_completions import ChatCompletionsAgent as ChatCompletionsAgent
    from agentest.config.agents.command import CommandAgent as CommandAgent
    from agentest.config.agents.custom import CustomAgent as CustomAgent
    from agentest.config.agents.http import HttpTemplateAgent as HttpTemplateAgent
    from agentest.config.agents.langgraph import LangGraphAgent as LangGraphAgent
    from agentest.config.agents.responses import ResponsesAgent as ResponsesAgent
    from agentest.config.agents.server import Server as Server
    from agentest.config.agents.websocket import WebSocketAgent as WebSocketAgent
    from agentest.config.config import Config as Config
    from agentest.config.models import JudgeSettings as JudgeSettings
    from agentest.config.models import ModelSettings as ModelSettings
    from agentest.config.models import ProviderOptions as ProviderOptions

_MODULES = {
    "A2aAgent": "agents.a2a",
    "AdkAgent": "agents.adk",
    "AdkModuleAgent": "agents.adk",
    "AnthropicMessagesAgent": "agents.anthropic_messages",
    "AgUiAgent": "agents.ag_ui",
    "AiSdkAgent": "agents.ai_sdk",
    "AsgiAgent": "agents.chat_completions",
    "ChatCompletionsAgent": "agents.chat_completions",
    "CommandAgent": "agents.command",
    "CustomAgent": "agents.custom",
    "LangGraphAgent": "agents.langgraph",
    "HttpTemplateAgent": "agents.http",
    "Server": "agents.server",
    "WebSocketAgent": "agents.websocket",
    "Config": "config",
    "JudgeSettings": "models",
    "ModelSettings": "models",
    "ProviderOptions": "models",
    "ResponsesAgent": "agents.responses",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
