"""The configuration: keys, defaults and rules.

    from agentest.config import ChatCompletionsAgent, Config

Names are loaded on first use, so that importing one part does not import the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentest.config.agents.chat_completions import AsgiAgent as AsgiAgent
    from agentest.config.agents.chat_completions import ChatCompletionsAgent as ChatCompletionsAgent
    from agentest.config.agents.http import HttpTemplateAgent as HttpTemplateAgent
    from agentest.config.agents.in_process import AdkModuleAgent as AdkModuleAgent
    from agentest.config.agents.in_process import CustomAgent as CustomAgent
    from agentest.config.agents.server import Server as Server
    from agentest.config.config import Config as Config
    from agentest.config.models import JudgeSettings as JudgeSettings
    from agentest.config.models import ModelSettings as ModelSettings
    from agentest.config.models import ProviderOptions as ProviderOptions
    from agentest.plugins.protocols.settings.agent_servers import A2aAgent as A2aAgent
    from agentest.plugins.protocols.settings.agent_servers import AdkAgent as AdkAgent
    from agentest.plugins.protocols.settings.agent_servers import LangGraphAgent as LangGraphAgent
    from agentest.plugins.protocols.settings.dialogue import CommandAgent as CommandAgent
    from agentest.plugins.protocols.settings.dialogue import WebSocketAgent as WebSocketAgent
    from agentest.plugins.protocols.settings.frontends import AgUiAgent as AgUiAgent
    from agentest.plugins.protocols.settings.frontends import AiSdkAgent as AiSdkAgent
    from agentest.plugins.protocols.settings.model_apis import (
        AnthropicMessagesAgent as AnthropicMessagesAgent,
    )
    from agentest.plugins.protocols.settings.model_apis import ResponsesAgent as ResponsesAgent

_NAMES = {
    "agentest.plugins.protocols.settings.agent_servers": "A2aAgent AdkAgent LangGraphAgent",
    "agentest.config.agents.chat_completions": "AsgiAgent ChatCompletionsAgent",
    "agentest.plugins.protocols.settings.dialogue": "CommandAgent WebSocketAgent",
    "agentest.plugins.protocols.settings.frontends": "AgUiAgent AiSdkAgent",
    "agentest.config.agents.http": "HttpTemplateAgent",
    "agentest.config.agents.in_process": "AdkModuleAgent CustomAgent",
    "agentest.plugins.protocols.settings.model_apis": "AnthropicMessagesAgent ResponsesAgent",
    "agentest.config.agents.server": "Server",
    "agentest.config.config": "Config",
    "agentest.config.models": "JudgeSettings ModelSettings ProviderOptions",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
