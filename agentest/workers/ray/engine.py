"""The engine that runs conversations on a Ray cluster, and the environment variables it sends to workers."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from dotenv import dotenv_values

from agentest.models.providers import DIRECT, key_variables
from agentest.runner.agents import known_ports
from agentest.runner.environment import check_reach
from agentest.runner.executor import RunUnits
from agentest.runner.prepare import Prepared
from agentest.runner.session import RunSession, stopping
from agentest.runner.sources import Origin
from agentest.support.lazy_dataclasses import dataclass
from agentest.workers.coordinator import WorkerEngine
from agentest.workers.ray.actors import RayWorkerSource
from agentest.workers.ray.address import cluster_address, watch_membership
from agentest.workers.ray.cluster import Cluster, joined
from agentest.workers.ray.files import check_inside, files_of, python_files
from agentest.workers.ray.worker_process import PreparationRecipe, RunWorker
from agentest.workers.worker_pool import AUTO, worker_count


@contextmanager
def open_ray_engine(
    prepared: Prepared, recipe: PreparationRecipe, *, earlier: bool, environ: Mapping[str, str] = os.environ
) -> Iterator[RayEngine]:
    """Create the engine of a run. Enter it before the event loop starts. Raises UsageError.

    Args:
        earlier: True if the conversations come from an earlier run.
    """
    options, root = prepared.request.options, prepared.request.root
    address = cluster_address(options.ray_address, environ)
    if address is not None:
        named = [unit.file for unit in prepared.plan.units]
        check_inside(root, [prepared.loaded.path, *(root / file for file in named)])
    wanted = options.workers or AUTO
    count = None if wanted == AUTO else worker_count(prepared, wanted)
    with joined(address, files_of(prepared), count) as cluster:
        check_reach(prepared, [node.label for node in cluster.nodes if not node.is_local])
        life = RunWorker(
            recipe=recipe,
            root=root if address is None else None,
            files={unit.scope: unit.file for unit in prepared.plan.remaining},
            ports=known_ports(prepared),
            earlier=earlier,
        )
        size = count or worker_count(prepared, cluster.cpus)
        yield RayEngine(cluster, size, life, needed_variables(prepared, environ))


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Runs conversations on workers of a Ray cluster."""

    cluster: Cluster
    size: int
    life: RunWorker
    variables: Mapping[str, str]
    has_workers: bool = True
    opens: str = "Ray to start workers, which open agents and models"

    @asynccontextmanager
    async def open(self, session: RunSession, origin: Origin) -> AsyncIterator[RunUnits]:
        """Wait until the first worker is ready (see `workers.coordinator.WorkerEngine`). Raises
        UsageError.
        """
        fleet = RayWorkerSource(self.size, self.life, self.variables, session.say)
        stop = stopping(session)

        def on_lost(reason: str) -> None:
            if not session.stop.called.is_set():
                stop(reason)

        async with (
            watch_membership(self.cluster.head, self.cluster.is_node_dead, on_lost),
            WorkerEngine(fleet).open(session, origin) as run,
        ):
            yield run


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
    names |= {name for provider in providers for name in _variables_of(provider)}
    beginnings = ("AGENTEST_", *(start for provider in providers for start in _variable_prefixes(provider)))
    return {
        name: value
        for name, value in environ.items()
        if name in names or name.startswith(beginnings) or name.lower() in _ALWAYS_SENT
    }


def _find_variables(file: Path) -> Iterable[str]:
    """Find variables in one of the user's files, in a placeholder or where Python reads them."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # reported where the file is needed
        return ()
    return (*_PLACEHOLDER.findall(text), *_ENVIRON_ACCESS.findall(text))


def _variables_of(provider: str) -> tuple[str, ...]:
    direct = DIRECT.get(provider)
    return (*key_variables(provider), *(direct.base_variables if direct else ()))


def _variable_prefixes(provider: str) -> tuple[str, ...]:
    return (f"{provider.upper()}_", *_PROVIDER_PREFIXES.get(provider, ()))
