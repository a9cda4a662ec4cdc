"""The configuration: its keys, defaults and rules.

    from agentest.config import Config

The name is loaded when it is first used: the parts of the configuration need one another, not the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentest.config.config import Config as Config

__all__ = ["Config"]


def __getattr__(name: str) -> Any:
    if name != "Config":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentest.config.config import Config

    return Config
