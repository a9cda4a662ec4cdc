"""The lab of planted bugs: each can be reached from outside, and no scenario shows it."""

import sys
from pathlib import Path

import pytest

# As in test_benchmarks.py.
sys.path.append(str(Path(__file__).parent.parent))

from benchmarks.explore_lab.bugs import BUGS
from benchmarks.explore_lab.lab import agentest, project
from benchmarks.explore_lab.server import serving, talk


def test_there_are_thirty_bugs() -> None:
    """Each has scenarios, and there are no others."""
    folder = Path(sys.modules["benchmarks.explore_lab"].__path__[0]) / "scenarios"
    assert {file.stem for file in folder.glob("*.py")} == set(BUGS)
    assert len(BUGS) == 30


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_shows_and_its_twin_is_right(name: str) -> None:
    """The same words and the same tools: only the agent with the bug does what is wrong."""
    bug = BUGS[name]
    assert bug.shows(talk(name, False, bug.said, bug.tools, bug.today))
    assert not bug.shows(talk(name, True, bug.said, bug.tools, bug.today))


@pytest.mark.slow
@pytest.mark.parametrize("is_right", [False, True], ids=["bug", "right"])
def test_scenarios_pass_with_bug_and_twin(is_right: bool) -> None:
    """What a team has written says nothing about the bug."""
    with serving() as port:
        for name in BUGS:
            with project(name, is_right, port) as folder:
                done = agentest(folder, "run")
                assert done.returncode == 0, f"{name}: {done.stdout}"
