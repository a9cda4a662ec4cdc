"""What the configuration says of an agent in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from agentest.config.agents.base import AnyAgent


class CustomAgent(AnyAgent):
    """An agent in Python: a function from messages to a message."""

    type: Literal["custom"]
    handler: Callable[..., Any] | str
    """An async or plain function `(messages, ctx) -> message | str`, or its import path `pkg.module:name`."""

    @property
    def address(self) -> str:
        return "python handler"

    @property
    def state_refusal(self) -> str | None:
        return None
