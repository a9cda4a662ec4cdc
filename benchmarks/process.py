"""Running a program as a child and measuring it from outside, start-up included."""

from __future__ import annotations

import atexit
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

from benchmarks.fakes import REPOSITORY

RSS_UNIT_BYTES = 1 if platform.system() == "Darwin" else 1024
_SHOWN_LINES = 20

Case = TypeVar("Case", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run of a program cost."""

    wall_s: float
    cpu_s: float
    """User and system time of the process and of those that it waited for."""
    peak_mb: float
    """Peak of the largest of these processes."""


class Failed(Exception):
    """A program under measurement did not do what it was to do."""


def measure(
    command: Sequence[str],
    cwd: Path,
    exits: Container[int] = (0,),
    variables: Mapping[str, str] | None = None,
) -> Sample:
    """Run a command to its end. Raises Failed with the end of its output unless it exits as expected.

    A child's peak is never below ours: until it becomes the command it is us. So we import nothing large.

    Args:
        variables: its environment, in place of `environment()`.
    """
    variables = variables or environment()
    with tempfile.TemporaryFile("w+") as output:
        began = perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, used = os.wait4(process.pid, 0)
        wall_s = perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)  # reaped already: Popen need not wait for it
        if process.returncode not in exits:
            output.seek(0)
            end = "".join(output.readlines()[-_SHOWN_LINES:])
            raise Failed(f"{' '.join(command[1:])} ended with {process.returncode}:\n{end}")
    return Sample(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * RSS_UNIT_BYTES / 1e6)


def printed_json(module: str, *arguments: str) -> Any:
    """What a module of the benchmarks prints last, as JSON. Raises Failed unless it exits with 0."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def environment() -> dict[str, str]:
    """The environment of a program under measurement: nothing that would change what it does.

    Modules are compiled once, as they are for whoever has installed the package, and not at every start.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AGENTEST_", "GITHUB_")) and name != "PYTHONDONTWRITEBYTECODE"
    }
    return {**kept, "NO_COLOR": "1", "PYTHONPYCACHEPREFIX": _compiled_folder()}


_IMPORT_ALL = """
import importlib, pathlib
import agentest
folder = pathlib.Path(agentest.__file__).parent
for path in sorted(folder.rglob("*.py")):
    if path.stem not in ("__main__", "reaper") and path.parent.name not in ("on_path", "templates"):
        name = ".".join(("agentest", *path.relative_to(folder).with_suffix("").parts))
        importlib.import_module(name.removesuffix(".__init__"))
"""
"""What a run imports of ours and of others, but for litellm, which is imported when it is used."""


@cache
def _compiled_folder() -> str:
    """Where this process's children keep their compiled modules."""
    folder = tempfile.TemporaryDirectory(prefix="agentest-bench-compiled-")
    atexit.register(folder.cleanup)
    # The first program would pay for all the others.
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": folder.name}
    compiled.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", _IMPORT_ALL], env=compiled, check=True)
    return folder.name


def interleaved(cases: Mapping[Case, Callable[[], Sample]], runs: int) -> dict[Case, Sample]:
    """The median of each case over several rounds; every other round goes backwards.

    Interleaving spreads what else the machine does over all cases alike.
    """
    samples: dict[Case, list[Sample]] = {name: [] for name in cases}
    for round_number in range(runs):
        for name in list(cases) if round_number % 2 == 0 else reversed(list(cases)):
            samples[name].append(cases[name]())
    return {name: _median(found) for name, found in samples.items()}


def _median(samples: Sequence[Sample]) -> Sample:
    return Sample(
        median(sample.wall_s for sample in samples),
        median(sample.cpu_s for sample in samples),
        median(sample.peak_mb for sample in samples),
    )
