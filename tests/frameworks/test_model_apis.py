"""Protocols of models: LiteLLM's proxy, and Microsoft's host for agents."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_lab import MARKS, Served, assert_mocked_tools, run

pytestmark = MARKS

LITELLM = ("litellm/bin/python", "litellm_server.py", "--port", "{port}")
MOCKED = [
    Served(
        id="litellm-chat-completions",
        page="agents",
        command=LITELLM,
        ready="/health/liveliness",
        agent={"body": {"model": "shop"}, "headers": {}},
    ),
]


@pytest.mark.parametrize("served", MOCKED, ids=lambda served: served.id)
def test_mocks_answer_a_model_behind_a_gateway(served: Served, tmp_path: Path) -> None:
    """The calls that a model leaves to its caller are answered by the scenario's mocks."""
    assert_mocked_tools(run(served, tmp_path, "mocked_tools"))
