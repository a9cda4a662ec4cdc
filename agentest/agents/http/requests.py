"""Build requests from templates: URL, parameters, headers and body, signed as their channel signs them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from time import time
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape

from agentest.agents.http_sender import OutgoingRequest
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.http_requests import HttpRequestSettings, TurnRequest, names_in
from agentest.config.agents.over_http import Sign
from agentest.config.fields import check_url
from agentest.support.errors import AgentError, CannotSend, errors_as
from agentest.support.json_text import json_or
from agentest.support.templates import Template, Values, as_text, without

_TYPE = "content-type"
_ACCEPT = "accept"
_ACCEPTED = (
    "application/json, text/event-stream;q=0.9, application/x-ndjson;q=0.9, text/plain;q=0.8, */*;q=0.5"
)
_STREAMS = "text/event-stream, application/x-ndjson, application/json;q=0.9, */*;q=0.5"
_NONE_ABSENT: frozenset[str] = frozenset()
Signer = Callable[[str, bytes, str], Mapping[str, str]]
"""Returns the headers for a URL, a body and its content type."""


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
        base: str | None = None,
        sign: Sign | None = None,
    ) -> None:
        """Create a template.

        Args:
            optional: headers that are omitted if one of their placeholders has no value.
            base: the agent's URL if `endpoint` is a placeholder for a whole URL. Another server does not
                receive the `optional` headers.
            sign: the secret with which requests are signed.
        """
        self._signer: Signer | None = None
        if sign and not sign.aws:
            self._signer = signer(sign)
        self.method = method
        self._base = base
        address, _, query = endpoint.partition("?")
        self._address = Template(address)
        parts = [part.partition("=") for part in query.split("&") if part]
        self._query = [(name + equals, value) for name, equals, value in parts]
        self._params = params
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._optional = {n.lower(): v for n, v in (optional or {}).items() if n.lower() not in self._headers}
        self._body = BodyTemplate(body, self._headers.get(_TYPE) or self._optional.get(_TYPE))

    def filled(self, values: Values, absent: Collection[str] = _NONE_ABSENT) -> OutgoingRequest:
        """Return the request. Keys that hold only a name in `absent` are omitted. Raises CannotSend."""
        content, content_type = self._body.encoded(values, absent) or (None, None)
        url = self._url(values, absent)
        headers = self._filled_headers(values, absent, url)
        if content_type is None:
            headers.pop(_TYPE, None)
        else:
            headers[_TYPE] = content_type
        if self._signer:
            headers |= self._signer(url, content or b"", content_type or "")
        return OutgoingRequest(url=url, method=self.method, headers=headers, content=content)

    def _filled_headers(self, values: Values, absent: Collection[str], url: str) -> dict[str, str]:

        def has_value(name: str) -> bool:
            try:
                values[name]
            except (KeyError, CannotSend):
                return False
            return True

        kept = {n: v for n, v in self._headers.items() if not names_in(v) & set(absent)}
        is_own = self._base is None or origin(url) == origin(self._base)
        for name, value in self._optional.items() if is_own else ():
            names = names_in(value)
            if not names & set(absent) and all(map(has_value, names)):
                kept[name] = value
        return {name: as_text(value) for name, value in Template(kept).filled(values).items()}

    def _url(self, values: Values, absent: Collection[str]) -> str:
        if self._base is None:
            address = self._address.filled(_Converted(values, _path_segment))
        else:
            named = as_text(self._address.filled(values))
            with errors_as(AgentError, f"the agent names the address {named!r:.200}, which "):
                address = check_url(urljoin(self._base, named))
        query = Template(without(self._query, absent)).filled(_Converted(values, _quoted))
        parts = ["".join(pair) for pair in query]
        params = Template(without(self._params, absent)).filled(values)
        parts += [urlencode(list(fields(params)), errors="replace", quote_via=quote)] if params else []
        joined = "&".join(part for part in parts if part)
        return f"{address}{'&' if '?' in address else '?'}{joined}" if joined else str(address)


class _Converted:
    """Values as text, converted for where they stand: `convert` receives the name and the text."""

    def __init__(self, values: Values, convert: Callable[[str, str], str]) -> None:
        self._values = values
        self._convert = convert

    def __getitem__(self, name: str) -> str:
        return self._convert(name, as_text(self._values[name]))


def _quoted(_: str, text: str) -> str:
    return quote(text, "", errors="replace")


def _path_segment(name: str, text: str) -> str:
    value = _quoted(name, text)
    if value in ("", ".", ".."):
        raise CannotSend(
            f"{{{{{name}}}}} is {value!r} and cannot be a part of a path: there it stands for another "
            "address; send it in `params` or `body`"
        )
    return value


def _in_xml(_: str, text: str) -> str:
    return escape(text, {'"': "&quot;", "'": "&apos;"})


def turn_request(config: HttpTemplateAgent) -> RequestTemplate:
    headers = {
        _ACCEPT: _accepted(config),
        **{name.lower(): value for name, value in config.sent_headers.items()},
    }
    return RequestTemplate(
        endpoint=config.endpoint,
        method=config.method,
        params=config.params,
        headers=headers,
        body=config.body,
        sign=config.sign,
    )


def auxiliary_request(config: HttpTemplateAgent, request: HttpRequestSettings) -> RequestTemplate:
    """Return another request of the agent.

    If it goes to the same server, it gets those headers of the agent that do not describe the body. A request
    to the agent's own endpoint has a body of the same kind.
    """
    whole = request.whole_endpoint
    endpoint = request.endpoint if whole else urljoin(config.endpoint, request.endpoint)
    is_same = whole is not None or origin(endpoint) == origin(config.endpoint)
    is_turn = isinstance(request, TurnRequest)
    left_out = () if is_turn and not request.endpoint else (_TYPE, _ACCEPT)
    return RequestTemplate(
        endpoint=endpoint,
        method=request.method or config.method,
        params=request.params,
        headers={
            _ACCEPT: _accepted(config) if is_turn else _ACCEPTED,
            **{n.lower(): v for n, v in request.headers.items()},
        },
        body=request.body,
        optional={n: v for n, v in config.sent_headers.items() if is_same and n.lower() not in left_out},
        base=config.endpoint if whole else None,
        sign=config.sign if is_same and not whole else None,
    )


def _accepted(config: HttpTemplateAgent) -> str:
    return _STREAMS if config.delta or config.streaming else _ACCEPTED


def origin(url: str) -> tuple[str, str]:
    """Return the scheme and host of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


class BodyTemplate:
    """The body of a request, with placeholders."""

    def __init__(self, body: Any, content_type: str | None) -> None:
        """Create a template of a text or a JSON value. `content_type` says how to encode it.

        By default, a text is plain text, and any other value is JSON.
        """
        self._type = content_type
        kind = (content_type or "").lower()
        self._form = "multipart" if "multipart" in kind else "form" if "form" in kind else ""
        self._is_json = not isinstance(body, str) or "json" in kind
        self._is_xml = "xml" in kind
        self._tree = _tree_of(body, self._form, kind)

    def encoded(self, values: Values, absent: Collection[str]) -> tuple[bytes, str] | None:
        """Return the body, without keys that hold only a name in `absent`, and its content type.

        None if there is no body.
        """
        if self._tree is None:
            return None
        tree = without(self._tree, absent)
        is_xml = self._is_xml and isinstance(tree, str)
        value = Template(tree).filled(_Converted(values, _in_xml) if is_xml else values)
        if self._form == "multipart":
            return _multipart(value)
        if self._form:
            content = urlencode(list(fields(value)), errors="replace", quote_via=quote)
            return content.encode(), self._type or ""
        if isinstance(value, str) and not self._is_json:
            return value.encode(errors="replace"), self._type or "text/plain; charset=utf-8"
        return json.dumps(value).encode(), self._type or "application/json"


def fields(values: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of a form or query: one per list item, none for null."""
    for name, value in values.items() if isinstance(values, Mapping) else values:
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
    read = json_or(body, body)
    return read if isinstance(read, dict | list) or kind else body


def _multipart(values: Any) -> tuple[bytes, str]:
    boundary = uuid4().hex
    content = ""
    for name, text in fields(values):
        escaped = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        content += f'--{boundary}\r\nContent-Disposition: form-data; name="{escaped}"\r\n\r\n{text}\r\n'
    body = f"{content}--{boundary}--\r\n".encode(errors="replace")
    return body, f"multipart/form-data; boundary={boundary}"


def signer(sign: Sign) -> Signer:
    """Return what signs requests."""
    if sign.slack:
        return lambda _, body, __: slack_signature(sign.slack or "", body, str(int(time())))
    if sign.twilio:
        return lambda url, body, kind: twilio_signature(sign.twilio or "", url, body, kind)
    return lambda _, body, __: whatsapp_signature(sign.whatsapp or "", body)


def _hex(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


def whatsapp_signature(secret: str, body: bytes) -> Mapping[str, str]:
    """Return the header with Meta's signature of a body."""
    return {"x-hub-signature-256": f"sha256={_hex(secret, body)}"}


def slack_signature(secret: str, body: bytes, timestamp: str) -> Mapping[str, str]:
    """Return the headers with Slack's signature of a body and its time."""
    signature = _hex(secret, b"v0:%b:%b" % (timestamp.encode(), body))
    return {"x-slack-request-timestamp": timestamp, "x-slack-signature": f"v0={signature}"}


def twilio_signature(secret: str, url: str, body: bytes, content_type: str) -> Mapping[str, str]:
    """Return the header with Twilio's signature of a URL and, of a form, its fields."""
    fields = (
        parse_qsl(body.decode(errors="replace"), keep_blank_values=True) if "form" in content_type else []
    )
    signed = url + "".join(name + value for name, value in sorted(fields))
    digest = hmac.new(secret.encode(), signed.encode(errors="replace"), hashlib.sha1).digest()
    return {"x-twilio-signature": base64.b64encode(digest).decode()}
