"""A turn that nobody waits for any more closes its connection, over real HTTP."""

from __future__ import annotations

import pytest
from hanging_agents import PLAIN, check_interrupted_run, check_stopped_run, check_timed_out_turn
from project import Project


def test_a_turn_that_timed_out(project: Project) -> None:
    check_timed_out_turn(project, PLAIN, [])


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["here", "workers"])
def test_an_interrupted_run(project: Project, arguments: tuple[str, ...]) -> None:
    check_interrupted_run(project, PLAIN, [], *arguments)


def test_a_run_that_is_stopped(project: Project) -> None:
    check_stopped_run(project, PLAIN, [])
