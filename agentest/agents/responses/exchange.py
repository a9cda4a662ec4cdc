"""The request for a response, and the polling until the response is complete."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import anyio

from agentest.agents.http_sender import HttpSender, read_body
from agentest.agents.json_reader import TOO_DEEP
from agentest.agents.port import IgnoredCounter, NoReply
from agentest.agents.responses.response import (
    Response,
    ResponseAssembly,
    is_running,
    made_so_far,
    read_response,
)
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Values

_REFUSAL_STATUSES = (400, 404, 422)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedResponse:
    """A response that has ended, with its timing and retries."""

    response: Response
    latency_ms: float
    retries: int
    first_token_ms: float | None


class InvalidRequest(NoReply):
    """The agent refused a request as invalid."""

    def is_about(self, pattern: str) -> bool:
        """Return whether the agent's message matches a regular expression, ignoring case."""
        return bool(re.search(pattern, str(self).partition(" answered ")[2], re.I))


class ResponsesSender:
    """Sends requests to one endpoint. Stores nothing about conversations."""

    def __init__(self, endpoint: str, sender: HttpSender, streaming: bool, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._sender = sender
        self._streaming = streaming
        self._timeout_s = timeout_s

    async def send(
        self, payload: Mapping[str, Any], values: Values, turn_index: int, ignored: IgnoredCounter
    ) -> EndedResponse:
        """Send a request and wait until its response has ended.

        Raises Refused, or NoReply with the calls that the agent made before the error.
        """
        assembly, refused = ResponseAssembly(ignored), False

        async def read(response: DirectResponse) -> Response:
            nonlocal refused
            if response.status_code in _REFUSAL_STATUSES:
                refused = True
                raise AgentError(await self._sender.problem(response))
            return await read_body(response, self._streaming, _reader_into(assembly), assembly.read)

        try:
            first = await self._sender.post(self._endpoint, payload, read, _REFUSAL_STATUSES, values=values)
            if not is_running(first.value) or not isinstance(first.value.get("id"), str):
                return _answered(first.value, first.latency_ms, first.retries, first.first_token_ms)
            done, waited_ms = await self._poll_until_ended(
                first.value, assembly, values, first.latency_ms / 1000
            )
            return _answered(done, first.latency_ms + waited_ms, first.retries, first.first_token_ms)
        except NoReply as error:
            seen = made_so_far(assembly.response(), turn_index)
            raise (InvalidRequest if refused else NoReply)(str(error), error.retries, seen) from None
        except RecursionError:
            raise NoReply(TOO_DEEP) from None

    async def _poll_until_ended(
        self, response: Response, assembly: ResponseAssembly, values: Values, took_s: float
    ) -> tuple[Response, float]:
        """Return the ended response and the time that polling took, in milliseconds. Raises NoReply."""
        url = part_of(self._endpoint, response["id"])
        pause_s = _FIRST_PAUSE_S
        limit = TimeLimit(max(0.0, self._timeout_s - took_s))
        try:
            with limit:
                while is_running(response):
                    await anyio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                    answer = await self._sender.get(url, _read_response, values=values)
                    response = assembly.take(answer.value)
        except TimeoutError:
            raise NoReply(
                f"{url}: the response is still {response.get('status')!r} after {self._timeout_s:g} s "
                "(request_timeout_ms)"
            ) from None
        return response, limit.elapsed * 1000


def part_of(endpoint: str, name: str) -> str:
    """Return the address of a path segment below an endpoint, with the endpoint's query."""
    parts = urlsplit(endpoint)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name, '')}").geturl()


def _answered(
    response: Response, latency_ms: float, retries: int, first_token_ms: float | None
) -> EndedResponse:
    return EndedResponse(
        response=response, latency_ms=latency_ms, retries=retries, first_token_ms=first_token_ms
    )


def _reader_into(assembly: ResponseAssembly) -> Callable[[bytes], Response]:
    return lambda body: assembly.take(read_response(body))


async def _read_response(response: DirectResponse) -> Response:
    return await read_body(response, False, read_response, _refuse_partial_stream)


async def _refuse_partial_stream(_: Any) -> Response:
    raise NoReply("the agent answered with a stream where its response was asked for by its id")
