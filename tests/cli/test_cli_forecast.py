"""The forecast before a run."""

from __future__ import annotations

import re

from project import Project

from agentest.testing import ScriptedAgent


def test_the_latest_run_forecasts_the_next(project: Project) -> None:
    """Without a run there is no forecast; then --dry-run names the run and new scenarios."""
    project.scenario('scenario("a", turns=["go"])')
    with ScriptedAgent(lambda body: "done") as agent:
        project.config(agent.endpoint)
        assert "the duration is unknown" in project.run("--dry-run").stdout
        project.run()
        project.scenario('scenario("b", turns=["go"])', "b.sim.py")
        told = project.run("--dry-run").stdout
    assert re.search(r"expected: about \d+ s, by the run of ", told)
    assert "1 of 2 scenarios is new: estimated from the average" in told


def test_a_configured_rate_bounds_the_first_run(project: Project) -> None:
    """Without an earlier run, --dry-run says how long the most calls take at the configured rate."""
    project.scenario('scenario("a", goal="g", conversations_per_scenario=30)')
    limited = {"judge": {"requests_per_minute": 60}, "metrics": ["goal_completion"], "max_turns": 2}
    project.config("http://127.0.0.1:9/", model="openai/m", **limited)
    told = project.run("--dry-run", "--no-strict").stdout
    assert "expected: rate-bound: at most 2 min for the model calls, at 60 requests a minute" in told, told
