"""`--workers 2` beside `--workers 1` where nothing is waited for: the agent is Python in the run itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.process import Sample, interleaved, measure
from benchmarks.programs import check_passed, run_command
from benchmarks.results import Found, Target, machine, ratio, table
from benchmarks.worker_runs import COMPUTING, COUNTING, project
from benchmarks.workload import Options

_TURNS = 4
_CONCURRENCY = 20
_LEAST_THROUGHPUT = 1.7
_WORKERS = (1, 2)
_HEAD = ("", "wall s", "CPU s", "conversations a second", "throughput", "peak MB of one process")
_KINDS = {
    "a metric of some milliseconds": (COMPUTING, 3),
    "a metric of next to nothing": (COUNTING, 40),
}
"""What a conversation is made of, and how many of them for each scenario make a run of some seconds."""

Key = tuple[str, int]
"""Title and number of workers."""


def section(options: Options) -> Found:
    """Measure, and tell it."""
    scenarios = options.work.scenarios * 5
    with ExitStack() as stack:
        cases: dict[Key, Callable[[], Sample]] = {}
        for title, (kind, each) in _KINDS.items():
            folder, _ = stack.enter_context(project(kind, scenarios * each, scenarios))
            cases |= {(title, n): partial(_run, folder, n) for n in _WORKERS}
        samples = interleaved(cases, options.runs)
    rows = [row for title, (_, each) in _KINDS.items() for row in _rows(title, samples, scenarios * each)]
    about = (
        f"{_TURNS} scripted turns with a tool call each; agent, tool and metric are Python, {_CONCURRENCY} "
        f"conversations at once; medians of {options.runs} interleaved runs, start-up included."
    )
    targets = tuple(_target(title, samples) for title in _KINDS)
    return Found("\n\n".join([about, table(_HEAD, rows), machine()]), targets)


def _target(title: str, samples: Mapping[Key, Sample]) -> Target:
    faster = samples[title, 1].wall_s / samples[title, 2].wall_s
    claim = f"throughput of two workers on {os.cpu_count()} cores, {title}"
    return Target(claim, faster, _LEAST_THROUGHPUT, "×", at_least=True)


def _run(folder: Path, workers: int) -> Sample:
    sample = measure(run_command(_CONCURRENCY, "--workers", str(workers)), folder)
    check_passed(folder)
    return sample


def _rows(title: str, samples: Mapping[Key, Sample], conversations: int) -> list[list[str]]:
    head = [f"**{title}, {conversations:,} conversations**", *[""] * (len(_HEAD) - 1)]
    one = samples[title, 1]
    return [head, *(_row(n, samples[title, n], one, conversations) for n in _WORKERS)]


def _row(workers: int, sample: Sample, one: Sample, conversations: int) -> list[str]:
    return [
        f"`--workers {workers}`",
        f"{sample.wall_s:.2f}",
        f"{sample.cpu_s:.2f}",
        f"{conversations / sample.wall_s:,.0f}",
        ratio(one.wall_s, sample.wall_s),
        f"{sample.peak_mb:.0f}",
    ]
