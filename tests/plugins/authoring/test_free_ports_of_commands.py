"""Agents at free ports: commands other than `run` that start the agent."""

from __future__ import annotations

import re

from port_agents import agent, configure
from project import Project, answers


def test_doctor_and_chat(project: Project) -> None:
    """Other commands that start the agent also use a free port."""
    configure(project, agent())
    project.scenario('scenario("a", turns=["hi"])')
    told = project.agentest("doctor")
    assert "http://127.0.0.1:{port}/v1 answers; its `server` was started" in told.stdout, told.stdout
    talked = project.agentest("chat", "--scenario", "a", typed="hello\n/quit\n")
    assert talked.returncode == 0, talked.stdout + talked.stderr
    (port, told) = re.findall(r"\b2\d{4}\b|\b3[01]\d{3}\b", talked.stdout)[:2]
    assert port == told
    assert not answers(int(port))
