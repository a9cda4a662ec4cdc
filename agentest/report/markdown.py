"""Format criteria, goals, reasons and cells for the GitHub report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agentest.domain.end_reason import IN_WORDS
from agentest.domain.goal_outcome import criterion_message
from agentest.domain.results import (
    ConversationResult,
    CriterionOutcome,
    CriterionTotals,
    Reason,
    ReasonKind,
    ScenarioResult,
    Status,
)
from agentest.report import github_selection as select
from agentest.report.content import criterion_counts, criterion_example, criterion_name, unreached_goal
from agentest.support.terminal import clean
from agentest.support.text import count

TABLE_HEAD = (
    "\n### Criteria\n\n| Status | Scenario | Criterion | Conversations | Example |\n"
    "| --- | --- | --- | --- | --- |\n"
)
_ICONS = {CriterionOutcome.MET: "✅", CriterionOutcome.VIOLATED: "❌", CriterionOutcome.CANNOT_TELL: "⚠️"}
_NO_SAY = "➖"


def criterion_badness(criterion: CriterionTotals) -> tuple[bool, int]:
    """Sort key: unmet criteria first, required ones before optional ones."""
    held = criterion.worst is CriterionOutcome.MET
    return held or not criterion.required, list(CriterionOutcome).index(criterion.worst)


def criterion_row(scenario: ScenarioResult, criterion: CriterionTotals, several: bool) -> str:
    """Return a row of the table of criteria."""
    held = criterion.worst is CriterionOutcome.MET
    icon = _ICONS[criterion.worst] if held or criterion.required else _NO_SAY
    name = criterion_name(criterion)
    texts = (select.label(scenario, several), name, criterion_counts(criterion), criterion_example(criterion))
    return table_row([icon, *map(inline, texts)])


def criterion_annotations(scenario: ScenarioResult) -> Iterator[tuple[str, str]]:
    """Yield level and message for each violated criterion; an error if the verdict names it."""
    failing = {reason.criterion.text for reason in scenario.verdict.reasons if reason.criterion}
    for each in scenario.totals.criteria:
        if each.violated:
            level = "error" if each.required and each.text in failing else "warning"
            counts = f"{criterion_counts(each)}; " if each.judged > 1 else ""
            yield level, f"{criterion_name(each)}: {counts}{criterion_example(each)}"


_OF_CONVERSATIONS = (ReasonKind.CRITERION, ReasonKind.TRAJECTORY, ReasonKind.CHECK, ReasonKind.GOAL)


def grouped(reasons: list[Reason]) -> Iterator[tuple[Reason, str]]:
    """Yield the reasons with a suffix for their messages.

    Of reasons about the same criterion, or with the same finding about calls or a check, only the first
    remains; its suffix counts the others.
    """
    alike: dict[object, list[Reason]] = {}
    for number, reason in enumerate(reasons):
        same: object = reason.criterion.text if reason.criterion else (reason.message, reason.turn_index)
        if reason.kind is ReasonKind.GOAL:  # the judge words each reason differently
            same = reason.kind
        alike.setdefault(same if reason.kind in _OF_CONVERSATIONS else number, []).append(reason)
    for first, *others in alike.values():
        yield first, f" (and {count(len(others), 'more conversation')})" if others else ""


def reason_lines(
    scenario: ScenarioResult,
    message: Callable[[Reason, str], str] = lambda reason, more: reason.message + more,
) -> list[str]:
    """Return the reasons for the status of a scenario, each criterion once.

    Missed thresholds have a table of their own, so they are named here only if there is no other reason.

    Args:
        message: formats a reason, given the count of further conversations.
    """
    status = scenario.verdict.status
    reasons = [reason for reason in scenario.verdict.reasons if reason.status is status]
    others = [reason for reason in reasons if reason.kind not in select.VIOLATIONS]
    texts = [
        f"{r.conversation_id}: {message(r, more)}" if r.conversation_id else message(r, more)
        for r, more in grouped(others)
    ]
    return texts or [_missed(reasons) if reasons else str(status)]


def _missed(reasons: list[Reason]) -> str:
    names = ", ".join(dict.fromkeys(str(reason.metric) for reason in reasons))
    below = reasons[0].status is Status.FAILED
    return f"{'below its threshold' if below else 'not scored, though it has a threshold'}: {names}"


def story_lines(scenario: ScenarioResult, result: ConversationResult) -> Iterator[tuple[str, str]]:
    """Yield label and text for a conversation's end, and for goal and criteria without a reason."""
    id = result.conversation.conversation_id
    reasons = [reason for reason in scenario.verdict.reasons if reason.conversation_id == id]
    if goal := unreached_goal(result):
        yield "ended: ", IN_WORDS[result.conversation.ending]
        if not any(reason.kind is ReasonKind.GOAL for reason in reasons):
            yield "goal: ", goal
    told = [reason.criterion for reason in reasons]
    for each in result.criteria:
        if each.result is not CriterionOutcome.MET and each not in told:
            yield "" if each.required else "not required: ", criterion_message(each)


_IN_MARKDOWN = str.maketrans({c: f"&#{ord(c)};" for c in "&<>|`*[]\\~$"})
_MAX_CELL_CHARS = 500


def cut(text: str, limit: int) -> str:
    """Cut the text to a number of characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def inline(text: str) -> str:
    """Return text on one line that Markdown shows literally, even in a table; at most 500 characters."""
    return clean(" ".join(cut(text, _MAX_CELL_CHARS).split())).translate(_IN_MARKDOWN)


def table_row(cells: Iterable[str]) -> str:
    """Return a row of a table; the cells are Markdown."""
    return f"| {' | '.join(cells)} |\n"
