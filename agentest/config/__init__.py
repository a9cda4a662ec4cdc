"""The configuration: its keys, defaults and rules.

    from agentest.config import ChatCompletionsAgent, Config

Names are loaded when they are first used: the parts of the configuration need one another, not the whole.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentest.config.agents import AdkAgent as AdkAgent
    from agentest.config.agents import AdkModuleAgent as AdkModuleAgent
    from agentest.config.agents import AsgiAgent as AsgiAgent
    from agentest.config.agents import ChatCompletionsAgent as ChatCompletionsAgent
    from agentest.config.agents import CustomAgent as CustomAgent
    from agentest.config.agents import Server as Server
    from agentest.config.config import Config as Config
    from agentest.config.models import JudgeSettings as JudgeSettings
    from agentest.config.models import ModelSettings as ModelSettings
    from agentest.config.models import ProviderOptions as ProviderOptions

_MODULES = {
    "AdkAgent": "agents",
    "AdkModuleAgent": "agents",
    "AsgiAgent": "agents",
    "ChatCompletionsAgent": "agents",
    "CustomAgent": "agents",
    "Server": "agents",
    "Config": "config",
    "JudgeSettings": "models",
    "ModelSettings": "models",
    "ProviderOptions": "models",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
