"""A secret in the output of a program agent is in no output of a run."""

from __future__ import annotations

import sys

from project import Project
from said_secrets import environment, everything, found_in


def test_an_agent_without_a_server(project: Project) -> None:
    project.write(
        "agent.py",
        "import json, os, sys\nsys.stdin.read()\n"
        "print(json.dumps({'reply': 'mine are ' + json.dumps(dict(os.environ))}))\n"
        "print(os.environ['BOT_TOKEN'], file=sys.stderr)\n",
    )
    project.scenario('scenario("s", turns=["x"])')
    agent = {
        "type": "command",
        "command": [sys.executable, "agent.py"],
        "env": {"A_TOKEN": "${NESTED_SECRET}"},
        "input": "json",
        "reply": "reply",
    }
    project.config("x", agent=agent)
    done = project.run("--verbose", env=environment(project))
    assert "[redacted]" in done.stdout, done.stdout + done.stderr
    assert found_in(everything(project, done)) == []
