"""Files that a user gives and that are none, never end, or lead out of the project: refused, and not read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openapi_documents import SHOP
from project import Project

from agentest.plugins.adk.formats.criteria import read_criteria
from agentest.plugins.servers.mcp.real_server import read_tools
from agentest.plugins.servers.rest.document import read_file
from agentest.support.errors import ConfigError, UsageError
from agentest.support.files import MOST_BYTES, check_user_file, read_user_bytes

ODD: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}
REST = {"server": {"command": "true", "ready": "http://127.0.0.1:9/"}}
GIVEN: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "agentest.config.yaml": (("run", "--config", "agentest.config.yaml"), {}),
    "agentest.config.py": (("run", "--config", "agentest.config.py"), {}),
    ".env": (("run",), {}),
    "told.md": (("run",), {"instructions_file": "told.md"}),
    "api.yaml": (("run",), {**REST, "rest_mock": {"openapi": "api.yaml"}}),
    "tools.json": (("run",), {**REST, "mcp_mock": {"tools": "tools.json"}}),
    "a.test.json": (("eval", "a.test.json"), {}),
    "test_config.json": (("eval", "fine.test.json"), {}),
    "results.json": (("show", "results.json"), {}),
    "judged.json": (("judge", "judged.json"), {}),
    "a.sim.py": (("run", "--list"), {}),
    "deep/a.sim.py": (("run", "deep/a.sim.py"), {}),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", GIVEN)
def test_pipes_and_devices_are_not_opened(project: Project, name: str, kind: str) -> None:
    """A pipe would be waited for, and a device read, for ever; the message names the file and what it is."""
    command, keys = GIVEN[name]
    project.write("fine.test.json", '[{"query": "x", "reference": "y"}]')
    project.scenario('scenario("s", turns=["x"])', "fine.sim.py")
    project.config("x", agent={"endpoint": "http://127.0.0.1:9/", "retries": 0, **keys})
    odd = project.root / name
    odd.parent.mkdir(exist_ok=True)
    odd.unlink(missing_ok=True)
    ODD[kind](odd)
    done = project.agentest(*command)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert name in said or "/dev/zero: " in said
    link_out = kind == "a device" and name.endswith(".sim.py")
    assert ("it is a link to /dev/zero" if link_out else f"it is {kind}, not a file") in said, said


def test_a_link_out_of_the_project_is_not_imported(project: Project, tmp_path_factory: Any) -> None:
    """It is errored by name, and its code never runs; a link to a file of the project is imported."""
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
    """The project is the whole repository, if there is one."""
    project.write("shared/c.py", "from agentest import scenario\nscenario('shared', turns=['x'])\n")
    (project.root / ".git").mkdir()
    (project.root / "one").mkdir()
    (project.root / "one" / "c.sim.py").symlink_to("../shared/c.py")
    project.config("http://127.0.0.1:9/").rename(project.root / "one" / "agentest.config.yaml")
    done = project.run("--cwd", "one", "--list")
    assert done.returncode == 0, done.stderr
    assert "shared" in done.stdout


def test_the_size_is_looked_at_first(tmp_path: Path) -> None:
    """A file that is too large is not read, and one that does not tell its size is read up to the limit."""
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # it takes no room
    for read in (check_user_file, read_user_bytes, read_file, read_tools, read_criteria):
        with pytest.raises((OSError, ValueError, ConfigError, UsageError), match="50,000,001 bytes; at most"):
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


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_number_of_very_many_digits(project: Project, suffix: str) -> None:
    """It is named as that, in every file: not with a traceback, nor with advice for programmers."""
    digits = "9" * 5_000
    text = json.dumps(SHOP)[:-1] + f', "x-number": {digits}}}'
    path = project.write(f"api.{suffix}", text if suffix == "json" else text.replace("{", "\n{", 1))
    if suffix == "yaml":
        path.write_text(f"openapi: 3.1.0\nx-number: {digits}\n")
    with pytest.raises(
        ConfigError, match="a number has more than 4,300 digits; write it as a text"
    ) as caught:
        read_file(path)
    assert str(caught.value).startswith(str(path) + (":2: " if suffix == "yaml" else ": "))
    tools = project.write("tools.json", f'{{"tools": [], "n": {digits}}}')
    with pytest.raises(ValueError, match="is not JSON: a number has more than 4,300 digits"):
        read_tools(tools)
    criteria = project.write("test_config.json", f'{{"criteria": {{"x": {digits}}}}}')
    with pytest.raises(UsageError, match="is not valid JSON: a number has more than 4,300 digits"):
        read_criteria(criteria)
    project.write("agentest.config.yaml", f"agent: {{endpoint: http://h/}}\nmax_turns: {digits}\n")
    done = project.run()
    assert done.returncode == 2
    assert "a number has more than 4,300 digits" in done.stderr
    assert "set_int_max_str_digits" not in done.stderr


class Counted(str):
    """A text that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_very_many_keys_that_are_given_twice(tmp_path: Path) -> None:
    """The first key that is given twice is found without comparing each with each."""
    from agentest.plugins.servers.rest.document import _unique

    Counted.compared = 0
    names = [Counted(f"key {n}") for n in range(4_000)]
    with pytest.raises(ValueError, match="the key 'key 3999' is given twice in one object"):
        _unique([(name, 1) for name in [*names, Counted("key 3999")]])
    assert Counted.compared < 20_000
    path = tmp_path / "api.json"
    path.write_text("{" + ", ".join(f'"key {n // 2}": 1' for n in range(80_000)) + "}")
    with pytest.raises(ConfigError, match="the key 'key 0' is given twice"):
        read_file(path)
