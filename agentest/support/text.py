"""Words for a reader: shortened texts, counts, durations."""

from __future__ import annotations

from agentest.support.terminal import clean

_SHOWN_CHARS = 150
"""About two lines of 80 columns, with indentation."""


def shortened(text: str, limit: int = _SHOWN_CHARS) -> str:
    """The text in one row of at most `limit` characters."""
    one_row = clean(" ".join(text[: limit * 20].split()))
    return one_row if len(one_row) <= limit else one_row[: limit - 1].rstrip() + "…"


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(ms: float) -> str:
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    return f"{minutes} min {seconds:02d} s"
