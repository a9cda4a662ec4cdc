"""Settings of credentials that expire: header values from a command, and signed requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from agentest.config.fields import Number, Section, check_headers


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
    """How to sign each request."""

    aws: AwsSignature


def _checked(headers: dict[str, str | HeaderCommand]) -> dict[str, str | HeaderCommand]:
    check_headers({n: v if isinstance(v, str) else v.prefix or "" for n, v in headers.items()})
    return headers


AgentHeaders = Annotated[dict[str, str | HeaderCommand], AfterValidator(_checked)]
"""Header names → values, or the commands that print them."""


def stand_in(name: str) -> str:
    """Return the text in the place of a header's value, which `agents.credentials` replaces when it sends."""
    return f"agentest-command:{name.lower()}"


def sent_headers(headers: Mapping[str, str | HeaderCommand]) -> dict[str, str]:
    """Return the headers with a stand-in for each value that a command prints."""
    return {name: value if isinstance(value, str) else stand_in(name) for name, value in headers.items()}
