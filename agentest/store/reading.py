"""results.json and the journal read back, checked by their schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentest.errors import UsageError
from agentest.sight import SeenBy
from agentest.transcript import (
    Blame,
    Conversation,
    Ending,
    Failure,
    Remark,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)

if TYPE_CHECKING:
    from jsonschema import ValidationError


_SHORTENED = "it was stored without the ends of texts over 1,000,000 characters, so it is not judged again"


def read_results(path: Path) -> dict[str, Any]:
    """A results.json, or a journal in its shape.

    Raises UsageError that says where the file is not what Agentest writes.
    """
    from agentest.store.journal_reading import completed, is_journal, journal_document

    try:
        content = path.read_bytes()
        if is_journal(content):
            return completed(_checked(journal_document(content), path))
        return _checked(json.loads(content.decode()), path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from None


def scenario_entries(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Each scenario with each agent, as a results.json tells of it."""
    entries: list[Mapping[str, Any]] = data["scenarios"]
    if data["mode"] == "comparison":
        return [agent for scenario in entries for agent in scenario["agents"]]
    return entries


def conversations_of(data: Mapping[str, Any]) -> dict[tuple[str, str], tuple[Conversation, ...]]:
    """The conversations of a results.json by scenario and agent."""
    return {
        (entry["name"], entry["agent"]): tuple(_conversation(c) for c in entry["conversations"])
        for entry in scenario_entries(data)
        if entry["conversations"]
    }


def planned_of(data: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """How many conversations were to be held, by scenario and agent, where a results.json tells."""
    return {
        (entry["name"], entry["agent"]): entry["plannedConversations"]
        for entry in scenario_entries(data)
        if entry.get("plannedConversations")
    }


def _checked(data: Any, path: Path) -> dict[str, Any]:
    """The data, which the schema describes. Raises UsageError."""
    from jsonschema.validators import validator_for  # a tenth of a second: only for who uses it

    schema = json.loads(files("agentest").joinpath("schemas/results.schema.json").read_text("utf-8"))
    problem = next(iter(validator_for(schema)(schema).iter_errors(data)), None)
    if problem:
        problem = _cause(problem)
        raise UsageError(
            f"{path} is not a results.json or a journal of this version of Agentest: "
            f"{problem.json_path}: {problem.message[:200]}"
        )
    found: dict[str, Any] = data
    return found


def _cause(problem: ValidationError) -> ValidationError:
    """What is wrong in the form that the document's mode chooses, or else the problem itself."""
    alternatives = problem.context or ()
    other = {each.schema_path[0] for each in alternatives if list(each.path) == ["mode"]}
    return next((each for each in alternatives if each.schema_path[0] not in other), problem)


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
    ending, shortened = Ending(data["endedBy"]), data.get("shortened", False)
    if shortened and not failure:
        ending, failure = Ending.ERROR, Failure(Blame.INTERNAL, _SHORTENED)
    return Conversation(
        data["conversationId"],
        turns,
        ending,
        failure,
        unfinished,
        shortened=shortened,
    )


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
        tuple(Remark(remark["author"], remark["text"]) for remark in data.get("remarks", ())),
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
            SeenBy(call.get("seenBy", SeenBy.CALLER)),
        )
        for call in data
    )
