"""Evaluation sets and criteria that are not regular files, or too large, are refused unread."""

from __future__ import annotations

from pathlib import Path

import pytest
from odd_files import ODD, check_odd_file
from project import Project

from agentest.plugins.adk.formats.criteria import read_criteria
from agentest.support.errors import UsageError
from agentest.support.files import MOST_BYTES


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize(("name", "given"), [("a.test.json",) * 2, ("test_config.json", "fine.test.json")])
def test_pipes_and_devices_are_not_opened(project: Project, name: str, given: str, kind: str) -> None:
    check_odd_file(project, name, kind, ("eval", given), {})


def test_the_size_is_looked_at_first(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # it takes no room
    with pytest.raises(UsageError, match="50,000,001 bytes; at most"):
        read_criteria(large)


def test_a_number_of_very_many_digits(project: Project) -> None:
    criteria = project.write("test_config.json", f'{{"criteria": {{"x": {"9" * 5_000}}}}}')
    with pytest.raises(UsageError, match="is not JSON: number out of range"):
        read_criteria(criteria)
