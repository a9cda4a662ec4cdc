"""Settings that all HTTP agents share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from agentest.config.agents.base import AnyAgent
from agentest.config.agents.credentials import AgentHeaders, HeaderCommand, Sign, sent_headers
from agentest.config.fields import (
    NotNegative,
    address_at,
    check_url,
    example_url,
    normal_address,
)
from agentest.support.redaction import header_secrets, url_secrets

AsgiApp = Callable[..., Any] | str
"""An ASGI application, or its import path `pkg.module:app`."""
IN_PROCESS = "http://localhost"
"""The nominal address of an `app` without an endpoint."""


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
    """Header names → values, or the commands that print them."""
    sign: Sign | None = None
    """How to sign each request."""
    streaming: bool = False
    retries: NotNegative = 2

    @property
    def address(self) -> str:
        if self.app is None:
            return self.endpoint
        in_python = f"an app in Python ({type(self.app).__name__})"
        return f"app {self.app}" if isinstance(self.app, str) else in_python

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
        return [*url_secrets(self.endpoint), *header_secrets(self.sent_headers), *super().secrets]

    @property
    def sent_headers(self) -> dict[str, str]:
        """The headers of requests, with a stand-in for each value that a command prints."""
        return sent_headers(self.headers)

    @property
    def header_commands(self) -> dict[str, HeaderCommand]:
        """Header name → the command that prints its value."""
        return {name: value for name, value in self.headers.items() if isinstance(value, HeaderCommand)}

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
