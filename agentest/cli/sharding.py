"""`--shard K/N`: the scenarios of a prepared run that belong to one of its parts."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from agentest.domain.forecast import Earlier, Took
from agentest.domain.results import ScenarioResult
from agentest.domain.shards import Part, Shard, split
from agentest.runner.fingerprints import with_fingerprints
from agentest.runner.outputs import output_dir
from agentest.runner.plan import Plan, Unit
from agentest.runner.prepare import Prepared
from agentest.runner.reordering import Entry, cut
from agentest.store.earlier import earlier_run
from agentest.store.runs.finding import latest_whole_run, run_file
from agentest.store.runs.record import RunKind
from agentest.support.errors import UsageError
from agentest.support.text import count

COUNTS = "counts"
"""What `--shard-by` says for numbers of conversations, whatever run is kept."""
_BY_COUNTS = "numbers of conversations"
_NOTHING = Took(conversations=0, talking_s=0.0, judging_s=0.0, cost=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """What scenarios took in an earlier run, to split others by."""

    run: str
    """What the earlier run is called."""
    earlier: Earlier

    def cost(self, unit: Unit) -> int:
        """Milliseconds that the unit may take; one that is new as much as the average."""
        took = self.earlier.took.get((unit.scenario.name, unit.agent)) or sum(
            self.earlier.took.values(), _NOTHING
        )
        seconds = (took.talking_s + took.judging_s) / took.conversations
        return round(1000 * seconds * unit.conversations)


def sharded(prepared: Prepared, shard: Shard, by: str | None, kind: RunKind) -> Prepared:
    """The run with the scenarios of a shard.

    Args:
        by: a run whose durations the scenarios are split by, or `counts`; None: the latest whole run that is
            kept, or counts.

    Raises UsageError where there is no such run.
    """
    durations = _durations(prepared, by, kind)
    costs = _costs(prepared.plan, durations)
    numbers = dict(zip(costs, split(list(costs.values()), shard.of), strict=True))
    # What does not run costs nothing: it is all in the first shard, which has something to do if any has.
    mine = {name for name in map(name_of, prepared.plan.entries) if numbers.get(name, 1) == shard.number}
    return as_part(prepared, shard, mine, f"durations of run {durations.run}" if durations else _BY_COUNTS)


def as_part(prepared: Prepared, shard: Shard, names: Collection[str], split_by: str) -> Prepared:
    """The run as a shard that has some of its scenarios."""
    plan = cut(prepared.plan, lambda entry: name_of(entry) in names)
    part = Part(
        shard=shard,
        split_by=split_by,
        scenarios={name: at for name, at in _places(prepared.plan).items() if name in names},
        whole=len(_places(prepared.plan)),
        filtered=prepared.is_partial,
        **_fingerprints(prepared),
    )
    note = f"--shard {shard}: {len(_places(plan))} of {_what(prepared.plan)}, split by {split_by}"
    if not plan.entries:
        note += "; there is nothing to do in this part"
    return replace(prepared, plan=plan, part=part, narrowed=True, notes=(*prepared.notes, note))


def name_of(entry: Entry) -> str:
    """The name of a scenario, whether it runs or not."""
    return entry.scenario.name if isinstance(entry, Unit) else entry.name


def _durations(prepared: Prepared, by: str | None, kind: RunKind) -> Durations | None:
    if by == COUNTS:
        return None
    if by is None:
        latest = latest_whole_run(output_dir(prepared), kind)
        earlier = earlier_run(latest.file) if latest and latest.file else None
        return Durations(run=latest.id, earlier=earlier) if latest and earlier else None
    file = run_file(by, output_dir(prepared), prepared.request.here or prepared.request.root)
    earlier = earlier_run(file)
    if earlier is None:
        raise UsageError(
            f"--shard-by {by}: {file} tells of no conversation's duration; name another run or results.json, "
            f"or split by numbers of conversations: --shard-by {COUNTS}"
        )
    return Durations(run=earlier.started_at, earlier=earlier)


def _costs(plan: Plan, durations: Durations | None) -> dict[str, int]:
    """What each scenario that runs may take, with all its agents."""
    costs: dict[str, int] = {}
    for entry in plan.entries:
        if isinstance(entry, Unit):
            cost = durations.cost(entry) if durations else entry.conversations
            costs[name_of(entry)] = costs.get(name_of(entry), 0) + cost
    return costs


def _places(plan: Plan) -> dict[str, int]:
    return {name: at for at, name in enumerate(dict.fromkeys(map(name_of, plan.entries)))}


def _what(plan: Plan) -> str:
    return count(len(_places(plan)), "scenario")


def _fingerprints(prepared: Prepared) -> Mapping[str, str]:
    plan = with_fingerprints(prepared).plan
    made_of = [unit.fingerprint for unit in plan.units]
    return {"plan": _hash(map(_told, plan.entries)), "made_of": _hash(sorted(made_of))}


def _told(entry: Entry) -> str:
    """What says that an entry is the same in another part."""
    if isinstance(entry, ScenarioResult):
        return repr((entry.name, entry.agent, entry.file, str(entry.verdict.status)))
    return repr((entry.scenario.name, entry.agent, entry.file, entry.conversations, str(entry.repeat)))


def _hash(texts: Iterable[str]) -> str:
    text = "\n".join(texts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
