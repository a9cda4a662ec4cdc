"""Output of `agentest run` by default, with -q and with -v, and changes since the last run."""

from __future__ import annotations

from typing import Any

import pytest
from project import Project

CONFIG = """
from pathlib import Path

def answer(messages, ctx):
    broken = Path("broken").read_text().split() if Path("broken").exists() else []
    return "no" if messages[-1]["content"] in broken else "yes"

config = {"agent": {"type": "custom", "handler": answer}, "max_turns": 2}
"""


def write(project: Project, *files: int) -> None:
    """Write files with this many scenarios each."""
    project.write("agentest.config.py", CONFIG)
    for number, scenarios in enumerate(files):
        turn = '{{"user_message": "{0}", "expect": {{"contains": "yes"}}}}'
        names = [f"{number}-{n}" for n in range(scenarios)]
        rows = [f'scenario("{name}", turns=[{turn.format(name)}])' for name in names]
        project.write(f"f{number:04}.sim.py", "from agentest import scenario\n" + "\n".join(rows))


def lines(project: Project, *options: str) -> list[str]:
    return project.run("--offline", *options).stdout.splitlines()


@pytest.mark.parametrize(
    ("files", "most"),
    [((3,), 12), ((10, 10, 10, 10), 30), ((1,) * 40, 30), ((40,), 30), ((50,) * 20, 40)],
    ids=["3 in one file", "40 in four", "40 in forty", "40 in one", "1,000 in twenty"],
)
def test_a_passing_run_fits_a_screen(project: Project, files: tuple[int, ...], most: int) -> None:
    """The number of lines does not grow with the number of scenarios that pass."""
    write(project, *files)
    assert len(lines(project)) <= most


def test_failures_are_listed_by_cause(project: Project) -> None:
    """A cause has a block with file and line of its scenarios; what passed is a number."""
    write(project, 10, 10)
    project.write("broken", "1-3")
    found = lines(project, "--concurrency", "1")
    assert not any(row.startswith("✓") for row in found)
    failure = found.index("✗ contains: expected 'yes' in the reply  1 scenario")
    assert found[failure + 1] == "  f0001.sim.py:5  1-3"
    assert "rerun      agentest run --last-failed --concurrency=1 --offline" in found
    found = lines(project, "--conversations", "2", "--no-strict", "--scenario", "1-3", "f0001.sim.py")
    assert "rerun      agentest run --last-failed --conversations=2 --offline --no-strict" in found


def test_a_quiet_run_prints_a_character_for_each_scenario(project: Project) -> None:
    """With -q, failures by cause follow the characters, and one line counts."""
    write(project, 3)
    project.write("broken", "0-1")
    first, *rest = lines(project, "-q", "--concurrency", "1")
    assert first == ".F."
    assert rest[1:3] == ["✗ contains: expected 'yes' in the reply  1 scenario", "  f0000.sim.py:3  0-1"]
    assert rest[-1].startswith("1 failed, 2 passed (3 scenarios, 3 conversations)")


def changes(project: Project) -> dict[str, Any]:
    found = project.results["summary"]["changes"]
    return {key: [each["name"] for each in rows] for key, rows in found.items() if rows}


def test_a_run_is_compared_with_the_last_one_of_the_same_selection(project: Project) -> None:
    """Other selections are ignored; --last-failed is compared with the last verdicts."""
    write(project, 4)
    lines(project, "--reporter", "json")
    assert changes(project) == {}
    project.write("broken", "0-0 0-1")
    text = "\n".join(lines(project, "--reporter", "console", "--reporter", "json"))
    assert changes(project) == {"newlyFailing": ["0-0", "0-1"]}
    assert "changes    2 newly failing" in text
    assert "f0000.sim.py:2  0-0 (newly failing)" in text
    project.write("broken", "0-1")
    lines(project, "--scenario", "=0-0", "--reporter", "json")
    assert changes(project) == {}
    text = "\n".join(lines(project, "--reporter", "console", "--reporter", "json"))
    assert changes(project) == {"newlyFixed": ["0-0"], "stillFailing": ["0-1"]}
    assert "changes    1 newly fixed, 1 still failing; fixed: '0-0'" in text
    project.write("broken", "")
    lines(project, "--last-failed", "--reporter", "json")
    assert changes(project) == {"newlyFixed": ["0-1"]}


def test_quiet_and_verbose_exclude_each_other(project: Project) -> None:
    """The error says so."""
    write(project, 1)
    done = project.run("-q", "-v")
    assert done.returncode == 2
    assert "--quiet and --verbose exclude each other" in done.stderr
