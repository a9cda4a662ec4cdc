"""Define the commands for stored runs and judge labels.

These are `runs`, `show`, `ui`, `compare`, `merge`, `label` and `calibrate`.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

from pathlib import Path

import click

from agentest.cli.options import ParsedOptions, output_options, path_option, recording, typed, where

_FEW = 20


@click.command()
@where
@click.option("--all", "every", is_flag=True, help=f"List all of them (default: the latest {_FEW}).")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Choose the output format.",
)
@typed
def runs(parsed: ParsedOptions) -> int:
    """List the stored runs, latest first: start, outcome, cost, model, commit."""
    from agentest.cli.stored_runs import ListOptions, list_runs

    return list_runs(parsed.to(ListOptions), _FEW)


@click.command()
@click.argument("run", default="latest")
@where
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="TEXT",
    help="Select scenarios by a part of the name; =NAME: the whole name.",
)
@click.option("--verbose", is_flag=True, help="Show transcripts.")
@click.option(
    "--reporter",
    "reporters",
    multiple=True,
    metavar="NAME",
    help="Report as NAME, or as NAME=PATH to a file (default: console).",
)
@typed
def show(parsed: ParsedOptions) -> int:
    """Print a stored run again.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    from agentest.cli.stored_runs import ShowOptions, report_stored_run

    return report_stored_run(parsed.to(ShowOptions))


@click.command()
@click.argument("run", required=False)
@where
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8321,
    help="Listen on this port (default: 8321; 0: any free one).",
)
@typed
def ui(parsed: ParsedOptions) -> int:
    """Serve a page that shows runs, talks to the agent and writes cases.

    Only this machine can open it, with the address that is printed. With RUN, the page opens that run: an id
    (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    from agentest.cli.ui import UiOptions, ui

    return ui(parsed.to(UiOptions))


@click.command()
@click.argument("base", required=False)
@click.argument("new", required=False)
@where
@click.option("--agents", is_flag=True, help="Compare the agents of one run with its first agent.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["console", "json", "markdown"]),
    default="console",
    show_default=True,
    help="Choose the output format.",
)
@path_option("--output", "output", "Write to this file (default: standard output).")
@click.option("--fail-on-regression", is_flag=True, help="Exit with 1 if a scenario regressed.")
@typed
def compare(parsed: ParsedOptions) -> int:
    """Compare two runs: what regressed, what improved, and what changed within noise.

    BASE and NEW are ids (agentest runs) or their beginnings, `latest`, folders, results.json or
    journal.jsonl. NEW is the latest run by default. Without BASE and NEW, the latest two are compared.

    Exit status: 0; 1 if a scenario regressed and --fail-on-regression or `fail_on_regression` in the
    configuration is set; 2 if the runs cannot be compared.
    """
    from agentest.cli.comparison import CompareOptions, compare_runs

    return compare_runs(parsed.to(CompareOptions))


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@where
@path_option("--output-dir", "output_dir", "Store the merged run in this folder (default: `output_dir`).")
@click.option("--allow-missing", is_flag=True, help="Merge even if shards are missing, as an errored run.")
@output_options
@typed
def merge(parsed: ParsedOptions) -> int:
    """Merge several runs into one: all shards of a run, or runs with no scenario in common.

    RUN is an id (agentest runs) or its beginning, the folder of a run, or a folder above several.

    Exit status as of run: 0 all passed, 1 a scenario failed, 2 something errored, is missing or does not fit.
    """
    from agentest.cli.merge import MergeOptions, merge

    return merge(parsed.to(MergeOptions))


_METRIC = click.option(
    "--metric", "metric_names", multiple=True, metavar="NAME", help="Select this metric, or criteria."
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
    help="Add to this file of labels.",
)
@_METRIC
@click.option("--scenario", "scenarios", multiple=True, metavar="TEXT", help="Select names with TEXT.")
@click.option("--by", default="", metavar="NAME", help="Store your name, if several people label.")
@typed
def label(parsed: ParsedOptions) -> int:
    """Label the conversations of RESULTS yourself, without seeing the judge's answers.

    RESULTS is a run (an id or its beginning, `latest`, a folder), a results.json, a journal.jsonl, an
    evaluation set or a labels file. Every answer is stored at once, and later calls leave answered questions
    out. Without a terminal, answers are read line by line.
    """
    from agentest.cli.calibrate import LabelOptions, label

    return label(parsed.to(LabelOptions))


@click.command()
@click.argument("labels", type=click.Path(path_type=Path))
@where
@click.option("--judge", metavar="MODEL", help="Measure this model (default: the configured judge).")
@_METRIC
@click.option("--write", is_flag=True, help="Store the result next to the configuration, for runs to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--dry-run", is_flag=True, help="Show the largest number of model calls, and make none.")
@click.option(
    "--max-cost",
    type=click.FloatRange(min=0),
    metavar="USD",
    help="Stop before model calls cost more than this.",
)
@click.option("--max-llm-calls", type=click.IntRange(min=0), metavar="N", help="Stop after N model calls.")
@recording
@typed
def calibrate(parsed: ParsedOptions) -> int:
    """Measure how well the judge agrees with the people who labelled the conversations of LABELS.

    Shows agreement, false alarms, misses and Cohen's kappa by metric, and where judge and people differ.

    Exit status: 0 measured, 2 if the labels or the configuration cannot be used or the judge gave no
    answer, 130 interrupted.
    """
    from agentest.cli.calibrate import CalibrateOptions, calibrate

    return calibrate(parsed.to(CalibrateOptions))
