"""Format a scenario's criteria and alignments as lines for the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentest.domain.reasons import criterion_status
from agentest.domain.results import (
    DECIDED,
    NO_MODEL,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    CriterionTotals,
    RowStatus,
    ScenarioResult,
    Status,
)
from agentest.report.alignments import AlignmentTable
from agentest.report.console.text import STYLES, Chunk, ConsoleLine, DisplayOptions, Part, columns, line
from agentest.report.phrases import criterion_counts, criterion_example, criterion_name
from agentest.support.text import count, shortened


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
