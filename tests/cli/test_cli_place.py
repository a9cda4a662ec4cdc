"""A run started below its configuration: which one it finds, and what paths are relative to."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import Project

from agentest.cli.location import Project as FoundProject
from agentest.cli.location import project_of
from agentest.config.file import find_config, find_config_above
from agentest.support.errors import ConfigError

CONFIG = "agentest.config.yaml"


def repository(folder: Path) -> Path:
    """A folder with a repository and a configuration."""
    (folder / ".git").mkdir()
    (folder / CONFIG).touch()
    return folder


def below(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir(parents=True)
    return made


def test_the_nearest_configuration_counts(tmp_path: Path) -> None:
    """The folder's own configuration comes first, then the nearest above it."""
    deep = below(repository(tmp_path), "a/b")
    assert find_config_above(deep) == tmp_path / CONFIG
    (tmp_path / "a" / "agentest.config.py").touch()
    assert find_config_above(deep) == tmp_path / "a" / "agentest.config.py"
    (deep / CONFIG).touch()
    assert find_config_above(deep) is None
    assert project_of(deep) == FoundProject(deep, deep)


def test_a_repository_is_the_limit(tmp_path: Path) -> None:
    """Folders above the repository are not searched; in a submodule `.git` is a file."""
    inner = below(repository(tmp_path), "vendor/inner/deep")
    (inner.parent / ".git").write_text("gitdir: elsewhere")
    assert find_config_above(inner) is None
    with pytest.raises(
        ConfigError, match=rf"no configuration found in {inner}, nor above it up to {inner.parent}, "
    ):
        find_config(inner)
    with pytest.raises(ConfigError, match=rf"no configuration found in {inner.parent}: expected"):
        find_config(inner.parent)


@pytest.mark.parametrize("name", ["agentest.yaml", "agentest.config.json"])
def test_a_configuration_with_another_name_is_to_be_renamed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"Rename {name} to agentest.config.yaml. --config PATH names"):
        find_config(tmp_path)


def test_without_a_repository_only_the_folder_is_searched(tmp_path: Path) -> None:
    (tmp_path / CONFIG).touch()
    assert find_config_above(below(tmp_path, "a")) is None


def test_paths_of_the_command_line(tmp_path: Path) -> None:
    """User paths are relative to the working directory, and may have case names."""
    here = below(repository(tmp_path), "sets/more")
    place = project_of(here)
    assert place.root == tmp_path
    assert place.path(Path("../x.json")) == here / "../x.json"
    assert place.from_root("x.test.json:one,two") == "sets/more/x.test.json:one,two"
    assert place.from_root("/x.test.json") == "/x.test.json"
    assert FoundProject(here, here).from_root("x.test.json") == "x.test.json"
    assert place.display_path(tmp_path / "results.json") == "../../results.json"


AGENT = """
def handler(messages, ctx):
    return open("data.txt").read() + messages[-1]["content"]


config = {"agent": {"type": "custom", "handler": handler}, "reporters": ["json"]}
"""


def test_commands_find_the_configuration_above(tmp_path: Path) -> None:
    """Every command prints the configuration it found, and works as if started next to it."""
    top, user = Project(tmp_path), Project(below(tmp_path, "sets/deep"))
    (tmp_path / ".git").mkdir()
    top.write("agentest.config.py", AGENT)
    top.write("data.txt", "data: ")
    top.write("other/" + CONFIG, "agent: {endpoint: 'http://127.0.0.1:9/'}\n")
    top.scenario("scenario('other', turns=['hi'])", "other/o.sim.py")
    top.scenario("scenario('top', turns=['hi'], expect={'never_says': 'Traceback'})")
    checks = "{'user_message': 'hi', 'expect': {'contains': 'data: hi'}}"
    top.scenario(f"scenario('deep', turns=[{checks}])", "sets/deep/d.sim.py")

    done = user.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.splitlines() == [
        "agentest: configuration: ../../agentest.config.py",
        "agentest: left out, as there is another configuration: other; "
        "agentest run --cwd ../../other runs it",
        "agentest: passed: 2 passed; ../../.agentest/results.json",
    ]
    assert [s["file"] for s in top.results["scenarios"]] == ["a.sim.py", "sets/deep/d.sim.py"]
    assert not (user.root / ".agentest").exists()

    judged = user.agentest("judge", "../../.agentest/results.json")
    assert (judged.returncode, judged.stderr.splitlines()[-1]) == (
        0,
        "agentest: passed: 2 passed; ../../.agentest/judged.json",
    )


def test_a_named_configuration_moves_nothing(tmp_path: Path) -> None:
    """With --config the run stays in the working directory, whatever is above."""
    top, user = Project(repository(tmp_path)), Project(below(tmp_path, "sub"))
    top.write("agentest.config.py", AGENT)
    top.scenario("scenario('top', turns=['hi'], expect={'never_says': 'Traceback'})")
    user.write("data.txt", "")
    user.scenario("scenario('mine', turns=['hi'], expect={'never_says': 'Traceback'})", "m.sim.py")
    done = user.run("--config", "../agentest.config.py")
    assert (done.returncode, done.stderr) == (0, "agentest: passed: 1 passed; .agentest/results.json\n")
    assert [s["name"] for s in user.results["scenarios"]] == ["mine"]
