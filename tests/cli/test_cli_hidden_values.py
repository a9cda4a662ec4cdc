"""A stored run says of as many values as the run did that they look like credentials."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from project import Project

from agentest.testing import ScriptedAgent

SCENARIO = """
scenario("half of them fail", turns=["half"], conversations_per_scenario=6, expect={"says": "ready"})
scenario("all pass", turns=["all"], conversations_per_scenario=2, expect={"says": "ready"})
scenario("one may fail", turns=["half"], conversations_per_scenario=4, expect={"says": "ready"},
         thresholds={"pass_rate": 0.2})
"""


@pytest.mark.parametrize(("flags", "told"), [((), 5), (("--verbose",), 12)])
def test_run_and_show_count_the_same_values(project: Project, flags: tuple[str, ...], told: int) -> None:
    """Without --verbose, those of the conversations that did not pass: a console quotes no other."""
    numbers = count()

    def answer(body: Mapping[str, Any]) -> str:
        number = next(numbers)
        is_ready = number % 2 or body["messages"][-1]["content"] == "all"
        return f"{'ready' if is_ready else 'wait'}: token=zq{number:02}opaquevalue"

    project.scenario(SCENARIO)
    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint, concurrency=1)
        printed = project.run(*flags).stdout
    hidden = f"{told} values that look like credentials are hidden, first in turn 1 of 'half of them fail'."
    assert hidden in printed
    assert hidden in project.agentest("show", *flags).stdout
