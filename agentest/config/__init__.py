"""The configuration: keys, defaults and rules.

    from agentest.config import ChatCompletionsAgent, Config

Names are loaded on first use, so that importing one part does not import the others. `__init__.pyi` tells
type checkers where they are.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "agentest.config.agents.chat_completions": "AsgiAgent ChatCompletionsAgent",
    "agentest.config.agents.http": "HttpTemplateAgent",
    "agentest.config.agents.in_process": "CustomAgent",
    "agentest.config.agents.server": "Server",
    "agentest.config.config": "Config",
    "agentest.config.models": "JudgeSettings ModelSettings ProviderOptions",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Return a name of the core, or the settings of a plug-in's agent type by the name of their class."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name.endswith("Agent"):
        from agentest.plugin import PLUGINS

        for kind in PLUGINS.all("agent type").values():
            if kind.facts["settings"].endswith(f":{name}"):
                return kind.load("settings")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
