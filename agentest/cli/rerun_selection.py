"""Select and order the scenarios of a run: those that failed, a shard, or what a resumed run left.

A resumed run reuses finished conversations if their scenario, agent and configuration are unchanged.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.domain.events import ConversationFinished
from agentest.domain.figures import PastRun, ScenarioResources
from agentest.domain.results import ScenarioResult, Status
from agentest.domain.shards import Shard, ShardedRun, split
from agentest.runner.plan import FinishedUnitPart, Plan, PlanEntry, ResumedRun, Unit, narrow_plan, with_units
from agentest.runner.prepare import Prepared
from agentest.scenarios.discovery import ENDINGS
from agentest.store.runs import folder as finding
from agentest.store.runs.folder import ANSWERS, JOURNAL, RunKind, latest_complete_run, run_file
from agentest.support.errors import UsageError
from agentest.support.files import path_from, read_user_bytes
from agentest.support.importing import imported_files
from agentest.support.json_text import CODE, canonical
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, quoted_names
from agentest.version import __version__

if TYPE_CHECKING:
    from agentest.store.reader import Place, StoredJournal
    from agentest.store.runs.past_runs import LatestVerdicts, ScenarioWithAgent

_SEEDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSelection:
    """Options that select and order scenarios."""

    last_failed: bool = False
    failed_first: bool = False
    shuffle: str | None = None  # a seed; "" for a random one
    resume: str | None = None  # a run; "" for the latest that was interrupted or killed
    shard: Shard | None = None  # the part of the run to execute
    shard_by: str | None = None  # a run whose durations decide the split, or `counts`

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
        verdicts = None
        if self.last_failed or self.failed_first:
            verdicts = verdicts_of(prepared)
            prepared = _last_failed(prepared, verdicts) if self.last_failed else prepared
        if self.shuffle is not None:
            from agentest.runner.selection import shuffled

            seed = int(self.shuffle) if self.shuffle else secrets.randbelow(_SEEDS)
            note = f"--shuffle {seed}: this seed gives the same order again"
            plan, notes = shuffled(prepared.plan, seed), (*prepared.notes, note)
            prepared = replace(prepared, plan=plan, notes=notes)
        if verdicts and self.failed_first:
            from agentest.runner.selection import first

            plan = first(prepared.plan, lambda unit: verdicts.has_failed(_tried(unit)))
            prepared = replace(prepared, plan=plan)
        if self.resume is not None:
            return resume_run(prepared, self, kind)
        return sharded(prepared, self.shard, self.shard_by, kind) if self.shard else prepared


def verdicts_of(prepared: Prepared) -> LatestVerdicts:
    """Return the latest verdicts on the scenarios of a run."""
    from agentest.store.runs.past_runs import latest_verdicts

    return latest_verdicts(prepared.output_dir, list(map(_tried, prepared.plan.entries)))


def has_failed(entry: PlanEntry, verdicts: LatestVerdicts) -> bool:
    """Return True if an entry failed or errored last. A file that cannot be loaded may have failed."""
    if isinstance(entry, ScenarioResult):
        return entry.verdict.status is not Status.SKIPPED
    return verdicts.has_failed(_tried(entry))


def narrowed(prepared: Prepared, verdicts: LatestVerdicts, is_kept: Callable[[PlanEntry], bool]) -> Prepared:
    """Return the run with some of its entries, to be compared with the latest verdicts."""
    known = {(each.file, each.name, each.agent): status for each, status in verdicts.known.items()}
    return replace(prepared, plan=narrow_plan(prepared.plan, is_kept), narrowed=True, earlier=known)


def _last_failed(prepared: Prepared, verdicts: LatestVerdicts) -> Prepared:
    failed = sum(has_failed(unit, verdicts) for unit in prepared.plan.units)
    parts = [_summary(prepared, verdicts, failed), *_left_out_notes(prepared, verdicts, failed)]
    notes = (*prepared.notes, *verdicts.unreadable, f"--last-failed: {'; '.join(parts)}")
    chosen = narrowed(prepared, verdicts, lambda entry: not failed or has_failed(entry, verdicts))
    return replace(chosen, notes=notes, narrowed=prepared.narrowed or failed > 0, picked=False)


def _summary(prepared: Prepared, verdicts: LatestVerdicts, failed: int) -> str:
    units = len(prepared.plan.units)
    if failed:
        which = "which failed or errored when it last ran" if failed == 1 else "which failed or errored last"
        return f"{failed} of {count(units, 'scenario')} {'runs' if failed == 1 else 'run'}, {which}"
    selected = " selected" if prepared.request.options.filtered else ""
    why = f"none of the{selected} scenarios failed or errored when it last ran"
    return f"{why if verdicts.runs else 'no earlier run is stored'}, so all{selected} run ({units})"


def _left_out_notes(prepared: Prepared, verdicts: LatestVerdicts, failed: int) -> Iterator[str]:
    tried = set(map(_tried, prepared.plan.entries))
    new = [unit.scenario.name for unit in prepared.plan.units if verdicts.is_new(_tried(unit))]
    if new and failed:
        yield f"left out: {quoted_names(new)}, which no stored run has"
    options = prepared.request.options
    gone = [each.name for each in verdicts.failed if each not in tried]
    if gone and not options.filtered and options.agent is None:
        yield f"gone since {'it' if len(gone) == 1 else 'they'} failed: {quoted_names(gone)}"


def _tried(entry: Unit | ScenarioResult) -> ScenarioWithAgent:
    from agentest.store.runs.past_runs import ScenarioWithAgent

    name = entry.scenario.name if isinstance(entry, Unit) else entry.name
    return ScenarioWithAgent(entry.file, name, entry.agent)


_RESUME = "--resume"
_NOTHING_LEFT = "nothing is left to run"
_NO_RUN = "no stored run can be resumed"
COUNTS = "counts"
"""Value of `--shard-by` that splits by numbers of conversations, even if a stored run exists."""
_BY_COUNTS = "numbers of conversations"
_NO_TIME = ScenarioResources(conversations=0, talking_s=0.0, judging_s=0.0, cost=0.0)


def resume_run(prepared: Prepared, selection: ScenarioSelection, kind: RunKind) -> Prepared:
    """Return the run with the finished conversations of an earlier one, and notes about what has changed.

    Raises UsageError if the run does not exist or is still in progress.
    """
    from agentest.store.reader import read_finished

    reference, shard = selection.resume, selection.shard
    if reference:
        run: finding.StoredRunFolder | None = _run_named(prepared, reference, kind)
    else:
        run = finding.latest_unfinished(prepared.output_dir, kind, str(shard) if shard else None)
    earlier_part = run.record.part if run and run.record else None
    if earlier_part and shard not in (None, earlier_part.shard):
        raise UsageError(
            f"{_RESUME} {reference}: the run was shard {earlier_part.shard}, not {shard}; "
            "remove --shard, or name the run of that shard"
        )
    if earlier_part:
        prepared = mark_as_shard(prepared, earlier_part.shard, earlier_part.scenarios, earlier_part.split_by)
    elif shard:
        prepared = sharded(prepared, shard, selection.shard_by, kind)
    if run is None or not (run.path / JOURNAL).is_file():
        why = f"run {run.id} ended before its journal began: nothing was lost" if run else _NO_RUN
        note = f"{_RESUME}: {why}, so all run ({len(prepared.plan.units)})"
        return replace(prepared, notes=(*prepared.notes, note))
    prepared = with_fingerprints(prepared)
    earlier = read_finished(run.path / JOURNAL)
    if run.record and run.record.partial and not prepared.is_partial:
        prepared = _only_planned(prepared, earlier)
    if prepared.request.options.conversations is None:
        prepared = replace(prepared, plan=with_units(prepared.plan, lambda unit: _as_planned(unit, earlier)))
    plan = with_units(prepared.plan, lambda unit: replace(unit, finished_part=_finished_part(unit, earlier)))
    finished = {_key(unit): unit.finished_part.numbers for unit in plan.units}
    resumed = ResumedRun(
        id=run.id,
        answers=answers if (answers := run.path / ANSWERS).is_dir() else None,
        conversations=_Conversations(earlier, finished),
        unclaimed=earlier.end.summary.unclaimed_calls if earlier.end else (),
    )
    parts = list(_resumption_notes(prepared, run.id, earlier, plan.units))
    if kind is RunKind.EXPLORE:  # the conversations of changed scenarios have a journal of their own
        parts = [part for part in parts if part != _NOTHING_LEFT]
    notes = (*prepared.notes, f"{_RESUME}: {'; '.join(parts)}")
    return replace(prepared, plan=plan, notes=notes, resumed_run=resumed)


def sharded(prepared: Prepared, shard: Shard, source: str | None, kind: RunKind) -> Prepared:
    """Return the run with only the scenarios of a shard.

    Args:
        source: a run whose durations decide the split, or `counts`. None for the latest complete stored run,
            or `counts` if there is none.

    Raises UsageError if the run does not exist.
    """
    split_by, earlier = _durations(prepared, source, kind)
    costs: dict[str, int] = {}
    for entry in prepared.plan.entries:
        if isinstance(entry, Unit):
            cost = _milliseconds(entry, earlier) if earlier else entry.conversations
            costs[name_of(entry)] = costs.get(name_of(entry), 0) + cost
    numbers = dict(zip(costs, split(list(costs.values()), shard.of), strict=True))
    # Entries that do not run go to the first shard, which always has something to run if any shard has.
    mine = {name for name in map(name_of, prepared.plan.entries) if numbers.get(name, 1) == shard.number}
    return mark_as_shard(prepared, shard, mine, split_by)


def mark_as_shard(prepared: Prepared, shard: Shard, names: Collection[str], split_by: str) -> Prepared:
    """Return the run as a shard that contains the named scenarios."""
    plan = narrow_plan(prepared.plan, lambda entry: name_of(entry) in names)
    part = ShardedRun(
        shard=shard,
        split_by=split_by,
        scenarios={name: at for name, at in _places(prepared.plan).items() if name in names},
        whole=len(_places(prepared.plan)),
        filtered=prepared.is_partial,
        plan=_hash(map(_identity, prepared.plan.entries)),
        made_of=_hash(sorted(unit.fingerprint for unit in with_fingerprints(prepared).plan.units)),
    )
    total = count(len(_places(prepared.plan)), "scenario")
    note = f"--shard {shard}: {len(_places(plan))} of {total}, split by {split_by}"
    if not plan.entries:
        note += "; there is nothing to do in this part"
    return replace(prepared, plan=plan, part=part, narrowed=True, picked=False, notes=(*prepared.notes, note))


def name_of(entry: PlanEntry) -> str:
    """Return the name of a scenario, whether it runs or not."""
    return entry.scenario.name if isinstance(entry, Unit) else entry.name


def _run_named(prepared: Prepared, reference: str, kind: RunKind) -> finding.StoredRunFolder:
    working_dir = prepared.request.here or prepared.request.root
    run = finding.StoredRunFolder(finding.run_file(reference, prepared.output_dir, working_dir).parent)
    if run.under_way:
        raise UsageError(
            f"{_RESUME} {reference}: the run is still in progress; wait for its end, or interrupt it"
        )
    record = run.record
    if record and record.kind != kind:
        is_merged = record.kind is RunKind.MERGE
        did = "was merged of several" if is_merged else f"is one of agentest {record.kind}"
        raise UsageError(f"{_RESUME} {reference}: the run {did}, so agentest {kind} cannot resume it")
    if not (run.path / JOURNAL).is_file():
        folder = path_from(working_dir, run.path)
        raise UsageError(
            f"{_RESUME} {reference}: {folder} has no {JOURNAL}, which lists the finished conversations"
        )
    return run


def _only_planned(prepared: Prepared, earlier: StoredJournal) -> Prepared:
    def is_kept(entry: PlanEntry) -> bool:
        if isinstance(entry, ScenarioResult):
            return entry.verdict.status is not Status.SKIPPED
        return _key(entry) in earlier.planned

    return replace(prepared, plan=narrow_plan(prepared.plan, is_kept), narrowed=True)


def _as_planned(unit: Unit, earlier: StoredJournal) -> Unit:
    if unit.repeat or not _is_same(unit, earlier):
        return unit
    return replace(unit, conversations=max(unit.conversations, earlier.planned[_key(unit)].conversations))


def _finished_part(unit: Unit, earlier: StoredJournal) -> FinishedUnitPart:
    key = _key(unit)
    if not _is_same(unit, earlier):
        return FinishedUnitPart()
    numbers = [number for number in earlier.lines(key) if number <= unit.conversations]
    conversations = earlier.conversations(key, len(numbers))
    result = earlier.scenarios.get(key)
    usage = result.usage if result else earlier.planned[key].usage
    part = FinishedUnitPart(numbers=numbers, conversations=conversations, usage=usage)
    if result is None or not earlier.is_decided(key) or unit.repeat != result.repeat:
        return part
    wanted = result.planned if unit.repeat else unit.conversations
    is_whole = [*earlier.lines(key)] == [*range(1, wanted + 1)]
    result = replace(result, line=unit.scenario.line, conversations=conversations)
    return replace(part, result=result) if is_whole else part


def _is_same(unit: Unit, earlier: StoredJournal) -> bool:
    planned = earlier.planned.get(_key(unit))
    return planned is not None and bool(unit.fingerprint) and unit.fingerprint == planned.fingerprint


def _resumption_notes(
    prepared: Prepared, run: str, earlier: StoredJournal, units: Sequence[Unit]
) -> Iterator[str]:
    parts = earlier.planned
    finished = sum(len(unit.finished_part.conversations) for unit in units)
    planned = sum(each.conversations for each in parts.values())
    yield f"{finished} of {count(planned, 'conversation')} of run {run} kept"
    by_key = {_key(unit): unit for unit in units}
    if changed := [key for key in by_key.keys() & parts.keys() if not _is_same(by_key[key], earlier)]:
        what = f"{count(len(changed), 'scenario')} changed since, or what {_it_is(changed)} made of"
        yield f"{what}: run anew"
    if new := [name for name, agent in by_key if (name, agent) not in parts]:
        yield f"{count(len(new), 'scenario')} it had not: {quoted_names(new)}"
    if left_out := [name for name, agent in parts if (name, agent) not in by_key]:
        why = "not selected now" if prepared.is_partial else "gone"
        yield f"left out, as {_it_is(left_out)} {why}: {quoted_names(left_out)}"
    if units and all(unit.finished_part.result for unit in units):
        yield _NOTHING_LEFT


def _it_is(several: Sequence[object]) -> str:
    return "it is" if len(several) == 1 else "they are"


def _key(unit: Unit) -> Place:
    return unit.scenario.name, unit.agent


@dataclass(frozen=True, slots=True)
class _Conversations:
    """Finished conversations, read from the earlier journal on every iteration to save memory."""

    earlier: StoredJournal
    numbers: Mapping[Place, Sequence[int]]

    def __iter__(self) -> Iterator[ConversationFinished]:
        for key, numbers in self.numbers.items():
            yield from self.earlier.events(key, numbers)


def _durations(prepared: Prepared, source: str | None, kind: RunKind) -> tuple[str, PastRun | None]:
    from agentest.store.runs.past_runs import read_earlier_run

    if source == COUNTS:
        return _BY_COUNTS, None
    if source is None:
        latest = latest_complete_run(prepared.output_dir, kind)
        earlier = read_earlier_run(latest.file) if latest and latest.file else None
        return (f"durations of run {latest.id}", earlier) if latest and earlier else (_BY_COUNTS, None)
    file = run_file(source, prepared.output_dir, prepared.request.here or prepared.request.root)
    earlier = read_earlier_run(file)
    if earlier is None:
        raise UsageError(
            f"--shard-by {source}: {file} has no duration of a conversation; name another run or "
            f"results.json, or split by numbers of conversations: --shard-by {COUNTS}"
        )
    return f"durations of run {earlier.started_at}", earlier


def _milliseconds(unit: Unit, earlier: PastRun) -> int:
    took = earlier.took.get(_key(unit)) or sum(earlier.took.values(), _NO_TIME)
    seconds = (took.talking_s + took.judging_s) / took.conversations
    return round(1000 * seconds * unit.conversations)


def _places(plan: Plan) -> dict[str, int]:
    return {name: at for at, name in enumerate(dict.fromkeys(map(name_of, plan.entries)))}


def _identity(entry: PlanEntry) -> str:
    if isinstance(entry, ScenarioResult):
        return repr((entry.name, entry.agent, entry.file, str(entry.verdict.status)))
    return repr((entry.scenario.name, entry.agent, entry.file, entry.conversations, str(entry.repeat)))


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


_CONFIGURED = ("request_timeout_ms", "custom_metrics", "fail_on_error_severity", "servers")
_OF_ROLES = {"user": ("check",), "judge": ("samples", "batch", "skip_decided", "context")}
_OF_MODELS = ("name", "temperature", "max_tokens", "sampling", "base_url")
_FILE_MODULE_NAME = re.compile(rb"\bagentest_file_(\w+)_[0-9a-f]{10}\b")
"""The generated module name of a file (`importing.module_name`), which depends on the file's path."""


def with_fingerprints(prepared: Prepared) -> Prepared:
    """Return the run with a fingerprint for each unit."""
    files = _FileContents(prepared)
    redact = prepared.loaded.redact
    common = _shared_digest(prepared, files)
    # An agent's settings are long and the same for all of its units.
    agents = {name: redact(canonical(agent)) for name, agent in prepared.plan.agents.items()}

    def marked(unit: Unit) -> Unit:
        scenario = unit.scenario
        custom = sorted({metric.name for metric in prepared.plan.custom} - unit.unmeasured)
        judged = [unit.metrics, custom, unit.thresholds, unit.graders, unit.information, unit.max_turns]
        values = [scenario.name, scenario.session, scenario.plan, scenario.date, unit.slug]
        attached = [each.base64 or each.uri for each in scenario.attachments]
        unit_text = redact(canonical([*values, attached, prepared.unmocked_tools, *judged]))
        parts = (common, unit_text, agents[unit.agent], files.digest(files.of(unit)))
        return replace(unit, fingerprint=_content_hash("\n".join(parts).encode("utf-8", "surrogatepass")))

    return replace(prepared, plan=with_units(prepared.plan, marked))


class _FileContents:
    def __init__(self, prepared: Prepared) -> None:
        self._root = prepared.request.root
        self._digests: dict[Path, str] = {}
        scenarios = {file.resolve() for unit in prepared.plan.units for file in self.of(unit)}
        config = prepared.loaded.path.resolve()
        modules = {file.resolve() for file in prepared.files | imported_files()}
        # A scenario file from which nothing was selected is still a scenario file by name.
        others = modules - scenarios - {config}
        self.modules = {file for file in others if not file.name.endswith(ENDINGS)}

    def of(self, unit: Unit) -> set[Path]:
        """Return the file of a unit, and the file of its rows, or the `test_config.json` of its case."""
        file, data = Path(unit.scenario.file), unit.scenario.data_file
        other = data or (file.with_name("test_config.json") if unit.scenario.case else None)
        return {file, Path(other)} if other else {file}

    def digest(self, files: Collection[Path]) -> str:
        """Return one text for the contents of files, independent of the project's location."""
        for file in files:
            if file not in self._digests:
                try:
                    content = _content_hash(read_user_bytes(self._root / file, most=None))
                except OSError:
                    content = ""
                self._digests[file] = f"{file.name} {content}"
        return "\n".join(sorted(self._digests[file] for file in files))


def _shared_digest(prepared: Prepared, files: _FileContents) -> str:
    config = prepared.loaded.config
    roles = {
        role: [getattr(getattr(config, role), name) for name in names] for role, names in _OF_ROLES.items()
    }
    settings = canonical({name: getattr(config, name) for name in _CONFIGURED} | roles)
    agents = canonical(dict(prepared.plan.agents))
    specs = (prepared.user, prepared.judge, *([prepared.confirm] if prepared.confirm else []))
    models = [spec and [getattr(spec, name) for name in _OF_MODELS] for spec in specs]
    # The code that a Python configuration defines itself is in no other file.
    own_code = prepared.loaded.path.suffix == ".py" and CODE in settings + agents
    code = {*files.modules, *({prepared.loaded.path} if own_code else ())}
    text = "\n".join([__version__, settings, canonical(models), canonical(prepared.model_names)])
    paths = set()
    for agent in prepared.plan.agents.values():
        for holder in (agent, *(value for _, value in agent if hasattr(value, "__dict__"))):
            named = (getattr(holder, name, None) for name in ("openapi", "tools", "instructions_file"))
            paths |= {Path(each) for each in named if isinstance(each, str | Path)}
    return prepared.loaded.redact(text) + files.digest(code) + files.digest(paths)


def _content_hash(content: bytes) -> str:
    return hashlib.sha256(_FILE_MODULE_NAME.sub(rb"\1", content)).hexdigest()[:32]
