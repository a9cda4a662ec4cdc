"""What the server tells by itself: server-sent events, a stream for the list of runs and one for each run.

An event says that something has changed, and not what: whoever shows it asks for it again. Journals and
folders are looked at a few times a second, so a run that was begun in a terminal is live, too.
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
from agentest.web.json_exchange import event_stream, tell_event
from agentest.web.runs import RUNS

_LOOK_S = 0.25
_HEARTBEAT_S = 10.0
_ROWS_A_SECOND = 4_000
"""A run of more rows than this is told of less often: the page has to draw them all."""
_MOST_WAIT_S = 5.0
_STOP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The open streams. `look_s`: how often there is a look at what may have changed."""

    ending: asyncio.Event = field(default_factory=asyncio.Event)
    look_s: float = _LOOK_S
    heartbeat_s: float = _HEARTBEAT_S

    async def pause(self, seconds: float) -> bool:
        """Wait; whether the server goes on."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ending.wait(), seconds)
        return not self.ending.is_set()


STREAMS: web.AppKey[Streams] = web.AppKey("streams", Streams)


def add_live(app: web.Application, streams: Streams | None = None) -> None:
    """Add the routes, and what ends the streams with the server."""
    app[STREAMS] = streams or Streams()
    app.add_routes(routes())
    app.on_shutdown.append(_end)


async def _end(app: web.Application) -> None:
    app[STREAMS].ending.set()


def routes() -> Iterable[web.RouteDef]:
    """All of them."""
    return (web.get("/api/events", _all), web.get("/api/runs/{run}/events", _run))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What there was to see: `events` as they are told where it differs from the last time."""

    mark: object
    events: tuple[Json, ...]
    over: bool = False
    """Whether nothing more will come."""
    wait_s: float = 0.0
    """How long to wait at least before the next one."""


async def _all(request: web.Request) -> web.StreamResponse:
    runs, jobs = request.app[RUNS], request.app[JOBS]

    def look() -> Look:
        marks = runs.marks()
        return Look(
            mark=(marks, jobs.changes), events=({"type": "changed", "mark": f"{hash(marks)}/{jobs.changes}"},)
        )

    return await _streamed(request, look)


async def _run(request: web.Request) -> web.StreamResponse:
    runs, name = request.app[RUNS], request.match_info["run"]

    def look() -> Look:
        mark, may_change = runs.mark(name)
        changed: Json = {"type": "changed", "mark": mark}
        return Look(
            mark=mark,
            events=(changed,) if may_change else (changed, {"type": "over"}),
            over=not may_change,
            wait_s=min(runs.rows(name) / _ROWS_A_SECOND, _MOST_WAIT_S),
        )

    return await _streamed(request, look)


async def _streamed(request: web.Request, look: Callable[[], Look]) -> web.StreamResponse:
    """Tell what `look` sees whenever it differs, until it is over, the page goes or the server ends."""
    streams = request.app[STREAMS]
    seen = await asyncio.to_thread(look)  # raises before anything is sent
    response = await event_stream(request)
    with suppress(ConnectionError, UsageError):  # an answer that has begun cannot become another one
        await _tell(response, seen)
        silent_s = 0.0
        while not seen.over and not _gone(request) and await streams.pause(max(streams.look_s, seen.wait_s)):
            now = await asyncio.to_thread(look)
            silent_s += max(streams.look_s, seen.wait_s)
            if now.mark != seen.mark:
                await _tell(response, now)
                silent_s = 0.0
            elif silent_s >= streams.heartbeat_s:
                await tell_event(response, None)
                silent_s = 0.0
            seen = now
    return response


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _tell(response: web.StreamResponse, seen: Look) -> None:
    for event in seen.events:
        await tell_event(response, event)
