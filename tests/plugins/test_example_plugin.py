"""The example plug-in of `docs/plugins.md`, installed as a package next to Agentest."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from project import Project

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
PAGE = ROOT / "docs" / "plugins.md"


def install(source: Path, site: Path) -> None:
    """Install a package into a folder, by the tools that its pyproject.toml names, without a network."""
    wheels = site.with_name(f"{site.name}-wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    for wheel in wheels.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(site)
    shutil.rmtree(wheels)


def copy_of_example(folder: Path, name: str, changes: Mapping[str, str]) -> Path:
    """Copy the package under another name, with changes of its plugin.py."""
    copy = folder / name
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("project", "__pycache__"))
    (copy / "acme_agentest").rename(copy / f"{name}_agentest")
    for path in (copy / "pyproject.toml", *copy.rglob("*.py")):
        text = path.read_text(encoding="utf-8").replace("acme-agentest", f"{name}-agentest")
        text = text.replace("acme_agentest", f"{name}_agentest")
        for old, new in changes.items() if path.name == "plugin.py" else ():
            assert old in text
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where the example is installed."""
    folder = tmp_path_factory.mktemp("site")
    install(EXAMPLE, folder)
    return folder


@pytest.fixture
def acme(project: Project, site: Path) -> tuple[Project, dict[str, str]]:
    """The project of the example, and the environment in which the plug-in is installed."""
    shutil.copytree(EXAMPLE / "project", project.root, dirs_exist_ok=True)
    python = project.write("bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return project, {"PYTHONPATH": str(site), "PATH": f"{python.parent}:/usr/bin:/bin"}


def test_a_run_uses_every_feature(acme: tuple[Project, dict[str, str]]) -> None:
    """The agent's type and call source, the metric, the reporter and the engine take part in one run."""
    project, env = acme
    done = project.agentest("run", "--engine", "gentle", "--reporter", "json", "--reporter", "csv", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plug-in" not in done.stderr
    result = project.results["scenarios"][0]
    conversation = result["conversations"][0]
    (turn,), (evaluation,) = conversation["turns"], conversation["evaluation"]["turnEvaluations"]
    assert turn["agentMessage"] == "I am sorry, shipping has lost your order."
    assert [(call["name"], call["seenBy"]) for call in turn["toolCalls"]] == [("find_order", "agent")]
    assert evaluation["metrics"]["apologies"]["value"] == 1
    with (project.root / ".agentest" / "results.csv").open() as file:
        assert list(csv.reader(file))[1] == ["says what became of an order", "agent", "passed"]
    refused = project.agentest("run", "--engine", "gentel", env=env)
    assert refused.returncode == 2
    assert "'gentel' is not one of 'local', 'workers', 'ray', 'gentle'" in refused.stderr


def test_the_command_reads_a_stored_run(acme: tuple[Project, dict[str, str]]) -> None:
    """The help lists it in its own section."""
    project, env = acme
    assert project.agentest("run", env=env).returncode == 0
    done = project.agentest("slowest", env=env)
    assert re.fullmatch(r"\d+ ms  says what became of an order: Where is order 17\?\n", done.stdout)
    listed = project.agentest("--help", env=env).stdout
    assert re.search(r"^Plug-ins:\n(?:  .*\n)*  slowest +Print the slowest replies of a run\.$", listed, re.M)


def test_traces_of_the_form_become_scenarios(acme: tuple[Project, dict[str, str]]) -> None:
    """Records are recognized, and calls become mocks."""
    project, env = acme
    done = project.agentest("import", "log.jsonl", "--output", "log.sim.yaml", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "agentest: read 1 acme records\n"
    assert "find_order:\n      status: sent" in (project.root / "log.sim.yaml").read_text()


def test_plugins_are_listed_with_their_packages(acme: tuple[Project, dict[str, str]]) -> None:
    """`agentest plugins` shows the source of each and what it adds."""
    project, env = acme
    done = project.agentest("plugins", env=env)
    assert done.returncode == 0, done.stderr
    listed = done.stdout[done.stdout.index("acme (acme-agentest 0.1.0)") :]
    for feature in ("acme", "acme-log", "gentle", "csv", "slowest", "apologies"):
        assert re.search(rf"\b{feature}\b", listed), listed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"import Plugin\n": "import Plugin\n\nimport no_such_thing\n"},
            r"plug-in 'bad_agentest.plugin' \(bad-agentest 0.1.0\) cannot be loaded: ModuleNotFoundError: No "
            r"module named 'no_such_thing' \(\S+/bad_agentest/plugin.py:5\)",
        ),
        (
            {},
            r"plug-in 'acme' \(bad-agentest 0.1.0; \S+/bad_agentest/plugin.py:6\) hands in the metric "
            r"'apologies', which plug-in 'acme' has already \(\S+/acme_agentest/plugin.py:6\): rename it",
        ),
    ],
    ids=["it cannot be imported", "it hands in a name twice"],
)
def test_a_bad_plugin_leaves_the_others(
    changes: dict[str, str], said: str, acme: tuple[Project, dict[str, str]], tmp_path: Path
) -> None:
    """Its package and line are named, and the others work."""
    project, env = acme
    bad = tmp_path / "site"
    install(copy_of_example(tmp_path, "bad", changes), bad)
    env["PYTHONPATH"] += f":{bad}"
    done = project.agentest("run", "--engine", "gentle", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(said, done.stderr)
    assert project.agentest("plugins", env=env).returncode == 2


def test_a_feature_that_cannot_be_imported_is_an_error_where_it_is_used(
    acme: tuple[Project, dict[str, str]], tmp_path: Path
) -> None:
    """Nothing is imported before, so other features of the plug-in work."""
    project, env = acme
    wrong = {'"apologies", "bad_agentest.metric:Apologies"': '"regrets", "bad_agentest.metric:Regrets"'}
    install(copy_of_example(tmp_path, "bad", wrong), tmp_path / "site")
    env["PYTHONPATH"] = str(tmp_path / "site")
    done = project.agentest("run", env=env)
    assert re.search("there is no metric 'apologies'; valid are: .*`regrets`", done.stderr)
    config = project.root / "agentest.config.yaml"
    config.write_text(config.read_text().replace("apologies", "regrets"), encoding="utf-8")
    done = project.agentest("run", env=env)
    assert done.returncode == 2
    assert re.search(
        r"metric 'regrets' of plug-in 'acme' \(\S+/plugin.py:6\) cannot be imported from "
        r"'bad_agentest.metric:Regrets': AttributeError: module 'bad_agentest.metric' has no attribute",
        done.stderr,
    )


def test_a_project_hands_in_features_of_its_own(project: Project) -> None:
    """`plugins: [module]` names a module next to the configuration."""
    shutil.copytree(EXAMPLE / "acme_agentest", project.root / "acme_agentest")
    shutil.copytree(EXAMPLE / "project", project.root, dirs_exist_ok=True)
    config = project.root / "agentest.config.yaml"
    text = config.read_text().replace("[python,", f"[{sys.executable!r},")
    config.write_text(f"{text}plugins: [acme_agentest.plugin]\n", encoding="utf-8")
    done = project.agentest("run", "--engine", "gentle", "--reporter", "csv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "acme (configuration)" in project.agentest("plugins").stdout
    assert project.agentest("slowest").returncode == 0
    assert project.agentest("import", "--as", "acme", "log.jsonl").returncode == 0


def test_the_page_shows_the_example() -> None:
    """The page has every module, the packaging and the configuration, unchanged."""
    page = PAGE.read_text(encoding="utf-8")
    files = [EXAMPLE / "pyproject.toml", EXAMPLE / "project" / "agentest.config.yaml"]
    files += [path for path in EXAMPLE.glob("acme_agentest/*.py") if path.name != "__init__.py"]
    assert len(files) == 10
    for path in files:
        assert f"\n{path.read_text(encoding='utf-8')}```" in page, path.name
