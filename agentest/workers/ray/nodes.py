"""The nodes of a cluster: wait until one has room for a worker, and see what each of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from agentest.support.errors import UsageError
from agentest.support.interrupts import terminable
from agentest.support.reminders import reminded
from agentest.support.terminal import tell
from agentest.support.text import count
from agentest.version import __version__
from agentest.workers.ray import probe
from agentest.workers.ray.problems import in_a_line

INSTALLED_BY = f"pip install 'agentest-sim[ray]=={__version__}'"
_PROBED_WITHIN_S = 120.0
_THERE_WITHIN_S = 600.0
"""A machine that is only now started, with an image to be fetched, takes minutes."""
_LOOKED_AT_EVERY_S = 1.0
_OTHERS_FOLLOW_WITHIN_S = 5.0
"""Nodes that are started together are there one after another."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, where workers can run."""

    id: str
    address: str
    host: str
    here: bool
    """Whether it shares its loopback with this process."""

    @property
    def shown(self) -> str:
        """How it is named to the user."""
        return self.address if self.host == self.address else f"{self.host} ({self.address})"


Alive = Sequence[Mapping[str, Any]]
"""Nodes, as Ray describes them."""


def with_room(ray: Any) -> Alive:
    """The nodes that have a CPU for a worker, used or not."""
    return [node for node in _told(ray.nodes) if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def is_dead(ray: Any, node: str) -> bool:
    """Whether the cluster has declared a node dead. False where the cluster does not answer."""
    try:
        return any(each["NodeID"] == node and not each["Alive"] for each in _told(ray.nodes))
    except UsageError:  # that the head does not answer is found out elsewhere
        return False


def _told(ask: Callable[[], Any]) -> Any:
    """What the cluster tells. Raises UsageError."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - Ray raises errors of many kinds
        problem = f"--engine ray: the cluster does not tell what it has: {in_a_line(str(error))}"
        raise UsageError(problem) from None


def cpus_of(alive: Alive) -> int:
    """How many workers have room on these nodes, if nobody else uses them."""
    return sum(int(node["Resources"]["CPU"]) for node in alive)


@dataclass(frozen=True, slots=True)
class Room:
    """What a cluster has for workers at this moment."""

    cpus: int
    nodes: int
    free: int
    """CPUs that nobody uses."""

    def why_waiting(self, workers: int) -> str:
        """Why so many workers have not begun, as far as one can see."""
        what = count(workers, "worker")
        if self.free:
            return f"waiting for Ray to start {what}"
        return (
            f"waiting for {what} to begin. Each takes a CPU, and the Ray cluster has {self.cpus} on "
            f"{count(self.nodes, 'node')}, none of them free: Ray is starting the workers, or others use the "
            "CPUs (ray status tells)"
        )


def room(ray: Any) -> Room:
    """What the cluster has now. Raises UsageError."""
    alive = with_room(ray)
    return Room(cpus_of(alive), len(alive), int(_told(ray.available_resources).get("CPU", 0)))


def awaited_nodes(
    ray: Any,
    say: Callable[[str], object] = tell,
    within_s: float = _THERE_WITHIN_S,
    every_s: float = _LOOKED_AT_EVERY_S,
    others_within_s: float = _OTHERS_FOLLOW_WITHIN_S,
) -> Alive:
    """The nodes that have room; where none has, who comes meanwhile. Raises UsageError if nobody comes.

    A head node often has no CPU for others, and the machines beside it are still to come: by themselves, or
    because somebody waits for a CPU.
    """
    if alive := with_room(ray):
        return alive
    say(
        "agentest: no node of the Ray cluster has a CPU for a worker yet: waiting for one, "
        f"at most {within_s:.0f} s"
    )
    began = came = monotonic()
    with terminable(), _asked_for(ray), reminded("waiting for a node of the Ray cluster with a CPU", say):
        while not alive or monotonic() - came < others_within_s:
            if not alive and monotonic() - began > within_s:
                raise UsageError(
                    f"--engine ray: no node of the cluster has had a CPU for a worker in {within_s:.0f} s. "
                    "Are nodes still to come, and does its autoscaler work (ray status tells)?"
                )
            sleep(every_s)
            now = with_room(ray)
            if len(now) != len(alive):
                alive, came = now, monotonic()
    return alive


@contextmanager
def _asked_for(ray: Any) -> Iterator[None]:
    """Somebody waits for a CPU meanwhile: an autoscaler adds nodes for nobody else."""
    with _sent_by_value(ray):
        waits = ray.remote(num_cpus=1, max_retries=0)(probe.look).remote()
    try:
        yield
    finally:
        ray.cancel(waits)


def checked(alive: Alive, told: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Any]) -> list[Node]:
    """The nodes, each with what a worker needs. Raises UsageError.

    Args:
        told: what `probe.look` has told of each, by its id.
        ours: what it tells here.
    """
    nodes = [node_of(each, here=told[each["NodeID"]]["network"] == ours["network"]) for each in alive]
    lacking = [node.shown for node in nodes if told[node.id]["version"] is None]
    if lacking:
        raise UsageError(
            f"--engine ray: {_some(lacking)} {_has(lacking)} no agentest. There, or in the cluster's image: "
            f"{INSTALLED_BY}"
        )
    other = [
        f"{node.shown}: {told[node.id]['version']}"
        for node in nodes
        if told[node.id]["version"] != ours["version"]
    ]
    if other:
        raise UsageError(
            f"--engine ray: agentest has another version than here ({ours['version']}) on {_some(other)}. "
            f"There, or in the cluster's image: {INSTALLED_BY}"
        )
    return nodes


def node_of(told: Mapping[str, Any], *, here: bool) -> Node:
    """A node, as Ray describes it."""
    return Node(told["NodeID"], told["NodeManagerAddress"], told["NodeManagerHostname"], here)


def asked(ray: Any, alive: Alive) -> dict[str, dict[str, Any]]:
    """What `probe.look` tells of each node, by its id. Raises UsageError."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        with _sent_by_value(ray):
            look = ray.remote(num_cpus=0, max_retries=1)(probe.look)
            looks = {
                node["NodeID"]: look.options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                ).remote()
                for node in alive
            }
        told = ray.get(list(looks.values()), timeout=_PROBED_WITHIN_S)
    except Exception as error:  # noqa: BLE001 - Ray raises errors of many kinds
        raise UsageError(f"--engine ray: a node cannot be asked: {in_a_line(str(error))}") from None
    return dict(zip(looks, told, strict=True))


@contextmanager
def _sent_by_value(ray: Any) -> Iterator[None]:
    """A node may have no agentest from which it could import the function."""
    ray.cloudpickle.register_pickle_by_value(probe)
    try:
        yield
    finally:
        ray.cloudpickle.unregister_pickle_by_value(probe)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{'node' if len(names) == 1 else 'nodes'} {', '.join(names[:3])}{more}"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
