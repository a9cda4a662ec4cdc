"""Requests of an HTTP API, read as calls of tools: parameters, bodies, and what does not fit."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openapi_documents import SHOP, api_of, document, operation, parameter

from agentest.plugins.servers.rest.operations import Operation
from agentest.plugins.servers.rest.request_reader import ParsedRequest, ToolHttpRequest, read_request

LIST = {"type": "array", "items": {"type": "integer"}}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "number"}}}
FORM = {"content-type": "application/x-www-form-urlencoded"}
MULTIPART = {"content-type": "multipart/form-data; boundary=cut"}


@cache
def made(told: str) -> Operation:
    """The operation of a document with one path `/{p}`, or without its parameter."""
    paths = eval(told)
    with tempfile.TemporaryDirectory() as folder:
        return api_of(Path(folder), document(paths)).operations[0]


def with_parameters(*parameters: Any) -> Operation:
    path = "/" + "/".join("{" + p["name"] + "}" for p in parameters if p["in"] == "path")
    return made(repr({path: {"get": operation("find", *parameters)}}))


def with_content(content: Any, *parameters: Any, required: bool = True) -> Operation:
    told = operation("send", *parameters, requestBody={"required": required, "content": content})
    path = "/" + "/".join("{" + p["name"] + "}" for p in parameters if p["in"] == "path")
    return made(repr({path: {"post": told}}))


def read(
    operation: Operation,
    query: str = "",
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    **values: str,
) -> ParsedRequest:
    pairs = parse_qsl(query, keep_blank_values=True)
    asked = ToolHttpRequest(query=pairs, headers=headers or {}, body=body, values=values)
    return read_request(operation, asked, frozenset({"api_key"}))


QUERIES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "text": (parameter("p"), "p=3", "3"),
    "integer": (parameter("p", kind="integer"), "p=-3", -3),
    "number": (parameter("p", kind="number"), "p=1.5e3", 1500.0),
    "a whole number": (parameter("p", kind="number"), "p=3", 3),
    "boolean": (parameter("p", kind="boolean"), "p=true", True),
    "Python's boolean": (parameter("p", kind="boolean"), "p=False", False),
    "optional, as FastAPI has it": (
        parameter("p", kind={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        "p=7",
        7,
    ),
    "text wins": (parameter("p", kind={"type": ["integer", "string"]}), "p=7", "7"),
    "by the values": (parameter("p", kind={"enum": [1, 2]}), "p=2", 2),
    "any": (parameter("p", kind={}), "p=2", "2"),
    "list": (parameter("p", kind=LIST), "p=1&p=2", [1, 2]),
    "list of one": (parameter("p", kind=LIST), "p=1", [1]),
    "list in one text": (parameter("p", kind=LIST, explode=False), "p=1,2", [1, 2]),
    "list with encoded commas": (parameter("p", kind=LIST, explode=False), "p=1%2C2", [1, 2]),
    "empty list": (parameter("p", kind=LIST, explode=False), "p=", []),
    "list between spaces": (parameter("p", kind=LIST, style="spaceDelimited"), "p=1%202", [1, 2]),
    "list between pipes": (parameter("p", kind=LIST, style="pipeDelimited"), "p=1|2", [1, 2]),
    "spread object": (parameter("p", kind=POINT), "x=1&y=2.5", {"x": 1, "y": 2.5}),
    "object in one text": (parameter("p", kind=POINT, explode=False), "p=x,1,y,2.5", {"x": 1, "y": 2.5}),
    "deep object": (parameter("p", kind=POINT, style="deepObject"), "p[x]=1&p[y]=2", {"x": 1, "y": 2}),
    "deeper object": (
        parameter("p", kind={"type": "object"}, style="deepObject"),
        "p[a][b]=1&p[a][c]=2&p[a][c]=3",
        {"a": {"b": "1", "c": ["2", "3"]}},
    ),
    "JSON": (
        {"name": "p", "in": "query", "content": {"application/json": {"schema": POINT}}},
        'p={"x":1}',
        {"x": 1},
    ),
}


@pytest.mark.parametrize("what", QUERIES)
def test_parameters_of_queries(what: str) -> None:
    """A value has the type of its schema, in each of the styles."""
    told, query, expected = QUERIES[what]
    found = read(with_parameters(told), query)
    assert (found.problem, found.arguments, found.strangers) == (None, {"p": expected}, ())
    assert type(found.arguments["p"]) is type(expected)


PATHS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "simple": (parameter("p", "path", "integer"), "5", 5),
    "simple list": (parameter("p", "path", LIST), "1,2", [1, 2]),
    "simple object": (parameter("p", "path", POINT), "x,1,y,2", {"x": 1, "y": 2}),
    "simple object, exploded": (parameter("p", "path", POINT, explode=True), "x=1,y=2", {"x": 1, "y": 2}),
    "label": (parameter("p", "path", "integer", style="label"), ".5", 5),
    "label list": (parameter("p", "path", LIST, style="label"), ".1,2", [1, 2]),
    "label list, exploded": (parameter("p", "path", LIST, style="label", explode=True), ".1.2", [1, 2]),
    "matrix": (parameter("p", "path", "integer", style="matrix"), ";p=5", 5),
    "matrix list": (parameter("p", "path", LIST, style="matrix"), ";p=1,2", [1, 2]),
    "matrix list, exploded": (parameter("p", "path", LIST, style="matrix", explode=True), ";p=1;p=2", [1, 2]),
    "matrix object, exploded": (
        parameter("p", "path", POINT, style="matrix", explode=True),
        ";x=1;y=2",
        {"x": 1, "y": 2},
    ),
}


@pytest.mark.parametrize("what", PATHS)
def test_parameters_of_paths(what: str) -> None:
    """Paths have styles of their own."""
    told, text, expected = PATHS[what]
    found = read(with_parameters(told), p=text)
    assert (found.problem, found.arguments) == (None, {"p": expected})


MISFITS: dict[str, tuple[Any, str, str]] = {
    "missing": (parameter("p", required=True), "", "query `p`: is missing"),
    "no integer": (parameter("p", kind="integer"), "p=x", 'query `p`: is "x", expected integer'),
    "no choice": (parameter("p", kind={"enum": ["a", "b"]}), "p=c", 'is "c", expected one of ["a", "b"]'),
    "no date": (
        parameter("p", kind={"type": "string", "format": "date"}),
        "p=soon",
        'is "soon", which is not a date',
    ),
    "no time": (
        parameter("p", kind={"type": "string", "format": "date-time"}),
        "p=2026-01-01",
        "which is not a date-time",
    ),
    "no pattern": (
        parameter("p", kind={"type": "string", "pattern": "^[a-z]+$"}),
        "p=7",
        "does not match ^[a-z]+$",
    ),
    "too small": (
        parameter("p", kind={"type": "integer", "minimum": 1}),
        "p=0",
        "0 is less than the minimum of 1",
    ),
    "twice": (parameter("p"), "p=1&p=2", "query `p`: is given 2 times, and is not a list"),
    "in a list": (parameter("p", kind=LIST), "p=1&p=x", 'query `p[1]`: is "x", expected integer'),
    "no JSON": (
        {"name": "p", "in": "query", "content": {"application/json": {}}},
        "p={",
        "query `p`: Expecting",
    ),
    "an odd object": (parameter("p", kind=POINT, explode=False), "p=x", "names and values come in twos"),
    "infinite": (parameter("p", kind="number"), "p=1e999", 'is "1e999", expected number'),
    "optional": (
        parameter("p", kind={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        "p=x",
        'query `p`: is "x"',
    ),
    "unequal brackets": (parameter("p", kind=POINT, style="deepObject"), "p[=1", "unequal brackets"),
    "value and object": (
        parameter("p", kind=POINT, style="deepObject"),
        "p[a]=1&p[a][b]=1",
        "both a value and",
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_what_does_not_fit(what: str) -> None:
    """The problem names the place, what was found and what was expected."""
    told, query, expected = MISFITS[what]
    assert expected in str(read(with_parameters(told), query).problem)


def test_a_pattern_that_python_does_not_know() -> None:
    """Such a pattern is not checked."""
    told = parameter("p", kind={"type": "string", "pattern": r"^\p{L}+$"})
    assert read(with_parameters(told), "p=abc").problem is None


def test_headers_and_cookies_are_checked_and_are_no_arguments() -> None:
    """They are of the connection rather than of the tool: an agent's model does not write them."""
    told = with_parameters(
        parameter("X-Tenant", "header", "integer", required=True),
        parameter("seen", "cookie", "boolean"),
        parameter("Authorization", "header", required=True),
    )
    fits = read(told, headers={"x-tenant": "7", "cookie": "seen=true; a=b"})
    assert (fits.arguments, fits.problem) == ({}, None)
    assert read(told, headers={"cookie": "seen=7"}).problem == (
        'header `X-Tenant`: is missing; cookie `seen`: is "7", expected boolean'
    )


def test_names_that_clash() -> None:
    """The path's parameter keeps its name, then the query's; others get a prefix."""
    content = {"application/json": {"schema": {"type": "object"}}}
    told = with_content(content, parameter("id", "path"), parameter("id"), parameter("n"))
    found = read(told, "id=b&n=1", b'{"id": "c", "n": 2, "m": 3}', id="a")
    assert found.arguments == {"id": "a", "query_id": "b", "n": "1", "body_id": "c", "body_n": 2, "m": 3}


def test_unknown_parts_are_left_out() -> None:
    """Unknown query names and bodies are left out, and reported."""
    found = read(with_parameters(parameter("limit")), "lmit=3&api_key=s3cret", b"{}")
    assert (found.arguments, found.problem) == ({}, None)
    assert found.strangers == ("a body of 2 bytes", "`lmit` (did you mean `limit`?)")


def kind(told: str) -> dict[str, str]:
    return {"content-type": told}


ANY_JSON = {"application/json": {}}
ITEM = {"type": "object", "properties": {"n": {"type": "integer"}, "tags": {"type": "array"}}}
NESTED = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": ITEM}, "meta": {"type": "object"}},
}
BODIES: dict[str, tuple[Any, bytes, dict[str, str], Any]] = {
    "object": (ANY_JSON, b'{"a": 1}', {}, {"a": 1}),
    "list": (ANY_JSON, b"[1]", {}, {"body": [1]}),
    "null": (ANY_JSON, b"null", {}, {"body": None}),
    "UTF-16": (ANY_JSON, '{"a": "é"}'.encode("utf-16"), {"content-type": "application/json"}, {"a": "é"}),
    "latin-1": (
        ANY_JSON,
        '{"a": "é"}'.encode("latin-1"),
        {"content-type": "application/json; charset=latin-1"},
        {"a": "é"},
    ),
    "a kind of JSON": (
        {"application/merge-patch+json": {}},
        b'{"a": 1}',
        {"content-type": "application/json"},
        {"a": 1},
    ),
    "a range": ({"text/*": {}}, b"hello", {"content-type": "text/markdown"}, {"body": "hello"}),
    "bytes": (
        {"application/octet-stream": {}},
        b"\xff\x00",
        {"content-type": "application/octet-stream"},
        {"body": "<2 bytes>"},
    ),
    "form": (
        {FORM["content-type"]: {"schema": ITEM}},
        b"n=3&tags=a&tags=b&x=",
        FORM,
        {"n": 3, "tags": ["a", "b"], "x": ""},
    ),
    "form with paths": (
        {FORM["content-type"]: {"schema": NESTED}},
        b"items[0][n]=3&items[1][n]=4&items[1][tags][]=a&items[1][tags][]=b&meta[k]=v&other[x]=y",
        FORM,
        {"items": [{"n": 3}, {"n": 4, "tags": ["a", "b"]}], "meta": {"k": "v"}, "other[x]": "y"},
    ),
    "form that says nothing": ({FORM["content-type"]: {"schema": ITEM}}, b"n=3", {}, {"n": 3}),
    "parts": (
        {"multipart/form-data": {"schema": ITEM}},
        b"--cut\r\nContent-Disposition: form-data; name=n\r\n\r\n3\r\n"
        b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n'
        b"Content-Type: application/pdf\r\n\r\n\xff\xd8\x00\r\n--cut--\r\n",
        MULTIPART,
        {"n": 3, "file": "<a.pdf, application/pdf, 3 bytes>"},
    ),
}


@pytest.mark.parametrize("what", BODIES)
def test_bodies(what: str) -> None:
    """The keys of an object are arguments; any other body is the argument `body`."""
    content, body, headers, expected = BODIES[what]
    found = read(with_content(content), body=body, headers=headers)
    assert (found.problem, found.arguments) == (None, expected)


BAD_BODIES: dict[str, tuple[Any, bytes, dict[str, str], str, int | None]] = {
    "none": (ANY_JSON, b"", {}, "body: is missing", None),
    "broken": (ANY_JSON, b"{", {}, "body: is not valid JSON: Expecting property name", None),
    "no number": (ANY_JSON, b'{"a": NaN}', {}, "NaN is not JSON", None),
    "deep": (ANY_JSON, b"[" * 100_000, {}, "body: is nested too deeply", None),
    "no text": (ANY_JSON, b'{"a": "\xff"}', {}, "body: is not valid JSON: 'utf-8' codec", None),
    "no charset": (ANY_JSON, b"{}", kind("application/json; charset=x-y"), "unknown encoding", None),
    "another kind": (
        ANY_JSON,
        b"<a/>",
        kind("text/xml"),
        "body: is text/xml, expected application/json",
        415,
    ),
    "no form": ({"multipart/form-data": {}}, b"n=3", MULTIPART, "not one field was found", None),
    "no boundary": ({"multipart/form-data": {}}, b"n=3", kind("multipart/form-data"), "not one field", None),
    "names in a list": (
        {FORM["content-type"]: {"schema": NESTED}},
        b"items[a]=3",
        FORM,
        "is a list, and has names in it: a",
        None,
    ),
    "a field twice": (
        {FORM["content-type"]: {"schema": {"properties": {"n": {"type": "object"}}}}},
        b"n=3&n=4",
        FORM,
        "is given 2 times",
        None,
    ),
}


@pytest.mark.parametrize("what", BAD_BODIES)
def test_bodies_that_cannot_be_read(what: str) -> None:
    """The problem says why, with the right status for a wrong type."""
    content, body, headers, expected, status = BAD_BODIES[what]
    found = read(with_content(content), body=body, headers=headers)
    assert expected in str(found.problem)
    assert found.status == status


def test_a_large_body(tmp_path: Path) -> None:
    """The error about a value of 9 MB is short."""
    place_order = api_of(tmp_path, SHOP).operations[0]
    found = read(place_order, body=b'{"quantity": "%s"}' % (b"x" * 9_000_000))
    assert len(str(found.problem)) < 300


NAMES = st.sampled_from(["integer", "number", "boolean", "string"])
VALUES = {
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
}


@st.composite
def lists(draw: st.DrawFn) -> tuple[str, Sequence[Any]]:
    kind = draw(NAMES)
    return kind, draw(st.lists(VALUES[kind], min_size=1, max_size=4))


def as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@settings(deadline=None, max_examples=60)
@given(lists())
def test_what_a_client_writes_is_read(told: tuple[str, Sequence[Any]]) -> None:
    """A list that is written into a query is the same list when it is read, and so is each of its values."""
    kind, values = told
    listed = with_parameters(parameter("p", kind={"type": "array", "items": {"type": kind}}))
    query = urlencode({"p": [as_text(value) for value in values]}, doseq=True)
    assert read(listed, query).arguments == {"p": list(values)}
    single = read(with_parameters(parameter("p", kind=kind)), urlencode({"p": as_text(values[0])}))
    assert (single.arguments, single.problem) == ({"p": values[0]}, None)


STYLES = st.sampled_from(
    [
        parameter("p", kind=kind, **more)
        for kind in (LIST, POINT, "integer", {}, {"type": ["null", "boolean"]})
        for more in ({}, {"explode": False}, {"style": "deepObject"}, {"style": "pipeDelimited"})
    ]
)


@settings(deadline=None, max_examples=100)
@given(
    STYLES,
    st.lists(st.tuples(st.sampled_from(["p", "p[x]", "p[", "x", "p[x][y]", "é"]), st.text()), max_size=4),
)
def test_no_query_breaks_the_reading(told: Any, pairs: list[tuple[str, str]]) -> None:
    """Any query is read, or gives a problem."""
    asked = ToolHttpRequest(query=pairs, headers={}, body=b"", values={})
    found = read_request(with_parameters(told), asked, frozenset())
    assert found.problem is None or "`p" in found.problem


@settings(deadline=None, max_examples=100)
@given(
    st.binary(max_size=60),
    st.sampled_from([*FORM.values(), *MULTIPART.values(), "application/json", "text/x", "", ";"]),
)
def test_no_body_breaks_the_reading(body: bytes, kind: str) -> None:
    """Any bytes of any type are read, or give a problem."""
    content = {
        FORM["content-type"]: {},
        "multipart/form-data": {"schema": ITEM},
        "application/json": {},
        "text/x": {},
    }
    found = read(with_content(content, required=False), body=body, headers={"content-type": kind})
    assert found.problem is None or found.problem.startswith("body")
