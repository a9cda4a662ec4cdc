"""The project whose runs, scenarios and cases the page shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
from aiohttp import web

from agentest.support.errors import UsageError
from agentest.support.function_threads import in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Where everything is.

    Attributes:
        root: the folder of the configuration.
        config: the configuration; None: there is none, or the usual one.
        output_dir: where runs are kept.
        chosen: the run that the user named; None: the latest.
    """

    root: Path
    config: Path | None
    output_dir: Path
    chosen: Path | None = None


UI: web.AppKey[Project] = web.AppKey("project", Project)


class Missing(UsageError):
    """What was asked for is not there, or not any more: status 404."""


IMPORTS: web.AppKey[asyncio.Lock] = web.AppKey("imports", asyncio.Lock)
_IMPORT_S = 120.0
_T = TypeVar("_T")


async def imported(
    app: web.Application, function: Callable[..., _T], *args: Any, limit_s: float = _IMPORT_S
) -> _T:
    """What a function returns that imports the project's files. Raises UsageError where that hangs.

    A function that hangs keeps a thread of its own, which does not hold up the server's end.
    """
    async with app[IMPORTS]:
        try:
            with anyio.fail_after(limit_s):
                found: _T = await in_thread(function, *args)
        except TimeoutError:
            raise UsageError(
                f"reading the configuration and the scenarios took longer than {limit_s:g} s: some file "
                "that is imported hangs"
            ) from None
    return found
