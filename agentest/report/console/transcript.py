"""Format conversations for the console: why they did not pass, their messages and their tool calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

from agentest.domain.end_reason import IN_WORDS
from agentest.domain.reasons import (
    check_status,
    conversation_status,
    criterion_status,
    located_trajectories,
    trajectory_status,
)
from agentest.domain.results import (
    DECIDED,
    NO_MODEL,
    STATE_CHECKS,
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    CriterionTotals,
    ErrorExample,
    MetricResult,
    Reason,
    ReasonKind,
    ScenarioResult,
    Score,
    Skipped,
    Status,
)
from agentest.domain.tool_visibility import SeenBy, ToolOutcome
from agentest.domain.transcript import NO_TEXT, SECRETS_HIDDEN, ToolCall, Turn, UnfinishedTurn, call_text
from agentest.report.alignments import (
    AlignmentTable,
    alignment_of_reason,
    alignment_of_trajectory,
    threshold_counted_lines,
)
from agentest.report.console.text import (
    STYLES,
    Chunk,
    ConsoleLine,
    DisplayOptions,
    Part,
    columns,
    conversation_number,
    labelled,
    line,
    numbers_of,
    rows_of,
)
from agentest.report.content import (
    Exchange,
    ScenarioReport,
    criterion_counts,
    criterion_example,
    criterion_name,
    exchanges,
    fault_rows,
    score_reason,
    score_text,
    server_rows,
    unreached_goal,
)
from agentest.support.json_text import NotJson, json_text
from agentest.support.text import count, duration, shortened, turn_name

_SHOWN_OTHERS = 5
_SHOWN_BY_CRITERIA = 5
_SHOWN_ROWS = 30
_SHOWN_CALLS = 8
_CALL_CHARS = 110
_USER, _AGENT, _TOOL, _SAID, _STATE = "user   ", "agent  ", "tool   ", "said   ", "state  "
_SERVER, _FAULT = "server ", "fault  "
_USER_PREFIX = "user's "
"""The prefix of the simulated user's own tools, which are invisible to the agent."""


def general_reasons(result: ScenarioResult, look: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show the reasons that belong to no single conversation; error groups include their occurrences."""
    ids = {each.conversation.conversation_id for each in result.conversations}
    for reason in result.verdict.reasons:
        if reason.conversation_id not in ids and reason.group not in result.errors:
            if reason.kind is ReasonKind.FILE:
                reason = replace(reason, message=_with_short_paths(reason.message, result))
            yield reason_line(reason, look, 4)
            yield from _more_rows(reason, 6)


def _with_short_paths(message: str, result: ScenarioResult) -> str:
    folder = re.compile(rf"^/\S.*?/(?={re.escape(result.file)}:\d+: )", re.M)
    return folder.sub("", message)


def conversations_lines(result: ScenarioResult, look: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show the failed conversations first, similar ones only once, then the others."""
    others: list[ConversationResult] = []
    groups: dict[object, list[tuple[ConversationResult, list[Reason]]]] = {}
    by_conversation = ScenarioReport(result).reasons_by_conversation
    for number, each in enumerate(result.conversations):
        if reasons := by_conversation.get(each.conversation.conversation_id):
            # A transcript is shown for each conversation, so similar ones are not grouped.
            key = number if look.verbose else tuple(map(_signature, reasons))
            groups.setdefault(key, []).append((each, reasons))
        else:
            others.append(each)
    hidden, about_criteria = 0, 0
    for (first, reasons), *similar in groups.values():
        if not look.verbose and all(reason.kind is ReasonKind.CRITERION for reason in reasons):
            about_criteria += 1
            if about_criteria > _SHOWN_BY_CRITERIA:  # criteria are counted below
                hidden += 1 + len(similar)
                continue
        yield from _conversation(first, reasons, look)
        if similar:
            ids = [other.conversation.conversation_id for other, _ in similar]
            text = f"and {count(len(ids), 'more conversation')} like it: "
            yield line(8, (text, "yellow"), numbers_of(ids))
    if hidden:
        more = f"… {count(hidden, 'more conversation')} in which criteria did not hold (shown by --verbose)"
        yield line(4, (more, "yellow"))
    if result.case is not None and not look.verbose:
        return  # the scores below their thresholds are shown already, for all runs
    if not look.detailed:  # the headline counts those that passed
        others = [each for each in others if _is_explained(each)][:_SHOWN_OTHERS]
    for other in others:
        yield from _conversation(other, [], look)


def _is_explained(result: ConversationResult) -> bool:
    return bool([*threshold_counted_lines(result)]) or unreached_goal(result) is not None


def _signature(reason: Reason) -> tuple[object, ...]:
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
    result: ConversationResult, reasons: Sequence[Reason], look: DisplayOptions
) -> Iterator[ConsoleLine]:
    conversation = result.conversation
    turns, calls = count(conversation.started_turns, "turn"), count(len(conversation.tool_calls), "tool call")
    failed = conversation.failure
    end = f"ended by an error ({failed.blame.words})" if failed else IN_WORDS[conversation.ending]
    facts = f"{turns} · {calls} · {end}"
    if conversation.attack and (dropped := conversation.attack.dropped):
        facts += f" · {count(len(dropped), 'exchange')} dropped"
    mark = look.mark(conversation_status(result))
    yield ConsoleLine(
        ("    ", mark, " "), ((conversation_number(conversation.conversation_id),), ((facts, "dim"),))
    )
    yield from _reasons(result, reasons, look)
    for trajectory, text in () if look.verbose else threshold_counted_lines(result):
        yield line(8, (text, "dim"), lead=(look.mark(Status.SKIPPED), " "))
        if table := alignment_of_trajectory(trajectory, result.conversation):
            yield from alignment_lines(table, look, 10)
    has_goal = any(reason.kind is ReasonKind.GOAL for reason in reasons)
    if not (look.verbose or has_goal) and (goal := unreached_goal(result)):
        yield line(8, goal, lead=(("goal: ", "dim"),))
    if look.verbose:
        yield from transcript_lines(result, look, 8, faults=not reasons)
    elif reasons and conversation.tool_calls:
        yield line(8, ("tool calls", "dim"))
        yield from call_lines(conversation.tool_calls, 10)


def _reasons(
    result: ConversationResult, reasons: Sequence[Reason], look: DisplayOptions
) -> Iterator[ConsoleLine]:
    conversation = result.conversation
    by_turn: dict[int | None, list[Reason]] = {}
    for reason in reasons:
        by_turn.setdefault(reason.turn_index, []).append(reason)
    for index, about_turn in by_turn.items():
        for reason in about_turn:
            yield reason_line(reason, look, 8)
            table = alignment_of_reason(reason, result)
            yield from _more_rows(reason, 10, sides=table is None)
            yield from alignment_lines(table, look, 10) if table else ()
        if look.verbose:
            continue
        turns = {each.turn.turn_index: each for each in exchanges(conversation) if each.turn}
        last = max(turns, default=None)
        if index is None and last not in by_turn:  # a reason without a turn is shown at the last one
            index = last
            yield from [] if last is None else [line(10, (f"{turn_name(last)}, the last", "dim"))]
        if exchange := turns.get(index) if index is not None else None:
            checks = [reason.check for reason in about_turn if reason.check]
            replied = any(check.reply is not None for check in checks)
            yield from quoted_turn(exchange, 10, reply=not replied)
            if any(check.check in STATE_CHECKS for check in checks):
                yield from state_lines(exchange, 10)


def reason_line(reason: Reason, look: DisplayOptions, indent: int) -> ConsoleLine:
    where = f"{turn_name(reason.turn_index)}  " if reason.turn_index is not None else ""
    first = reason.message.split("\n", 1)[0]
    lead: Chunk = (look.mark(reason.status), " ", (where, "bold"))
    return line(indent, (first, STYLES[reason.status]), lead=lead)


def _more_rows(reason: Reason, indent: int, *, sides: bool = True) -> Iterator[ConsoleLine]:
    trajectory = reason.trajectory
    rows = [("", row) for row in rows_of(trajectory.summary if trajectory else reason.message)[1:]]
    for label, text in trajectory.sides if trajectory and sides else ():
        first, *more = rows_of(text)
        rows += [(label, first), *(("", row) for row in more)]
    if len(rows) > _SHOWN_ROWS:
        yield line(indent, (f"… {count(len(rows) - _SHOWN_ROWS, 'row')} left out", "dim"))
    widest = max(len(label) for label, _ in rows) if rows else 0
    for label, row in rows[-_SHOWN_ROWS:]:
        lead = (((label + ":").ljust(widest + 2), "dim"),) if label else ()
        yield line(indent, row, lead=lead)


def quoted_turn(exchange: Exchange, indent: int, *, reply: bool = True) -> Iterator[ConsoleLine]:
    """Show the two messages of a turn, each in about two rows."""
    turn = exchange.turn
    if turn:
        yield from labelled(indent, _USER, [shortened(turn.user_message)])
        yield from labelled(indent, _FAULT, fault_rows(turn), "yellow")
    if isinstance(turn, UnfinishedTurn):
        yield line(indent, ("no reply", "dim"), lead=((_AGENT, "dim"),))
        yield from _server_lines(turn, indent)
    elif turn and reply:
        yield from labelled(indent, _AGENT, [shortened(turn.agent_message) or NO_TEXT])


def _server_lines(turn: UnfinishedTurn, indent: int) -> Iterator[ConsoleLine]:
    for output in turn.server_output:
        yield from labelled(indent, _SERVER, server_rows(output), "dim")


def call_lines(calls: Sequence[ToolCall], indent: int) -> Iterator[ConsoleLine]:
    """Show the tool calls of a conversation with their results, one row each."""
    for call in calls[:_SHOWN_CALLS]:
        made, answer = (
            shortened(call_text(call), _CALL_CHARS),
            shortened(value_text(call.result), _CALL_CHARS),
        )
        yield line(
            indent, made, " → ", answer, *_remarks(call), lead=((f"{turn_name(call.turn_index)}  ", "dim"),)
        )
    if len(calls) > _SHOWN_CALLS:
        yield line(indent, (f"… {len(calls) - _SHOWN_CALLS} more tool calls", "dim"))


def example_lines(example: ErrorExample, indent: int) -> Iterator[ConsoleLine]:
    """Show a turn in which an error occurred: its position, messages and calls."""
    yield line(
        indent,
        (
            f"for example {conversation_number(example.conversation_id)}, {turn_name(example.turn_index)}",
            "dim",
        ),
    )
    yield from labelled(indent + 2, _USER, [example.user_message])
    for call in example.tool_calls:
        yield from labelled(indent + 2, _TOOL, [call])
    yield from labelled(indent + 2, _AGENT, [example.agent_message or NO_TEXT])


def transcript_lines(
    result: ConversationResult, display: DisplayOptions, indent: int, *, faults: bool = True
) -> Iterator[ConsoleLine]:
    """Show the whole conversation with the evaluation of each turn.

    Args:
        faults: include what did not pass; False if that is shown already.
    """
    conversation = result.conversation
    evaluations = {turn.turn_index: turn for turn in result.turns}
    if conversation.session_id:
        yield line(indent, (f"session {conversation.session_id}", "dim"))
    for exchange in exchanges(conversation):
        yield line(indent, (_exchange_head(exchange), "bold"))
        yield from _exchange(exchange, indent + 2)
        if exchange.turn and (evaluation := evaluations.get(exchange.turn.turn_index)):
            yield from _metrics(evaluation.metrics, indent + 2)
            yield from _trajectories(result, evaluation.turn_index, display, indent + 2, faults)
            yield from _checks(evaluation.checks, display, indent + 2, faults)
    if faults and conversation.failure:
        yield from labelled(indent, "cut short  ", rows_of(conversation.failure.message), "red")
    yield from _metrics(result.metrics, indent)
    yield from conversation_criteria(result, display, indent)
    yield from _trajectories(result, None, display, indent, faults)
    yield from _checks(result.checks, display, indent, faults)


def state_lines(exchange: Exchange, indent: int) -> Iterator[ConsoleLine]:
    """Show the changes to the session's state in a turn, one row for each key, or why they are unknown."""
    if isinstance(exchange.turn, Turn) and exchange.turn.state_error:
        yield from labelled(indent, _STATE, [shortened(exchange.turn.state_error)], "yellow")
    yield from labelled(indent, _STATE, exchange.state, "dim")


def value_text(value: Any) -> str:
    """Return a tool's result as it was sent."""
    if isinstance(value, str):
        return value
    try:
        return json_text(value)
    except NotJson:
        return repr(value)


def _exchange_head(exchange: Exchange) -> str:
    turn = exchange.turn
    if turn is None:
        return "after the last turn"
    hidden = f", {SECRETS_HIDDEN}" if turn.redacted else ""
    if isinstance(turn, UnfinishedTurn):
        return f"{turn_name(turn.turn_index)}  no reply{hidden}"
    retried = f", {count(turn.retries, 'retry', 'retries')}" if turn.retries else ""
    first = "" if turn.first_token_ms is None else f", first token after {duration(turn.first_token_ms)}"
    model = "" if turn.model_ms is None else f", model {duration(turn.model_ms)}"
    return f"{turn_name(turn.turn_index)}  {duration(turn.latency_ms)}{first}{model}{retried}{hidden}"


def _exchange(exchange: Exchange, indent: int) -> Iterator[ConsoleLine]:
    yield from _calls_in_full(exchange.user_calls, indent, _USER_PREFIX)
    turn = exchange.turn
    if turn is None:
        return
    yield from labelled(indent, _USER, rows_of(turn.user_message), "cyan")
    yield from labelled(indent, _FAULT, fault_rows(turn), "yellow")
    yield from _calls_in_full(turn.tool_calls, indent)
    if isinstance(turn, UnfinishedTurn):
        yield from _server_lines(turn, indent)
        return
    for remark in turn.remarks:
        yield from labelled(indent, _SAID, rows_of(f"{remark.author}: {remark.text}"), "dim")
    yield from labelled(indent, _AGENT, rows_of(turn.agent_message or NO_TEXT))
    yield from state_lines(exchange, indent)


def _calls_in_full(calls: Sequence[ToolCall], indent: int, who: str = _TOOL) -> Iterator[ConsoleLine]:
    for call in calls:
        yield from labelled(indent, who, rows_of(call_text(call)), "magenta")
        first, *more = rows_of(value_text(call.result))
        yield line(indent + len(who), first, *([] if more else _remarks(call)), lead=(("→ ", "dim"),))
        yield from labelled(indent + len(who), "  ", more)
        if more and _remarks(call):
            yield line(indent + len(who), *_remarks(call), lead=("  ",))


def _remarks(call: ToolCall) -> list[Part]:
    refused = call.outcome is ToolOutcome.REFUSED
    remarks = [f"invalid arguments: {call.invalid_arguments}"] if refused else []
    if call.error:
        remarks.append(call.error if not call.mocked else f"the mock raised: {call.error}")
    elif call.outcome is ToolOutcome.UNANSWERED and call.seen_by is SeenBy.CALLER:
        remarks.append("not mocked")
    if call.simulated:
        remarks.append("simulated by a model")
    return [(f"  ({shortened(remark)})", "yellow") for remark in remarks]


def _metrics(metrics: Mapping[str, MetricResult], indent: int) -> Iterator[ConsoleLine]:
    for name, result in metrics.items():
        if isinstance(result, Score):
            samples = f" {[*result.samples]}" if len(result.samples) > 1 else ""
            value: Part = (score_text(result), "bold")
            yield line(indent, f"{name} ", value, samples, ("  " + score_reason(result), "dim"))
        elif not isinstance(result, Skipped):
            yield line(indent, f"{name} ", ("could not be scored: " + shortened(result.error, 400), "yellow"))


def _checks(
    checks: Sequence[CheckResult], display: DisplayOptions, indent: int, faults: bool
) -> Iterator[ConsoleLine]:
    for check in checks:
        if check.passed or faults:
            where = "" if check.turn_index is None else f" ({turn_name(check.turn_index)})"
            mark = display.mark(check_status(check))
            yield line(indent, f"{check.check}{where}: {check.reason}", lead=(mark, " "))


def _trajectories(
    result: ConversationResult, turn_index: int | None, display: DisplayOptions, indent: int, faults: bool
) -> Iterator[ConsoleLine]:
    counted = dict(threshold_counted_lines(result))
    for each in located_trajectories(result):
        if each.turn_index != turn_index or not (each.result.matched or faults or each in counted):
            continue
        table = alignment_of_trajectory(each, result.conversation)
        reason = each.result.reason if table is None else each.result.summary
        first, *more = rows_of(f"{each.subject}: {reason}")
        status = Status.SKIPPED if each in counted else trajectory_status(each.result)
        yield line(indent, counted.get(each) or first, lead=(display.mark(status), " "))
        yield from labelled(indent + 2, "", more)
        yield from alignment_lines(table, display, indent + 2) if table else ()


def criteria_lines(result: ScenarioResult, display: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show the criteria that some conversations did not meet; with --verbose, show all of them."""
    criteria = result.totals.criteria
    without_model = [each for each in criteria if each.example and each.example[1].without_model]
    if without_model and not display.verbose:
        required = any(each.required for each in without_model)
        status = Status.ERRORED if required else Status.SKIPPED
        yield _criteria_line(without_model, f"not judged: {NO_MODEL}", status, display)
        criteria = tuple(each for each in criteria if each not in without_model)
    explained = [reason.criterion for reason in result.verdict.reasons if reason.criterion]
    for each in criteria:
        if each.example or display.verbose:
            yield _criterion(each, explained, display)
    # The criteria of conversations that had already failed were skipped.
    skipped = [each for each in result.conversations if any(c.reason == DECIDED for c in each.criteria)]
    met = [each for each in criteria if each.example is None]
    if met and not display.verbose:
        where = " in all conversations" + " that were judged" * bool(skipped)
        text = "met" + where * (result.totals.conversations > 1)
        yield _criteria_line(met, text, Status.PASSED, display, "dim")
    if skipped:
        names = {c.text for each in skipped for c in each.criteria}
        text = f"not asked of {count(len(skipped), 'conversation')}: failed already"
        yield _criteria_line(names, text, Status.SKIPPED, display)


def _criteria_line(
    criteria: Sized, text: str, status: Status, display: DisplayOptions, style: str = ""
) -> ConsoleLine:
    counted = f"{count(len(criteria), 'criterion', 'criteria')} {text}"
    return line(4, (counted, style or STYLES[status]), lead=(display.mark(status), " "))


def conversation_criteria(
    result: ConversationResult, display: DisplayOptions, indent: int
) -> Iterator[ConsoleLine]:
    """Show each criterion of a conversation with the judge's answer."""
    for each in result.criteria:
        turn = "" if each.turn_index is None else f" in {turn_name(each.turn_index)}"
        answer: Part = (f"{each.result}{turn}", "bold")
        why = ("  " + shortened(each.reason, 400), "dim") if each.reason else ""
        yield line(indent, f"{criterion_name(each)}  ", answer, why, lead=(_mark(each, display), " "))


def _criterion(
    criterion: CriterionTotals, explained: Sequence[CriterionResult], display: DisplayOptions
) -> ConsoleLine:
    result = criterion.example[1] if criterion.example else None
    mark = _mark(result, display) if result else display.mark(Status.PASSED)
    # The verdict gives the reason already.
    example = criterion_example(criterion, reason=result not in explained)
    counts = criterion_counts(criterion) if criterion.judged > 1 or not example else ""
    where = "; ".join(part for part in (counts, example) if part)
    return line(4, f"{criterion_name(criterion)}  ", (where, "dim"), lead=(mark, " "))


def _mark(criterion: CriterionResult, display: DisplayOptions) -> Part:
    status = criterion_status(criterion)
    pale = status is Status.PASSED and criterion.result is not CriterionOutcome.MET
    return display.mark(Status.SKIPPED if pale else status)


def alignment_lines(table: AlignmentTable, display: DisplayOptions, indent: int) -> Iterator[ConsoleLine]:
    """Show the rows below their headings; below a row its mismatch, or the reason why the call is allowed."""
    width = max(map(len, display.glyphs.marks.values()))
    expected, made = ((head, "dim") for head in table.heads)
    heads: tuple[Part, Part] = (expected, made) if table.expects else (made, "")
    rows: list[tuple[Chunk, Part, Part]] = [((" " * (width + 1),), *heads)]
    for row in table.rows:
        mark, style = display.mark(row.outcome)
        cells = (row.expected, row.made) if table.expects else (row.made, "")
        rows.append((((mark.ljust(width), style), " "), *cells))
    first, *lines = columns((" " * indent,), rows)
    yield first
    for row, each in zip(table.rows, lines, strict=True):
        yield each
        if row.words:
            yield line(indent + width + 3, (row.words, STYLES[row.outcome]))
    if table.more:
        yield line(indent + width + 1, (table.more, "dim"))
