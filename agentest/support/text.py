"""Format text for readers: shortened texts, counts, durations, data blocks."""

from __future__ import annotations

from agentest.support.terminal import clean

_SHOWN_CHARS = 150
"""About two lines of 80 columns, with indentation."""


def shortened(text: str, limit: int = _SHOWN_CHARS) -> str:
    """Return the text in one row of at most `limit` characters."""
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


def about(seconds: float) -> str:
    """Format an estimated time with suitable precision: "40 s", "3 min", "1 h 20 min"."""
    if seconds < 57.5:
        return f"{max(5, round(seconds / 5) * 5)} s" if seconds >= 10 else f"{max(1, round(seconds))} s"
    minutes = max(1, round(seconds / 60))
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {rest:02d} min" if rest else f"{hours} h"


def escaped(text: str) -> str:
    """Escape a text for the inside of a data block."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def data_block(name: str, inside: str, turn: int | None = None) -> str:
    """Return a data block. Such delimiters are written nowhere else. `inside` is already escaped."""
    at = "" if turn is None else f' turn="{turn}"'
    return f'<data name="{name}"{at}>\n{inside}\n</data>'


def cut(text: str, limit: int) -> str:
    """Escape a text, and keep only the beginning and the end of a long one.

    The omission mark is a tag, which nothing else in a block can contain.
    """
    if len(text) <= limit:
        return escaped(text)
    end = limit // 3
    left_out = f'<left_out characters="{len(text) - limit}" why="length; it was whole in the conversation"/>'
    return f"{escaped(text[: limit - end])} {left_out} {escaped(text[len(text) - end :])}"
