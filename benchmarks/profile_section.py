"""Where the CPU time of a run goes: `agentest run` under py-spy where it is installed, else under cProfile.

py-spy samples from outside, and so changes little; cProfile counts calls and makes short functions look dear.
"""

from __future__ import annotations

import pstats
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from benchmarks.fakes import fakes
from benchmarks.options import Options
from benchmarks.page import table
from benchmarks.process import measure
from benchmarks.programs import run_command
from benchmarks.targets import Found
from benchmarks.workload import write_project

_SHOWN = 25
_SAMPLES_PER_SECOND = 500
_FRAME = re.compile(r"(?P<function>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)")
_PACKAGE = re.compile(
    r"(?:-packages|/lib/python[\d.]+)/(?!site-packages|dist-packages)([^/]+)/?|/(agentest)/"
)

Place = tuple[str, str]
"""Package and function."""
Seconds = Mapping[Place, float]


def section(options: Options) -> Found:
    """Profile one run; tells the functions and the packages that take most time of their own."""
    work = options.work
    with (
        tempfile.TemporaryDirectory(prefix="agentest-bench-") as made,
        fakes(work.agent_s, work.model_s) as it,
    ):
        folder = Path(made)
        write_project(folder, work, it.agent_port, it.model_port, concurrency=options.concurrency)
        spy = shutil.which("py-spy")
        command = run_command(options.concurrency)
        own = _sampled(spy, command, folder) if spy else _counted(command, folder)
    about = f"{work}, under {'py-spy' if spy else 'cProfile'}."
    return Found("\n\n".join([about, _functions(own), _packages(own)]))


def _sampled(spy: str, command: list[str], folder: Path) -> Seconds:
    options = ["--full-filenames", "--nolineno", "-r", str(_SAMPLES_PER_SECOND), "-f", "raw", "-o", "profile"]
    measure([spy, "record", *options, "--", *command], folder)
    own: dict[Place, float] = defaultdict(float)
    for line in (folder / "profile").read_text("utf-8").splitlines():
        stack, _, samples = line.rpartition(" ")
        found = _FRAME.fullmatch(stack.rpartition(";")[2])
        place = _place(found["file"], found["function"]) if found else ("other", stack or "no Python frame")
        own[place] += int(samples) / _SAMPLES_PER_SECOND
    return own


def _counted(command: list[str], folder: Path) -> Seconds:
    measure([command[0], "-m", "cProfile", "-o", "profile", *command[1:]], folder)
    stats = pstats.Stats(str(folder / "profile")).stats  # type: ignore[attr-defined]
    own: dict[Place, float] = defaultdict(float)
    for (file, _, function), (_, _, seconds, _, _) in stats.items():
        if "poll" not in function:  # waiting for the network is no work
            own[_place(file, function)] += seconds
    return own


def _place(file: str, function: str) -> Place:
    if file == "~" or file.startswith("<"):
        return "built in", function
    found = _PACKAGE.search(file)
    package = (found[1] or found[2]).removesuffix(".py") if found else "other"
    return package, f"{Path(file).name}: {function}"


def _functions(own: Seconds) -> str:
    total = sum(own.values())
    top = sorted(own.items(), key=lambda item: -item[1])[:_SHOWN]
    rows = [[f"{package}: {function}", f"{s:.2f}", f"{s / total:.1%}"] for (package, function), s in top]
    return table(("function", "own s", "share"), rows)


def _packages(own: Seconds) -> str:
    shares: dict[str, float] = defaultdict(float)
    for (package, _), seconds in own.items():
        shares[package] += seconds
    total = sum(shares.values())
    top = sorted(shares.items(), key=lambda item: -item[1])[:_SHOWN]
    return table(("package", "own s", "share"), [[n, f"{s:.2f}", f"{s / total:.1%}"] for n, s in top])
