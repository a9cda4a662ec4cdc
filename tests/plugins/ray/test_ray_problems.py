"""Errors if Ray cannot be used or a cluster not joined, without Ray."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
from project import Project, free_port

from agentest.plugins.ray.address import ProjectFiles
from agentest.plugins.ray.cluster import check_installed, describe_join_failure
from agentest.plugins.ray.engine import describe_death, describe_failed_start
from agentest.support.errors import UsageError

BROKEN = "from opentelemetry_is_missing import metrics\n"
OF_TOKEN = "RPC error: InvalidAuthToken: Authentication token is missing or incorrect. Note: RAY_AUTH_MODE"
OF_VERSIONS = "Version mismatch: The cluster was started with:\n  Ray: 2.59.0\n This process: Ray: 2.60.0"
OF_SIZE = "Package size (600.00MiB) exceeds the maximum size of 512.00MiB. You can exclude large files"


def caused(problem: Exception, cause: str) -> Exception:
    problem.__cause__ = RuntimeError(cause)
    return problem


def said(problem: BaseException, root: Path = Path("/project")) -> str:
    return describe_join_failure(problem, ProjectFiles(root))


def test_a_cluster_that_requires_a_token() -> None:
    """Ray reports it only in the exception's cause."""
    told = said(caused(ConnectionError("Failed to connect to Ray cluster at a:1"), OF_TOKEN))
    assert told.startswith("the cluster requires a token, which is missing or wrong here")
    assert "RAY_AUTH_MODE=token" in told
    assert "RAY_AUTH_TOKEN" in told


def test_a_cluster_of_another_version() -> None:
    told = said(RuntimeError(OF_VERSIONS))
    assert told.startswith("the cluster has other versions of Ray or Python than this process")
    assert "Ray: 2.59.0" in told


def test_files_that_are_too_large(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "a.bin").open("wb") as file:
        file.truncate(7_000_000)
    (tmp_path / "small.txt").write_text("x")
    told = said(ValueError(OF_SIZE), tmp_path)
    assert "largest: data (7 MB). Name what the run does not need in .rayignore" in told


def test_any_other_problem_is_told_in_a_line() -> None:
    assert said(ConnectionError("no\n  way")) == "the cluster cannot be joined: no way"


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (None, r"needs Ray: pip install 'ray\[default\]'"),
        (
            "2.39.0",
            r"needs Ray 2\.40 or newer, and 2\.39\.0 is installed: pip install -U 'ray",
        ),
    ],
    ids=["missing", "too-old"],
)
def test_ray_is_missing_or_too_old(version: str | None, problem: str) -> None:
    def version_of(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    with pytest.raises(UsageError, match=problem):
        check_installed(version_of)


@pytest.mark.parametrize("version", ["2.40.0", "2.100.0", "3.0.0rc1"])
def test_ray_is_new_enough(version: str) -> None:
    check_installed(lambda name: version)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with room for sibling folders."""
    root = tmp_path / "project"
    root.mkdir()
    return Project(root)


def installed(project: Project, ray: str, version: str = "2.60.0") -> dict[str, str]:
    """The environment of a process in which this is Ray."""
    folder = project.root.parent / "packages"
    (folder / "ray").mkdir(parents=True)
    (folder / "ray" / "__init__.py").write_text(ray)
    about = folder / f"ray-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
    inherited = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{inherited}" if inherited else str(folder)}


def refused(project: Project, ray: str, version: str = "2.60.0", *options: str) -> str:
    """The error of a refused run."""
    project.config("http://127.0.0.1:9/v1")
    project.scenario("scenario('a', turns=['hello'])")
    done = project.run("--engine", "ray", *options, env=installed(project, ray, version))
    assert done.returncode == 2, done.stdout + done.stderr
    assert not (project.root / ".agentest" / "results.json").exists()
    return done.stderr


@pytest.mark.slow
def test_a_run_with_a_ray_that_is_too_old(project: Project) -> None:
    told = refused(project, "raise AssertionError('is not imported')\n", "2.39.1")
    assert "agentest: --engine ray needs Ray 2.40 or newer, and 2.39.1 is installed" in told


@pytest.mark.slow
def test_a_run_with_a_ray_that_lacks_what_it_imports(project: Project) -> None:
    told = refused(project, BROKEN)
    assert told.splitlines()[-1] == (
        "agentest: --engine ray: Ray is not installed with all that it needs (No module named "
        "'opentelemetry_is_missing'): pip install 'ray[default]'"
    )


@pytest.mark.slow
def test_a_run_with_a_ray_that_lacks_what_it_imports_as_it_starts(project: Project) -> None:
    ray = f"def init(**options):\n    {BROKEN}\ndef shutdown(): pass\n"
    told = refused(project, ray)
    assert "(No module named 'opentelemetry_is_missing'): pip install 'ray[default]'" in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_scenario_outside_of_what_travels(project: Project) -> None:
    beside = project.root.parent / "beside.sim.py"
    beside.write_text("from agentest import scenario\nscenario('b', turns=['hello'])\n")
    told = refused(project, "", "2.60.0", "--ray-address", f"127.0.0.1:{free_port()}", "../beside.sim.py")
    assert f"--engine ray: {beside} is not below {project.root}" in told


def test_an_owner_that_the_cluster_cannot_reach() -> None:
    told = "The actor is dead because all references to the actor were removed including lineage ref count."
    assert "ray://HOST:10001" in describe_failed_start(told)
    assert "RAY_AUTH_MODE=disabled" in describe_failed_start(told)
    other = "The actor died: the worker process has died."
    assert (
        describe_failed_start(other)
        == describe_death(other)
        == "has died: its process was killed, or has crashed"
    )
