"""The agent: a help desk, in the process that talks with it."""

from __future__ import annotations

from typing import Any

from agentest import TurnContext


def answer(messages: list[dict[str, Any]], _: TurnContext) -> str:
    """The reply to the last message."""
    if "refund" in messages[-1]["content"].lower():
        return "You get your refund within five days. Is there anything else?"
    return "We are glad to help. What is it about?"
