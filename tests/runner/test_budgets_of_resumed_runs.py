"""A budget and the conversations that a resumed run keeps, which are read when they are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
from builders import conversation_result

from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.domain.results import ConversationResult
from agentest.models.budget import Budget
from agentest.runner.plan import FinishedUnitPart, Options, make_plan
from agentest.runner.run_budget import Allowance, Estimate, PaidLedger
from agentest.scenarios.discovery import DiscoveredScenarios
from agentest.scenarios.model import Scenario


class Stored(list[ConversationResult]):
    """Conversations that count how often all of them are read."""

    reads = 0

    def __iter__(self) -> Iterator[ConversationResult]:
        self.reads += 1
        return super().__iter__()


def test_kept_conversations_are_read_once() -> None:
    """However many others start, whether the kept ones have failures is read once."""
    stored = Stored([conversation_result()] * 10)
    config = Config.model_validate({"agent": {"endpoint": "http://h"}, "conversations_per_scenario": 50})
    loaded = LoadedConfig(config, Path("agentest.config.yaml"))
    found = DiscoveredScenarios((Scenario("s", "/project/a.sim.py", 1, goal="g"),))
    [unit] = make_plan(loaded, found, Options(), Path("/project")).units
    unit = replace(unit, finished_part=FinishedUnitPart(numbers=range(1, 11), conversations=stored))
    most = {unit.scope: Estimate("s", "default", 100, 100, 1)}

    async def use() -> None:
        budget = Budget(None, 1000, print)
        allowance = Allowance(budget, PaidLedger(), most, {}, None, print, "")
        for number in range(11, 51):
            assert allowance.starts(unit, number)
            allowance.finished(unit, number, has_failures=False)

    anyio.run(use)
    assert stored.reads == 1
