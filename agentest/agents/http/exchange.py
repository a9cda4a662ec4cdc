"""One request and its answer: sent with the cookies of a conversation, and again after a new login."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentest.agents.http.refusals import leads_to_login, refusal
from agentest.agents.http_sender import HttpAnswer, HttpSender, Outgoing
from agentest.agents.port import NoReply
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse

_UNAUTHORIZED = 401

T = TypeVar("T")
Read = Callable[[DirectResponse], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class _Read(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _Refused:
    problem: str
    is_for_login: bool


class Unauthorized(NoReply):
    """The agent does not take the credentials, or takes them no more."""


class _EveryStatus:
    """All statuses that are not tried again: what they mean is said here."""

    def __contains__(self, _: object) -> bool:
        return True


async def exchanged(sender: HttpSender, request: Outgoing, read: Read[T]) -> HttpAnswer[T]:
    """What `read` makes of an answer of status 2xx.

    Raises NoReply for every other, Unauthorized for 401 and what leads to a login.
    """

    async def read_any(response: DirectResponse) -> _Read[T] | _Refused:
        if 200 <= response.status_code < 300:
            return _Read(await read(response))
        problem = await refusal(response, request.method, sender)
        if response.status_code == _UNAUTHORIZED or leads_to_login(response):
            return _Refused(problem, is_for_login=True)
        if 300 <= response.status_code < 400:
            return _Refused(problem, is_for_login=False)
        raise AgentError(problem)

    answered = await sender.send(request, read_any, _EveryStatus())
    value, retries = answered.value, answered.retries
    if isinstance(value, _Refused):
        raise (Unauthorized if value.is_for_login else NoReply)(value.problem, retries)
    return HttpAnswer(value.value, answered.latency_ms, retries, answered.first_token_ms)
