"""A rubric that is one text, in its parts."""

from __future__ import annotations

import re

import pytest
from evalset_documents import case, invocation
from hypothesis import given
from hypothesis import strategies as st

from agentest.cli.listing import rubric_lines
from agentest.domain.results import Score
from agentest.plugins.adk.formats.criteria import parse_criteria
from agentest.plugins.adk.formats.eval_set import EVAL_CASE, Rubric, RubricContent
from agentest.plugins.adk.formats.other_formats import rubrics_of, split_rubric
from agentest.plugins.adk.metrics.grader_factory import make_grader
from agentest.plugins.adk.metrics.rubrics import RubricAnswer, combined, rubric_answers

REFUND = (
    "The response must: (1) confirm the order ID and item being refunded, (2) state the refund amount and "
    "timeline, (3) provide a reference number, (4) use empathetic tone. Deduct points if: the agent skips "
    "the eligibility check, makes up an amount, or fails to ask the user before processing."
)
VOCABULARY = st.sampled_from(["name", "keep", "order", "amount", "polite", "user", "tone", "short"])
WORDS = st.lists(VOCABULARY, min_size=1, max_size=4)
ITEMS = st.lists(WORDS.map(" ".join), min_size=1, max_size=6)


def test_numbered_parts_and_deductions() -> None:
    """Every numbered part keeps its introduction, and every deduction must not happen."""
    assert split_rubric(REFUND) == (
        (
            "The response must confirm the order ID and item being refunded",
            "The response must state the refund amount and timeline",
            "The response must provide a reference number",
            "The response must use empathetic tone",
        ),
        (
            "the agent skips the eligibility check",
            "makes up an amount",
            "fails to ask the user before processing",
        ),
    )
    rubrics = {one["rubric_id"]: one["rubric_content"]["text_property"] for one in rubrics_of(REFUND)}
    assert [*rubrics] == ["part-1", "part-2", "part-3", "part-4", "deduction-1", "deduction-2", "deduction-3"]
    assert rubrics["deduction-2"] == "This must not happen: makes up an amount"


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("Is kind.", ["Is kind."], []),
        ("Is kind, (shipped/delivered), and short.", ["Is kind, (shipped/delivered), and short."], []),
        ("(1) only one", ["(1) only one"], []),
        ("(1) a; and (2) b as in (1), or (3) c.", ["a", "b as in (1)", "c"], []),
        ("The bot:\n1. is kind\n2) is 3.5 km away.", ["The bot is kind", "The bot is 3.5 km away"], []),
        ("Is kind. Deduct if: late.", ["Is kind."], ["late"]),
        ("Deduct a point for lies; rudeness, of any kind.", [], ["lies", "rudeness, of any kind"]),
        ("Deduct if: a price (say, 3, 4) is wrong, or late", [], ["a price (say, 3, 4) is wrong", "late"]),
        ("(1) a, (2) b. Deduct if: c. Is it short?", ["a", "b", "Is it short?"], ["c"]),
        ("It may deduct a fee.", ["It may deduct a fee."], []),
        ("Deduct points if:", ["Deduct points if:"], []),
    ],
)
def test_forms_of_rubric_texts(text: str, wanted: list[str], unwanted: list[str]) -> None:
    """Numbers count from 1; deductions end at semicolons, or else at commas outside of brackets; text after
    their sentence is its own part; a text without parts is one part."""
    assert split_rubric(text) == (tuple(wanted), tuple(unwanted))


@given(ITEMS.filter(lambda items: len(items) > 1), st.lists(WORDS.map(" ".join), max_size=4), st.booleans())
def test_what_was_put_together_is_taken_apart(items: list[str], faults: list[str], with_and: bool) -> None:
    """As many rubrics as a text has parts, in their order."""
    parts = [f"({n}) {item}" for n, item in enumerate(items, 1)]
    listed = ", ".join(parts[:-1]) + (", and " if with_and else ", ") + parts[-1]
    deducted = f" Deduct if: {', '.join([*faults[:-1], f'or {faults[-1]}'])}." if faults else ""
    expected = (tuple(f"It must {item}" for item in items), tuple(faults))
    assert split_rubric(f"It must: {listed}.{deducted}") == expected


TOLD = ("Name", "keep", "Order", "tone", "is")
DIVIDERS = ["(1)", "(2)", "(3)", "1. ", "2) ", "\n", ". ", ", ", "; ", ": ", "or ", "(", ")"]
PIECES = st.sampled_from([*DIVIDERS, "Deduct if", "Deduct points for", *(f" {word} " for word in TOLD)])


@given(st.lists(PIECES).map("".join))
def test_nothing_is_left_out(text: str) -> None:
    """Every word of a text, except for separators, is in a part, and there is always a part."""
    wanted, unwanted = split_rubric(text)
    assert wanted or unwanted
    kept = " ".join([*wanted, *unwanted])
    for word in TOLD:
        assert len(re.findall(rf"\b{word}\b", kept)) >= len(re.findall(rf"\b{word}\b", text))


REPLY, TOOLS = "rubric_based_final_response_quality_v1", "rubric_based_tool_use_quality_v1"
KIND = {"threshold": 1, "rubrics": rubrics_of("Must be: (1) kind, (2) short.")}


def test_parts_are_listed() -> None:
    """`--list` prints the parts of a text, once for the metrics that share it."""
    held = parse_criteria({REPLY: KIND, TOOLS: KIND, "safety_v1": 1}, "c").criteria
    about = EVAL_CASE.validate_python(case("c", invocation("x", "y")))
    assert list(rubric_lines(make_grader(about, one, {}) for one in [*held, *held])) == [
        f"rubrics of {REPLY}, {TOOLS}",
        "  part-1: Must be kind",
        "  part-2: Must be short",
    ]


@pytest.mark.parametrize(("rubric_id", "named"), [("part-2", "part-2 (Be short.)"), ("short", "short")])
def test_a_part_is_named_by_its_words(rubric_id: str, named: str) -> None:
    """No file contains 'part-2', so a reason quotes the part; a user's id is used as is."""
    rubric = Rubric(rubric_id, RubricContent("Be short."))
    answers = rubric_answers(1)(answers=[RubricAnswer(property=1, reason="ten lines", value="no")])
    score = combined([rubric], [answers])
    assert isinstance(score, Score)
    assert score.reason == f"not fulfilled: {named}: ten lines"
