"""Define the commands for stored runs, judges and labels.

These are `runs`, `show`, `ui`, `compare`, `merge`, `export`, `coverage`, `judge`, `show-prompts`, `label` and
`calibrate`.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentest.cli.options import (
    ParsedOptions,
    camel_case_option,
    exits,
    model_option,
    offline_option,
    output_options,
    path_option,
    recording,
    spread,
    typed,
    where,
    which,
)
from agentest.support.errors import ExitCode
from agentest.support.terminal import say, tell

if TYPE_CHECKING:
    from agentest.authoring.export import Expecting, Form


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


@click.command()
@click.argument("run")
@where
@which
@output_options
@model_option
@offline_option
@spread
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Judge only this metric.")
@typed
def judge(parsed: ParsedOptions) -> int:
    """Judge the finished conversations of RUN again, without calling the agent.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    from agentest.cli.judge import JudgeOptions, judge_again

    return judge_again(parsed.to(JudgeOptions))


@click.command("show-prompts")
@click.option(
    "--metric", metavar="NAME", help="Show one metric, also of evaluation sets; criteria; user.check."
)
@click.option(
    "--mode",
    type=click.Choice(["off", "false", "turn", "true", "conversation"]),
    help="Show all calls for an example, as this `judge.batch` makes them.",
)
@exits
def show_prompts(metric: str | None, mode: str | None) -> int:
    """Show the prompts of the judges."""
    from agentest.cli.judge import prompt_text

    say(prompt_text(metric, mode))
    return ExitCode.PASSED


@click.command()
@click.argument("run")
@click.option(
    "--to", "form", type=click.Choice(["evalset", "scenario"]), required=True, help="Choose what to write."
)
@click.option("--scenario", "scenarios", multiple=True, metavar="TEXT", help="Select names with TEXT.")
@click.option("--conversation", "ids", multiple=True, metavar="ID", help="Select a conversation by its id.")
@click.option(
    "--expect",
    type=click.Choice(["calls", "scenario"]),
    default="calls",
    help="Expect the same calls (default), or what the scenario's file expects.",
)
@path_option("--output", "output", "Write to this file (default: standard output).")
@camel_case_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
@exits
def export(
    run: str,
    form: Form,
    scenarios: tuple[str, ...],
    ids: tuple[str, ...],
    expect: Expecting,
    output: Path | None,
    camel_case: bool,
    force: bool,
) -> int:
    """Turn the finished conversations of RUN into test cases.

    The cases are an evaluation set of ADK, or scripted scenarios whose mocks repeat the recorded results.
    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    import sys

    from agentest.authoring.export import export, write
    from agentest.cli.location import project_of
    from agentest.support.terminal import Output, source

    project = project_of(Path.cwd())
    file = project.run_file(run)
    exported = export(
        file, form, scenarios, ids, output, camel_case=camel_case, expect=expect, root=project.root
    )
    for note in exported.notes:
        tell(f"agentest: {note}")
    if output is None:
        Output(sys.stdout).write_bytes(source(exported.content.decode()))
    else:
        write(exported, output, force=force)
        say(f"{output}: {exported.summary}")
    return ExitCode.PASSED


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…")
@click.option("--results", multiple=True, metavar="RUN", help="Read RUN, like the argument.")
@click.option(
    "--eval-set",
    "eval_sets",
    multiple=True,
    metavar="FILE_OR_DIR[:CASE,…]",
    help="Count the cases of these evaluation sets, too.",
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Fail if fewer cells have a scenario, or fewer tools were called.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="Choose the output format.",
)
@where
@which
@typed
def coverage(parsed: ParsedOptions) -> int:
    """Show which paths of which tasks have tests of which kind, and which tools were called and failed.

    RUN is an id or its beginning, `latest`, a folder or a file (default: the latest run and the latest
    evaluation). A scenario that several runs have counts as in the latest. Scenarios are placed by the tags
    task:NAME, path:NAME, and unit, integration or scenario; cases of evaluation sets by their tags or by
    ids like TASK/PATH. Nothing is run.

    Exit status: 0, 1 below --fail-under, 2 if a file could not be loaded.
    """
    from agentest.cli.coverage import CoverageOptions, coverage

    return coverage(parsed.to(CoverageOptions))
