"""Settings that all HTTP agents share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from agentest.config.agents.base import AnyAgent, described, types_with
from agentest.config.fields import (
    NotNegative,
    Number,
    Section,
    address_at,
    check_headers,
    check_url,
    example_url,
    normal_address,
)
from agentest.support.redaction import header_secrets, url_secrets

AsgiApp = Callable[..., Any] | str  # an ASGI application, or its import path `pkg.module:app`
IN_PROCESS = "http://localhost"  # the nominal address of an `app` without an endpoint


class HeaderCommand(Section):
    """A command that prints the value of a header, such as a token."""

    command: str | tuple[str, ...]
    """The command. A string runs in a shell, a list does not."""
    every_s: Annotated[Number, Field(gt=0)] | None = None
    """Run the command again after this many seconds. It also runs again after a 401."""
    prefix: str | None = None
    """Text before the value. Default: `Bearer ` in `Authorization` if the value is one word."""
    timeout_s: Annotated[Number, Field(gt=0)] = 30.0
    """The longest time that the command may take, in seconds."""

    @field_validator("command")
    @classmethod
    def _not_empty(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not value or not (value if isinstance(value, str) else value[0]).strip():
            raise ValueError("is empty; write the command that prints the value")
        return value


class AwsSignature(Section):
    """Signature Version 4 of AWS, with the credentials that the AWS command line would use."""

    service: Annotated[str, Field(min_length=1)]
    """The service's name in signatures, such as `bedrock-agentcore`."""
    region: str | None = None
    """The region. None: that of the profile or the environment."""
    profile: str | None = None
    """The profile in `~/.aws`. None: the default credentials."""


class Sign(Section):
    """How requests to the agent are signed. One of the keys is set."""

    aws: AwsSignature | None = None
    slack: str | None = Field(default=None, min_length=1)
    """The signing secret of the Slack app."""
    twilio: str | None = Field(default=None, min_length=1)
    """The auth token of the Twilio account."""
    whatsapp: str | None = Field(default=None, min_length=1)
    """The secret of the Meta app."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.aws, self.slack, self.twilio, self.whatsapp).count(None) != 3:
            raise ValueError(
                "takes one of {aws: {service: …}}, {slack: SECRET}, {twilio: SECRET} and {whatsapp: SECRET}"
            )
        return self

    @property
    def secrets(self) -> list[str]:
        """Those that are long enough to be one, and not a word of other texts."""
        return [secret for secret in (self.slack, self.twilio, self.whatsapp) if secret and len(secret) >= 8]


def _checked(headers: dict[str, str | HeaderCommand]) -> dict[str, str | HeaderCommand]:
    check_headers({n: v if isinstance(v, str) else v.prefix or "" for n, v in headers.items()})
    return headers


AgentHeaders = Annotated[dict[str, str | HeaderCommand], AfterValidator(_checked)]
"""Header names → values, or the commands that print them."""


def stand_in(name: str) -> str:
    """Return the text in the place of a header's value, which `credential_renewal` replaces when it sends."""
    return f"agentest-command:{name.lower()}"


def sent_headers(headers: Mapping[str, str | HeaderCommand]) -> dict[str, str]:
    """Return the headers with a stand-in for each value that a command prints."""
    return {name: value if isinstance(value, str) else stand_in(name) for name, value in headers.items()}


def header_commands(headers: Mapping[str, str | HeaderCommand]) -> dict[str, HeaderCommand]:
    """Return the commands that print values, by the names of their headers."""
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
    def sent_headers(self) -> dict[str, str]:
        """The headers of requests, with a stand-in for each value that a command prints."""
        return sent_headers(self.headers)

    @property
    def header_commands(self) -> dict[str, HeaderCommand]:
        """Header name → the command that prints its value."""
        return header_commands(self.headers)

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
    def call_sources(self) -> tuple[str, ...]:
        return (*super().call_sources, "handlers") if self.in_process else super().call_sources

    @property
    def secrets(self) -> list[str]:
        """Credentials in the URL, headers and server, which must be redacted."""
        signed = self.sign.secrets if self.sign else []
        return [*url_secrets(self.endpoint), *header_secrets(self.sent_headers), *signed, *super().secrets]

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
            if not value.startswith("http") and (others := types_with(value.partition("://")[0])):
                raise ValueError(f"has the scheme of another type: {value!r} goes with {described(others)}")
            check_url(example_url(value)) if value else None
            return normal_address(value)
        if info.data["app"] is None:
            raise PydanticCustomError("missing", "Field required")
        return value

    @model_validator(mode="after")
    def _webhooks_are_signed_by_one_type(self) -> Self:
        if self.sign and self.sign.aws is None and self.type != "http":
            raise ValueError("`sign` with a secret signs webhooks, which are for `type: http`")
        return self

    @model_validator(mode="after")
    def _an_app_needs_no_server(self) -> Self:
        if self.app is not None and self.server is not None:
            raise ValueError(
                "`app` and `server` exclude each other: an `app` runs in this process, a `server` in its own"
            )
        return self
