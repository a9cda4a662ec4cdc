"""Numbers in text: texts that are a number, and numbers in prose."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentest.scenarios.matchers.numbers import number_of, numbers_in

NBSP, THIN = "\u00a0", "\u202f"
GROUP_SIGNS = st.sampled_from(["", ",", " ", NBSP, THIN, "\u2009"])
MINUS_SIGNS = st.sampled_from(["-", "−", "－"])
SCRIPTS = st.sampled_from(["0123456789", "０１２３４５６７８９", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९"])


def grouped(digits: str, sign: str) -> str:
    """The digits of a whole number in groups of three, from the right."""
    groups = []
    while digits:
        groups.append(digits[-3:])
        digits = digits[:-3]
    return sign.join(reversed(groups))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**12), st.text("0123456789", max_size=6), GROUP_SIGNS, MINUS_SIGNS, SCRIPTS, st.data()
)
def test_number_formats_have_the_same_value(
    whole: int, decimals: str, group: str, minus: str, script: str, data: st.DataObject
) -> None:
    """Grouping, decimals, a minus sign and the digits of a script do not change the value."""
    negative = data.draw(st.booleans())
    point = "." + decimals if decimals else ""
    text = ((minus if negative else "") + grouped(str(whole), group) + point).translate(
        {ord(str(digit)): sign for digit, sign in enumerate(script)}
    )
    value = (-1 if negative else 1) * (whole + Fraction(int(decimals or 0), 10 ** len(decimals)))
    assert number_of(text) == number_of(f"  {text}\n") == value
    assert numbers_in(f"It costs {text} euros.")[-1] == value


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", []),
        ("no number", []),
        ("$1,234.00 for 3 nights", [1234, 3]),
        ("It is 5.", [5]),
        ("5, 6 and 7!", [5, 6, 7]),
        ("−5 °C, -3, (-2), x=-1, +4", [-5, -3, -2, -1, 4]),
        ("-$5, $-6, −€ 7, £8", [-5, -6, -7, 8]),
        ("3-5 or 5–7 days", [3, 5, 5, 7]),
        ("-½, −1½ and 3-½", [Fraction(-1, 2), Fraction(-3, 2), 3, Fraction(1, 2)]),
        ("-$½ or - ½", [Fraction(-1, 2), Fraction(1, 2)]),
        ("1½ cups, 2 ½ and ¾", [Fraction(3, 2), Fraction(5, 2), Fraction(3, 4)]),
        ("1/2", [1, 2]),
        ("BK-001, H2O, v2, order_5", []),
        ("order #17, room no.5", [17, 5]),
        ("USD500, Rs1,000, EUR 20", [500, 1000, 20]),
        ("5kg, 3rd, 10am, 50%", [5, 3, 10, 50]),
        ("1,2,3 and 1,2,345", [1, 2, 3, 1, 2, 345]),
        ("1,234,56", [1, 234, 56]),
        ("12,34,567", [1234567]),
        ("2024-05-01, 24.12.2024, 10:30", [2024, 5, 1, 24, 12, 2024, 10, 30]),
        ("version 1.2.3", [1, 2, 3]),
        ("1e3 and 2.5E-1", [1000, Fraction(1, 4)]),
        ("1 234 €", [1, 234, 1234]),
        (f"1{NBSP}234 € and 5{THIN}678.5", [1234, Fraction(11357, 2)]),
        ("room 12 123 4", [12, 123, 4]),
        (".5 or 0.5", [Fraction(1, 2), Fraction(1, 2)]),
        ("the end.5", [5]),
        ("共5晚，１２個", [5, 12]),
        ("5² and x²", [5]),
        ("٣٫٥", [Fraction(7, 2)]),
        ("9" * 2_000, []),
        ("1e99999", []),
    ],
)
def test_numbers_in_prose(text: str, numbers: list[Fraction | int]) -> None:
    """Prices, ranges, lists, dates and signs are read as people read them; parts of words are not numbers."""
    assert numbers_in(text) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "1" * 200_000,
        "1," * 100_000,
        "1,234" * 40_000,
        "1 " * 100_000,
        "1 234 " * 30_000,
        "½" * 50_000,
        "1." * 90_000,
    ],
    ids=lambda text: text[:6],
)
def test_number_parsing_is_linear(text: str) -> None:
    """Parsing time is proportional to the text; a quadratic parser would not finish on these."""
    long = text * (20_000 // len(text))
    assert isinstance(numbers_in(long), list)
    assert number_of(long) is None


@settings(max_examples=200, deadline=None)
@given(st.text("0123456789.,- ½⁄/eE+$€a \u00a0", max_size=12))
@example("1.E1")
@example(".1E1")
def test_a_number_is_also_found_in_a_text(text: str) -> None:
    """A text that is a number contains it, unless a slash makes it a date."""
    value = number_of(text)
    if value is not None and "/" not in text and not text.strip().startswith(("- ", "-\u00a0")):
        assert abs(value) in map(abs, numbers_in(text))
