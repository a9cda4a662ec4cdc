"""Routes for jobs started from the page: list what can run, estimate its cost, start and stop runs."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from agentest.plugins.page.server import json_routes as routes
from agentest.plugins.page.server.commands import JobCommand, requested_command
from agentest.plugins.page.server.runs import RUNS
from agentest.store.runs.folder import JOB_VARIABLE, list_stored_runs
from agentest.support.errors import ExitCode, UsageError
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.process_groups import ChildProcess, OutputTail, start_process
from agentest.support.terminal import tell

MOST_AT_ONCE = 2
MOST_WAITING = 20
_MOST_KEPT = 50
_LOOK_S = 0.2
MOST_OUTPUT = 100_000
_REPORTED_OUTPUT = 4_000
_SHORT_COMMAND_S = 120.0
_INTERRUPT_S, _TERMINATE_S = 10.0, 3.0  # how long a job may take to end after SIGINT, then after SIGTERM
COMMAND = (sys.executable, "-P", "-m", "agentest")
LISTING = (sys.executable, "-P", "-m", "agentest.plugins.page.server.listing")

_END_STATES: Mapping[int, str] = {
    ExitCode.PASSED: "passed",
    ExitCode.FAILED: "failed",
    ExitCode.ERRORED: "errored",
    ExitCode.INTERRUPTED: "interrupted",
}


class JobState(StrEnum):
    """State of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class Job:
    """A command in its own process; `run` is the id of the run that it started."""

    id: str
    wanted: JobCommand
    started_at: str
    state: JobState = JobState.WAITING
    run: str | None = None
    status: int | None = None
    output: OutputTail = field(default_factory=partial(OutputTail, MOST_OUTPUT))
    process: ChildProcess | None = None
    task: asyncio.Task[None] | None = None
    stopping: asyncio.Task[None] | None = None
    """A reference to the task, because an event loop references its tasks only weakly."""

    def summary(self) -> Json:
        """Return the job as the page lists it."""
        return {
            "id": self.id,
            "title": self.wanted.title,
            "command": self.wanted.command,
            "line": self.wanted.line,
            "state": self.state,
            "startedAt": self.started_at,
            "run": self.run,
            "status": None if self.status is None else _END_STATES.get(self.status, "errored"),
            "exitStatus": self.status,
        }


class Jobs:
    """All jobs of a server. Commands run in `root`, the folder of the configuration."""

    def __init__(self, root: Path, config: Path | None, output_dir: Path) -> None:
        self.changes = 0  # counter that increases with every change to a job
        self._root, self._config, self._output_dir = root, config, output_dir
        self.by_id: dict[str, Job] = {}
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._closed = False
        self._lists = asyncio.Lock()
        self._listed: tuple[dict[str, int] | None, Json] | None = None

    def mark(self) -> str:
        """Return a text that changes with every change to a job, and with everything that one prints."""
        return f"{self.changes}/{sum(job.output.received for job in [*self.by_id.values()])}"

    def listed(self) -> list[Json]:
        """Return all jobs, latest first."""
        return [job.summary() for job in reversed(self.by_id.values())]

    def start(self, wanted: JobCommand) -> Job:
        """Create a job, which waits while too many are running. Raises UsageError if too many wait."""
        waiting = sum(job.state is JobState.WAITING for job in self.by_id.values())
        if self._closed:
            raise UsageError("the server ends: nothing is started any more")
        if waiting >= MOST_WAITING:
            raise UsageError(f"{waiting} runs wait already: stop some, or wait for their end")
        job = Job(
            id=secrets.token_hex(8), wanted=wanted, started_at=datetime.now(UTC).isoformat(timespec="seconds")
        )
        self.by_id[job.id] = job
        for old in [each for each in self.by_id.values() if each.state is JobState.ENDED][:-_MOST_KEPT]:
            del self.by_id[old.id]
        job.task = asyncio.create_task(self._run_when_free(job))
        self.changes += 1
        return job

    async def _run_when_free(self, job: Job) -> None:
        try:
            async with self._places:
                if job.state is JobState.WAITING:
                    await self._run_process(job)
        except OSError as error:
            job.output.data_received(f"agentest ui: the command cannot be started: {error}".encode())
            job.status = ExitCode.ERRORED
        finally:
            job.state = JobState.ENDED
            self.changes += 1

    async def _run_process(self, job: Job) -> None:
        config = (f"--config={self._config}",) if self._config else ()
        process = await self._start(job.wanted.words(*config), job.output, {JOB_VARIABLE: job.id})
        stopped = job.state is not JobState.WAITING  # stopped while its process was being created
        job.process, job.state = process, JobState.RUNNING
        self.changes += 1
        if stopped:
            self.stop(job)
        finding = asyncio.create_task(self._wait_for_run(job))
        try:
            job.status = await process.wait()
            await job.output.end()
        finally:
            finding.cancel()
            await process.end(0.0)
        job.run = job.run or await asyncio.to_thread(self._run_of, job.id)
        if job.stopping and (job.run is None or (process.returncode or 0) < 0):
            job.status = ExitCode.INTERRUPTED  # killed before it could set its own exit status

    async def _start(
        self,
        words: list[str],
        output: OutputTail,
        environ: Mapping[str, str],
        program: tuple[str, ...] = COMMAND,
    ) -> ChildProcess:
        return await start_process(
            [*program, *words],
            cwd=self._root,
            env={**environ, "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def _wait_for_run(self, job: Job) -> None:
        while job.run is None:
            await asyncio.sleep(_LOOK_S)
            job.run = await asyncio.to_thread(self._run_of, job.id)
        self.changes += 1

    def _run_of(self, id: str) -> str | None:
        runs = reversed(list_stored_runs(self._output_dir))
        return next((run.id for run in runs if (record := run.record) and record.job == id), None)

    def stop(self, job: Job) -> None:
        """Stop a job; its finished conversations are stored. A waiting job never starts."""
        if job.state is JobState.WAITING:
            job.state, job.status = JobState.ENDED, ExitCode.INTERRUPTED
        elif job.state is JobState.RUNNING and job.process:
            job.state = JobState.STOPPING
            job.stopping = asyncio.create_task(self._stop_process(job.process))
        self.changes += 1

    async def _stop_process(self, process: ChildProcess) -> None:
        process.send(signal.SIGINT)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _INTERRUPT_S)
        await process.end(_TERMINATE_S)

    async def output_of(self, words: list[str], program: tuple[str, ...] = COMMAND) -> tuple[int, str]:
        """Run a short command; return its exit status and output. Raises UsageError if it hangs."""
        output = OutputTail(MOST_OUTPUT)
        process = await self._start(words, output, {}, program)
        try:
            await asyncio.wait_for(process.wait(), _SHORT_COMMAND_S)
            await output.end()
        except TimeoutError:
            raise UsageError(
                f"that took longer than {_SHORT_COMMAND_S:g} s and was ended: scenario files do something "
                "when they are imported"
            ) from None
        finally:
            await process.end(0.0)
        return process.returncode or 0, output.text

    async def result_of(self, program: tuple[str, ...], *words: str) -> tuple[Json | None, str]:
        """Run a short program that writes JSON to the file named first.

        Returns the JSON, None if there is none, and how the program ended. Raises UsageError if it hangs.
        """
        with TemporaryDirectory() as folder:
            out = Path(folder) / "found.json"
            status, output = await self.output_of([str(out), *words], program)
            ended = f"(exit status {status})\n{output[-_REPORTED_OUTPUT:]}".strip()
            try:
                return json.loads(await asyncio.to_thread(out.read_bytes)), ended
            except (OSError, ValueError):
                return None, ended

    async def listing(self) -> Json:
        """Return what can run in the project, listed again when a file of the project has changed.

        A separate process imports the project's files, because they may have changed.
        """
        async with self._lists:
            stamps = await asyncio.to_thread(_stamps_of_sources, self._root, self._config)
            if not self._listed or stamps is None or self._listed[0] != stamps:
                config = [str(self._config)] if self._config else []
                content, ended = await self.result_of(LISTING, str(self._root), *config)
                if content is None:
                    content = {"scenarios": [], "sets": [], "agents": [], "problems": [], "notes": []}
                    content["error"] = f"importing the scenario files ended the process {ended}"
                self._listed = stamps, content
            return self._listed[1]

    async def close(self) -> None:
        """Stop all jobs and wait until they have ended."""
        self._closed = True
        states = [job.state for job in self.by_id.values()]
        if running := states.count(JobState.RUNNING) + states.count(JobState.STOPPING):
            runs = "a run that was" if running == 1 else f"{running} runs that were"
            tell(f"agentest ui: ends {runs} started from the page")
        for job in self.by_id.values():
            self.stop(job)
        tasks = [task for job in self.by_id.values() for task in (job.task, job.stopping) if task]
        await asyncio.gather(*tasks, return_exceptions=True)


JOBS: web.AppKey[Jobs] = web.AppKey("jobs", Jobs)
ENDING: web.AppKey[asyncio.Event] = web.AppKey("ending", asyncio.Event)  # set when all streams must end


def add_jobs(app: web.Application) -> None:
    """Add the routes, and end streams and jobs when the server shuts down."""
    project = app[routes.UI]
    app[ENDING] = asyncio.Event()
    app[JOBS] = Jobs(project.root, project.config, project.output_dir)
    app.add_routes(
        (
            routes.json_route("GET", "/api/jobs", _list),
            routes.json_route("POST", "/api/jobs", _start, status=201),
            routes.json_route("GET", "/api/jobs/{job}", _details),
            routes.json_route("POST", "/api/jobs/{job}/stop", _stop),
            routes.json_route("POST", "/api/estimate", _estimate),
            routes.json_route("POST", "/api/command", _command),
            routes.json_route("GET", "/api/scenarios", _list_runnable),
            web.get("/api/events", _all),
            web.get("/api/runs/{run}/events", _run),
        )
    )
    app.on_shutdown.append(_close)


async def _close(app: web.Application) -> None:
    app[ENDING].set()
    await app[JOBS].close()


async def _list(request: web.Request, _: routes.Values) -> Json:
    return {"jobs": request.app[JOBS].listed(), "mostAtOnce": MOST_AT_ONCE}


def _job(request: web.Request) -> Job:
    job = request.app[JOBS].by_id.get(request.match_info["job"])
    if job is None:
        raise routes.ItemNotFound("this job is unknown: the server was restarted, or the job ended long ago")
    return job


async def _details(request: web.Request, _: routes.Values) -> Json:
    job = _job(request)
    return {**job.summary(), "output": job.output.text, "cut": job.output.is_cut}


async def _stop(request: web.Request, _: routes.Values) -> Json:
    job = _job(request)
    request.app[JOBS].stop(job)
    return job.summary()


async def _requested_command(request: web.Request, values: routes.Values) -> JobCommand:
    return await asyncio.to_thread(requested_command, values, request.app[routes.UI], request.app[RUNS])


async def _start(request: web.Request, values: routes.Values) -> Json:
    return request.app[JOBS].start(await _requested_command(request, values)).summary()


async def _command(request: web.Request, values: routes.Values) -> Json:
    return {"line": (await _requested_command(request, values)).line}


async def _estimate(request: web.Request, values: routes.Values) -> Json:
    command, project = await _requested_command(request, values), request.app[routes.UI]
    config = [f"--config={project.config}"] if project.config else []
    status, text = await request.app[JOBS].output_of(command.words("--dry-run", *config))
    return {"text": f"$ {command.line}\n{text}", "exitStatus": status}


async def _list_runnable(request: web.Request, _: routes.Values) -> Json:
    return await request.app[JOBS].listing()


_SOURCES = frozenset({".py", ".yaml", ".yml", ".json", ".jsonl", ".csv", ".toml", ".env"})
_MOST_SOURCES = 20_000


def _stamps_of_sources(root: Path, config: Path | None) -> dict[str, int] | None:
    stamps: dict[str, int] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name[:1] != "." and name not in ("node_modules", "venv")]
        for name in names:
            path = Path(folder, name)
            if path.suffix in _SOURCES or name == ".env":
                with suppress(OSError):
                    stamps[str(path)] = path.stat().st_mtime_ns
        if len(stamps) > _MOST_SOURCES:
            return None
    if config:
        with suppress(OSError):
            stamps[str(config)] = config.stat().st_mtime_ns
    return stamps


_ROWS_A_SECOND = 4_000
"""Runs with more rows than this are reported less often, because the page redraws all rows."""
_MOST_WAIT_S = 5.0
_STREAM_LOOK_S = 0.25  # the interval between two checks for changes
_HEARTBEAT_S = 10.0


Snapshot = tuple[str, bool, float]
"""A mark, which is sent if it has changed, if nothing can change any more, and the least seconds to wait."""


async def _all(request: web.Request) -> web.StreamResponse:
    def look() -> Snapshot:
        return f"{hash(request.app[RUNS].marks())}/{request.app[JOBS].mark()}", False, 0.0

    return await _stream_changes(request, look)


async def _run(request: web.Request) -> web.StreamResponse:
    runs, name = request.app[RUNS], request.match_info["run"]

    def look() -> Snapshot:
        mark, may_change = runs.mark(name)
        return mark, not may_change, min(runs.rows(name) / _ROWS_A_SECOND, _MOST_WAIT_S)

    return await _stream_changes(request, look)


async def _stream_changes(request: web.Request, take_snapshot: Callable[[], Snapshot]) -> web.StreamResponse:
    mark, is_over, wait_s = await asyncio.to_thread(take_snapshot)  # raises errors before anything is sent
    response = await routes.open_event_stream(request)
    silent_s, sent = 0.0, ""
    with suppress(ConnectionError, UsageError):  # the status of a started response cannot change
        while True:
            if mark != sent:
                await routes.send_event(response, {"type": "changed", "mark": mark})
                if is_over:
                    await routes.send_event(response, {"type": "over"})
                sent, silent_s = mark, 0.0
            elif silent_s >= _HEARTBEAT_S:
                await routes.send_event(response, None)
                silent_s = 0.0
            if is_over or request.transport is None or request.transport.is_closing():
                break
            pause_s = max(_STREAM_LOOK_S, wait_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(request.app[ENDING].wait(), pause_s)
                break
            silent_s += pause_s
            mark, is_over, wait_s = await asyncio.to_thread(take_snapshot)
    return response
