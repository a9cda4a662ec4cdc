"""Options of `--engine ray` are checked at once, also where nothing would be run."""

from __future__ import annotations

import pytest
from project import Project

COMMANDS = [["run"], ["run", "--list"], ["run", "--dry-run"], ["eval", "set.test.json"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_empty_address_is_refused(project: Project, command: list[str]) -> None:
    project.config("http://127.0.0.1:9/")
    project.scenario("scenario('a', turns=['hello'])")
    done = project.agentest(*command, "--engine", "ray", "--ray-address", "")
    assert (done.returncode, done.stderr) == (
        2,
        "agentest: --ray-address is empty: name a cluster, or remove it to start a local Ray\n",
    )
    assert not (project.root / ".agentest").exists()


def test_the_engine_is_listed_with_what_it_needs(project: Project) -> None:
    rows = project.agentest("plugins").stdout.splitlines()
    assert "ray (built in, needs agentest-sim[ray])" in rows
