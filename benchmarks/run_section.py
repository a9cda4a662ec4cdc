"""The workload through `agentest run`, beside its critical path and bare clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.fakes import fakes
from benchmarks.options import Options
from benchmarks.page import machine, ratio, table
from benchmarks.process import Sample, interleaved
from benchmarks.programs import Bench

_HEAD = ("", "wall s", "of critical path", "of sockets", "CPU s", "of aiohttp", "peak MB")
_MANY = 100


@dataclass(frozen=True, slots=True)
class Setting:
    """The same calls at the same concurrency, done by each program."""

    title: str
    bench: Bench
    concurrency: int

    def programs(self) -> dict[str, Callable[[], Sample]]:
        return {
            "bare sockets": partial(self.bench.bare, "sockets", self.concurrency),
            "bare aiohttp": partial(self.bench.bare, "aiohttp", self.concurrency),
            "agentest run": partial(self.bench.agentest, self.concurrency),
        }

    def rows(self, samples: dict[str, Sample]) -> list[list[str]]:
        """The setting's part of the table."""
        path = self.bench.work.critical_path_s(self.concurrency)
        sockets, aiohttp = samples["bare sockets"], samples["bare aiohttp"]
        title = [f"**{self.title}**", *[""] * (len(_HEAD) - 1)]
        computed = [
            "critical path, computed",
            f"{path:.2f}",
            "1.00 ×",
            ratio(path, sockets.wall_s),
            "",
            "",
            "",
        ]
        return [title, computed, *(_row(n, s, path, sockets, aiohttp) for n, s in samples.items())]


def _row(name: str, sample: Sample, path: float, sockets: Sample, aiohttp: Sample) -> list[str]:
    return [
        name,
        f"{sample.wall_s:.2f}",
        ratio(sample.wall_s, path),
        ratio(sample.wall_s, sockets.wall_s),
        f"{sample.cpu_s:.2f}",
        ratio(sample.cpu_s, aiohttp.cpu_s),
        f"{sample.peak_mb:.0f}",
    ]


def section(options: Options) -> str:
    """Measure, and tell it in Markdown."""
    work = options.work
    many = max(_MANY, options.concurrency)
    with fakes(work.agent_s, work.model_s) as servers:
        bench, alone = Bench(servers, work), Bench(servers, replace(work, scenarios=1))
        settings = [
            Setting(f"`--concurrency {options.concurrency}`", bench, options.concurrency),
            Setting(f"`--concurrency {many}`", bench, many),
            Setting("one scenario alone", alone, options.concurrency),
        ]
        cases = {(s.title, name): run for s in settings for name, run in s.programs().items()}
        samples = interleaved(cases, options.runs)
    rows = [
        row
        for setting in settings
        for row in setting.rows({name: samples[setting.title, name] for name in setting.programs()})
    ]
    return "\n\n".join([_about(options, max(bench.busiest, alone.busiest)), table(_HEAD, rows), machine()])


def _about(options: Options, busiest: float) -> str:
    work = options.work
    return (
        f"{work}; agent {work.agent_s * 1000:g} ms, model {work.model_s * 1000:g} ms; "
        f"medians of {options.runs} interleaved runs. "
        f"The fake servers were at work for at most {busiest:.0%} of a run."
    )
