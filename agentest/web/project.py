"""The project whose runs, scenarios and cases the page shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from agentest.support.errors import UsageError


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
