"""The page as one document: modules, style sheet and data joined, with a policy that allows nothing else.

There is no build: `assets/` has plain modules, and each becomes a function of one script here. So that this
stays a matter of a few rows, modules import in one form only, `import { a, b } from "./x.js";`, on one line
at their top, and export functions, classes and constants by name where they declare them.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from html import escape
from importlib.resources import files
from typing import NamedTuple

ASSETS = files("agentest.report.viewer") / "assets"
_IMPORT = re.compile(r'^import \{ (?P<names>[\w, ]+) \} from "\./(?P<module>\w+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (?P<name>\w+))", re.MULTILINE)
_TEXT = re.compile(r'("[^"]*")')
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_MODULE = re.compile(r"^(import|export)\b.*$", re.MULTILINE)


class Coat(StrEnum):
    """What the page is for; the value is the module that starts it."""

    FILE = "file.js"
    """One file to look at, with its data inside."""
    SERVED = "served.js"
    """The page of `agentest ui` for looking at runs and starting them: it asks its server."""
    WORKING = "working.js"
    """Its page for work: talks, cases, labels. A browser loads the one that it needs of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page in two halves, so that data may be written between them.

    Attributes:
        head: up to where data stands.
        tail: what ends it.
        policy: its content security policy, as it stands in `head`.
    """

    head: str
    tail: str
    policy: str


def page(coat: Coat, title: str, data: Mapping[str, str] | None = None, *, plain: str = "") -> Page:
    """The page in one of its coats.

    Args:
        data: id → text of elements that stand before the script; base64, or other text without `<`.
        plain: what is told where no script may run.
    """
    script, style = joined(coat), _style()
    policy = _policy(script, style, connect="'none'" if coat is Coat.FILE else "'self'")
    kept = "".join(data_element(id, text) for id, text in (data or {}).items())
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
        f"<body>\n<noscript><p>{escape(plain)}</p>"
        "This page needs JavaScript; it asks nobody for anything.</noscript>\n"
        f"{kept}<script>{script}</script>\n"
    )
    return Page(head=head, tail="</body>\n</html>\n", policy=policy)


def data_element(id: str, text: str) -> str:
    """Data that a browser neither shows nor runs. The text must not contain `<`."""
    return f'<script type="application/octet-stream" id="{escape(id)}">{text}</script>\n'


@cache
def joined(coat: Coat) -> str:
    """All modules that a coat needs as one script, which starts it. Raises ValueError."""
    order: dict[str, str] = {}
    _collect(coat.value, order, ())
    functions = "".join(_as_function(name, text) for name, text in order.items())
    body = f'const modules = {{}};\n{functions}modules["{coat.value}"].start();'
    return slim(f'"use strict";\n(() => {{\n{body}\n}})();\n')


def _collect(name: str, order: dict[str, str], importers: tuple[str, ...]) -> None:
    """Put a module behind those that it imports. Raises ValueError where they do not fit together."""
    if name in importers:
        raise ValueError(f"modules import each other: {' → '.join((*importers, name))}")
    if name in order:
        return
    text = _asset(name)
    for found in _IMPORT.finditer(text):
        _collect(found["module"], order, (*importers, name))
        lacking = set(found["names"].split(", ")) - set(_exported(order[found["module"]]))
        if lacking:
            raise ValueError(f"{name}: {found['module']} does not export {', '.join(sorted(lacking))}")
    order[name] = text


def _exported(text: str) -> list[str]:
    return [found["name"] for found in _EXPORT.finditer(text)]


def _as_function(name: str, text: str) -> str:
    exported = _exported(text)
    text = _IMPORT.sub(lambda found: f'const {{ {found["names"]} }} = modules["{found["module"]}"];', text)
    text = _EXPORT.sub("", text)
    if left := _MODULE.search(text):
        raise ValueError(f"{name}: only the forms that viewer/page.py knows can be joined: {left[0]}")
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError(f"{name}: it would end the script that it stands in")
    return f'modules["{name}"] = (() => {{\n{text}return {{ {", ".join(exported)} }};\n}})();\n'


@cache
def _style() -> str:
    """The style sheet without comments, and without spaces where one could not tell two things apart."""
    pieces = _TEXT.split(" ".join(_COMMENT.sub("", _asset("style.css")).split()))
    return "".join(piece if at % 2 else _tight(piece) for at, piece in enumerate(pieces))


def _tight(rules: str) -> str:
    for loose in ("{ ", " {", "; ", " }", "} ", ", ", ": "):
        rules = rules.replace(loose, loose.strip())
    return rules


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


def asset_names() -> Iterator[str]:
    """The files of the page."""
    return (each.name for each in ASSETS.iterdir() if each.name.endswith((".js", ".css")))


def whole(parts: Page, data: Iterable[str] = ()) -> str:
    """The page as one text."""
    return f"{parts.head}{''.join(data)}{parts.tail}"


_slim_TEXT = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
_REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*")
_PLAIN = re.compile(rf"//[^\n]*|\s+|{_slim_TEXT}|[\w$]+|[^\w\s]")
_QUOTED = re.compile(_slim_TEXT)
_BEFORE_REGEX = frozenset("(,=:[!&|?{};>+-*%~^<") | {"return", "typeof", "case", "in", "of", "void", "delete"}
_GO_ON = frozenset("{([,;=?:&|+")
"""A line that ends with one of these goes on, so its break says nothing."""


class Token(NamedTuple):
    """A piece of a script, and what stood before it: "", a space or a line break."""

    text: str
    gap: str


def slim(script: str) -> str:
    """The script with as few spaces as it can do with. Raises ValueError where a text has no end."""
    pieces: list[str] = []
    before = "\n"
    for text, gap in tokens(script):
        if gap == "\n" and before[-1] not in _GO_ON:
            pieces.append("\n")
        elif gap and _would_join(before[-1], text[0]):
            pieces.append(" ")
        pieces.append(text)
        before = text
    return "".join(pieces).lstrip("\n") + "\n"


def tokens(script: str) -> Iterator[Token]:
    """The pieces of a script that mean something. Raises ValueError."""
    at, before, gap = 0, ";", ""
    while at < len(script):
        end = _end(script, at, before)
        text = script[at:end]
        if text.startswith("//"):
            gap = gap or " "
        elif text.isspace():
            gap = "\n" if "\n" in (gap + text) else " "
        else:
            yield Token(text, gap)
            before, gap = text, ""
        at = end


def _end(script: str, at: int, before: str) -> int:
    if script[at] == "`":
        return _end_of_template(script, at + 1)
    if script[at] == "/" and script[at + 1 : at + 2] != "/" and before in _BEFORE_REGEX:
        found = _REGEX.match(script, at)
    else:
        found = _PLAIN.match(script, at)
    if found is None:
        raise ValueError(f"this cannot be read: {script[at : at + 40]!r}")
    return found.end()


def _end_of_template(script: str, at: int) -> int:
    """Where a text in backticks ends, whose places may hold further ones."""
    while at < len(script):
        if script[at] == "\\":
            at += 2
        elif script[at] == "`":
            return at + 1
        elif script.startswith("${", at):
            at = _end_of_place(script, at + 2)
        else:
            at += 1
    raise ValueError("a text in backticks has no end")


def _end_of_place(script: str, at: int) -> int:
    depth = 1
    while at < len(script) and depth:
        if script[at] == "`":
            at = _end_of_template(script, at + 1)
        elif quoted := _QUOTED.match(script, at):
            at = quoted.end()
        else:
            depth += (script[at] == "{") - (script[at] == "}")
            at += 1
    return at


def _would_join(before: str, after: str) -> bool:
    """Whether two pieces would be read as one, or as another one, without a space."""
    return (_in_word(before) and _in_word(after)) or (before == after and before in "+-")


def _in_word(letter: str) -> bool:
    return letter.isalnum() or letter in "_$"
