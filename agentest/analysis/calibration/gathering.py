"""Conversations to label: from results, journals, evaluation sets, and labels files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentest.analysis.calibration.label_file import is_labels, read_labels
from agentest.analysis.calibration.labels import LabelledConversation, content_id
from agentest.errors import UsageError
from agentest.evalset.formats.model import EvalCase
from agentest.evalset.formats.reading import read_eval_set
from agentest.evalset.metrics.facts import facts_of
from agentest.evalset.metrics.given import conversation_of
from agentest.evaluate.background import Background
from agentest.run.known_tools import known_tools
from agentest.run.plan import Unit
from agentest.store.journal_reading import is_journal
from agentest.store.reading import read_results, usable
from agentest.store.runs import entries
from agentest.store.shapes import StoredEntry
from agentest.support.text import count
from agentest.transcript import Conversation

Units = Mapping[tuple[str, str], Unit]
"""Scenario and agent → the unit: what results do not hold of a scenario, its goal above all."""


@dataclass(slots=True)
class Gathered:
    """Conversations, each once, and what the user should know about those that were left out."""

    conversations: dict[str, LabelledConversation] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, conversation: LabelledConversation) -> None:
        self.conversations.setdefault(conversation.id, conversation)


def gather(path: Path, units: Units) -> Gathered:
    """The conversations of a file, of whichever kind it is. Raises UsageError."""
    content = _content(path)
    if is_labels(content):
        return Gathered(read_labels(path).conversations)
    if is_journal(content) or _is_results(content):
        return _of_results(path, units)
    if path.suffix == ".py":
        raise UsageError(
            f"{path} is a Python file, which holds no replies; label the results it was made of, or export "
            "them with --to evalset"
        )
    return _of_eval_set(path)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _is_results(content: bytes) -> bool:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "schemaVersion" in document


def _of_results(path: Path, units: Units) -> Gathered:
    found, unknown = Gathered(), []
    for entry in entries(read_results(path)):
        unit = units.get((entry.scenario.name, entry.scenario.agent))
        conversations = [usable(stored) for stored in entry.conversations]
        if unit is None and any(conversation.turns for conversation in conversations):
            unknown.append(entry.scenario.name)
        for conversation in conversations:
            if conversation.shortened or not conversation.turns:
                why = "texts in it were too long to be kept" if conversation.shortened else "it has no turn"
                found.notes.append(f"left out {conversation.conversation_id}: {why}")
            else:
                found.add(_of_run(conversation, entry, unit, path.name))
    if unknown:
        found.notes.append(_unknown(unknown))
    return found


def _unknown(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"no scenario file defines {shown}: what the user wanted and knew is not known; "
        "run this where the configuration and the scenarios are"
    )


def _of_run(
    conversation: Conversation, entry: StoredEntry, unit: Unit | None, file: str
) -> LabelledConversation:
    background = background_of(unit, conversation) if unit else _started(conversation)
    criteria = tuple(criterion.text for criterion in unit.scenario.criteria) if unit else ()
    complete = conversation.failure is None
    return LabelledConversation(
        id=content_id(background, criteria, conversation.turns, complete=complete),
        background=background,
        criteria=criteria,
        turns=conversation.turns,
        scenario=entry.scenario.name,
        source=f"{file}: {conversation.conversation_id}",
        complete=complete,
    )


def background_of(unit: Unit, conversation: Conversation) -> Background:
    """What the judges of a run are told of a conversation of this unit."""
    scenario, about = unit.scenario, unit.about
    hidden = conversation.call_refused or conversation.calls_hidden
    tells = conversation.tells_calls and about.told_counts
    return Background(
        goal=scenario.goal,
        profile=scenario.profile,
        knowledge=tuple(scenario.knowledge),
        expected_outcome=scenario.expected_outcome,
        instructions=about.instructions,
        tools=known_tools(about.tools, scenario.tools, scenario.named_tools).text,
        started_at=conversation.turns[0].started_at or "",
        unseen=hidden or ("" if tells else about.blind) or "",
    )


def _started(conversation: Conversation) -> Background:
    return Background(started_at=conversation.turns[0].started_at or "")


def _of_eval_set(path: Path) -> Gathered:
    found, without = Gathered(), 0
    for case in read_eval_set(path).eval_set.eval_cases:
        conversations = list(_of_case(case, path.name))
        without += not conversations
        for conversation in conversations:
            found.add(conversation)
    if without:
        found.notes.append(f"left out {count(without, 'case')}: no reply of an agent is recorded there")
    return found


def _of_case(case: EvalCase, file: str) -> Iterator[LabelledConversation]:
    """The recorded conversation of a case, where it has one with replies."""
    invocations = case.conversation or ()
    if not invocations or any(invocation.final_response is None for invocation in invocations):
        return
    facts, turns = facts_of(case), conversation_of(invocations).turns
    background = Background(instructions=facts.instructions, tools=facts.tools)
    yield LabelledConversation(
        id=content_id(background, (), turns),
        background=background,
        turns=turns,
        scenario=case.eval_id,
        source=f"{file}: {case.eval_id}",
    )
