"""Limits over all nodes of a cluster: what a fake model was asked, beside what it was to be asked at most."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster import ray_environment
from benchmarks.fakes import Counted, fakes
from benchmarks.process import measure
from benchmarks.programs import run_command
from benchmarks.results import Target, table
from benchmarks.worker_runs import on_cluster
from benchmarks.workload import Workload, write_project

NODES = 4
_WORK = Workload(scenarios=20, conversations_per_scenario=2, turns=4)
_MODEL_S, _AGENT_S = 0.1, 0.01
_CONCURRENCY = 40
_PER_MINUTE = 5000
_BURST = _PER_MINUTE / 10
"""What may be asked at once after a pause."""
_TOKENS_OF_A_CALL = 940
"""As the fake model tells."""
_AT_ONCE = 10
_CALLS = 500
_MOST_DEVIATION = 5
_HEAD = ("", "allowed", "the model counted", "over the limit", "of what was allowed")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that was set, and what the model counted."""

    title: str
    allowed: float
    counted: float

    @property
    def over(self) -> float:
        """Percent above what was allowed."""
        return max(0.0, (self.counted / self.allowed - 1) * 100)

    def row(self) -> list[str]:
        used = f"{self.counted / self.allowed:.1%}"
        return [self.title, f"{self.allowed:,.0f}", f"{self.counted:,.0f}", f"{self.over:.1f} %", used]


def limits(address: str) -> tuple[str, Target]:
    """Four runs on the cluster at this address, and their table."""
    requests, tokens = (
        {"requests_per_minute": _PER_MINUTE},
        {"tokens_per_minute": _PER_MINUTE * _TOKENS_OF_A_CALL},
    )
    by_requests, by_tokens = (_run(address, each) for each in (requests, tokens))
    at_once = _run(address, {}, {"max_concurrency": _AT_ONCE})
    calls = _run(address, {}, {}, "--max-llm-calls", str(_CALLS))
    found = [
        Limit(f"`requests_per_minute: {_PER_MINUTE}`", _allowed(by_requests), by_requests.model_requests),
        Limit(
            f"`tokens_per_minute: {_PER_MINUTE * _TOKENS_OF_A_CALL}`",
            _allowed(by_tokens) * _TOKENS_OF_A_CALL,
            by_tokens.model_requests * _TOKENS_OF_A_CALL,
        ),
        Limit(f"`max_concurrency: {_AT_ONCE}`, the most at once", _AT_ONCE, at_once.most_at_model),
        Limit(f"`--max-llm-calls {_CALLS}`", _CALLS, calls.model_requests),
    ]
    about = (
        f"**Limits**: {_WORK}, {_CONCURRENCY} at once, model {_MODEL_S * 1000:g} ms; {NODES} workers on "
        f"{NODES} nodes. What was allowed of a limit a minute is what may be asked at once after a pause (a "
        "tenth of it), and its part of the time from the first request to the last."
    )
    worst = max(limit.over for limit in found)
    claim = f"limits over {NODES} nodes: the most above a limit"
    text = "\n\n".join([about, table(_HEAD, [limit.row() for limit in found])])
    return text, Target(claim, worst, _MOST_DEVIATION, "%")


def _allowed(counted: Counted) -> float:
    """Requests that a limit a minute leaves, in the time in which they came."""
    return _BURST + _PER_MINUTE * counted.model_span_s / 60


def _run(address: str, of_roles: Mapping[str, Any], config: Mapping[str, Any] = {}, *more: str) -> Counted:
    """What the model counted in a run; one whose budget ends is not passed.

    Args:
        of_roles: settings of both roles, who have the same model and so one limit.
    """
    with (
        tempfile.TemporaryDirectory(prefix="agentest-bench-") as made,
        fakes(_AGENT_S, _MODEL_S) as servers,
    ):
        folder, ports = Path(made), (servers.agent_port, servers.model_port)
        roles = {"user": of_roles, "judge": of_roles} if of_roles else {}
        write_project(folder, _WORK, *ports, {**config, **roles})
        options = (*on_cluster(address, NODES).options, *more)
        measure(run_command(_CONCURRENCY, *options), folder, exits=(0, 2), variables=ray_environment())
        return servers.counted()
