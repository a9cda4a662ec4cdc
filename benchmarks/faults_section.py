"""Runs whose model or agent answers wrongly now and then: what is lost, what it costs, what is told."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fakes import fakes
from benchmarks.fault_plan import CUT, HANG, RESET, ROW, WORDING
from benchmarks.process import Failed, Sample, measure
from benchmarks.programs import conversations, run_command, summary
from benchmarks.results import Found, Target, machine, ratio, table
from benchmarks.workload import Options, Workload, write_project

_TIMEOUT_MS = 2000
_RETRIES = 6
_MOST_WALL = 2.0
_FIVE_PERCENT, _ONE_PERCENT = ROW // 20, ROW // 100
_MALFORMED = {CUT: _FIVE_PERCENT // 2, WORDING: _FIVE_PERCENT // 2}
_MODEL_FAULTS: dict[str, Mapping[str, int]] = {
    "5 % 429": {"429": _FIVE_PERCENT},
    "5 % 500": {"500": _FIVE_PERCENT},
    "5 % malformed": _MALFORMED,
    "5 % reset": {RESET: _FIVE_PERCENT},
    "1 % hanging": {HANG: _ONE_PERCENT},
}
_RETRIED_OF_AGENT: dict[str, Mapping[str, int]] = {
    "5 % 429": {"429": _FIVE_PERCENT},
    "5 % 503": {"503": _FIVE_PERCENT},
    "5 % reset": {RESET: _FIVE_PERCENT},
}
_ANSWERS_OF_AGENT: dict[str, Mapping[str, int]] = {
    "5 % 500": {"500": _FIVE_PERCENT},
    "5 % malformed": {CUT: _FIVE_PERCENT},
    "1 % hanging": {HANG: _ONE_PERCENT},
}
_SIGNS = {"500": "500", CUT: "JSON", HANG: "no complete answer within"}
"""A fault that is the agent's own answer → how the conversation's error tells it."""
_HEAD = (
    "",
    "faults",
    "told as retries",
    "passed",
    "failed by the agent",
    "else not passed",
    "not scored",
    "wall s",
    "of none",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run, and what it says of itself."""

    title: str
    sample: Sample
    faults: int
    """Faulty answers that the servers gave."""
    retries: int
    """Of model and agent, as the results tell."""
    found: Sequence[dict[str, Any]]
    """The conversations."""

    @property
    def passed(self) -> int:
        return sum(c["passed"] for c in self.found)

    @property
    def blamed(self) -> int:
        """Conversations that did not pass by the agent's doing."""
        return sum(not c["passed"] and c["errorSource"] in (None, "agent") for c in self.found)

    @property
    def unscored(self) -> int:
        """Judgements that were asked for and have no value."""
        return sum("error" in metric for c in self.found for metric in _metrics(c["evaluation"]))

    @property
    def signed(self) -> int:
        """Conversations that failed with a fault's own sign in their error."""
        return sum(any(sign in (c["error"] or "") for sign in _SIGNS.values()) for c in self.found)

    def lost(self, work: Workload) -> int:
        """Conversations that are missing or did not pass, and judgements without a value."""
        return work.conversations - self.passed + self.unscored

    def row(self, none: Run) -> list[str]:
        others = len(self.found) - self.passed - self.blamed
        counts = (self.faults, self.retries, self.passed, self.blamed, others, self.unscored)
        wall = self.sample.wall_s
        return [self.title, *map(str, counts), f"{wall:.2f}", ratio(wall, none.sample.wall_s)]


def section(options: Options) -> Found:
    """Measure, and tell it. One run each."""
    none = _run("none", options)
    model = [_run(title, options, of_model=f) for title, f in _with_all(_MODEL_FAULTS).items()]
    retried = [_run(title, options, of_agent=f) for title, f in _with_all(_RETRIED_OF_AGENT).items()]
    answers = [_run(title, options, of_agent=f) for title, f in _with_all(_ANSWERS_OF_AGENT).items()]
    parts = {
        "the model's, retried": model,
        "the agent's, retried": retried,
        "the agent's, taken as its answer": answers,
    }
    rows = [none.row(none)]
    for title, runs in parts.items():
        rows += [[f"**{title}**", *[""] * (len(_HEAD) - 1)], *(run.row(none) for run in runs)]
    targets = (
        *_of_retried("model", model, none, options.work),
        *_of_retried("agent", retried, none, options.work),
        _of_answers(answers, options.work),
    )
    return Found("\n\n".join([_about(options), table(_HEAD, rows), machine()]), targets)


def _with_all(faults: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    together = {kind: count for each in faults.values() for kind, count in each.items()}
    return {**faults, "all together": together}


def _of_retried(who: str, runs: Sequence[Run], none: Run, work: Workload) -> tuple[Target, ...]:
    slowest = max(run.sample.wall_s for run in runs) / none.sample.wall_s
    lost = sum(run.lost(work) for run in runs)
    untold = sum(abs(run.faults - run.retries) for run in runs)
    return (
        Target(f"faults of the {who}: conversations and judgements lost", lost, 0, ""),
        Target(f"faults of the {who}: conversations blamed on the agent", sum(r.blamed for r in runs), 0, ""),
        Target(f"faults of the {who}: not told as retries", untold, 0, ""),
        Target(f"faults of the {who}: slowest run, of a run without", slowest, _MOST_WALL, "×"),
    )


def _of_answers(runs: Sequence[Run], work: Workload) -> Target:
    # Each such fault ends one conversation, which must say so; all others must pass.
    wrong = sum(
        abs(run.faults - run.signed) + abs(work.conversations - run.passed - run.signed) + run.unscored
        for run in runs
    )
    return Target("the agent's own wrong answers: conversations not accounted for", wrong, 0, "")


def _run(
    title: str, options: Options, of_agent: Mapping[str, int] = {}, of_model: Mapping[str, int] = {}
) -> Run:
    work = options.work
    with (
        tempfile.TemporaryDirectory(prefix="agentest-bench-") as made,
        fakes(work.agent_s, work.model_s, of_agent, of_model) as servers,
    ):
        folder = Path(made)
        patience = _patience(servers.agent_port)
        ports = servers.agent_port, servers.model_port
        write_project(folder, work, *ports, patience)
        sample = measure(run_command(options.concurrency), folder, exits=(0, 1, 2))
        counted = servers.counted()
        found, told = list(conversations(folder)), summary(folder)
    calls = told["agentCalls"], told["llmCalls"]
    if calls != (counted.agent_requests, counted.model_requests):
        raise Failed(f"{title}: {calls} calls of agent and model were told, but made: {counted}")
    return Run(title, sample, counted.faulty, _retries(told, found), found)


def _patience(agent_port: int) -> dict[str, Any]:
    """Time-outs that are short, as a hanging answer costs one, and more retries than by default."""
    model = {"timeout_ms": _TIMEOUT_MS, "retries": _RETRIES}
    endpoint = f"http://127.0.0.1:{agent_port}/v1/chat/completions"
    return {
        "agent": {"name": "fake", "endpoint": endpoint, "retries": _RETRIES},
        "request_timeout_ms": _TIMEOUT_MS,
        "user": model,
        "judge": model,
    }


def _retries(told: Mapping[str, Any], found: Sequence[dict[str, Any]]) -> int:
    of_models = sum(usage["retries"] for usage in told["usage"]["byRole"].values())
    turns = (turn for c in found for turn in (*c["turns"], c["unfinishedTurn"]) if turn)
    return int(of_models + sum(turn["retries"] for turn in turns))


def _metrics(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    of_turns = [metric for turn in evaluation["turnEvaluations"] for metric in turn["metrics"].values()]
    goal = evaluation["goalCompletion"]
    return [*of_turns, *([goal] if goal else [])]


def _about(options: Options) -> str:
    work = options.work
    return (
        f"{work}, {options.concurrency} at once; agent {work.agent_s * 1000:g} ms, model "
        f"{work.model_s * 1000:g} ms; time-outs of {_TIMEOUT_MS / 1000:g} s, {_RETRIES} retries; "
        "one run each."
    )
