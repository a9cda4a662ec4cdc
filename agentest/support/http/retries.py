"""Decide when a request may be repeated, and describe connection errors."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from math import isnan
from random import uniform
from time import time
from typing import Literal

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from agentest.support.http.bodies import BadBody

MAX_RETRY_AFTER_S = 30.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 8.0
_SAME_CLOCK_S = 3.0
"""A `Date` header that is so close to this machine's clock is less exact, because it has whole seconds."""
Loss = Literal["", "refused", "reset"]
CONNECTION_ERRORS = (BadBody, aiohttp.ClientError, OSError, UnicodeError)
"""Errors of a request that are caused by the address or the connection, not by the response's content."""


def pause_before_retry(attempt: int, retry_after: float | None = None) -> float:
    """Return the seconds to wait before the next attempt: the server's request, else exponential with jitter.

    Args:
        attempt: number of the failed attempt, from 1.
        retry_after: seconds that the server requested, limited to 30.
    """
    if retry_after is not None:
        return min(max(retry_after, 0.0), MAX_RETRY_AFTER_S)
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt)
    return uniform(longest / 2, longest)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse `retry-after-ms` or `Retry-After` (seconds or a date); None if there is no readable one."""
    for name, per_second in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            if not isnan(seconds := float(headers.get(name, "")) / per_second):
                return seconds
    then = _timestamp(headers.get("retry-after", ""))
    return None if then is None else then - time_at_server(headers)


def time_at_server(headers: Mapping[str, str]) -> float:
    """Return the time by the server's clock if that differs from this machine's, as a Unix time."""
    now, date = time(), _timestamp(headers.get("date", ""))
    return now if date is None or abs(date - now) < _SAME_CLOCK_S else date


def _timestamp(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def loss_before_response(error: BaseException) -> Loss:
    """Return how a connection was lost before the first byte of a response, if a retry may help.

    "refused": nothing was sent. "reset": the server may have handled the request. "" for names that do not
    resolve and for TLS failures, and for later losses.
    """
    chain = list(_causes(error))
    if any(isinstance(e, aiohttp.ClientConnectorDNSError | aiohttp.ClientSSLError) for e in chain):
        return ""
    if any(isinstance(e, aiohttp.ClientConnectorError) for e in chain):
        return "refused"
    if isinstance(chain[-1], aiohttp.ServerDisconnectedError):  # its message may be a part of a head
        return "reset" if isinstance(chain[-1].message, str) else ""
    return "reset" if isinstance(chain[-1], ConnectionError) else ""


def find_shortage(error: BaseException) -> OSError | None:
    """Return the error if this machine lacks a resource for a connection; None otherwise."""
    return shortage_in(_causes(error))


def has_cause(error: BaseException, kind: type[BaseException]) -> bool:
    """Return True if an error of this kind caused the error, or is it."""
    return any(isinstance(cause, kind) for cause in _causes(error))


def describe(error: BaseException) -> str:
    """Describe a connection error in a few words."""
    chain = list(_causes(error))
    cause = chain[-1]
    if isinstance(cause, BadBody):
        return f"the answer {cause}"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused: nobody listens there"
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved"
    is_closed = isinstance(cause, ConnectionError | aiohttp.ServerDisconnectedError)
    if is_closed or "Not enough data" in str(cause):
        return "the connection was closed before the answer was complete"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({cause.verify_message}); for one of your own, "
            "SSL_CERT_FILE in the environment names a file of certificates to trust"
        )
    if "WRONG_VERSION_NUMBER" in str(cause):
        return "it does not speak TLS: write http:// (or ws://) in place of https://"
    if any(isinstance(e, HttpProcessingError) for e in chain):
        return f"what came is not HTTP as it should be: {' '.join(str(cause).split())}"
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__


_SHORTAGES = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)
)


def shortage_in(errors: Iterable[BaseException]) -> OSError | None:
    """Return the first error that reports a lack of resources; None if there is none."""
    shortages = (error for error in errors if isinstance(error, OSError) and error.errno in _SHORTAGES)
    return next(shortages, None)


def describe_shortage(problem: str, error: OSError) -> str:
    """Return a message with the failure, the lacking resource and what to do.

    Args:
        problem: start of the sentence, such as "the command 'bot' cannot be started".
    """
    return (
        f"{problem}: this machine has no more to give ({error.strerror}); lower `concurrency`, or allow more "
        "(`ulimit -a` shows the limits)"
    )
