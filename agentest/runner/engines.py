"""Engines: where the conversations of a run take place, and what a plug-in defines to add one.

    # my_package/engine.py
    class ClusterProvider(EngineProvider):
        is_remote = True

        @contextmanager
        def open(self, prepared, recipe, *, earlier):
            with joined_cluster() as cluster:
                yield WorkerEngine(ClusterWorkers(cluster, recipe, earlier))

    # my_package/plugin.py
    plugin.engine("cluster", "my_package.engine:ClusterProvider", help="Run conversations on a cluster.")

An engine with workers is the `WorkerEngine` of `agentest.workers.coordinator`, over a `WorkerSource` that
starts processes and carries messages to them. Each process prepares the run by the recipe and has a
`Worker` of `agentest.workers.worker`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentest.support.errors import UsageError

if TYPE_CHECKING:
    from agentest.runner.executor import LocalEngine, RunUnits
    from agentest.runner.plan import Options
    from agentest.runner.prepare import Prepared
    from agentest.runner.session import RunSession
    from agentest.runner.sources import Origin


class Engine(Protocol):
    """Runs the units of a plan."""

    @property
    def has_workers(self) -> bool:
        """True if conversations run in other processes than the run's own."""

    @property
    def opens(self) -> str:
        """The work before the run begins, for progress messages: "agents and models to be opened"."""

    def open(self, session: RunSession, origin: Origin) -> AbstractAsyncContextManager[RunUnits]:
        """Open everything that the units need, and close it after the run. Raises UsageError."""


class PreparationRecipe(Protocol):
    """How to prepare a run again in another process. Scenarios contain functions, which cannot be sent."""

    def prepared(self, root: Path) -> Prepared:
        """Prepare the run with the project's files in this folder. Raises UsageError."""


class EngineProvider(ABC):
    """Opens an engine. `Plugin.engine` names a subclass, which is called without arguments."""

    is_remote = False
    """True if workers may be on other machines.

    Each worker then opens the servers of agents that run in it, and no model response is taken from a cache.
    """

    def check(self, options: Options) -> None:  # noqa: B027 - most engines accept all options
        """Raise UsageError if the options exclude this engine. Called before the configuration is read."""

    def limited(self, prepared: Prepared) -> Prepared:
        """Return the run with no more conversations at once than this engine can have connections.

        By default, one process on this machine opens them, or each remote worker has a limit of its own.
        """
        if self.is_remote:
            return prepared
        from agentest.runner.environment import limited_to_connections

        return limited_to_connections(prepared)

    @abstractmethod
    def open(
        self, prepared: Prepared, recipe: PreparationRecipe, *, earlier: bool
    ) -> AbstractContextManager[Engine]:
        """Open the engine of a run, and close it afterwards. The event loop starts inside. Raises UsageError.

        Args:
            recipe: how another process prepares the run.
            earlier: True if the conversations come from an earlier run.
        """


class LocalEngineProvider(EngineProvider):
    """Opens the engine that runs conversations in this process."""

    def check(self, options: Options) -> None:
        if options.workers not in (None, 1):
            raise UsageError(f"--engine local uses only this process: remove --workers {options.workers}")

    @contextmanager
    def open(self, prepared: Prepared, recipe: PreparationRecipe, *, earlier: bool) -> Iterator[LocalEngine]:  # noqa: ARG002
        from agentest.runner.executor import LocalEngine

        yield LocalEngine()


def engine_of(options: Options) -> EngineProvider:
    """Return the selected engine. Raises UsageError if other options exclude it."""
    provider: EngineProvider = options.engine_feature.load(of=EngineProvider)()
    provider.check(options)
    if options.ray_address is not None and not provider.is_remote:
        raise UsageError("--ray-address names a cluster for --engine ray: add --engine ray")
    return provider
