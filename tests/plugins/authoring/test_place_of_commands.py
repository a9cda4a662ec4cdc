"""Commands of plug-ins that are started below their configuration find it, as `run` does."""

from __future__ import annotations

import json
from pathlib import Path

from project import Project

AGENT = """
def handler(messages, ctx):
    return open("data.txt").read() + messages[-1]["content"]


config = {"agent": {"type": "custom", "handler": handler}, "reporters": ["json"]}
"""
SET = [{"query": "hi", "expected_tool_use": [], "reference": "data: hi"}]


def test_commands_find_the_configuration_above(tmp_path: Path) -> None:
    top, user = Project(tmp_path), Project(tmp_path / "sets" / "deep")
    user.root.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    top.write("agentest.config.py", AGENT)
    top.write("data.txt", "data: ")
    top.scenario("scenario('deep', turns=['hi'])", "sets/deep/d.sim.py")
    user.write("x.test.json", json.dumps(SET))
    evaluated = user.agentest("eval", "x.test.json")
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    assert top.results["scenarios"][0]["file"] == "sets/deep/x.test.json"
    assert (
        user.agentest("eval", "x.test.json:none")
        .stderr.splitlines()[-1]
        .startswith("agentest: sets/deep/x.test.json: there is no case `none`")
    )
    chatted = user.agentest("chat", "--scenario", "deep", typed="you there\n")
    assert "agent  data: you there" in chatted.stdout
    covered = user.agentest("coverage", "--format", "json")
    assert (covered.returncode, covered.stderr) == (0, "agentest: configuration: ../../agentest.config.py\n")
