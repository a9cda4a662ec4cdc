"""Which scenarios of a prepared run are run, and in which order, by what became of them earlier."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from agentest.domain.shards import Shard
from agentest.runner.prepare import Prepared
from agentest.runner.reordering import shuffled
from agentest.store.runs.record import RunKind

_SEEDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """What the command line says of that."""

    last_failed: bool = False
    failed_first: bool = False
    shuffle: str | None = None
    """A seed; "": any."""
    resume: str | None = None
    """A run; "": the latest that was interrupted or killed."""
    shard: Shard | None = None
    """Which part of the run is run here."""
    shard_by: str | None = None
    """A run whose durations it is split by, or `counts`."""

    def __call__(self, prepared: Prepared, kind: RunKind = RunKind.RUN) -> Prepared:
        """The run with the scenarios that are chosen, in the order that is asked for. Raises UsageError."""
        failed = None
        if self.last_failed or self.failed_first:
            from agentest.cli.last_failed import LastFailed  # reads what is kept, which most runs need not

            failed = LastFailed.of(prepared)
            prepared = failed.alone(prepared) if self.last_failed else prepared
        if self.shuffle is not None:
            prepared = _shuffled(prepared, int(self.shuffle) if self.shuffle else secrets.randbelow(_SEEDS))
        if failed and self.failed_first:
            prepared = failed.first(prepared)
        if self.resume is not None:
            from agentest.cli.resuming import resumed

            return resumed(prepared, self.resume, kind, self.shard, self._sharded)
        return self._sharded(prepared, kind)

    def _sharded(self, prepared: Prepared, kind: RunKind) -> Prepared:
        if self.shard is None:
            return prepared
        from agentest.cli.sharding import sharded

        return sharded(prepared, self.shard, self.shard_by, kind)


def _shuffled(prepared: Prepared, seed: int) -> Prepared:
    note = f"--shuffle {seed}: this seed gives the same order again"
    return replace(prepared, plan=shuffled(prepared.plan, seed), notes=(*prepared.notes, note))
