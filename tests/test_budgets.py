"""Budgets only fall: what they measure, and which histories of their file are valid."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from budgets import FILE, NoHistory, find_raises, lower, measure, untested


class Repository:
    """A git repository with budgets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "commit.gpgsign=false"]
        command = ["git", *who, *arguments]
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout

    def write(self, **numbers: int) -> None:
        (self.root / FILE).parent.mkdir(exist_ok=True)
        (self.root / FILE).write_text(json.dumps(numbers, indent=2) + "\n")

    def commit(self, **numbers: int) -> str:
        """Commit these budgets, or no file, and return the beginning of the commit's name."""
        if numbers:
            self.write(**numbers)
        else:
            (self.root / FILE).unlink()
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "Change", "--allow-empty")
        return self.git("rev-parse", "HEAD")[:8]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repository").mkdir()
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # set while a hook runs the tests
        monkeypatch.delenv(name, raising=False)


def test_numbers_may_fall(repository: Repository) -> None:
    """A new number is not compared with anything."""
    for lines in (100, 90, 90, 7):
        repository.commit(lines=lines, modules=3)
    repository.commit(lines=7, modules=2, rooms=9)
    repository.write(lines=5, modules=2, rooms=9)
    assert find_raises(repository.root) == []


def test_a_raise_is_always_found(repository: Repository) -> None:
    """A later commit that lowers the number again does not undo it."""
    repository.commit(lines=100, modules=3)
    raised = repository.commit(lines=101, modules=2)
    repository.commit(lines=50, modules=2)
    assert find_raises(repository.root) == [f"commit {raised} raises 'lines' from 100 to 101"]


def test_a_raise_is_found_before_it_is_committed(repository: Repository) -> None:
    repository.commit(lines=1_000)
    repository.write(lines=2_000)
    assert find_raises(repository.root) == ["the working tree raises 'lines' from 1,000 to 2,000"]


def test_a_number_cannot_be_dropped(repository: Repository) -> None:
    """Otherwise the next commit could start with a higher one."""
    repository.commit(lines=100, modules=3)
    without = repository.commit(lines=100)
    nothing = repository.commit()
    repository.commit(lines=200)
    assert find_raises(repository.root) == [
        f"commit {nothing} drops 'lines', which was 100",
        f"commit {without} drops 'modules', which was 3",
    ]


def test_branches_that_lower_different_numbers(repository: Repository) -> None:
    """A merge must take the lower number of both sides; a higher one is a raise."""
    repository.commit(lines=100, modules=30)
    repository.git("checkout", "-q", "-b", "other")
    repository.commit(lines=100, modules=20)
    repository.git("checkout", "-q", "main")
    repository.commit(lines=90, modules=30)
    repository.git("merge", "-q", "--no-commit", "--no-ff", "-s", "ours", "other")
    repository.commit(lines=90, modules=20)
    assert find_raises(repository.root) == []
    repository.git("reset", "-q", "--hard", "HEAD~1")
    repository.git("merge", "-q", "--no-commit", "--no-ff", "-s", "ours", "other")
    merge = repository.commit(lines=95, modules=20)
    assert find_raises(repository.root) == [f"commit {merge} raises 'lines' from 90 to 95"]


def test_without_a_history(repository: Repository, tmp_path: Path) -> None:
    """An unpacked archive, budgets that were never committed, and a shallow clone."""
    with pytest.raises(NoHistory, match="not a git repository"):
        find_raises(tmp_path)
    repository.git("commit", "-q", "--allow-empty", "-m", "Begin")
    repository.write(lines=1)
    with pytest.raises(NoHistory, match="never committed"):
        find_raises(repository.root)
    repository.commit(lines=100)
    repository.commit(lines=200)
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.root}", str(tmp_path / "clone"))
    with pytest.raises(NoHistory, match="shallow"):
        find_raises(tmp_path / "clone")


def test_measured_lines_and_parameters(tmp_path: Path) -> None:
    """Lines count from `def` to the end, parameters without `self`; plug-ins are not part of the core."""
    body = "".join(f"    x = {n}\n" for n in range(40))
    functions = f"@d\nasync def long():\n{body}\ndef short():\n{body[:-7]}" + "\n" * 400
    parameters = "class A:\n    def right(self, a, b, c, d, e, f, g, h, *i, **j): ...\n\n"
    parameters += "def over(a, /, b, c, d, e, f, g, *, h, i): ...\n"
    (tmp_path / "plugins").mkdir()
    (tmp_path / "one.py").write_text(functions)
    (tmp_path / "plugins" / "two.py").write_text(parameters)
    assert measure(tmp_path) == {
        "lines": {"one.py": functions.count("\n"), "plugins/two.py": 4},
        "lines of the core": {"one.py": functions.count("\n")},
        "modules": {"one.py": 1, "plugins/two.py": 1},
        "modules of the core": {"one.py": 1},
        "modules over 400 lines": {"one.py": 1},
        "functions over 40 lines": {"one.py:2 long": 1},
        "functions of over 8 parameters": {"plugins/two.py:4 over": 1},
    }


def test_budgets_are_lowered_to_the_current_numbers(tmp_path: Path) -> None:
    """A number that grew keeps its budget, so that the test of the package fails."""
    file = tmp_path / "budgets.json"
    file.write_text('{"lines": 100, "modules": 3, "not measured": 1}')
    lower(file, {"lines": 90, "modules": 4, "rooms": 2})
    assert json.loads(file.read_text()) == {"lines": 90, "modules": 3, "not measured": 1, "rooms": 2}


def test_the_share_that_no_test_runs_is_rounded_up(tmp_path: Path) -> None:
    report = tmp_path / "coverage.json"
    report.write_text('{"totals": {"num_statements": 3000, "missing_lines": 100}}')
    assert untested(report) == 34
