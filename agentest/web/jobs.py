"""Routes of what is started from the page: what there is to run, what it may cost, runs, and their end."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import secrets
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from agentest.store.runs.folder import kept_runs
from agentest.store.runs.record import JOB_VARIABLE
from agentest.support.errors import ExitCode, UsageError
from agentest.support.json_text import Json
from agentest.support.process_groups import Reaper, signal_group
from agentest.web.commands import Wanted, wanted
from agentest.web.json_exchange import answered, body_of
from agentest.web.project import UI, Missing
from agentest.web.runs import RUNS

MOST_AT_ONCE = 2
MOST_WAITING = 20
_MOST_KEPT = 50
_MOST_OUTPUT = 100_000
_PIECE = 65_536
_PIPE_S = 1.0
"""How long a pipe is read whose writer has ended: what it has started may hold it open for ever."""
_LOOK_S = 0.2
_SHORT_S = 120.0
_UTF8 = codecs.getincrementaldecoder("utf-8")
COMMAND = (sys.executable, "-P", "-m", "agentest")
LISTING = (sys.executable, "-P", "-m", "agentest.web.listing")

_ENDS: Mapping[int, str] = {
    ExitCode.PASSED: "passed",
    ExitCode.FAILED: "failed",
    ExitCode.ERRORED: "errored",
    ExitCode.INTERRUPTED: "interrupted",
}


class JobState(StrEnum):
    """How far a job has come."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """For how many seconds a job may end by itself after SIGINT, and then after SIGTERM."""

    interrupt_s: float = 10.0
    terminate_s: float = 3.0


@dataclass(slots=True, kw_only=True)
class Output:
    """The end of what a command printed. `cut`: whether its begin is not kept."""

    cut: bool = False
    _pieces: deque[str] = field(default_factory=deque)
    _size: int = 0
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _UTF8(errors="replace"))

    def add(self, printed: bytes) -> None:
        """Keep what it printed, and not more than there is room for. A character may come in two pieces."""
        text = self._decoder.decode(printed)
        self._pieces.append(text)
        self._size += len(text)
        while self._size > _MOST_OUTPUT and len(self._pieces) > 1:
            self._size -= len(self._pieces.popleft())
            self.cut = True

    @property
    def text(self) -> str:
        return "".join(self._pieces)


@dataclass(slots=True, kw_only=True)
class Job:
    """A command. `run`: the run that it became."""

    id: str
    wanted: Wanted
    started_at: str
    state: JobState = JobState.WAITING
    run: str | None = None
    status: int | None = None
    output: Output = field(default_factory=Output)
    process: asyncio.subprocess.Process | None = None
    task: asyncio.Task[None] | None = None
    stopping: asyncio.Task[None] | None = None
    """Held here, as an event loop holds its tasks but weakly."""

    def shown(self) -> Json:
        """As the page lists it."""
        ended = None if self.status is None else _ENDS.get(self.status, "errored")
        return {
            "id": self.id,
            "title": self.wanted.title,
            "command": self.wanted.command,
            "state": self.state,
            "startedAt": self.started_at,
            "run": self.run,
            "status": ended,
            "exitStatus": self.status,
        }

    def whole(self) -> Json:
        """With what it printed."""
        return {**self.shown(), "output": self.output.text, "cut": self.output.cut}


class Jobs:
    """All jobs of a server.

    Args:
        root: where commands run: the folder of the configuration.
        config: the configuration, where the user has named one.
        output_dir: where runs are kept.
    """

    def __init__(
        self, root: Path, config: Path | None, output_dir: Path, *, grace: Grace | None = None
    ) -> None:
        self.changes = 0
        """Grows with whatever happens to a job."""
        self._root, self._config, self._output_dir = root, config, output_dir
        self._grace = grace or Grace()
        self._jobs: dict[str, Job] = {}
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._reaper: Reaper | None = None
        self._closed = False

    def listed(self) -> list[Json]:
        """The latest first."""
        return [job.shown() for job in reversed(self._jobs.values())]

    def get(self, id: str) -> Job | None:
        return self._jobs.get(id)

    def start(self, wanted: Wanted) -> Job:
        """A new job. It waits while too many are running. Raises UsageError where too many wait."""
        waiting = sum(job.state is JobState.WAITING for job in self._jobs.values())
        if self._closed:
            raise UsageError("the server ends: nothing is started any more")
        if waiting >= MOST_WAITING:
            raise UsageError(f"{waiting} runs wait already: stop some, or wait for their end")
        job = Job(
            id=secrets.token_hex(8), wanted=wanted, started_at=datetime.now(UTC).isoformat(timespec="seconds")
        )
        self._jobs[job.id] = job
        for old in [each for each in self._jobs.values() if each.state is JobState.ENDED][:-_MOST_KEPT]:
            del self._jobs[old.id]
        job.task = asyncio.create_task(self._kept(job))
        self.changes += 1
        return job

    async def _kept(self, job: Job) -> None:
        try:
            async with self._places:
                if job.state is JobState.WAITING:
                    await self._held(job)
        except OSError as error:
            job.output.add(f"agentest ui: the command cannot be started: {error}\n".encode())
            job.status = ExitCode.ERRORED
        finally:
            job.state = JobState.ENDED
            self.changes += 1

    async def _held(self, job: Job) -> None:
        process = await self._process(job.wanted.words(*self._configured), {JOB_VARIABLE: job.id})
        stopped = job.state is not JobState.WAITING  # while its process was being made
        job.process, job.state = process, JobState.RUNNING
        self.changes += 1
        if stopped:
            self.stop(job)
        finding = asyncio.create_task(self._found(job))
        try:
            await self._read(process, job.output)
            job.status = process.returncode
        finally:
            finding.cancel()
            self._end_of(process)
        job.run = job.run or await asyncio.to_thread(self._run_of, job.id)
        if job.stopping and (job.run is None or (process.returncode or 0) < 0):
            job.status = ExitCode.INTERRUPTED  # before it could see to that itself

    @property
    def _configured(self) -> tuple[str, ...]:
        return (f"--config={self._config}",) if self._config else ()

    async def _process(
        self, words: list[str], environ: Mapping[str, str], program: tuple[str, ...] = COMMAND
    ) -> asyncio.subprocess.Process:
        if self._reaper is None:
            self._reaper = Reaper()
        process = await asyncio.create_subprocess_exec(
            *program,
            *words,
            cwd=self._root,
            env={**os.environ, **environ, "PYTHONUNBUFFERED": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._reaper.watch(process.pid)
        return process

    def _end_of(self, process: asyncio.subprocess.Process) -> None:
        """Whatever the command has left behind in its group goes with it."""
        signal_group(process.pid, signal.SIGKILL)
        if self._reaper and process.returncode is not None:
            self._reaper.forget(process.pid)

    async def _read(self, process: asyncio.subprocess.Process, output: Output) -> None:
        """Keep what it prints until it has ended."""

        async def read() -> None:
            assert process.stdout is not None
            while piece := await process.stdout.read(_PIECE):
                output.add(piece)
                self.changes += 1

        reading = asyncio.create_task(read())
        try:
            await process.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(reading, _PIPE_S)
        finally:
            reading.cancel()

    async def _found(self, job: Job) -> None:
        """Look for the run that says it is of this job."""
        while job.run is None:
            await asyncio.sleep(_LOOK_S)
            job.run = await asyncio.to_thread(self._run_of, job.id)
        self.changes += 1

    def _run_of(self, id: str) -> str | None:
        for run in reversed(kept_runs(self._output_dir)):
            record = run.record
            if record and record.job == id:
                return run.id
        return None

    def stop(self, job: Job) -> None:
        """Have it end: what is finished is kept. One that waits is not begun."""
        if job.state is JobState.WAITING:
            job.state, job.status = JobState.ENDED, ExitCode.INTERRUPTED
        elif job.state is JobState.RUNNING and job.process:
            job.state = JobState.STOPPING
            job.stopping = asyncio.create_task(self._stopped(job.process))
        self.changes += 1

    async def _stopped(self, process: asyncio.subprocess.Process) -> None:
        """As a terminal interrupts, then as a system ends, then for certain."""
        waits = ((signal.SIGINT, self._grace.interrupt_s), (signal.SIGTERM, self._grace.terminate_s))
        for number, grace_s in waits:
            if process.returncode is None:
                signal_group(process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), grace_s)
                return
        signal_group(process.pid, signal.SIGKILL)

    async def said(self, words: list[str], program: tuple[str, ...] = COMMAND) -> tuple[int, str]:
        """Exit status and output of a command that runs nothing. Raises UsageError where it hangs."""
        process = await self._process(words, {}, program)
        output = Output()
        try:
            await asyncio.wait_for(self._read(process, output), _SHORT_S)
        except TimeoutError:
            raise UsageError(
                f"that took longer than {_SHORT_S:g} s and was ended: scenario files do something when they "
                "are imported"
            ) from None
        finally:
            self._end_of(process)
            await process.wait()
        return process.returncode or 0, output.text

    @property
    def running(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.state in (JobState.RUNNING, JobState.STOPPING)]

    async def close(self) -> None:
        """End all of them, and wait until they have."""
        self._closed = True
        for job in self._jobs.values():
            self.stop(job)
        tasks = [task for job in self._jobs.values() for task in (job.task, job.stopping) if task]
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if self._reaper:
                self._reaper.close()


JOBS: web.AppKey[Jobs] = web.AppKey("jobs", Jobs)
ON_WAIT: web.AppKey[Callable[[int], None]] = web.AppKey("on_wait")
"""Is told how many runs the end of the server waits for."""


def add_jobs(app: web.Application, jobs: Jobs | None = None) -> None:
    """Add the routes, and what ends the jobs with the server."""
    project = app[UI]
    app[JOBS] = jobs or Jobs(project.root, project.config, project.output_dir)
    app.add_routes(routes())
    app.on_shutdown.append(_close)


async def _close(app: web.Application) -> None:
    if (running := len(app[JOBS].running)) and ON_WAIT in app:
        app[ON_WAIT](running)
    await app[JOBS].close()


def routes() -> Iterable[web.RouteDef]:
    """All of them."""
    return (
        web.get("/api/jobs", _list),
        web.post("/api/jobs", _start),
        web.get("/api/jobs/{job}", _one),
        web.post("/api/jobs/{job}/stop", _stop),
        web.post("/api/estimate", _estimate),
        web.get("/api/scenarios", _scenarios),
    )


async def _list(request: web.Request) -> web.Response:
    return answered({"jobs": request.app[JOBS].listed(), "mostAtOnce": MOST_AT_ONCE})


def _job(request: web.Request) -> Job:
    job = request.app[JOBS].get(request.match_info["job"])
    if job is None:
        raise Missing("there is no such job: the server was started anew, or it ended long ago")
    return job


async def _one(request: web.Request) -> web.Response:
    return answered(_job(request).whole())


async def _stop(request: web.Request) -> web.Response:
    job = _job(request)
    request.app[JOBS].stop(job)
    return answered(job.shown())


async def _wanted(request: web.Request) -> Wanted:
    return await asyncio.to_thread(wanted, await body_of(request), request.app[UI], request.app[RUNS])


async def _start(request: web.Request) -> web.Response:
    job = request.app[JOBS].start(await _wanted(request))
    return answered(job.shown(), status=201)


async def _estimate(request: web.Request) -> web.Response:
    """What a run may take and cost: `--dry-run` says it."""
    asked, project = await _wanted(request), request.app[UI]
    config = [f"--config={project.config}"] if project.config else []
    status, text = await request.app[JOBS].said(asked.words("--dry-run", *config))
    return answered({"text": text, "exitStatus": status})


async def _scenarios(request: web.Request) -> web.Response:
    return answered(await what_there_is(request.app))


async def what_there_is(app: web.Application) -> Json:
    """What there is to run. A process of its own imports the project's files: they may have changed."""
    project = app[UI]
    with TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        config = [str(project.config)] if project.config else []
        status, said = await app[JOBS].said([str(out), str(project.root), *config], LISTING)
        try:
            found: Json = json.loads(await asyncio.to_thread(out.read_bytes))
        except (OSError, ValueError):
            why = f"importing the scenario files ended the process (exit status {status})\n{said[-4000:]}"
            found = {"scenarios": [], "sets": [], "agents": [], "problems": [], "notes": []}
            found["error"] = why.strip()
    return found
