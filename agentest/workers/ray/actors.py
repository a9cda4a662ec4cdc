"""Workers as actors of Ray: one CPU each, spread over the nodes."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agentest.support.errors import UsageError
from agentest.support.text import count
from agentest.workers.channel import CannotStart
from agentest.workers.ray.address import TAKEN_FOR_DEAD
from agentest.workers.ray.channel import Batch, Caller, HasDied, OutOfReach, Patience
from agentest.workers.ray.cluster import room
from agentest.workers.ray.worker_process import CALLS_AT_ONCE, Holding, Host
from agentest.workers.worker_pool import OnDisconnect, OnMessage

_SOON_S = 5.0
"""A worker that has found no place by then waits for one, and the user learns of it."""
_STARTED_WITHIN_S = 600.0
"""No worker at all after so long: the run cannot begin."""
_OWNER_DIED = "its owner has died"
"""What Ray tells of an actor when it takes this process for dead."""
_DEATHS = {
    ("its node has died", "node was", "node is dead"): "has died with its node",
    ("running low on memory", "memory pressure"): "was ended by Ray, as its node had no memory left",
    ("killed by `ray.kill`",): "was ended",
    (_OWNER_DIED,): "was ended by the cluster",
    ("worker process has died",): "has died: its process was killed, or has crashed",
}
"""What Ray tells → what it means."""
_TAKEN_FOR_DEAD = "all references to the actor were removed"
"""What Ray tells of an actor, before it has begun, whose owner does not answer."""


class RayFleet:
    """The workers of a run on a cluster.

    Args:
        size: how many there are to be.
        life: what a worker does.
        variables: what its environment needs.
        say: tells the user something at once.
    """

    called = "worker"
    needed = 1
    """The others join when they have found their places."""

    def __init__(
        self,
        size: int,
        life: Holding,
        variables: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        import ray

        self.size = size
        self._ray: Any = ray
        self._class = ray.remote(
            num_cpus=1,
            max_restarts=0,
            max_concurrency=CALLS_AT_ONCE,
            scheduling_strategy="SPREAD",
        )(Host)
        self._variables = pickle.dumps(dict(variables))
        self._life = life
        self._connected = 0
        self._beginning: set[asyncio.Task[None]] = set()
        self._say = say
        self._said = False
        self._waiting = 0
        """Workers that have not begun yet."""
        self._alive: set[int] = set()
        """Workers that have begun, and have not ended."""
        self._has_begun = False
        self._is_orphaned = False
        """Whether Ray takes this process for dead: no actor of its begins any more."""

    async def connect(self, on_message: OnMessage, on_disconnect: OnDisconnect) -> Caller:
        """Connect another worker, which keeps messages until it has a place. Raises UsageError."""
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
            raise UsageError(f"the Ray cluster cannot be reached: {_in_a_line(str(error))}") from None
        caller = Caller(_Actor(self._ray, actor, self._orphan), on_message, on_end, Patience(), begun)
        task = asyncio.create_task(self._begin(actor, number, on_message))
        task.add_done_callback(lambda _: begun.set())
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        return caller

    def _orphan(self) -> None:
        self._is_orphaned = True

    async def _begin(self, actor: Any, number: int, on_message: OnMessage) -> None:
        """Begin its life as soon as there is a place for it; who has to wait learns of that."""
        life = pickle.dumps(replace(self._life, number=number))
        begun = asyncio.ensure_future(_answer(actor.begin.remote(self._variables, life)))
        self._waiting += 1
        try:
            done, _ = await asyncio.wait([begun], timeout=_SOON_S)
            if not done:
                await self._tell_waiting()
            while not done:
                done, _ = await asyncio.wait([begun], timeout=_STARTED_WITHIN_S)
                if not done and not self._alive:
                    why = await self._why_waiting()
                    on_message(CannotStart(f"no worker has begun in {_STARTED_WITHIN_S:.0f} s: {why}"))
                    return
            await begun
            self._alive.add(number)
            self._has_begun, self._said = True, False
        except Exception as error:  # noqa: BLE001 - nobody awaits the task: the run must learn of it
            is_end = isinstance(error, self._ray.exceptions.RayActorError) and self._has_begun
            if not (is_end or self._alive):  # else the line to it tells of its end, and the others go on
                on_message(CannotStart(f"a worker could not begin: {why_it_never_ran(str(error))}"))
        finally:
            self._waiting -= 1
            begun.cancel()

    async def _tell_waiting(self) -> None:
        if not self._said:
            self._said = True
            self._say(await self._why_waiting())

    async def _why_waiting(self) -> str:
        """In a thread: Ray answers when it can. That it cannot just now keeps no worker from its place."""
        try:
            now = await asyncio.to_thread(room, self._ray)
        except UsageError as error:
            return f"waiting for {count(self._waiting, 'worker')} to begin ({error})"
        return now.why_waiting(self._waiting)


class _Actor:
    """The worker's end, as it is called."""

    def __init__(self, ray: Any, actor: Any, on_orphaned: Callable[[], None]) -> None:
        self._ray = ray
        self._actor = actor
        self._on_orphaned = on_orphaned

    async def receive(self, batch: Batch) -> None:
        await self._answer(self._actor.receive, batch)

    async def take(self, acknowledged: int) -> Batch | None:
        batch: Batch | None = await self._answer(self._actor.take, acknowledged)
        return batch

    def kill(self) -> None:
        with suppress(self._ray.exceptions.RayError, ConnectionError):  # nobody reaches it: Ray ends it
            self._ray.kill(self._actor, no_restart=True)

    async def _answer(self, method: Any, argument: object) -> Any:
        errors = self._ray.exceptions
        try:
            return await method.remote(argument)
        except errors.ActorUnavailableError as error:
            raise OutOfReach(_in_a_line(str(error))) from None
        except errors.RayActorError as error:
            if _OWNER_DIED in str(error):
                self._on_orphaned()
            raise HasDied(how_it_died(str(error))) from None
        except (errors.RayError, ConnectionError) as error:
            raise HasDied(f"is out of reach: {_in_a_line(str(error))}") from None


def how_it_died(told: str) -> str:
    """What Ray tells of a worker's end, in words that follow "the worker"."""
    for signs, words in _DEATHS.items():
        if any(sign in told for sign in signs):
            return words
    return f"has died: {_in_a_line(told)}"


def why_it_never_ran(told: str) -> str:
    """Why a worker could not begin, by what Ray tells of its end."""
    if _TAKEN_FOR_DEAD in told:
        return (
            "the cluster takes this process for dead, as it cannot reach it. From outside of its network use "
            "ray://HOST:10001. Where it asks for no token, and you have one in ~/.ray/auth_token, set "
            "RAY_AUTH_MODE=disabled"
        )
    return how_it_died(told)


async def _answer(ref: Any) -> Any:
    return await ref


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:300]
