"""What the engines cost: throughput by workers, CPU of a conversation, the driver's rate, and the start."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.cluster import ray_environment
from benchmarks.process import measure
from benchmarks.results import Target, ratio, table
from benchmarks.worker_runs import (
    COMPUTING,
    LOCAL,
    NOTHING,
    TALKING,
    Engine,
    Kind,
    Ran,
    on_cluster,
    own_ray,
    spread_run,
    workers,
)

REAL, ECHO = "real", "echo"
_COUNTS = (1, 2, 4)
_COMPUTED = 200
_LEAST_OF_LINEAR = 0.9
_FEW, _MANY = 500, 4500
_FEW_ECHOES, _MANY_ECHOES = 2_000, 22_000
_SPEED_HEAD = ("", "conversations a second", "of one worker", "CPU s of the driver", "of the workers")
_COST_HEAD = ("", "driver µs", "workers µs", "messages out", "in", "a second", "driver alone")
_START_HEAD = ("", "s to the first conversation", "of which Ray's own start")
_RAY_STARTS = "import ray; ray.init(address='local', include_dashboard=False, log_to_driver=False)"
_RAY_JOINS = "import ray; ray.init(address={address!r}, log_to_driver=False)"


def throughput(address: str, runs: int) -> tuple[str, list[Target]]:
    """Conversations a second of 1, 2 and 4 workers that have to compute."""
    engines: dict[str, Callable[[int], Engine]] = {
        "worker processes": workers,
        "Ray": partial(on_cluster, address),
    }
    cases = {(name, n): make(n) for name, make in engines.items() for n in _COUNTS}
    ran = _medians(
        cases, lambda engine: spread_run(engine, COMPUTING, _COMPUTED), runs, lambda r: r.duration_s
    )
    rows, targets = [], []
    for name in engines:
        one = ran[name, 1].duration_s
        for n in _COUNTS:
            each = ran[name, n]
            rows.append(
                [
                    cases[name, n].title,
                    f"{_COMPUTED / each.duration_s:,.0f}",
                    ratio(one, each.duration_s),
                    f"{each.watched.driver_cpu_s:.1f}",
                    f"{each.watched.worker_cpu_s:.1f}",
                ]
            )
            if n > 1:
                cores = min(n, os.cpu_count() or 1)
                claim = f"{name}: throughput of {n} workers on {os.cpu_count()} cores, of one worker"
                linear = _LEAST_OF_LINEAR * cores
                targets.append(Target(claim, one / each.duration_s, linear, "×", at_least=True))
    about = (
        f"**Throughput where conversations compute.** {_COMPUTED} conversations of one scenario: "
        f"{COMPUTING.title}; medians of {runs} runs, from the first conversation to the last. "
        "CPU is of whole processes, their start included, which on Ray is Python's imports in each worker."
    )
    return "\n\n".join([about, table(_SPEED_HEAD, rows)]), targets


@dataclass(frozen=True, slots=True)
class Cost:
    """What one more conversation takes, from a small run to a large one."""

    driver_s: float
    worker_s: float
    sent: float
    received: float
    a_second: float
    """Conversations, as they came on this machine."""

    def row(self, title: str) -> list[str]:
        return [
            title,
            f"{self.driver_s * 1e6:,.0f}",
            f"{self.worker_s * 1e6:,.0f}" if self.worker_s else "",
            f"{self.sent:.1f}" if self.sent else "",
            f"{self.received:.1f}" if self.received else "",
            f"{self.a_second:,.0f}",
            f"{1 / self.driver_s:,.0f}",
        ]


def overhead(address: str) -> str:
    """CPU and messages of a conversation of next to nothing; and those of the driver alone."""
    spread = {"worker processes": workers(2), "Ray": on_cluster(address, 2)}
    real = {name: _cost(engine, NOTHING, REAL, _FEW, _MANY) for name, engine in spread.items()}
    found = {
        "one process": _cost(LOCAL, NOTHING, REAL, _FEW, _MANY),
        **real,
        **{
            f"{name}, {what}": _cost(engine, kind, ECHO, _FEW_ECHOES, _MANY_ECHOES)
            for name, engine in spread.items()
            for what, kind in {"echoes": NOTHING, "echoes of 4 turns": TALKING}.items()
        },
    }
    about = (
        f"**A conversation more, of next to nothing.** {NOTHING.title}, no model, no metric; the CPU of "
        f"one more conversation from {_FEW:,} to {_MANY:,}, two workers. In rows of *echoes* workers hold "
        f"one conversation and give it as the result of all others, up to {_MANY_ECHOES:,}: what is "
        f"left is the driver's work, for that conversation and for one of {TALKING.title}. "
        "*Driver alone* is how many a second its CPU time is enough for, on a core of its own."
    )
    return "\n\n".join([about, table(_COST_HEAD, [cost.row(name) for name, cost in found.items()])])


def _cost(engine: Engine, kind: Kind, mode: str, few: int, many: int) -> Cost:
    small, large = (counted(engine, kind, mode, count) for count in (few, many))
    more, before, after = many - few, small.ran.watched, large.ran.watched
    return Cost(
        (after.driver_cpu_s - before.driver_cpu_s) / more,
        (after.worker_cpu_s - before.worker_cpu_s) / more,
        (large.sent - small.sent) / more,
        (large.received - small.received) / more,
        more / (large.ran.duration_s - small.ran.duration_s),
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """A run, and how many messages its driver has sent and received."""

    ran: Ran
    sent: int
    received: int


def counted(engine: Engine, kind: Kind, mode: str, count: int, scenarios: int = 1) -> Counted:
    """A run whose messages are counted; with `ECHO`, of workers that only answer."""
    with tempfile.TemporaryDirectory(prefix="agentest-bench-") as made:
        file = Path(made) / "counted.json"
        program = [sys.executable, "-m", "benchmarks.echo_workers", str(file), mode]
        ran = spread_run(engine, kind, count, scenarios=scenarios, program=program, same_ids=mode == ECHO)
        told = json.loads(file.read_text())
    return Counted(ran, told["sent"], told["received"])


def start(address: str, runs: int) -> str:
    """Seconds to the first conversation."""
    rays = {"own": _RAY_STARTS, "joined": _RAY_JOINS.format(address=address)}
    engines = {"": (LOCAL, workers(2)), "own": (own_ray(2),), "joined": (on_cluster(address, 2),)}
    alone = {name: median(_python_s(code) for _ in range(runs)) for name, code in rays.items()}
    rows = []
    for name, kinds in engines.items():
        for engine in kinds:
            first_s = median(spread_run(engine, NOTHING, 4).watched.first_s for _ in range(runs))
            rows.append([engine.title, f"{first_s:.2f}", f"{alone[name]:.2f}" if name else ""])
    about = (
        f"**To the first conversation**, from the start of the program; medians of {runs} runs. Ray's own "
        "start is `import ray` and `ray.init` with nothing else, and its end."
    )
    return "\n\n".join([about, table(_START_HEAD, rows)])


def _python_s(code: str) -> float:
    return measure(
        [sys.executable, "-c", code], Path(tempfile.gettempdir()), variables=ray_environment()
    ).wall_s


def _medians(
    cases: Mapping[tuple[str, int], Engine],
    run: Callable[[Engine], Ran],
    runs: int,
    key: Callable[[Ran], float],
) -> dict[tuple[str, int], Ran]:
    """The run in the middle of each case, of several interleaved rounds."""
    ran: dict[tuple[str, int], list[Ran]] = {case: [] for case in cases}
    for round_number in range(runs):
        order: Sequence[tuple[str, int]] = list(cases) if round_number % 2 == 0 else list(cases)[::-1]
        for case in order:
            ran[case].append(run(cases[case]))
    return {case: sorted(each, key=key)[len(each) // 2] for case, each in ran.items()}
