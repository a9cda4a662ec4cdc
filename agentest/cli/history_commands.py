"""Define the commands for stored runs and judge labels.

These are `runs`, `show`, `ui`, `compare`, `merge`, `label` and `calibrate`.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentest.cli.exit_status import exit_status_of
from agentest.cli.options import (
    build_request,
    cassette_mode,
    enter_place,
    output_options,
    path_option,
    recording,
    where,
)

_FEW = 20


@click.command()
@where
@click.option("--all", "every", is_flag=True, help=f"List all of them (default: the latest {_FEW}).")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to tell it.")
def runs(cwd: Path | None, config: Path | None, every: bool, form: Any) -> int:
    """List the kept runs, the latest first: when, how they ended, cost, model, commit."""

    def go() -> int:
        from agentest.cli.run_lookup import runs_folder
        from agentest.cli.stored_runs import list_runs

        place = enter_place(cwd, config)
        return list_runs(runs_folder(place, config), form, None if every else _FEW)

    return exit_status_of(go)


@click.command()
@click.argument("run", default="latest")
@where
@click.option(
    "--scenario", "scenarios", multiple=True, metavar="TEXT", help="Only names with TEXT; =NAME: this name."
)
@click.option("--verbose", is_flag=True, help="Show transcripts.")
@click.option("--reporter", "reporters", multiple=True, metavar="NAME", help="Default: console; NAME=PATH.")
def show(run: str, cwd: Path | None, config: Path | None, **chosen: Any) -> int:
    """Print a past run as it was printed when it ran.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """

    def go() -> int:
        from agentest.cli.run_lookup import run_at
        from agentest.cli.stored_runs import ShowOptions
        from agentest.cli.stored_runs import report_stored_run as shown

        place = enter_place(cwd, config)
        return shown(run_at(run, place, config), ShowOptions(**chosen), place)

    return exit_status_of(go)


@click.command()
@click.argument("run", required=False)
@where
@click.option("--port", type=click.IntRange(0, 65535), default=8321, help="Default: 8321; 0: any free one.")
def ui(run: str | None, cwd: Path | None, config: Path | None, port: int) -> int:
    """Serve a page to look at runs, to talk to the agent and to make cases.

    It is served on this machine alone, to whoever has the address that is printed. With RUN it shows that one
    first: an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """

    def go() -> int:
        from agentest.cli.ui import ui as served

        return served(enter_place(cwd, config), config, port, run)

    return exit_status_of(go)


@click.command()
@click.argument("base", required=False)
@click.argument("new", required=False)
@where
@click.option("--agents", is_flag=True, help="Compare the agents of one run: each with the first.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["console", "json", "markdown"]),
    default="console",
    show_default=True,
    help="How to tell it.",
)
@path_option("--output", "output", "File to write (default: standard output).")
@click.option("--fail-on-regression", is_flag=True, help="Exit with 1 when something regressed.")
def compare(base: str | None, new: str | None, cwd: Path | None, config: Path | None, **chosen: Any) -> int:
    """Compare two runs: what regressed, what improved, and what changed within noise.

    BASE and NEW are ids (agentest runs) or their beginnings, `latest`, folders, results.json or
    journal.jsonl. Without NEW it is the latest run, without BASE, too, the latest two are compared.

    Exit status: 0; 1 when something regressed and --fail-on-regression or the configuration's
    `fail_on_regression` says so; 2 when the runs cannot be compared.
    """

    def go() -> int:
        from agentest.cli.comparison import CompareOptions, compare_runs

        return compare_runs(
            CompareOptions(base=base, new=new, config=config, **chosen), enter_place(cwd, config)
        )

    return exit_status_of(go)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@where
@path_option("--output-dir", "output_dir", "Where the merged run is kept (default: `output_dir`).")
@click.option("--allow-missing", is_flag=True, help="Merge without shards that are missing: an errored run.")
@output_options
def merge(runs: tuple[str, ...], cwd: Path | None, config: Path | None, **chosen: Any) -> int:
    """Make one run of several: of all shards of a run, or of runs without a scenario in common.

    RUN is an id (agentest runs) or its beginning, the folder of a run, or a folder above several.

    Exit status as of run: 0 all passed, 1 a scenario failed, 2 something errored, is missing or does not fit.
    """

    def go() -> int:
        from agentest.cli.merge import MergeOptions
        from agentest.cli.merge import merge as merged

        return merged(MergeOptions(runs=runs, **chosen), enter_place(cwd, config), config)

    return exit_status_of(go)


_METRIC = click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Only this metric, or criteria."
)


@click.command()
@click.argument("results")
@where
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    default="labels.jsonl",
    show_default=True,
    metavar="PATH",
    help="Labels file to add to.",
)
@_METRIC
@click.option("--scenario", "scenarios", multiple=True, metavar="TEXT", help="Only names with TEXT.")
@click.option("--by", default="", metavar="NAME", help="Who labels: several people may label the same.")
def label(results: str, cwd: Path | None, config: Path | None, to: Path, **chosen: Any) -> int:
    """Label the conversations of RESULTS yourself, without seeing what the judge said.

    RESULTS is a run (an id or its beginning, `latest`, a folder), a results.json, a journal.jsonl, an
    evaluation set or a labels file. Every answer is kept at once; the next time, questions with an answer are
    left out. Without a terminal, answers are read line by line.
    """

    def go() -> int:
        from agentest.cli.calibrate import LabelOptions
        from agentest.cli.calibrate import label as run
        from agentest.cli.run_lookup import run_at

        place = enter_place(cwd, config)
        request = build_request(place, config, offline=True)
        return run(LabelOptions(results=run_at(results, place, config), to=place.path(to), **chosen), request)

    return exit_status_of(go)


@click.command()
@click.argument("labels", type=click.Path(path_type=Path))
@where
@click.option("--judge", "judge", metavar="MODEL", help="Ask this model (default: the configured judge).")
@_METRIC
@click.option("--write", is_flag=True, help="Keep the result beside the configuration, for runs to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--dry-run", is_flag=True, help="Show how many model calls there will be, and ask nothing.")
@click.option("--max-cost", type=click.FloatRange(min=0), metavar="USD", help="Stop before they cost more.")
@click.option("--max-llm-calls", type=click.IntRange(min=0), metavar="N", help="Make no more model calls.")
@recording
def calibrate(labels: Path, cwd: Path | None, config: Path | None, **options: Any) -> int:
    """Measure how far the judge agrees with the people who labelled the conversations of LABELS.

    Shows agreement, false alarms, misses and Cohen's kappa by metric, and where judge and people differ.

    Exit status: 0 measured, 2 when the labels or the configuration cannot be used or the judge answered
    nothing, 130 interrupted.
    """
    options["tape"] = cassette_mode(options)
    chosen = {key: options.pop(key) for key in ("judge", "metrics", "write", "as_json")}

    def go() -> int:
        from agentest.cli.calibrate import CalibrateOptions
        from agentest.cli.calibrate import calibrate as run

        place = enter_place(cwd, config)
        return run(
            CalibrateOptions(labels=place.path(labels), **chosen), build_request(place, config, **options)
        )

    return exit_status_of(go)
