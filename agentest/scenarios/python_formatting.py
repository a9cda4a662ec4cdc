"""Format plain values as Python source, in the layout of `ruff format` and black.

Brackets that exceed a line are split, one item per line with a trailing comma. Formatters preserve this for
any line length, so the source is stable in every project with lines of at least 88 columns.
"""

from __future__ import annotations

import keyword
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentest.support.lazy_dataclasses import dataclass

NAMES = (
    *("Criterion", "HttpResponse", "ToolError", "absent", "any_of", "approx", "before", "call"),
    *("claims_of_success", "each", "exactly", "fault", "injection", "instance", "never_after", "number"),
    *("one_of", "optional", "scenario", "sequence", "text"),
)
_WIDTH = 88
_MAX_DEPTH = 100  # twice the depth of stored results; Python itself rejects source that is nested much deeper
_LONGEST_LINE = 110
"""A text is split if its line would be longer, because formatters join pieces that fit into one."""
_MIN_PIECE = 40
_QUOTES = 2
_INDENT = 4
_SPECIAL = re.compile(r"[^ -~]|\\")
_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class StringLiteral:
    value: str


@dataclass(frozen=True, slots=True)
class SourceExpression:
    """An expression in place of a value, with the line that imports what it uses."""

    source: str
    import_line: str


@dataclass(frozen=True, slots=True)
class BracketedSource:
    """Items between brackets: a list, a dict or a call."""

    opening: str
    items: tuple[SourceItem, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class SourceItem:
    """A part between brackets; `lead` is a dict's key or an argument's name."""

    node: SourceNode
    lead: str = ""


SourceNode = str | StringLiteral | BracketedSource  # a str is an atom: a number, None, an empty list


def node(value: Any) -> SourceNode:
    """Convert a JSON value."""
    if isinstance(value, str):
        return StringLiteral(value)
    if isinstance(value, Mapping):
        return mapping((key, node(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return list_of(map(node, value))
    return _number(value) if isinstance(value, float) else repr(value)


def mapping(items: Iterator[tuple[str, SourceNode]] | Sequence[tuple[str, SourceNode]]) -> SourceNode:
    return bracketed("{", (SourceItem(item, f"{literal(key)}: ") for key, item in items), "}")


def bracketed(opening: str, items: Iterator[SourceItem] | Sequence[SourceItem], closing: str) -> SourceNode:
    """Return brackets, or an atom if they are empty."""
    contents = tuple(items)
    return BracketedSource(opening, contents, closing) if contents else opening + closing


def list_of(nodes: Iterable[SourceNode]) -> SourceNode:
    return bracketed("[", tuple(map(SourceItem, nodes)), "]")


def call_of(
    name: str, nodes: Iterable[SourceNode] = (), named: Mapping[str, SourceNode | None] = MappingProxyType({})
) -> BracketedSource:
    """Return a call of a function. Named arguments without a node are left out."""
    keywords = [SourceItem(each, f"{key}=") for key, each in named.items() if each is not None]
    return BracketedSource(f"{name}(", (*map(SourceItem, nodes), *keywords), ")")


def module_of(
    about: str,
    scenarios: Sequence[BracketedSource],
    definitions: Sequence[str] = (),
    import_lines: Iterable[str] = (),
    comments: Sequence[str] = (),
) -> str:
    """Return a module with functions and constants, calls of `scenario`, and what they import.

    Args:
        about: its docstring, in quotes.
        import_lines: what the definitions import, each name in its own line.
        comments: the lines above each call, joined; () for none.
    """
    ours, others = "from agentest import ", set(import_lines)
    used = {word for each in scenarios for word in _used(each)}
    names = used.intersection(NAMES) | {each.removeprefix(ours) for each in others if each.startswith(ours)}
    lines = {each for each in others if not each.startswith(ours)}
    if any(word.startswith("re.") for word in used):
        lines.add("import re")
    line = bracketed(ours + "(", [SourceItem(name) for name in sorted(names)], ")")
    flat = ours + ", ".join(sorted(names))
    ours = split_source(line) if isinstance(line, BracketedSource) and not fits_line(flat) else flat
    in_order = sorted(lines, key=lambda each: (each.startswith("from "), each))
    standard = [each for each in in_order if each.split()[1].partition(".")[0] in sys.stdlib_module_names]
    own = [each for each in in_order if each not in standard]
    parts = [about, *filter(None, ("\n".join(standard), ours, "\n".join(own)))]
    calls = [split_source(each) for each in scenarios]
    if comments:
        rows_above = (comment.replace("\n", "\n# ") for comment in comments)
        calls = [f"# {above}\n{call}" for above, call in zip(rows_above, calls, strict=True)]
    body = [*definitions, "\n\n".join(calls)]
    return "\n\n".join(parts) + ("\n\n\n" if definitions else "\n\n") + "\n\n\n".join(body) + "\n"


def _used(node: SourceNode) -> Iterator[str]:
    if isinstance(node, str):
        yield node.removesuffix("()")
    elif isinstance(node, BracketedSource):
        yield node.opening.removesuffix("(")
        for item in node.items:
            yield from _used(item.node)


def split_source(brackets: BracketedSource) -> str:
    """Return the source of brackets without indentation, one item per line."""
    return "\n".join(_split_lines(brackets, 0, "", ""))


def fits_line(row: str) -> bool:
    """Return True if a line is within the formatters' line length."""
    return _columns(row) <= _WIDTH


def is_parameter(name: str) -> bool:
    """Return True if the name can be a keyword argument. Python normalizes names that are not ASCII."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"


def literal(text: str) -> str:
    """Return a string literal on one line, in the quotes that need fewer escapes."""
    quote = "'" if text.count('"') > text.count("'") else '"'
    return quote + _body(text).replace(quote, "\\" + quote) + quote


def _body(text: str) -> str:
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return _SPECIAL.sub(lambda match: repr(match[0])[1:-1], text)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} has no form in JSON")
    return repr(value).replace("e+", "e")


def rows(item: SourceItem, indent: int = 0, tail: str = "") -> Iterator[str]:
    """Yield the source lines of an item at this indentation, followed by `tail`."""
    # Items that are far too wide are not formatted on one line.
    short = _min_columns(item.node, _WIDTH) <= _WIDTH
    short = short and indent + _columns(item.lead + _on_one_line(item.node) + tail) <= _WIDTH
    if isinstance(item.node, BracketedSource) and not short:
        yield from _split_lines(item.node, indent, item.lead, tail)
    elif isinstance(item.node, StringLiteral) and not short:
        yield from _text_lines(item.node.value, indent, item.lead, tail)
    else:
        yield " " * indent + item.lead + _on_one_line(item.node) + tail


def _split_lines(brackets: BracketedSource, indent: int, lead: str, tail: str) -> Iterator[str]:
    if indent > _MAX_DEPTH * _INDENT:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    yield " " * indent + lead + brackets.opening
    for item in brackets.items:
        yield from rows(item, indent + _INDENT, ",")
    yield " " * indent + brackets.closing + tail


def _text_lines(value: str, indent: int, lead: str, tail: str) -> Iterator[str]:
    body = literal(value)
    one_line = " " * indent + lead + body + tail
    # On its own line it may fit even if it does not fit after its key.
    joined = indent + _INDENT + _columns(body)
    if min(_columns(one_line), joined) <= _LONGEST_LINE:
        yield one_line
        return
    pieces = list(_pieces(value, max(_WIDTH - indent - _INDENT, _MIN_PIECE)))
    if len(pieces) < 2:
        yield one_line
        return
    yield " " * indent + lead + "("
    for piece in pieces:
        yield " " * (indent + _INDENT) + literal(piece)
    yield " " * indent + ")" + tail


def _pieces(text: str, width: int) -> Iterator[str]:
    piece, used = "", _QUOTES
    for word in _words(text, width - _QUOTES):
        columns = _max_columns(word)
        if piece and used + columns > width:
            yield piece
            piece, used = "", _QUOTES
        piece += word
        used += columns
    if piece:
        yield piece


def _words(text: str, width: int) -> Iterator[str]:
    for match in _WORD.finditer(text):
        word = match[0]
        yield from (word,) if _max_columns(word) <= width else word


def _max_columns(text: str) -> int:
    return _columns(_body(text)) + max(text.count('"'), text.count("'"))


def _on_one_line(node: SourceNode) -> str:
    if isinstance(node, str):
        return node
    if isinstance(node, StringLiteral):
        return literal(node.value)
    return node.opening + ", ".join(item.lead + _on_one_line(item.node) for item in node.items) + node.closing


def _min_columns(node: SourceNode, enough: int) -> int:
    if isinstance(node, str):
        return len(node)
    if isinstance(node, StringLiteral):
        return len(node.value)
    used = 0
    for item in node.items:
        used += len(item.lead) + _min_columns(item.node, enough - used)
        if used > enough:
            break
    return used


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
