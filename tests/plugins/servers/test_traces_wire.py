"""OTLP on the wire: protobuf and JSON give the same spans, and what is neither is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agentest.plugins.servers.traces.conventions import Span, SpanEvent
from agentest.plugins.servers.traces.server import InvalidSpans, spans_in_json, spans_in_protobuf

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
EXPECTED = Span(
    trace_id=TRACE,
    span_id=SPAN,
    parent_id=PARENT,
    name="execute_tool stock",
    kind="client",
    start_ns=1_700_000_000_000_000_000,
    end_ns=1_700_000_000_000_000_009,
    attributes={"text": "x", "number": 7, "share": 0.5, "yes": True, "list": ["a", 1], "object": {"k": "v"}},
    status="error",
    status_message="sold out",
    events=(SpanEvent(name="exception", at_ns=5, attributes={"exception.message": "sold out"}),),
    scope="pydantic-ai",
    service="shop",
)


def protobuf() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = resource.scope_spans.add()
    scope.scope.name = "pydantic-ai"
    span = scope.spans.add(
        trace_id=bytes.fromhex(TRACE),
        span_id=bytes.fromhex(SPAN),
        parent_span_id=bytes.fromhex(PARENT),
        name="execute_tool stock",
        kind=3,
        start_time_unix_nano=EXPECTED.start_ns,
        end_time_unix_nano=EXPECTED.end_ns,
    )
    span.status.code = 2
    span.status.message = "sold out"
    values = {key: span.attributes.add(key=key).value for key in EXPECTED.attributes}
    values["text"].string_value, values["number"].int_value = "x", 7
    values["share"].double_value, values["yes"].bool_value = 0.5, True
    values["list"].array_value.values.add().string_value = "a"
    values["list"].array_value.values.add().int_value = 1
    values["object"].kvlist_value.values.add(key="k").value.string_value = "v"
    event = span.events.add(name="exception", time_unix_nano=5)
    event.attributes.add(key="exception.message").value.string_value = "sold out"
    return request


def written(*, camel: bool) -> bytes:
    """The same in JSON as the specification has it (ids in hex, 64 bits as texts), in either spelling."""

    def key(name: str) -> str:
        head, *rest = name.split("_")
        return head + "".join(map(str.capitalize, rest)) if camel else name

    def pair(name: str, kind: str, value: Any) -> dict[str, Any]:
        return {"key": name, "value": {key(kind): value}}

    span = {
        key("trace_id"): TRACE.upper(),
        key("span_id"): SPAN,
        key("parent_span_id"): PARENT,
        "name": EXPECTED.name,
        "kind": 3 if camel else "SPAN_KIND_CLIENT",
        key("start_time_unix_nano"): str(EXPECTED.start_ns),
        key("end_time_unix_nano"): EXPECTED.end_ns,
        "status": {"code": 2 if camel else "STATUS_CODE_ERROR", "message": "sold out"},
        "attributes": [
            pair("text", "string_value", "x"),
            pair("number", "int_value", "7"),
            pair("share", "double_value", 0.5),
            pair("yes", "bool_value", True),
            pair("list", "array_value", {"values": [{key("string_value"): "a"}, {key("int_value"): 1}]}),
            pair("object", "kvlist_value", {"values": [pair("k", "string_value", "v")]}),
        ],
        "events": [
            {
                "name": "exception",
                key("time_unix_nano"): "5",
                "attributes": [pair("exception.message", "string_value", "sold out")],
            }
        ],
    }
    resource = {"attributes": [pair("service.name", "string_value", "shop")]}
    scope = {"scope": {"name": "pydantic-ai"}, "spans": [span]}
    return json.dumps({key("resource_spans"): [{"resource": resource, key("scope_spans"): [scope]}]}).encode()


def test_all_forms_give_the_same_span() -> None:
    """Protobuf and JSON, in camel case or snake case, are read alike."""
    assert spans_in_protobuf(protobuf().SerializeToString()) == [EXPECTED]
    assert spans_in_json(written(camel=True)) == spans_in_json(written(camel=False)) == [EXPECTED]


def test_ids_in_base64() -> None:
    """The JSON that protobuf's libraries write has ids in base64, and empty ones for a root."""
    span = {"traceId": "CvdlGRbNQ92ESOshHIAxnA==", "spanId": "t61rcWkgMzE=", "parentSpanId": ""}
    [read] = spans_in_json(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode())
    assert (read.trace_id, read.span_id, read.parent_id) == (TRACE, SPAN, None)


def one(**span: Any) -> bytes:
    known = {"traceId": TRACE, "spanId": SPAN, **span}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [known]}]}]}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"resourceSpans": "x"}',
        b'{"resourceSpans": [1]}',
        one(traceId="xyz"),
        one(spanId="0" * 16),
        one(startTimeUnixNano="soon"),
        one(attributes={"a": 1}),
        b'{"resourceSpans":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["empty", "cut", "list", "text", "no-list", "number", "id", "zero-id", "time", "attributes", "deep"],
)
def test_invalid_requests_are_refused(body: bytes) -> None:
    """The message says what the body is not."""
    with pytest.raises(InvalidSpans, match="not an ExportTraceServiceRequest in JSON"):
        spans_in_json(body)


def test_what_is_no_request_in_protobuf_is_refused() -> None:
    """Garbage and a span without an id are refused; nothing at all is an empty request."""
    request = protobuf()
    request.resource_spans[0].scope_spans[0].spans[0].span_id = b"short"
    for body in (b"garbage \xff\xff", request.SerializeToString()):
        with pytest.raises(InvalidSpans, match="not an ExportTraceServiceRequest in protobuf"):
            spans_in_protobuf(body)
    assert spans_in_protobuf(b"") == []
