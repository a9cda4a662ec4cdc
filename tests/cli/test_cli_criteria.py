"""Criteria on the command line: exit statuses, output, and judging again with new ones."""

from __future__ import annotations

import json

from model_server import Answer, ModelServer, Received, completion
from project import Project

from agentest.testing import ScriptedAgent

SCENARIOS = """
from agentest import Criterion

def pay(name, *criteria, **more):
    scenario(name, goal="Pay the bill.", turns=["I want to pay."], criteria=list(criteria), **more)

pay("violates", "Never asks for the card number", "Is polite", Criterion("Offers a voucher", required=False))
pay("unknown", "Writes a receipt")
pay("wishes", Criterion("Offers a voucher", required=False), expected_outcome="The bill is not paid.")
"""
RESULTS = {"card number": "violated", "receipt": "cannot tell", "voucher": "violated"}


def judge(received: Received) -> Answer:
    """Judge criteria by RESULTS, the goal as rightly not reached, and everything else as good."""
    question = str(received.body["messages"][-1]["content"]).split("\n\n")[-1]
    asked = json.dumps(received.body["response_format"])
    if '"result"' in asked:
        result = next((found for text, found in RESULTS.items() if text in question), "met")
        return completion({"reason": f"It is {result}.", "turn": 1, "result": result})
    if '"outcome"' in asked:
        return completion({"reason": "The card is blocked.", "outcome": "rightly not reached"})
    return completion({"reason": "Good.", **({"labels": []} if '"labels"' in asked else {"value": 5})})


def configure(project: Project, agent: ScriptedAgent, model: ModelServer, scenarios: str = SCENARIOS) -> None:
    known = {"provider": "openai-compatible", "provider_options": {"base_url": model.base_url}}
    project.config(agent.endpoint, model="m", judge={"batch": False}, **known)
    project.scenario(scenarios)


def test_criteria_decide_about_runs(project: Project) -> None:
    """The exit status is 1 for a violation, 2 for `cannot tell` or offline, 0 if optional."""
    with ScriptedAgent(["Your card number?"]) as agent, ModelServer(script=judge) as model:
        configure(project, agent, model)
        violated = project.run("--scenario", "violates", "--reporter", "github-actions", "--reporter", "json")
        found = project.results["scenarios"][0]
        unknown = project.run("--scenario", "unknown")
        wishes = project.run("--scenario", "wishes", "--verbose")
        offline = project.run("--offline")
    assert violated.returncode == 1, violated.stdout + violated.stderr
    assert "violated in turn 1: It is violated." in violated.stdout
    [conversation] = found["conversations"]
    assert [(c["text"], c["required"], c["result"]) for c in conversation["criteria"]] == [
        ("Never asks for the card number", True, "violated"),
        ("Is polite", True, "met"),
        ("Offers a voucher", False, "violated"),
    ]
    assert found["failures"] == ["criterion 'Never asks for the card number' violated: It is violated."]
    assert not conversation["passed"]
    assert unknown.returncode == 2
    assert "criterion 'Writes a receipt' could not be judged: It is cannot tell." in unknown.stdout
    assert wishes.returncode == 0, wishes.stdout
    assert "- Offers a voucher (not required)  violated in turn 1: It is violated." in wishes.stdout
    assert "goal_completion 1  rightly not reached: The card is blocked." in wishes.stdout
    assert offline.returncode == 2
    assert "could not be judged: no model configured  1 scenario" in offline.stdout
    assert "name one (`model`, --model), or let the criterion decide nothing" in offline.stdout


def test_new_criteria_judge_an_earlier_run(project: Project) -> None:
    """`agentest judge` evaluates criteria added to a scenario after the run."""
    plain = 'scenario("s", goal="Pay.", turns=["I want to pay."])'
    with ScriptedAgent(["Your card number?"]) as agent, ModelServer(script=judge) as model:
        configure(project, agent, model, plain)
        assert project.run().returncode == 0
        project.scenario(plain.replace(")", ', criteria=["Never asks for the card number"])'))
        asked = len(agent.requests)
        done = project.agentest("judge", ".agentest/results.json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(agent.requests) == asked
    judged = json.loads((project.root / ".agentest" / "judged.json").read_text())
    assert judged["scenarios"][0]["conversations"][0]["criteria"][0]["result"] == "violated"
