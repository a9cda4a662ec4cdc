"""Build the page as one document: modules, style sheet and data, with a policy that blocks everything else.

There is no build step: `assets/` contains plain modules, which become one script here. To keep this small,
modules import in one form only, `import { a, b } from "./x.js";`, on one line at their top, and export
functions, classes and constants by name in their declarations. Exported names belong to the whole script, so
no two modules of a page export the same name.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections import Counter
from dataclasses import field
from enum import StrEnum
from functools import cache
from html import escape
from importlib.resources import files
from itertools import zip_longest

from agentest.support.json_text import encoded
from agentest.support.lazy_dataclasses import dataclass

ASSETS = files("agentest.plugins.page.viewer") / "assets"
_IMPORT = re.compile(r'^import \{ (?P<names>[\w, ]+) \} from "\./(?P<module>\w+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (?P<name>\w+))", re.MULTILINE)
_DECLARED = re.compile(
    r"^(?:export )?(?:async )?(?:function\*?|class|const|let) (\w+|[\[{][^=]*)", re.MULTILINE
)
_WORD = re.compile(r"\w+")
_TEXT = re.compile(r'("[^"]*")')
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_LOOSE = re.compile(r" ?([{}]) ?|([;,:]) ")
_LITERAL = re.compile(
    r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`| *// [^\n]*"""
    r"""|(?<=[(,=:\[!&|?{};\n])\s*/(?![/*])(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*)"""
)
_AROUND_SIGNS = re.compile(r" *([={}(),;:?&|!*\[\]<>]+) *| ([+-]) (?![+-])")
_LINE_ENDS = re.compile(r"(?<=[{}(\[,;=:?&|])\n|\n(?=[})\].?:&|])")
_CONSTANT = re.compile(r"\bconst\b")
_MODULE = re.compile(r"^(import|export)\b.*$", re.MULTILINE)


class PageVariant(StrEnum):
    """The variants of the page; the value is the module that starts the variant."""

    FILE = "file.js"  # a file for viewing, with its data inside
    SERVED = "served.js"  # the page of `agentest ui` that shows runs; it gets its data from the server
    WORKING = "working.js"
    """The page of `agentest ui` that compares and starts runs, and edits conversations, cases and labels.

    A browser loads only the variant that it needs.
    """


_STYLES = {
    PageVariant.FILE: ("style.css",),
    PageVariant.SERVED: ("style.css",),
    PageVariant.WORKING: ("style.css", "work.css"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page in two halves, so that data can be written between them."""

    head: str
    tail: str
    policy: str


def page(variant: PageVariant, title: str, *, plain: str = "") -> Page:
    """Build one variant of the page."""
    script, style = joined(variant), _style(*_STYLES[variant])
    policy = _policy(script, style, connect="'none'" if variant is PageVariant.FILE else "'self'")
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
        f"<body>\n<noscript><p>{escape(plain)}</p>"
        "This page needs JavaScript. It makes no network requests.</noscript>\n"
        f"<script>{script}</script>\n"
    )
    return Page(head=head, tail="</body>\n</html>\n", policy=policy)


def data_element(id: str, text: str) -> str:
    """Return an element with data that a browser neither shows nor runs. The text must not contain `<`."""
    return f'<script type="application/octet-stream" id="{escape(id)}">{text}</script>\n'


@cache
def joined(variant: PageVariant) -> str:
    """Join all modules of a variant into one script that starts it. Raises ValueError."""
    order = modules(variant)
    exported = Counter(name for text in order.values() for name in _exported(text))
    if twice := [name for name, times in exported.items() if times > 1]:
        raise ValueError(f"several modules export {', '.join(twice)}")
    taken, parts = {*exported}, []
    for name, text in order.items():
        declared = {word for names in _DECLARED.findall(text) for word in _WORD.findall(names)}
        private = declared - {*_exported(text)}
        parts.append(_in_script(name, text, alone=private.isdisjoint(taken)))
        taken |= private
    return without_layout(f'"use strict";\n(() => {{\n{"".join(parts)}start();\n}})();\n')


def modules(variant: PageVariant) -> dict[str, str]:
    """Return the modules of a variant with their texts, imported ones first. Raises ValueError."""
    order: dict[str, str] = {}
    _collect(variant.value, order, ())
    return order


def _collect(name: str, order: dict[str, str], importers: tuple[str, ...]) -> None:
    """Add a module after those that it imports. Raises ValueError if they do not fit together."""
    if name in importers:
        raise ValueError(f"modules import each other: {' → '.join((*importers, name))}")
    if name in order:
        return
    text = _asset(name)
    for match in _IMPORT.finditer(text):
        _collect(match["module"], order, (*importers, name))
        lacking = set(match["names"].split(", ")) - set(_exported(order[match["module"]]))
        if lacking:
            raise ValueError(f"{name}: {match['module']} does not export {', '.join(sorted(lacking))}")
    order[name] = text


def _exported(text: str) -> list[str]:
    return [match["name"] for match in _EXPORT.finditer(text)]


def _in_script(name: str, text: str, *, alone: bool) -> str:
    """Return a module for the script; in a function if others have its private names. Raises ValueError."""
    names = f"{{ {', '.join(_exported(text))} }}"
    text = _EXPORT.sub("", _IMPORT.sub("", text))
    if left := _MODULE.search(text):
        raise ValueError(f"{name}: only the forms that viewer/page.py knows can be joined: {left[0]}")
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError(f"{name}: it would end the script that it stands in")
    return text if alone else f"const {names} = (() => {{\n{text}return {names};\n}})();\n"


@cache
def _style(*names: str) -> str:
    text = "".join(_asset(name) for name in names)
    pieces = _TEXT.split(" ".join(_COMMENT.sub("", text).split()))
    loose = (piece if at % 2 else _LOOSE.sub(r"\1\2", piece) for at, piece in enumerate(pieces))
    return "".join(loose).replace(";}", "}")


def _policy(script: str, style: str, *, connect: str) -> str:
    rules = (
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        f"connect-src {connect}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return "; ".join(rules)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def page_text(parts: Page) -> str:
    """Return the page without data as one text."""
    return parts.head + parts.tail


def without_layout(script: str) -> str:
    """Remove lines of comments, spaces and semicolons without meaning. No text in backticks may span lines.

    A constant becomes a variable, which is a shorter word. A loop must have a body in braces.

    Raises ValueError for a script that this cannot read.
    """
    rows = (row.strip() for row in script.split("\n"))
    text = "\n".join(row for row in rows if row and not row.startswith("//")) + "\n"
    pieces = _LITERAL.split(text)
    unread = any(quote in piece for piece in pieces[::2] for quote in "\"'`")
    if unread or any("${" in piece.rpartition("}")[2] for piece in pieces[1::2] if piece.startswith("`")):
        raise ValueError("a script has a quote that begins no text, or a template in a template")
    code = (_shortest(piece) for piece in pieces[::2])
    texts = ("" if piece.lstrip().startswith("//") else piece for piece in pieces[1::2])
    return "".join(piece for pair in zip_longest(code, texts, fillvalue="") for piece in pair)


def _shortest(code: str) -> str:
    code = _LINE_ENDS.sub("", _AROUND_SIGNS.sub(r"\1\2", _CONSTANT.sub("let", code)))
    return code.replace(";}", "}")


CHUNK_BYTES = 256 * 1024
_LEVEL = 6
_LEAST_ROOM = 64 * 1024  # the minimum room for another chunk, in compressed characters

Place = tuple[int, int]  # the index of a chunk, and the index of a piece in it


def packed(value: object) -> str:
    """Compress a value of JSON types for the page. Equal values give equal texts."""
    return _packed(encoded(value))


def _packed(text: bytes) -> str:
    return base64.b64encode(gzip.compress(text, _LEVEL, mtime=0)).decode()


@dataclass(slots=True)
class Chunks:
    """Pieces of JSON, compressed in lists, so that the page decompresses one list to show a piece.

    Only the list that is being filled is in memory uncompressed. `close` ends the last one.
    """

    most: int | None = None  # the maximum of compressed characters; None for no limit
    packed: list[str | None] = field(default_factory=list)
    """The compressed lists in order; None for a list without room."""
    left_out: int = 0  # the number of pieces without room
    full: bool = False  # True if there is no more room
    _pieces: list[bytes] = field(default_factory=list)
    _size: int = 0
    _used: int = 0

    def add(self, piece: bytes) -> Place | None:
        """Append a piece. Returns None if there is no more room.

        A place may turn out to be in a list without room, which is None in `packed`.
        """
        if self._pieces and self._size + len(piece) > CHUNK_BYTES:
            self.close()
        if self.full:
            self.left_out += 1
            return None
        self._pieces.append(piece)
        self._size += len(piece)
        return len(self.packed), len(self._pieces) - 1

    @property
    def absent(self) -> list[int]:
        """Return the indices of the lists that had no room."""
        return [number for number, text in enumerate(self.packed) if text is None]

    def close(self) -> None:
        """Compress the pieces that were added since the last list."""
        if not self._pieces:
            return
        text = _packed(b"[" + b",".join(self._pieces) + b"]")
        if self.most is None or self._used + len(text) <= self.most:
            self.packed.append(text)
            self._used += len(text)
        else:
            self.packed.append(None)
            self.left_out += len(self._pieces)
            # A giant piece gets a list of its own; if that has no room, later pieces may still fit.
            self.full = len(self._pieces) > 1 or self.most - self._used < _LEAST_ROOM
        self._pieces, self._size = [], 0
