"""The former name of `agentest.adk`. It will be removed in the next version."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentest.adk import *  # noqa: F403


def __getattr__(name: str) -> Any:
    import agentest.adk

    value = getattr(agentest.adk, name)
    warnings.warn("agentest.evalset is now agentest.adk: import from there", DeprecationWarning, stacklevel=2)
    return value
