"""Two kept runs, or the agents of one, read and compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentest.cli.named_runs import run_at, runs_folder
from agentest.config.file import find, load
from agentest.history.comparison.as_json import as_json
from agentest.history.comparison.comparing import compared
from agentest.history.comparison.markdown import as_markdown
from agentest.history.comparison.measured import MeasuredRun, measured_run, measured_scenario
from agentest.history.comparison.pairing import of_agent
from agentest.history.comparison.show import print_text
from agentest.history.comparison.values import Comparison
from agentest.report.console.reporter import open_console
from agentest.runner.place import Place
from agentest.store.reading import read_results
from agentest.store.run_results import run_of
from agentest.store.runs.finding import KeptRun, kept_runs
from agentest.store.runs.record import RunKind, read_record
from agentest.support.errors import ConfigError, ExitCode, UsageError
from agentest.support.files import write_atomically
from agentest.support.terminal import Output, clean_rows, source, tell

Form = Literal["console", "json", "markdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be compared, and what becomes of it."""

    base: str | None = None
    new: str | None = None
    config: Path | None = None
    agents: bool = False
    form: Form = "console"
    output: Path | None = None
    fail_on_regression: bool = False


def compare_runs(wish: Wish, place: Place) -> ExitCode:
    """Compare, tell, and say whether something regressed. Raises UsageError."""
    comparisons = _of_agents(wish, place) if wish.agents else [_of_runs(wish, place)]
    _tell(comparisons, wish, place)
    regressed = any(comparison.regressed for comparison in comparisons)
    if regressed and (wish.fail_on_regression or _configured(wish, place)):
        tell("agentest: something regressed")
        return ExitCode.FAILED
    return ExitCode.PASSED


def read_run(path: Path, label: str) -> MeasuredRun:
    """A stored run in numbers. Raises UsageError where the file is not what Agentest writes."""
    result = run_of(read_results(path))
    record = read_record(path.parent)
    partial = record is not None and record.partial
    return measured_run(result, label, map(measured_scenario, result.scenarios), partial=partial)


def label_of(path: Path, place: Place) -> str:
    """What the user knows a file of results by: the id of a kept run, or its path."""
    kept = path.parent.parent.name == "runs" and KeptRun(path.parent).record is not None
    return path.parent.name if kept else place.shown(path)


def between_agents(run: MeasuredRun) -> list[Comparison]:
    """Each agent of a run against the first. Raises UsageError where they have no scenario in common."""
    first, *others = (of_agent(run, agent) for agent in run.agents)
    return [compared(first, other) for other in others]


def _of_runs(wish: Wish, place: Place) -> Comparison:
    base, new = _files(wish, place)
    before = read_run(base, label_of(base, place))
    if base.resolve() == new.resolve():
        raise UsageError(
            f"both are the same run: {label_of(base, place)}; name two, or none for the latest two "
            "(`agentest runs` lists them)"
        )
    return compared(before, read_run(new, label_of(new, place)))


def _of_agents(wish: Wish, place: Place) -> list[Comparison]:
    if wish.new:
        raise UsageError("--agents compares the agents of one run: leave NEW out")
    path = run_at(wish.base or "latest", place, wish.config)
    run = read_run(path, label_of(path, place))
    if len(run.agents) < 2:
        raise UsageError(
            f"--agents: {run.label} has one agent, {run.agents[0] if run.agents else 'none'}; a run of "
            "several has `compare` in its configuration"
        )
    return between_agents(run)


def _files(wish: Wish, place: Place) -> tuple[Path, Path]:
    if wish.base:
        new = run_at(wish.new or "latest", place, wish.config)
        return run_at(wish.base, place, wish.config), new
    folder = runs_folder(place, wish.config)
    runs = list(_latest_alike(folder))
    if len(runs) < 2:
        held = "one run is" if runs else "no run is"
        raise UsageError(
            f"{held} kept in {place.shown(folder)}, and two are compared: run again, or name files"
        )
    latest, *earlier = runs
    # In a part there is little to compare with.
    base = next((run for run in earlier if not _is_part(run)), earlier[0])
    return _file(base), _file(latest)


def _is_part(run: KeptRun) -> bool:
    return run.record is not None and run.record.partial


def _file(run: KeptRun) -> Path:
    assert run.file
    return run.file


def _latest_alike(folder: Path) -> Iterator[KeptRun]:
    """The latest run in which agents were talked to, and those before it of the same command."""
    wanted = None
    for run in reversed(kept_runs(folder)):
        record = None if run.under_way else run.record
        if run.file is None or record is None or record.kind is RunKind.JUDGE:
            continue
        cases = record.kind is RunKind.EVAL
        wanted = cases if wanted is None else wanted
        if cases is wanted:
            yield run


def _configured(wish: Wish, place: Place) -> bool:
    """Whether the configuration says that a regression is a failure. It need not be complete to compare."""
    try:
        path = place.path(wish.config) if wish.config else find(place.root)
        return load(path, dict(os.environ)).config.fail_on_regression
    except ConfigError as error:
        if place.config or wish.config:
            tell(f"agentest: {error}; so `fail_on_regression` is not known (--fail-on-regression sets it)")
        return False


def _tell(comparisons: Sequence[Comparison], wish: Wish, place: Place) -> None:
    if wish.output:
        path = place.path(wish.output)
        try:
            write_atomically(path, _written(comparisons, wish).encode())
        except OSError as error:
            raise UsageError(f"--output: {path} cannot be written: {error.strerror}") from None
    elif wish.form == "console":
        show(comparisons)
    else:
        Output(sys.stdout).write_bytes(_written(comparisons, wish))


def show(comparisons: Sequence[Comparison], environ: Mapping[str, str] = os.environ) -> None:
    """Print comparisons for people. Raises OutputError."""
    console = open_console(environ, sys.stdout)
    for comparison in comparisons:
        print_text(comparison, console)


def _written(comparisons: Sequence[Comparison], wish: Wish) -> str:
    """The comparisons in the form of a file."""
    if wish.form == "json":
        documents = [source(as_json(each)) for each in comparisons]
        return f"[{','.join(documents)}]\n" if wish.agents else documents[0]
    if wish.form == "markdown":
        return clean_rows("\n".join(map(as_markdown, comparisons)))
    from io import StringIO

    text = StringIO()
    for comparison in comparisons:
        print_text(comparison, open_console({"NO_COLOR": "1"}, text))
    return text.getvalue()
