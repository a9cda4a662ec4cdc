"""Convert parameters and bodies of requests to JSON values according to their schemas."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from typing import Any
from urllib.parse import parse_qsl

from agentest.plugins.servers.rest.operations import BodyContent, Parameter, is_json
from agentest.plugins.servers.rest.schema import Schema
from agentest.support.errors import errors_as
from agentest.support.json_text import parse_untrusted_json

MISSING: Any = object()
_INTEGER = re.compile(r"[-+]?[0-9]{1,4000}")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_BETWEEN = {
    "spaceDelimited": " ",
    "pipeDelimited": "|",
    "tabDelimited": "\t",
}  # separators of the styles that have no comma
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}

Pairs = Sequence[tuple[str, str]]  # names and values of a query, a form or cookies, in order


def value_of(parameter: Parameter, pairs: Pairs) -> Any:
    """Return the value of a parameter, or MISSING. Raises ValueError if its format is invalid.

    `pairs` are those of the parameter's location; for paths and headers, one for each name.
    """
    schema, name = parameter.schema, parameter.name
    if parameter.style == "deepObject":
        return deep(name, schema, pairs)
    if _is_spread(parameter):
        known = {key: [v for k, v in pairs if k == key] for key in schema.properties}
        made = {key: typed_field(texts, schema.property(key)) for key, texts in known.items() if texts}
        return made or MISSING
    texts = [value for key, value in pairs if key == name]
    if not texts:
        return MISSING
    if parameter.is_json:
        return json.loads(_single(texts))
    if parameter.explode and parameter.style == "form" and _is(schema, "array"):
        return _typed_all(texts, schema)
    text = _bare(parameter, _single(texts))
    if _is(schema, "array"):
        between = text.split(_separator(parameter)) if text else []
        prefix = f"{parameter.name}=" if parameter.style == "matrix" else ""
        return _typed_all([each.removeprefix(prefix) for each in between], schema)
    if _is(schema, "object"):
        return _object(parameter, text)
    return typed(text, schema)


def names_of_query(parameter: Parameter) -> tuple[str, ...]:
    """Return the query names of a parameter; for a deep object, their common beginning."""
    return parameter.schema.properties if _is_spread(parameter) else (parameter.name,)


def _is_spread(parameter: Parameter) -> bool:
    is_exploded = parameter.explode and parameter.style == "form" and not parameter.is_json
    return is_exploded and _is(parameter.schema, "object")


def typed(text: str, schema: Schema | None) -> Any:
    """Convert a text to the type of its schema; return the text itself if that is impossible."""
    types = schema.types if schema else frozenset()
    if not types or "string" in types:
        return text
    if types & {"integer", "number"} and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        return float(text) if math.isfinite(float(text)) else text
    if "boolean" in types and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if "null" in types and text in ("", "null"):
        return None
    return text


def typed_field(texts: Sequence[str], schema: Schema | None, style: str | None = None) -> Any:
    """Convert a form field to the type of its schema; with a style, one text has all items of a list."""
    if schema and _is(schema, "array"):
        if style:
            texts = [item for text in texts if text for item in text.split(_BETWEEN.get(style, ","))]
        return _typed_all(texts, schema)
    if schema and _is(schema, "object"):
        text = _single(texts)
        try:
            return json.loads(text)
        except ValueError:
            return text
    return typed(texts[0], schema) if len(texts) == 1 else list(texts)


def _is(schema: Schema, kind: str) -> bool:
    return kind in schema.types and "string" not in schema.types


def _single(texts: Sequence[str]) -> str:
    if len(texts) > 1:
        raise ValueError(f"is given {len(texts)} times, and is not a list")
    return texts[0]


def _typed_all(texts: Sequence[str], schema: Schema) -> list[Any]:
    return [typed(text, schema.items) for text in texts]


def _separator(parameter: Parameter) -> str:
    if parameter.explode and parameter.style in ("label", "matrix"):
        return "." if parameter.style == "label" else ";"
    return _BETWEEN.get(parameter.style, ",")


def _bare(parameter: Parameter, text: str) -> str:
    if parameter.style == "label":
        return text.removeprefix(".")
    if parameter.style == "matrix":
        text = text.removeprefix(";")
        if not (parameter.explode and _is(parameter.schema, "object")):
            return text.removeprefix(f"{parameter.name}=")
    return text


def _object(parameter: Parameter, text: str) -> dict[str, Any]:
    parts = text.split(_separator(parameter)) if text else []
    if parameter.explode:
        pairs = [part.partition("=")[::2] for part in parts]
    elif len(parts) % 2:
        raise ValueError(f"has {len(parts)} parts; names and values come in twos")
    else:
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
    return {name: typed(value, parameter.schema.property(name)) for name, value in pairs}


def deep(name: str, schema: Schema | None, pairs: Pairs) -> Any:
    """Read `name[key]=value`, `name[key][inner]=value` and `name[]=value`; MISSING without any.

    Raises ValueError.
    """
    texts: dict[str, Any] = {}
    for key, value in pairs:
        if key.startswith(f"{name}["):
            _put(texts, re.findall(r"\[([^\[\]]*)\]", key[len(name) :]), value)
    return _typed_deep(texts, schema) if texts else MISSING


def _put(into: dict[str, Any], keys: list[str], value: str) -> None:
    if not keys:
        raise ValueError("has a name with unequal brackets")
    for key in keys[:-1]:
        into = into.setdefault(key, {})
        if not isinstance(into, dict):
            raise ValueError(f"is both a value and an object at [{key}]")
    values = into.setdefault(keys[-1], [])
    if not isinstance(values, list):
        raise ValueError(f"is both a value and an object at [{keys[-1]}]")
    values.append(value)


def _typed_deep(texts: Any, schema: Schema | None) -> Any:
    if isinstance(texts, list):
        return typed_field(texts, schema)
    if schema and _is(schema, "array"):
        if texts.keys() == {""} and isinstance(texts[""], list):
            return _typed_all(texts[""], schema)
        if not all(key.isdecimal() for key in texts):
            raise ValueError(f"is a list, and has names in it: {', '.join(texts)}")
        return [_typed_deep(texts[key], schema.items) for key in sorted(texts, key=int)]
    return {key: _typed_deep(value, schema and schema.property(key)) for key, value in texts.items()}


FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
_MOST_FIELDS = 10_000
_MOST_HEAD_BYTES = 8192  # the maximum bytes of the headers of a form part
_HEADER = re.compile(
    r"""[^\s;"()]+(?:\s*;\s*[^\s;="()]+=(?:"(?:[^"\\]|\\.)*+"|[^\s;"()]*+))*+\s*+(?:;\s*+)?""", re.S
)
"""A value with parameters, without comments."""
_HEAD_END = re.compile(rb"(?:\A|\r?\n)\r?\n")


class UnreadableRequest(ValueError):
    """The body is unreadable. `status` is the status of the response."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def read_body(body: bytes, content_type: str, content: BodyContent) -> tuple[Any, Schema | None]:
    """Return the value of a body, and the schema that applies to it. Raises BadBody."""
    header = _header(content_type)
    charset = header.get_content_charset()
    if content_type:
        kind = header.get_content_type()
    else:
        kinds = [kind for kind in content.kinds if "*" not in kind]
        kind = next(filter(is_json, kinds), kinds[0] if kinds else "application/json")
    declared = _declared(kind, content)
    if declared is None:
        expected = ", ".join(content.kinds)
        raise UnreadableRequest(f"is {kind}, expected {expected}: see the header Content-Type", 415)
    schema = content.kinds[declared]
    if is_json(kind):
        return _json(body, charset), schema
    if kind in (FORM, MULTIPART):
        fields = _form(_text(body, charset)) if kind == FORM else _multipart(body, content_type)
        return _typed(fields, schema, content.delimited), schema
    try:
        return _text(body, charset), schema
    except UnreadableRequest:
        return f"<{len(body)} bytes>", schema


def _header(content_type: str) -> Message:
    message = Message()
    message["content-type"] = content_type
    return message


def _declared(kind: str, content: BodyContent) -> str | None:
    plain = {each.partition(";")[0].strip(): each for each in content.kinds}
    for each in (kind, f"{kind.partition('/')[0]}/*", "*/*"):
        if each in plain:
            return plain[each]
    return next((each for each in content.kinds if is_json(each)), None) if is_json(kind) else None


def _json(body: bytes, charset: str | None) -> Any:
    try:
        text = body.decode(charset) if charset else body.decode(json.detect_encoding(body))
        return parse_untrusted_json(text)
    except RecursionError:
        raise UnreadableRequest("is nested too deeply") from None
    except (ValueError, LookupError) as error:
        raise UnreadableRequest(f"is not valid JSON: {error}") from None


def _text(body: bytes, charset: str | None) -> str:
    with errors_as(UnreadableRequest, "is not a text: ", (ValueError, LookupError)):
        return body.decode(charset or "utf-8")


def _form(text: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    with errors_as(UnreadableRequest, "is not a form: "):
        for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS):
            fields.setdefault(name, []).append(value)
    return fields


def _multipart(body: bytes, content_type: str) -> dict[str, list[str]]:
    boundary = b"--" + (_header(content_type).get_boundary() or "").encode("latin-1", "replace")
    if body.count(boundary) > _MOST_FIELDS + 1:  # the last one ends the form
        raise UnreadableRequest(f"is a form of more than {_MOST_FIELDS:,} parts")
    fields: dict[str, list[str]] = {}
    for head, content in _parts(body, boundary):
        name = head.get_param("name", header="content-disposition")
        if name is not None:
            fields.setdefault(collapse_rfc2231_value(name), []).append(_of_part(head, content))
    if not fields:
        raise UnreadableRequest("is not a form: not one field was found between its boundaries")
    return fields


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[Message, bytes]]:
    line = re.compile(rb"(?:\A|\r?\n)" + re.escape(boundary) + rb"(?P<last>--)?[ \t]*(?=\r?\n|\Z)")
    begins: int | None = None
    for boundary_line in line.finditer(body):
        if begins is not None:
            yield _part(body[begins : boundary_line.start()])
        if boundary_line["last"]:
            return
        begins = boundary_line.end()
    if begins is not None:  # it was cut
        yield _part(body[begins:])


def _part(text: bytes) -> tuple[Message, bytes]:
    text = text.removeprefix(b"\r").removeprefix(b"\n")
    end = _HEAD_END.search(text, 0, _MOST_HEAD_BYTES)
    if end is None:
        raise UnreadableRequest(
            f"is a form with a part whose head does not end within {_MOST_HEAD_BYTES:,} bytes"
        )
    head = HeaderParser().parsestr(text[: end.start()].decode("utf-8", "replace"))
    for name in ("content-disposition", "content-type"):
        if name in head and not _HEADER.fullmatch(head[name]):
            raise UnreadableRequest(f"is a form with a part whose header {name} cannot be read")
    return head, text[end.end() :]


def _of_part(head: Message, content: bytes) -> str:
    head.set_payload(content.decode("ascii", "surrogateescape"))
    data = head.get_payload(decode=True)  # encoded as in mail, by old clients
    assert isinstance(data, bytes)
    try:
        return data.decode(head.get_content_charset() or "utf-8")
    except (ValueError, LookupError):
        name = head.get_filename() or "a file"
        return f"<{name}, {head.get_content_type()}, {len(data)} bytes>"


def _typed(fields: dict[str, list[str]], schema: Schema | None, styles: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    by_property: dict[str, list[str]] = {}
    for name in fields:
        by_property.setdefault(name.partition("[")[0], []).append(name)
    with errors_as(UnreadableRequest, "is a form in which something "):
        for name, keys in by_property.items():
            inside = schema and schema.property(name)
            if name in fields or inside is None:
                made |= {key: typed_field(fields[key], inside, styles.get(key)) for key in keys}
            else:
                made[name] = deep(name, inside, [(key, text) for key in keys for text in fields[key]])
    return made
