"""What became of goals and criteria in words, for all reporters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.domain.goal_outcome import goal_outcome, goal_reason
from agentest.domain.results import (
    CauseKind,
    ConversationResult,
    CriterionResult,
    CriterionTotals,
    GoalOutcome,
    ReasonKind,
    RootCause,
    RunResult,
    ScenarioResult,
    Score,
    Status,
    VerdictWarning,
    WarningCode,
    by_code,
)
from agentest.domain.transcript import ServerOutput, StateChange
from agentest.support.json_text import plain
from agentest.support.text import count, shortened

_REASON_CHARS = 400


def score_text(score: Score) -> str:
    """A score's value: all labels of a turn that failed."""
    if isinstance(score.value, str):
        return ", ".join(score.labels) or score.value
    return f"{score.value:g}"


def score_reason(score: Score) -> str:
    """A score's reason in one row, begun by what became of the goal or by what known facts say."""
    marks = [str(mark) for mark in (score.outcome, score.evidence) if mark is not None]
    return ": ".join([*marks, shortened(score.reason, _REASON_CHARS)])


def unreached_goal(result: ConversationResult) -> str | None:
    """What became of a goal that was not reached, or reached wrongly, with the reason; else None."""
    outcome = goal_outcome(result)
    if outcome is None or outcome is GoalOutcome.REACHED:
        return None
    return f"{outcome}: {shortened(goal_reason(result), _REASON_CHARS)}"


def criterion_name(criterion: CriterionResult | CriterionTotals) -> str:
    """The criterion's text, and that nothing hangs on it, where that is so."""
    return criterion.text if criterion.required else f"{criterion.text} (not required)"


def criterion_counts(criterion: CriterionTotals) -> str:
    """How many conversations met it."""
    return f"met {criterion.met}/{criterion.judged}"


def criterion_example(criterion: CriterionTotals, *, reason: bool = True) -> str:
    """Where the worst of its results was found first, and why; "" where all conversations met it."""
    if criterion.example is None:
        return ""
    conversation_id, found = criterion.example
    why = f": {shortened(found.reason, _REASON_CHARS)}" if reason else ""
    return f"{found.result} in {_place(criterion, conversation_id, found)}{why}"


def _place(criterion: CriterionTotals, conversation_id: str, found: CriterionResult) -> str:
    """The turn; the conversation before it where there are several."""
    turn = "" if found.turn_index is None else f"turn {found.turn_index}"
    if criterion.judged == 1:
        return turn or conversation_id
    return f"{conversation_id}, {turn}" if turn else conversation_id


def cause_badness(cause: RootCause) -> str:
    """How bad a root cause is: its severity, or that nobody knows."""
    return "errored" if cause.kind is CauseKind.ERRORED else cause.severity.label


def cause_facts(cause: RootCause, *, several_agents: bool) -> Iterator[str]:
    """How bad it is, how many conversations show it, and where to look first."""
    yield cause_badness(cause)
    if cause.conversations > 1:
        yield count(cause.conversations, "conversation")
    if several_agents and cause.agents:
        yield ", ".join(cause.agents)
    if cause.example.conversation_id:
        first = "" if cause.conversations == 1 else "first: "
        turn = "" if cause.example.turn_index is None else f", turn {cause.example.turn_index}"
        yield f"{first}{cause.example.conversation_id}{turn}"


_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One message, and the warnings that have it."""

    warnings: tuple[VerdictWarning, ...]

    @property
    def first(self) -> VerdictWarning:
        return self.warnings[0]

    @property
    def text(self) -> str:
        """Whose verdict it questions, and why."""
        return f"{_whose(self.warnings)}: {self.first.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """All warnings of one code."""

    code: WarningCode
    each: tuple[Question, ...]

    @property
    def head(self) -> str:
        """The code, and how many scenarios are in question."""
        places = {(w.scenario, w.agent) for question in self.each for w in question.warnings}
        return f"{self.code} ({count(len(places), 'scenario')})"

    def rows(self, most: int = _SHOWN) -> list[str]:
        """The first few in a row each, and how many more there are."""
        left = len(self.each) - most
        more = [f"… {count(left, 'more warning')} in results.json (`summary.warnings`)"] if left > 0 else []
        return [*(question.text for question in self.each[:most]), *more]


def questions(result: RunResult) -> list[Questions]:
    """What questions the verdicts of a run, by code."""
    return [
        Questions(code=code, each=_by_message(warnings))
        for code, warnings in by_code(result.verdict_warnings).items()
    ]


def _by_message(warnings: Sequence[VerdictWarning]) -> tuple[Question, ...]:
    found: dict[str, list[VerdictWarning]] = {}
    for warning in warnings:
        found.setdefault(warning.message, []).append(warning)
    return tuple(Question(warnings=tuple(each)) for each in found.values())


def _whose(warnings: Sequence[VerdictWarning]) -> str:
    names = list(dict.fromkeys(warning.scenario for warning in warnings))
    if len(names) == 1:
        return repr(names[0])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(repr, names[:_SHOWN]))}{more}"


def unfinished_text(result: RunResult) -> str:
    """The count in words; "" where all finished.

    "12 of 40 scenarios did not run; 3 ran in part (7 of their 15 conversations)".
    """
    left = result.unfinished
    of = f" of {count(len(result.scenarios), 'scenario')}"
    if len(result.agents) > 1:
        of += ", with each agent,"
    begun = [scenario for scenario in left if scenario.totals.conversations or scenario.duration_ms]
    parts = []
    if untouched := len(left) - len(begun):
        parts.append(f"{untouched:,}{of} did not run")
        of = ""
    if begun:
        held = sum(scenario.totals.conversations for scenario in begun)
        planned = sum(max(scenario.planned, scenario.totals.conversations) for scenario in begun)
        its = "its" if len(begun) == 1 else "their"
        parts.append(f"{len(begun):,}{of} ran in part ({held:,} of {its} {planned:,} conversations)")
    return "; ".join(parts)


def ended_early_text(result: RunResult) -> str:
    """Why the run ended early, and what did not finish; "" where it came to its end."""
    if not result.interrupted and not result.stopped:
        return ""
    why = "Interrupted" if result.interrupted else f"Ended before its end ({result.stopped})"
    return f"{why}: {unfinished_text(result) or 'all scenarios had finished'}"


def decided(result: ScenarioResult) -> str:
    """After how many conversations the verdict was decided, or that it was not; "": nobody asked for that."""
    repeat, held = result.repeat, result.totals.conversations
    if repeat is None or _ended(result):
        return ""
    of = f"{held} of at most {repeat.max}"
    if result.decided_after is not None:
        return f"decided after {of}"
    if result.verdict.status is Status.ERRORED:
        return f"{of} held"
    if result.verdict.passed and not result.thresholds:
        return f"none failed in {of}"
    return f"not decided after {of}" + (
        ": the others could neither decide nor change it" if held < repeat.max else ""
    )


def _ended(result: ScenarioResult) -> bool:
    """Whether the run was ended before: its reason says after how many."""
    return any(reason.kind is ReasonKind.INTERRUPTED for reason in result.verdict.reasons)


def server_rows(output: ServerOutput) -> Sequence[str]:
    """A row that says whose lines they are, and the lines."""
    ended = "" if output.exit_status is None else f" exited with status {output.exit_status}"
    if not output.lines:
        return [f"{output.server}{ended}"]
    lines = count(len(output.lines), "line")
    if output.lines_before:
        lines = f"the last {lines} of {len(output.lines) + output.lines_before:,}"
    return [f"{output.server}{ended}{',' if ended else ''} printed meanwhile ({lines}):", *output.lines]


_VALUE_CHARS = 200
_SHOWN_KEYS = 20


def state_rows(change: StateChange) -> list[str]:
    """A row for each key: `+` is new, `~` has another value, `-` is gone; none where nothing changed."""
    rows = list(_rows(change))
    more = len(rows) - _SHOWN_KEYS
    return rows if more <= 0 else [*rows[:_SHOWN_KEYS], f"… {more} more keys"]


def _rows(change: StateChange) -> Iterator[str]:
    for key, value in change.added.items():
        yield f"+ {_key(key)} = {_value(value)}"
    for key, (before, after) in change.changed.items():
        yield f"~ {_key(key)} = {_value(after)} (was {_value(before)})"
    for key, value in change.removed.items():
        yield f"- {_key(key)} (was {_value(value)})"


def _key(key: str) -> str:
    return shortened(key, _VALUE_CHARS)


def _value(value: Any) -> str:
    return shortened(json.dumps(plain(value), ensure_ascii=False), _VALUE_CHARS)
