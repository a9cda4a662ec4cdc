"""Run an exploration: the parts it consists of, and its exit status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.cli.location import request_of
from agentest.cli.run import run_once
from agentest.cli.run_output import RunOutput, RunVariant
from agentest.config.config import ExploreSettings
from agentest.domain.reasons import conversation_passed
from agentest.domain.results import RunResult, ScenarioResult, Severity, Status
from agentest.domain.results.exploration import Explored, ExploredPart, NotTried
from agentest.plugins.explore.claims import ClaimJudge
from agentest.plugins.explore.corpus import Corpus, CoverageCounter
from agentest.plugins.explore.engine import EXPLORE_JOURNAL, ExploreEngine, TryJournal
from agentest.plugins.explore.exploration import (
    SEARCHED,
    ConversationBudget,
    Exploration,
    Limits,
)
from agentest.plugins.explore.fault_sweep import FaultSweep
from agentest.plugins.explore.injection_sweep import NOTHING_TO_ATTACK, AttackSweep, InjectionSweep
from agentest.plugins.explore.invariants import ScenarioInvariants
from agentest.plugins.explore.model import Base, Converse, Vary
from agentest.plugins.explore.mutation_sweep import MutationSweep
from agentest.plugins.explore.options import ExploreOptions, names_in
from agentest.plugins.explore.reduction import ReductionTrial
from agentest.plugins.explore.saving import (
    FoundScenarios,
    SavedFinding,
    find_saved,
    findings_of_saved,
    saved_findings,
)
from agentest.plugins.explore.search import ordered
from agentest.runner.plan import Unit, narrow_plan, with_units
from agentest.runner.prepare import Prepared, prepare
from agentest.store.journal import RetryingLineFile
from agentest.store.runs.folder import RUNS, RunKind, StoredRunFolder
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import shown_path
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.terminal import clean, say, tell
from agentest.support.text import count, quoted_names

if TYPE_CHECKING:
    from agentest.cli.location import Project
    from agentest.cli.rerun_selection import ScenarioSelection
    from agentest.domain.events import ReportOptions
    from agentest.runner.engines import Engine
    from agentest.runner.executor import UnitResults
    from agentest.runner.plan import Options
    from agentest.runner.session import RunSession, UnitConnections

BASE_CONVERSATIONS = 3  # conversations of each unchanged scenario, all of which must pass
_TABLE_ROWS = 40


SWEEPS: Mapping[ExploredPart, type[FaultSweep | InjectionSweep | MutationSweep | AttackSweep]] = {
    ExploredPart.FAULTS: FaultSweep,
    ExploredPart.INJECTIONS: InjectionSweep,
    ExploredPart.MUTATIONS: MutationSweep,
    ExploredPart.ATTACKS: AttackSweep,
}


def parts_of(options: ExploreOptions, settings: ExploreSettings) -> Mapping[ExploredPart, Vary]:
    """Return the parts of an exploration."""
    chosen = options.chosen_parts(settings)
    return {
        part: sweep(names_in(options.only.get(part)) or ())
        for part, sweep in SWEEPS.items()
        if part in chosen
    }


@dataclass(slots=True, eq=False)
class ExplorationRun:
    """One exploration, from its start to its exit status."""

    options: ExploreOptions
    settings: ExploreSettings
    limits: Limits
    root: Path
    known: Mapping[str, SavedFinding] = field(default_factory=dict)
    """The findings that were saved before, by identifier."""
    saved: frozenset[str] = frozenset()  # the scopes of their scenarios, which run and are not explored
    left_out: tuple[NotTried, ...] = ()  # scenarios that are not explored
    total: int = 0
    _exploration: Exploration | None = None
    _bases: int = 0
    _run_id: str = ""
    _notes: list[NotTried] = field(default_factory=list)

    @contextmanager
    def open(self, prepared: Prepared, output: RunOutput | None) -> Iterator[Engine]:
        """Open the engine, and the journal of the exploration in the folder of the run."""
        resumed, earlier, more = prepared.resumed_run, None, 0
        if resumed is not None:
            earlier = prepared.output_dir / RUNS / resumed.id / EXPLORE_JOURNAL
        self._run_id = output.folder.path.name if output else ""
        path = output.folder.path / EXPLORE_JOURNAL if output else None
        file = RetryingLineFile(path, lambda text: tell(f"agentest: {text}")) if path else None
        journal = TryJournal(file, earlier)
        record = StoredRunFolder(earlier.parent).record if earlier else None
        if record and record.ended and not record.ended.interrupted:
            finished = sum(len(unit.finished_part.conversations) for unit in prepared.plan.units)
            more = journal.size + finished
        budget = ConversationBudget(self.total + more, limits=self.limits)
        try:
            yield ExploreEngine(partial(self._explore, budget, journal), self.explored)
        finally:
            if file:
                file.close()

    def explored(self) -> Explored:
        """Return what was tried and found so far."""
        explored = self._exploration.explored() if self._exploration else Explored()
        return replace(
            explored,
            not_tried=(*self.left_out, *self._notes, *explored.not_tried),
            fail_on=Severity.of(self.options.fail_on),
        )

    def exit_code(self, result: RunResult) -> ExitCode:
        """Return the exit status: 1 with findings at or above `--fail-on`, 2 if nothing was explored."""
        if result.interrupted:
            return ExitCode.INTERRUPTED
        if not self._bases or result.real_tool_ran or result.explored is None:
            return ExitCode.ERRORED
        return ExitCode.FAILED if result.explored.fails else ExitCode.PASSED

    async def _explore(
        self,
        budget: ConversationBudget,
        journal: TryJournal,
        session: RunSession,
        finished: UnitResults,
        converse: Converse,
        connections: UnitConnections,
    ) -> None:
        plan, judge = session.prepared.plan, connections.models.judge
        results = {
            unit.scope: result
            for unit in plan.units
            if (result := finished.results.get(unit.scope) or unit.finished_part.result)
        }
        units = [each for each in plan.units if each.scope not in self.saved]
        bases, self._notes = bases_of(units, results, self.settings)
        parts = parts_of(self.options, self.settings)
        self._bases = len(bases)
        self._notes += guesses(bases)
        attacks = parts.get(ExploredPart.ATTACKS)
        idle = (each.unit.scenario.name for each in bases if attacks and not any(attacks(each)))
        self._notes += [NotTried(f"attacks on {name}", NOTHING_TO_ATTACK) for name in idle]
        corpus = Corpus(self.root / self.settings.corpus)
        resumed = session.prepared.resumed_run
        found = FoundScenarios(self.root, self.settings, seed=self.options.seed)
        budget.begin(sum(len(each.conversations) for each in results.values()), connections.ledger.total)
        answers: dict[tuple[str, int | str], bool | None] = {}

        exploration = self._exploration = Exploration(
            parts=parts,
            invariants=ScenarioInvariants(self.settings, judged=answers if judge else None),
            reduce=partial(
                ReductionTrial,
                self.settings,
                0 if self.options.no_shrink else self.settings.shrink.conversations,
            ),
            save=None if self.options.no_save else found,
            budget=budget,
            coverage=CoverageCounter(self.settings.switched_off),
            seed=self.options.seed,
            confirm=self.settings.confirm,
            known={name: shown_path(each.path, self.root) for name, each in self.known.items()},
            saved=findings_of_saved(self.known, results.values(), self.root),
            entries=corpus.read(except_of=resumed.id if resumed else None),
            keep=lambda entry: corpus.add(replace(entry, run=self._run_id)),
            emit=session.emit,
        )
        converse = journal.around(converse)
        if judge:
            known = {each.unit.scope: each for each in bases}
            converse = ClaimJudge(judge, known, answers).around(converse)
        try:
            await exploration.run(bases, lambda unit: partial(converse, unit))
        finally:
            self._notes += (*found.not_saved, *corpus.problems)


def bases_of(
    units: Sequence[Unit], results: Mapping[str, ScenarioResult], settings: ExploreSettings
) -> tuple[list[Base], list[NotTried]]:
    """Return the scenarios to explore, and those that do not pass as they are."""
    bases: list[Base] = []
    not_tried = []
    for unit in units:
        result = results.get(unit.scope)
        if result is None:
            not_tried.append(NotTried(unit.scenario.name, "it did not run to its end"))
            continue
        passed = sum(map(conversation_passed, result.conversations))
        if result.verdict.status is Status.PASSED and passed == len(result.conversations) > 0:
            bases.append(Base(unit, result.conversations, settings, bases))
            if unit.traits.blind:
                not_tried.append(NotTried(f"calls of {unit.scenario.name}", unit.traits.blind))
            continue
        why = f"it passes in {passed} of {len(result.conversations)} conversations as it is"
        reasons = [reason.message.partition("\n")[0] for reason in result.verdict.reasons]
        not_tried.append(NotTried(unit.scenario.name, f"{why}: {reasons[0]}" if reasons else why))
    return bases, not_tried


def guesses(bases: Sequence[Base]) -> list[NotTried]:
    """Return notes about tools whose effects only their names show, and whose schemas cannot be used."""
    guessed = dict.fromkeys(each for base in bases for each in base.effects.guessed(base.scenario.tools))
    unusable = dict.fromkeys(each for base in bases for each in base.effects.unusable_schemas())
    notes = []
    if guessed:
        why = "guessed from their names; name the tools that change something in `explore.writes`"
        notes.append(NotTried(f"effects of {quoted_names(guessed)}", why))
    if unusable:
        why = "the JSON Schemas of the arguments are not valid; correct them in the agent's `tools`"
        notes.append(NotTried(f"arguments of {quoted_names(unusable)}", why))
    return notes


def explore_scenarios(prepared: Prepared, options: ExploreOptions) -> tuple[Prepared, ExplorationRun]:
    """Return the run of the unchanged scenarios, and what explores after it.

    Raises UsageError if no scenario can be explored.
    """
    settings = prepared.loaded.config.explore
    if "attacks" in options.chosen_parts(settings) and not all(
        prepared.model_names.get(role) for role in ("user", "judge")
    ):
        raise UsageError(
            "the part `attacks` needs a model that attacks and one that judges: configure `model`, or name "
            "one with --model"
        )
    total = settings.conversations if options.most is None else options.most
    wanted = prepared.request.options
    known = saved_findings(prepared.request.root, settings)
    files = {each.path.resolve() for each in known.values()}
    saved = frozenset(
        unit.scope for unit in prepared.plan.units if Path(unit.scenario.file).resolve() in files
    )
    chosen, left_out = _choose(prepared.plan.units, saved, total)
    if chosen <= saved:
        why = f": {left_out[0].what}: {left_out[0].why}" if left_out else ""
        raise UsageError(f"no scenario can be explored{why}")
    plan = narrow_plan(prepared.plan, lambda entry: isinstance(entry, Unit) and entry.scope in chosen)
    plan = with_units(plan, lambda unit: _as_saved(unit) if unit.scope in saved else unit)
    return replace(prepared, plan=plan), ExplorationRun(
        options=options,
        settings=settings,
        limits=Limits(minutes=options.minutes, calls=wanted.max_llm_calls, cost=wanted.max_cost),
        root=prepared.request.root,
        known=known,
        saved=saved,
        left_out=tuple(left_out),
        total=total,
    )


def _choose(units: Iterable[Unit], saved: Collection[str], total: int) -> tuple[set[str], list[NotTried]]:
    chosen: set[str] = set()
    left_out: list[NotTried] = []
    needed = 0
    for unit in sorted(units, key=lambda each: each.scope in saved):
        if unit.scope in saved:
            needed += _as_saved(unit).conversations
            if needed <= total:
                chosen.add(unit.scope)
            continue
        exclusions = unit.scenario.explore
        if exclusions and exclusions.everything:
            left_out.append(NotTried(unit.scenario.name, exclusions.reason))
        elif unit.scenario.attack:
            left_out.append(NotTried(unit.scenario.name, "its user attacks already"))
        elif needed + unit.conversations > total:
            why = f"{count(total, 'conversation')} suffice for {count(len(chosen), 'scenario')}"
            left_out.append(NotTried(unit.scenario.name, why))
        else:
            chosen.add(unit.scope)
            needed += unit.conversations
    return chosen, left_out


def _as_saved(unit: Unit) -> Unit:
    return replace(unit, conversations=unit.scenario.conversations_per_scenario or 1)


def dry_run_lines(prepared: Prepared, options: ExploreOptions) -> Iterator[str]:
    """Yield what would be tried, as far as it is known before the first conversation, and its price."""
    settings = prepared.loaded.config.explore
    prepared, exploration = explore_scenarios(prepared, options)
    total = exploration.total
    parts = parts_of(options, settings)
    bases = (Base(unit, (), settings) for unit in prepared.plan.units if unit.scope not in exploration.saved)
    variations = [(base, each) for base in bases for vary in parts.values() for each in vary(base)]
    base = sum(unit.conversations for unit in prepared.plan.units)
    scenarios = count(len(prepared.plan.units), "scenario")
    yield f"{scenarios}, {count(base, 'conversation')} to see that they pass"
    counts = Counter(each.part for _, each in variations)
    tries = ", ".join(f"{counts[part]:,} {part}" for part in parts)
    yield f"variations known so far: {tries}; more once calls and answers are known"
    yield f"at most {count(total, 'conversation')} in all; what they find is confirmed after {SEARCHED:.0%}"
    if any(prepared.model_names.values()):
        from agentest.runner.run_budget import estimate_of

        most = max(each.total / BASE_CONVERSATIONS for each in estimate_of(prepared, prepared.plan.units))
        attacks = (each.scenario.attack for _, each in variations if each.scenario.attack)
        most = max([most, *(2 * each.most_messages for each in attacks)])
        yield f"at most {round(most * total):,} model calls"
    else:
        yield "no model is configured, so none is called"
    in_order = ordered(variations, options.seed)
    for unit_base, each in in_order[:_TABLE_ROWS]:
        yield f"  {unit_base.unit.scenario.name}: {each.name}"
    if len(in_order) > _TABLE_ROWS:
        yield f"  … and {len(in_order) - _TABLE_ROWS:,} more"
    for left_out in exploration.left_out:
        yield f"not tried: {left_out.what}: {left_out.why}"


def explore_project(
    project: Project,
    options: Options,
    reports: ReportOptions,
    selection: ScenarioSelection,
    exploring: ExploreOptions,
    targets: tuple[str, ...],
) -> ExitCode:
    """Explore the scenarios of a project, or run one finding again. Returns the exit status."""
    if exploring.finding is not None:
        config = project.settings("findings are looked for in the usual folder")
        settings = config.explore if config else ExploreSettings()
        file = find_saved(exploring.finding, project.here, project.root, settings).path
        return run_once(prepare(request_of(project, options, reports, (str(file),))))
    options = replace(options, conversations=BASE_CONVERSATIONS)
    prepared = prepare(request_of(project, options, reports, targets, offline=False))
    if options.dry_run:
        for text in prepared.notes:
            tell(f"agentest: {text}")
        for line in dry_run_lines(prepared, exploring):
            say(clean(line))
        return ExitCode.PASSED
    prepared, exploration = explore_scenarios(prepared, exploring)
    variant = RunVariant(RunKind.EXPLORE, resumed_by="agentest explore --resume", exploration=exploration)
    return run_once(selection(prepared, RunKind.EXPLORE), variant)
