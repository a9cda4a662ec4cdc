"""What it takes to begin: `--version`, `--help` and `--list`, beside imports alone."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.options import Options
from benchmarks.page import machine, ratio, table
from benchmarks.process import Sample, interleaved, measure
from benchmarks.workload import Workload, write_project

_FILES = 200
_RUNS_FACTOR = 5  # these runs are short
_CLICK, _LIBRARIES = "import click", "import httpx, pydantic, yaml, rich, anyio"
_FILES_ALONE = "import glob, runpy; [runpy.run_path(f) for f in glob.glob('*.sim.py')]"
_HEAD = ("", "wall ms", "CPU ms", "CPU of click", "CPU of libraries")
_NO_PORT = 9  # nothing is asked of it: --list runs nothing

COMMANDS: dict[str, list[str]] = {
    "`python -c pass`": ["-c", "pass"],
    f"`python -c '{_CLICK}'`": ["-c", _CLICK],
    f"`python -c '{_LIBRARIES}'`": ["-c", _LIBRARIES],
    "`agentest --version`": ["-m", "agentest", "--version"],
    "`agentest --help`": ["-m", "agentest", "--help"],
    "`agentest run --help`": ["-m", "agentest", "run", "--help"],
    f"{_FILES} scenario files run by themselves": ["-c", _FILES_ALONE],
    f"`agentest run --list`, {_FILES} files": ["-m", "agentest", "run", "--list"],
}


def section(options: Options) -> str:
    """Measure, and tell it in Markdown."""
    runs = options.runs * _RUNS_FACTOR
    with tempfile.TemporaryDirectory(prefix="agentest-bench-") as made:
        folder = Path(made)
        write_project(folder, Workload(scenarios=_FILES), _NO_PORT, _NO_PORT)
        commands = {name: [sys.executable, *rest] for name, rest in COMMANDS.items()}
        for command in commands.values():
            measure(command, folder)  # once, so that everything is compiled
        samples = interleaved({n: partial(measure, c, folder) for n, c in commands.items()}, runs)
    click, libraries = samples[f"`python -c '{_CLICK}'`"], samples[f"`python -c '{_LIBRARIES}'`"]
    rows = [_row(name, sample, click, libraries) for name, sample in samples.items()]
    return "\n\n".join([f"Medians of {runs} interleaved runs.", table(_HEAD, rows), machine()])


def _row(name: str, sample: Sample, click: Sample, libraries: Sample) -> list[str]:
    return [
        name,
        f"{sample.wall_s * 1000:.0f}",
        f"{sample.cpu_s * 1000:.0f}",
        ratio(sample.cpu_s, click.cpu_s),
        ratio(sample.cpu_s, libraries.cpu_s),
    ]
