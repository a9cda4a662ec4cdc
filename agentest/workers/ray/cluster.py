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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import IO, Any

from agentest.support.errors import UsageError
from agentest.support.interrupts import STOPPING, terminable
from agentest.support.reminders import reminded
from agentest.support.terminal import tell
from agentest.workers.ray import probe
from agentest.workers.ray.address import check_reachable, is_of_clients, is_on_loopback_alone
from agentest.workers.ray.files import Files
from agentest.workers.ray.nodes import (
    Node,
    asked,
    awaited_nodes,
    checked,
    cpus_of,
    is_dead,
    node_of,
    with_room,
)
from agentest.workers.ray.problems import not_joined, not_whole

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
