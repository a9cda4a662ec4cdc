"""What judges know about the agent, on the command line: with workers, and when judged again."""

from __future__ import annotations

import json

from model_server import ModelServer, best, model_keys
from project import Project, free_port

from agentest.testing import ScriptedAgent

RULES = "Never promise a refund."
BLOCK = '<data name="{}">\n{}\n</data>'


def prompts(model: ModelServer) -> list[str]:
    """The judges' prompts since the last call, each as one text."""
    asked = ["\n".join(m["content"] for m in each.body["messages"]) for each in model.received]
    model.received.clear()
    return [text for text in asked if "You judge how" in text]


def test_what_judges_know_in_workers_and_again(project: Project) -> None:
    """With workers, judges get instructions from a file, tools of servers, and the date; judging again gives
    the same, with the conversation's date if known, and notes about unreadable files."""
    project.write("rules.md", RULES)
    listed = {"tools": [{"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}}]}
    project.write("tools.json", json.dumps(listed))
    for name in ("a", "b"):
        project.scenario(f'scenario("{name}", turns=["x"], goal="Get x.")', f"{name}.sim.py")
    with ScriptedAgent(["fine"]) as agent, ModelServer(script=best) as model:
        settings = {
            "endpoint": agent.endpoint,
            "instructions_file": "rules.md",
            "mcp_mock": {"tools": "tools.json", "port": free_port()},
        }
        project.config(agent.endpoint, agent=settings, metrics=["helpfulness"], **model_keys(model))
        project.run("--workers", "2")
        live, results = prompts(model), project.results
        for scenario in results["scenarios"]:
            for turn in scenario["conversations"][0]["turns"]:
                turn["startedAt"] = "2020-02-03T04:05:06+05:30"
        project.write("dated.json", json.dumps(results))
        project.write(
            "undated.json", json.dumps(results).replace(', "startedAt": "2020-02-03T04:05:06+05:30"', "")
        )
        project.agentest("judge", "dated.json")
        dated = prompts(model)
        (project.root / "tools.json").unlink()
        done = project.agentest("judge", "undated.json")
        undated = prompts(model)
    assert [len(live), len(dated), len(undated)] == [2, 2, 2]
    for text in (*live, *dated, *undated):
        assert BLOCK.format("assistant_instructions", RULES) in text
    for text in (*live, *dated):
        assert BLOCK.format("assistant_tools", "look(): Looks.") in text
    today = results["startedAt"][:4]
    assert all('<data name="date_and_time">' in text and f", {today}-" in text for text in live)
    assert all(
        BLOCK.format("date_and_time", "Monday, 2020-02-03, 04:05 (UTC+05:30)") in text for text in dated
    )
    assert not any("date_and_time" in text or "assistant_tools" in text for text in undated)
    assert "judges do not know which tools the mock servers of agent" in done.stdout + done.stderr
    assert all("refund" not in json.dumps(request) for request in agent.requests)
