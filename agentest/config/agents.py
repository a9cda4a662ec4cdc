"""What the configuration says of an agent, for each type of agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agentest.config.fields import (
    NotNegative,
    Section,
    check_headers,
    check_json,
    check_url,
    has_valid_port,
    no_bool,
)
from agentest.sight import Sight
from agentest.support.redact import header_secrets, secret_values, url_secrets


class Server(Section):
    """How to start the agent before the first scenario."""

    command: str | list[str]
    ready: str
    timeout_s: Annotated[float, BeforeValidator(no_bool), Field(gt=0, allow_inf_nan=False)] = 60.0
    reuse: bool = True
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None

    @field_validator("command")
    @classmethod
    def _not_empty(cls, value: str | list[str]) -> str | list[str]:
        if not value or (isinstance(value, str) and not value.strip()):
            raise ValueError("is empty; write the command that starts the agent")
        return value

    @field_validator("ready")
    @classmethod
    def _reachable_form(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https", "tcp") or not parts.hostname:
            raise ValueError("is neither an http(s) URL nor tcp://host:port")
        if not has_valid_port(parts) or (parts.scheme == "tcp" and parts.port is None):
            raise ValueError("needs a port: tcp://host:port")
        return value


class AnyAgent(Section):
    """What every agent has."""

    if TYPE_CHECKING:
        type: str  # each type's own class says which

    name: str = Field(default="agent", min_length=1)
    tool_visibility: Sight | None = None
    """How its tool calls come to be known; None: as its type says (`agent_types.sight_of`)."""
    server: Server | None = None
    instructions: str | None = None
    """What the agent was told to do and not to do: judges are shown it, it is never sent to the agent."""
    instructions_file: str | None = Field(default=None, min_length=1)
    """The file with the instructions, relative to the configuration (`config.instructions` reads it)."""

    @field_validator("instructions")
    @classmethod
    def _instructions_say_something(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("is empty; write what the agent was told, or leave the key out")
        return value

    @model_validator(mode="after")
    def _instructions_from_one_place(self) -> Self:
        if self.instructions is not None and self.instructions_file is not None:
            raise ValueError("instructions and instructions_file exclude each other; keep one of them")
        return self

    @property
    def address(self) -> str:
        """Where the agent is, for people: its name, for a type that has no address."""
        return self.name

    @property
    def state_refusal(self) -> str | None:
        """How to have a session's state reach the agent, where it cannot as it is; None: it can."""
        return _WAYS_OF_STATE

    def check_can_be_sent(self) -> None:
        """Raise ValueError for a setting that cannot be part of a request."""


_WAYS_OF_STATE = (
    "test it behind ADK's server (type: adk), which creates the session with it, or through a handler "
    "(type: custom), which finds it in ctx.session.state"
)

AsgiApp = Callable[..., Any] | str
"""An ASGI application, or its import path `pkg.module:app`."""
IN_PROCESS = "http://localhost"
"""Where requests to an `app` without an endpoint are said to go."""
CHAT_PATH = "/v1/chat/completions"


class HttpAgent(AnyAgent):
    """What every agent over HTTP has."""

    app: AsgiApp | None = None
    """An ASGI application that runs in this process and takes the requests, or its import path."""
    endpoint: Annotated[str, Field(validate_default=True)] = ""
    """Where requests go. Empty: where an `app` has what this type speaks (`default_endpoint`)."""
    headers: dict[str, str] = Field(default_factory=dict)
    streaming: bool = False
    retries: NotNegative = 2

    @property
    def address(self) -> str:
        return self.endpoint if self.app is None else _app_name(self.app)

    @property
    def default_endpoint(self) -> str:
        """Where requests to an `app` go that is given without an endpoint."""
        return IN_PROCESS

    @field_validator("app", mode="before")
    @classmethod
    def _application(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, str) and not callable(value):
            raise ValueError(
                f"is {value!r:.100}, expected an import path of the form pkg.module:app, or in Python the "
                "application itself"
            )
        if isinstance(value, str) and not all(value.partition(":")):
            raise ValueError(f"is {value!r}, and an import path has the form pkg.module:app")
        return value

    @field_validator("endpoint")
    @classmethod
    def _http_url(cls, value: str, info: ValidationInfo) -> str:
        if value or "app" not in info.data:
            return value and check_url(value)
        if info.data["app"] is None:
            raise PydanticCustomError("missing", "Field required")
        return value

    @model_validator(mode="after")
    def _an_app_needs_no_server(self) -> Self:
        if self.app is not None and self.server is not None:
            raise ValueError(
                "`app` and `server` exclude each other: an `app` runs in this process, a `server` in its own"
            )
        return self

    @field_validator("headers")
    @classmethod
    def _valid_headers(cls, value: dict[str, str]) -> dict[str, str]:
        return check_headers(value)


class ChatCompletionsAgent(HttpAgent):
    """An agent that speaks OpenAI's chat completions over HTTP."""

    type: Literal["chat_completions"] = "chat_completions"
    body: dict[str, Any] = Field(default_factory=dict)
    path: str | None = None
    """Of an `app`, in place of an endpoint: the path that takes chat completions."""
    send_session_state: bool = False
    """Send the state of a scenario's or a case's session as `metadata.session_state`."""

    @property
    def state_refusal(self) -> str | None:
        if self.send_session_state:
            return None
        return (
            "set send_session_state: true in the agent's configuration (every request then has it as "
            f"metadata.session_state), {_WAYS_OF_STATE}"
        )

    def check_can_be_sent(self) -> None:
        """Raise ValueError for a body that is not JSON."""
        try:
            check_json(self.body)
        except ValueError as error:
            raise ValueError(f"the body of {self.name!r} {error}") from None

    @property
    def default_endpoint(self) -> str:
        return f"{IN_PROCESS}{self.path or CHAT_PATH}"

    @field_validator("path")
    @classmethod
    def _absolute_path(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError(f"is {value!r}, and must begin with a slash, like {CHAT_PATH}")
        return value and urlsplit(check_url(f"{IN_PROCESS}{value}"))._replace(scheme="", netloc="").geturl()

    @model_validator(mode="after")
    def _path_or_endpoint(self) -> Self:
        if self.path is not None and (self.app is None or self.endpoint):
            raise ValueError("`path` goes with an `app` and without an `endpoint`, which has a path already")
        return self

    @field_validator("body")
    @classmethod
    def _messages_are_a_list(cls, value: dict[str, Any]) -> dict[str, Any]:
        messages = value.get("messages", [])
        if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
            raise ValueError("`messages` is put before the conversation and must be a list of messages")
        return value

    @model_validator(mode="after")
    def _state_has_a_place(self) -> Self:
        if self.send_session_state and not isinstance(self.body.get("metadata", {}), Mapping):
            raise ValueError("body.metadata must be an object: send_session_state puts session_state into it")
        return self


class AsgiAgent(ChatCompletionsAgent):
    """An ASGI application in this process that speaks OpenAI's chat completions."""

    type: Literal["asgi"]  # type: ignore[assignment]
    app: AsgiApp


class AdkAgent(HttpAgent):
    """An agent of Google's ADK behind its own server (`adk api_server`)."""

    type: Literal["adk"]
    app_name: str | None = Field(default=None, min_length=1)
    """None: the one that the case's session names."""
    user_id: str | None = Field(default=None, min_length=1)
    """None: the one that the case's session names, else `agentest`."""

    @property
    def state_refusal(self) -> str | None:
        return None

    @field_validator("app_name", "user_id")
    @classmethod
    def _part_of_an_address(cls, value: str | None) -> str | None:
        if value in (".", ".."):
            raise ValueError("becomes a part of an address, where . and .. stand for other parts")
        return value

    @field_validator("endpoint")
    @classmethod
    def _root_of_the_server(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.query or parts.fragment or parts.path.rstrip("/").endswith(("/run", "/run_sse")):
            raise ValueError("is the address of the ADK server alone, like http://localhost:8000")
        return value

    @field_validator("tool_visibility")
    @classmethod
    def _runs_its_tools_itself(cls, value: Sight | None) -> Sight | None:
        return check_runs_its_tools(value, "an agent behind ADK's server")


class Given:
    """An agent object, hidden from pydantic, which would make a mapping of it (and of a dataclass, too)."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} {getattr(self.value, 'name', '')!r}>"


class AdkModuleAgent(AnyAgent):
    """An agent of Google's ADK that runs in this process, by google-adk's own runner."""

    type: Literal["adk_module"]
    module: str | Given
    """The module with the agent (`my_agent`), its folder (`agents/my_agent`), or, in Python, agent or App."""
    agent_name: str | None = Field(default=None, min_length=1)
    """Which of the agents below the root agent; None: the root agent."""
    app_name: str | None = Field(default=None, min_length=1)
    """None: the one that the case's session names, else the module's name."""
    user_id: str | None = Field(default=None, min_length=1)
    """None: the one that the case's session names, else `agentest`."""

    @property
    def address(self) -> str:
        return f"google-adk agent {self.module}"

    @property
    def state_refusal(self) -> str | None:
        return None

    @field_validator("module", mode="before")
    @classmethod
    def _module_or_agent(cls, value: Any) -> Any:
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, Given) or is_adk_object(value):
            return value if isinstance(value, Given) else Given(value)
        raise ValueError(
            "names the module or the folder with the google-adk agent, like `my_agent` or `agents/my_agent`"
        )

    @field_validator("tool_visibility")
    @classmethod
    def _runs_its_tools_itself(cls, value: Sight | None) -> Sight | None:
        return check_runs_its_tools(value, "a google-adk agent")

    @model_validator(mode="after")
    def _has_no_server(self) -> Self:
        if self.server is not None:
            raise ValueError("`server` is for agents behind an address: this one runs in this process")
        return self


def is_adk_object(value: Any) -> bool:
    """Whether a value is an agent of google-adk, or an App: known by its class, without importing that."""
    return any(kind.__module__.startswith("google.adk.") for kind in type(value).__mro__) and (
        hasattr(value, "run_async") or hasattr(value, "root_agent")
    )


def check_runs_its_tools(value: Sight | None, who: str) -> Sight | None:
    """Raise ValueError for `returned`, which an agent of ADK's cannot be."""
    if value is Sight.RETURNED:
        raise ValueError(
            f"{who} runs its tools itself and hands no call to the caller; write `reported` (the default) or "
            "`unseen`"
        )
    return value


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


def _app_name(app: AsgiApp) -> str:
    return f"app {app}" if isinstance(app, str) else f"an app in Python ({type(app).__name__})"


def server_secrets(agent: AnyAgent) -> list[str]:
    """What must not be shown of the agent's server: credentials in its address and its environment."""
    if agent.server is None:
        return []
    return [*url_secrets(agent.server.ready), *secret_values(agent.server.env)]


def http_secrets(agent: HttpAgent) -> list[str]:
    """What must not be shown of an agent over HTTP: credentials in its address, headers and server."""
    return [*url_secrets(agent.endpoint), *header_secrets(agent.headers), *server_secrets(agent)]
