"""Where the CPU time of a run goes: `agentest run` under cProfile."""

from __future__ import annotations

import pstats
import re
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.fakes import fakes
from benchmarks.options import Options
from benchmarks.page import table
from benchmarks.process import measure
from benchmarks.programs import run_command
from benchmarks.workload import write_project

_SHOWN = 15
_PACKAGE = re.compile(
    r"(?:-packages|/lib/python[\d.]+)/(?!site-packages|dist-packages)([^/]+)/?|/(agentest)/"
)

Key = tuple[str, int, str]


def section(options: Options) -> str:
    """Profile one run; returns the functions and the packages that take most time of their own."""
    work = options.work
    with (
        tempfile.TemporaryDirectory(prefix="agentest-bench-") as made,
        fakes(work.agent_s, work.model_s) as it,
    ):
        folder = Path(made)
        write_project(folder, work, it.agent_port, it.model_port)
        command = run_command(options.concurrency)
        measure([command[0], "-m", "cProfile", "-o", "profile", *command[1:]], folder)
        stats = pstats.Stats(str(folder / "profile"))
    return f"{_functions(stats)}\n\n{_packages(stats)}"


def _own(stats: pstats.Stats) -> dict[Key, tuple[int, float]]:
    """Function → calls and own seconds; waiting for the network is none."""
    found = stats.stats  # type: ignore[attr-defined]
    return {key: (calls, own) for key, (_, calls, own, _, _) in found.items() if "poll" not in key[2]}


def _functions(stats: pstats.Stats) -> str:
    own = _own(stats)
    total = sum(seconds for _, seconds in own.values())
    top = sorted(own.items(), key=lambda item: -item[1][1])[:_SHOWN]
    rows = [[_where(key), f"{calls:,}", f"{s:.2f}", f"{s / total:.1%}"] for key, (calls, s) in top]
    return table(("function", "calls", "own s", "share"), rows)


def _packages(stats: pstats.Stats) -> str:
    shares: dict[str, float] = defaultdict(float)
    for key, (_, seconds) in _own(stats).items():
        shares[_package(key[0])] += seconds
    total = sum(shares.values())
    top = sorted(shares.items(), key=lambda item: -item[1])[:_SHOWN]
    return table(("package", "own s", "share"), [[n, f"{s:.2f}", f"{s / total:.1%}"] for n, s in top])


def _where(key: Key) -> str:
    file, line, name = key
    if file == "~":
        return name
    return f"{_package(file)}: {Path(file).name}:{line} {name}"


def _package(file: str) -> str:
    if file == "~" or file.startswith("<frozen"):
        return "built in"
    found = _PACKAGE.search(file)
    name = (found[1] or found[2]) if found else "other"
    return name.removesuffix(".py")
