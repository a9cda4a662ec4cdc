"""Server-sent events: one stream for the list of runs and one for each run.

An event reports that something has changed, and the page then requests the data. Journals and folders
are polled a few times per second, so runs that were started in a terminal are live, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import web

from agentest.support.errors import UsageError
from agentest.support.json_text import Json
from agentest.web.jobs import JOBS
from agentest.web.json_exchange import open_event_stream, send_event
from agentest.web.runs import RUNS

_POLL_S = 0.25
_HEARTBEAT_S = 10.0
_ROWS_A_SECOND = 4_000
"""Runs with more rows than this are reported less often, because the page redraws all rows."""
_MOST_WAIT_S = 5.0
_STOP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStreams:
    """The open streams. `look_s` is the interval in seconds between two checks for changes."""

    ending: asyncio.Event = field(default_factory=asyncio.Event)
    look_s: float = _POLL_S
    heartbeat_s: float = _HEARTBEAT_S

    async def pause(self, seconds: float) -> bool:
        """Wait; return False if the server shuts down."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ending.wait(), seconds)
        return not self.ending.is_set()


STREAMS: web.AppKey[EventStreams] = web.AppKey("streams", EventStreams)


def add_live(app: web.Application, streams: EventStreams | None = None) -> None:
    """Add the routes, and end the streams when the server shuts down."""
    app[STREAMS] = streams or EventStreams()
    app.add_routes(live_routes())
    app.on_shutdown.append(_end)


async def _end(app: web.Application) -> None:
    app[STREAMS].ending.set()


def live_routes() -> Iterable[web.RouteDef]:
    """Return the routes."""
    return (web.get("/api/events", _all), web.get("/api/runs/{run}/events", _run))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot; its `events` are sent if it differs from the previous one."""

    mark: object
    events: tuple[Json, ...]
    over: bool = False
    """True if nothing can change any more."""
    wait_s: float = 0.0
    """Minimum seconds until the next snapshot."""


async def _all(request: web.Request) -> web.StreamResponse:
    runs, jobs = request.app[RUNS], request.app[JOBS]

    def look() -> Snapshot:
        marks = runs.marks()
        return Snapshot(
            mark=(marks, jobs.changes), events=({"type": "changed", "mark": f"{hash(marks)}/{jobs.changes}"},)
        )

    return await _stream_changes(request, look)


async def _run(request: web.Request) -> web.StreamResponse:
    runs, name = request.app[RUNS], request.match_info["run"]

    def look() -> Snapshot:
        mark, may_change = runs.mark(name)
        changed: Json = {"type": "changed", "mark": mark}
        return Snapshot(
            mark=mark,
            events=(changed,) if may_change else (changed, {"type": "over"}),
            over=not may_change,
            wait_s=min(runs.rows(name) / _ROWS_A_SECOND, _MOST_WAIT_S),
        )

    return await _stream_changes(request, look)


async def _stream_changes(request: web.Request, look: Callable[[], Snapshot]) -> web.StreamResponse:
    """Send each changed snapshot, until it is final, the page disconnects or the server shuts down."""
    streams = request.app[STREAMS]
    seen = await asyncio.to_thread(look)  # raises errors before anything is sent
    response = await open_event_stream(request)
    with suppress(ConnectionError, UsageError):  # the status of a started response cannot change
        await _send(response, seen)
        silent_s = 0.0
        while (
            not seen.over
            and not _is_disconnected(request)
            and await streams.pause(max(streams.look_s, seen.wait_s))
        ):
            now = await asyncio.to_thread(look)
            silent_s += max(streams.look_s, seen.wait_s)
            if now.mark != seen.mark:
                await _send(response, now)
                silent_s = 0.0
            elif silent_s >= streams.heartbeat_s:
                await send_event(response, None)
                silent_s = 0.0
            seen = now
    return response


def _is_disconnected(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _send(response: web.StreamResponse, seen: Snapshot) -> None:
    for event in seen.events:
        await send_event(response, event)
