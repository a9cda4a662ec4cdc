"""Lines for `--list` and `--dry-run`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from agentest.cli.run import forecast_of
from agentest.domain.figures import format_forecast
from agentest.domain.results import ScenarioResult, Status
from agentest.judging.grader import Grader
from agentest.runner.plan import Unit, map_units
from agentest.runner.prepare import Prepared
from agentest.store.runs.folder import RunKind
from agentest.support.errors import ExitCode
from agentest.support.terminal import clean, say, tell, tell_notes
from agentest.support.text import about


def show_plan(prepared: Prepared, *, list_only: bool) -> ExitCode:
    """Print what would run (`--list`), or what it would take (`--dry-run`), and return the exit status."""
    tell_notes(prepared.notes)
    for line in listing(prepared) if list_only else dry_run(prepared):
        say(line)
    return report_load_errors(broken(prepared))


def report_load_errors(problems: Sequence[ScenarioResult]) -> ExitCode:
    """Print the files and scenarios that could not be loaded, and return the exit status."""
    for entry in problems:
        message = entry.verdict.reasons[0].message
        tell(message if message.startswith(f"{entry.file}:") else f"{entry.file}:{entry.line}: {message}")
    return ExitCode.ERRORED if problems else ExitCode.PASSED


def dry_run(prepared: Prepared) -> Iterator[str]:
    """Yield the maximum number of model calls per scenario, and the expected duration and cost."""
    from agentest.runner.run_budget import estimate_of, format_estimates

    if not prepared.user and not prepared.judge:
        yield "offline: no model is configured, so none is called"
    left = [replace(unit, conversations=_conversations_left(unit)) for unit in prepared.plan.remaining]
    estimates = estimate_of(prepared, left)
    yield from map(clean, format_estimates(estimates, len(prepared.plan.agents) > 1))
    yield from map(clean, forecast_lines(prepared, sum(each.total for each in estimates)))


def listing(prepared: Prepared) -> Iterator[str]:
    """Yield a line for each scenario, whether it would run or be skipped.

    The first case of an evaluation set is preceded by the criteria and rubrics of its file.
    """
    file, units = None, iter(prepared.plan.units)  # in the order in which they run
    for entry in map_units(prepared.plan.entries, lambda _: next(units)):
        if isinstance(entry, Unit):
            scenario = entry.scenario
            kind = "attack" if scenario.attack else "scripted" if scenario.scripted else "simulated"
            tags = f"  [{', '.join(scenario.tags)}]" if scenario.tags else ""
            agent = f"  {entry.agent}" if len(prepared.plan.agents) > 1 else ""
            if scenario.case and file != entry.file:
                file = entry.file
                yield clean(f"{file}: {_criteria(prepared, file)}")
                cases = (unit for unit in prepared.plan.units if unit.file == file)
                yield from (
                    f"  {clean(row)}" for row in rubric_lines(g for unit in cases for g in unit.graders)
                )
            yield clean(
                f"{entry.file}:{scenario.line}  {scenario.name}{agent}  {kind} × {_run_count(entry)}{tags}"
            )
        elif entry.verdict.status is Status.SKIPPED:
            why = entry.verdict.reasons[0].message
            yield clean(f"{entry.file}:{entry.line}  {entry.name}  skipped: {why}")


def rubric_lines(graders: Iterable[Grader]) -> Iterator[str]:
    """Yield the rubrics of these graders, grouped by the metrics that share them."""
    metrics: dict[tuple[str, ...], dict[str, None]] = {}
    for grader in graders:
        if grader.rubrics:
            metrics.setdefault(grader.rubrics, {})[grader.name] = None
    for rubrics, names in metrics.items():
        yield f"rubrics of {', '.join(names)}"
        yield from (f"  {rubric}" for rubric in rubrics)


def broken(prepared: Prepared) -> list[ScenarioResult]:
    """Return the files and scenarios that could not be loaded."""
    return [
        entry
        for entry in prepared.plan.entries
        if isinstance(entry, ScenarioResult) and entry.verdict.status is Status.ERRORED
    ]


def _conversations_left(unit: Unit) -> int:
    return 0 if unit.finished_part.result else unit.conversations - len(unit.finished_part.conversations)


def _run_count(unit: Unit) -> str:
    left = _conversations_left(unit)
    if left == unit.conversations:
        return str(unit.repeat or left)
    return f"{left}, {unit.conversations - left} kept"


def _criteria(prepared: Prepared, file: str) -> str:
    unit_graders = [
        (unit, grader) for unit in prepared.plan.units if unit.file == file for grader in unit.graders
    ]
    least = {grader.name: unit.thresholds.get(grader.name) for unit, grader in unit_graders}
    texts = (name + (" (information)" if value is None else f" ≥ {value:g}") for name, value in least.items())
    return "held to " + ", ".join(texts)


def forecast_lines(prepared: Prepared, most_calls: int) -> Iterator[str]:
    """Yield the expected duration and cost as lines."""
    evaluated = any(unit.scenario.case for unit in prepared.plan.units)
    forecast = forecast_of(prepared, RunKind.EVAL if evaluated else RunKind.RUN)
    if forecast:
        yield f"expected: {format_forecast(forecast, datetime.now().astimezone())}"
        return
    roles = prepared.loaded.config.user, prepared.loaded.config.judge
    rate = min((each.requests_per_minute for each in roles if each.requests_per_minute), default=0)
    if most_calls and rate:
        most = f"at most {about(60 * most_calls / rate)} for the model calls"
        yield f"expected: rate-bound: {most}, at {rate:,} requests a minute"
    else:
        yield "expected: the duration is unknown, because no run is stored yet"
    if most_calls:
        yield f"cost: unknown, because the number of tokens of at most {most_calls:,} calls is unknown"
        yield from _prices(prepared)


def _prices(prepared: Prepared) -> Iterator[str]:
    from agentest.models.budget import price_of

    for name in dict.fromkeys(filter(None, prepared.model_names.values())):
        price = price_of(name)
        if price is None:
            yield f"  {name}: its price is unknown"
        else:
            prompt, cached, completion = (
                f"{each * 1e6:g}" for each in (price.prompt, price.cached, price.completion)
            )
            yield (
                f"  {name}: {prompt} USD a million prompt tokens, {cached} cached, {completion} completion"
            )
