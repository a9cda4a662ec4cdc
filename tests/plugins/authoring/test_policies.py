"""Limits, bans and questions as instructions write them, and the values at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.plugins.authoring.policies import read_policies


@pytest.mark.parametrize(
    ("sentence", "edges"),
    [
        ("Customers may return items up to 30 days after delivery.", "29 days+ 30 days+ 31 days-"),
        ("Sell at most three items per order.", "2 items+ 3 items+ 4 items-"),
        ("Refunds are not allowed after 14 days.", "13 days+ 14 days+ 15 days-"),
        ("Do not refund more than $1,050.", "$1049+ $1050+ $1051-"),
        ("Refunds must be less than 50 euros.", "49 euros+ 50 euros- 51 euros-"),
        ("Orders of 5 or more pieces need approval.", "4 pieces+ 5 pieces- 6 pieces-"),
        ("Reservations expire after 3 days.", "2 days+ 3 days+ 4 days-"),
        ("A 30-day return window applies.", "29 days+ 30 days+ 31 days-"),
        ("Members under 16 may not borrow DVDs.", "15- 16+ 17+"),
        ("Customers must be at least 18 years old.", "17 years- 18 years+ 19 years+"),
        ("Cancel no later than 6 pm.", "5:59 pm+ 6:00 pm+ 6:01 pm-"),
        ("We deliver between 9:00 and 17:00.", "8:59- 9:00+ 9:01+ 16:59+ 17:00+ 17:01-"),
        ("Discounts must not exceed 20%.", "19%+ 20%+ 21%-"),
    ],
)
def test_a_limit_has_three_edges(sentence: str, edges: str) -> None:
    """At the limit, one below and one above; `+` is allowed."""
    found, _ = read_policies(sentence, "prompt.md")
    shown = [f"{edge.value}{'+' if edge.is_allowed else '-'}" for each in found for edge in each.edges]
    assert " ".join(shown) == edges


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("Never delete an account.", "ban"),
        ("Never refund an order unless it is damaged.", "condition"),
        ("Ask for confirmation before you cancel.", "confirm"),
        ("Always ask for the order number first.", "ask"),
        ("Refund only if the item is unused.", "condition"),
        ("We are open on Sundays.", None),
    ],
)
def test_other_rules_have_a_kind(sentence: str, kind: str | None) -> None:
    """A ban with a condition is a condition, which no script can create."""
    found, _ = read_policies(sentence, "prompt.md")
    assert [each.kind for each in found] == ([kind] if kind else [])


def test_a_rule_says_where_it_begins() -> None:
    """Lines of a paragraph belong together; each sentence has its own line."""
    text = "# Rules\n\nBe kind. Returns are\naccepted up to 30\ndays. Never\nlie.\n- At most 2 items.\n"
    found, _ = read_policies(text, "prompt.md", 10)
    assert [each.source for each in found] == ["prompt.md:12", "prompt.md:14", "prompt.md:16"]
    assert found[0].quote == "Returns are accepted up to 30 days."


@given(st.text(alphabet="ab1 .:-$%\n") | st.text())
def test_any_text_can_be_read(text: str) -> None:
    """No text raises."""
    for each in read_policies(text, "x")[0]:
        assert each.quote
