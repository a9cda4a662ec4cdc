"""The HTTP server for the API of an OpenAPI document, whose operations mocks answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from aiohttp import web
from multidict import CIMultiDict

from agentest.agents.listener import CONNECTION_HEADERS, MAX_BODY_BYTES, callers_of, headers_of, listen
from agentest.config.agents.companion_servers import RestMock
from agentest.plugins.servers.active_conversations import HEADER, Names, ServerInputs, names_of
from agentest.plugins.servers.port import CallOutcome, CallReal, RealAnswer, ServedAnswer, ServedCall
from agentest.plugins.servers.rest.operations import (
    JSON,
    METHODS,
    Api,
    BodyContent,
    Interface,
    Operation,
    is_json,
    open_api,
)
from agentest.plugins.servers.rest.request_reader import (
    ParsedRequest,
    RequestTarget,
    Routes,
    ToolHttpRequest,
    read_request,
)
from agentest.plugins.servers.rest.schema import SchemaViolation
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import ConfigError, errors_as
from agentest.support.function_threads import in_thread
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.bodies import BadBody, BodyRefused, read_body
from agentest.support.http.caller_guard import CallerGuard
from agentest.support.http.client import Client
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.json_text import json_or, json_text, well_formed
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import without_credentials
from agentest.support.text import first_names, nearest, shortened

_SHOWN_OPERATIONS = 40
_NAME_CHARS = 200
_LARGE_BYTES = 100_000
_OWN_DOCUMENT = "/openapi.json"


async def open_rest_server(settings: RestMock, opening: ServerInputs) -> str:
    """Serve the operations until the run ends. Returns the server's base URL. Raises ConfigError."""
    api = _read(settings, opening)
    routes = Routes(api)
    if opening.only_way:
        _check_mocks(api, routes, opening)
    opening.group.tools.update(operation.tool for operation in api.operations)
    named = {*opening.spoken, *(tool.name for tool in opening.tools)}
    opening.group.tools.update(name for name in named if _is_undocumented_request(name, routes))
    url = settings.upstream
    upstream = RealApi(url=url, client=opening.client, redact=opening.redact) if url else None
    key = opening.key_location("rest_mock")
    server = _RestServer(opening, api, routes, upstream, callers_of(settings, key))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    return await listen(app, settings, key, opening.stack, opening.on_note, on_fault=opening.report_fault)


def _read(settings: RestMock, opening: ServerInputs) -> Api:
    with errors_as(ConfigError, f"{opening.key_location('rest_mock.openapi')}: ", ConfigError):
        api = open_api(opening.root / Path(settings.openapi).expanduser(), opening.outputs)
        api.check({*opening.spoken, *(tool.name for tool in opening.tools)})
        if opening.left_out is None:  # no tool has been named yet: take the most readable names
            mocked = {each.short_name for each in api.operations if each.short_name}
        else:
            mocked = {tool.name for tool in opening.tools} | opening.left_out
        if api.problems:
            rest = f" ({len(api.problems)} in all)" * (len(api.problems) > 1)
            opening.on_note(
                f"operations that no scenario names are not checked: {api.problems[0].text}{rest}"
            )
        return api.named_as(mocked, opening.spoken)


def _check_mocks(api: Api, routes: Routes, opening: ServerInputs) -> None:
    """Raise ConfigError if a mock belongs to no operation, because it would never be called."""
    names = {operation.tool for operation in api.operations}
    # An id from FastAPI is shown as the name of its function, because mocks may use that name.
    shown_api = api.named_as(each.short_name for each in api.operations if each.short_name)
    known = [operation.tool for operation in shown_api.operations]
    for tool in opening.tools:
        if tool.name in names or _is_undocumented_request(tool.name, routes):
            continue
        close = _operation_named(tool.name, routes) or nearest(tool.name, known)
        operation = next((each for each in shown_api.operations if each.tool == close), None)
        hint = f"the nearest is {close!r} ({operation})" if operation else "none is like it"
        listed = first_names([f"{each.tool} ({each})" for each in shown_api.operations], _SHOWN_OPERATIONS)
        where = opening.mocked_in.get(tool.name, "")
        raise ConfigError(
            f"the mock {tool.name!r}{where} is not an operation of {api.document.path.name}, and the "
            f"tools of agent {opening.group.agents[0]!r} are reached by rest_mock alone; {hint}. Operations: "
            f"{listed}"
        )


def _operation_named(name: str, routes: Routes) -> str | None:
    method, _, path = name.partition(" ")
    operation = routes.find(method, path).operation if path.startswith("/") else None
    return operation.tool if operation else None


def _is_undocumented_request(name: str, routes: Routes) -> bool:
    method, _, path = name.partition(" ")
    return method.isupper() and path.startswith("/") and _operation_named(name, routes) is None


@dataclass(frozen=True, slots=True)
class _RestServer:
    _opening: ServerInputs
    _api: Api
    _routes: Routes
    _upstream: RealApi | None
    _callers: CallerGuard
    _noted: set[str] = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.Response:
        # Path and query as sent, because `%2F` is not a separator.
        sent = request.raw_path if request.raw_path.startswith("/") else str(request.rel_url)
        path, _, query = sent.partition("?")
        target = self._routes.find(request.method, path)
        cors, method = allowing(request, self._callers), request.headers.get("access-control-request-method")
        if request.method == "OPTIONS" and method is not None and target.operation is None:
            if cors:  # an accepted page may send anything
                requested = request.headers.get("access-control-request-headers", "*")
                allow = "access-control-allow-"
                cors = (*cors, (f"{allow}methods", method), (f"{allow}headers", requested))
            return web.Response(status=204, headers=dict(cors))
        answer = await self._answered(request, target, query)
        headers = CIMultiDict([*answer.headers, *cors])
        return web.Response(status=answer.status, headers=headers, body=answer.body)

    async def _answered(self, request: web.Request, target: RequestTarget, query: str) -> ToolHttpResponse:
        headers = headers_of(request)
        names = names_of(headers, target.conversation)
        self._opening.registry.reach(self._opening.group, "rest_mock", names)
        body, problem = await _body_of(request)
        real: CallReal | None = None
        if self._upstream and self._opening.passthrough:
            # Evaluation sets allow unmocked calls by default, but that must not run real tools.
            sent_to = target.path + (query and f"?{query}")
            real = partial(self._upstream.call, request.method, sent_to, headers, body)
        pairs = parse_qsl(query, keep_blank_values=True, errors="replace")
        tool_request = ToolHttpRequest(query=pairs, headers=headers, body=body, values=target.values)
        operation = target.operation
        if operation is None:
            return await self._unknown(request, target, tool_request, problem, names, real)
        read = problem or await self._read(operation, tool_request)
        call = ServedCall(
            tool=operation.tool,
            arguments=read.arguments,
            problem=read.problem,
            would_run=self._upstream is not None,
        )
        answer = await self._opening.registry.answer(self._opening.group, names, call, real)
        if read.strangers:
            self._note(
                f"{', '.join(read.strangers)} in requests of {operation.tool} ({operation}) is not in "
                f"{self._api.document.path.name}, and the mock did not receive it"
            )
        made = _response(operation, read, answer)
        await self._check(operation, made, answer)
        return made

    async def _read(self, operation: Operation, tool_request: ToolHttpRequest) -> ParsedRequest:
        read = partial(read_request, operation, tool_request, self._api.keys_in_query)
        is_slow = len(tool_request.body) > _LARGE_BYTES or self._api.document.has_patterns
        return await in_thread(read) if is_slow else read()

    async def _check(self, operation: Operation, made: ToolHttpResponse, answer: ServedAnswer) -> None:
        by_nobody = self._opening.passthrough and answer.result is None
        by_a_mock = answer.how is CallOutcome.ANSWERED or answer.status is not None
        if answer.real is not None or by_nobody or not by_a_mock:
            return
        check = partial(misfits, operation, made, answer.result)
        problem = await in_thread(check) if self._api.document.has_patterns else check()
        if problem:
            self._note(
                f"the answer of the mock of {operation.tool} does not match {operation} of "
                f"{self._api.document.path.name}: {shortened(problem, 300)}",
                about=f"answers of {operation.tool}",
            )

    async def _unknown(
        self,
        request: web.Request,
        target: RequestTarget,
        tool_request: ToolHttpRequest,
        problem: ParsedRequest | None,
        names: Names,
        real: CallReal | None,
    ) -> ToolHttpResponse:
        if request.method == "GET" and target.path == _OWN_DOCUMENT:
            # For agents that generate their tools from it, the document has our address.
            at = f"/c/{target.conversation}" if target.conversation else ""
            servers = [{"url": f"{request.scheme}://{request.host}{at}"}]
            root = self._api.document.root.value
            paths = {path: _without_servers(item) for path, item in root.get("paths", {}).items()}
            return in_json(200, {**root, "paths": paths, "servers": servers})
        name = shortened(f"{request.method} {target.path}", _NAME_CHARS)
        anything = Interface(body=BodyContent(kinds={"*/*": None}))
        operation = Operation(tool=name, method=request.method, path=target.path, interface=lambda: anything)
        allowed = ", ".join(sorted(target.methods))
        status, headers = (405, [("allow", allowed)]) if allowed else (404, [])
        available = f"it has {allowed}" if allowed else self._routes.describe_operations(target.path)
        text = f"{operation.tool} is not an operation of {self._api.document.path.name}: {available}"
        registry, group = self._opening.registry, self._opening.group
        if not registry.claims(group, names):
            self._note(f"{text}. It belongs to no conversation, and got status {status}")
            return in_json(status, {"error": text}, headers)
        read = problem or await self._read(operation, tool_request)
        arguments = {**dict(tool_request.query), **read.arguments}
        mocked = {
            tool.name for tool in self._opening.tools if _is_undocumented_request(tool.name, self._routes)
        }
        answered = operation.tool in mocked or (real is not None and self._opening.passthrough)
        call = ServedCall(
            tool=operation.tool, arguments=arguments, problem=read.problem if answered else text
        )
        answer = await registry.answer(group, names, call, real)
        if answer.how is CallOutcome.INVALID and not answered:
            return in_json(status, {"error": text}, headers)
        return _response(operation, read, answer)

    def _note(self, text: str, about: str | None = None) -> None:
        if (about or text) not in self._noted and len(self._noted) < 100:
            self._noted.add(about or text)
            self._opening.on_note(self._opening.redact(text))


def _without_servers(part: Any) -> Any:
    """Return a path or an operation without servers of its own, which would lead to the real API."""
    if not isinstance(part, Mapping):
        return part
    return {
        key: _without_servers(part[key]) if key in METHODS else part[key] for key in part if key != "servers"
    }


def _response(operation: Operation, read: ParsedRequest, answer: ServedAnswer) -> ToolHttpResponse:
    if answer.how is not CallOutcome.INVALID:
        return written(operation, answer)
    problems = read.problems or (SchemaViolation(at=("arguments",), text=answer.message),)
    return misfit(operation, problems, read.status)


async def _body_of(request: web.Request) -> tuple[bytes, ParsedRequest | None]:
    try:
        return await read_body(request, MAX_BODY_BYTES), None
    except BodyRefused as error:
        problem = SchemaViolation(at=("body",), text=str(error))
        return b"", ParsedRequest(arguments={}, problems=(problem,), status=error.status)


def allowing(request: web.Request, callers: CallerGuard) -> Sequence[tuple[str, str]]:
    """Return the headers that let an accepted page read a response."""
    origin = request.headers.get("origin", "")
    if not callers.allows(origin):
        return ()
    return (
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", "*"),
        ("access-control-allow-credentials", "true"),
        ("vary", "origin"),
    )


_NO_BODY = (204, 205, 304)
NOTHING = (None, "")  # results that carry no information; the record of an empty body is a text
_OF_HOW = {CallOutcome.FAILED: 500, CallOutcome.UNMOCKED: 501, CallOutcome.REFUSED: 409}
"""Statuses that clients do not retry, because a refusal and a missing mock are permanent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHttpResponse:
    """An HTTP response."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


def in_json(status: int, value: Any, headers: Iterable[tuple[str, str]] = ()) -> ToolHttpResponse:
    """Return a JSON value as a response."""
    body = well_formed(json_text(value)).encode()
    return ToolHttpResponse(status=status, headers=(*headers, ("content-type", JSON)), body=body)


def misfit(operation: Operation, problems: Sequence[SchemaViolation], status: int | None) -> ToolHttpResponse:
    """Report invalid requests to the agent: as a message, and item by item in FastAPI's format."""
    declared = "422" in operation.interface().answers
    detail = [{"loc": list(each.at), "msg": each.text, "type": "value_error"} for each in problems]
    content = {"error": "; ".join(map(str, problems)), "detail": detail}
    return in_json(status or (422 if declared else 400), content)


def written(operation: Operation, answer: ServedAnswer) -> ToolHttpResponse:
    """Return the response to a valid call."""
    if isinstance(answer.real, ToolHttpResponse):
        return answer.real
    if answer.real is not None:
        return in_json(502, {"error": answer.message})
    if answer.status is None and answer.how is not CallOutcome.ANSWERED:
        return in_json(_OF_HOW[answer.how], {"error": answer.message})
    status = answer.status or success(operation, answer.result)
    if status in _NO_BODY:
        return ToolHttpResponse(status=status, headers=answer.headers)
    by_name = {name.lower(): value for name, value in answer.headers}
    kind = by_name.get("content-type") or media_type(content_of(operation, status), answer.result)
    is_text = isinstance(answer.result, str) and not is_json(kind)
    body = well_formed(answer.result if is_text else json_text(answer.result)).encode()
    other_headers = [header for header in answer.headers if header[0].lower() != "content-type"]
    return ToolHttpResponse(status=status, headers=(*other_headers, ("content-type", kind)), body=body)


def success(operation: Operation, result: Any) -> int:
    """Return the document's first status of success, preferring one with a body."""
    statuses = [(_number(status), content) for status, content in operation.interface().answers.items()]
    good = [(status, content) for status, content in statuses if status and 200 <= status < 300]
    with_body = [status for status, content in good if content.kinds and status not in _NO_BODY]
    if result not in NOTHING and with_body:
        return with_body[0]
    return good[0][0] if good and good[0][0] else 200


def content_of(operation: Operation, status: int) -> BodyContent | None:
    """Return the document's content for a status."""
    answers: Mapping[str, BodyContent] = operation.interface().answers
    return answers.get(str(status)) or answers.get(f"{status // 100}XX") or answers.get("DEFAULT")


def media_type(content: BodyContent | None, result: Any) -> str:
    """Return the media type of a response: JSON if the document has it or the result is not a text."""
    kinds = [kind for kind in content.kinds if "*" not in kind] if content else []
    in_json = next((kind for kind in kinds if is_json(kind)), None)
    if in_json or not isinstance(result, str) or not kinds:
        return in_json or JSON
    lacks_charset = kinds[0].startswith("text/") and "charset" not in kinds[0]
    return f"{kinds[0]}; charset=utf-8" if lacks_charset else kinds[0]


def misfits(operation: Operation, answer: ToolHttpResponse, result: Any) -> str | None:
    """Describe how a mock's answer violates the document; None if it is valid."""
    content = content_of(operation, answer.status)
    if content is None:
        known = ", ".join(operation.interface().answers).lower()
        failing = answer.status >= 400  # documents rarely describe failures
        return None if failing or not known else f"the status {answer.status} is not documented, only {known}"
    if answer.status in _NO_BODY or (not content.kinds and answer.status < 300):
        if result in NOTHING:
            return None
        if answer.status in _NO_BODY:
            return f"a response with status {answer.status} has no body"
        return f"its response {answer.status} has no `content`, but the mock returns a body"
    kind = next((kind for kind in content.kinds if is_json(kind)), None)
    schema = content.kinds[kind] if kind else None
    problems = schema.problems(result, "body", answered=True) if schema else []
    return "; ".join(map(str, problems)) or None


def _number(status: str) -> int | None:
    if status.isdecimal():
        return int(status)
    return int(status[0]) * 100 if status[:1].isdecimal() and status[1:] == "XX" else None


_LIMIT_S = 60.0
_NOT_PASSED_ON = CONNECTION_HEADERS | {"accept-encoding", "content-encoding", HEADER}
"""Headers of a request that are not forwarded; its body is decompressed already."""
_FAILING = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RealApi:
    """The real API."""

    url: str  # its base URL; the query is sent with each request
    client: Client
    redact: Callable[[str], str]  # hides credentials in error messages for the agent

    async def call(
        self, method: str, path_and_query: str, headers: Mapping[str, str], body: bytes
    ) -> RealAnswer:
        """Forward a request. The path is as sent, without conversation and base path.

        If the real API does not respond, the answer has status 502.
        """
        path, _, query = path_and_query.partition("?")
        base = urlsplit(self.url)
        queries = "&".join(each for each in (base.query, query) if each)
        url = urlunsplit((base.scheme, base.netloc, base.path.rstrip("/") + path, queries, ""))
        forwarded = [(name, value) for name, value in headers.items() if name not in _NOT_PASSED_ON]
        try:
            with TimeLimit(_LIMIT_S):
                return await self._asked(method, url, forwarded, body)
        except (BadBody, RefusedAddress) as error:
            return self._unreached(str(error))
        except CONNECTION_ERRORS as error:
            return self._unreached(describe(error))
        except TimeoutError:
            return self._unreached(f"it did not answer within {_LIMIT_S:g} s")

    def _unreached(self, problem: str) -> RealAnswer:
        upstream = f"the real API, rest_mock.upstream {without_credentials(self.url)}"
        content = {"error": self.redact(f"{upstream}, could not be reached: {problem}")}
        return RealAnswer(result=content, raw=in_json(502, content), failed=True)

    async def _asked(self, method: str, url: str, headers: list[tuple[str, str]], body: bytes) -> RealAnswer:
        response = await self.client.send_direct(method, url, headers, body or None)
        try:
            content = b"".join([piece async for piece in response.pieces()])
        finally:
            await response.aclose()
        forwarded = [(n, v) for n, v in response.headers.items() if n.lower() not in CONNECTION_HEADERS]
        answer = ToolHttpResponse(status=response.status_code, headers=tuple(forwarded), body=content)
        status = response.status_code
        # An empty body is not null, which stands for a call without an answer.
        result = json_or(content, content.decode("utf-8", "replace")) if content else ""
        return RealAnswer(result=result, raw=answer, failed=status >= _FAILING, status=status)
