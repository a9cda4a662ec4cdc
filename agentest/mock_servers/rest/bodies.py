"""The bodies of requests: JSON, forms and texts, as JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from typing import Any
from urllib.parse import parse_qsl

from agentest.mock_servers.rest.operations import Content, is_json
from agentest.mock_servers.rest.parameters import deep, typed_field
from agentest.mock_servers.rest.schema import Schema
from agentest.support.json_text import json_of_others

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
_MOST_FIELDS = 10_000
_MOST_HEAD_BYTES = 8192
"""Of a part of a form: its name, and what its content is."""
_HEADER = re.compile(
    r"""[^\s;"()]+(?:\s*;\s*[^\s;="()]+=(?:"(?:[^"\\]|\\.)*+"|[^\s;"()]*+))*+\s*;?\s*""", re.S
)
"""A value with parameters, and without comments."""
_HEAD_END = re.compile(rb"(?:\A|\r?\n)\r?\n")


class BadBody(ValueError):
    """The body cannot be read. `status` says it to who sent it."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def read_body(body: bytes, content_type: str, content: Content) -> tuple[Any, Schema | None]:
    """What a body says, and the schema that it must fit. Raises BadBody.

    Args:
        content_type: the request's header; empty: it says none.
    """
    kind, charset = _kind_of(content_type)
    kind = kind or _usual(content)
    declared = _declared(kind, content)
    if declared is None:
        expected = ", ".join(content.kinds)
        raise BadBody(f"is {kind}, expected {expected}: the header Content-Type says what it is", 415)
    schema = content.kinds[declared]
    if is_json(kind):
        return _json(body, charset), schema
    if kind == FORM:
        return _form(_text(body, charset), schema), schema
    if kind == MULTIPART:
        return _multipart(body, content_type, schema), schema
    return _text_or_size(body, charset), schema


def _kind_of(content_type: str) -> tuple[str, str | None]:
    message = Message()
    message["content-type"] = content_type
    return (message.get_content_type() if content_type else "", message.get_content_charset())


def _boundary_of(content_type: str) -> bytes:
    message = Message()
    message["content-type"] = content_type
    return (message.get_boundary() or "").encode("latin-1", "replace")


def _usual(content: Content) -> str:
    """What a body is that says nothing of itself."""
    kinds = [kind for kind in content.kinds if "*" not in kind]
    return next((kind for kind in kinds if is_json(kind)), kinds[0] if kinds else "application/json")


def _declared(kind: str, content: Content) -> str | None:
    """The media type of the document that a body is of: itself, else a range like `text/*`."""
    plain = {each.partition(";")[0].strip(): each for each in content.kinds}
    for each in (kind, f"{kind.partition('/')[0]}/*", "*/*"):
        if each in plain:
            return plain[each]
    return next((each for each in content.kinds if is_json(each)), None) if is_json(kind) else None


def _json(body: bytes, charset: str | None) -> Any:
    try:
        text = body.decode(charset) if charset else body.decode(json.detect_encoding(body))
        return json_of_others(text)
    except RecursionError:
        raise BadBody("is nested too deeply") from None
    except (ValueError, LookupError) as error:
        raise BadBody(f"is not valid JSON: {error}") from None


def _text(body: bytes, charset: str | None) -> str:
    try:
        return body.decode(charset or "utf-8")
    except (ValueError, LookupError) as error:
        raise BadBody(f"is no text: {error}") from None


def _text_or_size(body: bytes, charset: str | None) -> str:
    try:
        return body.decode(charset or "utf-8")
    except (ValueError, LookupError):
        return f"<{len(body)} bytes>"


def _form(text: str, schema: Schema | None) -> dict[str, Any]:
    fields: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS):
            fields.setdefault(name, []).append(value)
    except ValueError as error:
        raise BadBody(f"is no form: {error}") from None
    return _typed(fields, schema)


def _multipart(body: bytes, content_type: str, schema: Schema | None) -> dict[str, Any]:
    """The fields of a form; a file is its text, or a word on its name and size."""
    boundary = b"--" + _boundary_of(content_type)
    if body.count(boundary) > _MOST_FIELDS + 1:  # the last one ends the form
        raise BadBody(f"is a form of more than {_MOST_FIELDS:,} parts")
    fields: dict[str, list[str]] = {}
    for head, content in _parts(body, boundary):
        name = head.get_param("name", header="content-disposition")
        if name is not None:
            fields.setdefault(collapse_rfc2231_value(name), []).append(_of_part(head, content))
    if not fields:
        raise BadBody("is no form: not one field was found between its boundaries")
    return _typed(fields, schema)


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[Message, bytes]]:
    """Head and content of each part; what is within a part is its content, whatever it says of itself."""
    line = re.compile(rb"(?:\A|\r?\n)" + re.escape(boundary) + rb"(?P<last>--)?[ \t]*(?=\r?\n|\Z)")
    begins: int | None = None
    for found in line.finditer(body):
        if begins is not None:
            yield _part(body[begins : found.start()])
        if found["last"]:
            return
        begins = found.end()
    if begins is not None:  # it was cut
        yield _part(body[begins:])


def _part(text: bytes) -> tuple[Message, bytes]:
    text = text.removeprefix(b"\r").removeprefix(b"\n")
    end = _HEAD_END.search(text, 0, _MOST_HEAD_BYTES)
    if end is None:
        raise BadBody(f"is a form with a part whose head does not end within {_MOST_HEAD_BYTES:,} bytes")
    head = HeaderParser().parsestr(text[: end.start()].decode("utf-8", "replace"))
    for name in ("content-disposition", "content-type"):
        if name in head and not _HEADER.fullmatch(head[name]):
            raise BadBody(f"is a form with a part whose header {name} cannot be read")
    return head, text[end.end() :]


def _of_part(head: Message, content: bytes) -> str:
    head.set_payload(content.decode("ascii", "surrogateescape"))
    data = head.get_payload(decode=True)  # packed as in mail, by clients of old
    assert isinstance(data, bytes)
    try:
        return data.decode(head.get_content_charset() or "utf-8")
    except (ValueError, LookupError):
        name = head.get_filename() or "a file"
        return f"<{name}, {head.get_content_type()}, {len(data)} bytes>"


def _typed(fields: Mapping[str, list[str]], schema: Schema | None) -> dict[str, Any]:
    """The fields by their schemas. Names like `items[0][price]` are paths into a property that is known."""
    made: dict[str, Any] = {}
    try:
        for name, keys in _by_property(fields).items():
            inside = schema and schema.property(name)
            if name in fields or inside is None:
                made |= {key: typed_field(fields[key], inside) for key in keys}
            else:
                made[name] = deep(name, inside, [(key, text) for key in keys for text in fields[key]])
    except ValueError as error:
        raise BadBody(f"is a form in which something {error}") from None
    return made


def _by_property(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_property_of(name), []).append(name)
    return found


def _property_of(name: str) -> str:
    return name.partition("[")[0]
