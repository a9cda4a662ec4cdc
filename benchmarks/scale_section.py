"""How a run grows with its conversations: CPU per call and peak memory, and very many at once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.fakes import fakes
from benchmarks.process import Sample, interleaved, measure
from benchmarks.programs import Bench, conversations, run_command
from benchmarks.results import Found, Target, machine, table
from benchmarks.workload import Options, Workload, write_project

_FACTORS = (1, 5, 25)
_AGENT_S, _MODEL_S = 0.01, 0.04
_CONCURRENCY = 100
_AT_ONCE = 1000
_PER_SCENARIO = 10
_MOST_MB, _MOST_DEVIATION = 500, 10
_HEAD = ("", "at once", "calls", "wall s", "CPU s", "CPU ms per call", "without start-up", "peak MB")


@dataclass(frozen=True, slots=True)
class Long:
    """One size of the workload, measured; `least` is the smallest run there is, the cost of starting."""

    work: Workload
    concurrency: int
    sample: Sample
    least: Sample

    @property
    def further_ms(self) -> float:
        """CPU per call, start-up left out."""
        return (self.sample.cpu_s - self.least.cpu_s) * 1000 / (self.work.calls - _LEAST.calls)

    def row(self) -> list[str]:
        sample, work = self.sample, self.work
        return [
            f"{work.scenarios:,} scenarios × {work.conversations_per_scenario} conversations",
            f"{self.concurrency:,}",
            f"{work.calls:,}",
            f"{sample.wall_s:.1f}",
            f"{sample.cpu_s:.1f}",
            f"{sample.cpu_s * 1000 / work.calls:.2f}",
            f"{self.further_ms:.2f}",
            f"{sample.peak_mb:.0f}",
        ]


_LEAST = Workload(scenarios=1, conversations_per_scenario=1, turns=1)


def section(options: Options) -> Found:
    """Measure, and tell it. The two large runs are measured once: they are long."""
    sizes = [replace(options.work, scenarios=options.work.scenarios * factor) for factor in _FACTORS]
    with fakes(_AGENT_S, _MODEL_S) as servers:
        cases: dict[Workload, Callable[[], Sample]] = {
            work: partial(Bench(servers, work).agentest, _CONCURRENCY) for work in (_LEAST, *sizes)
        }
        largest = cases.pop(sizes[-1])
        samples = interleaved(cases, options.runs) | {sizes[-1]: largest()}
    found = [Long(work, _CONCURRENCY, samples[work], samples[_LEAST]) for work in sizes]
    many, wrong = _at_once(options, samples[_LEAST])
    text = "\n\n".join([_about(options, found), table(_HEAD, [f.row() for f in (*found, many)]), machine()])
    return Found(text, _targets(found, many, wrong))


def _at_once(options: Options, least: Sample) -> tuple[Long, int]:
    """Many conversations, all at once, with the latencies of the command line; and what went wrong.

    Wrong is each conversation that did not pass, and each request that did not arrive or was sent again.
    """
    work = replace(
        options.work, scenarios=_AT_ONCE // _PER_SCENARIO, conversations_per_scenario=_PER_SCENARIO
    )
    with (
        tempfile.TemporaryDirectory(prefix="agentest-bench-") as made,
        fakes(work.agent_s, work.model_s) as servers,
    ):
        folder = Path(made)
        write_project(folder, work, servers.agent_port, servers.model_port)
        sample = measure(run_command(_AT_ONCE), folder, exits=(0, 1, 2))
        counted = servers.counted()
        wrong = work.conversations - sum(found["passed"] for found in conversations(folder))
    wrong += abs(counted.agent_requests - work.agent_calls) + abs(counted.model_requests - work.model_calls)
    return Long(work, _AT_ONCE, sample, least), wrong


def _targets(found: list[Long], many: Long, wrong: int) -> tuple[Target, ...]:
    first, *others = found
    deviation = max(abs(long.further_ms / first.further_ms - 1) for long in others) * 100
    large = found[-1]
    in_all, at_once = (f"{long.work.conversations:,} conversations" for long in (large, many))
    return (
        Target("CPU per call at × 5 and × 25, deviation from × 1", deviation, _MOST_DEVIATION, "%"),
        Target(f"peak, {in_all}", large.sample.peak_mb, _MOST_MB, "MB"),
        Target(f"peak, {at_once} at once", many.sample.peak_mb, _MOST_MB, "MB"),
        Target(f"{at_once} at once: requests lost or sent again, conversations not passed", wrong, 0, ""),
    )


def _about(options: Options, found: list[Long]) -> str:
    work = options.work
    *_, medium, large = found
    grown_mb = large.sample.peak_mb - medium.sample.peak_mb
    each_kb = grown_mb * 1000 / (large.work.conversations - medium.work.conversations)
    return (
        f"{work.turns} turns; agent {_AGENT_S * 1000:g} ms, model {_MODEL_S * 1000:g} ms, in the last row "
        f"{work.agent_s * 1000:g} and {work.model_s * 1000:g} ms. Medians of {options.runs} runs, the last "
        "two rows one run each. From the second row to the third, one more "
        "conversation takes "
        f"{each_kb:.1f} KB. Start-up is a run of {_LEAST.calls} calls: "
        f"{large.least.cpu_s:.2f} s of CPU and {large.least.peak_mb:.0f} MB."
    )
