"""Clusters that cannot be joined, or whose nodes lack something: each is refused with what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import Project
from ray_cluster import RayCluster, ray_cluster

from agentest.version import __version__

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not os.environ.get("AGENTEST_RAY"), reason="AGENTEST_RAY is not set"),
]

CONFIG = """
async def handler(messages, ctx):
    return "fine"

config = {"agent": {"type": "custom", "name": "h", "handler": handler}, "reporters": ["console", "json"]}
"""
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}


def has_tokens() -> bool:
    """Whether this version of Ray can ask for one."""
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(map(int, version.split(".")[:2])) >= (2, 52)


def refused(project: Project, cluster: RayCluster, env: dict[str, str]) -> str:
    """The error of a refused run."""
    project.write("agentest.config.py", CONFIG)
    project.scenario("scenario('a', turns=['hello'])")
    done = project.run("--engine", "ray", "--ray-address", cluster.address, env=env)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (project.root / ".agentest" / "results.json").exists()
    return done.stderr


@pytest.fixture(scope="module")
def other() -> Iterator[RayCluster]:
    """A cluster with another version of Ray, which requires a token if it can."""
    with ray_cluster(0, {"VERSION_OF_THE_TEST": "2.39.7", **TOKEN}) as cluster:
        yield cluster


@pytest.mark.skipif(not has_tokens(), reason="this version of Ray has no tokens")
@pytest.mark.parametrize(
    "env", [NO_TOKEN, {**TOKEN, "RAY_AUTH_TOKEN": "another" * 8}], ids=["none", "another"]
)
def test_a_cluster_that_asks_for_a_token(project: Project, other: RayCluster, env: dict[str, str]) -> None:
    told = refused(project, other, env)
    assert "the cluster requires a token, which is missing or wrong here" in told
    assert "set RAY_AUTH_MODE=token, with the token in RAY_AUTH_TOKEN or ~/.ray/auth_token" in told
    assert TOKEN["RAY_AUTH_TOKEN"] not in told


def test_a_cluster_of_another_version_of_ray(project: Project, other: RayCluster) -> None:
    told = refused(project, other, TOKEN)
    assert "the cluster has other versions of Ray or Python than this process; both must be the same" in told
    assert "Ray: 2.39.7" in told
    assert f"Ray: {importlib.metadata.version('ray')}" in told


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which the nodes import first."""
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def one_node(packages: Path) -> Iterator[RayCluster]:
    """A cluster of one node whose agentest is what a test makes of it."""
    with ray_cluster(1, {"PYTHONPATH": str(packages)}) as cluster:
        yield cluster


def on_the_node(packages: Path, **modules: str) -> None:
    (packages / "agentest").mkdir(exist_ok=True)
    for name, text in modules.items():
        (packages / "agentest" / f"{name}.py").write_text(text)


def test_a_node_without_agentest(project: Project, one_node: RayCluster, packages: Path) -> None:
    on_the_node(packages, __init__="raise ModuleNotFoundError('No module named agentest', name='agentest')\n")
    told = refused(project, one_node, NO_TOKEN)
    assert " has no agentest. There, or in the cluster's image: " in told
    assert f"pip install '.[ray]' in a checkout of Agentest {__version__}" in told


def test_a_node_with_another_agentest(project: Project, one_node: RayCluster, packages: Path) -> None:
    on_the_node(packages, __init__="", version="__version__ = '0.0.1'\n")
    told = refused(project, one_node, NO_TOKEN)
    assert f"agentest has another version than here ({__version__}) on node " in told
    assert ": 0.0.1. There, or in the cluster's image: " in told
    assert f"pip install '.[ray]' in a checkout of Agentest {__version__}" in told


def test_files_that_are_too_large(project: Project, one_node: RayCluster) -> None:
    (project.root / "data").mkdir()
    (project.root / "data" / "a.bin").write_bytes(os.urandom(3_000_000))  # it is sent packed
    told = refused(project, one_node, {**NO_TOKEN, "RAY_max_grpc_message_size": "1000000"})
    assert f"the files of {project.root} are too large to be sent to the nodes; largest: data (3 MB)." in told
    assert "Name what the run does not need in .rayignore" in told
