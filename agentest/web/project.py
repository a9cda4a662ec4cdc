"""The project whose runs, scenarios and cases the page shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
from aiohttp import web

from agentest.support.errors import UsageError
from agentest.support.function_threads import in_thread
from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WebProject:
    """Paths of the project.

    Attributes:
        root: folder of the configuration.
        config: the configuration; None for the default one, which may be missing.
        output_dir: folder of stored runs.
        chosen: the run that the user named; None for the latest.
    """

    root: Path
    config: Path | None
    output_dir: Path
    chosen: Path | None = None


UI: web.AppKey[WebProject] = web.AppKey("project", WebProject)


class ItemNotFound(UsageError):
    """The requested item does not exist or was deleted: HTTP status 404."""


IMPORTS: web.AppKey[asyncio.Lock] = web.AppKey("imports", asyncio.Lock)
_IMPORT_S = 120.0
_T = TypeVar("_T")


async def call_with_imports(
    app: web.Application, function: Callable[..., _T], *args: Any, limit_s: float = _IMPORT_S
) -> _T:
    """Call a function that imports the project's files, in a thread. Raises UsageError if it hangs.

    A function that hangs keeps its own thread, which does not block the shutdown.
    """
    async with app[IMPORTS]:
        try:
            with anyio.fail_after(limit_s):
                result: _T = await in_thread(function, *args)
        except TimeoutError:
            raise UsageError(
                f"reading the configuration and the scenarios took longer than {limit_s:g} s: some file "
                "that is imported hangs"
            ) from None
    return result
