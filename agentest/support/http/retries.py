"""When a request may be sent again, and what went wrong with a connection, in words."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from math import isnan
from random import uniform
from time import time

import aiohttp
import httpx
from aiohttp.http_exceptions import HttpProcessingError

from agentest.support.http.bodies import BadBody

MAX_RETRY_AFTER_S = 30.0


_FIRST_PAUSE_S = 0.1


_LONGEST_PAUSE_S = 8.0


CONNECTION_ERRORS = (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError, UnicodeError)
"""What a request may raise when the address or the connection, not the content of the answer, is at fault."""


def pause_before_retry(attempt: int, retry_after: float | None = None) -> float:
    """Seconds to wait before attempt `attempt` + 1: what the server asked for, else exponential with jitter.

    Args:
        attempt: number of the attempt that failed, from 1.
        retry_after: seconds that the server asked for; at most 30 are granted.
    """
    if retry_after is not None:
        return min(max(retry_after, 0.0), MAX_RETRY_AFTER_S)
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt)
    return uniform(longest / 2, longest)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a `Retry-After` header (seconds or a date), or None without a readable one."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except (TypeError, ValueError, OverflowError):
            return None
    return None if isnan(seconds) else seconds


def was_refused(error: BaseException) -> bool:
    """Whether a connection was refused, or ended before the first byte of an answer.

    Names that do not resolve and TLS that fails are neither: asking again would not help.
    """
    chain = list(_causes(error))
    if any(isinstance(e, aiohttp.ClientConnectorDNSError | aiohttp.ClientSSLError) for e in chain):
        return False
    if any(isinstance(e, aiohttp.ClientConnectorError) for e in chain):
        return True
    if isinstance(chain[-1], aiohttp.ServerDisconnectedError):
        return isinstance(chain[-1].message, str)  # otherwise it is the half of a head that had come
    return isinstance(chain[-1], ConnectionError)


def own_shortage(error: BaseException) -> OSError | None:
    """What this machine lacks for a connection, where that is why there is none."""
    return shortage_in(_causes(error))


def describe(error: BaseException) -> str:
    """What went wrong with a connection, in a few words."""
    chain = list(_causes(error))
    cause = chain[-1]
    if isinstance(cause, BadBody):
        return f"the answer {cause}"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused: nobody listens there"
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(cause, ConnectionError | aiohttp.ServerDisconnectedError) or "Not enough data" in str(
        cause
    ):
        return "the connection was closed before the answer was complete"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({cause.verify_message}); for one of your own, "
            "SSL_CERT_FILE in the environment names a file of certificates to trust"
        )
    if "WRONG_VERSION_NUMBER" in str(cause):
        return "it does not speak TLS: is it http:// (or ws://) in place of https://?"
    if any(isinstance(e, HttpProcessingError) for e in chain):
        return f"what came is not HTTP as it should be: {' '.join(str(cause).split())}"
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it wraps: httpx's wraps aiohttp's, which wraps the operating system's."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__


_SHORTAGES = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)
)


def shortage_in(errors: Iterable[BaseException]) -> OSError | None:
    """The error that says so, if one does."""
    said = (error for error in errors if isinstance(error, OSError) and error.errno in _SHORTAGES)
    return next(said, None)


def shortage_told(problem: str, error: OSError) -> str:
    """What could not be done, why, and what to do.

    Args:
        problem: the begin of the sentence, as "the command 'bot' cannot be started".
    """
    return (
        f"{problem}: this machine has no more to give ({error.strerror}); lower `concurrency`, or allow more "
        "(`ulimit -a` shows the limits)"
    )
