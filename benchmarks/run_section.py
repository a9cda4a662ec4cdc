"""The workload through `agentest run`, beside its critical path and bare clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.fakes import Counted, Fakes, fakes
from benchmarks.process import Sample, interleaved
from benchmarks.programs import Bench
from benchmarks.results import Found, Target, machine, ratio, table
from benchmarks.workload import Options

_HEAD = ("", "wall s", "of computed path", "of sockets", "CPU s", "of aiohttp", "peak MB")
_MANY = 100
_SOCKETS, _AIOHTTP, _AGENTEST = "bare sockets", "bare aiohttp", "agentest run"

Samples = Mapping[str, Sample]


@dataclass(frozen=True, slots=True)
class Setting:
    """The same calls done by each program, and what ours may take of the bare sockets' wall clock."""

    title: str
    bench: Bench
    concurrency: int
    limit: float
    all_at_once: bool = False
    """Whether the bare clients hold all conversations at once: then they show the critical path."""

    @property
    def _bare_concurrency(self) -> int:
        return 0 if self.all_at_once else self.concurrency

    def programs(self) -> dict[str, Callable[[], Sample]]:
        return {
            _SOCKETS: partial(self.bench.bare, "sockets", self._bare_concurrency),
            _AIOHTTP: partial(self.bench.bare, "aiohttp", self._bare_concurrency),
            _AGENTEST: partial(self.bench.agentest, self.concurrency),
        }

    def rows(self, samples: Samples) -> list[list[str]]:
        """The setting's part of the table."""
        path = self.bench.work.critical_path_s(self._bare_concurrency or None)
        sockets, aiohttp = samples[_SOCKETS], samples[_AIOHTTP]
        title = [f"**{self.title}**", *[""] * (len(_HEAD) - 1)]
        figures = [f"{path:.2f}", "1.00 ×", ratio(path, sockets.wall_s)]
        computed = ["critical path, computed", *figures, "", "", ""]
        return [title, computed, *(_row(n, s, path, sockets, aiohttp) for n, s in samples.items())]

    def target(self, samples: Samples) -> Target:
        of = samples[_AGENTEST].wall_s / samples[_SOCKETS].wall_s
        floor = "the critical path" if self.all_at_once else "bare sockets"
        return Target(f"{self.title}: wall clock, start-up included, of {floor}", of, self.limit, "×")


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


def section(options: Options) -> Found:
    """Measure, and tell it."""
    work = options.work
    with fakes(work.agent_s, work.model_s) as servers:
        before = servers.counted()
        settings = _settings(options, servers)
        cases = {(s.title, name): run for s in settings for name, run in s.programs().items()}
        samples = interleaved(cases, options.runs)
        counted = servers.counted().since(before)
    by_setting = [(s, {name: samples[s.title, name] for name in s.programs()}) for s in settings]
    rows = [row for setting, found in by_setting for row in setting.rows(found)]
    about = _about(options, max(s.bench.busiest for s in settings), counted)
    targets = tuple(setting.target(found) for setting, found in by_setting)
    return Found("\n\n".join([about, table(_HEAD, rows), machine()]), targets)


def _settings(options: Options, servers: Fakes) -> list[Setting]:
    bench, alone = (Bench(servers, w) for w in (options.work, replace(options.work, scenarios=1)))
    many = max(_MANY, options.concurrency)
    return [
        Setting(f"`--concurrency {options.concurrency}`", bench, options.concurrency, 1.2),
        Setting(f"`--concurrency {many}`", bench, many, 1.4, all_at_once=True),
        Setting("one scenario alone", alone, options.concurrency, 1.4, all_at_once=True),
    ]


def _about(options: Options, busiest: float, counted: Counted) -> str:
    work = options.work
    return (
        f"{work}; agent {work.agent_s * 1000:g} ms, model {work.model_s * 1000:g} ms; "
        f"medians of {options.runs} interleaved runs. The fake servers were at work for at most "
        f"{busiest:.0%} of a run; their CPU time is enough for {counted.requests / counted.cpu_s:,.0f} "
        "requests a second."
    )
