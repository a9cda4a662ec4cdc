"""Numbers as people and models write them: `1,234`, `1 ½`, `5.0`, `−5`, `-$5`."""

from __future__ import annotations

import math
import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Integral
from typing import Any

MOST_DIGITS = 1_000
"""A longer number is none that anybody reads, and reading it would take long; exponents likewise."""
GAP = "\u00a0"
"""Stands for every space that may be inside of a number: no-break, figure, punctuation, thin."""
OVER = "\u2044"
"""Between the two numbers of a fraction."""
_PLAIN_SIGNS = {
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2008\u2009\u202f"), GAP),
    **dict.fromkeys(map(ord, "\u2212\ufe63\uff0d\u2013"), "-"),
    **dict.fromkeys(map(ord, "\uff0c\u066c"), ","),
    **dict.fromkeys(map(ord, "\uff0e\u066b"), "."),
    ord("\uff0b"): "+",
}
GROUPS = rf"(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,2}}(?:,\d\d)+,\d{{3}}|\d{{1,3}}(?:{GAP}\d{{3}})+)"
"""1,234,567, or as in India 12,34,567, or with gaps."""
SPACED = r"\d{1,3}(?: \d{3})+"
_DECIMALS = r"(?:\.\d+|\.(?![eE]))?(?:[eE][+-]?\d+)?"
_ONE_NUMBER = re.compile(rf"(?:{GROUPS}|{SPACED}|\d+|(?=\.\d)){_DECIMALS}", re.ASCII)
_FRACTION = re.compile(rf"(?:(\d+)[ {GAP}]+)?(\d+)[/{OVER}](\d+)", re.ASCII)


def number_of(value: Any) -> Fraction | None:
    """A number, or a text that is one, exactly; None for anything else, `True` and `nan` among it.

    A float is the number that it is written as: 0.1 is a tenth.
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
    found = size_of(size)
    return -found if found is not None and sign == "-" else found


def _signed(text: str) -> tuple[str, str]:
    """A number's sign, "" for none, and the rest."""
    return (text[0], text[1:].lstrip()) if text[:1] in ("-", "+") else ("", text)


def is_currency(character: str) -> bool:
    """Whether it is the sign of a currency."""
    return unicodedata.category(character) == "Sc"


def size_of(written: str) -> Fraction | None:
    """The value of what is written as one number without a sign; None: it is none, or too long for one."""
    if len(written) > MOST_DIGITS:
        return None
    if written.isdecimal():
        return Fraction(int(written))
    if fraction := _FRACTION.fullmatch(written):
        whole, above, below = (int(part or 0) for part in fraction.groups())
        return whole + Fraction(above, below) if below else None
    return _decimal(written) if _ONE_NUMBER.fullmatch(written) else None


def _decimal(written: str) -> Fraction | None:
    digits, _, exponent = written.lower().partition("e")
    if len(exponent) > 5 or abs(int(exponent or 0)) > MOST_DIGITS:
        return None
    whole, _, decimals = re.sub(f"[, {GAP}]", "", digits).partition(".")
    return Fraction(f"{whole or 0}.{decimals or 0}e{exponent or 0}")


def with_plain_signs(text: str) -> str:
    """The text with the digits, signs, separators and fractions of all scripts as plain ones."""
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
