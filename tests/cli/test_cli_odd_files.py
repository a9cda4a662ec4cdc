"""User files that are not regular, never end, or lead out of the project are refused unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from odd_files import ODD, check_odd_file
from project import Project

from agentest.support.files import MOST_BYTES, check_user_file, read_user_bytes

GIVEN: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "agentest.config.yaml": (("run", "--config", "agentest.config.yaml"), {}),
    "agentest.config.py": (("run", "--config", "agentest.config.py"), {}),
    ".env": (("run",), {}),
    "told.md": (("run",), {"instructions_file": "told.md"}),
    "results.json": (("show", "results.json"), {}),
    "judged.json": (("judge", "judged.json"), {}),
    "a.sim.py": (("run", "--list"), {}),
    "deep/a.sim.py": (("run", "deep/a.sim.py"), {}),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", GIVEN)
def test_pipes_and_devices_are_not_opened(project: Project, name: str, kind: str) -> None:
    command, keys = GIVEN[name]
    check_odd_file(project, name, kind, command, keys)


def test_a_link_out_of_the_project_is_not_imported(project: Project, tmp_path_factory: Any) -> None:
    """It is errored by name without running its code; a link inside the project is imported."""
    outside = tmp_path_factory.mktemp("outside") / "b.py"
    outside.write_text(f"open({str(project.root / 'it-ran')!r}, 'w')\n")
    project.write("shared/c.py", "from agentest import scenario\nscenario('shared', turns=['x'])\n")
    (project.root / "b.sim.py").symlink_to(outside)
    (project.root / "c.sim.py").symlink_to("shared/c.py")
    project.config("http://127.0.0.1:9/")
    done = project.run("--list")
    assert done.returncode == 2
    assert f"it is a link to {outside}, outside of the project ({project.root})" in done.stderr
    assert "name the link in `exclude`" in done.stderr
    assert "shared" in done.stdout
    assert not (project.root / "it-ran").exists()
    project.config("http://127.0.0.1:9/", exclude=["b.sim.py"])
    assert project.run("--list").returncode == 0


def test_a_link_to_another_folder_of_the_repository(project: Project) -> None:
    """The project is the whole repository, if one exists."""
    project.write("shared/c.py", "from agentest import scenario\nscenario('shared', turns=['x'])\n")
    (project.root / ".git").mkdir()
    (project.root / "one").mkdir()
    (project.root / "one" / "c.sim.py").symlink_to("../shared/c.py")
    project.config("http://127.0.0.1:9/").rename(project.root / "one" / "agentest.config.yaml")
    done = project.run("--cwd", "one", "--list")
    assert done.returncode == 0, done.stderr
    assert "shared" in done.stdout


def test_the_size_is_checked_first(tmp_path: Path) -> None:
    """A file that is too large is not read; one of unknown size is read up to the limit."""
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # it takes no room
    for read in (check_user_file, read_user_bytes):
        with pytest.raises((OSError, ValueError), match="50,000,001 bytes; at most"):
            read(large)
    assert read_user_bytes(Path("/proc/self/stat"))
    with pytest.raises(OSError, match="more than 10 bytes"):
        read_user_bytes(Path("/proc/self/stat"), 10)
    sparse = tmp_path / "agentest.config.yaml"
    with sparse.open("wb") as file:
        file.truncate(6_000_000)
    done = Project(tmp_path).run()
    assert done.returncode == 2
    assert "it has 6,000,000 bytes; at most 5,000,000 are read" in done.stderr


def test_a_number_of_very_many_digits(project: Project) -> None:
    """The error says so, without a traceback or Python's advice."""
    digits = "9" * 5_000
    project.write("agentest.config.yaml", f"agent: {{endpoint: http://h/}}\nmax_turns: {digits}\n")
    done = project.run()
    assert done.returncode == 2
    assert "a number has more than 4,300 digits" in done.stderr
    assert "set_int_max_str_digits" not in done.stderr
