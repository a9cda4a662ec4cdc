"""Settings of agents that exchange messages of their own form: programs, and servers behind a WebSocket."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from agentest.config.agents.base import AnyAgent
from agentest.config.agents.over_http import HttpAgent
from agentest.config.fields import PathText, check_url, example_url, normal_address
from agentest.domain.tool_visibility import ToolVisibility
from agentest.support.redaction import secret_values
from agentest.support.templates import Template, check_names

_SCHEMES = {"ws": "http", "wss": "https"}


def socket_address(value: str) -> str:
    """Return the address of a WebSocket. Raises ValueError."""
    scheme, _, rest = value.partition("://")
    if scheme not in _SCHEMES:
        raise ValueError(f"must start with ws:// or wss://, but is {value!r}; http:// is for other types")
    check_url(example_url(f"{_SCHEMES[scheme]}://{rest}").replace(" ", ""))
    return normal_address(value)


class DialogueAgent(AnyAgent):
    """Base class of agents whose messages are read by paths (`agents.message_mapping.Form`)."""

    reply: PathText | None = None
    delta: PathText | None = None
    done: PathText | None = None
    tool_calls: PathText | None = None
    error: PathText | None = None
    tool_request: PathText | None = None
    tool_response: Any = None

    @property
    def natural_visibility(self) -> ToolVisibility:
        if self.tool_request is not None:
            return ToolVisibility.RETURNED
        return ToolVisibility.UNSEEN if self.tool_calls is None else ToolVisibility.REPORTED

    def _check_dialogue(self) -> None:
        if (self.tool_request is None) != (self.tool_response is None):
            raise ValueError("`tool_request` and `tool_response` belong together: set both or neither")
        if self.delta is not None and self.done is None and self.reply is None:
            raise ValueError("`delta` needs `done`: which message is a turn's last, like type == 'end'")
        try:
            check_names(self.tool_response, (), ("tool",))
        except ValueError as error:
            raise ValueError(f"`tool_response` {error}") from None


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


class WebSocketAgent(HttpAgent, DialogueAgent):
    """An agent that exchanges messages over a WebSocket, with one connection per conversation."""

    templated: ClassVar[tuple[str, ...]] = ("endpoint", "headers", "body")
    ways_to_see: ClassVar[tuple[str, ...]] = (
        "set where its messages report them (`tool_calls`, a JMESPath to {name, args, result})",
    )

    type: Literal["websocket"]
    body: Any = Field(default="{{message}}", validate_default=True)
    """The message for each user message, with placeholders: text as it is, other values as JSON."""
    subprotocols: list[str] = Field(default_factory=list)
    welcome: PathText | None = None
    """Path that is true for the server's first message, which Agentest waits for before it sends."""
    session: PathText | None = None
    """Path of the server's session id in a message. None: Agentest creates the id."""

    @field_validator("endpoint")
    @classmethod
    def _http_url(cls, value: str, info: ValidationInfo) -> str:
        return socket_address(value) if value else super()._http_url(value, info)

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        if self.app is not None:
            raise ValueError("`app` is for agents over plain HTTP; start this one by `server`")
        self._check_dialogue()
        if not Template([self.body, self.endpoint]).names & {"message", "messages"}:
            raise ValueError(
                'the request does not contain the user\'s message: put "{{message}}" into `body`'
            )
        return self
