"""A case of an evaluation set on the console: where it fell short, and every invocation in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from agentest.metrics import ABOUT_CALLS
from agentest.report.console.text import BLANK, STYLES, Line, Look, Part, Printer, labelled, line, rows_of
from agentest.results import (
    ConversationResult,
    ExpectedCall,
    MetricResult,
    ScenarioResult,
    Score,
    Skipped,
    Status,
    TurnEvaluation,
    Unscored,
)
from agentest.support.json_text import safe_repr
from agentest.support.text import shortened
from agentest.transcript import NO_TEXT, Turn, call_text

_SHOWN_SHORTFALLS = 10
_REASON_CHARS = 600
_COLUMN_WIDTH = 80


@dataclass(frozen=True, slots=True)
class _Shortfall:
    """A score below its threshold. Equal for runs in which the same happened."""

    turn: int
    metric: str
    score: float
    reason: str
    expected: str | None
    replied: str


def shortfall_lines(result: ScenarioResult, look: Look) -> Iterator[Line]:
    """The scores below their thresholds with their reasons, those that several runs share once."""
    if result.case is None:
        return
    found = Counter(_shortfalls(result))
    for short, times in list(found.items())[:_SHOWN_SHORTFALLS]:
        runs = f" in {times} of {len(result.conversations)} runs" if len(result.conversations) > 1 else ""
        least = result.thresholds[short.metric]
        head = f"turn {short.turn}: {short.metric} {short.score:.3g} (≥ {least:g}){runs}"
        yield line(6, head, lead=(look.mark(Status.FAILED), " "))
        yield from _evidence(short)
    if len(found) > _SHOWN_SHORTFALLS:
        yield line(6, (f"… {len(found) - _SHOWN_SHORTFALLS} more (shown by --print-detailed-results)", "dim"))


def _evidence(short: _Shortfall) -> Iterator[Line]:
    if short.reason:
        yield line(8, (shortened(short.reason, _REASON_CHARS), "dim"))
    if short.expected is not None:
        yield from labelled(8, "expected  ", [shortened(short.expected)])
        yield from labelled(8, "replied   ", [shortened(short.replied)])


def _shortfalls(result: ScenarioResult) -> Iterator[_Shortfall]:
    for conversation in result.conversations:
        replies = {turn.turn_index: turn.agent_message or NO_TEXT for turn in conversation.conversation.turns}
        for turn in conversation.turns:
            for name, found in turn.metrics.items():
                value, least = _number(found), result.thresholds.get(name)
                if value is not None and least is not None and value < least:
                    # A reason that is about calls shows them already.
                    text = None if name in ABOUT_CALLS or not turn.reference else turn.reference.text
                    yield _Shortfall(
                        turn.turn_index, name, value, _why(found), text, replies[turn.turn_index]
                    )


def detail_tables(result: ScenarioResult, look: Look, printer: Printer) -> Iterator[Line | Table]:
    """Every invocation of a case: what was expected beside what happened, and the scores."""
    if result.case is None:
        return
    for conversation in result.conversations:
        evaluations = {turn.turn_index: turn for turn in conversation.turns}
        for turn in conversation.conversation.turns:
            yield line(4, (f"{conversation.conversation.conversation_id}, turn {turn.turn_index}", "bold"))
            evaluation = evaluations.get(turn.turn_index, TurnEvaluation(turn.turn_index))
            yield _sides(turn, evaluation, printer)
            yield _scores(evaluation, result, conversation, look, printer)
            yield BLANK


def _sides(turn: Turn, evaluation: TurnEvaluation, printer: Printer) -> Table:
    reference = evaluation.reference
    text = reference.text if reference else None
    calls = reference.tool_calls if reference else None
    table = _table("", "expected", "actual", printer=printer)
    table.columns[0].no_wrap = True
    _row(table, printer, "user", turn.user_message, turn.user_message)
    _row(table, printer, "response", "–" if text is None else text, turn.agent_message or NO_TEXT)
    expected = "–" if calls is None else "\n".join(map(expected_text, calls)) or "no calls"
    _row(table, printer, "tool calls", expected, "\n".join(map(call_text, turn.tool_calls)) or "no calls")
    return table


def _scores(
    evaluation: TurnEvaluation,
    result: ScenarioResult,
    conversation: ConversationResult,
    look: Look,
    printer: Printer,
) -> Table:
    table = _table("metric", "score", "threshold", "status", "reason", printer=printer)
    for name, least in result.thresholds.items():
        found = evaluation.metrics.get(name) or conversation.metrics.get(name)
        value = _number(found)
        status, word = Status.ERRORED, "not evaluated"
        if value is not None:
            status = Status.PASSED if value >= least else Status.FAILED
            word = str(status)
        shown = "–" if value is None else f"{value:.4g}"
        badge: Part = (f"{look.glyphs.marks[status]} {word}", STYLES[status])
        _row(table, printer, name, shown, f"{least:g}", badge, shortened(_why(found), _REASON_CHARS))
    return table


def _table(*columns: str, printer: Printer) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=True)
    for column in columns:
        table.add_column(printer.text([column]), overflow="fold", max_width=_COLUMN_WIDTH)
    return table


def _row(table: Table, printer: Printer, *cells: Part) -> None:
    table.add_row(*(_cell(cell, printer) for cell in cells))


def _cell(part: Part, printer: Printer) -> Text:
    words, style = (part, "") if isinstance(part, str) else part
    return Text("\n").join(printer.text([(row, style)]) for row in rows_of(words))


def expected_text(call: ExpectedCall) -> str:
    """An expected call as it is shown: without arguments where none are expected of it."""
    if call.args is None:
        return call.name
    return f"{call.name}({', '.join(f'{key}={safe_repr(value)}' for key, value in call.args.items())})"


def _number(found: MetricResult | None) -> float | None:
    return float(found.value) if isinstance(found, Score) and not isinstance(found.value, str) else None


def _why(found: MetricResult | None) -> str:
    match found:
        case Score():
            return found.reason
        case Skipped():
            return found.why
        case Unscored():
            return found.error
    return "nothing to compare with in this turn"
