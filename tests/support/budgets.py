"""The budgets of the package: numbers in tests/budgets.json that a commit may lower and none may raise.

`python tests/support/budgets.py` lowers them to what the package is now. With a JSON report of coverage, it
also holds that to its budget.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = "tests/budgets.json"
UNTESTED = "statements in a thousand that no test runs"
LINES_OF_FUNCTION, LINES_OF_MODULE, PARAMETERS = 40, 400, 8

Budgets = Mapping[str, int]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class NoHistory(Exception):
    """Raised if there are no earlier budgets to compare with."""


def measure(package: Path) -> dict[str, dict[str, int]]:
    """Return what each budget limits: how much of it is in which modules or functions."""
    texts = {p.relative_to(package).as_posix(): p.read_text("utf-8") for p in sorted(package.rglob("*.py"))}
    lines = {name: text.count("\n") for name, text in texts.items()}
    core = {name: number for name, number in lines.items() if not name.startswith("plugins/")}
    functions = {
        f"{name}:{node.lineno} {node.name}": node
        for name, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, _Function)
    }
    return {
        "lines": lines,
        "lines of the core": core,
        "modules": dict.fromkeys(lines, 1),
        "modules of the core": dict.fromkeys(core, 1),
        f"modules over {LINES_OF_MODULE} lines": {
            name: 1 for name, number in lines.items() if number > LINES_OF_MODULE
        },
        f"functions over {LINES_OF_FUNCTION} lines": {
            name: 1 for name, node in functions.items() if _length(node) > LINES_OF_FUNCTION
        },
        f"functions of over {PARAMETERS} parameters": {
            name: 1 for name, node in functions.items() if _parameters(node) > PARAMETERS
        },
    }


def _length(function: _Function) -> int:
    """Lines from `def` to the end, without decorators."""
    return (function.end_lineno or 0) - function.lineno + 1


def _parameters(function: _Function) -> int:
    """Parameters that a caller may give, without `*args` and `**options`."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def find_raises(root: Path) -> list[str]:
    """Return a line for each budget that a commit, or the file as it is now, raises or drops.

    Raises NoHistory outside a git repository, in a shallow clone, and before the file is committed.
    """
    if _git(root, "rev-parse", "--is-shallow-repository") == "true\n":
        raise NoHistory("the clone is shallow")
    commits = [line.split() for line in _git(root, "log", "--format=%H %P", "--", FILE).splitlines()]
    if not commits:
        raise NoHistory(f"{FILE} was never committed")
    versions = _versions(root, {"HEAD", *(name for names in commits for name in names)})
    file = root / FILE
    now: Budgets = json.loads(file.read_text("utf-8")) if file.exists() else {}
    steps = [("the working tree", now, versions["HEAD"])]
    for commit, *parents in commits:
        steps += [(f"commit {commit[:8]}", versions[commit], versions[parent]) for parent in parents]
    return [f"{step} {problem}" for step, new, old in steps for problem in _raised(old, new)]


def _raised(old: Budgets, new: Budgets) -> Iterator[str]:
    for name, number in old.items():
        if name not in new:
            yield f"drops {name!r}, which was {number:,}"
        elif new[name] > number:
            yield f"raises {name!r} from {number:,} to {new[name]:,}"


def _versions(root: Path, commits: set[str]) -> dict[str, Budgets]:
    """Return the budgets of each commit, none where it has no such file."""
    asked = "".join(f"{commit}:./{FILE}\n" for commit in commits)
    rest = _git(root, "cat-file", "--batch", typed=asked)
    found: dict[str, Budgets] = {}
    for commit in commits:
        head, _, rest = rest.partition("\n")
        if head.endswith(" missing"):
            found[commit] = {}
        else:  # the file is ASCII, so its bytes are characters
            size = int(head.split()[2])
            found[commit], rest = json.loads(rest[:size]), rest[size + 1 :]
    return found


def _git(root: Path, *arguments: str, typed: str = "") -> str:
    # In a container the folder often belongs to another user, which git refuses unless it is told otherwise.
    command = ["git", "-c", "safe.directory=*", *arguments]
    try:
        done = subprocess.run(command, cwd=root, input=typed, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoHistory("git is not installed") from error
    if done.returncode:
        raise NoHistory(done.stderr.strip())
    return done.stdout


def untested(report: Path) -> int:
    """Return how many statements in a thousand a coverage run did not reach, rounded up."""
    totals = json.loads(report.read_text("utf-8"))["totals"]
    return -(-1000 * totals["missing_lines"] // totals["num_statements"])


def lower(file: Path, numbers: Budgets) -> None:
    """Write each number that is lower than its budget, and each that has none."""
    budgets = json.loads(file.read_text("utf-8")) if file.exists() else {}
    lowered = budgets | {name: min(number, budgets.get(name, number)) for name, number in numbers.items()}
    file.write_text(json.dumps(lowered, indent=2) + "\n", "utf-8")


def main(arguments: list[str]) -> None:
    """Lower the budgets; with a report of coverage, fail if it is over its own."""
    from test_layers import numbers

    now = numbers()
    if arguments:
        now[UNTESTED] = untested(Path(arguments[0]))
    lower(ROOT / FILE, now)
    limit = json.loads((ROOT / FILE).read_text("utf-8")).get(UNTESTED)
    if now.get(UNTESTED, 0) > (limit or 0):
        sys.exit(f"{UNTESTED}: {now[UNTESTED]}, at most {limit}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    main(sys.argv[1:])
