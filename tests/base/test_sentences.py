"""How texts are cut into sentences."""

from __future__ import annotations

import pytest

from agentest.support.text import sentences


@pytest.mark.parametrize(
    "parts",
    [
        ["It costs 3.50 EUR.", "See https://shop.example/a?b=1!"],
        ["**Booked.**", "*Sent!*", "Sorry"],
        ['It says "Stop.', 'Now." and I do not.'],
    ],
)
def test_sentences_end_before_a_space(parts: list[str]) -> None:
    assert sentences(" ".join(parts)) == parts


def test_lines_and_full_width_marks_end_sentences() -> None:
    """Those inside of a quotation do not."""
    assert sentences("予約しました。火曜日です！\n\n彼は「はい。」と言った。") == [
        "予約しました。",
        "火曜日です！",
        "彼は「はい。」と言った。",
    ]
