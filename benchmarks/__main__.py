"""Measure, print, and write the tables of benchmarks/README.md: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable

from benchmarks import (
    comparison_section,
    cpu_section,
    eval_section,
    exploration_section,
    faults_section,
    gate,
    gateway_section,
    intervals_section,
    model_concurrency_section,
    models_section,
    path_section,
    ray_section,
    repeat_section,
    report_section,
    run_section,
    scale_section,
    startup_section,
    workers_section,
)
from benchmarks.explore_lab import lab
from benchmarks.process import Failed
from benchmarks.results import Found, machine, read_measured, summary, write, write_measured
from benchmarks.workload import Options, Workload

GATE = "gate"
WRITTEN: dict[str, Callable[[Options], Found]] = {
    "run": run_section.section,
    "cpu": cpu_section.section,
    "scale": scale_section.section,
    "workers": workers_section.section,
    "startup": startup_section.section,
    "faults": faults_section.section,
    "eval": eval_section.section,
    "models": models_section.section,
    "gateway": gateway_section.section,
    "intervals": intervals_section.section,
    "repeat": repeat_section.section,
    "explore": exploration_section.section,
    "compare": comparison_section.section,
}
ASKED: dict[str, Callable[[Options], Found]] = {"ray": ray_section.section}
"""Written, too, but measured only where it is asked for: Ray need not be installed."""
PRINTED: dict[str, Callable[[Options], Found]] = {
    "concurrency": model_concurrency_section.section,
    "page": report_section.section,
    "path": path_section.section,
    GATE: gate.section,
}
SECTIONS = {**WRITTEN, **ASKED, **PRINTED}
TARGETS = "targets"


def main() -> None:
    """Measure the sections that are asked for, one after another; then compare all with their targets."""
    if sys.argv[1:2] == ["explore_lab"]:  # it has options of its own, takes long and writes nothing
        lab.main(sys.argv[2:])
        return
    given = _arguments()
    work = Workload(
        scenarios=given.scenarios,
        turns=given.turns,
        agent_s=given.agent_ms / 1000,
        model_s=given.model_ms / 1000,
    )
    options = Options(work, given.concurrency, given.runs)
    try:
        _measure([name for name in given.sections or WRITTEN if name != TARGETS], options, given.write)
    except Failed as error:
        sys.exit(f"benchmarks: {error}")


def _measure(names: Iterable[str], options: Options, to_page: bool) -> None:
    """Measure sections; what was measured of the others before stays in the table of targets."""
    names = list(names)
    measured = read_measured()
    for name in names:
        found = SECTIONS[name](options)
        text = found.text if name == GATE else found.page()  # the gate's own table has its limits
        print(f"## {name}\n\n{text}\n", flush=True)
        if name == GATE and not all(target.met for target in found.targets):
            raise Failed("CPU is above a limit of the gate")
        if name in PRINTED:
            continue
        measured[name] = (machine(), found.targets)
        if to_page:
            write(name, found.page())
            write_measured(measured)
    if names and all(name in PRINTED for name in names):
        return
    text = summary({name: measured[name] for name in (*WRITTEN, *ASKED) if name in measured})
    print(f"## {TARGETS}\n\n{text}\n", flush=True)
    if to_page:
        write(TARGETS, text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known, unasked = ", ".join((*SECTIONS, TARGETS)), " and ".join((*ASKED, *PRINTED))
    parser.add_argument(
        "sections", nargs="*", metavar="section", help=f"{known} (default: all but {unasked})"
    )
    parser.add_argument("--scenarios", type=_at_least_one, default=20, help="default: %(default)s")
    parser.add_argument("--turns", type=_at_least_one, default=4, help="default: %(default)s")
    parser.add_argument("--concurrency", type=_at_least_one, default=20, help="default: %(default)s")
    parser.add_argument("--agent-ms", type=float, default=50.0, help="default: %(default)g")
    parser.add_argument("--model-ms", type=float, default=200.0, help="default: %(default)g")
    parser.add_argument("--runs", type=_at_least_one, default=3, help="rounds to take the median of")
    parser.add_argument(
        "--no-write", dest="write", action="store_false", help="leave benchmarks/README.md as it is"
    )
    given = parser.parse_args()
    for name in given.sections:
        if name not in (*SECTIONS, TARGETS):
            parser.error(f"there is no section {name!r}; there are {known}")
    return given


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


if __name__ == "__main__":
    main()
