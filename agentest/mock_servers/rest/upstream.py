"""The real API behind the mocks: a call that nobody mocks is passed on, and its answer back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from agentest.mock_servers.names import HEADER
from agentest.mock_servers.port import RealAnswer
from agentest.mock_servers.rest.answers import Answer, in_json
from agentest.support.deadlines import TimeLimit
from agentest.support.http.bodies import BadBody
from agentest.support.http.client import Client
from agentest.support.http.guard import RefusedAddress
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.redact import without_credentials

_LIMIT_S = 60.0
_OF_THE_CONNECTION = frozenset(
    [
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    ]
)
_NOT_PASSED_ON = _OF_THE_CONNECTION | {"accept-encoding", "content-encoding", HEADER}
"""Of a request; its body is unpacked by then."""
_FAILING = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The real API."""

    url: str
    """Its base URL; a query of it is sent with each request."""
    client: Client
    redact: Callable[[str], str]
    """Hides credentials in what the agent is told of errors."""

    async def call(
        self, method: str, path_and_query: str, headers: Mapping[str, str], body: bytes
    ) -> RealAnswer:
        """Send a request on. Where nothing answers, the answer says so with status 502.

        Args:
            path_and_query: as it is sent, without conversation and base path.
        """
        path, _, query = path_and_query.partition("?")
        base = urlsplit(self.url)
        queries = "&".join(each for each in (base.query, query) if each)
        url = urlunsplit((base.scheme, base.netloc, base.path.rstrip("/") + path, queries, ""))
        kept = [(name, value) for name, value in headers.items() if name not in _NOT_PASSED_ON]
        try:
            with TimeLimit(_LIMIT_S):
                return await self._asked(method, url, kept, body)
        except (BadBody, RefusedAddress) as error:
            return self._unreached(str(error))
        except CONNECTION_ERRORS as error:
            return self._unreached(describe(error))
        except TimeoutError:
            return self._unreached(f"it did not answer within {_LIMIT_S:g} s")

    def _unreached(self, problem: str) -> RealAnswer:
        shown = f"the real API, rest_mock.upstream {without_credentials(self.url)}"
        said = {"error": self.redact(f"{shown}, could not be asked: {problem}")}
        return RealAnswer(result=said, raw=in_json(502, said), failed=True)

    async def _asked(self, method: str, url: str, headers: list[tuple[str, str]], body: bytes) -> RealAnswer:
        response = await self.client.send_direct(method, url, headers, body or None)
        try:
            told = b"".join([piece async for piece in response.pieces()])
        finally:
            await response.aclose()
        kept = [(n, v) for n, v in response.headers.multi_items() if n.lower() not in _OF_THE_CONNECTION]
        answer = Answer(status=response.status_code, headers=tuple(kept), body=told)
        status = response.status_code
        return RealAnswer(result=_value(told), raw=answer, failed=status >= _FAILING, status=status)


def _value(body: bytes) -> Any:
    """A body as it is recorded."""
    try:
        return json.loads(body) if body else ""  # no null: that is the answer of nobody
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
