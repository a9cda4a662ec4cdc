"""Receive OTLP over HTTP on loopback. Traces are read; logs and metrics are accepted and ignored."""

from __future__ import annotations

import asyncio
import importlib.util
from contextlib import suppress

from aiohttp import web

from agentest.config.agents.mock_servers import Traces
from agentest.mock_servers.listener import ServerInputs, listen
from agentest.support.errors import ConfigError
from agentest.support.function_threads import in_thread
from agentest.support.http.bodies import BodyRefused, read_body, skip_body
from agentest.tracing.collector import Collector
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
    with suppress(ImportError):
        if importlib.util.find_spec("opentelemetry.proto.collector.trace") is not None:
            return
    raise ConfigError(
        f"{key} needs the package opentelemetry-proto, which is not installed: "
        "pip install 'agentest-sim[traces]'"
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
        """Store spans. Unreadable requests get a status that stops exporters from sending them again."""
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
            await skip_body(request, self._max_body_bytes)
        except BodyRefused as error:
            return _refusal(request, error.status, f"the body {error}"[:300])
        return _accepted(request)


_INVALID = 3


def _refusal(request: web.Request, status: int, problem: str) -> web.Response:
    """Return a `google.rpc.Status`: code and message."""
    if request.content_type == _JSON:
        return web.json_response({"code": _INVALID, "message": problem}, status=status)
    text = problem.encode(errors="replace")
    body = bytes((0x08, _INVALID, 0x12)) + _varint(len(text)) + text
    return web.Response(body=body, status=status, content_type=_PROTOBUF[0])


def _accepted(request: web.Request) -> web.Response:
    """Return an empty Export…ServiceResponse."""
    if request.content_type == _JSON:
        return web.json_response({})
    return web.Response(body=b"", content_type=_PROTOBUF[0])


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + _varint(rest) if rest else bytes((low,))
