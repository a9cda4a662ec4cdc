"""Build requests from templates: URL, parameters, headers and body."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape

from agentest.agents.http_sender import OutgoingRequest
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.http_requests import HttpRequestSettings, names_in
from agentest.support.errors import CannotSend
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template, Values, as_text, without

_TYPE = "content-type"
_ACCEPT = "accept"
_ACCEPTED = (
    "application/json, text/event-stream;q=0.9, application/x-ndjson;q=0.9, text/plain;q=0.8, */*;q=0.5"
)
_STREAMS = "text/event-stream, application/x-ndjson, application/json;q=0.9, */*;q=0.5"
_NONE_ABSENT: frozenset[str] = frozenset()


class RequestTemplate:
    """A request with placeholders in its URL, parameters, headers and body."""

    def __init__(
        self,
        *,
        endpoint: str,
        method: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str],
        body: Any,
        optional: Mapping[str, str] | None = None,
    ) -> None:
        """Create a template. `optional` headers are omitted if one of their placeholders has no value."""
        self.method = method
        address, _, query = endpoint.partition("?")
        self._address = Template(address)
        parts = [part.partition("=") for part in query.split("&") if part]
        self._query = [(name + equals, value) for name, equals, value in parts]
        self._params = params
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._optional = {n.lower(): v for n, v in (optional or {}).items() if n.lower() not in self._headers}
        self._body = BodyTemplate(body, self._headers.get(_TYPE))

    def filled(self, values: Values, absent: Collection[str] = _NONE_ABSENT) -> OutgoingRequest:
        """Return the request. Keys that hold only a name in `absent` are omitted. Raises CannotSend."""
        body = self._body.encoded(values, absent)
        headers = self._filled_headers(values, absent)
        if body is None:
            headers.pop(_TYPE, None)
        else:
            headers[_TYPE] = body.content_type
        return OutgoingRequest(
            url=self._url(values, absent),
            method=self.method,
            headers=headers,
            content=None if body is None else body.content,
        )

    def _filled_headers(self, values: Values, absent: Collection[str]) -> dict[str, str]:
        """Return the headers, without those that lack a part of their value."""
        kept = {n: v for n, v in self._headers.items() if not names_in(v) & set(absent)}
        for name, value in self._optional.items():
            if all(_has_value(values, placeholder) for placeholder in names_in(value) - set(absent)):
                kept |= {} if names_in(value) & set(absent) else {name: value}
        return {name: as_text(value) for name, value in Template(kept).filled(values).items()}

    def _url(self, values: Values, absent: Collection[str]) -> str:
        address = self._address.filled(_Segments(values))
        query = Template(without(self._query, absent)).filled(_Quoted(values))
        parts = ["".join(pair) for pair in query]
        params = Template(without(self._params, absent)).filled(values)
        parts += [urlencode(list(fields(params)), errors="replace", quote_via=quote)] if params else []
        joined = "&".join(part for part in parts if part)
        return f"{address}?{joined}" if joined else str(address)


def _has_value(values: Values, name: str) -> bool:
    try:
        values[name]
    except (KeyError, CannotSend):
        return False
    return True


class _Quoted:
    """Values escaped for a URL query."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def __getitem__(self, name: str) -> str:
        return quote(as_text(self._values[name]), "", errors="replace")


class _Segments(_Quoted):
    """Values escaped for a URL path. Rejects values that would change the path."""

    def __getitem__(self, name: str) -> str:
        value = super().__getitem__(name)
        if value in ("", ".", ".."):
            raise CannotSend(
                f"{{{{{name}}}}} is {value!r} and cannot be a part of a path: there it stands for another "
                "address; send it in `params` or `body`"
            )
        return value


def turn_request(config: HttpTemplateAgent) -> RequestTemplate:
    """Return the request of each turn."""
    accepted = _STREAMS if config.delta or config.streaming else _ACCEPTED
    headers = {_ACCEPT: accepted, **{name.lower(): value for name, value in config.headers.items()}}
    return RequestTemplate(
        endpoint=config.endpoint,
        method=config.method,
        params=config.params,
        headers=headers,
        body=config.body,
    )


def auxiliary_request(config: HttpTemplateAgent, request: HttpRequestSettings) -> RequestTemplate:
    """Return another request of the agent. It gets the agent's headers if it goes to the same server."""
    endpoint = urljoin(config.endpoint, request.endpoint)
    return RequestTemplate(
        endpoint=endpoint,
        method=request.method,
        params=request.params,
        headers={_ACCEPT: _ACCEPTED, **{n.lower(): v for n, v in request.headers.items()}},
        body=request.body,
        optional=_shared_headers(config) if origin(endpoint) == origin(config.endpoint) else {},
    )


def _shared_headers(config: HttpTemplateAgent) -> dict[str, str]:
    """Return the agent's headers that do not describe the body."""
    return {name: value for name, value in config.headers.items() if name.lower() not in (_TYPE, _ACCEPT)}


def origin(url: str) -> tuple[str, str]:
    """Return the scheme and host of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


JSON_TYPE = "application/json"
_TEXT_TYPE = "text/plain; charset=utf-8"
_MULTIPART = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """An encoded body and its content type."""

    content: bytes
    content_type: str


class BodyTemplate:
    """The body of a request, with placeholders."""

    def __init__(self, body: Any, content_type: str | None) -> None:
        """Create a body template.

        Args:
            body: a text or a JSON value, with placeholders.
            content_type: how to encode the body. Default: JSON, or plain text for a text.
        """
        self._type = content_type
        kind = (content_type or "").lower()
        self._form = "multipart" if "multipart" in kind else "form" if "form" in kind else ""
        self._is_json = not isinstance(body, str) or "json" in kind
        self._is_xml = "xml" in kind
        self._tree = _tree_of(body, self._form, kind)

    def encoded(self, values: Values, absent: Collection[str]) -> EncodedBody | None:
        """Encode the body without keys that hold only a name in `absent`. None if there is no body."""
        if self._tree is None:
            return None
        tree = without(self._tree, absent)
        if self._is_xml and isinstance(tree, str):
            return self._encode(Template(tree).filled(_Escaped(values)))
        return self._encode(Template(tree).filled(values))

    def _encode(self, value: Any) -> EncodedBody:
        if self._form == "multipart":
            return _multipart(value)
        if self._form:
            content = urlencode(list(fields(value)), errors="replace", quote_via=quote)
            return EncodedBody(content.encode(), self._type or "")
        if isinstance(value, str) and not self._is_json:
            return EncodedBody(value.encode(errors="replace"), self._type or _TEXT_TYPE)
        return EncodedBody(json.dumps(value).encode(), self._type or JSON_TYPE)


def fields(values: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of a form or query: one per list item, none for null."""
    pairs = values.items() if isinstance(values, Mapping) else values
    for name, value in pairs:
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                yield str(name), as_text(item)


def _tree_of(body: Any, form: str, kind: str) -> Any:
    """Return the body as a JSON value. JSON text is parsed, so that values are never pasted into it."""
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
    """Values escaped for XML."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def __getitem__(self, name: str) -> str:
        return escape(as_text(self._values[name]), {'"': "&quot;", "'": "&apos;"})


def _multipart(values: Any) -> EncodedBody:
    boundary = uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{_field_name(name)}"\r\n\r\n{text}\r\n'
        for name, text in fields(values)
    ]
    content = "".join([*parts, f"--{boundary}--\r\n"]).encode(errors="replace")
    return EncodedBody(content, f"{_MULTIPART}; boundary={boundary}")


def _field_name(name: str) -> str:
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
