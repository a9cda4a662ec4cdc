"""`agentest judge`: finished conversations of an earlier run, judged again without talking to the agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from agentest.errors import UsageError
from agentest.plan import Plan, Unit
from agentest.results import Reason, ReasonKind, ScenarioResult, Status, Verdict
from agentest.transcript import (
    Blame,
    Conversation,
    Ending,
    Failure,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)


def read_conversations(path: Path) -> dict[tuple[str, str], tuple[Conversation, ...]]:
    """The conversations of a results.json by scenario and agent.

    Raises UsageError that says where the file is not what Agentest writes.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    _check(data, path)
    entries = data["scenarios"]
    if data["mode"] == "comparison":
        entries = [agent for scenario in entries for agent in scenario["agents"]]
    return {
        (entry["name"], entry["agent"]): tuple(_conversation(c) for c in entry["conversations"])
        for entry in entries
        if entry["conversations"]
    }


def _check(data: Any, path: Path) -> None:
    from jsonschema.validators import validator_for  # a tenth of a second: only for who uses it

    schema = json.loads(files("agentest").joinpath("schemas/results.schema.json").read_text("utf-8"))
    problem = next(iter(validator_for(schema)(schema).iter_errors(data)), None)
    if problem:
        raise UsageError(
            f"{path} is not a results.json of this version of Agentest: "
            f"{problem.json_path}: {problem.message[:200]}"
        )


def _conversation(data: Mapping[str, Any]) -> Conversation:
    failure = Failure(Blame(data["errorSource"]), data["error"]) if data["error"] is not None else None
    open_turn = data["unfinishedTurn"]
    unfinished = None
    if open_turn:
        unfinished = UnfinishedTurn(
            open_turn["turnIndex"],
            open_turn["userMessage"],
            _calls(open_turn["toolCalls"]),
            open_turn["retries"],
            open_turn["requests"],
        )
    turns = tuple(_turn(turn) for turn in data["turns"])
    return Conversation(data["conversationId"], turns, Ending(data["endedBy"]), failure, unfinished)


def _turn(data: Mapping[str, Any]) -> Turn:
    usage = data["usage"]
    return Turn(
        data["turnIndex"],
        data["userMessage"],
        data["agentMessage"],
        _calls(data["toolCalls"]),
        data["latencyMs"],
        Usage(usage["promptTokens"], usage["completionTokens"], usage["cachedTokens"]),
        data["retries"],
        data["requests"],
    )


def _calls(data: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(
            call["name"],
            call["args"],
            call["result"],
            call["mocked"],
            call["turnIndex"],
            call["invalidArguments"],
            call["error"],
        )
        for call in data
    )


def for_finished(
    plan: Plan, conversations: Mapping[tuple[str, str], Sequence[Conversation]]
) -> tuple[Plan, dict[str, Sequence[Conversation]]]:
    """The plan cut to what had been held, and the conversations by scope.

    A scenario of the files that the results do not hold is skipped; conversations whose scenario the files
    do not define any more are errored: nothing that was held passes unseen.
    """
    by_scope: dict[str, Sequence[Conversation]] = {}
    entries: list[Unit | ScenarioResult] = []
    left = dict(conversations)
    for entry in plan.entries:
        found = left.pop((entry.scenario.name, entry.agent), None) if isinstance(entry, Unit) else None
        if not isinstance(entry, Unit):
            entries.append(entry)
        elif found is None:
            entries.append(_skipped(entry))
        else:
            by_scope[entry.scope] = found
            entries.append(replace(entry, conversations=len(found)))
    told = {entry.name for entry in entries if isinstance(entry, ScenarioResult)}
    entries += [_unknown(name, agent) for name, agent in left if name not in told]
    units = tuple(entry for entry in entries if isinstance(entry, Unit))
    return replace(plan, entries=tuple(entries), units=units), by_scope


def _skipped(unit: Unit) -> ScenarioResult:
    reason = Reason(Status.SKIPPED, ReasonKind.FILE, "the results hold no conversation of it")
    return ScenarioResult(
        unit.scenario.name, unit.agent, unit.file, unit.scenario.line, Verdict(Status.SKIPPED, (reason,))
    )


def _unknown(name: str, agent: str) -> ScenarioResult:
    message = f"the results hold conversations of {name!r} with agent {agent!r}, but no scenario defines it"
    reason = Reason(Status.ERRORED, ReasonKind.FILE, message)
    return ScenarioResult(name, agent, "", 0, Verdict(Status.ERRORED, (reason,)))
