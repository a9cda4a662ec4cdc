"""Collect conversations to label from results, journals, evaluation sets, and labels files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from agentest.domain.results import ConversationResult
from agentest.domain.transcript import Conversation
from agentest.judging.judge_input import JudgeBackground
from agentest.judging.judgement import background_of
from agentest.plugins.adk.formats.eval_set import EvalCase
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.adk.metrics.grader import facts_of
from agentest.plugins.adk.metrics.grader_factory import conversation_of
from agentest.plugins.page.labels.labels import LabelledConversation, content_id, is_labels, read_labels
from agentest.runner.plan import Unit
from agentest.runner.prepare import RunRequest, is_configured, prepare
from agentest.runner.run_summary import known_agent
from agentest.store.reader import is_journal, read_results, unreadable, usable
from agentest.support.errors import UsageError
from agentest.support.files import read_user_bytes
from agentest.support.json_text import json_or
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, quoted_names


@dataclass(frozen=True, slots=True)
class ProjectScenarios:
    """The scenarios of a project, for details that results do not contain, such as goals."""

    units: Mapping[tuple[str, str], Unit] = field(default_factory=dict)  # by scenario and agent
    redact: Callable[[str], str] = str  # removes secrets from a text


@dataclass(slots=True)
class GatheredConversations:
    """Conversations without duplicates, and notes about those that were left out."""

    conversations: dict[str, LabelledConversation] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    judged: dict[str, ConversationResult] = field(default_factory=dict)
    """The run's judgment of each conversation. Show it only to people who have labeled the conversation."""

    def add(self, conversation: LabelledConversation) -> None:
        self.conversations.setdefault(conversation.id, conversation)


def scenarios_of(request: RunRequest) -> ProjectScenarios:
    """Load the scenarios of a project; none if there is no configuration. Raises UsageError."""
    if not is_configured(request):
        return ProjectScenarios()
    prepared = prepare(request, may_be_empty=True)
    units = {(unit.scenario.name, unit.agent): unit for unit in prepared.plan.units}
    return ProjectScenarios(units, prepared.loaded.redact)


def gather_conversations(path: Path, scenarios: ProjectScenarios) -> GatheredConversations:
    """Read the conversations of a file of any supported kind. Raises UsageError."""
    try:
        content = read_user_bytes(path, most=None)
    except OSError as error:
        raise unreadable(path, error) from None
    if is_labels(content):
        return GatheredConversations(read_labels(path).conversations)
    if is_journal(content) or _is_results(content):
        return _from_results(path, scenarios)
    if path.suffix == ".py":
        raise UsageError(
            f"{path} is a Python file, which contains no replies; label the results it was made "
            f"from, or export "
            "them with --to evalset"
        )
    gathered, without = GatheredConversations(), 0
    for case in read_eval_set(path).eval_set.eval_cases:
        conversations = list(_from_case(case, path.name, scenarios.redact))
        without += not conversations
        for conversation in conversations:
            gathered.add(conversation)
    if without:
        gathered.notes.append(f"left out {count(without, 'case')}: no reply of an agent is recorded there")
    return gathered


def _is_results(content: bytes) -> bool:
    document = json_or(content)
    return isinstance(document, dict) and "schemaVersion" in document


def _from_results(path: Path, scenarios: ProjectScenarios) -> GatheredConversations:
    gathered, unknown = GatheredConversations(), dict[str, None]()
    for scenario in read_results(path).scenarios:
        name = scenario.name
        unit = scenarios.units.get((name, scenario.agent))
        for stored in scenario.conversations:
            conversation = usable(stored.conversation)
            if why := _why_left_out(conversation):
                gathered.notes.append(why)
                continue
            if unit is None:
                unknown.setdefault(name)
            labelled = _from_run(conversation, unit, name, path.name, scenarios.redact)
            gathered.add(labelled)
            gathered.judged.setdefault(labelled.id, stored)
    if unknown:
        gathered.notes.append(
            f"no scenario file defines {quoted_names(unknown)}: what the user wanted and knew is not known; "
            "run this where the configuration and the scenarios are"
        )
    return gathered


def _why_left_out(conversation: Conversation) -> str | None:
    if conversation.shortened:
        return f"left out {conversation.conversation_id}: texts in it were too long to be kept"
    return None if conversation.turns else f"left out {conversation.conversation_id}: it has no turn"


def _from_run(
    conversation: Conversation, unit: Unit | None, scenario: str, file: str, redact: Callable[[str], str]
) -> LabelledConversation:
    turns, complete = conversation.turns, conversation.failure is None
    background = (
        redacted(background_of(unit.scenario, known_agent(unit, redact), turns, conversation.ending), redact)
        if unit
        else JudgeBackground(started_at=turns[0].started_at or "", ended=str(conversation.ending))
    )
    criteria = tuple(criterion.text for criterion in unit.scenario.criteria) if unit else ()
    return LabelledConversation(
        id=content_id(background, criteria, turns, complete=complete),
        background=background,
        criteria=criteria,
        turns=turns,
        scenario=scenario,
        source=f"{file}: {conversation.conversation_id}",
        complete=complete,
    )


def redacted(background: JudgeBackground, redact: Callable[[str], str]) -> JudgeBackground:
    """Return what is known about a conversation without secrets."""
    names = ("goal", "profile", "expected_outcome", "instructions", "tools")
    texts: dict[str, Any] = {name: redact(getattr(background, name)) for name in names}
    return replace(background, knowledge=tuple(map(redact, background.knowledge)), **texts)


def _from_case(case: EvalCase, file: str, redact: Callable[[str], str]) -> Iterator[LabelledConversation]:
    invocations = case.conversation or ()
    if not invocations or any(invocation.final_response is None for invocation in invocations):
        return
    facts, turns = facts_of(case, redact=redact), conversation_of(invocations).turns
    background = JudgeBackground(instructions=facts.instructions, tools=facts.tools)
    yield LabelledConversation(
        id=content_id(background, (), turns),
        background=background,
        turns=turns,
        scenario=case.eval_id,
        source=f"{file}: {case.eval_id}",
    )
