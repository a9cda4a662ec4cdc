"""Alignments and conversation checks in every textual report."""

from __future__ import annotations

import io
from dataclasses import replace
from html import unescape
from typing import Any

import builders as make
import pytest
from rich.cells import cell_len
from rich.console import Console

from agentest.domain.results import (
    AlignedRow,
    CheckResult,
    ConversationResult,
    Reason,
    RowStatus,
    ScenarioResult,
    TrajectoryResult,
    TrajectoryScore,
)
from agentest.domain.root_causes import scenario_causes
from agentest.report import github
from agentest.report.alignments import MOST_ROWS, alignment_table
from agentest.report.console.printer import Printer
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.text import DisplayOptions
from agentest.report.content import ScenarioReport
from agentest.report.github import annotation_lines
from agentest.report.junit import CaseTexts
from agentest.report.transcripts import Transcripts
from agentest.store.codec import CODECS

PLENTY = 1024 * 1024
CALLS = (
    make.tool_call("get_order", {"id": 17}),
    make.tool_call("refund_order", {"order_id": "17", "amount": 500}),
    make.tool_call("drop", {}),
)


def row(expected: str | None, call: int | None, status: RowStatus, difference: str = "") -> AlignedRow:
    return AlignedRow(expected=expected, call=call, status=status, difference=difference)


ROWS = (
    row("find_user(name='Ann', …)", None, RowStatus.MISSING),
    row(None, 0, RowStatus.FREE, "free: a read (get_*)"),
    row("refund_order(order_id=number(17), amount=5)", 1, RowStatus.DIFFERENT, "amount: expected 5, got 500"),
    row(None, 2, RowStatus.FORBIDDEN, "forbidden: drop"),
)
WRITES = TrajectoryResult(
    matched=False,
    summary="expected calls are missing: find_user",
    mode="strict",
    expected="find_user, refund_order",
    actual="get_order, refund_order, drop",
    missing_calls=("find_user",),
    alignment=ROWS,
    name="writes only these",
    score=TrajectoryScore(met=0.25, precision=0.5, recall=0.5),
)
LOGIN = TrajectoryResult(matched=True, summary="2 tool calls, as expected", name="login first")
SAYS = CheckResult(check="says", passed=False, summary="no reply says text('refunded')", turn_index=0)
STATE = CheckResult(check="final_state", passed=False, summary="orders: expected {}, found {'17': 1}")


def held(
    trajectory: TrajectoryResult | None = WRITES,
    calls: Any = CALLS,
    *checks: CheckResult,
    id: str = "c1",
    **more: Any,
) -> ConversationResult:
    talk = make.conversation(id, turns=(make.turn(tool_calls=tuple(calls)),))
    result = make.conversation_result(id, held=talk, trajectory=trajectory)
    return replace(result, checks=checks, **more)


def scenario(*results: ConversationResult, **more: Any) -> ScenarioResult:
    return make.scenario_result("refund", results or (held(),), **more)


def shown(result: ScenarioResult, width: int = 80, *, terminal: bool = True, verbose: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    printer = Printer(console)
    printer.write(scenario_lines(result, DisplayOptions(verbosity=2 * verbose)))
    return out.getvalue()


def test_a_failed_trajectory_has_two_columns() -> None:
    """Each cause has its title; the turn and one row per call follow, with what no title says below it."""
    assert shown(scenario()).splitlines()[2:15] == [
        "    ✗ refund_order(order_id=number(…), amount=…): amount: expected 5, got 500",
        "      turn 1  user   Is Tuesday free?",
        "              agent  Yes, at 9:00.",
        "      trajectory 'writes only these': expected calls are missing: find_user",
        "        expected (strict)                    made",
        "      ✗ find_user(name='Ann', …)             (not made)",
        "      - (nothing)                            get_order(id=17)",
        "          free: a read (get_*)",
        "      ✗ refund_order(order_id=number(17),    refund_order(order_id='17',",
        "        amount=5)                            amount=500)",
        "      ✗ (nothing)                            drop()",
        "          forbidden: drop",
        "    ✗ find_user(name='Ann', …) not called",
    ]


def test_without_a_terminal_no_row_is_broken() -> None:
    """Without a terminal each row is one line, with the second column below its head."""
    lines = shown(scenario(), 40, terminal=False).splitlines()
    at = next(line for line in lines if line.endswith("  made")).index("made")
    assert any(line[at:] == "refund_order(order_id='17', amount=500)" for line in lines)


WIDE = "日本語の注文" * 12


@pytest.mark.parametrize("width", [34, 40, 48, 80, 120])
@pytest.mark.parametrize("text", ["x" * 300, WIDE, "a b " * 60], ids=["long word", "wide", "words"])
def test_no_row_is_wider_than_the_terminal(width: int, text: str) -> None:
    """Long and wide texts wrap in their column; narrow terminals stack the columns."""
    rows = (
        row(f"pay({text})", 0, RowStatus.DIFFERENT, f"{text}: expected 5"),
        row(text, None, RowStatus.MISSING),
    )
    found = replace(WRITES, alignment=rows)
    lines = shown(scenario(held(found, [make.tool_call("pay", {"to": text})])), width).splitlines()
    assert max(map(cell_len, lines)) <= width


def test_columns_of_wide_characters_are_aligned() -> None:
    """The second column starts at the same cell for any characters."""
    rows = (row("pay(日本)", 0, RowStatus.MATCHED), row("pay(abcd)", 1, RowStatus.MATCHED))
    calls = [make.tool_call("made", {}), make.tool_call("made", {})]
    for terminal in (True, False):
        lines = shown(scenario(held(replace(WRITES, alignment=rows), calls)), terminal=terminal).splitlines()
        starts = {cell_len(line[: line.index("made()")]) for line in lines if "pay(" in line}
        assert len(starts) == 1


def test_mismatched_rows_have_priority() -> None:
    """At most fifteen rows are shown in order; the rest and its mismatches are counted."""
    right = [row("x", 0, RowStatus.MATCHED)] * 20
    some = replace(WRITES, alignment=(*right, row(None, 1, RowStatus.EXTRA), *right), alignment_more=3)
    table = alignment_table(some, CALLS)
    assert table is not None
    assert len(table.rows) == MOST_ROWS
    assert table.rows[-1].status is RowStatus.EXTRA
    assert table.more == "… 29 more rows, with nothing wrong"
    many = replace(WRITES, alignment=tuple([row(None, 1, RowStatus.EXTRA)] * 20))
    table = alignment_table(many, CALLS)
    assert table is not None
    assert table.more == "… 5 more rows, 5 of them wrong"
    assert alignment_table(replace(WRITES, alignment=()), CALLS) is None


def test_a_missing_stored_call_is_not_made() -> None:
    """A row whose call was not stored is shown as not made, without an error."""
    table = alignment_table(replace(WRITES, alignment=(row("x", 9, RowStatus.MATCHED),)), CALLS)
    assert table is not None
    assert table.rows[0].made == "(not made)"


def test_trajectories_are_shown_by_name() -> None:
    """Only failed trajectories are shown; a transcript has all."""
    both = replace(WRITES, alignment=(), parts=(LOGIN, WRITES))
    assert "login first" not in shown(scenario(held(both)))
    assert "trajectory 'writes only these'" in shown(scenario(held(both)))
    text = shown(scenario(held(both)), verbose=True)
    assert "✓ trajectory 'login first': 2 tool calls, as expected" in text
    assert text.count("writes only these") == 1


def test_checks_of_the_whole_conversation_have_their_turn() -> None:
    """`says`, `never_says` and `final_state` are among the reasons and in transcripts."""
    good = replace(SAYS, check="never_says", passed=True, summary="'credit card' was never said")
    result = scenario(held(LOGIN, CALLS, SAYS, STATE, good))
    text = shown(result, 100)
    assert "✗ says: no reply says text('refunded')\n      turn 1  user" in text
    assert "✗ final_state: orders: expected {}, found {'17': 1}" in text
    assert "✓ never_says (turn 1): 'credit card' was never said" in shown(result, 100, verbose=True)
    stories = stored_texts(result)
    assert "failed: says: no reply says text('refunded')" in stories.of(ScenarioReport(result))[0].text


COUNTED = {"trajectory_score": make.scored(0.25)}


def test_calls_counted_by_a_threshold_are_not_a_reason() -> None:
    """If a threshold decides, differences appear below it with their own mark."""
    result = scenario(held(metrics=COUNTED), thresholds={"trajectory_score": 0.5})
    text = shown(result, 140)
    assert "✗ trajectory_score below its threshold of 0.5" in text
    assert "- trajectory 'writes only these': expected calls are missing: find_user (counted by" in text
    assert "amount: expected 5, got 500" in text
    verbose = shown(result, 140, verbose=True)
    assert verbose.count("(counted by the threshold)") == 2, "at the cause, and in the transcript"
    assert "  |  | Expected" in summary(result)


def test_a_stored_reason_has_its_rows() -> None:
    """A stored run looks the same: the rows come from the conversation, not the reason."""
    both = replace(WRITES, alignment=(), parts=(LOGIN, WRITES))
    result = scenario(held(both))
    result = replace(result, causes=scenario_causes(result))
    reasons = tuple(CODECS.read(Reason, CODECS.write(each)) for each in result.verdict.reasons)
    again = replace(result, verdict=replace(result.verdict, reasons=reasons))
    assert again.verdict.reasons[0].trajectory is not None
    assert again.verdict.reasons[0].trajectory.alignment == ()
    assert shown(again) == shown(result)


def test_without_expected_calls_there_is_one_column() -> None:
    """A trajectory of only limits and orders has no second column."""
    order = replace(
        WRITES, mode=None, alignment=(row(None, 0, RowStatus.FREE), row(None, 2, RowStatus.EXTRA))
    )
    text = shown(scenario(held(order)))
    assert "        made\n      - get_order(id=17)\n      ✗ drop()\n" in text


def test_a_trajectory_of_a_turn_shows_the_calls_of_the_turn() -> None:
    """Rows of a turn's trajectory number calls from the turn's first."""
    first = make.turn(0, tool_calls=(make.tool_call("other", {}),))
    second = make.turn(1, tool_calls=(make.tool_call("mine", {}),))
    wrong = replace(WRITES, name="", alignment=(row(None, 0, RowStatus.EXTRA),))
    result = make.conversation_result(
        "c1",
        (make.turn_evaluation(0), make.turn_evaluation(1, trajectory=wrong)),
        held=make.conversation("c1", (first, second)),
    )
    text = shown(scenario(result))
    assert "      turn 2  user" in text
    assert "✗ (nothing)          mine()" in text


def stored_texts(result: ScenarioResult) -> Transcripts:
    found = Transcripts(PLENTY)
    found.add(result)
    return found


def summary(result: ScenarioResult, room: int = PLENTY) -> str:
    return github.summary(make.run_result(result), stored_texts(result), room)


def test_the_summary_for_github_has_a_table() -> None:
    """A failed trajectory is a Markdown table; its transcript has both columns as text."""
    text = summary(scenario())
    table = text[text.index("### Not passed") :]
    assert "| ❌ | <code>find_user(name='Ann', …)</code> | <code>(not made)</code> | – |" in table
    assert (
        "| ➖ | <code>(nothing)</code> | <code>get_order(id=17)</code> | free: a read (get_&#42;) |" in table
    )
    assert "amount: expected 5, got 500 |" in table
    assert "    ✗ find_user(name='Ann', …)                     (not made)" in table


def test_tables_of_hostile_texts_stay_tables() -> None:
    """A call cannot end a cell, row, HTML block or command, or control a terminal."""
    bad = "|\n</code></pre></details>`**x**`\x1b[31m::error::"
    found = replace(WRITES, alignment=(row(bad, 0, RowStatus.DIFFERENT, bad),))
    result = scenario(held(found, [make.tool_call("pay", {"to": bad})]))
    text = summary(result)
    table = text[text.index("### Not passed") : text.index("### Transcripts")]
    (line,) = [each for each in table.splitlines() if each.startswith("  | ❌")]
    assert line.count("|") == 5
    assert "</pre>" not in table
    assert "\x1b" not in text + shown(result) + case_text(result)
    (error,) = annotation_lines(make.run_result(result), str, (), stored_texts(result))
    assert "\n" not in error
    assert error.startswith("::error file=")


def case_text(result: ScenarioResult) -> str:
    texts = CaseTexts()
    texts.add(result)
    return texts.failure(ScenarioReport(result))


def test_an_annotation_lists_the_rows() -> None:
    """GitHub annotations have no columns, so each row is a line, within the message's limit."""
    result = scenario()
    (error,) = annotation_lines(make.run_result(result), str, (), stored_texts(result))
    assert "%0Aexpected (strict) | made:%0A✗ find_user(" in error
    assert "actual:" not in error
    assert "amount=500) (amount: expected 5, got 500)" in error
    long = replace(WRITES, alignment=tuple([row("x" * 300, 0, RowStatus.EXTRA, "y" * 300)] * 200))
    result = scenario(*(held(long, id=f"c{n}") for n in range(40)))
    (error,) = annotation_lines(make.run_result(result), str, (), stored_texts(result))
    assert len(error) < 12_000


ORDER = replace(
    WRITES,
    name="",
    mode=None,
    summary="before: drop (call 3) without login before it",
    alignment=(row(None, 0, RowStatus.FREE), row(None, 2, RowStatus.OUT_OF_ORDER)),
)


def test_each_table_follows_its_reason() -> None:
    """An annotation has the rows of each trajectory of the first conversation, none for an order."""
    both = replace(WRITES, alignment=(), parts=(ORDER, WRITES))
    result = scenario(held(both))
    (error,) = annotation_lines(make.run_result(result), str, (), stored_texts(result))
    assert error.index("before: drop (call 3)") < error.index("expected (strict) | made")
    assert error.count("drop()") == 1


def test_conversations_that_failed_alike_are_grouped() -> None:
    """Annotation and summary show the shared reasons once, with the number of conversations."""
    result = scenario(*(held(WRITES, CALLS, SAYS, id=f"c{n}") for n in range(3)))
    (error,) = annotation_lines(make.run_result(result), str, (), stored_texts(result))
    text = summary(result)
    tables = text[text.index("### Not passed") : text.index("### Transcripts")]
    assert error.count("says: no reply says text('refunded') (3 conversations)") == 1
    assert error.count("expected (strict) | made") == 1
    assert tables.count("amount: expected 5, got 500 |") == 1
    assert "actual:" not in text[: text.index("### Transcripts")]


def test_a_failure_of_two_trajectories_loses_no_side_in_the_summary() -> None:
    """Each trajectory has its own table, below its name."""
    other = replace(WRITES, name="second", alignment=(row("pay()", None, RowStatus.MISSING),))
    text = summary(scenario(held(replace(WRITES, alignment=(), parts=(WRITES, other)))))
    failures = unescape(text[text.index("### Not passed") : text.index("### Transcripts")])
    for name in ("writes only these", "second"):
        title = f"c1: trajectory '{name}': expected calls are missing: find_user"
        assert failures.count(f"  {title}\n\n  |  | Expected") == 1


def test_a_table_has_no_empty_columns() -> None:
    """Without expected names or reasons, their columns are left out."""
    words = "before: drop (call 3) without login before it"
    alone = row(None, 2, RowStatus.OUT_OF_ORDER, words)
    result = scenario(held(replace(ORDER, alignment=(*ORDER.alignment[:1], alone))))
    assert shown(result).count(words) == 1
    text = summary(result)
    table = text[text.index("### Not passed") : text.index("### Transcripts")]
    assert "  |  | Made |\n  | --- | --- |\n  | ➖ | <code>get_order(id=17)</code> |\n" in table


def test_junit_has_both_columns() -> None:
    """The failure text in junit.xml is that of the console."""
    assert "✗ find_user(name=" in case_text(scenario())
    assert "(not made)" in case_text(scenario())
