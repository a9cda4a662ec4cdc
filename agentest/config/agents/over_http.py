"""Settings that all HTTP agents share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agentest.config.agents.base import AnyAgent
from agentest.config.fields import (
    NotNegative,
    Section,
    address_at,
    check_headers,
    check_url,
    example_url,
    normal_address,
)
from agentest.support.redaction import header_secrets, url_secrets

AsgiApp = Callable[..., Any] | str
"""An ASGI application, or its import path `pkg.module:app`."""
IN_PROCESS = "http://localhost"
"""The nominal address of an `app` without an endpoint."""


class HeaderCommand(Section):
    """A header value that a command prints."""

    command: Annotated[str | list[str], Field(min_length=1)]
    """The program and its arguments. A text is split as a shell would, but there is no shell."""
    every_s: Annotated[float, Field(gt=0)] | None = None
    """The command runs again after this time, in seconds, and once after a 401. None: only after a 401."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0

    @property
    def words(self) -> list[str]:
        """The program and its arguments."""
        return shlex.split(self.command) if isinstance(self.command, str) else self.command


class AwsSignature(Section):
    """How requests are signed with AWS Signature Version 4. The credentials are those of botocore."""

    service: Annotated[str, Field(min_length=1)]
    """The signing name, like `bedrock-agentcore`."""
    region: str | None = None
    """None: the region of the profile or of the environment."""
    profile: str | None = None


def _kind(value: Any) -> str:
    return "command" if isinstance(value, Mapping | HeaderCommand) else "text"


def _checked(headers: dict[str, str | HeaderCommand]) -> dict[str, str | HeaderCommand]:
    check_headers({name: value if isinstance(value, str) else "" for name, value in headers.items()})
    return headers


_Value = Annotated[
    Annotated[str, Tag("text")] | Annotated[HeaderCommand, Tag("command")], Discriminator(_kind)
]
AgentHeaders = Annotated[dict[str, _Value], AfterValidator(_checked)]
"""Header name → its value, or the command that prints it."""


def fixed(headers: Mapping[str, str | HeaderCommand]) -> dict[str, str]:
    """Return the headers that are known before the run."""
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def commands(headers: Mapping[str, str | HeaderCommand]) -> dict[str, HeaderCommand]:
    """Return the commands that print the other headers."""
    return {name: value for name, value in headers.items() if isinstance(value, HeaderCommand)}


class HttpAgent(AnyAgent):
    """Base class of the settings of HTTP agents."""

    templated: ClassVar[tuple[str, ...]] = ("headers", "body")
    default_path: ClassVar[str] = ""
    """The usual path of this type."""
    reserved: ClassVar[Mapping[str, str]] = {}
    """Keys that `body` must not have → why not."""

    app: AsgiApp | None = None
    """An ASGI application that runs in this process and receives the requests, or its import path."""
    endpoint: Annotated[str, Field(validate_default=True)] = ""
    """The URL for requests. Empty: the usual path of this type in an `app` (`default_endpoint`)."""
    headers: AgentHeaders = Field(default_factory=dict)
    aws_sigv4: AwsSignature | None = None
    streaming: bool = False
    retries: NotNegative = 2

    @property
    def address(self) -> str:
        if self.app is None:
            return self.endpoint
        in_python = f"an app in Python ({type(self.app).__name__})"
        return f"app {self.app}" if isinstance(self.app, str) else in_python

    @property
    def fixed_headers(self) -> dict[str, str]:
        """The headers whose values are known before the run."""
        return fixed(self.headers)

    @property
    def needs_credentials(self) -> bool:
        """True if credentials have to be made while the run goes on."""
        return self.aws_sigv4 is not None or bool(commands(self.headers))

    @property
    def urls(self) -> dict[str, str]:
        return {"endpoint": self.endpoint} if self.endpoint and self.app is None else {}

    def at_port(self, port: int) -> Self:
        at = super().at_port(port)
        return at.model_copy(update={"endpoint": address_at(self.endpoint, port)})

    @property
    def in_process(self) -> bool:
        return self.app is not None

    @property
    def secrets(self) -> list[str]:
        """Credentials in the URL, headers and server, which must be redacted."""
        return [*url_secrets(self.endpoint), *header_secrets(self.fixed_headers), *super().secrets]

    @property
    def streams(self) -> bool | None:
        return self.streaming

    @property
    def default_endpoint(self) -> str:
        """The URL for requests to an `app` without an endpoint."""
        return f"{IN_PROCESS}{self.default_path}"

    @field_validator("body", check_fields=False)
    @classmethod
    def _leaves_our_keys(cls, value: Any) -> Any:
        for key, problem in cls.reserved.items():
            if key in value:
                raise ValueError(f"`{key}` {problem}")
        return value

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
            if value.startswith(("ws://", "wss://")):
                raise ValueError(f"is that of a WebSocket: {value!r} goes with `type: websocket`")
            check_url(example_url(value)) if value else None
            return normal_address(value)
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
