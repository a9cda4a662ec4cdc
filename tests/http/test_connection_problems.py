"""Messages about failed connections."""

from __future__ import annotations

import ssl

import pytest

from agentest.support.http.retries import describe


def untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            untrusted(),
            "its certificate is not trusted (self-signed certificate); for one of your",
        ),
        (
            ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"),
            "it does not speak TLS: write http:// (or ws://) in place of https://",
        ),
        (ConnectionRefusedError(), "connection refused: nobody listens there"),
    ],
    ids=["certificate", "no-tls", "refused"],
)
def test_connection_errors_are_explained(error: Exception, said: str) -> None:
    """A failed connection has the same message if its error is wrapped."""
    wrapped = OSError("wrapped")
    wrapped.__cause__ = error
    assert said in describe(error)
    assert said in describe(wrapped)
