"""The numbers in what somebody says: "$1,234.00 for 3 nights" has 1234 and 3."""

from __future__ import annotations

import re
from fractions import Fraction

from agentest.scenarios.matchers.numbers import (
    GAP,
    GROUPS,
    OVER,
    SPACED,
    is_currency,
    size_of,
    with_plain_signs,
)

_DECIMALS = r"(?:\.\d+(?!\d|\.\d))?(?:[eE][+-]?\d+(?!\w))?"
_NUMBERS = re.compile(
    rf"(?<!\d)(?:(?:\d+[ \xa0]{{1,2}})?\d+{OVER}\d+"
    rf"|(?:(?<!\d,){GROUPS}(?!,?\d)|(?<!\d\.)\d+){_DECIMALS}"
    r"|\d+|(?<![\w.])\.\d+(?:[eE][+-]?\d+(?!\w))?(?!\.?\d))",
    re.ASCII,
)
"""Of dates, versions and lists (2024.05.01, 1.2.3, 1,2,3) each part is a number."""
_SPACED = re.compile(rf"(?<![\d.,])(?<!\d ){SPACED}(?! ?\d|,\d){_DECIMALS}", re.ASCII)
_CURRENCIES = ("USD", "EUR", "GBP", "CHF", "JPY", "CNY", "INR", "CAD", "AUD", "Rs")
"""Letters that may stand before a number without being one word with it."""


def numbers_in(text: str) -> list[Fraction]:
    """All numbers in a text, in its order.

    What is part of a word is none: `BK-001`, `H2O`. Of `1 234` with a plain space nobody can say whether it
    is one number or two: it is read both ways, and as one number it comes after all others.
    """
    plain = with_plain_signs(text)
    found = (_signed(match, plain) for pattern in (_NUMBERS, _SPACED) for match in pattern.finditer(plain))
    return [number for number in found if number is not None]


def _signed(match: re.Match[str], text: str) -> Fraction | None:
    before = text[max(0, match.start() - 6) : match.start()]
    if _is_in_a_word(before):
        return None
    size = size_of(match[0])
    if OVER in match[0]:
        before = before.removesuffix(GAP)  # a sign like ½ is read with a gap before it
    return -size if size is not None and _is_negative(before) else size


def _is_in_a_word(before: str) -> bool:
    """Whether the digits behind these characters belong to a word: `v2`, `BK-001`, but not `USD5`."""
    word = before.removesuffix("-")
    return bool(word) and _joins(word[-1]) and not word.endswith(_CURRENCIES)


def _joins(letter: str) -> bool:
    """Whether it makes one word with digits: letters of scripts without case only stand beside them."""
    return letter == "_" or letter.lower() != letter.upper()


def _is_negative(before: str) -> bool:
    """Whether a sign stands before the digits, or before their currency: `-5`, `-$5`; but not in `3-5`."""
    symbol = before.rstrip()
    if symbol and is_currency(symbol[-1]):
        before = symbol[:-1]
    return before.endswith("-") and not before[-2:-1].isalnum()
