"""The forecast before a run."""

from __future__ import annotations

import re

from project import Project

from agentest.testing import ScriptedAgent


def test_the_latest_run_forecasts_the_next(project: Project) -> None:
    """Without a run there is no forecast; then --dry-run and console name the run and new scenarios."""
    project.scenario('scenario("a", turns=["go"])')
    with ScriptedAgent(lambda body: "done") as agent:
        project.config(agent.endpoint)
        assert "the duration is unknown" in project.run("--dry-run").stdout
        first = project.run()
        assert "expect " not in first.stdout
        project.scenario('scenario("b", turns=["go"])', "b.sim.py")
        told = project.run("--dry-run").stdout
        second = project.run()
    assert re.search(r"expected: about \d+ s, by the run of ", told)
    assert "1 of 2 scenarios is new: estimated from the average" in told
    assert re.search(r"expect  about \d+ s, by the run of ", second.stdout)
