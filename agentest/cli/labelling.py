"""`agentest label` and `agentest calibrate`. It imports nothing but click until they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentest.cli.ending import ended
from agentest.cli.options import recording, where
from agentest.cli.requests import place_in, request_at, tape

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
def label(results: str, cwd: Path | None, config: Path | None, to: Path, **wish: Any) -> int:
    """Label the conversations of RESULTS yourself, without seeing what the judge said.

    RESULTS is a run (an id or its beginning, `latest`, a folder), a results.json, a journal.jsonl, an
    evaluation set or a labels file. Every answer is kept at once; the next time, questions with an answer are
    left out. Without a terminal, answers are read line by line.
    """

    def go() -> int:
        from agentest.cli.label import Wish
        from agentest.cli.label import label as run
        from agentest.cli.named_runs import run_at

        place = place_in(cwd, config)
        request = request_at(place, config, offline=True)
        return run(Wish(results=run_at(results, place, config), to=place.path(to), **wish), request)

    return ended(go)


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
    options["tape"] = tape(options)
    wish = {key: options.pop(key) for key in ("judge", "metrics", "write", "as_json")}

    def go() -> int:
        from agentest.cli.calibrate import Wish
        from agentest.cli.calibrate import calibrate as run

        place = place_in(cwd, config)
        return run(Wish(labels=place.path(labels), **wish), request_at(place, config, **options))

    return ended(go)
