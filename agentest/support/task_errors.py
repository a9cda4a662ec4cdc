"""Errors that task groups have wrapped: groups of one, mostly, around the error that tells something."""

from __future__ import annotations

from collections.abc import Iterator


def unwrapped(error: BaseException) -> Iterator[BaseException]:
    """The error, and what task groups have wrapped in it, the innermost last."""
    yield error
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        yield error


def described(error: BaseException) -> str:
    """The innermost error: its class, and what it says."""
    *_, inner = unwrapped(error)
    return f"{type(inner).__name__}: {inner}"
