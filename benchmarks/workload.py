"""The work that is measured: how many conversations and calls, and how long they take at the very least."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from agentest.models.providers import REQUESTS_PER_CONVERSATION

TURN_JUDGES = ("helpfulness", "coherence", "relevance", "faithfulness", "verbosity")
LABEL_JUDGES = ("agent_behavior_failure", "tool_call_behavior_failure")
JUDGES_PER_TURN = len(TURN_JUDGES) + len(LABEL_JUDGES)
TOOL = "check_availability"
AGENT_CALLS_PER_TURN = 2  # one that asks for the tool, one with the tool's result

PROFILE = "A busy professional who writes short messages and wants things settled at once."
GOAL = "Book a haircut for next Tuesday morning, before eleven, and get a booking number."
KNOWLEDGE = ("The salon is open from 9:00 to 17:00.", "The name to book under is Kim.")
PLAIN_QUESTION = "Which openings are there"
"""How a message begins that the fake agent answers without its tool."""
LINE = "I would like a haircut next Tuesday morning, before eleven if that can be done."


@dataclass(frozen=True, slots=True)
class Workload:
    """Scenarios × conversations × turns, and the latencies of the fake servers in seconds."""

    scenarios: int = 20
    conversations_per_scenario: int = 3
    turns: int = 4
    agent_s: float = 0.05
    model_s: float = 0.2
    scripted: bool = False
    """Users read from a script and nobody judges: no call to a model."""

    @property
    def conversations(self) -> int:
        return self.scenarios * self.conversations_per_scenario

    @property
    def agent_calls(self) -> int:
        return self.conversations * self.turns * AGENT_CALLS_PER_TURN

    @property
    def model_calls(self) -> int:
        if self.scripted:
            return 0
        return self.conversations * (self.turns * (1 + JUDGES_PER_TURN) + 1)

    @property
    def calls(self) -> int:
        return self.agent_calls + self.model_calls

    def critical_path_s(self, concurrency: int | None = None) -> float:
        """Least wall clock: waves × turns × (user + agent calls) + one judge.

        Turns come one after another, everything else at once. Without `concurrency` all conversations go on
        at once, in one wave.
        """
        waves = ceil(self.conversations / concurrency) if concurrency else 1
        user = 0.0 if self.scripted else self.model_s
        return waves * self.turns * (user + AGENT_CALLS_PER_TURN * self.agent_s) + user

    def __str__(self) -> str:
        return (
            f"{self.scenarios:,} × {self.conversations_per_scenario} conversations × {self.turns} turns "
            f"({self.model_calls:,} model calls, {self.agent_calls:,} agent calls)"
        )


@dataclass(frozen=True, slots=True)
class Options:
    """The size of what is measured, and how often."""

    work: Workload
    concurrency: int
    runs: int


def endpoint(port: int) -> str:
    """Where a fake server answers."""
    return f"http://127.0.0.1:{port}/v1/chat/completions"


def plain_question(number: int) -> str:
    """A message that the fake agent answers with a text."""
    return f"{PLAIN_QUESTION} on day {number}, and at which times?"


def write_project(
    folder: Path,
    work: Workload,
    agent_port: int,
    model_port: int,
    more: Mapping[str, Any] = {},
    *,
    concurrency: int = 20,
) -> None:
    """A folder in which `agentest run` does this work; `more` is added to its configuration.

    The fake model gets as many requests at once as one does by default.
    """
    config: dict[str, Any] = {
        "agent": {"name": "fake", "endpoint": endpoint(agent_port)},
        "conversations_per_scenario": work.conversations_per_scenario,
        "max_turns": work.turns,
        "reporters": ["console", "json"],
    }
    if not work.scripted:
        config |= {
            "provider": "openai-compatible",
            "model": "fake",
            "provider_options": {"base_url": f"http://127.0.0.1:{model_port}/v1", "api_key": "none"},
            "judge": {"batch": False},  # one call for each metric, as the bare clients make
            "max_concurrency": REQUESTS_PER_CONVERSATION * concurrency,
        }
    write_config(folder, {**config, **more})
    for number in range(work.scenarios):
        (folder / f"case_{number:04}.sim.py").write_text(_scenario(number, work), encoding="utf-8")


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """A project's configuration file."""
    # JSON is YAML too, and needs no library here.
    (folder / "agentest.config.yaml").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _scenario(number: int, work: Workload) -> str:
    who = (
        f"turns={[LINE] * work.turns!r},\n    conversations_per_scenario={work.conversations_per_scenario},"
        if work.scripted
        else f"profile={PROFILE!r},\n    goal={GOAL!r},\n    knowledge={list(KNOWLEDGE)!r},"
    )
    return f'''"""Generated by the benchmarks."""

from agentest import scenario

scenario(
    "case {number:04}: books a morning slot",
    {who}
    tools={{"{TOOL}": lambda args, ctx: {{"slots": ["09:00", "10:30"], "n": ctx.call_index}}}},
    trajectory={{"match_mode": "contains", "expected": ["{TOOL}"]}},
    tags=["benchmark"],
)
'''
