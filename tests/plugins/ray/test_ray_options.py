"""Options of `--engine ray` are checked at once, even if nothing would run."""

from __future__ import annotations

import pytest
from project import Project

from agentest.runner.engines import engine_of
from agentest.runner.environment import RESERVE, make_room
from agentest.runner.plan import Options
from agentest.runner.prepare import RunRequest, prepare

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


def test_workers_of_ray_have_limits_of_their_own(project: Project) -> None:
    """This process has no connections then; each worker uses its node's limit."""
    user = {"model": "openai/m", "provider_options": {"api_key": "k"}}
    project.config("http://127.0.0.1:9/", concurrency=100, user=user)
    project.scenario("for n in range(100):\n    scenario(f's{n}', goal='g', metrics=[])")
    run = prepare(RunRequest(project.root, options=Options(engine="ray")), {})
    assert engine_of(run.request.options).limited(run) == run
    asked: list[int] = []

    def allow(needed: int) -> int:
        asked.append(needed)
        return needed

    make_room(run, allow)
    assert asked == [RESERVE + 400]
