"""Receive OTLP over HTTP on loopback. Traces are read; logs and metrics are accepted and ignored."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Sequence

from aiohttp import web

from agentest.config.agents.mock_servers import Traces
from agentest.mock_servers.listener import ServerInputs, listen
from agentest.support.errors import ConfigError
from agentest.support.function_threads import in_thread
from agentest.support.http.bodies import BodyRefused, read_body, skip_body
from agentest.tracing.collector import Collector
from agentest.tracing.conventions import Span
from agentest.tracing.span_calls import SpanWriter
from agentest.tracing.wire import InvalidSpans, spans_in_json, spans_in_protobuf

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
        opening.group.agents[0],
        one_at_a_time=lambda: opening.group.admission.exclusive,
        writer=SpanWriter(opening.keep_span, opening.redact),
        on_note=opening.on_note,
    )
    origin = await listen(trace_application(collector), settings, key, opening.stack, opening.on_note)
    opening.stack.callback(collector.close)
    opening.group.traces = collector
    return origin


def check_installed(key: str) -> None:
    """Raise ConfigError if the protobuf package is missing, because most exporters can send only protobuf."""
    if importlib.util.find_spec("opentelemetry") is None or not _has_proto():
        raise ConfigError(
            f"{key} needs the package opentelemetry-proto, which is not installed: "
            "pip install 'agentest-sim[traces]'"
        )


def _has_proto() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.proto.collector.trace") is not None
    except ImportError:
        return False


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
        """Store spans. Unreadable requests get a status that stops exporters from sending them again."""
        is_json = request.content_type == _JSON
        if not is_json and request.content_type not in _PROTOBUF:
            problem = f"the content type {request.content_type!r:.80} is neither protobuf nor JSON"
            return self._refused(415, problem, is_json=is_json)
        try:
            body = await read_body(request, self._max_body_bytes)
            spans = await _spans_in(body, spans_in_json if is_json else spans_in_protobuf)
            await self._add(spans)
        except InvalidSpans as error:
            return self._refused(400, str(error)[:300], is_json=is_json)
        except BodyRefused as error:
            return self._refused(error.status, f"the body {error}"[:300], is_json=is_json)
        return _empty_response(is_json=is_json)

    async def _add(self, spans: Sequence[Span]) -> None:
        """Store spans in small batches, so that one conversation does not delay the others."""
        for first in range(0, len(spans), _AT_ONCE):
            self._collector.add(spans[first : first + _AT_ONCE])
            await asyncio.sleep(0)

    async def ignore(self, request: web.Request) -> web.Response:
        """Accept data that is not needed, because the exporter would report a refusal in the agent's log."""
        is_json = request.content_type == _JSON
        try:
            await skip_body(request, self._max_body_bytes)
        except BodyRefused as error:
            return _refusal(error.status, f"the body {error}"[:300], is_json=is_json)
        return _empty_response(is_json=is_json)

    def _refused(self, status: int, problem: str, *, is_json: bool) -> web.Response:
        self._collector.refuse(problem)
        return _refusal(status, problem, is_json=is_json)


_INVALID = 3


async def _spans_in(body: bytes, read: Callable[[bytes], list[Span]]) -> list[Span]:
    """Parse a body. A large one is parsed in a thread, so that conversations are not delayed."""
    if len(body) <= _LARGE_BYTES:
        return read(body)
    spans: list[Span] = await in_thread(read, body)
    return spans


def _refusal(status: int, problem: str, *, is_json: bool) -> web.Response:
    if is_json:
        return web.json_response({"code": _INVALID, "message": problem}, status=status)
    return web.Response(body=_status(problem), status=status, content_type=_PROTOBUF[0])


def _empty_response(*, is_json: bool) -> web.Response:
    """Return an empty Export…ServiceResponse."""
    if is_json:
        return web.json_response({})
    return web.Response(body=b"", content_type=_PROTOBUF[0])


def _status(message: str) -> bytes:
    """Encode a `google.rpc.Status` in protobuf: code and message."""
    text = message.encode(errors="replace")
    return bytes((0x08, _INVALID, 0x12)) + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + _varint(rest) if rest else bytes((low,))
