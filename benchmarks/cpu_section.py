"""CPU per call: what one more call costs, start-up left out by taking the difference of two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.fakes import Fakes, fakes
from benchmarks.process import Sample, interleaved
from benchmarks.programs import Bench
from benchmarks.results import Found, Target, machine, ratio, table
from benchmarks.workload import Options, Workload

_FACTOR = 3
_FEW, _FEW_SCENARIOS = 2, 1
_MOST_MS, _MOST_OF_AIOHTTP = 1.2, 2.5
_HEAD = ("", "conversations at once", "CPU ms per model call", "per call", "of aiohttp")

_PROGRAMS = ("bare sockets", "bare aiohttp", "agentest run")
_PROGRAMS_FEW = ("bare aiohttp", "bare httpx")  # httpx is of no use with more

Key = tuple["Pair", bool]


@dataclass(frozen=True)
class Pair:
    """A program at two sizes of the workload."""

    program: str
    concurrency: int
    small: Workload
    large: Workload

    def cases(self, servers: Fakes) -> dict[Key, Callable[[], Sample]]:
        """The two runs; the key says whether it is the large one."""
        return {
            (self, False): partial(self._run, Bench(servers, self.small)),
            (self, True): partial(self._run, Bench(servers, self.large)),
        }

    def _run(self, bench: Bench) -> Sample:
        if self.program == "agentest run":
            return bench.agentest(self.concurrency)
        return bench.bare(self.program.removeprefix("bare "), self.concurrency)

    def more_cpu_ms(self, samples: Mapping[Key, Sample]) -> float:
        return (samples[self, True].cpu_s - samples[self, False].cpu_s) * 1000

    def per_model_call(self, samples: Mapping[Key, Sample]) -> float:
        """CPU ms for one more model call, its share of the agent calls included."""
        return self.more_cpu_ms(samples) / (self.large.model_calls - self.small.model_calls)

    def per_call(self, samples: Mapping[Key, Sample]) -> float:
        """CPU ms for one more call, to model or agent."""
        return self.more_cpu_ms(samples) / (self.large.calls - self.small.calls)


def section(options: Options) -> Found:
    """Measure, and tell it."""
    work = options.work
    many = [_pair(p, options.concurrency, work, work.scenarios) for p in _PROGRAMS]
    few = [_pair(p, _FEW, work, _FEW_SCENARIOS) for p in _PROGRAMS_FEW]
    with fakes(work.agent_s, work.model_s) as servers:
        cases = {key: run for pair in (*many, *few) for key, run in pair.cases(servers).items()}
        samples = interleaved(cases, options.runs)
    rows = _rows(many, samples) + _rows(few, samples)
    text = "\n\n".join([_about(options), table(_HEAD, rows), machine()])
    return Found(text, _targets(many, samples))


def _targets(pairs: Sequence[Pair], samples: Mapping[Key, Sample]) -> tuple[Target, ...]:
    by_program = {pair.program: pair.per_model_call(samples) for pair in pairs}
    ours, aiohttp = by_program["agentest run"], by_program["bare aiohttp"]
    return (
        Target("CPU of one more model call, its share of agent calls included", ours, _MOST_MS, "ms"),
        Target("the same, of bare aiohttp", ours / aiohttp, _MOST_OF_AIOHTTP, "×"),
    )


def _pair(program: str, concurrency: int, work: Workload, scenarios: int) -> Pair:
    small, large = (replace(work, scenarios=n) for n in (scenarios, scenarios * _FACTOR))
    return Pair(program, concurrency, small, large)


def _rows(pairs: Sequence[Pair], samples: Mapping[Key, Sample]) -> list[list[str]]:
    base = next(p for p in pairs if p.program == "bare aiohttp").per_call(samples)
    return [
        [
            pair.program,
            str(pair.concurrency),
            f"{pair.per_model_call(samples):.2f}",
            f"{pair.per_call(samples):.2f}",
            ratio(pair.per_call(samples), base),
        ]
        for pair in pairs
    ]


def _about(options: Options) -> str:
    work = options.work
    return (
        f"Difference quotients of {work.scenarios * _FACTOR} and {work.scenarios} scenarios "
        f"({_FEW} conversations at once: {_FEW_SCENARIOS * _FACTOR} and {_FEW_SCENARIOS}) of "
        f"{work.conversations_per_scenario} conversations × {work.turns} turns; "
        f"medians of {options.runs} interleaved runs. A model call carries its share of the agent calls; "
        "`per call` divides by both."
    )
