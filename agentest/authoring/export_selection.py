"""Select conversations of a results.json for export, and convert them to an evaluation set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from agentest.adk.formats.eval_set import AgentestKeys, EvalCase, EvalSet, Invocation
from agentest.domain.transcript import Conversation
from agentest.domain.verdict import conversation_passed
from agentest.scenarios.discovery import matches_name
from agentest.scenarios.source_code import ExportedExpectations, exported_name, missing
from agentest.store.adk_results import turn_invocation
from agentest.store.reader import read_results, usable
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, did_you_mean

_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ExportedConversation:
    """A conversation of an earlier run, with the names that identify it."""

    scenario: str
    agent: str
    conversation: Conversation
    passed: bool
    criteria: int = 0
    """Number of criteria by which it was judged."""
    name: str = ""
    """Name of the exported scenario; "" derives it from the original, which may still exist."""
    file: str = ""
    """The scenario file or evaluation set, relative to the folder of the configuration."""
    eval_id: str = ""
    """For a case of an evaluation set."""
    words: ExportedExpectations | None = None
    """The expectations, if they differ from the same calls."""
    case_keys: AgentestKeys | None = None
    """The expectations for a case of an evaluation set."""

    @property
    def exported_name(self) -> str:
        return self.name or exported_name(self.scenario, self.conversation)


@dataclass(frozen=True, slots=True)
class EarlierResults:
    """The content of a results.json."""

    path: Path
    started: float
    """Start in seconds since 1970; 0 if unknown."""
    conversations: tuple[ExportedConversation, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """The conversations to export, and notes for the user."""

    conversations: tuple[ExportedConversation, ...]
    notes: tuple[str, ...]


def read_earlier(path: Path) -> EarlierResults:
    """Read the conversations of a results.json. Raises UsageError."""
    run = read_results(path)
    conversations = tuple(
        ExportedConversation(
            scenario.name,
            scenario.agent,
            usable(result.conversation),
            conversation_passed(result),
            len(result.criteria),
            file=scenario.file,
            eval_id=scenario.case.eval_id if scenario.case else "",
        )
        for scenario in run.scenarios
        for result in scenario.conversations
    )
    return EarlierResults(path, _seconds_since_epoch(run.started_at), conversations)


def _seconds_since_epoch(time: str) -> float:
    """Convert a time to seconds since 1970; 0 if the text is not a time."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def select(earlier: EarlierResults, scenarios: Sequence[str], ids: Sequence[str]) -> Selection:
    """Return the finished conversations that match the filters.

    Args:
        scenarios: parts of scenario names, in any letter case; () for all.
        ids: ids of conversations; () for all.

    Raises UsageError for a filter without a match, and if nothing is left.
    """
    if not earlier.conversations:
        raise UsageError(f"{earlier.path} holds no conversation; run the scenarios first: agentest run")
    _check_filters(earlier, scenarios, ids)
    chosen = [
        each
        for each in earlier.conversations
        if (not scenarios or matches_name(each.scenario, scenarios))
        and (not ids or each.conversation.conversation_id in ids)
    ]
    if not chosen:
        raise UsageError(f"{earlier.path} holds no conversation that fits both --scenario and --conversation")
    finished = [each for each in chosen if missing(each.conversation) is None]
    if not finished:
        raise UsageError(
            f"{earlier.path}: no conversation is left to export\n"
            + "\n".join(_left_out_notes(chosen, len(chosen)))
        )
    notes = (*_left_out_notes(chosen, _MAX_SHOWN), *_not_passed_notes(finished), *_criteria_notes(finished))
    return Selection(tuple(finished), (*notes, *_user_call_notes(finished)))


def _criteria_notes(finished: Sequence[ExportedConversation]) -> Iterator[str]:
    """Yield a note for each scenario with criteria, because exported scenarios run without a model."""
    for name, criteria in {each.scenario: each.criteria for each in finished if each.criteria}.items():
        yield f"{name}: its {count(criteria, 'criterion', 'criteria')} and any expected outcome are left out"


def _user_call_notes(finished: Sequence[ExportedConversation]) -> Iterator[str]:
    """Yield a note for each scenario whose user had tools, because a script calls none."""
    calls: Counter[str] = Counter()
    for each in finished:
        calls[each.scenario] += len(each.conversation.user_calls)
    for name, made in calls.items():
        if made:
            what = f"{count(made, 'call')} of the simulated user's own tools"
            yield f"{name}: {what} left out: a script has none"


def _check_filters(earlier: EarlierResults, scenarios: Sequence[str], ids: Sequence[str]) -> None:
    names = {each.scenario for each in earlier.conversations}
    for text in scenarios:
        if not any(matches_name(name, (text,)) for name in names):
            raise UsageError(
                f"--scenario: {earlier.path} holds no conversation of a scenario with {text!r} in its name; "
                f"{did_you_mean(text, names)}"
            )
    known = {each.conversation.conversation_id for each in earlier.conversations}
    for wanted in ids:
        if wanted not in known:
            raise UsageError(
                f"--conversation: {earlier.path} holds no conversation {wanted!r}; "
                f"{did_you_mean(wanted, known)}"
            )


def _left_out_notes(chosen: Sequence[ExportedConversation], limit: int) -> list[str]:
    notes = [
        f"left out {each.conversation.conversation_id}, {why}"
        for each in chosen
        if (why := missing(each.conversation))
    ]
    return notes if len(notes) <= limit else [*notes[:limit], f"left out {len(notes) - limit} more"]


def _not_passed_notes(finished: Sequence[ExportedConversation]) -> list[str]:
    ids = [each.conversation.conversation_id for each in finished if not each.passed]
    if not ids:
        return []
    more = f" and {len(ids) - _MAX_SHOWN} more" if len(ids) > _MAX_SHOWN else ""
    return [
        "these did not pass in their run; make sure that they show what the agent should do: "
        + ", ".join(ids[:_MAX_SHOWN])
        + more
    ]


_INVOCATION: TypeAdapter[Invocation] = TypeAdapter(Invocation)


def evaluation_set(
    conversations: Sequence[ExportedConversation], eval_set_id: str, created: float
) -> EvalSet:
    """Convert each conversation to a case with its id, and each turn to an invocation.

    Cases have no `session_input`, because the results do not show how the agent stores its sessions.
    """
    return EvalSet(
        eval_set_id, tuple(_case(each, created) for each in conversations), creation_timestamp=created
    )


def _case(exported: ExportedConversation, created: float) -> EvalCase:
    conversation = exported.conversation
    invocations = [
        turn_invocation(turn, f"{conversation.conversation_id}-{turn.turn_index}")
        for turn in conversation.turns
    ]
    return EvalCase(
        conversation.conversation_id,
        tuple(_invocation(each, created) for each in invocations),
        creation_timestamp=created,
        agentest=exported.case_keys,
    )


def _invocation(data: dict[str, Any], created: float) -> Invocation:
    return _INVOCATION.validate_python({**data, "creationTimestamp": created})
