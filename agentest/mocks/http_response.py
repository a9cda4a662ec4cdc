"""HTTP responses of mocks, with their own status and headers, for tools that are HTTP requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from agentest.support.json_text import NotJson, json_text

_FAILING = 400
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TRANSPORT_HEADERS = frozenset({"connection", "content-encoding", "content-length", "transfer-encoding"})
"""Transport headers, which the server sets."""


class HttpResponse(Exception):
    """The answer of a tool that is an HTTP request. A mock function may return or raise it.

    If the agent's tools do not call the mocks over HTTP, the agent receives the body. From status 400 on, it
    receives the body as a failed tool call, if its protocol can express that.

    Args:
        status: from 200 to 599.
        body: a JSON value. From status 400 on, text is sent as `{"error": text}`, and None as the status's
            reason phrase.
        headers: in addition to the transport headers.

    Raises ValueError.
    """

    def __init__(self, status: int, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"HttpResponse: status is {status!r}, expected a number from 200 to 599")
        self.status = status
        self.body = body
        self.headers = {str(name): str(value) for name, value in (headers or {}).items()}
        for name, value in self.headers.items():
            _check_header(name, value)
        super().__init__(status, body)

    @property
    def failed(self) -> bool:
        return self.status >= _FAILING

    @property
    def sent(self) -> Any:
        """The body as it is sent."""
        if not self.failed or not (self.body is None or isinstance(self.body, str)):
            return self.body
        return {"error": self.body or _reason_phrase(self.status)}

    def __str__(self) -> str:
        try:
            said = self.body if isinstance(self.body, str) else json_text(self.body)
        except NotJson:
            said = ""
        return _reason_phrase(self.status) if self.body is None else f"{_reason_phrase(self.status)}: {said}"


def _reason_phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _check_header(name: str, value: str) -> None:
    if not _NAME.fullmatch(name) or any(ord(char) < 32 and char != "\t" for char in value):
        raise ValueError(f"HttpResponse: {name!r}: {value!r} is no header")
    if name.lower() in _TRANSPORT_HEADERS:
        raise ValueError(f"HttpResponse: the header {name!r} is written by the server; leave it out")
