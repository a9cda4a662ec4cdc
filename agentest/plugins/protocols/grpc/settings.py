"""Settings of agents behind gRPC: one method, whose messages are written and read in their JSON form."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe, ProtocolProbe
from agentest.config.agents.over_http import AgentHeaders, sent_headers
from agentest.config.fields import NotNegative, PathText, text_at
from agentest.plugins.protocols.dialogue import DialogueAgent
from agentest.support.redaction import header_secrets
from agentest.support.templates import Template

_ENDPOINT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5}|\{port\})")
_METHOD = re.compile(r"/?((?:\w+\.)*\w+)/(\w+)")


class GrpcAgent(DialogueAgent):
    """An agent that is called by gRPC: a unary method, or one that streams its response."""

    templated: ClassVar[tuple[str, ...]] = ("headers", "body")
    ways_to_see: ClassVar[tuple[str, ...]] = (
        "set where its responses report them (`tool_calls`, a JMESPath to {name, args, result})",
    )

    type: Literal["grpc"]
    endpoint: str
    """Host and port."""
    method: str
    """`package.Service/Method`."""
    body: Any = Field(default_factory=lambda: {"message": "{{message}}"}, validate_default=True)
    """The JSON form of the request, with placeholders."""
    headers: AgentHeaders = Field(default_factory=dict)
    """The metadata of each call."""
    session: PathText | None = None
    """Path of the server's session id in a response. None: Agentest creates the id."""
    proto: str | None = Field(default=None, min_length=1)
    """The .proto file, relative to the configuration. None: the server describes itself by reflection."""
    tls: bool = False
    retries: NotNegative = 2

    @property
    def address(self) -> str:
        return f"{self.endpoint}/{self.method}"

    @property
    def urls(self) -> dict[str, str]:
        return {"endpoint": f"grpc://{self.endpoint}"}

    def at_port(self, port: int) -> Self:
        return super().at_port(port).model_copy(update={"endpoint": text_at(self.endpoint, port)})

    @property
    def secrets(self) -> list[str]:
        return [*header_secrets(sent_headers(self.headers)), *super().secrets]

    @field_validator("endpoint")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        if not (found := _ENDPOINT.fullmatch(value)):
            raise ValueError(f"is {value!r}; write host and port without a scheme, like localhost:50051")
        if found[2].isdigit() and not 0 < int(found[2]) < 65536:
            raise ValueError(f"has the port {found[2]}, and ports go from 1 to 65535")
        return value

    @field_validator("method")
    @classmethod
    def _full_name(cls, value: str) -> str:
        if not (found := _METHOD.fullmatch(value)):
            raise ValueError(f"is {value!r}; write service and method, like salon.v1.Booking/Chat")
        return f"{found[1]}/{found[2]}"

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        for key in ("done", "tool_request", "tool_response"):
            if getattr(self, key) is not None:
                raise ValueError(f"`{key}` is not for gRPC: a turn is one call, which ends with its response")
        if not Template(self.body).names & {"message", "messages"}:
            raise ValueError(
                'the request does not contain the user\'s message: put "{{message}}" into `body`'
            )
        return self


_HTTP2_SETTINGS = (r"b'\x00\x00", "ICE/: b''")
"""What an HTTP/2 server sends first, as versions of aiohttp quote it: whole, or up to its first zero."""


class GrpcProbe(ProtocolProbe):
    """Takes a server that speaks HTTP/2 alone for one."""

    def guess(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        if not any(quoted in each for each in endpoint.tried for quoted in _HTTP2_SETTINGS):
            return None
        endpoint.tried[:] = [f"{each.partition(': ')[0]}: an answer in HTTP/2" for each in endpoint.tried]
        place, method = urlsplit(endpoint.url).netloc, "package.Service/Method"
        because = (
            "It speaks HTTP/2 without TLS, as gRPC does. Complete these lines (agentest docs grpc):\n"
            f"agent:\n  type: grpc\n  endpoint: {place}\n  method: {method} # which one is the chat\n"
            '  body: {message: "{{message}}"}\n  reply: text # the path to the reply in a response'
        )
        return self.found(place, because, method=method)
