"""Runs whose agent does not have the configured address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tls_server import tls_server

from agentest import scenario
from agentest.domain.results import Status
from agentest.testing import Raw, ScriptedAgent, run_scenarios


@pytest.mark.parametrize(
    ("scheme", "problem"),
    [
        ("http", "That server speaks TLS: write https:// in the endpoint"),
        ("https", "its certificate is not trusted (self-signed certificate)"),
    ],
)
def test_a_wrong_scheme_and_an_unknown_certificate_err(tmp_path: Path, scheme: str, problem: str) -> None:
    """Nothing is known about the agent, so no scenario fails, whatever the order."""
    scenarios = [scenario(f"greeting {n}", turns=["Hello"]) for n in range(3)]
    with tls_server(tmp_path) as place:
        agent = {"endpoint": f"{scheme}://{place}/v1/chat/completions"}
        result = run_scenarios(scenarios, config={"agent": agent, "concurrency": 2})
    assert [each.verdict.status for each in result.scenarios] == [Status.ERRORED] * 3
    assert all(problem in each.verdict.reasons[0].message for each in result.scenarios)


def test_refusals_are_the_agents_failure_if_it_answers_others() -> None:
    """In any order, refused scenarios fail if another one is answered, and are errored otherwise."""

    def agent(body: dict[str, Any]) -> Any:
        text = body["messages"][0]["content"]
        return "Hello" if text == "yes" else Raw(b'{"detail": "No"}', status=401)

    def statuses(*texts: str) -> list[Status]:
        scenarios = [scenario(f"{n}", turns=[text], expect={"says": "Hello"}) for n, text in enumerate(texts)]
        with ScriptedAgent(agent) as server:
            result = run_scenarios(scenarios, agent=server, concurrency=1)
        return [each.verdict.status for each in result.scenarios]

    failed, passed, errored = Status.FAILED, Status.PASSED, Status.ERRORED
    assert statuses("no", "yes", "no") == [failed, passed, failed]
    assert statuses("yes", "no") == [passed, failed]
    assert statuses("no", "no") == [errored, errored]
