"""`agentest chat` prints and writes no secret."""

from __future__ import annotations

from project import Project
from spelled_secrets import (
    ENVIRONMENT,
    SPELLINGS,
    check_unreachable,
    everything,
    found_in,
    with_secrets,
)

from agentest.testing import Raw, ScriptedAgent


def test_an_agent_that_is_not_there(project: Project) -> None:
    check_unreachable(project, "chat")


def test_an_agent_that_breaks_down(project: Project) -> None:
    project.scenario('scenario("s", goal="g")')
    with ScriptedAgent([Raw("\n".join(SPELLINGS).encode(), status=403)]) as agent:
        project.config(with_secrets(agent.endpoint))
        done = project.agentest("chat", env=ENVIRONMENT, typed="hello\n")
    assert done.returncode == 1
    assert "[redacted]" in done.stdout
    assert found_in(everything(project, done)) == []


def test_a_conversation_that_is_saved(project: Project) -> None:
    project.scenario('scenario("s", goal="g")')
    with ScriptedAgent(["\n".join(SPELLINGS)]) as agent:
        project.config(with_secrets(agent.endpoint))
        done = project.agentest(
            "chat", "--save", "sets/a.evalset.json::one", env=ENVIRONMENT, typed="hello\n"
        )
    assert done.returncode == 0, done.stderr
    assert "[redacted]" in (project.root / "sets/a.evalset.json").read_text()
    assert found_in(everything(project, done)) == []
