"""Measure, print, and write the tables of docs/performance.md: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import (
    cpu_section,
    memory_section,
    models_section,
    profile_section,
    run_section,
    startup_section,
)
from benchmarks.options import Options
from benchmarks.page import write
from benchmarks.process import Failed
from benchmarks.workload import Workload

WRITTEN: dict[str, Callable[[Options], str]] = {
    "run": run_section.section,
    "cpu": cpu_section.section,
    "models": models_section.section,
    "startup": startup_section.section,
    "memory": memory_section.section,
}
PRINTED: dict[str, Callable[[Options], str]] = {"profile": profile_section.section}
SECTIONS = {**WRITTEN, **PRINTED}


def main() -> None:
    """Measure the sections that are asked for, one after another."""
    given = _arguments()
    work = Workload(
        scenarios=given.scenarios,
        turns=given.turns,
        agent_s=given.agent_ms / 1000,
        model_s=given.model_ms / 1000,
    )
    options = Options(work, given.concurrency, given.runs)
    try:
        for name in given.sections or WRITTEN:
            text = SECTIONS[name](options)
            print(f"## {name}\n\n{text}\n", flush=True)
            if name in WRITTEN and given.write:
                write(name, text)
    except Failed as error:
        sys.exit(f"benchmarks: {error}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "sections", nargs="*", metavar="section", help=f"{', '.join(SECTIONS)} (default: all but profile)"
    )
    parser.add_argument("--scenarios", type=_at_least_one, default=20, help="default: %(default)s")
    parser.add_argument("--turns", type=_at_least_one, default=4, help="default: %(default)s")
    parser.add_argument("--concurrency", type=_at_least_one, default=20, help="default: %(default)s")
    parser.add_argument("--agent-ms", type=float, default=50.0, help="default: %(default)g")
    parser.add_argument("--model-ms", type=float, default=200.0, help="default: %(default)g")
    parser.add_argument("--runs", type=_at_least_one, default=3, help="rounds to take the median of")
    parser.add_argument(
        "--no-write", dest="write", action="store_false", help="leave docs/performance.md as it is"
    )
    given = parser.parse_args()
    for name in given.sections:
        if name not in SECTIONS:
            parser.error(f"there is no section {name!r}; there are {', '.join(SECTIONS)}")
    return given


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


if __name__ == "__main__":
    main()
