"""Format the messages and tool calls of a conversation for the console, briefly or in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentest.domain.reasons import (
    LocatedTrajectory,
    check_status,
    criterion_status,
    located_trajectories,
    trajectory_status,
)
from agentest.domain.results import (
    DECIDED,
    NO_MODEL,
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    CriterionTotals,
    ErrorExample,
    MetricResult,
    RowStatus,
    ScenarioResult,
    Score,
    Skipped,
    Status,
    TurnEvaluation,
)
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import (
    NO_TEXT,
    SECRETS_HIDDEN,
    Conversation,
    ToolCall,
    Turn,
    UnfinishedTurn,
    arguments_untold,
    call_text,
    state_changes,
)
from agentest.report.alignments import AlignmentTable, alignment_of_trajectory, threshold_counted_lines
from agentest.report.console.text import (
    STYLES,
    Chunk,
    ConsoleLine,
    DisplayOptions,
    Part,
    columns,
    labelled,
    line,
    rows_of,
)
from agentest.report.content import (
    criterion_counts,
    criterion_example,
    criterion_name,
    score_reason,
    score_text,
    server_rows,
    state_rows,
)
from agentest.support.json_text import NotJson, json_text
from agentest.support.text import count, duration, shortened

_SHOWN_CALLS = 8
_CALL_CHARS = 110
_USER, _AGENT, _TOOL, _SAID, _STATE = "user   ", "agent  ", "tool   ", "said   ", "state  "
_SERVER = "server "
_USER_PREFIX = "user's "
"""The prefix of the simulated user's own tools, which are invisible to the agent."""


def quoted_turn(turn: Turn | UnfinishedTurn, indent: int, *, reply: bool = True) -> Iterator[ConsoleLine]:
    """Show the two messages of a turn, each in about two rows."""
    yield from labelled(indent, _USER, [shortened(turn.user_message)])
    if isinstance(turn, UnfinishedTurn):
        yield line(indent, ("no reply", "dim"), lead=((_AGENT, "dim"),))
        yield from _server_lines(turn, indent)
    elif reply:
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
        yield line(indent, made, " → ", answer, *_remarks(call), lead=((f"turn {call.turn_index}  ", "dim"),))
    if len(calls) > _SHOWN_CALLS:
        yield line(indent, (f"… {len(calls) - _SHOWN_CALLS} more tool calls", "dim"))


def example_lines(example: ErrorExample, indent: int) -> Iterator[ConsoleLine]:
    """Show a turn in which an error occurred: its position, messages and calls."""
    yield line(indent, (f"for example {example.conversation_id}, turn {example.turn_index}", "dim"))
    yield from labelled(indent + 2, _USER, [example.user_message])
    for call in example.tool_calls:
        yield from labelled(indent + 2, _TOOL, [call])
    yield from labelled(indent + 2, _AGENT, [example.agent_message or NO_TEXT])


def transcript_lines(
    result: ConversationResult, look: DisplayOptions, indent: int, *, faults: bool = True
) -> Iterator[ConsoleLine]:
    """Show the whole conversation with the evaluation of each turn.

    Args:
        faults: include what did not pass; False if that is shown already.
    """
    conversation = result.conversation
    evaluations = {turn.turn_index: turn for turn in result.turns}
    if conversation.session_id:
        yield line(indent, (f"session {conversation.session_id}", "dim"))
    for turn in conversation.turns:
        yield line(indent, (_turn_head(turn), "bold"))
        yield from _user_calls(conversation, turn.turn_index, indent + 2)
        yield from _messages(turn, indent + 2)
        yield from state_lines(conversation, turn, indent + 2)
        if turn.turn_index in evaluations:
            yield from _evaluation(evaluations[turn.turn_index], result, look, indent + 2, faults)
    yield from _unfinished(conversation, indent)
    yield from _user_calls_at_end(conversation, indent)
    if faults and conversation.failure:
        yield from labelled(indent, "cut short  ", rows_of(conversation.failure.message), "red")
    yield from _metrics(result.metrics, indent)
    yield from conversation_criteria(result, look, indent)
    yield from _trajectories(result, None, look, indent, faults)
    for check in result.checks:
        if check.passed or faults:
            yield _check(check, look, indent)


def state_lines(conversation: Conversation, turn: Turn, indent: int) -> Iterator[ConsoleLine]:
    """Show the changes to the session's state in a turn, one row for each key, or why they are unknown."""
    if turn.state_error:
        yield from labelled(indent, _STATE, [shortened(turn.state_error)], "yellow")
    change = state_changes(conversation).get(turn.turn_index)
    if change:
        yield from labelled(indent, _STATE, state_rows(change), "dim")


def value_text(value: Any) -> str:
    """Return a tool's result as it was sent."""
    if isinstance(value, str):
        return value
    try:
        return json_text(value)
    except NotJson:
        return repr(value)


def _turn_head(turn: Turn) -> str:
    retried = f", {count(turn.retries, 'retry', 'retries')}" if turn.retries else ""
    first = "" if turn.first_token_ms is None else f", first token after {duration(turn.first_token_ms)}"
    return f"turn {turn.turn_index}  {duration(turn.latency_ms)}{first}{retried}{_hidden(turn)}"


def _hidden(turn: Turn | UnfinishedTurn) -> str:
    return f", {SECRETS_HIDDEN}" if turn.redacted else ""


def _messages(turn: Turn, indent: int) -> Iterator[ConsoleLine]:
    yield from labelled(indent, _USER, rows_of(turn.user_message), "cyan")
    yield from _calls_in_full(turn.tool_calls, indent)
    for remark in turn.remarks:
        yield from labelled(indent, _SAID, rows_of(f"{remark.author}: {remark.text}"), "dim")
    yield from labelled(indent, _AGENT, rows_of(turn.agent_message or NO_TEXT))


def _user_calls(conversation: Conversation, turn_index: int, indent: int) -> Iterator[ConsoleLine]:
    """Show the calls of the simulated user's own tools before its message in a turn."""
    calls = [call for call in conversation.user_calls if call.turn_index == turn_index]
    yield from _calls_in_full(calls, indent, _USER_PREFIX)


def _user_calls_at_end(conversation: Conversation, indent: int) -> Iterator[ConsoleLine]:
    """Show the calls of the simulated user's own tools after the last turn."""
    calls = list(_user_calls(conversation, len(conversation.turns), indent + 2))
    if calls and conversation.unfinished is None:
        yield line(indent, ("after the last turn", "bold"))
        yield from calls


def _calls_in_full(calls: Sequence[ToolCall], indent: int, who: str = _TOOL) -> Iterator[ConsoleLine]:
    for call in calls:
        yield from labelled(indent, who, rows_of(call_text(call)), "magenta")
        first, *more = rows_of(value_text(call.result))
        yield line(indent + len(who), first, *([] if more else _remarks(call)), lead=(("→ ", "dim"),))
        yield from labelled(indent + len(who), "  ", more)
        if more and _remarks(call):
            yield line(indent + len(who), *_remarks(call), lead=("  ",))


def _remarks(call: ToolCall) -> list[Part]:
    """Describe the unusual properties of a call."""
    invalid = "" if arguments_untold(call) else call.invalid_arguments
    remarks = [f"invalid arguments: {invalid}"] if invalid else []
    if call.error:
        remarks.append(call.error if not call.mocked else f"the mock raised: {call.error}")
    elif not call.mocked and not call.invalid_arguments and call.seen_by is SeenBy.CALLER:
        remarks.append("not mocked")
    return [(f"  ({shortened(remark)})", "yellow") for remark in remarks]


def _unfinished(conversation: Conversation, indent: int) -> Iterator[ConsoleLine]:
    if unfinished := conversation.unfinished:
        yield line(indent, (f"turn {unfinished.turn_index}  no reply{_hidden(unfinished)}", "bold"))
        yield from _user_calls(conversation, unfinished.turn_index, indent + 2)
        yield from labelled(indent + 2, _USER, rows_of(unfinished.user_message), "cyan")
        yield from _calls_in_full(unfinished.tool_calls, indent + 2)
        yield from _server_lines(unfinished, indent + 2)


def _evaluation(
    evaluation: TurnEvaluation, result: ConversationResult, look: DisplayOptions, indent: int, faults: bool
) -> Iterator[ConsoleLine]:
    yield from _metrics(evaluation.metrics, indent)
    yield from _trajectories(result, evaluation.turn_index, look, indent, faults)
    for check in evaluation.checks:
        if check.passed or faults:
            yield _check(check, look, indent)


def _metrics(metrics: Mapping[str, MetricResult], indent: int) -> Iterator[ConsoleLine]:
    for name, result in metrics.items():
        if isinstance(result, Score):
            samples = f" {[*result.samples]}" if len(result.samples) > 1 else ""
            value: Part = (score_text(result), "bold")
            yield line(indent, f"{name} ", value, samples, ("  " + score_reason(result), "dim"))
        elif not isinstance(result, Skipped):
            yield line(indent, f"{name} ", ("could not be scored: " + shortened(result.error, 400), "yellow"))


def _check(check: CheckResult, look: DisplayOptions, indent: int) -> ConsoleLine:
    mark = look.mark(check_status(check))
    where = "" if check.turn_index is None else f" (turn {check.turn_index})"
    return line(indent, f"{check.check}{where}: {check.reason}", lead=(mark, " "))


def _trajectories(
    result: ConversationResult, turn_index: int | None, look: DisplayOptions, indent: int, faults: bool
) -> Iterator[ConsoleLine]:
    """Show the trajectories of a turn, or of the whole; those that only a threshold counts are not faults."""
    counted = dict(threshold_counted_lines(result))
    for held in located_trajectories(result):
        if held.turn_index == turn_index and (held.result.matched or faults or held in counted):
            status = Status.SKIPPED if held in counted else trajectory_status(held.result)
            yield from _trajectory(held, status, counted.get(held, ""), result, look, indent)


def _trajectory(
    held: LocatedTrajectory,
    status: Status,
    text: str,
    result: ConversationResult,
    look: DisplayOptions,
    indent: int,
) -> Iterator[ConsoleLine]:
    table = alignment_of_trajectory(held, result.conversation)
    reason = held.result.reason if table is None else held.result.summary
    first, *more = rows_of(f"{held.subject}: {reason}")
    yield line(indent, text or first, lead=(look.mark(status), " "))
    yield from labelled(indent + 2, "", more)
    yield from alignment_lines(table, look, indent + 2) if table else ()


def criteria_lines(result: ScenarioResult, look: DisplayOptions) -> Iterator[ConsoleLine]:
    """Show the criteria that some conversations did not meet; with --verbose, show all of them."""
    criteria = result.totals.criteria
    unasked = [each for each in criteria if each.example and each.example[1].without_model]
    if unasked and not look.verbose:
        yield _unasked(unasked, look)
        criteria = tuple(each for each in criteria if each not in unasked)
    told = [reason.criterion for reason in result.verdict.reasons if reason.criterion]
    for each in criteria:
        if each.example or look.verbose:
            yield _criterion(each, told, look)
    held = sum(each.example is None for each in criteria)
    if held and not look.verbose:
        text = f"{count(held, 'criterion', 'criteria')} met{_everywhere_text(result)}"
        yield line(4, (text, "dim"), lead=(look.mark(Status.PASSED), " "))
    yield from _left_out(result, look)


def conversation_criteria(
    result: ConversationResult, look: DisplayOptions, indent: int
) -> Iterator[ConsoleLine]:
    """Show each criterion of a conversation with the judge's answer."""
    for each in result.criteria:
        turn = "" if each.turn_index is None else f" in turn {each.turn_index}"
        found: Part = (f"{each.result}{turn}", "bold")
        why = ("  " + shortened(each.reason, 400), "dim") if each.reason else ""
        yield line(indent, f"{criterion_name(each)}  ", found, why, lead=(_mark(each, look), " "))


def _everywhere_text(result: ScenarioResult) -> str:
    those = " that were asked about" if _already_failed(result) else ""
    return f" in all conversations{those}" if result.totals.conversations > 1 else ""


def _already_failed(result: ScenarioResult) -> list[ConversationResult]:
    """Return the conversations whose criteria were skipped because they had already failed."""
    return [each for each in result.conversations if any(c.reason == DECIDED for c in each.criteria)]


def _left_out(result: ScenarioResult, look: DisplayOptions) -> Iterator[ConsoleLine]:
    if decided := _already_failed(result):
        names = count(len({c.text for each in decided for c in each.criteria}), "criterion", "criteria")
        text = f"{names} not asked of {count(len(decided), 'conversation')}: failed already"
        yield line(4, (text, STYLES[Status.SKIPPED]), lead=(look.mark(Status.SKIPPED), " "))


def _unasked(criteria: Sequence[CriterionTotals], look: DisplayOptions) -> ConsoleLine:
    status = Status.ERRORED if any(each.required for each in criteria) else Status.SKIPPED
    text = f"{count(len(criteria), 'criterion', 'criteria')} not judged: {NO_MODEL}"
    return line(4, (text, STYLES[status]), lead=(look.mark(status), " "))


def _criterion(
    criterion: CriterionTotals, told: Sequence[CriterionResult], look: DisplayOptions
) -> ConsoleLine:
    found = criterion.example[1] if criterion.example else None
    mark = _mark(found, look) if found else look.mark(Status.PASSED)
    # The verdict states it already.
    example = criterion_example(criterion, reason=found not in told)
    counts = criterion_counts(criterion) if criterion.judged > 1 or not example else ""
    where = "; ".join(part for part in (counts, example) if part)
    return line(4, f"{criterion_name(criterion)}  ", (where, "dim"), lead=(mark, " "))


def _mark(criterion: CriterionResult, look: DisplayOptions) -> Part:
    """The mark is dim for an unmet criterion without effect: it is optional, or was skipped."""
    status = criterion_status(criterion)
    pale = status is Status.PASSED and criterion.result is not CriterionOutcome.MET
    return look.mark(Status.SKIPPED if pale else status)


_STATUS = {
    RowStatus.MATCHED: Status.PASSED,
    RowStatus.FREE: Status.SKIPPED,
    RowStatus.UNKNOWN: Status.ERRORED,
}


def alignment_lines(table: AlignmentTable, look: DisplayOptions, indent: int) -> Iterator[ConsoleLine]:
    """Show the rows below their headings; below a row its mismatch, or the reason why the call is allowed."""
    width = max(map(len, look.glyphs.marks.values()))
    blank = " " * (width + 1)
    heads, *shown = columns((" " * indent,), [((blank,), *_heads(table)), *_rows(table, look, width)])
    yield heads
    for row, each in zip(table.rows, shown, strict=True):
        yield each
        if row.words:
            yield line(indent + width + 3, (row.words, STYLES[_status(row.status)]))
    if table.more:
        yield line(indent + width + 1, (table.more, "dim"))


def _heads(table: AlignmentTable) -> tuple[Part, Part]:
    expected, made = table.heads
    return ((expected, "dim"), (made, "dim")) if table.expects else ((made, "dim"), "")


def _rows(table: AlignmentTable, look: DisplayOptions, width: int) -> Iterator[tuple[Chunk, Part, Part]]:
    for row in table.rows:
        cells = (row.expected, row.made) if table.expects else (row.made, "")
        yield (_alignment_mark(row.status, look, width), " "), *cells


def _alignment_mark(status: RowStatus, look: DisplayOptions, width: int) -> Part:
    return look.glyphs.marks[_status(status)].ljust(width), STYLES[_status(status)]


def _status(status: RowStatus) -> Status:
    return _STATUS.get(status, Status.FAILED)
