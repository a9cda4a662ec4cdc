"""Python source of plain values, laid out as `ruff format` and black lay it out.

What does not fit into a line is opened: one item a line, with a comma after the last. Formatters keep that
whatever their line length, so the source stays as it is in any project whose lines are 88 columns or more.
"""

from __future__ import annotations

import keyword
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH = 88
_MAX_DEPTH = 100
"""Twice as deep as results are ever stored: Python itself refuses source not much deeper."""
_LONGEST_LINE = 110
"""A text is written in pieces where its line would be longer: formatters join pieces that fit into one."""
_LEAST_PIECE = 40
_QUOTES = 2
_INDENT = 4
_SPECIAL = re.compile(r"[^ -~]|\\")
_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Brackets:
    """Items between brackets: a list, a dict or a call."""

    opening: str
    items: tuple[Item, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Item:
    """A part between brackets; `lead` is what stands before it: a dict's key, an argument's name."""

    node: Node
    lead: str = ""


Node = str | Text | Brackets
"""An atom is a str: a number, None, an empty list."""


def node(value: Any, depth: int = 0) -> Node:
    """A JSON value. Raises ValueError for one that is nested too deeply for any reader."""
    if isinstance(value, str):
        return Text(value)
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return mapping((key, node(item, depth + 1)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return bracketed("[", (Item(node(item, depth + 1)) for item in value), "]")
    return _number(value) if isinstance(value, float) else repr(value)


def mapping(items: Iterator[tuple[str, Node]] | Sequence[tuple[str, Node]]) -> Node:
    """A dict of nodes."""
    return bracketed("{", (Item(item, f"{literal(key)}: ") for key, item in items), "}")


def bracketed(opening: str, items: Iterator[Item] | Sequence[Item], closing: str) -> Node:
    """Brackets, or an atom where nothing is in them."""
    contents = tuple(items)
    return Brackets(opening, contents, closing) if contents else opening + closing


def imports(nodes: Iterable[Node], names: Sequence[str], module: str) -> str:
    """The lines that import what the source of the nodes uses: of these names, and `re`."""
    used = {word for each in nodes for word in _used(each)}
    wanted = sorted(used.intersection(names))
    line = f"from {module} import " + ", ".join(wanted)
    if not fits(line):
        line = "\n".join([f"from {module} import (", *(f"    {name}," for name in wanted), ")"])
    return f"import re\n\n{line}" if any(word.startswith("re.") for word in used) else line


def _used(node: Node) -> Iterator[str]:
    """All that is called in the source, and its atoms."""
    if isinstance(node, str):
        yield node.removesuffix("()")
    elif isinstance(node, Brackets):
        yield node.opening.removesuffix("(")
        for item in node.items:
            yield from _used(item.node)


def opened(brackets: Brackets) -> str:
    """The source of the brackets at the margin, one item a line."""
    return "\n".join(_open(brackets, 0, "", ""))


def rows(item: Item, indent: int = 0, tail: str = "") -> Iterator[str]:
    """The source of an item at this indentation, with what stands after it."""
    return _lines(item, indent, tail)


def fits(row: str) -> bool:
    """Whether a row of source is no wider than formatters make it."""
    return _columns(row) <= _WIDTH


def is_parameter(name: str) -> bool:
    """Whether the name can be written before `=`. Python reads others than ASCII in a normal form."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"


def literal(text: str) -> str:
    """A string literal in one line, in the quotes that need fewer escapes."""
    quote = "'" if text.count('"') > text.count("'") else '"'
    return quote + _body(text).replace(quote, "\\" + quote) + quote


def _body(text: str) -> str:
    """The text with everything but quotes escaped; repr knows which characters cannot be seen."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return _SPECIAL.sub(lambda match: repr(match[0])[1:-1], text)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} has no form in JSON")
    return repr(value).replace("e+", "e")


def _lines(item: Item, indent: int, tail: str) -> Iterator[str]:
    """The item at this indentation, with what stands after it."""
    short = _is_short(item, indent, tail)
    if isinstance(item.node, Brackets) and not short:
        yield from _open(item.node, indent, item.lead, tail)
    elif isinstance(item.node, Text) and not short:
        yield from _text(item.node.value, indent, item.lead, tail)
    else:
        yield " " * indent + item.lead + _flat(item.node) + tail


def _is_short(item: Item, indent: int, tail: str) -> bool:
    """Whether the item has room in one line. What is far too wide is not laid out to find that out."""
    if _least(item.node, _WIDTH) > _WIDTH:
        return False
    return indent + _columns(item.lead + _flat(item.node) + tail) <= _WIDTH


def _open(brackets: Brackets, indent: int, lead: str, tail: str) -> Iterator[str]:
    yield " " * indent + lead + brackets.opening
    for item in brackets.items:
        yield from _lines(item, indent + _INDENT, ",")
    yield " " * indent + brackets.closing + tail


def _text(value: str, indent: int, lead: str, tail: str) -> Iterator[str]:
    body = literal(value)
    whole = " " * indent + lead + body + tail
    # On a line of its own it may fit where it does not beside its key.
    joined = indent + _INDENT + _columns(body)
    if min(_columns(whole), joined) <= _LONGEST_LINE:
        yield whole
        return
    pieces = list(_pieces(value, max(_WIDTH - indent - _INDENT, _LEAST_PIECE)))
    if len(pieces) < 2:
        yield whole
        return
    yield " " * indent + lead + "("
    for piece in pieces:
        yield " " * (indent + _INDENT) + literal(piece)
    yield " " * indent + ")" + tail


def _pieces(text: str, width: int) -> Iterator[str]:
    """The text in pieces whose literals have at most this many columns, cut between words where possible."""
    piece, used = "", _QUOTES
    for word in _words(text, width - _QUOTES):
        columns = _most_columns(word)
        if piece and used + columns > width:
            yield piece
            piece, used = "", _QUOTES
        piece += word
        used += columns
    if piece:
        yield piece


def _words(text: str, width: int) -> Iterator[str]:
    """The words with the space after them; single characters of a word that is wider than this."""
    for match in _WORD.finditer(text):
        word = match[0]
        yield from (word,) if _most_columns(word) <= width else word


def _most_columns(text: str) -> int:
    """How wide the text is in a literal of either quotes."""
    return _columns(_body(text)) + max(text.count('"'), text.count("'"))


def _flat(node: Node) -> str:
    if isinstance(node, str):
        return node
    if isinstance(node, Text):
        return literal(node.value)
    return node.opening + ", ".join(item.lead + _flat(item.node) for item in node.items) + node.closing


def _least(node: Node, enough: int) -> int:
    """How many columns the node takes at least in one line; it is not looked at further than is enough."""
    if isinstance(node, str):
        return len(node)
    if isinstance(node, Text):
        return len(node.value)
    used = 0
    for item in node.items:
        used += len(item.lead) + _least(item.node, enough - used)
        if used > enough:
            break
    return used


def _columns(text: str) -> int:
    """How wide the text is in an editor: East Asian wide characters take two columns."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
