"""Workers as actors of Ray: one CPU each, spread over the nodes."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from agentest.scale.fleet import OnDisconnect, OnMessage
from agentest.scale.messages import CannotStart
from agentest.scale.ray.boxes import Batch
from agentest.scale.ray.cluster import Cluster
from agentest.scale.ray.host import CALLS_AT_ONCE, Host
from agentest.scale.ray.life import Holding
from agentest.scale.ray.line import Caller, HasDied, OutOfReach

_SOON_S = 5.0
"""A worker that has found no place by then waits for one, and the user learns of it."""
_STARTED_WITHIN_S = 300.0
"""No worker at all after so long: the run cannot begin."""
_DEATHS = {
    ("its node has died", "node was", "node is dead"): "has died with its node",
    ("running low on memory", "memory pressure"): "was ended by Ray, as its node had no memory left",
    ("killed by `ray.kill`",): "was ended",
    ("worker process has died",): "has died: its process was killed, or has crashed",
}
"""What Ray tells → what it means."""


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
        cluster: Cluster,
        size: int,
        life: Holding,
        variables: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        import ray

        self.size = size
        self._cluster = cluster
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
        self._alive: set[int] = set()
        """Workers that have begun, and have not ended."""
        self._has_begun = False

    async def connect(self, on_message: OnMessage, on_disconnect: OnDisconnect) -> Caller:
        """One more worker. What it is sent before it has found a place waits with it."""
        self._connected += 1
        number = self._connected

        def on_end() -> None:
            self._alive.discard(number)
            on_disconnect()

        actor = self._class.remote()
        caller = Caller(_Actor(self._ray, actor), on_message, on_end)
        task = asyncio.create_task(self._begin(actor, number, on_message))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        return caller

    async def _begin(self, actor: Any, number: int, on_message: OnMessage) -> None:
        """Begin its life as soon as there is a place for it; who has to wait learns of that."""
        life = pickle.dumps(replace(self._life, number=number))
        begun = asyncio.ensure_future(_answer(actor.begin.remote(self._variables, life)))
        try:
            done, _ = await asyncio.wait([begun], timeout=_SOON_S)
            if not done:
                self._tell_waiting()
            while not done:
                done, _ = await asyncio.wait([begun], timeout=_STARTED_WITHIN_S)
                if not done and not self._alive:
                    problem = f"no worker has begun in {_STARTED_WITHIN_S:.0f} s. {self._places()}"
                    on_message(CannotStart(problem))
                    return
            await begun
            self._alive.add(number)
            self._has_begun, self._said = True, False
        except Exception as error:  # noqa: BLE001 - nobody awaits the task: the run must learn of it
            is_end = isinstance(error, self._ray.exceptions.RayActorError) and self._has_begun
            if not (is_end or self._alive):  # else the line to it tells of its end, and the others go on
                on_message(CannotStart(f"a worker could not begin: {how_it_died(str(error))}"))
        finally:
            begun.cancel()

    def _tell_waiting(self) -> None:
        if not self._said:
            self._said = True
            self._say(f"waiting for workers of the Ray cluster. {self._places()}")

    def _places(self) -> str:
        nodes = len(self._cluster.nodes)
        return (
            f"It has {self._cluster.cpus} CPUs on {nodes} node{'s' * (nodes != 1)}, and a worker takes one: "
            "others may be using them (ray status tells)"
        )


class _Actor:
    """The worker's end, as it is called."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor

    async def receive(self, batch: Batch) -> None:
        await self._answer(self._actor.receive, batch)

    async def take(self, acknowledged: int) -> Batch | None:
        batch: Batch | None = await self._answer(self._actor.take, acknowledged)
        return batch

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)

    async def _answer(self, method: Any, argument: object) -> Any:
        errors = self._ray.exceptions
        try:
            return await method.remote(argument)
        except errors.ActorUnavailableError as error:
            raise OutOfReach(_in_a_line(str(error))) from None
        except errors.RayActorError as error:
            raise HasDied(how_it_died(str(error))) from None
        except (errors.RayError, ConnectionError) as error:
            raise HasDied(f"is out of reach: {_in_a_line(str(error))}") from None


def how_it_died(told: str) -> str:
    """What Ray tells of a worker's end, in words that follow "the worker"."""
    for signs, words in _DEATHS.items():
        if any(sign in told for sign in signs):
            return words
    return f"has died: {_in_a_line(told)}"


async def _answer(ref: Any) -> Any:
    return await ref


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:300]
