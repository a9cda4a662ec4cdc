"""Numbers in any notation, and approximate numbers: `number("1,234")` and `approx(5, abs=0.1)`.

The module also reads a text as one number, and finds the numbers in a reply.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Integral
from typing import Any

from agentest.scenarios.matchers.comparison import Equal, Matcher
from agentest.scenarios.matchers.display import brief, shown
from agentest.scenarios.matchers.values import OneOf
from agentest.support.lazy_dataclasses import dataclass

Part = tuple[str, Any, Any]
_REL = Fraction(1, 10**6)
_ABS = Fraction(1, 10**12)
_MOST_DEPTH = 20
MOST_DIGITS = 1_000  # limit for digits and exponents, because longer numbers take long to parse
GAP = "\u00a0"  # represents all spaces allowed within a number: no-break, figure, punctuation, thin
OVER = "\u2044"  # the fraction slash
_PLAIN_SIGNS = {
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2008\u2009\u202f"), GAP),
    **dict.fromkeys(map(ord, "\u2212\ufe63\uff0d\u2013"), "-"),
    **dict.fromkeys(map(ord, "\uff0c\u066c"), ","),
    **dict.fromkeys(map(ord, "\uff0e\u066b"), "."),
    ord("\uff0b"): "+",
}
GROUPS = rf"(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,2}}(?:,\d\d)+,\d{{3}}|\d{{1,3}}(?:{GAP}\d{{3}})+)"
"""1,234,567, or 12,34,567 as in India, or with spaces."""
SPACED = r"\d{1,3}(?: \d{3})+"
_DECIMALS = r"(?:\.\d+|\.(?![eE]))?(?:[eE][+-]?\d+)?"
_ONE_NUMBER = re.compile(rf"(?:{GROUPS}|{SPACED}|\d+|(?=\.\d)){_DECIMALS}", re.ASCII)
_FRACTION = re.compile(rf"(?:(\d+)[ {GAP}]+)?(\d+)[/{OVER}](\d+)", re.ASCII)
_DECIMALS_IN_TEXT = r"(?:\.\d+(?!\d|\.\d))?(?:[eE][+-]?\d+(?!\w))?"
_NUMBERS = re.compile(
    rf"(?<!\d)(?:(?:\d+[ \xa0]{{1,2}})?\d+{OVER}\d+"
    rf"|(?:(?<!\d,){GROUPS}(?!,?\d)|(?<!\d\.)\d+){_DECIMALS_IN_TEXT}"
    r"|\d+|(?<![\w.])\.\d+(?:[eE][+-]?\d+(?!\w))?(?!\.?\d))",
    re.ASCII,
)
"""In dates, versions and lists (2024.05.01, 1.2.3, 1,2,3) each part is a number."""
_SPACED = re.compile(rf"(?<![\d.,])(?<!\d ){SPACED}(?! ?\d|,\d){_DECIMALS_IN_TEXT}", re.ASCII)
_CURRENCIES = ("USD", "EUR", "GBP", "CHF", "JPY", "CNY", "INR", "CAD", "AUD", "Rs")
"""Currency codes that may come directly before a number."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Approx(Matcher):
    """A number near `value`; if that is a list or dict of numbers, each of them must be near."""

    value: Any
    rel: float | None = None
    """Tolerance as a share of the value. None: 1e-6, or no relative tolerance if `abs` is given."""
    abs: float | None = None  # None: 1e-12

    def __post_init__(self) -> None:
        _check_value(self.value)
        for name in ("rel", "abs"):
            _check_tolerance(name, getattr(self, name))

    def holds(self, actual: Any, equal: Equal) -> bool:
        if _is_number(self.value):
            return _is_number(actual) and self.is_near(actual)
        parts = self.parts(actual)
        return parts is not None and all(equal(near, item) for _, near, item in parts)

    def is_near(self, actual: Any) -> bool:
        """Return True if a number is near this one. Infinity is near itself only, `nan` near nothing."""
        wanted, number = number_of(self.value), number_of(actual)
        if wanted is None or number is None:
            return bool(self.value == actual)
        return math.inf in (self.rel, self.abs) or _distance(wanted, number) <= self._tolerance(wanted)

    def _tolerance(self, wanted: Fraction) -> Fraction:
        rel = number_of(self.rel) if self.rel is not None else _REL if self.abs is None else None
        least = _ABS if self.abs is None else number_of(self.abs)
        return max((rel or 0) * _distance(wanted, Fraction(0)), least or Fraction(0))

    def parts(self, actual: Any) -> list[Part] | None:
        pairs: list[Part] = []
        if isinstance(self.value, Mapping):
            if not isinstance(actual, Mapping) or self.value.keys() != actual.keys():
                return None
            pairs = [(str(key), item, actual[key]) for key, item in self.value.items()]
        elif isinstance(self.value, list | tuple):
            if not isinstance(actual, list | tuple) or len(self.value) != len(actual):
                return None
            pairs = [(str(i), *both) for i, both in enumerate(zip(self.value, actual, strict=True))]
        else:
            return None
        return [(at, Approx(item, self.rel, self.abs), part) for at, item, part in pairs]

    def __repr__(self) -> str:
        tolerances = "".join(
            f", {n}={getattr(self, n)!r}" for n in ("rel", "abs") if getattr(self, n) is not None
        )
        return f"approx({shown(self.value)}{tolerances})"


def _distance(number: Fraction, other: Fraction) -> Fraction:
    return number - other if number > other else other - number


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal | Fraction) and not isinstance(value, bool)


def _check_value(value: Any, depth: int = 0) -> None:
    if isinstance(value, Mapping | list | tuple) and depth < _MOST_DEPTH:
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_value(item, depth + 1)
    elif not _is_number(value):
        hint = f"; for a text that is a number write number({value!r})" if number_of(value) else ""
        raise ValueError(
            f"approx(…) expects a number, or a list or dict of numbers, found {shown(value)}{hint}"
        )


def _check_tolerance(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"approx(…): {name} expects a number of at least 0, found {shown(value)}")


def approx(value: Any, rel: float | None = None, abs: float | None = None) -> Matcher:
    """Expect a number near `value`; if that is a list or dict of numbers, each of them must be near.

    Args:
        rel: tolerance as a share of the value; 1e-6 if neither is given.
        abs: absolute tolerance; if both are given, the wider one counts.

    Raises ValueError if `value` is not a number, or a tolerance is below 0.
    """
    return Approx(value, rel, abs)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Number(Matcher):
    """A number, or a text that is one, equal to `value`: a number, `approx(…)` or `one_of(…)`."""

    value: Any

    def __post_init__(self) -> None:
        _check_numbers(self.value)

    def holds(self, actual: Any, _: Equal) -> bool:
        number = number_of(actual)
        return number is not None and _is_equal(self.value, number)

    def __repr__(self) -> str:
        return f"number({shown(self.value)})"


def _is_equal(wanted: Any, number: Fraction) -> bool:
    if isinstance(wanted, OneOf):
        return any(_is_equal(value, number) for value in wanted.values)
    return wanted.is_near(number) if isinstance(wanted, Approx) else number_of(wanted) == number


def _check_numbers(value: Any) -> None:
    if isinstance(value, OneOf):
        for each in value.values:
            _check_numbers(each)
    elif isinstance(value, Approx) and not _is_number(value.value):
        value_text = brief(value)
        raise ValueError(
            f"number(…) expects one number, found {value_text}; write each(number(…)) for a list"
        )
    elif not isinstance(value, Approx) and number_of(value) is None:
        raise ValueError(
            f'number(…) expects a number, or a text that is one ("1,234", "½"), found {shown(value)}'
        )


def number(value: Any) -> Matcher:
    """Expect a number, or a text that is one: `number(1234)` accepts 1234.0, "1,234" and "1 234".

    `value` is a number, such a text, or `approx(…)` or `one_of(…)` of numbers. Exact: 0.1 equals "0.1".
    Raises ValueError for anything else.
    """
    return Number(value)


def number_of(value: Any) -> Fraction | None:
    """Return the exact value of a number or a text that is one; None for anything else, including `True` and
    `nan`.

    A float has the value that it is written as: 0.1 is a tenth.
    """
    if isinstance(value, str):
        return _number_of_text(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return Fraction(int(value))
    if isinstance(value, float):
        return Fraction(repr(float(value))) if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return Fraction(value) if value.is_finite() and abs(value.adjusted()) <= MOST_DIGITS else None
    return value if isinstance(value, Fraction) else None


@lru_cache(maxsize=1_024)
def _number_of_text(text: str) -> Fraction | None:
    if len(text) > 2 * MOST_DIGITS:
        return None
    text = with_plain_signs(text).strip()
    sign, size = _signed(text)
    if not sign and text and is_currency(text[0]):  # $-5
        sign, size = _signed(text[1:].lstrip())
    elif size and is_currency(size[0]):  # -$5
        size = size[1:].lstrip()
    elif size and is_currency(size[-1]):  # -5 €
        size = size[:-1].rstrip()
    number = size_of(size)
    return -number if number is not None and sign == "-" else number


def _signed(text: str) -> tuple[str, str]:
    return (text[0], text[1:].lstrip()) if text[:1] in ("-", "+") else ("", text)


def is_currency(character: str) -> bool:
    """Return True if the character is a currency sign."""
    return unicodedata.category(character) == "Sc"


def size_of(written: str) -> Fraction | None:
    """Return the value of a text that is one number without a sign; None if it is not, or too long."""
    if len(written) > MOST_DIGITS:
        return None
    if written.isdecimal():
        return Fraction(int(written))
    if fraction := _FRACTION.fullmatch(written):
        integer, above, below = (int(part or 0) for part in fraction.groups())
        return integer + Fraction(above, below) if below else None
    return _decimal(written) if _ONE_NUMBER.fullmatch(written) else None


def _decimal(written: str) -> Fraction | None:
    digits, _, exponent = written.lower().partition("e")
    if len(exponent) > 5 or abs(int(exponent or 0)) > MOST_DIGITS:
        return None
    integer, _, decimals = re.sub(f"[, {GAP}]", "", digits).partition(".")
    return Fraction(f"{integer or 0}.{decimals or 0}e{exponent or 0}")


def with_plain_signs(text: str) -> str:
    """Replace digits, signs, separators and fractions of all scripts by ASCII ones."""
    return text if text.isascii() else "".join(map(_plain_sign, text.translate(_PLAIN_SIGNS)))


def _plain_sign(sign: str) -> str:
    if sign.isascii() or sign.isalpha():
        return sign
    digit = unicodedata.decimal(sign, None)
    if digit is not None:
        return str(digit)
    if unicodedata.decomposition(sign).startswith("<fraction>"):
        return GAP + unicodedata.normalize("NFKC", sign)
    return sign


def numbers_in(text: str) -> list[Fraction]:
    """Return all numbers in a text, in order.

    Digits in a word are ignored: `BK-001`, `H2O`. `1 234` with a plain space may be one number or two, so
    both readings are included; the single number comes after all others.
    """
    plain = with_plain_signs(text)
    candidates = (
        _number_in_text(match, plain) for pattern in (_NUMBERS, _SPACED) for match in pattern.finditer(plain)
    )
    return [number for number in candidates if number is not None]


def _number_in_text(match: re.Match[str], text: str) -> Fraction | None:
    before = text[max(0, match.start() - 6) : match.start()]
    word = before.removesuffix("-")
    if word and (word[-1] == "_" or word[-1].lower() != word[-1].upper()) and not word.endswith(_CURRENCIES):
        return None
    size = size_of(match[0])
    if OVER in match[0]:
        before = before.removesuffix(GAP)  # characters like ½ are replaced with a gap before them
    return -size if size is not None and _is_negative(before) else size


def _is_negative(before: str) -> bool:
    symbol = before.rstrip()
    if symbol and is_currency(symbol[-1]):
        before = symbol[:-1]
    return before.endswith("-") and not before[-2:-1].isalnum()
