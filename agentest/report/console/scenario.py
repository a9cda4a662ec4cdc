"""Format one finished scenario for the console: a headline, followed by the reasons why it did not pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from agentest.domain.end_reason import IN_WORDS
from agentest.domain.metrics import PASS_RATE
from agentest.domain.results import (
    STATE_CHECKS,
    ConversationResult,
    JudgeCalibration,
    Reason,
    ReasonKind,
    ScenarioResult,
    Severity,
    Status,
    UniqueError,
)
from agentest.domain.transcript import Conversation
from agentest.domain.verdict import conversation_status, threshold_status
from agentest.report.alignments import alignment_of_reason, alignment_of_trajectory, threshold_counted_lines
from agentest.report.console.case import shortfall_lines
from agentest.report.console.text import (
    BLANK,
    STYLES,
    Chunk,
    ConsoleLine,
    DisplayOptions,
    Part,
    labelled,
    line,
    rows_of,
)
from agentest.report.console.transcript import (
    alignment_lines,
    call_lines,
    criteria_lines,
    example_lines,
    quoted_turn,
    state_lines,
    transcript_lines,
)
from agentest.report.content import (
    ScenarioReport,
    decided,
    exchanges,
    interval_text,
    passed_text,
    unreached_goal,
)
from agentest.support.terminal import clean, clean_for_log
from agentest.support.text import count, duration

_SHOWN_IDS = 6
_SHOWN_PASSED = 5
_SHOWN_BY_CRITERIA = 5
_SHOWN_ROWS = 30
_SEVERITY_STYLES = {
    Severity.LOW: "dim",
    Severity.MEDIUM: "yellow",
    Severity.HIGH: "red",
    Severity.CRITICAL: "bold red",
}


def scenario_lines(result: ScenarioResult, display: DisplayOptions) -> list[ConsoleLine]:
    """Return all lines of a finished scenario; only scenarios that did not pass have details."""
    status = result.verdict.status
    if status is Status.SKIPPED:
        return [headline(result, display), *(_reason_line(r, display, 4) for r in result.verdict.reasons)]
    findings = [
        *_warnings(result),
        *(row for group in result.errors for row in _error_group(group, result, display)),
        *criteria_lines(result, display),
        *_averages(result, display),
    ]
    if status is Status.PASSED and not display.verbose:
        return [headline(result, display), *findings]
    general = [*_general_reasons(result, display), *shortfall_lines(result, display)]
    return [headline(result, display), *general, *_conversations(result, display), *findings, BLANK]


def headline(result: ScenarioResult, display: DisplayOptions) -> ConsoleLine:
    """Return the single line that summarizes a scenario."""
    status = result.verdict.status
    badge: Chunk = ((display.glyphs.badge(status), STYLES[status]), "  ")
    chunks: list[Chunk] = [((result.name, "bold"),)]
    location = ScenarioReport(result).location
    if location != result.name:
        chunks.append(((location, "cyan"),))
    if display.several_agents:
        chunks.append(((f"[{result.agent}]", "magenta"),))
    if facts := " · ".join(_facts(result)):
        chunks.append(((facts, "dim"),))
    return ConsoleLine(badge, tuple(chunks))


def averages_text(
    result: ScenarioResult, calibrations: Mapping[str, JudgeCalibration] = MappingProxyType({})
) -> list[Chunk]:
    """Return each average with its threshold, colored by the verdict on it.

    Args:
        calibrations: the measured agreement of judges, shown after the averages.
    """
    names = dict.fromkeys([*result.averages, *result.thresholds])
    return [_average(name, result, calibrations.get(name)) for name in names if name != PASS_RATE]


def passed_conversations(result: ScenarioResult) -> str:
    return f"{result.totals.passed}/{result.totals.conversations}"


def _facts(result: ScenarioResult) -> Iterator[str]:
    totals = result.totals
    if totals.conversations and result.case is not None:
        # Its scores are averaged over all runs, so a single run neither passes nor fails.
        yield count(totals.conversations, "run")
    elif totals.conversations:
        rate = result.thresholds.get(PASS_RATE)
        least = f"{PASS_RATE} ≥ {rate:g}" if rate is not None else ""
        noun = "conversation" if totals.conversations == 1 else "conversations"
        yield f"{passed_conversations(result)} {noun} passed{_in_parentheses(passed_text(result), least)}"
        yield from ["flaky"] if result.flaky else []
        if text := decided(result):
            yield text
    if totals.conversations:
        yield count(totals.turns, "turn")
        yield count(totals.tool_calls, "tool call")
    if totals.conversations or result.duration_ms:
        yield duration(result.duration_ms)


def _warnings(result: ScenarioResult) -> Iterator[ConsoleLine]:
    for warning in result.warnings:
        yield from labelled(4, "warning: ", rows_of(warning), "yellow")


def _averages(result: ScenarioResult, display: DisplayOptions) -> Iterator[ConsoleLine]:
    if chunks := averages_text(result, display.calibrations):
        yield ConsoleLine(("    ",), tuple(chunks))


def _average(name: str, result: ScenarioResult, judge: JudgeCalibration | None) -> Chunk:
    value = f"{result.averages[name]:.2f}" if name in result.averages else "not scored"
    least = result.thresholds.get(name)
    against = result.totals.evidence.get(name, {})
    evidence = "".join(f", {each} in {count(times, 'turn')}" for each, times in against.items())
    figure, right = result.intervals.get(name), ""
    if judge and name in result.averages:
        right = f", {judge.shown}"
    about = _in_parentheses(
        f"≥ {least:g}" if least is not None else "",
        f"n {figure.n:,}" if figure else "",
        "for information" if least is None and name in result.information else "",
    )
    more = f"{interval_text(figure)}{about}{right}{evidence}"
    if least is None:
        return ((f"{name} {value}{more}", "dim"),)
    return f"{name} ", (value, STYLES[threshold_status(name, result.verdict)]), (more, "dim")


def _in_parentheses(*facts: str) -> str:
    text = ", ".join(filter(None, facts))
    return f" ({text})" if text else ""


def _general_reasons(result: ScenarioResult, display: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show the reasons that belong to no single conversation; error groups include their occurrences."""
    ids = {each.conversation.conversation_id for each in result.conversations}
    for reason in result.verdict.reasons:
        if reason.conversation_id not in ids and reason.group not in result.errors:
            yield _reason_line(reason, display, 4)
            yield from _more_rows(reason, 6)


def _error_group(
    group: UniqueError, result: ScenarioResult, display: DisplayOptions
) -> Iterator[ConsoleLine]:
    mark: Part = (
        display.mark(Status.FAILED) if group.fails else " " * len(display.glyphs.marks[Status.FAILED])
    )
    severity = (f"{group.severity.label}: ", _SEVERITY_STYLES[group.severity])
    what = f"{group.label}, {count(len(group.occurrences), 'time')}"
    yield ConsoleLine(
        ("    ", mark, " "), ((severity, (what, "bold" if group.fails else "")), (_ids(group.occurrences),))
    )
    if result.verdict.status is not Status.PASSED or display.verbose:
        for row in rows_of(group.explanation):
            yield line(8, row)
    for example in group.examples[:1]:
        yield from example_lines(example, 8)


def _ids(ids: Sequence[str]) -> Part:
    more = f", … {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(ids[:_SHOWN_IDS]) + more, "dim"


def _conversations(result: ScenarioResult, display: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show the failed conversations first, similar ones only once, then the others."""
    others: list[ConversationResult] = []
    groups: dict[object, list[tuple[ConversationResult, list[Reason]]]] = {}
    by_conversation = ScenarioReport(result).reasons_by_conversation
    for number, each in enumerate(result.conversations):
        if reasons := by_conversation.get(each.conversation.conversation_id):
            # A transcript is shown for each conversation, so similar ones are not grouped.
            key = number if display.verbose else tuple(map(_signature, reasons))
            groups.setdefault(key, []).append((each, reasons))
        else:
            others.append(each)
    hidden, about_criteria = 0, 0
    for (first, reasons), *similar in groups.values():
        if not display.verbose and all(reason.kind is ReasonKind.CRITERION for reason in reasons):
            about_criteria += 1
            if about_criteria > _SHOWN_BY_CRITERIA:  # criteria are counted below
                hidden += 1 + len(similar)
                continue
        yield from _conversation(first, reasons, display)
        if similar:
            ids = [other.conversation.conversation_id for other, _ in similar]
            text = f"and {count(len(ids), 'more conversation')} like it: "
            yield line(8, (text, "yellow"), _ids(ids))
    if hidden:
        more = count(hidden, "more conversation")
        text = f"… {more} in which criteria did not hold (shown by --verbose)"
        yield line(4, (text, "yellow"))
    if result.case is not None and not display.verbose:
        return  # the scores below their thresholds are shown already, for all runs
    listed = others if display.verbose else others[:_SHOWN_PASSED]
    for other in listed:
        yield from _conversation(other, [], display)
    if others[len(listed) :]:
        yield line(
            4, (f"… {count(len(others) - len(listed), 'more conversation')} (shown by --verbose)", "dim")
        )


def _signature(reason: Reason) -> tuple[object, ...]:
    """Return equal keys for reasons that differ only in ids, numbers and the agent's wording."""
    text = f"{reason.check.check}: {reason.check.summary}" if reason.check else reason.message
    first_row = text.split("\n", 1)[0]
    message = re.sub(r"\d+", "#", first_row.replace(str(reason.conversation_id), "#"))
    # An agent may break down at any turn; a check or a trajectory belongs to its own.
    by_turn = reason.kind in (ReasonKind.CHECK, ReasonKind.TRAJECTORY)
    if reason.criterion:
        return reason.status, reason.kind, reason.criterion.text
    if reason.kind is ReasonKind.GOAL:  # the judge words each reason differently
        return reason.status, reason.kind
    return reason.status, reason.kind, message, reason.turn_index if by_turn else None


def _conversation(
    result: ConversationResult, reasons: Sequence[Reason], display: DisplayOptions
) -> Iterator[ConsoleLine]:
    conversation = result.conversation
    facts = " · ".join(
        (
            count(conversation.started_turns, "turn"),
            count(len(conversation.tool_calls), "tool call"),
            _ending(conversation),
        )
    )
    mark = display.mark(conversation_status(result))
    yield ConsoleLine(("    ", mark, " "), ((conversation.conversation_id,), ((facts, "dim"),)))
    yield from _reasons(result, reasons, display)
    yield from _threshold_trajectories(result, display)
    has_goal = any(reason.kind is ReasonKind.GOAL for reason in reasons)
    if not (display.verbose or has_goal) and (goal := unreached_goal(result)):
        yield line(8, goal, lead=(("goal: ", "dim"),))
    if display.verbose:
        yield from transcript_lines(result, display, 8, faults=not reasons)
    elif reasons and conversation.tool_calls:
        yield line(8, ("tool calls", "dim"))
        yield from call_lines(conversation.tool_calls, 10)


def _ending(conversation: Conversation) -> str:
    if conversation.failure:
        return f"ended by an error ({conversation.failure.blame})"
    return IN_WORDS[conversation.ending]


def _threshold_trajectories(result: ConversationResult, display: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show mismatched trajectories that are not reasons; a transcript includes them already."""
    for trajectory, text in () if display.verbose else threshold_counted_lines(result):
        yield line(8, (text, "dim"), lead=(display.mark(Status.SKIPPED), " "))
        if table := alignment_of_trajectory(trajectory, result.conversation):
            yield from alignment_lines(table, display, 10)


def _reasons(
    result: ConversationResult, reasons: Sequence[Reason], display: DisplayOptions
) -> Iterator[ConsoleLine]:
    """Show the reasons turn by turn, each turn with its messages."""
    conversation = result.conversation
    by_turn: dict[int | None, list[Reason]] = {}
    for reason in reasons:
        by_turn.setdefault(reason.turn_index, []).append(reason)
    for index, about_turn in by_turn.items():
        for reason in about_turn:
            yield _reason_line(reason, display, 8)
            table = alignment_of_reason(reason, result)
            yield from _more_rows(reason, 10, sides=table is None)
            yield from alignment_lines(table, display, 10) if table else ()
        if display.verbose:
            continue
        turns = {each.turn.turn_index: each for each in exchanges(conversation) if each.turn}
        last = max(turns, default=None)
        if index is None and last not in by_turn:  # a reason without a turn is shown at the last one
            index = last
            yield from [] if last is None else [line(10, (f"turn {last}, the last", "dim"))]
        if exchange := turns.get(index) if index is not None else None:
            checks = [reason.check for reason in about_turn if reason.check]
            replied = any(check.reply is not None for check in checks)
            yield from quoted_turn(exchange, 10, reply=not replied)
            if any(check.check in STATE_CHECKS for check in checks):
                yield from state_lines(exchange, 10)


def _reason_line(reason: Reason, display: DisplayOptions, indent: int) -> ConsoleLine:
    where = f"turn {reason.turn_index}  " if reason.turn_index is not None else ""
    first = reason.message.split("\n", 1)[0]
    lead: Chunk = (display.mark(reason.status), " ", (where, "bold"))
    return line(indent, (first, STYLES[reason.status]), lead=lead)


def _more_rows(reason: Reason, indent: int, *, sides: bool = True) -> Iterator[ConsoleLine]:
    """Show the further rows of a message; the sides of a trajectory are aligned.

    Args:
        sides: show the sides.
    """
    rows = list(_labelled_rows(reason, sides))
    if len(rows) > _SHOWN_ROWS:
        yield line(indent, (f"… {count(len(rows) - _SHOWN_ROWS, 'row')} left out", "dim"))
    widest = max(len(label) for label, _ in rows) if rows else 0
    for label, row in rows[-_SHOWN_ROWS:]:
        lead = (((label + ":").ljust(widest + 2), "dim"),) if label else ()
        yield line(indent, row, lead=lead)


def _labelled_rows(reason: Reason, sides: bool) -> Iterator[tuple[str, str]]:
    """Yield the further rows, each with the label of the side that begins with it, if there is one."""
    trajectory = reason.trajectory
    for row in rows_of(trajectory.summary if trajectory else reason.message)[1:]:
        yield "", row
    for label, text in trajectory.sides if trajectory and sides else ():
        first, *more = rows_of(text)
        yield label, first
        yield from (("", row) for row in more)


def block(result: ScenarioResult, *, verbose: bool = False, several_agents: bool = False) -> str:
    """Return the lines of a scenario without colors and without a blank row at the end.

    Args:
        verbose: include transcripts; the result must still have its conversations.
    """
    display = DisplayOptions(verbose=verbose, several_agents=several_agents)
    return clean_for_log("\n".join(clean(line.plain) for line in scenario_lines(result, display)).rstrip())
