"""Start a Ray cluster for the run or join an existing one, and check its nodes."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import re
import secrets
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from agentest.plugins.ray.address import ProjectFiles, check_reachable, is_client_address, is_loopback_only
from agentest.support.errors import UsageError
from agentest.support.interrupts import STOPPING
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import tell, with_reminders
from agentest.support.text import count, first_names
from agentest.version import __version__

INSTALLED_BY = f"pip install '.[ray]' in a checkout of Agentest {__version__}"
_PROBE_LIMIT_S = 120.0
_NODES_LIMIT_S = 600.0
_POLL_S = 1.0
_SETTLE_S = 5.0


Alive = Sequence[Mapping[str, Any]]  # nodes as Ray describes them


def nodes_with_cpu(ray: Any) -> Alive:
    """Return the nodes that have a CPU for a worker, whether free or in use."""
    return [node for node in _query(ray.nodes) if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def is_dead(ray: Any, node: str) -> bool:
    """Return True if the cluster has declared a node dead, False if the cluster does not respond."""
    try:
        return any(each["NodeID"] == node and not each["Alive"] for each in _query(ray.nodes))
    except UsageError:  # the head node is watched separately
        return False


def _query(ask: Callable[[], Any]) -> Any:
    """Return the cluster's response. Raises UsageError."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds of errors
        problem = f"--engine ray: the cluster does not report its resources: {in_a_line(str(error))}"
        raise UsageError(problem) from None


def cpus_of(alive: Alive) -> int:
    """Return how many workers fit on these nodes if nothing else uses them."""
    return sum(int(node["Resources"]["CPU"]) for node in alive)


def why_waiting(ray: Any, workers: int) -> str:
    """Explain why this many workers have not started, as far as the cluster shows it. Raises UsageError."""
    alive, what = nodes_with_cpu(ray), count(workers, "worker")
    if _query(ray.available_resources).get("CPU", 0) >= 1:
        return f"waiting for Ray to start {what}"
    return (
        f"waiting for {what} to begin. Each takes a CPU, and the Ray cluster has {cpus_of(alive)} on "
        f"{count(len(alive), 'node')}, none of them free: Ray is starting the workers, or "
        f"others use the CPUs (see `ray status`)"
    )


def wait_for_nodes(
    ray: Any,
    say: Callable[[str], object] = tell,
    within_s: float = _NODES_LIMIT_S,
    every_s: float = _POLL_S,
    others_within_s: float = _SETTLE_S,
) -> Alive:
    """Return the nodes with CPUs for workers, waiting for them if there are none. Raises UsageError if none
    appears.

    A head node often has no CPU for workers, and other nodes start later, on their own or because a worker
    waits for a CPU.
    """
    if alive := nodes_with_cpu(ray):
        return alive
    say(
        "agentest: no node of the Ray cluster has a CPU for a worker yet: waiting for one, "
        f"at most {within_s:.0f} s"
    )
    began = came = monotonic()
    with _cpu_requested(ray), with_reminders("waiting for a node of the Ray cluster with a CPU", say):
        while not alive or monotonic() - came < others_within_s:
            if not alive and monotonic() - began > within_s:
                raise UsageError(
                    f"--engine ray: no node of the cluster has had a CPU for a worker in {within_s:.0f} s. "
                    "Are nodes still to come, and does its autoscaler work (see `ray status`)?"
                )
            sleep(every_s)
            now = nodes_with_cpu(ray)
            if len(now) != len(alive):
                alive, came = now, monotonic()
    return alive


@contextmanager
def _cpu_requested(ray: Any) -> Iterator[None]:
    """Request a CPU inside of the block, because an autoscaler adds nodes only on demand."""
    with _sent_by_value(ray):
        waits = ray.remote(num_cpus=1, max_retries=0)(describe_node).remote()
    try:
        yield
    finally:
        ray.cancel(waits)


def remote_nodes(
    alive: Alive, reports: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Any]
) -> list[str]:
    """Return the names of the nodes that do not share this process's loopback interface, for messages.

    Raises UsageError for nodes without what a worker needs.

    Args:
        reports: the result of `describe_node` on each node, by the node's id.
        ours: the result of `describe_node` in this process.
    """
    nodes = [(_label(node), reports[node["NodeID"]]) for node in alive]
    there = f"There, or in the cluster's image: {INSTALLED_BY}"
    if lacking := [label for label, report in nodes if report["version"] is None]:
        has = "has" if len(lacking) == 1 else "have"
        raise UsageError(f"--engine ray: {_some(lacking)} {has} no agentest. {there}")
    if other := [f"{label}: {r['version']}" for label, r in nodes if r["version"] != ours["version"]]:
        raise UsageError(
            f"--engine ray: agentest has another version than here ({ours['version']}) on {_some(other)}. "
            f"{there}"
        )
    return [label for label, report in nodes if report["network"] != ours["network"]]


def _label(node: Mapping[str, Any]) -> str:
    host, address = node["NodeManagerHostname"], node["NodeManagerAddress"]
    return str(address if host == address else f"{host} ({address})")


def describe_node() -> dict[str, Any]:
    """Describe this node in plain values, which are readable without our classes. Sent by value."""
    try:
        from agentest.version import __version__

        version: str | None = __version__
    except ModuleNotFoundError:
        version = None
    try:
        network = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/net")  # noqa: PTH115
    except OSError:  # not Linux: machines with the same name count as the same machine
        network = socket.gethostname()
    return {"version": version, "network": network}


def probe_nodes(ray: Any, alive: Alive) -> dict[str, dict[str, Any]]:
    """Return the result of `describe_node` for each node, by its id. Raises UsageError."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        with _sent_by_value(ray):
            remote_probe = ray.remote(num_cpus=0, max_retries=1)(describe_node)
            looks = {
                node["NodeID"]: remote_probe.options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                ).remote()
                for node in alive
            }
        reports = ray.get(list(looks.values()), timeout=_PROBE_LIMIT_S)
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds of errors
        raise UsageError(f"--engine ray: a node does not answer: {in_a_line(str(error))}") from None
    return dict(zip(looks, reports, strict=True))


@contextmanager
def _sent_by_value(ray: Any) -> Iterator[None]:
    """Send `describe_node` by value, because a node may lack the agentest package."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        yield
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def _some(names: Sequence[str]) -> str:
    return f"{'node' if len(names) == 1 else 'nodes'} {first_names(names, 3)}"


OLDEST = (2, 40)
_JOIN_LIMIT_S = 30.0  # starting takes longer when many files are sent, so this is only the minimum
_UPLOAD_BYTES_PER_S = 1_000_000
_START_OR_STOP_LIMIT_S = 10.0
_MAX_UPLOAD_BYTES = 512_000_000  # ray refuses to send more bytes than this
_RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's messages about dead workers would mix with our output, and `--engine ray` reports them itself.
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"[\s\S]?",
    # In a Ray job, the job's own files would shadow those of the run. They are the same, or more.
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
    # Ray ends a process this many seconds after losing its head node. The run then stops earlier (`address`).
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes a cluster that Ray starts listen, or be found, on loopback only, as it always does on macOS."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to."""

    remote_nodes: tuple[str, ...]  # names of the nodes that do not share this process's loopback interface
    cpus: int
    head: str  # address of the head node
    is_node_dead: Callable[[], bool]
    """Returns True if the cluster has declared the node dead that this process is connected to. It may block.
    """


def check_installed(version_of: Callable[[str], str] = importlib.metadata.version) -> None:
    """Raise UsageError if Ray is missing or too old."""
    try:
        version = version_of("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"--engine ray needs Ray: {_WHOLE}") from None
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"--engine ray needs Ray {oldest} or newer, and {version} is installed: "
            "pip install -U 'ray[default]'"
        )


@contextmanager
def joined(address: str | None, files: ProjectFiles, workers: int | None) -> Iterator[Cluster]:
    """Connect to the cluster at this address, or start one if the address is None.

    A joined cluster is left unchanged. Enter before the event loop starts. Raises UsageError.

    Args:
        workers: number of workers requested; a cluster that is started here has a CPU for each.
    """
    check_installed()
    if address is not None:
        check_reachable(address)
    alone = address is None or is_loopback_only(address, os.environ)
    token = {"RAY_AUTH_TOKEN": new_cluster_token()} if address is None else {}
    with _environment({**_RAY_VARIABLES, **(_LOOPBACK if alone else {}), **token}):
        try:
            import ray
        except ImportError as error:
            raise _incomplete_ray(error) from None
        logger = logging.getLogger("ray")
        logger.handlers.clear()
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        logger.setLevel(logging.ERROR)  # `ray.init` removes the handlers
        with _start_cluster(ray, workers) if address is None else _connected(ray, address, files):
            yield _inspected_cluster(ray, address)


@cache
def new_cluster_token() -> str:
    """Return the token for clusters that this process starts.

    Without one in the environment, newer versions of Ray create `~/.ray/auth_token`, which changes how the
    user's other programs join clusters. Ray uses the first token of a process, so all clusters share it.
    """
    return secrets.token_hex(32)


@contextmanager
def _start_cluster(ray: Any, workers: int | None) -> Iterator[None]:
    options: dict[str, Any] = {"num_cpus": max(workers, os.cpu_count() or 1)} if workers else {}
    begun = _Init(ray, {**options, "address": "local", "include_dashboard": False})
    with begun.inside("starting Ray", ends_within_s=_START_OR_STOP_LIMIT_S) as problem:
        if problem is not None:
            raise UsageError(f"--engine ray: a local Ray could not be started: {problem}{begun.printed}")
        yield


@contextmanager
def _connected(ray: Any, address: str, files: ProjectFiles) -> Iterator[None]:
    runtime_env = {"working_dir": str(files.root), "excludes": list(files.excludes)}
    begun = _Init(ray, {"address": address, "runtime_env": runtime_env})
    within_s = _JOIN_LIMIT_S + min(files.size, _MAX_UPLOAD_BYTES) / _UPLOAD_BYTES_PER_S
    with begun.inside("joining the Ray cluster", within_s) as problem:
        if problem is not None:
            raise UsageError(f"--ray-address {address}: {describe_join_failure(problem, files)}")
        yield


class _Init:
    """Call `ray.init` in a separate thread. It takes minutes to fail, and a signal during the call may hang
    it.

    The thread lives until `ray.shutdown`, because a local Ray ends with the thread that started it.
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
        try:
            with _capture_errors() as captured, with_reminders(what, captured.say):
                threading.Thread(target=self._run, name="ray.init", daemon=True).start()
                done = self._waited(within_s, ends_within_s, captured)
            self.printed = captured.text
            if isinstance(self._problem, ImportError):
                raise _incomplete_ray(self._problem)
            yield self._problem if done else self._late(within_s)
        finally:
            self._ray.shutdown()
            self._over.set()

    def _waited(self, within_s: float | None, ends_within_s: float, captured: _CapturedErrors) -> bool:
        try:
            return self._done.wait(within_s)
        except KeyboardInterrupt:
            if ends_within_s:
                captured.say(f"agentest: {STOPPING}")
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
        except BaseException as error:  # noqa: BLE001 - passed to the waiting thread; Ray also raises SystemExit
            self._problem = error
        self._done.set()
        self._over.wait()


class _CapturedErrors:
    text = ""

    def __init__(self, visible: IO[str]) -> None:
        self.say = partial(tell, stream=visible)


@contextmanager
def _capture_errors() -> Iterator[_CapturedErrors]:
    with tempfile.TemporaryFile() as file, open(os.dup(2), "w", errors="replace") as visible:
        captured = _CapturedErrors(visible)
        os.dup2(file.fileno(), 2)
        try:
            yield captured
        finally:
            os.dup2(visible.fileno(), 2)
            file.seek(0)
            text = file.read().decode("utf-8", "replace").strip()
            captured.text = "\n" + "\n".join(text.splitlines()[-10:]) if text else ""


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    ours = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _inspected_cluster(ray: Any, address: str | None) -> Cluster:
    alive = nodes_with_cpu(ray) if address is None else wait_for_nodes(ray)
    others = remote_nodes(alive, probe_nodes(ray, alive), describe_node()) if address is not None else []
    context = ray.get_runtime_context()
    head = address if is_client_address(address) else context.gcs_address
    return Cluster(tuple(others), cpus_of(alive), head, partial(is_dead, ray, context.get_node_id()))


_WHOLE = "pip install 'ray[default]'"
_TOO_LARGE = re.compile(r"exceeds the maximum size|too large|max(imum)? (package )?size", re.I)
_NO_TOKEN = re.compile(r"AuthenticationError|InvalidAuthToken|UNAUTHENTICATED|authentication token", re.I)
_OTHER_VERSION = re.compile(r"version mismatch", re.I)


def _incomplete_ray(error: ImportError) -> UsageError:
    lacking = in_a_line(str(error))
    return UsageError(f"--engine ray: Ray is not installed with all that it needs ({lacking}): {_WHOLE}")


def describe_join_failure(error: BaseException, files: ProjectFiles) -> str:
    """Return the message for a cluster that cannot be joined."""
    texts = list(_error_messages(error))
    full_text = "\n".join(texts)
    if _OTHER_VERSION.search(full_text):
        return (
            "the cluster has other versions of Ray or Python than this process; both must be the same. "
            f"Ray says: {in_a_line(next(text for text in texts if _OTHER_VERSION.search(text)))}"
        )
    if _NO_TOKEN.search(full_text):
        return (
            "the cluster requires a token, which is missing or wrong here: set RAY_AUTH_MODE=token, "
            "with the token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
        )
    if _TOO_LARGE.search(full_text):
        return (
            f"the files of {files.root} are too large to be sent to the nodes; largest: "
            f"{', '.join(_largest(files))}. Name what the run does not need in .rayignore "
            "(written as in .gitignore)"
        )
    return f"the cluster cannot be joined: {in_a_line(texts[0])}"


def _error_messages(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def in_a_line(text: str) -> str:
    """Shorten a message from Ray to one line."""
    return " ".join(text.split())[:500]


def _largest(files: ProjectFiles) -> list[str]:
    sizes: dict[str, int] = {}
    for folder, folders, names in os.walk(files.root):
        folders[:] = [name for name in folders if name not in files.excludes]
        for name in names:
            path = Path(folder, name)
            top = path.relative_to(files.root).parts[0]
            sizes[top] = sizes.get(top, 0) + (path.lstat().st_size if not path.is_symlink() else 0)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    return [f"{name} ({sizes[name] / 1e6:.0f} MB)" for name in largest if sizes[name] >= 1e6]
