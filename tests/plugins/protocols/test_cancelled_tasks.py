"""A turn that nobody waits for any more is cancelled on the server, over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from hanging_agents import A2A, GRAPH, check_interrupted_run, check_stopped_run, check_timed_out_turn
from project import Project

KINDS = pytest.mark.parametrize(
    ("agent", "cancelled"), [(A2A, ["t-1"]), (GRAPH, ["r-1"])], ids=["a2a", "langgraph"]
)


@KINDS
def test_a_turn_that_timed_out(project: Project, agent: dict[str, Any], cancelled: list[str]) -> None:
    check_timed_out_turn(project, agent, cancelled)


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["here", "workers"])
@KINDS
def test_an_interrupted_run(
    project: Project, agent: dict[str, Any], cancelled: list[str], arguments: tuple[str, ...]
) -> None:
    check_interrupted_run(project, agent, cancelled, *arguments)


@KINDS
def test_a_run_that_is_stopped(project: Project, agent: dict[str, Any], cancelled: list[str]) -> None:
    check_stopped_run(project, agent, cancelled)
