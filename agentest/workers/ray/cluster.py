"""The cluster on which workers run: started for the run and ended with it, or one that is joined."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import re
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from agentest.support.errors import UsageError
from agentest.support.interrupts import STOPPING, terminable
from agentest.support.terminal import reminded, tell
from agentest.support.text import count
from agentest.version import __version__
from agentest.workers.ray import probe
from agentest.workers.ray.address import check_reachable, is_of_clients, is_on_loopback_alone
from agentest.workers.ray.files import Files

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


OLDEST = (2, 40)
_JOINED_WITHIN_S = 30.0
"""And longer where many files are sent meanwhile:"""
_SENT_IN_A_SECOND = 1_000_000
_STARTED_OR_ENDED_WITHIN_S = 10.0
"""After Ctrl-C."""
_MOST_SENT = 512_000_000
"""Of more, Ray says that it is too much."""
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
"""With it, a cluster that Ray starts listens on loopback alone, as it always does on macOS; and one that does
is found."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to."""

    nodes: tuple[Node, ...]
    cpus: int
    local: bool
    head: str
    """Where its head node answers."""
    is_node_dead: Callable[[], bool]
    """Whether the cluster has declared the node dead that this process is connected to. It may block."""


def check_installed(version_of: Callable[[str], str] = importlib.metadata.version) -> None:
    """Raise UsageError where Ray is missing or too old."""
    try:
        version = version_of("ray")
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
    alone = address is None or is_on_loopback_alone(address, os.environ)
    token = {"RAY_AUTH_TOKEN": own_token()} if address is None else {}
    with _environment({**_OURS, **(_LOOPBACK if alone else {}), **token}):
        ray = _imported()
        _silence(logging.getLogger("ray"))
        with _started(ray, workers) if address is None else _connected(ray, address, files):
            yield _looked_at(ray, address)


@cache
def own_token() -> str:
    """The token of clusters that this process starts.

    Without one in its environment, a newer Ray makes one and leaves it in `~/.ray/auth_token`, which changes
    how the user's other programs join clusters. Ray keeps the first token of a process: there is one for all.
    """
    return secrets.token_hex(32)


def _imported() -> Any:
    """Ray. Raises UsageError."""
    try:
        import ray
    except ImportError as error:
        raise UsageError(not_whole(error)) from None
    return ray


@contextmanager
def _started(ray: Any, workers: int | None) -> Iterator[None]:
    given: dict[str, Any] = {"num_cpus": max(workers, os.cpu_count() or 1)} if workers else {}
    begun = _Init(ray, {**given, "address": "local", "include_dashboard": False})
    with begun.inside("starting Ray", ends_within_s=_STARTED_OR_ENDED_WITHIN_S) as problem:
        if isinstance(problem, ImportError):
            raise UsageError(not_whole(problem))
        if problem is not None:
            raise UsageError(f"--engine ray: a local Ray could not be started: {problem}{begun.printed}")
        yield


@contextmanager
def _connected(ray: Any, address: str, files: Files) -> Iterator[None]:
    runtime_env = {"working_dir": str(files.root), "excludes": list(files.excludes)}
    begun = _Init(ray, {"address": address, "runtime_env": runtime_env})
    within_s = _JOINED_WITHIN_S + min(files.size, _MOST_SENT) / _SENT_IN_A_SECOND
    with begun.inside("joining the Ray cluster", within_s) as problem:
        if isinstance(problem, ImportError):
            raise UsageError(not_whole(problem))
        if problem is not None:
            raise UsageError(f"--ray-address {address}: {not_joined(problem, files)}")
        yield


class _Init:
    """`ray.init` in a thread of its own: it takes minutes where it fails, and a signal in its midst may leave
    it hanging.

    The thread lasts until `ray.shutdown`: a local Ray ends with the thread that has started it.
    """

    def __init__(self, ray: Any, options: Mapping[str, Any]) -> None:
        self._ray = ray
        self._options = {"log_to_driver": False, "configure_logging": False, **options}
        self._problem: BaseException | None = None
        self._done, self._over = threading.Event(), threading.Event()
        self.printed = ""

    @contextmanager
    def inside(
        self, what: str, within_s: float | None = None, *, ends_within_s: float = 0.0
    ) -> Iterator[BaseException | None]:
        """What has gone wrong, if anything; and `ray.shutdown` at the end.

        Args:
            what: "starting Ray".
            ends_within_s: how long it may go on after Ctrl-C: half a Ray cannot be shut down.
        """
        try:
            with _errors_kept() as kept, reminded(what, kept.say), terminable():
                threading.Thread(target=self._run, name="ray.init", daemon=True).start()
                done = self._waited(within_s, ends_within_s, kept)
            self.printed = kept.text
            yield self._problem if done else self._late(within_s)
        finally:
            self._ray.shutdown()
            self._over.set()

    def _waited(self, within_s: float | None, ends_within_s: float, kept: _Kept) -> bool:
        try:
            return self._done.wait(within_s)
        except KeyboardInterrupt:
            if ends_within_s:
                kept.say(f"agentest: {STOPPING}")
                self._done.wait(ends_within_s)
            raise

    def _late(self, within_s: float | None) -> TimeoutError:
        return TimeoutError(
            f"no answer within {within_s:.0f} s. A cluster may not answer another version of Ray, and "
            f"both must have the same (ray --version): here it is {self._ray.__version__}, with Python "
            f"{platform.python_version()}"
        )

    def _run(self) -> None:
        try:
            self._ray.init(**self._options)
        except BaseException as error:  # noqa: BLE001 - handed to who waits; Ray raises SystemExit, too
            self._problem = error
        self._done.set()
        self._over.wait()


class _Kept:
    text = ""

    def __init__(self, shown: IO[str]) -> None:
        self.say = partial(tell, stream=shown)


@contextmanager
def _errors_kept() -> Iterator[_Kept]:
    """Keep what Ray's own code writes to standard error, past Python."""
    with tempfile.TemporaryFile() as file, open(os.dup(2), "w", errors="replace") as shown:
        kept = _Kept(shown)
        os.dup2(file.fileno(), 2)
        try:
            yield kept
        finally:
            os.dup2(shown.fileno(), 2)
            file.seek(0)
            text = file.read().decode("utf-8", "replace").strip()
            kept.text = "\n" + "\n".join(text.splitlines()[-10:]) if text else ""


def _silence(logger: logging.Logger) -> None:
    logger.handlers.clear()
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    logger.setLevel(logging.ERROR)  # `ray.init` drops the handlers


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
    if address is None:
        alive = with_room(ray)
        nodes = [node_of(each, here=True) for each in alive]
    else:
        alive = awaited_nodes(ray)
        nodes = checked(alive, asked(ray, alive), probe.look())
    context = ray.get_runtime_context()
    head = address if is_of_clients(address) else context.gcs_address
    is_node_dead = partial(is_dead, ray, context.get_node_id())
    return Cluster(tuple(nodes), cpus_of(alive), address is None, head, is_node_dead)


WHOLE = "pip install 'agentest-sim[ray]'"
_TOO_LARGE = re.compile(r"exceeds the maximum size|too large|max(imum)? (package )?size", re.I)
_NO_TOKEN = re.compile(r"AuthenticationError|InvalidAuthToken|UNAUTHENTICATED|authentication token", re.I)
_OTHER_VERSION = re.compile(r"version mismatch", re.I)


def not_whole(error: ImportError) -> str:
    """What to say of a Ray that lacks something which it imports."""
    return f"--engine ray: Ray is not installed with all that it needs ({in_a_line(str(error))}): {WHOLE}"


def not_joined(error: BaseException, files: Files) -> str:
    """What to say of a cluster that cannot be joined."""
    said = list(_said(error))
    whole = "\n".join(said)
    if _OTHER_VERSION.search(whole):
        told = next(text for text in said if _OTHER_VERSION.search(text))
        return (
            "the cluster has other versions of Ray or Python than this process; both must be the same. "
            f"Ray says: {in_a_line(told)}"
        )
    if _NO_TOKEN.search(whole):
        return (
            "the cluster asks for a token, and there is none here, or another one: set RAY_AUTH_MODE=token, "
            "with the token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
        )
    if _TOO_LARGE.search(whole):
        return (
            f"the files of {files.root} are too large to be sent to the nodes; largest: "
            f"{', '.join(_largest(files))}. Name what the run does not need in .rayignore "
            "(written as in .gitignore)"
        )
    return f"the cluster cannot be joined: {in_a_line(said[0])}"


def _said(error: BaseException | None) -> Iterator[str]:
    """What an error says, and those that led to it: Ray often tells the cause there alone."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def in_a_line(text: str) -> str:
    """What Ray says, in so few words that it can be shown."""
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
