"""Run conversations on workers of a Ray cluster: actors with one CPU each, spread over the nodes."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from agentest.plugins.ray.address import (
    TAKEN_FOR_DEAD,
    check_inside,
    cluster_address,
    files_of,
    needed_variables,
    watch_membership,
)
from agentest.plugins.ray.channel import MessageBatch, RunEnd, WorkerEnded, WorkerUnreachable
from agentest.plugins.ray.cluster import Cluster, in_a_line, joined, why_waiting
from agentest.plugins.ray.worker_process import CALLS_AT_ONCE, RunWorker, WorkerActor
from agentest.runner.agents import known_ports
from agentest.runner.engines import EngineProvider, PreparationRecipe
from agentest.runner.environment import check_reach
from agentest.runner.executor import RunUnits
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared
from agentest.runner.session import RunSession, stopping
from agentest.runner.sources import Origin
from agentest.support.errors import UsageError
from agentest.support.function_threads import in_thread
from agentest.support.text import count as counted
from agentest.workers.channel import remote
from agentest.workers.coordinator import WorkerEngine, WorkerNews
from agentest.workers.engine import AUTO, worker_count
from agentest.workers.worker_pool import POOL, OnDisconnect, OnMessage

_WAIT_NOTICE_S = 5.0
_START_LIMIT_S = 600.0  # seconds after which the run fails if no worker at all has started
_OWNER_DIED = "its owner has died"
_DEATHS = {
    ("its node has died", "node was", "node is dead"): "has died with its node",
    ("running low on memory", "memory pressure"): "was ended by Ray, as its node had no memory left",
    ("killed by `ray.kill`",): "was ended",
    (_OWNER_DIED,): "was ended by the cluster",
    ("worker process has died",): "has died: its process was killed, or has crashed",
}
_UNREFERENCED = "all references to the actor were removed"
"""Part of Ray's message about an actor that has not started and whose owner does not respond."""


class RayEngineProvider(EngineProvider):
    """Opens the engine that runs conversations on a Ray cluster."""

    is_remote = True

    def check(self, options: Options) -> None:
        # An environment variable that is not set expands to an empty value.
        if options.ray_address is not None and not options.ray_address.strip():
            raise UsageError("--ray-address is empty: name a cluster, or remove it to start a local Ray")

    @contextmanager
    def open(self, prepared: Prepared, recipe: PreparationRecipe, *, earlier: bool) -> Iterator[RayEngine]:
        options, root = prepared.request.options, prepared.request.root
        address = cluster_address(options.ray_address, os.environ)
        if address is not None:
            named = [unit.file for unit in prepared.plan.units]
            check_inside(root, [prepared.loaded.path, *(root / file for file in named)])
        wanted = options.workers or AUTO
        count = None if wanted == AUTO else worker_count(prepared, wanted)
        with joined(address, files_of(prepared), count) as cluster:
            check_reach(prepared, cluster.remote_nodes)
            life = RunWorker(
                recipe=recipe,
                root=root if address is None else None,
                files={unit.scope: unit.file for unit in prepared.plan.remaining},
                ports=known_ports(prepared),
                earlier=earlier,
            )
            size = count or worker_count(prepared, cluster.cpus)
            yield RayEngine(cluster, size, life, needed_variables(prepared, os.environ))


class RayEngine:
    """Runs conversations on workers of a Ray cluster, which it starts.

    Args:
        size: number of workers.
        life: the work that each worker does.
        variables: environment variables that workers need.
    """

    has_workers = True
    opens = "Ray to start workers, which open agents and models"
    called = "worker"
    needed = 1  # the other workers join when they have found a free CPU

    def __init__(self, cluster: Cluster, size: int, life: RunWorker, variables: Mapping[str, str]) -> None:
        import ray

        self.size = size
        self._cluster = cluster
        self._ray: Any = ray
        self._class = ray.remote(
            num_cpus=1, max_restarts=0, max_concurrency=CALLS_AT_ONCE, scheduling_strategy="SPREAD"
        )(WorkerActor)
        self._variables = pickle.dumps(dict(variables))
        self._life = life
        self._connected = 0
        self._beginning: set[asyncio.Task[None]] = set()
        self._say: Callable[[str], None]
        self._is_wait_reported = False
        self._waiting = 0  # number of workers that have not started yet
        self._alive: set[int] = set()  # numbers of the workers that are running
        self._has_begun = False
        self._is_orphaned = False
        """True if Ray has declared this process dead, so that none of its actors starts any more."""

    @asynccontextmanager
    async def open(self, session: RunSession, origin: Origin) -> AsyncIterator[RunUnits]:
        """Wait until the first worker is ready (see `WorkerEngine.open`). Raises UsageError."""
        self._say = session.say
        stop = stopping(session)

        def on_lost(reason: str) -> None:
            if not session.stop.called.is_set():
                stop(reason)

        async with (
            watch_membership(self._cluster.head, self._cluster.is_node_dead, on_lost),
            WorkerEngine(self).open(session, origin) as run,
        ):
            yield run

    async def connect(self, on_message: OnMessage, on_disconnect: OnDisconnect) -> RunEnd:
        """Connect another worker. Messages are stored until it has a CPU. Raises UsageError."""
        if self._is_orphaned:
            raise UsageError(TAKEN_FOR_DEAD)
        self._connected += 1
        number = self._connected

        def on_end() -> None:
            self._alive.discard(number)
            on_disconnect()

        begun = asyncio.Event()
        try:
            actor = self._class.remote()
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise UsageError(f"the Ray cluster cannot be reached: {in_a_line(str(error))}") from None
        caller = RunEnd(_Actor(self._ray, actor, self._mark_orphaned), on_message, on_end, begun=begun)
        task = asyncio.create_task(self._begin(actor, number, on_message))
        task.add_done_callback(lambda _: begun.set())
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        return caller

    def _mark_orphaned(self) -> None:
        self._is_orphaned = True

    async def _begin(self, actor: Any, number: int, on_message: OnMessage) -> None:
        news: WorkerNews = remote(POOL, on_message)
        life = pickle.dumps(replace(self._life, number=number))
        begun = asyncio.ensure_future(actor.begin.remote(self._variables, life))
        self._waiting += 1
        try:
            done, _ = await asyncio.wait([begun], timeout=_WAIT_NOTICE_S)
            if not done and not self._is_wait_reported:
                self._is_wait_reported = True
                self._say(await self._explain_waiting())
            while not done:
                done, _ = await asyncio.wait([begun], timeout=_START_LIMIT_S)
                if not done and not self._alive:
                    why = await self._explain_waiting()
                    news.cannot_start(f"no worker has begun in {_START_LIMIT_S:.0f} s: {why}")
                    return
            await begun
            self._alive.add(number)
            self._has_begun, self._is_wait_reported = True, False
        except Exception as error:  # noqa: BLE001 - the task is not awaited, so the run has to be notified here
            is_end = isinstance(error, self._ray.exceptions.RayActorError) and self._has_begun
            if not (is_end or self._alive):  # otherwise its channel reports the end, and the others continue
                news.cannot_start(f"a worker could not begin: {describe_failed_start(str(error))}")
        finally:
            self._waiting -= 1
            begun.cancel()

    async def _explain_waiting(self) -> str:
        """Explain why workers wait, in a thread because Ray may respond slowly. Does not raise its errors."""
        try:
            return str(await in_thread(why_waiting, self._ray, self._waiting))
        except UsageError as error:
            return f"waiting for {counted(self._waiting, 'worker')} to begin ({error})"


class _Actor:
    def __init__(self, ray: Any, actor: Any, on_orphaned: Callable[[], None]) -> None:
        self._ray = ray
        self._actor = actor
        self._on_orphaned = on_orphaned

    async def receive(self, batch: MessageBatch) -> None:
        await self._answer(self._actor.receive, batch)

    async def take(self, acknowledged: int) -> MessageBatch | None:
        batch: MessageBatch | None = await self._answer(self._actor.take, acknowledged)
        return batch

    def kill(self) -> None:
        with suppress(self._ray.exceptions.RayError, ConnectionError):  # out of reach: Ray ends it
            self._ray.kill(self._actor, no_restart=True)

    async def _answer(self, method: Any, argument: object) -> Any:
        errors = self._ray.exceptions
        try:
            return await method.remote(argument)
        except errors.ActorUnavailableError as error:
            raise WorkerUnreachable(in_a_line(str(error))) from None
        except errors.RayActorError as error:
            if _OWNER_DIED in str(error):
                self._on_orphaned()
            raise WorkerEnded(describe_death(str(error))) from None
        except (errors.RayError, ConnectionError) as error:
            raise WorkerEnded(f"is out of reach: {in_a_line(str(error))}") from None


def describe_death(error_text: str) -> str:
    """Explain how a worker ended, from Ray's message, as words that follow "the worker"."""
    for signs, words in _DEATHS.items():
        if any(sign in error_text for sign in signs):
            return words
    return f"has died: {in_a_line(error_text)}"


def describe_failed_start(error_text: str) -> str:
    """Explain why a worker could not start, from Ray's message."""
    if _UNREFERENCED in error_text:
        return (
            "the cluster cannot reach this process and regards it as dead. From outside its network use "
            "ray://HOST:10001. If it requires no token and you have one in ~/.ray/auth_token, set "
            "RAY_AUTH_MODE=disabled"
        )
    return describe_death(error_text)
