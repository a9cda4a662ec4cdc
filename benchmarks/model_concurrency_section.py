"""How many requests a model needs at once for each conversation that is under way."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.fakes import Fakes, fakes
from benchmarks.process import Sample, interleaved, measure
from benchmarks.programs import check_passed, run_command
from benchmarks.results import Found, machine, ratio, table
from benchmarks.workload import Options, Workload, write_project

_EACH = (1, 2, 3, 10)
"""Requests at once for each conversation: the last is more than can be used."""
_CONCURRENCIES = (5, 20)
_MODEL_S = (0.3, 0.8)


def section(options: Options) -> Found:
    """Measure, and tell it."""
    rows = [row for model_s in _MODEL_S for row in _rows(model_s, options)]
    about = (
        f"Wall clock of {options.work.scenarios} scenarios × {options.work.conversations_per_scenario} "
        f"conversations × {options.work.turns} turns with all metrics, judged a turn at a time; medians of "
        f"{options.runs} interleaved runs. Requests at once for each conversation under way:"
    )
    head = ("model answers in", "conversations at once", *(f"{each}" for each in _EACH))
    return Found("\n\n".join((about, table(head, rows), machine())))


def _rows(model_s: float, options: Options) -> list[list[str]]:
    work = Workload(options.work.scenarios, turns=options.work.turns, model_s=model_s)
    rows = []
    with fakes(work.agent_s, model_s) as servers:
        for concurrency in _CONCURRENCIES:
            cases: dict[int, Callable[[], Sample]] = {
                each: partial(_run, servers, work, concurrency, each) for each in _EACH
            }
            wall = {each: sample.wall_s for each, sample in interleaved(cases, options.runs).items()}
            most = wall[_EACH[-1]]
            shown = [f"{wall[each]:.1f} s ({ratio(wall[each], most)})" for each in _EACH]
            rows.append([f"{model_s * 1000:.0f} ms", str(concurrency), *shown])
    return rows


def _run(servers: Fakes, work: Workload, concurrency: int, each: int) -> Sample:
    with tempfile.TemporaryDirectory(prefix="agentest-bench-") as made:
        folder = Path(made)
        more = {"max_concurrency": each * concurrency, "judge": {"batch": "turn"}}
        write_project(folder, work, servers.agent_port, servers.model_port, more)
        sample = measure(run_command(concurrency), folder)
        check_passed(folder)
    return sample
