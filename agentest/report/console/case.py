"""Show a case of an evaluation set on the console: scores below thresholds, and every invocation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from agentest.domain.metrics import ABOUT_CALLS, METRICS, MetricLevel
from agentest.domain.results import (
    ConversationResult,
    MetricResult,
    MetricVerdict,
    ReferenceCall,
    ScenarioResult,
    Score,
    Skipped,
    Status,
    TurnEvaluation,
    Unscored,
)
from agentest.domain.transcript import NO_TEXT, Turn, call_text
from agentest.domain.verdict import turn_verdict
from agentest.report.console.printer import Printer
from agentest.report.console.text import (
    BLANK,
    STYLES,
    ConsoleLine,
    DisplayOptions,
    Part,
    labelled,
    line,
    rows_of,
)
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import shortened, turn_name

_SHOWN_SHORTFALLS = 10
_REASON_CHARS = 600
_COLUMN_WIDTH = 80


@dataclass(frozen=True, slots=True)
class _Shortfall:
    """A score below its threshold. Two of them are equal if the same happened in two runs."""

    turn: int
    verdict: MetricVerdict
    reason: str
    expected: str | None
    replied: str


def shortfall_lines(
    result: ScenarioResult, display: DisplayOptions, most: int = _SHOWN_SHORTFALLS
) -> Iterator[ConsoleLine]:
    """List the scores below their thresholds; a shortfall that several runs share appears once."""
    if result.case is None:
        return
    shortfalls = Counter(_shortfalls(result))
    for short, times in list(shortfalls.items())[:most]:
        runs = f" in {times} of {len(result.conversations)} runs" if len(result.conversations) > 1 else ""
        verdict = short.verdict
        text = f"{turn_name(short.turn)}: {verdict.name} {verdict.score:.3g} (≥ {verdict.threshold:g})"
        yield line(6, text + runs, lead=(display.mark(Status.FAILED), " "))
        if short.reason:
            yield line(8, (shortened(short.reason, _REASON_CHARS), "dim"))
        if short.expected is not None:
            yield from labelled(8, "expected  ", [shortened(short.expected)])
            yield from labelled(8, "replied   ", [shortened(short.replied)])
    left_out = len(shortfalls) - most
    if left_out > 0:
        yield line(6, (f"… {left_out} more (shown by -v)", "dim"))


def _shortfalls(result: ScenarioResult) -> Iterator[_Shortfall]:
    for conversation in result.conversations:
        replies = {turn.turn_index: turn.agent_message or NO_TEXT for turn in conversation.conversation.turns}
        for turn in conversation.turns:
            for name in (each for each in turn.metrics if each in result.thresholds):
                metric = turn.metrics[name]
                verdict = turn_verdict(name, result.thresholds[name], metric)
                if verdict.status is not Status.FAILED:
                    continue
                # A reason that is about calls shows them already.
                reference = None if name in ABOUT_CALLS else turn.reference
                yield _Shortfall(
                    turn=turn.turn_index,
                    verdict=verdict,
                    reason=_why(metric, name),
                    expected=reference.text if reference else None,
                    replied=replies[turn.turn_index],
                )


def detail_tables(
    result: ScenarioResult, display: DisplayOptions, printer: Printer
) -> Iterator[ConsoleLine | Table]:
    """Show every invocation of a case: the expected and the actual one in two columns, and the scores."""
    if result.case is None:
        return
    for conversation in result.conversations:
        evaluations = {turn.turn_index: turn for turn in conversation.turns}
        for turn in conversation.conversation.turns:
            yield line(
                4, (f"{conversation.conversation.conversation_id}, {turn_name(turn.turn_index)}", "bold")
            )
            evaluation = evaluations.get(turn.turn_index, TurnEvaluation(turn.turn_index))
            yield _sides(turn, evaluation, printer)
            yield _scores(evaluation, result, conversation, display, printer)
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
    display: DisplayOptions,
    printer: Printer,
) -> Table:
    table = _table("metric", "score", "threshold", "status", "reason", printer=printer)
    for name in (*result.thresholds, *result.information):
        metric = evaluation.metrics.get(name) or conversation.metrics.get(name)
        number = metric.number if isinstance(metric, Score) else None
        threshold, badge = "–", ("for information", "dim")
        if name in result.thresholds:
            verdict = turn_verdict(name, result.thresholds[name], metric)
            word = "not evaluated" if verdict.status is Status.ERRORED else str(verdict.status)
            badge = (f"{display.glyphs.marks[verdict.status]} {word}", STYLES[verdict.status])
            number, threshold = verdict.score, f"{result.thresholds[name]:g}"
        score = "–" if number is None else f"{number:.4g}"
        why = shortened(_why(metric, name), _REASON_CHARS)
        _row(table, printer, name, score, threshold, badge, why)
    return table


def _table(*columns: str, printer: Printer) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=True)
    for column in columns:
        table.add_column(printer.text([column]), overflow="fold", max_width=_COLUMN_WIDTH)
    return table


def _row(table: Table, printer: Printer, *cells: Part) -> None:
    parts = [(cell, "") if isinstance(cell, str) else cell for cell in cells]
    rows = ([printer.text([(row, style)]) for row in rows_of(words)] for words, style in parts)
    table.add_row(*(Text("\n").join(each) for each in rows))


def expected_text(call: ReferenceCall) -> str:
    """Format an expected call; without arguments if none are expected."""
    if call.args is None:
        return call.name
    return f"{call.name}({', '.join(f'{key}={safe_repr(value)}' for key, value in call.args.items())})"


def _why(result: MetricResult | None, name: str) -> str:
    match result:
        case Score():
            return result.reason
        case Skipped():
            return result.why
        case Unscored():
            return result.error
    if name in METRICS and METRICS[name].level is MetricLevel.CONVERSATION:
        return "of the whole conversation: its last turn has the score"
    return "nothing to compare with in this turn"
