"""Mock servers and span receivers of each worker, for the agent that it starts."""

from __future__ import annotations

import json

import pytest
from project import Project
from worker_agents import WORKERS, configure, turns

SCENARIOS = """
for n in range(4):
    scenario(
        f"s{n}", turns=["meet", "stock tea", "stock milk"], conversations_per_scenario=2,
        tools={"stock": (lambda n: lambda args, ctx: {**args, "n": n, "i": ctx.call_index})(n)},
        trajectory={"expected": [call("stock", item="tea"), call("stock", item="milk")]},
    )
"""


def test_with_mock_servers(project: Project) -> None:
    """Calls reach a mock server of the worker, and the scenario's mocks answer in order."""
    configure(project, mcp_mock=True, tool_visibility="reported")
    project.scenario(SCENARIOS)
    done = project.run(*WORKERS)
    assert done.returncode == 0, done.stdout + done.stderr
    for scenario in project.results["scenarios"]:
        n = int(scenario["name"][1:])
        for held in scenario["conversations"]:
            calls = [(c["result"], c["seenBy"]) for turn in held["turns"] for c in turn["toolCalls"]]
            assert calls == [
                ({"item": "tea", "n": n, "i": 0}, "mock-server"),
                ({"item": "milk", "n": n, "i": 1}, "mock-server"),
            ]


@pytest.mark.slow
def test_with_traces(project: Project) -> None:
    """Spans reach a receiver of the worker, and are stored in the run's file."""
    configure(project, traces=True)
    project.scenario("for n in range(4):\n    scenario(f's{n}', turns=['meet', 'tell'])")
    done = project.run(*WORKERS)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = (project.root / ".agentest" / "spans.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["name"] for line in kept) == sorted(
        f"of {pid}" for n, (_, pid, _) in enumerate(turns(project)) if n % 2
    )


def test_a_call_without_a_conversation(project: Project) -> None:
    """Such a call at a worker's mock server also makes the run errored."""
    configure(project, mcp_mock=True)
    project.scenario("scenario('s', turns=['stray tea'], tools={'stock': 1})\nscenario('t', turns=['hi'])")
    alone = project.run()
    warnings = project.results["summary"]["unclaimedCalls"]
    done = project.run(*WORKERS)
    assert done.returncode == alone.returncode == 2, done.stdout + done.stderr
    assert project.results["summary"]["unclaimedCalls"] == warnings
    assert "1 call of tool 'stock'" in warnings[0]["message"]
