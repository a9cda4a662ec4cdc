"""One workload on Ray gives the results, journal, reports and output of one process."""

from __future__ import annotations

import os

import pytest
from engine_workload import PRINTING, check_the_same
from project import Project

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not os.environ.get("AGENTEST_RAY"), reason="AGENTEST_RAY is not set"),
]


def test_ray_gives_the_same_results(project: Project) -> None:
    check_the_same(project, "--engine", "ray", "--workers", "2")


def test_scenarios_that_differ_at_every_import(project: Project) -> None:
    """Ray workers import the files again: the run does not start, and the error has a likely cause."""
    project.write("agentest.config.py", PRINTING)
    project.scenario("import uuid\nfor n in range(3):\n    scenario(uuid.uuid4().hex, turns=['go'])")
    done = project.run("--engine", "ray", "--workers", "2")
    assert done.returncode == 2
    assert "scenarios of a.sim.py are missing. These files are read again by each worker" in done.stderr
