"""Explorations with models: a budget of model calls is never exceeded, and recorded models answer again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from explore_lab import Act, Seen, endpoint_of
from model_server import Answer, ModelServer, Received, best, model_keys
from project import Project

SCENARIO = """
scenario("help", goal="Get a refund.", profile="Kim", max_turns=2, metrics=["goal_completion"],
    tools={"refund": {"refund": "R-4711"}})
"""


def clerk(seen: Seen) -> Act:
    if "refund" not in seen.made:
        return "refund", {"id": "A-17"}
    answer = seen.result("refund")
    if isinstance(answer, dict) and "refund" in answer:
        return "Your refund R-4711 has been issued."
    return "Sorry, the refund did not go through."


def results_of(project: Project) -> dict[str, Any]:
    latest = max((project.root / ".agentest" / "runs").iterdir())
    found: dict[str, Any] = json.loads((latest / "results.json").read_text())
    return found


def test_model_calls_are_limited_exactly_and_the_exploration_ends_cleanly(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.scenario(SCENARIO)
    with endpoint_of(clerk) as url, ModelServer(script=best) as server:
        project.config(url, **model_keys(server))
        done = project.agentest("explore", "--faults=error,timeout", "--max-llm-calls=60", "--no-save", "-q")
        assert len(server.received) <= 60
    explored = results_of(project)["explored"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert explored["tries"] > 0
    assert explored["cost"] is None  # the price of the model is unknown
    assert results_of(project)["findings"] == []


def test_recorded_models_answer_an_equal_exploration(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.scenario(SCENARIO)
    options = ("explore", "--faults=error", "--no-save", "-q", "--no-cache")
    with endpoint_of(clerk) as url, ModelServer(script=best) as server:
        project.config(url, **model_keys(server))
        recorded = project.agentest(*options, "--record")
        asked, first = len(server.received), results_of(project)["explored"]
        assert recorded.returncode == 0, recorded.stdout + recorded.stderr
        again = project.agentest(*options, "--replay-or-record")
        assert again.returncode == 0, again.stdout + again.stderr
        assert len(server.received) == asked
    assert results_of(project)["explored"] == first


def test_an_exploration_ends_cleanly_when_its_money_is_spent(tmp_path: Path) -> None:
    def priced(received: Received) -> Answer:
        answer = json.loads(best(received).body)
        answer["usage"] = {"prompt_tokens": 10_000, "completion_tokens": 0}
        return Answer(json.dumps(answer).encode())

    project = Project(tmp_path)
    project.scenario(SCENARIO)
    with endpoint_of(clerk) as url, ModelServer(script=priced) as server:
        keys = {"model": "openai/gpt-4o-mini", "provider_options": {"base_url": server.base_url}}
        project.config(url, **keys)
        done = project.agentest(
            "explore", "--max-cost=0.05", "--no-save", "-q", env={"OPENAI_API_KEY": "sk-x"}
        )
    explored = results_of(project)["explored"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert 0 < explored["cost"] <= 0.05
    assert explored["tries"] > 0
    assert any("0.05 USD was spent" in each["why"] for each in explored["notTried"])
