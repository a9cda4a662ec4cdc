"""Format conversations for the console: why they did not pass, their messages and their tool calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

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
    CauseKind,
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    CriterionTotals,
    ErrorExample,
    MetricResult,
    Reason,
    ReasonKind,
    ScenarioCause,
    ScenarioResult,
    Score,
    Skipped,
    Status,
)
from agentest.domain.tool_visibility import SeenBy, ToolOutcome
from agentest.domain.transcript import NO_TEXT, SECRETS_HIDDEN, ToolCall, Turn, UnfinishedTurn, call_text
from agentest.report import alignments
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
    rows_of,
)
from agentest.report.content import (
    ScenarioReport,
    criterion_counts,
    criterion_example,
    criterion_name,
    end_in_words,
    score_reason,
    unreached_goal,
)
from agentest.support.json_text import NotJson, json_text
from agentest.support.text import count, duration, is_in, shortened, turn_name

_BRIEF_ROWS, _SHOWN_ROWS = 6, 30
_EXPLANATION_CHARS = 300
_BRIEF_CHARS, _QUOTED_CHARS = 64, 150
_USER, _AGENT, _TOOL, _SAID, _STATE = "user   ", "agent  ", "tool   ", "said   ", "state  "
_EARLIER = {"user": _USER, "assistant": _AGENT, "tool call": _TOOL}
_SERVER, _FAULT = "server ", "fault  "
_USER_PREFIX = "user's "  # the prefix of the simulated user's own tools, which are invisible to the agent


def cause_lines(
    report: ScenarioReport, look: DisplayOptions, *, only: int | None = None
) -> Iterator[ConsoleLine]:
    """Show why a scenario did not pass: each cause with the turn that decided, and its calls in columns.

    Args:
        only: show in brief only this one of the report's causes, without its title, which stands above.
    """
    causes, brief = report.unjudged_causes, only is not None
    shown: set[tuple[str, int | None]] = set()
    for cause in causes if only is None else causes[only:][:1]:
        if not brief:
            more = f"  {count(cause.conversations, 'conversation')}" * (cause.conversations > 1)
            title = (cause.title, STYLES[report.status]), (more, "dim")
            yield line(4, *title, lead=(look.mark(report.status), " "))
        yield from _cause_details(report, cause, look, shown, brief=brief)
    if not brief and not causes:  # the early end of the run is none
        early = (each for each in report.result.verdict.reasons if each.kind is ReasonKind.INTERRUPTED)
        yield from (reason_line(each, look, 4) for each in early)
    if only is not None and not causes[only:]:
        for group in [each for each in report.result.errors if each.fails][only - len(causes) :][:1]:
            yield line(4, shortened(group.explanation, _EXPLANATION_CHARS))
            yield from (each for example in group.examples[:1] for each in example_lines(example, 4))


def _cause_details(
    report: ScenarioReport,
    cause: ScenarioCause,
    look: DisplayOptions,
    shown: set[tuple[str, int | None]],
    *,
    brief: bool,
) -> Iterator[ConsoleLine]:
    indent, most = (4, _BRIEF_ROWS) if brief else (6, alignments.MOST_ROWS)
    id, conversations = cause.conversation_id or "", report.result.conversations
    result = next((each for each in conversations if id and each.conversation.conversation_id == id), None)
    if result and (id, cause.turn_index) not in shown:
        shown.add((id, cause.turn_index))
        yield from _decisive_turn(result, cause, indent, _BRIEF_CHARS if brief else _QUOTED_CHARS)
    if result and cause.kind is CauseKind.TRAJECTORY and (id, -1) not in shown:
        shown.add((id, -1))
        reasons = [each for each in report.reasons_by_conversation.get(id, ()) if each.trajectory]
        for reason in reasons:
            table = alignments.alignment_of_reason(reason, result, most)
            first, *sides = rows_of(alignments.without_sides(reason) if table else reason.message)
            if reasons[1:] or not table or (reason.trajectory and reason.trajectory.name):
                yield from (line(indent, (row, "dim")) for row in (first, *sides[-most:]))
            yield from alignment_lines(table, look, indent, cause.title) if table else ()
    is_check = cause.kind is CauseKind.CHECK and is_in(cause.title, cause.text)
    if not (is_check or is_in(cause.text, cause.title)):
        yield from _rows_of_cause(report, cause, indent, brief=brief)
    if cause.kind is CauseKind.THRESHOLD:
        counted = (
            (each, found) for each in conversations for found in alignments.threshold_counted_lines(each)
        )
        for each, (trajectory, text) in islice(counted, 1):
            yield line(indent, (text, "dim"), lead=(look.mark(Status.SKIPPED), " "))
            if table := alignments.alignment_of_trajectory(trajectory, each.conversation, most):
                yield from alignment_lines(table, look, indent + 2)


def _rows_of_cause(
    report: ScenarioReport, cause: ScenarioCause, indent: int, *, brief: bool
) -> Iterator[ConsoleLine]:
    """Show the text of a cause; of a file, a threshold and a long text, the last rows of the reason.

    `brief`: of a row that ends with the title, show only the place, unless it stands above.
    """
    kinds = [*ReasonKind] if cause.text.endswith("…") else [ReasonKind.FILE, ReasonKind.THRESHOLD]
    reasons = (each.message for each in report.reasons if each.kind in kinds)
    whole = (each for each in reasons if is_in(cause.text, each))
    folder = re.compile(rf"^/\S.*?/(?={re.escape(report.result.file)}:\d+: )", re.M)
    for row in rows_of(folder.sub("", next(whole, cause.text)))[-(_BRIEF_ROWS if brief else _SHOWN_ROWS) :]:
        is_title = brief and row.endswith(cause.title)
        place, _, of_row = row.removesuffix(f": {cause.title}").partition(": ")
        in_data = of_row.partition(f"scenario {report.result.name!r}, ")[2]
        text = (in_data or place) if is_title else row
        is_new = text not in ("", report.location) and not is_in(text, cause.title)
        if is_new or text.startswith("  "):
            yield line(indent, (text, "dim"))


def _decisive_turn(
    result: ConversationResult, cause: ScenarioCause, indent: int, chars: int
) -> Iterator[ConsoleLine]:
    turns = [each for each in alignments.exchanges(result.conversation) if each.turn]
    of_cause = (each for each in turns if each.turn and each.turn.turn_index == cause.turn_index)
    exchange = next(of_cause, turns[-1] if turns and cause.kind is not CauseKind.ERRORED else None)
    if exchange and exchange.turn:
        label = f"{turn_name(exchange.turn.turn_index)}  "
        yield from quoted_turn(exchange, indent, label, chars)
        if cause.title.startswith(STATE_CHECKS):
            yield from state_lines(exchange, indent + len(label))


def conversations_lines(result: ScenarioResult, look: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show each conversation in one line, or with its transcript; those that did not pass are first."""
    statuses = [conversation_status(each) for each in result.conversations]
    for place in sorted(range(len(statuses)), key=lambda place: statuses[place] is Status.PASSED):
        each = result.conversations[place]  # that of a stored run may be read anew
        conversation = each.conversation
        turns, calls = (
            count(len(conversation.started_turns), "turn"),
            count(len(conversation.tool_calls), "tool call"),
        )
        facts = f"{turns} · {calls} · {end_in_words(conversation)}"
        if conversation.attack and (dropped := conversation.attack.dropped):
            facts += f" · {count(len(dropped), 'exchange')} dropped"
        mark = look.mark(statuses[place])
        number = (conversation_number(conversation.conversation_id),)
        yield ConsoleLine(("    ", mark, " "), (number, ((facts, "dim"),)))
        if look.verbose:
            yield from transcript_lines(each, look, 8, faults=result.verdict.passed)
        elif goal := unreached_goal(each):
            yield line(8, goal, lead=(("goal: ", "dim"),))


def reason_line(reason: Reason, look: DisplayOptions, indent: int) -> ConsoleLine:
    where = f"{turn_name(reason.turn_index)}  " if reason.turn_index is not None else ""
    first = reason.message.split("\n", 1)[0]
    lead: Chunk = (look.mark(reason.status), " ", (where, "bold"))
    return line(indent, (first, STYLES[reason.status]), lead=lead)


def quoted_turn(exchange: alignments.Exchange, indent: int, label: str, chars: int) -> Iterator[ConsoleLine]:
    """Show the two messages of a turn after a label, each in at most so many characters."""
    turn = exchange.turn
    if turn is None:
        return
    yield from labelled(indent, label + _USER, [shortened(turn.user_message, chars)])
    indent += len(label)
    yield from labelled(indent, _FAULT, alignments.fault_rows(turn), "yellow")
    if isinstance(turn, UnfinishedTurn):
        yield line(indent, ("no reply", "dim"), lead=((_AGENT, "dim"),))
        yield from _server_lines(turn, indent, _BRIEF_ROWS)
    else:
        yield from labelled(indent, _AGENT, [shortened(turn.agent_message, chars) or NO_TEXT])


def _server_lines(turn: UnfinishedTurn, indent: int, most: int | None = None) -> Iterator[ConsoleLine]:
    if any(call.outcome is ToolOutcome.UNMOCKED for call in turn.tool_calls):
        return  # the server is not to blame, and its lines may belong to another conversation
    for output in turn.server_output:
        head, *rows = alignments.server_rows(output)
        yield from labelled(indent, _SERVER, [head, *(rows[-most:] if most else rows)], "dim")


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
    if conversation.history:
        yield line(indent, ("before the first turn", "bold"))
    for earlier in conversation.history:
        yield from labelled(indent + 2, _EARLIER[earlier.role], rows_of(earlier.text), "dim")
    for exchange in alignments.exchanges(conversation):
        yield line(indent, (_exchange_head(exchange), "bold"))
        yield from _exchange(exchange, indent + 2)
        if exchange.turn and (evaluation := evaluations.get(exchange.turn.turn_index)):
            yield from _metrics(evaluation.metrics, indent + 2)
            yield from _trajectories(result, evaluation.turn_index, display, indent + 2, faults)
            yield from _checks(evaluation.checks, display, indent + 2, faults)
    if faults and conversation.failure:
        yield from labelled(indent, "cut short  ", rows_of(conversation.failure.message), "red")
    yield from _metrics(result.metrics, indent)
    for each in result.criteria:
        turn = "" if each.turn_index is None else f" in {turn_name(each.turn_index)}"
        answer: Part = (f"{each.result}{turn}", "bold")
        why = ("  " + shortened(each.reason, 400), "dim") if each.reason else ""
        yield line(indent, f"{criterion_name(each)}  ", answer, why, lead=(_mark(each, display), " "))
    yield from _trajectories(result, None, display, indent, faults)
    yield from _checks(result.checks, display, indent, faults)


def state_lines(exchange: alignments.Exchange, indent: int) -> Iterator[ConsoleLine]:
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


def _exchange_head(exchange: alignments.Exchange) -> str:
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


def _exchange(exchange: alignments.Exchange, indent: int) -> Iterator[ConsoleLine]:
    yield from _calls_in_full(exchange.user_calls, indent, _USER_PREFIX)
    turn = exchange.turn
    if turn is None:
        return
    yield from labelled(indent, _USER, rows_of(turn.user_message), "cyan")
    yield from labelled(indent, _FAULT, alignments.fault_rows(turn), "yellow")
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
            is_label = isinstance(result.value, str)  # of a turn that failed, all labels
            text = ", ".join(result.labels) or str(result.value) if is_label else f"{result.value:g}"
            value: Part = (text, "bold")
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
    counted = dict(alignments.threshold_counted_lines(result))
    for each in located_trajectories(result):
        if each.turn_index != turn_index or not (each.result.matched or faults or each in counted):
            continue
        table = alignments.alignment_of_trajectory(each, result.conversation)
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
        status = Status.ERRORED if any(each.required for each in without_model) else Status.SKIPPED
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


def alignment_lines(
    table: alignments.AlignmentTable, display: DisplayOptions, indent: int, headline: str = ""
) -> Iterator[ConsoleLine]:
    """Show the rows below their headings; below a row its mismatch, or the reason why the call is allowed.

    A mismatch that the `headline` names is not repeated.
    """
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
        if row.words and not (headline and is_in(row.words, headline)):
            yield line(indent + width + 3, (row.words, STYLES[row.outcome]))
    if table.more:
        yield line(indent + width + 1, (table.more, "dim"))
