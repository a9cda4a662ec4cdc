"""An engine: one conversation after another, for assistants that bear no more."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from agentest.runner.engines import Engine, EngineProvider, PreparationRecipe
from agentest.runner.executor import LocalEngine
from agentest.runner.prepare import Prepared


class GentleEngine(EngineProvider):
    """Runs one conversation at a time in this process."""

    def limited(self, prepared: Prepared) -> Prepared:
        options = replace(prepared.request.options, concurrency=1)
        return replace(prepared, request=replace(prepared.request, options=options))

    @contextmanager
    def open(self, prepared: Prepared, recipe: PreparationRecipe, *, earlier: bool) -> Iterator[Engine]:
        yield LocalEngine()
