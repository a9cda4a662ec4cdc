"""Runs whose agent is at another address than the configured one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tls_server import tls_server

from agentest import scenario
from agentest.domain.results import Status
from agentest.testing import run_scenarios


@pytest.mark.parametrize(
    ("scheme", "problem"),
    [
        ("http", "That server speaks TLS: write https:// in the endpoint"),
        ("https", "its certificate is not trusted (self-signed certificate)"),
    ],
)
def test_a_wrong_scheme_and_an_unknown_certificate_err(tmp_path: Path, scheme: str, problem: str) -> None:
    """Nothing is known about the agent, so no scenario fails, whichever conversation comes first."""
    scenarios = [scenario(f"greeting {n}", turns=["Hello"]) for n in range(3)]
    with tls_server(tmp_path) as place:
        agent = {"endpoint": f"{scheme}://{place}/v1/chat/completions"}
        result = run_scenarios(scenarios, config={"agent": agent, "concurrency": 2})
    assert [each.verdict.status for each in result.scenarios] == [Status.ERRORED] * 3
    assert all(problem in each.verdict.reasons[0].message for each in result.scenarios)
