"""Splitting what an agent said into sentences, the same way every time.

A full stop in a number, an abbreviation or an initial ends no sentence, nor does one before a lower-case
letter. A list item or a heading is a sentence of its own with its mark; a table or a code block is one
sentence. Nothing that has a letter or a digit is lost.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_CLOSING = "\"'”’»)\\]}」』”）】》〉*_"
# Marks that end a sentence wherever they stand, and marks that do so before white space.
_END = re.compile(
    rf"[。！？｡．।॥۔؟።។။]++[{_CLOSING}]*+|(?<![.!?…])[.!?…]++[{_CLOSING}]*+(?=\s)",
)
_ITEM = re.compile(r"\s*(?:[-*+•‣·–>]|#{1,6}|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])\s+")
_LONGEST_WORD = 40
_FENCE = re.compile(r"\s*(```|~~~)")
_DOTTED = re.compile(r"(?:\w\.)*\w")
"""`U.S`, `e.g`, `p.m`, and initials: single characters with stops between them."""
_WORD = re.compile(r"\w+")
_ABBREVIATIONS = frozenset(
    _WORD.findall("mr mrs ms dr prof jr sr st vs etc ca cf al inc ltd co corp dept bzw usw hr herr mme mlle")
)
_BEFORE_NUMBERS = frozenset(
    _WORD.findall(
        "no nr nos p pp fig sec vol ch art ver v approx est incl max min tel ext jan feb mar apr jun jul aug "
        "sep sept oct nov dec mon tue wed thu fri sat sun"
    )
)
"""Abbreviations only before a number: "No. 5", but "No. We don't."."""


def sentences(text: str) -> tuple[str, ...]:
    """The text's sentences in order: what has a letter or a digit. A text of pictograms alone is one."""
    result = [
        sentence.strip()
        for chunk, whole in _chunks(text)
        for sentence in ([chunk] if whole else _split(chunk))
        if any(map(str.isalnum, sentence))
    ]
    pictogram = any(unicodedata.category(char) == "So" for char in text)
    return tuple(result) if result or not pictogram else (text.strip(),)


def _chunks(text: str) -> Iterator[tuple[str, bool]]:
    """Paragraphs, list items and headings; tables and code blocks, which are whole (True)."""
    lines: list[str] = []
    kind = "text"
    for line in [*text.splitlines(), ""]:
        opens = _FENCE.match(line)
        if kind == "code":
            lines.append(line)
            if opens:
                yield "\n".join(lines), True
                lines, kind = [], "text"
            continue
        row = line.lstrip().startswith("|")
        goes_on = not opens and (row if kind == "table" else not row and _continues(lines, line))
        if lines and not goes_on:
            yield "\n".join(lines), kind == "table"
            lines = []
        lines.append(line)
        kind = "code" if opens else "table" if row else "text"
    if lines:  # a code block that nobody closed
        yield "\n".join(lines), kind != "text"


def _continues(lines: list[str], line: str) -> bool:
    """Whether a line goes on with the sentence before it, which was broken to fit."""
    return bool(lines) and line.lstrip()[:1].islower() and not _ITEM.match(line)


def _split(chunk: str) -> Iterator[str]:
    mark = _ITEM.match(chunk)
    start, begins = 0, mark.end() if mark else 0
    for end in _END.finditer(chunk, begins):
        if _ends(chunk, start, end):
            yield chunk[start : end.end()]
            start = end.end()
    yield chunk[start:]


def _ends(chunk: str, start: int, end: re.Match[str]) -> bool:
    """Whether what looks like the end of a sentence is one."""
    if not end[0].startswith((".", "!", "?", "…")):
        return True
    rest = chunk[end.end() : end.end() + 80].lstrip()
    if rest[:1].islower():
        return False
    # The end of it alone: where no sentence ends, copying all of it again and again would take for ever.
    before = chunk[max(start, end.start() - _LONGEST_WORD) : end.start()]
    return not end[0].startswith(".") or not _abbreviated(before, rest)


def _abbreviated(before: str, rest: str) -> bool:
    words = before.split()
    word = words[-1].lstrip("\"'“‘«([{*_") if words else ""
    if word.casefold() in _BEFORE_NUMBERS:
        return rest[:1].isdigit()
    letters = word.replace(".", "").isalpha()
    return word.casefold() in _ABBREVIATIONS or bool(letters and _DOTTED.fullmatch(word))
