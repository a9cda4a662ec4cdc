"""A journal read back: what was finished, as the results.json that the run would have written.

A run that was killed left a journal without its end. What it had finished is kept; a scenario that it had not
finished is errored, and so is the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentest.results import (
    ModelUsage,
    Reason,
    ReasonKind,
    RunResult,
    ScenarioResult,
    SlowTurn,
    Status,
    Totals,
    Verdict,
)
from agentest.store.document import placed, scenario_json, summary_json, with_vacuous
from agentest.support.json_text import Json
from agentest.transcript import TimeSpent, Usage

KILLED = "killed before its end"


class JournalError(ValueError):
    """A line is not what Agentest writes; the message says which."""


def is_journal(content: bytes) -> bool:
    """Whether a file is a journal, by its first line."""
    try:
        first = json.loads(content.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("type") == "run"


@dataclass(slots=True)
class _Found:
    """What the lines hold."""

    run: Json = field(default_factory=dict)
    end: Json | None = None
    scenarios: list[Json] = field(default_factory=list)
    conversations: dict[tuple[str, str], dict[int, Json]] = field(default_factory=dict)
    planned: dict[tuple[str, str], int] = field(default_factory=dict)
    """Scenario and agent → how many conversations were to be held."""

    def add(self, line: Any) -> None:
        """Raises JournalError."""
        match line:
            case {"type": "run", **run}:
                self.run = {str(key): value for key, value in run.items() if key != "planned"}
                self.planned = _planned(run.get("planned", []))
            case {"type": "end", "run": dict(end)}:
                self.end = end
            case {"type": "scenario", "scenario": {"name": str(), "agent": str()} as scenario}:
                self.scenarios.append(scenario)
            case {
                "type": "conversation",
                "scenario": str(name),
                "agent": str(agent),
                "number": int(number),
                "conversation": dict(conversation),
            }:
                self.conversations.setdefault((name, agent), {})[number] = conversation
            case _:
                raise JournalError("is no line of a journal")


def _planned(given: Any) -> dict[tuple[str, str], int]:
    """Raises JournalError."""
    try:
        return {(str(one["scenario"]), str(one["agent"])): int(one["conversations"]) for one in given}
    except (TypeError, KeyError, ValueError) as error:
        raise JournalError(f"`planned` is not what Agentest writes: {error!r}") from None


def journal_document(content: bytes) -> Json:
    """The document in the shape of results.json, unchecked. Raises JournalError.

    Without its end its summary counts nothing yet: `completed` makes it from what has been checked.
    """
    found = _Found()
    for number, line in enumerate(_whole_lines(content), start=1):
        try:
            found.add(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise JournalError(f"line {number}: {error}") from None
    head = found.end
    if head is None:
        head = {**found.run, "interrupted": True, "stopped": KILLED, "summary": _nothing(found.run)}
    return {**head, "scenarios": placed(list(_entries(found)), head.get("mode") == "comparison")}


def _whole_lines(content: bytes) -> list[bytes]:
    """The lines, without a last one that was cut: it has no newline."""
    return content.split(b"\n")[:-1]


def _entries(found: _Found) -> Iterator[Json]:
    """The scenarios in the order in which they were finished, then those that never were."""
    left: dict[tuple[str, str], dict[int, Json]] = {key: {} for key in found.planned} | found.conversations
    if found.end is not None:
        left = dict(found.conversations)
    for scenario in found.scenarios:
        held = left.pop((scenario["name"], scenario["agent"]), {})
        conversations = _in_order(held)
        if _silent(found, scenario["agent"]):
            conversations = [with_vacuous(conversation) for conversation in conversations]
        yield {**scenario, "conversations": conversations}
    for (name, agent), held in left.items():
        result = _unfinished(name, agent, len(held), found.planned.get((name, agent), 0))
        yield {**scenario_json(result), "conversations": _in_order(held)}


def _silent(found: _Found, agent: str) -> bool:
    """Whether the run has ended without having seen any call of the agent."""
    agents = found.end.get("agents") if found.end else None
    about = agents.get(agent) if isinstance(agents, dict) else None
    return isinstance(about, dict) and bool(about.get("noCallSeen"))


def _in_order(held: Mapping[int, Json]) -> list[Json]:
    return [held[number] for number in sorted(held)]


def _unfinished(name: str, agent: str, held: int, planned: int) -> ScenarioResult:
    of = f" of {planned}" if planned else ""
    finished = f"{held}{of} finished conversation{'' if (planned or held) == 1 else 's'}"
    message = f"the run was {KILLED}: of this scenario the journal holds {finished}"
    reason = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, message)
    return ScenarioResult(name, agent, "", 0, Verdict(Status.ERRORED, (reason,)), planned=planned)


def _nothing(run: Json) -> Json:
    """The summary of a run of which nothing is known."""
    comparison = run.get("mode") == "comparison"
    return summary_json(RunResult((), (), comparison, "", 0.0, ""))


def completed(document: Json) -> Json:
    """The checked document with a summary, which a run that was killed did not write.

    Its duration is not known: 0.
    """
    if document["stopped"] != KILLED:
        return document
    comparison = document["mode"] == "comparison"
    found = document["scenarios"]
    entries = [agent for scenario in found for agent in scenario["agents"]] if comparison else found
    result = RunResult(
        tuple(_restored(entry) for entry in entries),
        tuple(document["agents"]),
        comparison,
        document["startedAt"],
        0.0,
        document["version"],
        document["models"],
        interrupted=True,
    )
    return {**document, "summary": summary_json(result)}


def _restored(entry: Json) -> ScenarioResult:
    """What a summary counts of a scenario."""
    usage = {role: _usage(used) for role, used in entry["usage"].items()}
    verdict = Verdict(Status(entry["status"]))
    totals = _totals(entry["conversations"])
    return ScenarioResult(entry["name"], entry["agent"], "", 0, verdict, usage=usage, totals=totals)


def _usage(used: Json) -> ModelUsage:
    tokens = Usage(used["promptTokens"], used["completionTokens"], used["cachedTokens"])
    return ModelUsage(used["calls"], tokens, used["retries"], used["cost"])


def _totals(conversations: Sequence[Json]) -> Totals:
    closed = [(found["conversationId"], turn) for found in conversations for turn in found["turns"]]
    cut = [found["unfinishedTurn"] for found in conversations if found["unfinishedTurn"]]
    return Totals(
        conversations=len(conversations),
        agent_calls=sum(turn["requests"] for turn in [*(turn for _, turn in closed), *cut]),
        slowest=tuple(SlowTurn(turn["latencyMs"], id, turn["turnIndex"]) for id, turn in closed),
        time=sum((_time(found["time"]) for found in conversations if "time" in found), TimeSpent()),
    )


def _time(spent: Json) -> TimeSpent:
    parts = ("totalMs", "agentMs", "userMs", "toolsMs", "judgesMs")
    return TimeSpent(*(spent[part] for part in parts))
