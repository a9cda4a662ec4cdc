"""`compare` with `model_gateway.override`: which model should the agent use?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from jsonschema import Draft202012Validator
from project import Project
from scripted_provider import FORMS, Provider, reply_to
from test_model_gateway_run import SCHEMA, configure, upstream

from agentest.config.config import apply_override

__all__ = ["upstream"]


class Models(Provider):
    """A provider of two models; the small one never calls a tool."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, object]] = []

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        in_path = re.search(r"models/([^:]+):", request.path)
        model = in_path[1] if in_path else body["model"]
        self.asked.append((model, body.get("temperature")))
        self.reply = reply_to if model == "m" else lambda _: ("I do not know.", [])
        return await super()._handle(request)


@pytest.fixture
def provider() -> Models:
    return Models()


def statuses(project: Project) -> dict[str, list[str]]:
    """Return agent → the status of each scenario."""
    found: dict[str, list[str]] = {}
    for each in project.results["scenarios"]:
        for result in each["agents"]:
            found.setdefault(result["agent"], []).append(result["status"])
    return found


@pytest.mark.parametrize("form", FORMS)
def test_models_are_compared_over_one_agent(
    project: Project, upstream: str, provider: Models, form: str
) -> None:
    project.scenario(
        "for i in range(3):\n"
        "    scenario(f'asks {i}', turns=[f'look {i}'], tools={'find': 1}, trajectory={'expected': ['find']})"
    )
    configure(
        project,
        upstream,
        form,
        gateway={"override": {"temperature": 0}} if form == "chat" else None,
        compare=[{"name": "small", "model_gateway": {"override": {"model": "small"}}}],
    )
    run = project.run()

    assert run.returncode == 1, run.stdout + run.stderr
    assert statuses(project) == {"agent": ["passed"] * 3, "small": ["failed"] * 3}
    assert {model for model, _ in provider.asked} == {"m", "small"}
    assert [model for model, _ in provider.asked].count("small") == 3
    if form == "chat":
        assert {temperature for _, temperature in provider.asked} == {0}
    assert {len(group["agents"]) for group in project.results["scenarios"]} == {2}


def test_latency_and_cost_are_shown_for_each_model(project: Project, upstream: str) -> None:
    project.scenario("scenario('asks', turns=['hello'])")
    configure(
        project,
        upstream,
        "chat",
        compare=[
            {"name": "mini", "model_gateway": {"override": {"model": "gpt-4o-mini"}}},
            {"name": "large", "model_gateway": {"override": {"model": "gpt-4o"}}},
        ],
    )
    run = project.run()

    assert run.returncode == 0, run.stdout + run.stderr
    results = project.results
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(results)
    per_agent = results["summary"]["perAgent"]
    assert "agentCost" not in per_agent["agent"]  # nobody knows what `m` costs
    assert 0 < per_agent["mini"]["agentCost"] < per_agent["large"]["agentCost"]
    assert all(counts["agentTurnMs"] > 0 for counts in per_agent.values())
    assert " a turn" in run.stdout
    assert f"{per_agent['large']['agentCost']:.4f} USD" in run.stdout


def test_an_agent_that_runs_already_cannot_be_told_two_gateways(project: Project) -> None:
    project.scenario("scenario('asks', turns=['hello'])")
    project.config(
        "",
        agent={"endpoint": "http://127.0.0.1:9/x", "model_gateway": {"port": 9001}},
        compare=[{"name": "other", "model_gateway": {"port": 9002, "upstream": {"openai": "http://x.test"}}}],
    )
    run = project.run()

    assert run.returncode == 2
    assert "an agent can receive the address of only one gateway" in " ".join(run.stderr.split())


@pytest.mark.parametrize(
    ("base", "entry", "merged"),
    [
        (
            {
                "port": 9,
                "override": {"seed": 1, "reasoningEffort": "low"},
                "upstream": {"openai": "http://a"},
            },
            {"override": {"reasoning_effort": "high"}, "upstream": {"google": "http://b"}},
            {
                "port": 9,
                "override": {"seed": 1, "reasoning_effort": "high"},
                "upstream": {"openai": "http://a", "google": "http://b"},
            },
        ),
        ({"port": 9}, True, {"port": 9}),
        ({"port": 9}, False, False),
        (True, {"override": {"seed": 1}}, {"override": {"seed": 1}}),
        ({"port": 9}, None, {"port": 9}),
    ],
)
def test_the_gateway_of_an_entry_is_merged(base: Any, entry: Any, merged: object) -> None:
    own: Mapping[str, Any] = {} if entry is None else {"modelGateway": entry}

    agent = apply_override({"endpoint": "http://x", "model_gateway": base}, {"name": "small", **own})

    assert agent["model_gateway"] == merged
