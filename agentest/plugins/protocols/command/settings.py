"""Settings of agents that are programs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentest.plugins.protocols.dialogue import DialogueAgent
from agentest.support.redaction import secret_values


class CommandAgent(DialogueAgent):
    """An agent that is a program: one process per turn or, with `input: jsonl`, per conversation."""

    templated: ClassVar[tuple[str, ...]] = ("command", "body", "env")
    file_descriptors: ClassVar[int] = 7
    """Both ends of three pipes at the start, plus one with which the event loop watches the process."""
    tells_addresses: ClassVar[bool] = True  # through its environment
    has_own_process: ClassVar[bool] = True
    ways_to_see: ClassVar[tuple[str, ...]] = (
        "let the program write JSON (input: json) and set `tool_calls` to the path at which it reports them",
    )

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
    def secrets(self) -> list[str]:
        return [*secret_values(self.env), *super().secrets]

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError('is a text, and no shell splits it: write a list, like ["python", "agent.py"]')
        return value

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        for key in ("delta", "done", "tool_request", "tool_response"):
            if getattr(self, key) is not None and self.input != "jsonl":
                raise ValueError(f"`{key}` is for input: jsonl, where one process stays for the conversation")
        if self.body is not None and self.input not in ("json", "jsonl"):
            raise ValueError("`body` is for input: json and jsonl; the others hand over the message alone")
        self._check_dialogue()
        if self.server is not None:
            raise ValueError("`server` is for agents behind an address: this one is started for each turn")
        return self
