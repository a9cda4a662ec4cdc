"""`agentest eval` prints and writes no secret."""

from __future__ import annotations

import json

import said_secrets
from project import Project
from spelled_secrets import (
    BASIC,
    ENVIRONMENT,
    KEY,
    PASSWORD,
    check_unreachable,
    everything,
    found_in,
    with_secrets,
)

from agentest.testing import Raw, ScriptedAgent


def test_an_agent_that_is_not_there(project: Project) -> None:
    check_unreachable(project, "eval", "a.test.json")


def test_a_password_that_breaks_its_address(project: Project) -> None:
    done = project.agentest("eval", "a.test.json", "--agent", "http://bot:zq/91@127.0.0.1:9/")
    assert done.returncode == 2
    assert "%2F" in done.stderr
    assert found_in(done.stdout + done.stderr) == []


def test_an_agent_named_on_the_command_line(project: Project) -> None:
    """Secrets in a URL on the command line are hidden, with or without a configuration."""
    project.write("a.test.json", '[{"query": "x", "reference": "y"}]')
    with ScriptedAgent([Raw(f"wrong: {BASIC} {PASSWORD} {KEY}".encode(), status=403)]) as agent:
        url = with_secrets(agent.endpoint)
        for name, value in ENVIRONMENT.items():
            url = url.replace(f"${{{name}}}", value)
        done = [project.agentest("eval", "a.test.json", "--agent", url, "--verbose")]
        project.config("http://127.0.0.1:9/")
        done += [project.agentest("eval", "a.test.json", "--agent", url, "--verbose")]
    assert all("wrong: [redacted] [redacted] [redacted]" in each.stdout for each in done)
    assert found_in(everything(project, *done)) == []


def test_secrets_in_cases_and_replies(project: Project) -> None:
    """A secret that the agent repeats and a case expects is hidden."""
    case = [{"query": said_secrets.SECRETS["BOT_TOKEN"], "reference": "no"}]
    project.write("a.test.json", json.dumps(case))
    with ScriptedAgent(said_secrets.answer) as agent:
        settings = {"endpoint": agent.endpoint, "headers": said_secrets.HEADERS}
        project.config(agent.endpoint, agent=settings)
        command = ("eval", "a.test.json", "--verbose", "--print-detailed-results")
        done = project.agentest(*command, env=said_secrets.environment(project))
    assert "[redacted]" in done.stdout, done.stdout + done.stderr
    (project.root / "a.test.json").unlink()
    assert said_secrets.found_in(said_secrets.everything(project, done)) == []
