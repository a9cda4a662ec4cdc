"""Bans of tools that no mock server has, from outside."""

from __future__ import annotations

from pathlib import Path

from project import Project
from stock_agent import StockAgent

NOTE = "has no such tool, so its calls are seen by nobody if the agent has it elsewhere"


def test_a_ban_that_nobody_could_see_broken_is_told(tmp_path: Path) -> None:
    """Tools of the agent's own are not seen at a mock server: bans of them are named, and those alone."""
    project = Project(tmp_path)
    project.scenario(
        """
bans = {"forbidden": ["refund"], "max_calls_per_tool": {"pay": 1, "stock": 1}}
scenario("careful", turns=["hello"], tools={"stock": {"n": 1}, "pay": 1}, trajectory=bans)
scenario("another", turns=[{"user_message": "x", "trajectory": {"forbidden": ["pay"]}}], tools={"stock": 1})
"""
    )
    with StockAgent() as agent:
        agent.configure(project)
        ran = project.run()
        agent.configure(project, traces=True)
        traced = project.run()
        agent.configure(project, tool_visibility="reported")
        vouched = project.run()
    told = " ".join((ran.stdout + ran.stderr).split())
    assert told.count(NOTE) == 1, told
    assert "'careful' (a.sim.py:4): 'refund' is forbidden, limited or put in order" in told
    assert "put in order, and `mcp_mock` of agent 'agent'" in told
    for other in (traced, vouched):
        assert NOTE not in " ".join((other.stdout + other.stderr).split())
