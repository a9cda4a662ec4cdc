"""CPU of Agentest beside bare sockets that make the same calls in the same session: run it before a release.

Both programs slow down alike on a busy machine, so each limit is a ratio. All figures are CPU time, start-up
included or taken out as the row says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.fakes import Fakes, fakes
from benchmarks.process import Sample, interleaved
from benchmarks.programs import Bench
from benchmarks.results import Found, Target, machine, ratio, table
from benchmarks.workload import Options, Workload

_GROWTH = 3
"""The large workload has this many times the scenarios of the small one."""
_LEAST_ROUNDS = 5
_MOST_OF_CALL, _MOST_OF_CONVERSATION, _MOST_OF_START = 14, 18, 4
_SCRIPTED_SCENARIOS = 5
"""Scripted conversations are cheap: this many scenarios for each one of the judged workload."""
_HEAD = ("CPU of", "bare sockets", "agentest run", "ratio", "limit")

Key = tuple[str, str, Workload]
"""Figure, program, and size of the workload."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What one more unit of work costs: the difference between two workloads, divided by the units in it."""

    title: str
    limit: float
    """How many times the CPU of bare sockets Agentest may take."""
    large: Workload
    small: Workload | None
    """None if start-up is what is measured."""
    units: int

    def cases(self, servers: Fakes, concurrency: int) -> dict[Key, Callable[[], Sample]]:
        """The runs of both programs."""
        found: dict[Key, Callable[[], Sample]] = {}
        for work in filter(None, (self.small, self.large)):
            bench = Bench(servers, work)
            found[self.title, "sockets", work] = partial(bench.bare, "sockets", concurrency)
            found[self.title, "agentest", work] = partial(bench.agentest, concurrency)
        return found

    def cpu_ms(self, program: str, samples: Mapping[Key, Sample]) -> float:
        """CPU per unit of a program."""
        large = samples[self.title, program, self.large].cpu_s
        small = samples[self.title, program, self.small].cpu_s if self.small else 0.0
        return (large - small) * 1000 / self.units


def section(options: Options) -> Found:
    """Measure the figures in one session and compare each ratio with its limit."""
    figures = _figures(options.work)
    rounds = max(options.runs, _LEAST_ROUNDS)
    with fakes(0.0, 0.0) as servers:
        cases = {
            key: run for figure in figures for key, run in figure.cases(servers, options.concurrency).items()
        }
        samples = interleaved(cases, rounds)
    rows, targets = [], []
    for figure in figures:
        bare, ours = (figure.cpu_ms(program, samples) for program in ("sockets", "agentest"))
        target = Target(f"{figure.title}: CPU, of bare sockets", ours / bare, figure.limit, "×")
        limit = f"{figure.limit:g} ×" if target.met else f"**{figure.limit:g} ×: exceeded**"
        rows.append([figure.title, f"{bare:.2f} ms", f"{ours:.2f} ms", ratio(ours, bare), limit])
        targets.append(target)
    about = f"Medians of {rounds} interleaved runs; the servers answer at once."
    return Found("\n\n".join([about, table(_HEAD, rows), machine()]), tuple(targets))


def _figures(work: Workload) -> list[Figure]:
    judged = replace(work, scenarios=work.scenarios * _GROWTH)
    scripted = replace(work, scenarios=work.scenarios * _SCRIPTED_SCENARIOS, scripted=True)
    many_scripted = replace(scripted, scenarios=scripted.scenarios * _GROWTH)
    one = Workload(scenarios=1, conversations_per_scenario=1, turns=1, scripted=True)
    calls = judged.calls - work.calls
    conversations = many_scripted.conversations - scripted.conversations
    per_conversation = f"one more scripted conversation of {work.turns} turns"
    return [
        Figure("one more call, to a model or the agent", _MOST_OF_CALL, judged, work, calls),
        Figure(per_conversation, _MOST_OF_CONVERSATION, many_scripted, scripted, conversations),
        Figure("a run of one conversation, start-up included", _MOST_OF_START, one, None, 1),
    ]
