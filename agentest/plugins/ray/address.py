"""The address of a Ray cluster, the connection to it, and the files and variables that are sent there."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TypeGuard

import anyio
from dotenv import dotenv_values

from agentest.models.providers import DIRECT, key_variables
from agentest.runner.prepare import Prepared
from agentest.support.errors import UsageError
from agentest.support.function_threads import in_thread
from agentest.support.lazy_dataclasses import dataclass

VARIABLE = "RAY_ADDRESS"
_LOCAL = "local"
_AUTO = "auto"
_PORT = 6379
_CLIENT = "ray://"
_CLIENT_PORT = 10001
_CONNECT_LIMIT_S = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_UNUSED_ADDRESS = "192.0.2.1"  # an address that belongs to no host (RFC 5737)


def cluster_address(named: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the address to join: the given one, else RAY_ADDRESS. None means that a cluster is started."""
    address = named or environ.get(VARIABLE, "").strip() or _LOCAL
    return None if address == _LOCAL else address


def check_reachable(address: str) -> None:
    """Raise UsageError if the cluster does not respond. Ray itself would retry for minutes."""
    if address == _AUTO:
        return
    host, port = host_and_port(address)
    try:
        socket.create_connection((host, port), timeout=_CONNECT_LIMIT_S).close()
    except OSError as error:
        cause = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UsageError(
            f"--ray-address {address}: nobody answers at {host}, port {port} ({cause}). "
            "Is the cluster running, and may this machine reach it? HOST:6379 is its head node, "
            "ray://HOST:10001 its server for clients"
        ) from None


def is_loopback_only(address: str, environ: Mapping[str, str], own_address: str | None = None) -> bool:
    """Return True if the cluster's head listens on loopback only.

    Ray has to be told so, because it replaces a loopback address with this machine's network address, where
    most clusters listen as well.

    Args:
        own: this machine's network address; None looks it up.
    """
    if address == _AUTO:
        address = _latest_cluster(environ)
    if not address or is_client_address(address):
        return False
    host, port = host_and_port(address)
    if host not in _LOOPBACK:
        return False
    own_address = own_address or _machine_address()
    try:
        socket.create_connection((own_address, port), timeout=_CONNECT_LIMIT_S).close()
    except OSError:
        return True
    return own_address in _LOOPBACK


def _latest_cluster(environ: Mapping[str, str]) -> str:
    if named := environ.get(VARIABLE, "").strip():
        return "" if named == _AUTO else named
    with suppress(OSError):  # the file does not exist or belongs to another user
        return Path(environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster").read_text().strip()
    return ""


def _machine_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            probe_socket.connect((_UNUSED_ADDRESS, 1))  # nothing is sent
        except OSError:  # no network
            return _LOOPBACK[0]
        return str(probe_socket.getsockname()[0])


def is_client_address(address: str | None) -> TypeGuard[str]:
    """Return True for the address of a Ray client server."""
    return address is not None and address.startswith(_CLIENT)


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of a cluster address. Raises UsageError."""
    client = is_client_address(address)
    host, colon, port = address.removeprefix(_CLIENT).rstrip("/").rpartition(":")
    if not colon:
        return port, _CLIENT_PORT if client else _PORT
    if "://" in host or not host or not port.isdecimal():
        raise UsageError(
            f"--ray-address {address} is not an address of Ray: write auto, HOST:6379 or ray://HOST:10001"
        )
    return host.strip("[]"), int(port)


TAKEN_FOR_DEAD = (
    "the Ray cluster regards this process as dead, because the node it was connected to died (its raylet was "
    "killed or did not respond)"
)
_CHECK_INTERVAL_S = 4.0
_LOST_AFTER_S = 40.0  # restarting a head node may take this long


@asynccontextmanager
async def watch_membership(
    head: str,
    is_node_dead: Callable[[], bool],
    on_lost: Callable[[str], object],
    *,
    every_s: float = _CHECK_INTERVAL_S,
    lost_after_s: float = _LOST_AFTER_S,
) -> AsyncIterator[None]:
    """Watch inside of the block that this process still belongs to the cluster, and call `on_lost` if it does
    not.

    Args:
        head: address of the head node.
        is_node_dead: returns True if the cluster has declared the node dead that we are connected to. It may
            block.
    """
    watches = (_watch_head(head, on_lost, every_s, lost_after_s), _watch_node(is_node_dead, on_lost, every_s))
    tasks = [asyncio.create_task(watch) for watch in watches]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _watch_node(
    is_node_dead: Callable[[], bool], on_lost: Callable[[str], object], every_s: float
) -> None:
    is_dead = False
    while not is_dead:
        await anyio.sleep(every_s)
        is_dead = await in_thread(is_node_dead)
    on_lost(TAKEN_FOR_DEAD)


async def _watch_head(
    address: str, on_lost: Callable[[str], object], every_s: float, lost_after_s: float
) -> None:
    host, port = host_and_port(address)
    answered = monotonic()
    while monotonic() - answered < lost_after_s:
        await asyncio.sleep(every_s)
        if await _is_responding(host, port, every_s):
            answered = monotonic()
    on_lost(
        f"the head node of the Ray cluster ({host}, port {port}) has not answered for {lost_after_s:.0f} s"
    )


async def _is_responding(host: str, port: int, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # includes TimeoutError
        return False
    writer.close()
    return True


_EXCLUDED = (
    ".git",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
    ".nox",
    ".env*",
)


@dataclass(frozen=True, slots=True)
class ProjectFiles:
    """The folder to send, with exclusions in addition to those in .gitignore."""

    root: Path
    excludes: tuple[str, ...] = ()
    size: int = 0  # bytes, including files that .gitignore and .rayignore exclude


def files_of(prepared: Prepared) -> ProjectFiles:
    """Return the files of a run."""
    root = prepared.request.root
    # Not every version of Ray reads .rayignore. Our patterns come last, so that nothing there overrides them.
    ignore_file = root / ".rayignore"
    ignored = ignore_file.read_text(encoding="utf-8").splitlines() if ignore_file.exists() else []
    environments = tuple(path.parent.name for path in root.glob("*/pyvenv.cfg"))
    output = os.path.normpath(prepared.loaded.config.output_dir).strip("/")
    size, loops = _scan(root)
    return ProjectFiles(root, (*ignored, *environments, *loops, f"/{output}", *_EXCLUDED), size)


def _scan(root: Path) -> tuple[int, list[str]]:
    """Return the size of all files, and symbolic links that lead to a parent folder."""
    size, loops = 0, []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _EXCLUDED]
        for path in (Path(folder, name) for name in folders):
            if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
                loops.append(f"/{path.relative_to(root).as_posix()}")
        size += sum(_file_size(Path(folder, name)) for name in names)
    return size, loops


def python_files(root: Path) -> Iterator[Path]:
    """Yield the project's Python files, including an agent's own modules, which only workers import."""
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in _EXCLUDED and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _file_size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:  # deleted in the meantime
        return 0


def check_inside(root: Path, named: Iterable[Path]) -> None:
    """Raise UsageError for a file outside of the folder that is sent."""
    outside = [path for path in named if not path.resolve().is_relative_to(root.resolve())]
    if outside:
        raise UsageError(
            f"--engine ray: {outside[0]} is not below {root}, the folder that is sent to the "
            f"nodes. Start the run with --cwd in a folder above both, or move the file"
        )


_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_ENVIRON_ACCESS = re.compile(r"""(?:environ(?:\.get)?|getenv)\s*[\[(]\s*["']([A-Za-z_][A-Za-z0-9_]*)["']""")
_ALWAYS_SENT = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PROVIDER_PREFIXES = {
    "bedrock": ("AWS_",),
    "sagemaker": ("AWS_",),
    "vertex_ai": ("VERTEX", "GOOGLE_"),
    "gemini": ("GEMINI_", "GOOGLE_"),
    "huggingface": ("HF_", "HUGGINGFACE_"),
}


def needed_variables(prepared: Prepared, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables named in the configuration, `.env` and project files, those of providers, and
    ours.
    """
    config = prepared.loaded.path
    names = set(_find_variables(config)) | set(dotenv_values(config.parent / ".env"))
    for file in {*prepared.files, *python_files(prepared.request.root)}:
        names |= set(_find_variables(file))
    specs = (prepared.user, prepared.judge, prepared.confirm, *prepared.named.values())
    providers = {spec.name.partition("/")[0] for spec in specs if spec}
    beginnings = ["AGENTEST_"]
    for provider in providers:
        direct = DIRECT.get(provider)
        names |= {*key_variables(provider), *(direct.base_variables if direct else ())}
        beginnings += [f"{provider.upper()}_", *_PROVIDER_PREFIXES.get(provider, ())]
    return {
        name: value
        for name, value in environ.items()
        if name in names or name.startswith(tuple(beginnings)) or name.lower() in _ALWAYS_SENT
    }


def _find_variables(file: Path) -> Iterable[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # reported where the file is needed
        return ()
    return (*_PLACEHOLDER.findall(text), *_ENVIRON_ACCESS.findall(text))
