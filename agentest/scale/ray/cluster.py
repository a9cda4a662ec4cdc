"""The cluster on which workers run: started for the run and ended with it, or one that is joined."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import re
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentest.errors import UsageError
from agentest.scale.ray.address import check_reachable, is_of_clients
from agentest.scale.ray.files import Files
from agentest.version import __version__

OLDEST = (2, 40)
INSTALLED_BY = f"pip install 'agentest-sim[ray]=={__version__}'"
_JOINED_WITHIN_S = 30.0
"""And longer where many files are sent meanwhile:"""
_SENT_IN_A_SECOND = 1_000_000
_MOST_SENT = 512_000_000
"""Of more, Ray says that it is too much."""
_PROBED_WITHIN_S = 120.0
_OURS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # What Ray prints of workers that died would stand among what we print; `--engine ray` says it itself.
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"[\s\S]?",
    # In a job of Ray's the job's own files would be in the way of the run's: they are the same, or more.
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
    # Ray ends a process whose head node is gone for so many seconds; a run then stops by itself (`head`).
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With it, a cluster that Ray starts listens on loopback alone, as it always does on macOS."""
_TOO_LARGE = re.compile(r"exceeds the maximum size|too large|max(imum)? (package )?size", re.I)


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


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to."""

    nodes: tuple[Node, ...]
    cpus: int
    local: bool
    head: str
    """Where its head node answers."""


def check_installed() -> None:
    """Raise UsageError where Ray is missing or too old."""
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError("--engine ray needs Ray: pip install 'agentest-sim[ray]'") from None
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"--engine ray needs Ray {oldest} or newer, and {version} is installed: "
            "pip install -U 'agentest-sim[ray]'"
        )


@contextmanager
def joined(address: str | None, files: Files, workers: int | None) -> Iterator[Cluster]:
    """Be connected to a cluster: the one at this address, which stays as it is; None: one of our own.

    Must be entered before the event loop begins. Raises UsageError.

    Args:
        workers: how many are wished for; a cluster of our own has room for them.
    """
    check_installed()
    if address is not None:
        check_reachable(address)
    with _environment({**_OURS, **({} if address else _LOOPBACK)}):
        import ray

        _silence(logging.getLogger("ray"))
        try:
            if address is None:
                _started(ray, workers)
            else:
                _connected(ray, address, files)
            yield _looked_at(ray, address)
        finally:
            ray.shutdown()


def _started(ray: Any, workers: int | None) -> None:
    given: dict[str, Any] = {"num_cpus": max(workers, os.cpu_count() or 1)} if workers else {}
    begun = _Init(ray, {**given, "address": "local", "include_dashboard": False})
    problem = begun.here()
    if problem is not None:
        raise UsageError(f"--engine ray: a local Ray could not be started: {problem}{begun.printed}")


def _connected(ray: Any, address: str, files: Files) -> None:
    runtime_env = {"working_dir": str(files.root), "excludes": list(files.excludes)}
    begun = _Init(ray, {"address": address, "runtime_env": runtime_env})
    problem = begun.within(_JOINED_WITHIN_S + min(files.size, _MOST_SENT) / _SENT_IN_A_SECOND)
    if problem is not None:
        raise UsageError(f"--ray-address {address}: {_in_our_words(str(problem), files)}")


def _in_our_words(problem: str, files: Files) -> str:
    if "ersion mismatch" in problem:
        return (
            "the cluster has other versions of Ray or Python than this process; both must be the same. "
            f"Ray says: {_in_a_line(problem)}"
        )
    if _TOO_LARGE.search(problem):
        return (
            f"the files of {files.root} are too large to be sent to the nodes; largest: "
            f"{', '.join(_largest(files))}. Name what the run does not need in .rayignore "
            "(written as in .gitignore)"
        )
    return f"the cluster cannot be joined: {_in_a_line(problem)}"


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:500]


def _largest(files: Files) -> list[str]:
    """The largest entries of the root, by what is below them; what is never sent is left out."""
    sizes: dict[str, int] = {}
    for folder, folders, names in os.walk(files.root):
        folders[:] = [name for name in folders if name not in files.excludes]
        for name in names:
            path = Path(folder, name)
            top = path.relative_to(files.root).parts[0]
            sizes[top] = sizes.get(top, 0) + (path.lstat().st_size if not path.is_symlink() else 0)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    return [f"{name} ({sizes[name] / 1e6:.0f} MB)" for name in largest if sizes[name] >= 1e6]


class _Init:
    """`ray.init`, whose handler of SIGTERM does not stay."""

    def __init__(self, ray: Any, options: Mapping[str, Any]) -> None:
        self._ray = ray
        self._options = {"log_to_driver": False, "configure_logging": False, **options}
        self._problem: BaseException | None = None
        self.printed = ""

    def here(self) -> BaseException | None:
        """What has gone wrong, if anything. A local Ray ends with the thread that has started it."""
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with _errors_kept() as kept:
                self._run()
        finally:
            signal.signal(signal.SIGTERM, handler)
        self.printed = kept.text
        return self._problem

    def within(self, seconds: float) -> BaseException | None:
        """What has gone wrong, if anything; in a thread, as it takes minutes where it fails."""
        thread = threading.Thread(target=self._run, name="ray.init", daemon=True)
        with _errors_kept() as kept:
            thread.start()
            thread.join(seconds)
        self.printed = kept.text
        if thread.is_alive():
            return TimeoutError(
                f"no answer within {seconds:.0f} s. A cluster may not answer another version of Ray, and "
                f"both must have the same (ray --version): here it is {self._ray.__version__}, with Python "
                f"{platform.python_version()}"
            )
        return self._problem

    def _run(self) -> None:
        try:
            self._ray.init(**self._options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to who waits; Ray raises SystemExit, too
            if isinstance(error, SystemExit) and error.code == signal.SIGTERM:  # Ray's handler of it
                raise KeyboardInterrupt from None
            self._problem = error


class _Kept:
    text = ""


@contextmanager
def _errors_kept() -> Iterator[_Kept]:
    """Keep what Ray's own code writes to standard error, past Python."""
    kept, shown = _Kept(), os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield kept
        finally:
            os.dup2(shown, 2)
            os.close(shown)
            file.seek(0)
            text = file.read().decode("utf-8", "replace").strip()
            kept.text = "\n" + "\n".join(text.splitlines()[-10:]) if text else ""


def _silence(logger: logging.Logger) -> None:
    logger.handlers.clear()
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for Ray, but for those that the user has set."""
    ours = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _looked_at(ray: Any, address: str | None) -> Cluster:
    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    cpus = sum(int(node["Resources"]["CPU"]) for node in alive)
    if not alive:
        raise UsageError("--engine ray: no node of the cluster has a CPU for a worker")
    if address is None:
        nodes = [_node(node, here=True) for node in alive]
    else:
        nodes = _checked(ray, alive)
    head = address if is_of_clients(address) else ray.get_runtime_context().gcs_address
    return Cluster(tuple(nodes), cpus, address is None, head)


def _node(node: Mapping[str, Any], *, here: bool) -> Node:
    return Node(node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"], here)


def _checked(ray: Any, alive: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The nodes, each with what a worker needs. Raises UsageError."""
    from agentest.scale.ray import probe

    ours = probe.look()
    told = _probed(ray, alive)
    nodes = [_node(node, here=told[node["NodeID"]]["network"] == ours["network"]) for node in alive]
    lacking = [node.shown for node in nodes if told[node.id]["version"] is None]
    if lacking:
        raise UsageError(
            f"--engine ray: {_some(lacking)} {_has(lacking)} no agentest. There, or in the cluster's image: "
            f"{INSTALLED_BY}"
        )
    other = [f"{node.shown}: {told[node.id]['version']}" for node in nodes if _differs(told[node.id])]
    if other:
        raise UsageError(
            f"--engine ray: agentest has another version than here ({__version__}) on {_some(other)}. "
            f"There, or in the cluster's image: {INSTALLED_BY}"
        )
    return nodes


def _differs(told: Mapping[str, Any]) -> bool:
    return bool(told["version"] != __version__)


def _probed(ray: Any, alive: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from agentest.scale.ray import probe

    cloudpickle.register_pickle_by_value(probe)  # the node may have no agentest to import it from
    try:
        look = ray.remote(num_cpus=0, max_retries=1)(probe.look)
        asked = {
            node["NodeID"]: look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote()
            for node in alive
        }
        told = ray.get(list(asked.values()), timeout=_PROBED_WITHIN_S)
    except Exception as error:  # noqa: BLE001 - Ray raises errors of many kinds
        raise UsageError(f"--engine ray: a node cannot be asked: {_in_a_line(str(error))}") from None
    finally:
        cloudpickle.unregister_pickle_by_value(probe)
    return dict(zip(asked, told, strict=True))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{'node' if len(names) == 1 else 'nodes'} {', '.join(names[:3])}{more}"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
