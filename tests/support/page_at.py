"""A project with stored runs, served by `agentest ui` in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import stored

from agentest.domain.results import RunResult
from agentest.plugins.page.server.app import serve_on_sockets
from agentest.plugins.page.server.guard import ListeningSockets
from agentest.plugins.page.server.json_routes import WebProject
from agentest.store.runs.folder import RESULTS, new_run_folder
from agentest.support.json_text import json_document

FIRST = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)


def keep_runs(root: Path, runs: Sequence[RunResult]) -> list[str]:
    """Store runs in a project's folder, an hour apart, oldest first; return their ids."""
    return [_kept(root, run, FIRST + timedelta(hours=number)) for number, run in enumerate(runs)]


def _kept(root: Path, run: RunResult, now: datetime) -> str:
    with new_run_folder(root / ".agentest", now) as folder:
        text = "".join(json_document(stored.to_json(run)))
        (folder.path / RESULTS).write_text(text, encoding="utf-8")
        return folder.id


@asynccontextmanager
async def serve_at_port(project: WebProject, port: int) -> AsyncIterator[str]:
    """The address of the page at a port, with its token, until the block ends."""
    async with serve_on_sockets(project, ListeningSockets.at(port)) as address:
        yield address


@contextmanager
def served(root: Path, chosen: Path | None = None) -> Iterator[str]:
    """The address of the page, with its token, until the block ends."""
    project = WebProject(root=root, config=None, output_dir=root / ".agentest", chosen=chosen)
    known, ended, address = threading.Event(), threading.Event(), []

    async def serve() -> None:
        async with serve_at_port(project, 0) as page:
            address.append(page)
            known.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    known.wait(30)
    try:
        yield address[0]
    finally:
        ended.set()
        thread.join(30)
