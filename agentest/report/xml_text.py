"""XML 1.0 from texts of others: whatever they hold, what is written can be read, and steers nobody."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from agentest.support.terminal import clean, clean_rows, without_colours

_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# GitLab, and a plugin of Jenkins, take this in a case's output for the path of a file to publish.
_ATTACHMENT = re.compile(r"\[\[(?=ATTACHMENT\|)", re.IGNORECASE)
_IN_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_IN_ATTRIBUTE = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def in_rows(text: str) -> str:
    """The text as content of an element; colours are left out, other controls are shown as escapes."""
    return _allowed(clean_rows(without_colours(text))).translate(_IN_TEXT)


def element(name: str, attributes: Mapping[str, object | None], content: Iterable[str] = ()) -> str:
    """An element. Attributes that are None are left out; the content is XML already."""
    given = "".join(
        f' {key}="{_in_one_row(str(value))}"' for key, value in attributes.items() if value is not None
    )
    inner = "".join(content)
    return f"<{name}{given}>{inner}</{name}>" if inner else f"<{name}{given}/>"


def open_tag(name: str, attributes: Mapping[str, object | None]) -> str:
    """The beginning of an element whose content follows."""
    return element(name, attributes).removesuffix("/>") + ">"


def _in_one_row(text: str) -> str:
    return _allowed(clean(without_colours(text))).translate(_IN_ATTRIBUTE)


def _allowed(text: str) -> str:
    seen = _NO_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return _ATTACHMENT.sub(r"[\\[", seen)
