"""The body of a request from its template: JSON, a form, or text."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode
from uuid import uuid4
from xml.sax.saxutils import escape

from agentest.support.templates import Template, Values, as_text, without

JSON_TYPE = "application/json"
_TEXT_TYPE = "text/plain; charset=utf-8"
_MULTIPART = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A body as it is sent, and its type."""

    content: bytes
    content_type: str


class BodyTemplate:
    """What a request sends."""

    def __init__(self, body: Any, content_type: str | None) -> None:
        """`content_type` (default: JSON, or text for a text) says how the body is written."""
        self._type = content_type
        kind = (content_type or "").lower()
        self._form = "multipart" if "multipart" in kind else "form" if "form" in kind else ""
        self._is_json = not isinstance(body, str) or "json" in kind
        self._is_xml = "xml" in kind
        self._tree = _tree_of(body, self._form, kind)

    def encoded(self, values: Values, absent: Collection[str]) -> Encoded | None:
        """The body without the keys that hold only a name of `absent`; None where there is none."""
        if self._tree is None:
            return None
        tree = without(self._tree, absent)
        if self._is_xml and isinstance(tree, str):
            return self._written(Template(tree).filled(_Escaped(values)))
        return self._written(Template(tree).filled(values))

    def _written(self, value: Any) -> Encoded:
        if self._form == "multipart":
            return _multipart(value)
        if self._form:
            content = urlencode(list(fields(value)), errors="replace", quote_via=quote)
            return Encoded(content.encode(), self._type or "")
        if isinstance(value, str) and not self._is_json:
            return Encoded(value.encode(errors="replace"), self._type or _TEXT_TYPE)
        return Encoded(json.dumps(value).encode(), self._type or JSON_TYPE)


def fields(values: Any) -> Iterator[tuple[str, str]]:
    """The fields of a form or of an address: one for each item of a list, none for null."""
    pairs = values.items() if isinstance(values, Mapping) else values
    for name, value in pairs:
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                yield str(name), as_text(item)


def _tree_of(body: Any, form: str, kind: str) -> Any:
    """The body as a JSON value: a text that is JSON is one, so that values are never pasted into it."""
    if not isinstance(body, str):
        return body
    if form:
        return parse_qsl(body, keep_blank_values=True)
    if kind and "json" not in kind:
        return body
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return body
    return read if isinstance(read, dict | list) or kind else body


class _Escaped:
    """Values as they stand in XML."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def __getitem__(self, name: str) -> str:
        return escape(as_text(self._values[name]), {'"': "&quot;", "'": "&apos;"})


def _multipart(values: Any) -> Encoded:
    boundary = uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{_field_name(name)}"\r\n\r\n{text}\r\n'
        for name, text in fields(values)
    ]
    content = "".join([*parts, f"--{boundary}--\r\n"]).encode(errors="replace")
    return Encoded(content, f"{_MULTIPART}; boundary={boundary}")


def _field_name(name: str) -> str:
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
