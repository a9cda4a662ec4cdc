"""Request templates: user text arrives unchanged and cannot become anything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from agentest.agents.http.requests import BodyTemplate, RequestTemplate
from agentest.agents.http_sender import OutgoingRequest

said = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FORM = "application/x-www-form-urlencoded"


def encoded(body: Any, content_type: str | None, values: Mapping[str, Any]) -> bytes:
    found = BodyTemplate(body, content_type).encoded(values, ())
    assert found is not None
    return found[0]


def request(endpoint: str, values: Mapping[str, Any], **parts: Any) -> OutgoingRequest:
    template = {"method": "GET", "params": {}, "headers": {}, "body": None, **parts}
    return RequestTemplate(endpoint=endpoint, **template).filled(values)


@given(said)
def test_messages_arrive_unchanged(text: str) -> None:
    """Quotes, breaks and braces stay text in JSON, embedded JSON, forms and URLs."""
    values = {"m": text, "n": 5}
    tree = {"a": ["{{m}}", "x {{m}}"], "n": "{{n}}"}
    assert json.loads(encoded(tree, None, values)) == {"a": [text, f"x {text}"], "n": 5}
    assert json.loads(encoded('{"a": "{{m}}", "n": "{{n}}"}', None, values)) == {"a": text, "n": 5}
    assert json.loads(encoded("{{m}}", "application/json", values)) == text
    assert encoded("{{m}}", None, values).decode() == text
    for body in ({"q": "{{m}}", "n": "{{n}}"}, "q={{m}}&n={{n}}"):
        assert parse_qsl(encoded(body, FORM, values).decode(), True) == [("q", text), ("n", "5")]
    url = request("http://h/a?q={{m}}&n=1", values, params={"p": "{{m}}", "l": ["1", "{{n}}"]}).url
    assert parse_qsl(urlsplit(url).query, True, errors="strict") == [
        ("q", text),
        ("n", "1"),
        ("p", text),
        ("l", "1"),
        ("l", "5"),
    ]


@given(said.filter(lambda text: text not in ("", ".", "..")))
def test_messages_in_a_path(text: str) -> None:
    """A value stays one segment of a path."""
    path = urlsplit(request("http://h/a/{{m}}/b", {"m": text}).url).path
    assert [unquote(part) for part in path.split("/")] == ["", "a", text, "b"]


@given(said.filter(lambda text: "\r" not in text and "\n" not in text))
def test_messages_in_a_multipart_form(text: str) -> None:
    """A multipart form can be parsed back."""
    found = BodyTemplate({"q": "{{m}}"}, "multipart/form-data").encoded({"m": text}, ())
    assert found is not None
    head = f"content-type: {found[1]}\r\n\r\n".encode()
    (part,) = BytesParser(policy=HTTP).parsebytes(head + found[0]).iter_parts()
    assert part.get_payload(decode=True).decode() == text


def test_placeholders_without_a_value() -> None:
    """Keys, parameters and headers with only such a placeholder are left out."""
    body = {"m": "{{m}}", "s": "{{s}}", "deep": {"s": "{{ s }}", "x": 1}, "l": ["{{s}}", "{{m}}"]}
    template = RequestTemplate(
        endpoint="http://h/a?s={{s}}&m={{m}}",
        method="POST",
        params={"s": "{{s}}", "x": "1"},
        headers={"X-S": "Session {{s}}", "X-M": "{{m}}"},
        body=body,
    )
    sent = template.filled({"m": "M"}, {"s"})
    assert sent.content is not None
    assert json.loads(sent.content) == {"m": "M", "deep": {"x": 1}, "l": ["M"]}
    assert sent.url == "http://h/a?m=M&x=1"
    assert sent.headers == {"x-m": "M", "content-type": "application/json"}
    later = template.filled({"m": "M", "s": "S"})
    assert later.url == "http://h/a?s=S&m=M&s=S&x=1"
    assert later.headers["x-s"] == "Session S"


def test_values_in_markup() -> None:
    """A value stays text in XML, too."""
    assert encoded("<q>{{m}}</q>", "text/xml", {"m": "<a>&"}) == b"<q>&lt;a&gt;&amp;</q>"
