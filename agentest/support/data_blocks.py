"""Data blocks: how models are shown what others wrote, so that none of it can pass for what we say."""

from __future__ import annotations


def escaped(text: str) -> str:
    """A text for the inside of a data block."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def data_block(name: str, inside: str, turn: int | None = None) -> str:
    """A data block; the only place where such delimiters are written. `inside` is escaped already."""
    at = "" if turn is None else f' turn="{turn}"'
    return f'<data name="{name}"{at}>\n{inside}\n</data>'


def cut(text: str, limit: int) -> str:
    """The text escaped; of one that is too long the beginning and the end.

    What stands between them is a tag: nobody else can write one, as nothing else in a block is one.
    """
    if len(text) <= limit:
        return escaped(text)
    end = limit // 3
    left_out = f'<left_out characters="{len(text) - limit}" why="length; it was whole in the conversation"/>'
    return f"{escaped(text[: limit - end])} {left_out} {escaped(text[len(text) - end :])}"
