"""Settings of agents that reply by calling us, as on Slack, Teams, WhatsApp and Twilio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from agentest.config.agents.mock_servers import CompanionServer, Port, check_placeholders
from agentest.config.fields import PathText
from agentest.support.json_path import check_path


class ReplyWebhook(CompanionServer):
    """The server to which the agent sends its replies. It answers every path."""

    port: Port
    """The port, which the agent knows from its own settings."""
    message: PathText
    """Path of the text in the body of a call. A call without one is answered and belongs to no reply."""
    conversation: PathText
    """Path of the value in it that identifies the conversation."""
    id: str = Field(default="{{session_id}}", min_length=1)
    """That value, with placeholders."""
    until: PathText | None = None
    """Path that is true for the last call of a turn."""
    quiet_ms: int = Field(default=1000, ge=20)
    """Without `until`, how long no further call has to come after the first message of a turn."""
    ack: Any = Field(default_factory=lambda: {"ok": True, "id": "{{call_id}}"})
    """The answer to each call, with placeholders: `{{call_id}}`, and `{{call.KEY}}` for its values."""

    @model_validator(mode="before")
    @classmethod
    def _quiet_time(cls, value: Any) -> Any:
        """Accept a quiet time as `until`: {quiet_ms: 500}, or milliseconds."""
        until = value.get("until") if isinstance(value, Mapping) else None
        if not isinstance(until, Mapping | int):
            return value
        quiet = until if isinstance(until, Mapping) else {"quiet_ms": until}
        return {**{key: item for key, item in value.items() if key != "until"}, **quiet}

    @model_validator(mode="after")
    def _ack_has_known_names(self) -> Self:
        check_placeholders("reply_webhook.ack", self.ack, ("call_id",), ("call",))
        for name in self.ack_paths:
            check_path(name)
        return self

    @property
    def ack_paths(self) -> tuple[str, ...]:
        """The paths into a call whose values `ack` contains."""
        from agentest.support.templates import Template

        return tuple(n.removeprefix("call.") for n in Template(self.ack).names if n.startswith("call."))
