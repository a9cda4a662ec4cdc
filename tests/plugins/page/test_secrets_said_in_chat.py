"""A secret in an agent's message is neither in a chat nor in the page of a run."""

from __future__ import annotations

from model_server import ModelServer, best
from project import Project
from said_secrets import SCENARIOS, answer, configured, environment, everything, found_in, judge

from agentest.testing import ScriptedAgent


def test_a_chat(project: Project) -> None:
    """A chat shows a reply without secrets."""
    project.scenario('scenario("s", goal="g")')
    with ScriptedAgent(answer) as agent, ModelServer(best) as model:
        configured(project, agent, model)
        done = project.agentest("chat", env=environment(project), typed="spell\n")
    assert "[redacted]" in done.stdout
    assert found_in(done.stdout + done.stderr) == []


def test_the_page_of_a_run(project: Project) -> None:
    project.scenario(SCENARIOS)
    with ScriptedAgent(answer) as agent, ModelServer(script=judge) as model:
        configured(project, agent, model, reporters=["html"])
        done = project.run("--verbose", env=environment(project))
    assert "[redacted]" in (project.root / ".agentest" / "report.html").read_text("utf-8")
    assert found_in(everything(project, done)) == []
