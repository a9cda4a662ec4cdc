"""What the configuration says of messages that have a form of their own, for agents that stay connected."""

from __future__ import annotations

from typing import Any

from agentest.config.agents.base import AnyAgent
from agentest.config.fields import PathText
from agentest.domain.tool_visibility import Sight


class DialogueAgent(AnyAgent):
    """An agent whose messages are read by paths (`agents.dialogue.Form`)."""

    reply: PathText | None = None
    delta: PathText | None = None
    done: PathText | None = None
    tool_calls: PathText | None = None
    error: PathText | None = None
    tool_request: PathText | None = None
    tool_response: Any = None

    @property
    def natural_sight(self) -> Sight:
        if self.tool_request is not None:
            return Sight.RETURNED
        return Sight.UNSEEN if self.tool_calls is None else Sight.REPORTED
