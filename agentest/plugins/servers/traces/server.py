"""Receive OTLP over HTTP on loopback: spans in protobuf or JSON. Logs and metrics are ignored."""

from __future__ import annotations

import asyncio
import base64
import binascii
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from aiohttp import web

from agentest.agents.listener import listen
from agentest.config.agents.companion_servers import Traces
from agentest.plugins.servers.active_conversations import ServerInputs
from agentest.plugins.servers.traces.collector import Collector
from agentest.plugins.servers.traces.conventions import KINDS, STATUSES, Span, SpanEvent
from agentest.plugins.servers.traces.span_calls import SpanWriter
from agentest.support.errors import ConfigError, errors_as
from agentest.support.function_threads import in_thread
from agentest.support.http.bodies import BodyRefused, read_body
from agentest.support.json_text import parse_untrusted_json

MAX_BODY_BYTES = 64_000_000
_LARGE_BYTES = 20_000
_AT_ONCE = 100
_PROTOBUF = ("application/x-protobuf", "application/protobuf", "application/octet-stream")
_JSON = "application/json"


async def open_traces_server(settings: Traces, opening: ServerInputs) -> str:
    """Receive traces until the run ends. Returns the address for exporters. Raises ConfigError."""
    key = opening.key_location("traces")
    check_installed(key)
    collector = Collector(
        agent=opening.group.agents[0],
        one_at_a_time=lambda: opening.group.admission.exclusive,
        writer=SpanWriter(opening.keep_span, opening.redact),
        on_note=opening.on_note,
    )
    app, on_fault = trace_application(collector), opening.report_fault
    origin = await listen(app, settings, key, opening.stack, opening.on_note, on_fault=on_fault)
    opening.stack.callback(collector.close)
    opening.group.traces = collector
    return origin


def check_installed(key: str) -> None:
    """Raise ConfigError if the protobuf package is missing, because most exporters can send only protobuf."""
    with suppress(ImportError):
        if importlib.util.find_spec("opentelemetry.proto.collector.trace") is not None:
            return
    raise ConfigError(
        f"{key} needs the package opentelemetry-proto, which is not installed: "
        "pip install opentelemetry-proto"
    )


def trace_application(collector: Collector, max_body_bytes: int = MAX_BODY_BYTES) -> web.Application:
    """Create the receiver's web application."""
    app = web.Application()
    receiver = _Receiver(collector, max_body_bytes)
    app.router.add_post("/v1/traces", receiver.traces)
    app.router.add_post("/v1/logs", receiver.ignore)
    app.router.add_post("/v1/metrics", receiver.ignore)
    return app


class _Receiver:
    def __init__(self, collector: Collector, max_body_bytes: int) -> None:
        self._collector = collector
        self._max_body_bytes = max_body_bytes

    async def traces(self, request: web.Request) -> web.Response:
        status, problem = 400, ""
        try:
            if request.content_type == _JSON:
                read = spans_in_json
            elif request.content_type in _PROTOBUF:
                read = spans_in_protobuf
            else:
                status = 415
                kind = f"{request.content_type!r:.80}"
                raise InvalidSpans(f"the content type {kind} is neither protobuf nor JSON")
            body = await read_body(request, self._max_body_bytes)
            # A large body is parsed in a thread, so that conversations are not delayed.
            spans = await in_thread(read, body) if len(body) > _LARGE_BYTES else read(body)
            # For the same reason, spans are stored in small batches.
            for first in range(0, len(spans), _AT_ONCE):
                self._collector.add(spans[first : first + _AT_ONCE])
                await asyncio.sleep(0)
        except InvalidSpans as error:
            problem = str(error)[:300]
        except BodyRefused as error:
            status, problem = error.status, f"the body {error}"[:300]
        if problem:
            self._collector.refuse(problem)
            return _refusal(request, status, problem)
        return _accepted(request)

    async def ignore(self, request: web.Request) -> web.Response:
        """Accept data that is not needed, because the exporter would report a refusal in the agent's log."""
        try:
            await read_body(request, self._max_body_bytes)
        except BodyRefused as error:
            return _refusal(request, error.status, f"the body {error}"[:300])
        return _accepted(request)


_INVALID = 3


def _refusal(request: web.Request, status: int, problem: str) -> web.Response:
    if request.content_type == _JSON:
        return web.json_response({"code": _INVALID, "message": problem}, status=status)
    text = problem.encode(errors="replace")
    body = bytes((0x08, _INVALID, 0x12)) + _encoded_varint(len(text)) + text
    return web.Response(body=body, status=status, content_type=_PROTOBUF[0])


def _accepted(request: web.Request) -> web.Response:
    if request.content_type == _JSON:
        return web.json_response({})
    return web.Response(body=b"", content_type=_PROTOBUF[0])


def _encoded_varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + _encoded_varint(rest) if rest else bytes((low,))


_TRACE_BYTES, _SPAN_BYTES = 16, 8
_TIMES_END = 2**64
_MAX_FIELDS = 200_000  # maximum number of fields in a request outside of spans; exporters send some hundreds
_MAX_SPAN_BYTES = 8_000_000
_VARINT, _LENGTH, _FIXED = 0, 2, {1: 8, 5: 4}
"""Wire types of fields. The fixed-size types map to their size in bytes."""
_VARINT_BYTES = 10
_WRONG = "the body is not an ExportTraceServiceRequest"


class InvalidSpans(ValueError):
    """A body is not an OTLP request. The message says why."""


def spans_in_protobuf(body: bytes) -> list[Span]:
    """Return the spans of an ExportTraceServiceRequest. Raises InvalidSpans."""
    from google.protobuf.message import DecodeError

    with errors_as(InvalidSpans, f"{_WRONG} in protobuf: ", (DecodeError, RecursionError, ValueError)):
        return list(_request_spans(memoryview(body)))


def spans_in_json(body: bytes) -> list[Span]:
    """Return the spans of an ExportTraceServiceRequest in JSON. Raises InvalidSpans."""
    wrong = (ValueError, TypeError, RecursionError, AttributeError, KeyError, OverflowError)
    with errors_as(InvalidSpans, f"{_WRONG} in JSON: ", wrong):
        return list(_json_spans(_Keys(parse_untrusted_json(body))))


def _request_spans(body: memoryview) -> Iterator[Span]:
    """Parse each span separately, because a parsed message takes a hundred times its encoded size."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

    def read(kind: Any, part: memoryview) -> _Keys:
        if len(part) > _MAX_SPAN_BYTES:
            raise ValueError(f"a span, or what it is of, has more than {_MAX_SPAN_BYTES / 1e6:g} MB")
        return _Keys(MessageToDict(kind.FromString(bytes(part))))

    left = iter(range(_MAX_FIELDS))
    for of_resource in _parts(body, 1, left):
        about: dict[str, Any] = {}
        for part in _parts(of_resource, 1, left):
            about |= _json_attributes(read(Resource, part))
        service = str(about.get("service.name", ""))
        for of_scope in _parts(of_resource, 2, left):
            scopes = [read(InstrumentationScope, part).text("name") for part in _parts(of_scope, 1, left)]
            for span in _parts(of_scope, 2, left):
                yield _json_span(read(Message, span), scopes[-1] if scopes else "", service)


def _parts(message: memoryview, wanted: int, left: Iterator[int]) -> Iterator[memoryview]:
    """Yield the submessages with this field number, and count each field in `left`. Raises ValueError."""
    at = 0
    while at < len(message):
        if next(left, None) is None:
            raise ValueError("it has too many parts")
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        if kind == _LENGTH:
            size, at = _varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"a field has the wire type {kind}")
        if at + size > len(message):
            raise ValueError("it was cut")
        if kind == _LENGTH and key >> 3 == wanted:
            yield message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the position after it. Raises ValueError."""
    value = 0
    for position, byte in enumerate(message[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, at + position + 1
    raise ValueError("a number does not end")


@cache
def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)


class _Keys:
    def __init__(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise TypeError(f"an object was expected, not {value!r:.80}")
        self._value = value

    def get(self, key: str) -> Any:
        return self._value.get(_camel(key), self._value.get(key))

    def text(self, key: str) -> str:
        value = self.get(key)
        return "" if value is None else str(value)

    def number(self, key: str) -> int:
        return int(self.get(key) or 0)  # 64-bit numbers are written as text

    def time(self, key: str) -> int:
        """Return nanoseconds since 1970, limited to protobuf's 64 bits. Raises ValueError."""
        nanoseconds = self.number(key)
        if not 0 <= nanoseconds < _TIMES_END:
            raise ValueError(f"{key} is {str(nanoseconds)[:40]}, which is not a time of 64 bits")
        return nanoseconds

    def part(self, key: str) -> _Keys:
        return _Keys(self.get(key) or {})

    def parts(self, key: str) -> Iterator[_Keys]:
        values = self.get(key) or []
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise TypeError(f"{key} is {values!r:.80}, not a list")
        return map(_Keys, values)


def _json_spans(request: _Keys) -> Iterator[Span]:
    for resource in request.parts("resource_spans"):
        service = str(_json_attributes(resource.part("resource")).get("service.name", ""))
        for scope in resource.parts("scope_spans"):
            for span in scope.parts("spans"):
                yield _json_span(span, scope.part("scope").text("name"), service)


def _json_span(span: _Keys, scope: str, service: str) -> Span:
    parent, status = span.text("parent_span_id"), span.part("status")
    return Span(
        trace_id=_id(span.text("trace_id"), _TRACE_BYTES),
        span_id=_id(span.text("span_id"), _SPAN_BYTES),
        parent_id=_id(parent, _SPAN_BYTES) if parent else None,
        name=span.text("name"),
        kind=_word(KINDS, span.get("kind")),
        start_ns=span.time("start_time_unix_nano"),
        end_ns=span.time("end_time_unix_nano"),
        attributes=_json_attributes(span),
        status=_word(STATUSES, status.get("code")),
        status_message=status.text("message"),
        events=tuple(
            SpanEvent(
                name=each.text("name"), at_ns=each.time("time_unix_nano"), attributes=_json_attributes(each)
            )
            for each in span.parts("events")
        ),
        scope=scope,
        service=service,
    )


def _json_attributes(holder: _Keys, key: str = "attributes") -> dict[str, Any]:
    return {pair.text("key"): _json_value(pair.part("value")) for pair in holder.parts(key)}


def _json_value(value: _Keys) -> Any:
    if value.get("array_value") is not None:
        return [_json_value(each) for each in value.part("array_value").parts("values")]
    if value.get("kvlist_value") is not None:
        return _json_attributes(value.part("kvlist_value"), "values")
    if value.get("int_value") is not None:
        return value.number("int_value")
    plain = ("string_value", "bool_value", "double_value", "bytes_value")
    return next((value.get(key) for key in plain if value.get(key) is not None), None)


def _id(text: str, length: int) -> str:
    """Return an id in hex. JSON from protobuf's own libraries has it in base64. Raises ValueError."""
    for unpack in (bytes.fromhex, base64.b64decode):
        try:
            raw = unpack(text)
        except (ValueError, binascii.Error):
            continue
        if len(raw) == length and any(raw):
            return raw.hex()
    raise ValueError(f"{text!r:.60} is not an id of {length} bytes")


def _word(words: tuple[str, ...], value: Any) -> str:
    if isinstance(value, str) and not value.isdigit():
        last = value.rpartition("_")[2].lower()
        return last if last in words else words[0]
    number = int(value or 0)
    return words[number] if 0 <= number < len(words) else words[0]
