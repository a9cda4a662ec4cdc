"""`python -m benchmarks explore_lab`: explore every bug and its right twin, and print what was found."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks.explore_lab.bugs import BUGS
from benchmarks.explore_lab.server import serving
from benchmarks.process import environment
from benchmarks.results import table

_SCENARIOS = Path(__file__).parent / "scenarios"
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Explored:
    """An exploration. `files`: saved scenarios, and how many fail with the bug and pass with its twin."""

    bug: str
    is_right: bool
    seed: int
    findings: Sequence[dict[str, Any]]
    conversations: int
    seconds: float
    problem: str
    files: tuple[int, int] = (0, 0)


@contextmanager
def project(bug: str, is_right: bool, port: int, keep: Path | None = None) -> Iterator[Path]:
    """A folder as a team has it: the configuration and the scenarios of one bug."""
    with tempfile.TemporaryDirectory(prefix="agentest-lab-") as made:
        folder = Path(made)
        (folder / "scenarios").mkdir()
        # Stored without `.sim.py`, so that `agentest run` in this repository does not discover them.
        shutil.copy(_SCENARIOS / f"{bug}.py", folder / "scenarios" / f"{bug}.sim.py")
        configure(folder, bug, is_right, port)
        yield folder
        if keep:
            shutil.copytree(folder, keep / f"{bug}-{'right' if is_right else 'bug'}", dirs_exist_ok=True)


def configure(folder: Path, bug: str, is_right: bool, port: int) -> None:
    """Write the configuration of one form of an agent."""
    home = BUGS[bug].home
    tools = [
        {
            "name": tool,
            "parameters": {
                "type": "object",
                "properties": {
                    name: {"type": kind} if isinstance(kind, str) else kind for name, kind in given.items()
                },
                "required": list(given),
            },
        }
        for tool, given in home.TOOLS.items()
    ]
    system = {"role": "system", "content": f"{home.INSTRUCTIONS} Today is {{{{date}}}}."}
    agent = {
        "endpoint": f"http://127.0.0.1:{port}/{bug}/{'right' if is_right else 'bug'}/v1/chat/completions",
        "body": {"messages": [system]},
        "tools": tools,
    }
    (folder / "agentest.config.yaml").write_text(yaml.safe_dump({"agent": agent}), "utf-8")


def agentest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of agentest in a project."""
    command = [sys.executable, "-m", "agentest", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )


def explore(bug: str, is_right: bool, seed: int, given: argparse.Namespace, port: int) -> Explored:
    """Explore one form of an agent as users do."""
    with project(bug, is_right, port, given.keep) as folder:
        began = time.perf_counter()
        budget = ("--conversations", str(given.conversations), "--seed", str(seed))
        done = agentest(folder, "explore", "-q", *budget, *given.explore)
        seconds = time.perf_counter() - began
        results = list((folder / ".agentest" / "runs").glob("*/results.json"))
        if done.returncode not in (0, 1) or not results:
            return Explored(
                bug, is_right, seed, [], 0, seconds, f"exit {done.returncode}: {done.stderr[-300:]}"
            )
        found = json.loads(max(results).read_text("utf-8"))
        findings = found.get("findings") or []
        files = [finding["file"] for finding in findings if finding.get("file")]
        kept = 0
        if not is_right:
            fails = [agentest(folder, "run", "-q", file).returncode == 1 for file in files]
            configure(folder, bug, True, port)
            kept = sum(
                fails[n] and agentest(folder, "run", "-q", file).returncode == 0
                for n, file in enumerate(files)
            )
    conversations = found["explored"]["conversations"]
    return Explored(bug, is_right, seed, findings, conversations, seconds, "", (len(files), kept))


def main(arguments: Sequence[str]) -> None:
    """Explore some or all bugs, and print a table; exit with 1 if a twin has a finding."""
    given = _options(arguments)
    with serving() as port, ThreadPoolExecutor(given.jobs) as pool:
        if given.serve:
            print(f"http://127.0.0.1:{port}/BUG/bug|right/v1/chat/completions", flush=True)
            time.sleep(given.serve)
            return
        jobs = [
            pool.submit(explore, bug, is_right, seed, given, port)
            for seed in given.seeds
            for bug in given.bugs
            for is_right in (False, True)
            if not (is_right and given.no_twins)
        ]
        explored = [job.result() for job in jobs]
    print(page(explored, given.bugs))
    if given.json:
        given.json.write_text(json.dumps([vars(one) for one in explored], indent=1), "utf-8")
    sys.exit(any(one.problem or (one.is_right and one.findings) for one in explored))


def page(explored: Sequence[Explored], bugs: Sequence[str]) -> str:
    """The table, and each finding on a twin."""
    cells, found_in, lines = [], 0, []
    seeds = len({one.seed for one in explored})
    for bug in bugs:
        mine = [one for one in explored if one.bug == bug]
        twins = [one for one in mine if one.is_right]
        false = {(one.seed, finding["id"]) for one in twins for finding in one.findings}
        wrong = [one for one in mine if not one.is_right]
        found = [[f for f in one.findings if (one.seed, f["id"]) not in false] for one in wrong]
        hits = [fs for fs in found if fs]
        found_in += len(hits)
        cells.append(
            [
                bug,
                BUGS[bug].kind,
                "; ".join(sorted({f"{f['oracle']} ({f['severity']})" for fs in hits for f in fs})[:3])
                or "**not found**",
                f"{len(hits)}/{len(wrong)}",
                f"{mean(min(f.get('conversationsToFind', 0) for f in fs) for fs in hits):.0f}"
                if hits
                else "–",
                str(sum(map(len, found))),
                f"{sum(one.files[1] for one in wrong)}/{sum(one.files[0] for one in wrong)}",
                str(len(false)),
                f"{mean(one.conversations for one in mine):.0f}",
            ]
        )
        lines += [
            f"- false: {one.bug} seed {one.seed}: {f['id']} ({f['severity']}): {f['title']}: {f['text'][:80]}"
            for one in twins
            for f in one.findings
        ]
        lines += [
            f"- problem: {one.bug} {'right' if one.is_right else 'bug'}: {one.problem}"
            for one in mine
            if one.problem
        ]
    head = (
        "bug",
        "what is wrong",
        "found by",
        "found",
        "in conversations",
        "findings",
        "files right",
        "false",
        "used",
    )
    false_findings = sum(line.startswith("- false") for line in lines)
    total = f"Found {found_in} of {len(bugs) * seeds}; {false_findings} false findings on twins."
    return "\n".join([table(head, cells, 3), "", total, *lines])


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks explore_lab", description=__doc__)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--bugs", nargs="+", default=list(BUGS), metavar="BUG", help="names or parts of names"
    )
    parser.add_argument("--jobs", type=int, default=2, help="explorations at once")
    parser.add_argument(
        "--explore", nargs="+", default=[], metavar="=OPTION", help="more options, like =--no-shrink"
    )
    parser.add_argument("--no-twins", action="store_true", help="explore the agents with bugs only")
    parser.add_argument("--keep", type=Path, help="copy the folders of all explorations here")
    parser.add_argument("--json", type=Path, help="write all findings here")
    parser.add_argument(
        "--serve", type=float, default=0, metavar="SECONDS", help="serve the agents only, to try them"
    )
    given = parser.parse_args(arguments)
    given.explore = [option.removeprefix("=") for option in given.explore]
    given.bugs = [bug for bug in BUGS if any(part in bug for part in given.bugs)]
    return given
