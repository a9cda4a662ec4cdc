"""Select and order the scenarios of a prepared run, based on earlier runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from agentest.domain.results import ScenarioResult, Status
from agentest.domain.shards import Shard
from agentest.runner.environment import output_dir
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared
from agentest.runner.selection import PlanEntry, first, narrow_plan, shuffled
from agentest.store.runs.folder import RunKind
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count

if TYPE_CHECKING:
    from agentest.store.runs.past_runs import LatestVerdicts, ScenarioWithAgent


_SEEDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSelection:
    """Options that select and order scenarios."""

    last_failed: bool = False
    failed_first: bool = False
    shuffle: str | None = None
    """A seed; "" for a random one."""
    resume: str | None = None
    """A run; "" for the latest that was interrupted or killed."""
    shard: Shard | None = None
    """The part of the run to execute."""
    shard_by: str | None = None
    """A run whose durations decide the split, or `counts`."""

    def __post_init__(self) -> None:
        """Raise UsageError if options exclude each other."""
        if self.resume is not None and self.last_failed:
            raise UsageError(
                "--resume and --last-failed exclude each other, because --resume keeps failed scenarios"
            )
        if self.shard_by and self.shard is None and self.resume is None:
            raise UsageError("--shard-by decides how --shard K/N splits a run: add --shard")

    def __call__(self, prepared: Prepared, kind: RunKind = RunKind.RUN) -> Prepared:
        """Return the run with the selected scenarios in the requested order. Raises UsageError."""
        failed = None
        if self.last_failed or self.failed_first:
            failed = LastFailed.of(prepared)
            prepared = failed.alone(prepared) if self.last_failed else prepared
        if self.shuffle is not None:
            prepared = _shuffled(prepared, int(self.shuffle) if self.shuffle else secrets.randbelow(_SEEDS))
        if failed and self.failed_first:
            prepared = failed.first(prepared)
        if self.resume is not None:
            from agentest.cli.resume import resume_run

            return resume_run(prepared, self.resume, kind, self.shard, self._sharded)
        return self._sharded(prepared, kind)

    def _sharded(self, prepared: Prepared, kind: RunKind) -> Prepared:
        if self.shard is None:
            return prepared
        from agentest.cli.resume import sharded

        return sharded(prepared, self.shard, self.shard_by, kind)


def _shuffled(prepared: Prepared, seed: int) -> Prepared:
    note = f"--shuffle {seed}: this seed gives the same order again"
    return replace(prepared, plan=shuffled(prepared.plan, seed), notes=(*prepared.notes, note))


_SHOWN = 3
_OPTION = "--last-failed"


@dataclass(frozen=True, slots=True)
class LastFailed:
    """Latest verdicts of the scenarios in a run."""

    verdicts: LatestVerdicts

    @classmethod
    def of(cls, prepared: Prepared) -> LastFailed:
        """Read the verdicts of everything that is prepared. Raises UsageError."""
        from agentest.store.runs.past_runs import latest_verdicts

        return cls(latest_verdicts(output_dir(prepared), list(map(_tried, prepared.plan.entries))))

    def alone(self, prepared: Prepared) -> Prepared:
        """Return the run with only the failed scenarios, or with all if none failed."""
        failed = sum(map(self._is_kept, prepared.plan.units))
        plan = narrow_plan(prepared.plan, self._is_kept) if failed else prepared.plan
        parts = [_summary(prepared, self.verdicts, failed), *_left_out_notes(prepared, self.verdicts, failed)]
        notes = (*prepared.notes, f"{_OPTION}: {'; '.join(parts)}")
        return replace(prepared, plan=plan, notes=notes, narrowed=prepared.narrowed or failed > 0)

    def _is_kept(self, entry: PlanEntry) -> bool:
        if isinstance(entry, ScenarioResult):  # a file that cannot be loaded may have failed
            return entry.verdict.status is not Status.SKIPPED
        return self.verdicts.has_failed(_tried(entry))

    def first(self, prepared: Prepared) -> Prepared:
        """Return the run with failed scenarios first."""
        plan = first(prepared.plan, lambda unit: self.verdicts.has_failed(_tried(unit)))
        return replace(prepared, plan=plan)


def _summary(prepared: Prepared, verdicts: LatestVerdicts, failed: int) -> str:
    units = len(prepared.plan.units)
    if failed:
        which = "which failed or errored when it last ran" if failed == 1 else "which failed or errored last"
        return f"{failed} of {count(units, 'scenario')} {'runs' if failed == 1 else 'run'}, {which}"
    selected = " selected" if prepared.request.options.filtered else ""
    why = f"none of the{selected} scenarios failed or errored when it last ran"
    return f"{why if verdicts.runs else 'no earlier run is stored'}, so all{selected} run ({units})"


def _left_out_notes(prepared: Prepared, verdicts: LatestVerdicts, failed: int) -> Iterator[str]:
    """Yield notes about new scenarios that are left out, and about failed ones that no longer exist."""
    tried = set(map(_tried, prepared.plan.entries))
    new = [unit.scenario.name for unit in prepared.plan.units if verdicts.is_new(_tried(unit))]
    if new and failed:
        yield f"left out: {_named(new)}, which no stored run has"
    options = prepared.request.options
    gone = [each.name for each in verdicts.failed if each not in tried]
    if gone and not options.filtered and options.agent is None:
        yield f"gone since {'it' if len(gone) == 1 else 'they'} failed: {_named(gone)}"


def _named(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _tried(entry: Unit | ScenarioResult) -> ScenarioWithAgent:
    from agentest.store.runs.past_runs import ScenarioWithAgent

    name = entry.scenario.name if isinstance(entry, Unit) else entry.name
    return ScenarioWithAgent(entry.file, name, entry.agent)
