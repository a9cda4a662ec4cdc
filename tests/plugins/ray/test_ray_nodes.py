"""The nodes of a cluster: who waits for them, and which are refused; without Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agentest.plugins.ray.cluster import cpus_of, is_dead, remote_nodes, wait_for_nodes, why_waiting
from agentest.support.errors import UsageError
from agentest.version import __version__

HEAD = {"NodeID": "h", "Alive": True, "Resources": {}}
OURS = {"version": __version__, "network": "here"}


def node(name: str, cpus: float = 2.0, *, alive: bool = True) -> dict[str, Any]:
    told = {"NodeID": name, "NodeManagerAddress": f"10.0.0.{name}", "NodeManagerHostname": f"host-{name}"}
    return {**told, "Alive": alive, "Resources": {"CPU": cpus}}


class FakeRay:
    """A cluster whose nodes are others whenever it is looked at; the last time for good."""

    def __init__(self, *looks: Sequence[dict[str, Any]], free: float = 0.0) -> None:
        self._looks = list(looks)
        self._free = free
        self.looked: Callable[[], object] = lambda: None
        self.waits: list[object] = []
        """Tasks that wait for a CPU."""
        self.cloudpickle = SimpleNamespace(
            register_pickle_by_value=lambda module: None, unregister_pickle_by_value=lambda module: None
        )

    def nodes(self) -> Sequence[dict[str, Any]]:
        self.looked()
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": self._free} if self._free else {}

    def remote(self, num_cpus: int, max_retries: int) -> Any:
        assert num_cpus == 1
        return lambda function: SimpleNamespace(remote=self._wait)

    def _wait(self) -> object:
        self.waits.append(object())
        return self.waits[-1]

    def cancel(self, waits: object) -> None:
        self.waits.remove(waits)


def awaited(ray: FakeRay, said: list[str], **limits: float) -> list[str]:
    found = wait_for_nodes(ray, said.append, **{"every_s": 0.0, "others_within_s": 0.0, **limits})
    assert not ray.waits
    return [each["NodeID"] for each in found]


def test_nodes_that_are_there_are_not_waited_for() -> None:
    said: list[str] = []
    ray = FakeRay([HEAD, node("1"), node("2", 0.5), node("3", alive=False)])
    assert awaited(ray, said) == ["1"]
    assert not said


def test_nodes_that_are_still_to_come_are_waited_for() -> None:
    """Somebody waits for a CPU meanwhile, or an autoscaler would add none."""
    said: list[str] = []
    ray = FakeRay([HEAD], [HEAD], [HEAD, node("1")])
    assert awaited(ray, said, within_s=60) == ["1"]
    assert said == [
        "agentest: no node of the Ray cluster has a CPU for a worker yet: waiting for one, at most 60 s"
    ]


def test_those_that_come_soon_after_the_first_are_waited_for() -> None:
    ray = FakeRay([HEAD], [node("1")], [node("1"), node("2")])
    assert awaited(ray, [], others_within_s=0.2) == ["1", "2"]


def test_an_interrupt_meanwhile_ends_the_wait() -> None:
    ray = FakeRay([HEAD])

    def say(text: str) -> None:
        ray.looked = lambda: os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        wait_for_nodes(ray, say, every_s=0.0, within_s=60)
    assert not ray.waits


def test_no_node_comes() -> None:
    ray = FakeRay([HEAD])
    with pytest.raises(UsageError, match="no node of the cluster has had a CPU for a worker in 0 s"):
        awaited(ray, [], within_s=0.05)
    assert not ray.waits


def test_nodes_without_agentest_or_with_another_version() -> None:
    alive = [node("1"), node("2"), node("3")]
    good = {"version": __version__, "network": "elsewhere"}
    none, other = {**good, "version": None}, {**good, "version": "0.0.1"}
    found = remote_nodes(alive, {"1": good, "2": {**good, "network": "here"}, "3": good}, OURS)
    assert found == ["host-1 (10.0.0.1)", "host-3 (10.0.0.3)"]
    install = rf"pip install '\.\[ray\]' in a checkout of Agentest {__version__}"
    with pytest.raises(UsageError, match=rf"node host-2 \(10\.0\.0\.2\) has no agentest\. .*{install}"):
        remote_nodes(alive, {"1": good, "2": none, "3": other}, OURS)
    problem = (
        rf"another version than here \({__version__}\) on node host-3 \(10\.0\.0\.3\): 0\.0\.1\. .*{install}"
    )
    with pytest.raises(UsageError, match=problem):
        remote_nodes(alive, {"1": good, "2": good, "3": other}, OURS)


def test_a_cluster_that_does_not_answer() -> None:
    ray = SimpleNamespace(nodes=lambda: 1 / 0)
    with pytest.raises(UsageError, match="the cluster does not report its resources: division by zero"):
        wait_for_nodes(ray)


def test_why_workers_wait() -> None:
    """As it is now, and not as it was when the run began."""
    free = FakeRay([HEAD, node("1"), node("2", 1.0)], free=1.0)
    assert why_waiting(free, 2) == "waiting for Ray to start 2 workers"
    why = why_waiting(FakeRay([node("1", 1.0), node("2", alive=False)]), 1)
    assert why.startswith("waiting for 1 worker to begin. ")
    assert "has 1 on 1 node, none of them free" in why
    assert cpus_of([node("1", 2.9)]) == 2


def test_a_node_is_dead_when_the_cluster_says_so() -> None:
    """An unknown node, or one that cannot be checked, is not dead."""
    ray = FakeRay([HEAD, node("1"), node("2", alive=False)])
    assert [is_dead(ray, name) for name in ("1", "2", "3")] == [False, True, False]
    assert not is_dead(SimpleNamespace(nodes=lambda: 1 / 0), "2")
