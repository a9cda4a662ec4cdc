"""What it takes to begin: `--version`, `--help` and `--list` beside imports alone; and what is left out."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.fakes import fakes
from benchmarks.process import Failed, Sample, environment, interleaved, measure
from benchmarks.results import Found, Target, machine, ratio, table
from benchmarks.workload import Options, Workload, write_project

_FILES = 200
_RUNS_FACTOR = 5  # these runs are short
_CLICK, _LIBRARIES = "import click", "import httpx, pydantic, yaml, rich, anyio"
_ALONE = "import glob, runpy; [runpy.run_path(f) for f in glob.glob('*.sim.py')]"
_HEAD = ("", "wall ms", "CPU ms", "CPU of click", "CPU of libraries")
_NO_PORT = 9  # nothing is asked of it: --list runs nothing
_MOST_OF_CLICK, _MOST_LIST_S = 1.3, 0.5
_MODEL_LIBRARY = "litellm"

COMMANDS: dict[str, list[str]] = {
    "`python -c pass`": ["-c", "pass"],
    f"`python -c '{_CLICK}'`": ["-c", _CLICK],
    f"`python -c '{_LIBRARIES}'`": ["-c", _LIBRARIES],
    "`agentest --version`": ["-m", "agentest", "--version"],
    "`agentest --help`": ["-m", "agentest", "--help"],
    "`agentest run --help`": ["-m", "agentest", "run", "--help"],
    f"{_FILES} scenario files run by themselves": ["-c", _ALONE],
    f"`agentest run --list`, {_FILES} files": ["-m", "agentest", "run", "--list"],
}
_CLICK_ALONE, _LIBRARIES_ALONE = list(COMMANDS)[1:3]
_VERSION, _HELP = list(COMMANDS)[3:5]
_FILES_ALONE, _LIST = list(COMMANDS)[6:]


def section(options: Options) -> Found:
    """Measure, and tell it."""
    runs = options.runs * _RUNS_FACTOR
    with tempfile.TemporaryDirectory(prefix="agentest-bench-") as made:
        folder = Path(made)
        write_project(folder, Workload(scenarios=_FILES), _NO_PORT, _NO_PORT)
        commands = {name: [sys.executable, *rest] for name, rest in COMMANDS.items()}
        for command in commands.values():
            measure(command, folder)  # once, so that everything is compiled
        samples = interleaved({n: partial(measure, c, folder) for n, c in commands.items()}, runs)
    click, libraries = samples[_CLICK_ALONE], samples[_LIBRARIES_ALONE]
    rows = [_row(name, sample, click, libraries) for name, sample in samples.items()]
    text = "\n\n".join([f"Medians of {runs} interleaved runs.", table(_HEAD, rows), machine()])
    return Found(text, _targets(samples))


def _targets(samples: Mapping[str, Sample]) -> tuple[Target, ...]:
    click = samples[_CLICK_ALONE].cpu_s
    listed_s = samples[_LIST].cpu_s - samples[_FILES_ALONE].cpu_s
    return (
        Target("`--help`, CPU of `import click`", samples[_HELP].cpu_s / click, _MOST_OF_CLICK, "×"),
        Target("`--version`, CPU of `import click`", samples[_VERSION].cpu_s / click, _MOST_OF_CLICK, "×"),
        Target(f"`--list`, {_FILES} files, CPU beyond the files' own", listed_s, _MOST_LIST_S, "s"),
        Target(f"modules of {_MODEL_LIBRARY} that a run with a direct model imports", _imported(), 0, ""),
    )


def _imported() -> int:
    """How many modules of the model library a whole run imports, as the interpreter tells. Raises Failed."""
    work = Workload(scenarios=1, conversations_per_scenario=1, turns=1)
    with tempfile.TemporaryDirectory(prefix="agentest-bench-") as made, fakes(0.0, 0.0) as servers:
        write_project(Path(made), work, servers.agent_port, servers.model_port)
        command = [sys.executable, "-X", "importtime", "-m", "agentest", "run"]
        done = subprocess.run(command, cwd=made, env=environment(), capture_output=True, text=True)
    if done.returncode or "pydantic" not in done.stderr:
        raise Failed(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stdout}")
    modules = (line.rpartition("|")[2].strip() for line in done.stderr.splitlines())
    return sum(module.partition(".")[0] == _MODEL_LIBRARY for module in modules)


def _row(name: str, sample: Sample, click: Sample, libraries: Sample) -> list[str]:
    return [
        name,
        f"{sample.wall_s * 1000:.0f}",
        f"{sample.cpu_s * 1000:.0f}",
        ratio(sample.cpu_s, click.cpu_s),
        ratio(sample.cpu_s, libraries.cpu_s),
    ]
