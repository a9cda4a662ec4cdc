"""Confidence of a run's figures in results.json, console and summary, and after judging again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from project import Project

CONFIG = """
from itertools import count

turns = count()

def handler(messages, ctx):
    return "No." if messages[-1]["content"] == "break" and next(turns) % 4 == 0 else "Sure."

config = {"agent": {"type": "custom", "name": "little", "handler": handler}}
"""
SCENARIOS = """
check = {"contains": "Sure"}
scenario("breaks", turns=[{"user_message": "break", "expect": check}], conversations_per_scenario=8,
         thresholds={"pass_rate": 0.5})
scenario("holds", turns=[{"user_message": "hold", "expect": check}], conversations_per_scenario=8)
"""


def test_reports_show_intervals(project: Project, tmp_path: Path) -> None:
    """Six of eight and eight of eight pass: results.json and every report have rates, pass^k and flaky, and
    judging again, from a file without them, gives the same."""
    project.write("agentest.config.py", CONFIG)
    project.scenario(SCENARIOS)
    summary = tmp_path / "summary.md"
    reporters = [part for name in ("console", "json", "github-actions") for part in ("--reporter", name)]
    ran = project.run("--offline", *reporters, env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6/8 conversations passed · flaky\n" in ran.stdout
    assert "(n 16 in 2 scenarios)\n" in ran.stdout
    detailed = project.agentest("show", "-v").stdout
    assert "6/8 conversations passed (75% [41–93%], pass_rate ≥ 0.5) · flaky · 8 turns" in detailed
    rates = "(n 16 in 2 scenarios)  pass^2 77%  pass^3 68%  pass^5 55%"
    assert rates in detailed
    limits = (
        "With 8 conversations per scenario, drops from 90% to 53% are detectable. "
        "Use --conversations 13 to detect a drop to 60%."
    )
    assert ran.stdout.count(limits) == 1
    assert limits in summary.read_text("utf-8")

    document = project.results
    breaks = next(each for each in document["scenarios"] if each["name"] == "breaks")
    assert breaks["passed"]
    assert breaks["flaky"]
    assert breaks["passRate"] == {
        "value": 0.75,
        "n": 8,
        "low": pytest.approx(0.409, abs=1e-3),
        "high": pytest.approx(0.929, abs=1e-3),
    }
    assert breaks["passHatK"]["2"] == pytest.approx(6 * 5 / (8 * 7))
    assert list(breaks["passHatK"]) == [str(k) for k in range(1, 9)]
    assert document["summary"]["passRate"]["n"] == 16

    for each in document["scenarios"]:
        for key in ("passRate", "passHatK", "flaky"):
            each.pop(key, None)
    del document["summary"]["passRate"]
    project.write("older.json", json.dumps(document))
    again = project.agentest("judge", "older.json", "--offline", "-v")
    assert rates in again.stdout, again.stdout + again.stderr
