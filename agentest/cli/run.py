"""Run a prepared plan: open its folder and its engine, execute with the reporters, return the exit status."""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from agentest.cli.location import RunRecipe
from agentest.cli.run_output import (
    LIVE,
    RunOutput,
    RunVariant,
    open_reporters,
    open_run_output,
    path_for_user,
    selection_hash,
    store_finished,
)
from agentest.config.fields import check_can_be_written
from agentest.domain.events import ReportRequest
from agentest.domain.figures import Forecast, PastRun, PlannedUnit, budget_warning, forecast
from agentest.domain.results import RunResult, Status
from agentest.domain.verdict import run_status
from agentest.runner.agents import shared_ports
from agentest.runner.engines import engine_of
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared
from agentest.store.runs.folder import ANSWERS, RunKind, complete_runs, report_file
from agentest.store.runs.past_runs import find_earlier_run, verdicts_of_selection
from agentest.support.errors import ExitCode
from agentest.support.files import path_from
from agentest.support.interrupts import run_event_loop
from agentest.support.terminal import clean, clean_for_log, tell

if TYPE_CHECKING:
    from agentest.cli.comparison import RunComparison
    from agentest.report.registry import Broadcast
    from agentest.runner.session import RunOutcome, Spending
    from agentest.runner.sources import SourceFactory


def run_once(prepared: Prepared, variant: RunVariant = LIVE) -> ExitCode:
    """Run a prepared plan with its reporters and return the exit status.

    Raises UsageError if nothing could be run.
    """
    from agentest.runner.run import RunMode, execute

    check_can_be_written(prepared.reports)
    prepared = _with_earlier_runs(prepared, variant)
    comparison = open_comparison(prepared, variant)
    with open_run_output(prepared, variant, partial(_note, prepared)) as output:
        provider = engine_of(prepared.request.options)
        prepared = provider.limited(prepared)
        broadcast = _broadcast(prepared, variant, output, comparison)
        spending = known_costs(prepared, variant, output)
        for text in prepared.notes:
            _note(prepared, text)
        last_words = partial(_last_words, prepared, output, variant)
        source = _source(prepared, variant, output)
        recipe = variant.recipe or RunRecipe(prepared.request)
        gc.freeze()  # modules and classes live until the process exits
        with (
            shared_ports(prepared) as known,  # opened before the workers fork, which use the ports too
            variant.exploration.open(known, output)
            if variant.exploration
            else provider.open(known, recipe, earlier=variant.earlier) as engine,
        ):
            # The scenario's report contains its transcripts.
            shown = prepared.request.reports.shows_conversations or variant.exploration is not None
            mode = RunMode(source, engine, shown, spending, last_words=last_words, show=broadcast.show)
            outcome = run_event_loop(execute, known, broadcast, mode)
        return _end(outcome, prepared, variant, output, broadcast, comparison)


def _with_earlier_runs(prepared: Prepared, variant: RunVariant) -> Prepared:
    if variant.resumed_by and prepared.resumed_run is None:
        from agentest.cli.rerun_selection import with_fingerprints

        prepared = with_fingerprints(prepared)
    if variant.name not in _AGENT_KINDS or prepared.earlier is not None:
        return prepared
    earlier = verdicts_of_selection(prepared.output_dir, variant.name, selection_hash(prepared, variant))
    return replace(prepared, earlier=earlier)


def _end(
    outcome: RunOutcome,
    prepared: Prepared,
    variant: RunVariant,
    output: RunOutput | None,
    broadcast: Broadcast,
    comparison: RunComparison | None,
) -> ExitCode:
    written = [report for report in prepared.reports if report.name not in broadcast.failed]
    missing = list(comparison.store(output)) if comparison and output else []
    unwritten = broadcast.unwritten
    missing += output.end(outcome.result, written, unwritten) if output else unwritten
    files = files_of(written, output, prepared)
    for text in (*outcome.notes, *missing, *in_a_line(outcome.result, broadcast, files)):
        _note(prepared, text)
    decide = variant.exploration.exit_code if variant.exploration else exit_code
    code = status(outcome, prepared, broadcast, decide, complete=not missing)
    if comparison is None:
        return code
    if comparison.comparisons and not broadcast.has("shows_comparison"):
        _note(prepared, f"compared: {comparison.in_a_line()}")
    return comparison.exit_code(code)


def _broadcast(
    prepared: Prepared, variant: RunVariant, output: RunOutput | None, comparison: RunComparison | None
) -> Broadcast:
    from agentest.report.registry import Broadcast, NotesReporter, ReporterContext

    request = prepared.request
    context = ReporterContext(
        root=request.root,
        folder=prepared.output_dir,
        environ=os.environ,
        verbosity=request.reports.verbosity,
        detailed=request.reports.detailed,
        next_step=prepared.loaded.redact(command_for(prepared, variant, "--resume")),
        rerun=prepared.loaded.redact(command_for(prepared, variant, "--last-failed")),
        forecast=forecast_of(prepared, variant.name),
        compared=comparison,
    )
    reporters = open_reporters(prepared.reports, context, output)
    if comparison and output:
        comparison.label = output.folder.id
    if comparison:
        reporters = comparison.around(reporters, prepared)
    return Broadcast([*reporters, NotesReporter()], partial(_note, prepared))


def command_for(prepared: Prepared, variant: RunVariant, what: Literal["--resume", "--last-failed"]) -> str:
    """Return the command that runs the rest, or what failed, in the user's folder; "" if there is none."""
    request, is_rerun = prepared.request, what == "--last-failed"
    words = shlex.split(variant.resumed_by)
    if not words or (is_rerun and variant.exploration):  # each finding has its own command
        return ""
    here = request.here or request.root
    if request.config:
        words.append(f"--config={path_from(here, request.config)}")
    if here != request.root:
        words.append(f"--cwd={path_from(here, request.root)}")
    if words[:2] == ["agentest", "run"]:
        words += _rerun_options(request.options)
    return shlex.join(what if word == "--resume" else word for word in words)


def _rerun_options(options: Options) -> Iterator[str]:
    """Yield the given options that change how scenarios run; those that select scenarios do not matter."""
    names = [
        "agent",
        "conversations",
        "repeat",
        "concurrency",
        "model",
        "engine",
        "workers",
        "unmocked_tools",
        "cassettes",
    ]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    yield from (f"--{name.replace('_', '-')}={value}" for name, value in given.items())
    flags = {
        "offline": options.offline,
        "no-cache": not options.cache,
        options.tape: options.tape is not None,
    }
    flags |= {"strict": options.strict is True, "no-strict": options.strict is False}
    yield from (f"--{name}" for name, is_given in flags.items() if is_given)


def _source(prepared: Prepared, variant: RunVariant, output: RunOutput | None) -> SourceFactory:
    if (
        variant.exploration is None
        and prepared.resumed_run
        and all(unit.finished_part.is_all(unit.conversations) for unit in prepared.plan.units)
    ):
        from agentest.runner.sources import EarlierRun

        return EarlierRun({})
    return variant.source(output)


def _note(prepared: Prepared, note: str) -> None:
    tell(f"agentest: {prepared.loaded.redact(note)}")


STATUSES = {Status.PASSED: ExitCode.PASSED, Status.FAILED: ExitCode.FAILED, Status.ERRORED: ExitCode.ERRORED}


def status(
    outcome: RunOutcome,
    prepared: Prepared,
    broadcast: Broadcast,
    decide: Callable[[RunResult], ExitCode],
    *,
    complete: bool,
) -> ExitCode:
    """Return the exit status of a run that may be interrupted or lack a requested report."""
    if outcome.result is None or outcome.interrupted:
        return ExitCode.INTERRUPTED
    code = decide(outcome.result)
    # The user did not request the journal, so a run without it is still complete.
    lacks_report = any(map(report_file, prepared.reporters)) and not complete
    incomplete = broadcast.failed & prepared.reporters or outcome.incomplete or lacks_report
    return ExitCode.ERRORED if code is ExitCode.PASSED and incomplete else code


def files_of(reports: Iterable[ReportRequest], output: RunOutput | None, prepared: Prepared) -> list[str]:
    """Return the paths of the written reports; files in the run folder are shown by their fixed names."""
    in_folder = ((each.path, report_file(each.name)) for each in reports)
    files = (path or (output.folder.visible(name) if output and name else None) for path, name in in_folder)
    return [path_for_user(file, prepared) for file in files if file]


def in_a_line(result: RunResult | None, broadcast: Broadcast, written: Sequence[str]) -> Iterator[str]:
    """Yield the outcome in one line, unless a reporter has printed it to the console."""
    if result is None:
        yield "interrupted before the first conversation"
        return
    skipped = len(result.with_status(Status.SKIPPED))
    if skipped and skipped == len(result.scenarios):
        which = "the only scenario is" if skipped == 1 else f"all {skipped} scenarios are"
        yield f"nothing ran: {which} skipped"
    if not broadcast.has("prints_outcome"):
        counts = [(sum(s.verdict.status is each for s in result.finished), str(each)) for each in Status]
        counts.append((len(result.unfinished), "unfinished"))
        summary = ", ".join(f"{count} {status}" for count, status in counts if count) or "no scenarios"
        where = f"; {', '.join(written)}" if written else ""
        yield f"{'interrupted' if result.interrupted else run_status(result)}: {summary}{where}"
        yield from (warning.message for warning in (*result.unclaimed, *result.unanswered))


def _last_words(prepared: Prepared, output: RunOutput | None, variant: RunVariant) -> str:
    text = store_finished(prepared, output, variant)
    return text and clean_for_log(clean(prepared.loaded.redact(f"agentest: {text}"))) + "\n"


def exit_code(result: RunResult) -> ExitCode:
    """Return the exit status for the verdict of a run."""
    return ExitCode.INTERRUPTED if result.interrupted else STATUSES[run_status(result)]


def open_comparison(prepared: Prepared, variant: RunVariant) -> RunComparison | None:
    """Return the comparison with the baseline, or of the agents with each other; None if neither applies.

    Raises UsageError.
    """
    reports, config = prepared.request.reports, prepared.loaded.config
    judged = variant.name is RunKind.JUDGE  # any difference would come from the judge
    wanted = bool(reports.baseline or config.baseline or reports.fail_on_regression) and not judged
    if not prepared.plan.entries or not (wanted or prepared.plan.comparison):
        return None
    from agentest.cli.comparison import RunComparison, read_baseline

    fails = (reports.fail_on_regression or config.fail_on_regression) and not judged
    baseline = read_baseline(prepared) if wanted else None
    return RunComparison(baseline, partial=prepared.is_partial, fails=fails)


_AGENT_KINDS = (RunKind.RUN, RunKind.EVAL)


def comparable_run(prepared: Prepared, kind: RunKind) -> PastRun | None:
    """Return the durations and costs of a comparable earlier run; None if there is none.

    A run is comparable if it is complete, of the same kind, and used models if this one does.
    """
    if kind not in _AGENT_KINDS:
        return None
    places = {(unit.scenario.name, unit.agent) for unit in prepared.plan.units}
    offline = not any(prepared.model_names.values())
    return find_earlier_run(complete_runs(prepared.output_dir, kind), places, offline=offline)


def forecast_of(prepared: Prepared, kind: RunKind) -> Forecast | None:
    """Predict the run from the last comparable one; None if there is none."""
    earlier = comparable_run(prepared, kind)
    if earlier is None:
        return None
    parallel = prepared.loaded.config.parallel
    planned = [
        PlannedUnit(
            name=unit.scenario.name,
            agent=unit.agent,
            conversations=unit.conversations - len(unit.finished_part.conversations),
            in_turn=not unit.is_parallel(parallel),
            queue=unit.traits.queue,
        )
        for unit in prepared.plan.remaining
    ]
    config, names = prepared.loaded.config, prepared.model_names
    roles = (names["user"], config.user), (names["judge"], config.judge)
    limits = [(name, role.requests_per_minute, role.tokens_per_minute) for name, role in roles]
    return forecast(planned, earlier, prepared.concurrency, prepared.model_names, limits)


def known_costs(prepared: Prepared, variant: RunVariant, output: RunOutput | None) -> Spending:
    """Return the known costs of conversations, and add a note if the forecast exceeds the budget."""
    from agentest.runner.session import Spending

    options = prepared.request.options
    if prepared.tape_mode != "keep" and not options.has_budget:
        return Spending()
    predicted = None if options.tape == "replay" else forecast_of(prepared, variant.name)
    if over := predicted and budget_warning(
        predicted, options.max_llm_calls, options.max_cost, variant.resumed_by
    ):
        _note(prepared, over + "; stored responses need no call, so more may finish" * prepared.uses_cache)
    earlier = comparable_run(prepared, variant.name)
    took = earlier.took if earlier else {}
    if earlier and dict(earlier.models) != prepared.model_names:
        took = {place: replace(each, cost=None) for place, each in took.items()}
    return Spending(
        took=took,
        answers=output.folder.path / ANSWERS if output and variant.resumed_by else None,
        earlier_answers=prepared.resumed_run.answers if prepared.resumed_run else None,
        resumed_by=variant.resumed_by,
    )
