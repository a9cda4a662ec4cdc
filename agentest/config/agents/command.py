"""Settings of agents that are programs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentest.config.agents.base import DialogueAgent
from agentest.support.redaction import secret_values
from agentest.support.templates import check_names

_DIALOGUE_KEYS = ("delta", "done", "tool_request", "tool_response")
_TOOL_PLACEHOLDERS = ("tool",)


class CommandAgent(DialogueAgent):
    """An agent that is a program: one process per turn or, with `input: jsonl`, per conversation."""

    templated: ClassVar[tuple[str, ...]] = ("command", "body", "env")
    file_descriptors: ClassVar[int] = 7
    """Both ends of three pipes at the start, plus one with which the event loop watches the process."""

    type: Literal["command"]
    command: Annotated[list[str], Field(min_length=1)]
    """The program and its arguments, with placeholders. There is no shell."""
    input: Literal["argument", "stdin", "json", "jsonl"] = "argument"
    """How to send the message: as an argument, as text, as JSON, or as JSON lines to one process."""
    body: Any = None
    """The JSON body, with placeholders. None: `{messages}` for `json`, `{message}` for `jsonl`."""
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None

    @property
    def address(self) -> str:
        return f"command {self.command[0]}"

    @property
    def tells_addresses(self) -> bool:
        return True  # through its environment

    @property
    def ways_to_see(self) -> tuple[str, ...]:
        return (
            "let the program write JSON (input: json) and set `tool_calls` to the path at which it tells of "
            "them",
        )

    @property
    def secrets(self) -> list[str]:
        return [*secret_values(self.env), *super().secrets]

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(
                'is a text, and there is no shell to take it apart: write a list, like ["python", "agent.py"]'
            )
        return value

    @model_validator(mode="after")
    def _response_has_the_answer(self) -> Self:
        try:
            check_names(self.tool_response, (), _TOOL_PLACEHOLDERS)
        except ValueError as error:
            raise ValueError(f"`tool_response` {error}") from None
        return self

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        for key in _DIALOGUE_KEYS:
            if getattr(self, key) is not None and self.input != "jsonl":
                raise ValueError(f"`{key}` is for input: jsonl, where one process stays for the conversation")
        if self.body is not None and self.input not in ("json", "jsonl"):
            raise ValueError("`body` is for input: json and jsonl; the others hand over the message alone")
        if (self.tool_request is None) != (self.tool_response is None):
            raise ValueError("`tool_request` and `tool_response` go together: what asks, and what answers")
        if self.delta is not None and self.done is None and self.reply is None:
            raise ValueError("`delta` needs `done`: which message is a turn's last, like type == 'end'")
        if self.server is not None:
            raise ValueError("`server` is for agents behind an address: this one is started for each turn")
        return self
