"""An HTTP server for the API of an OpenAPI document, whose operations are answered by mocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

from aiohttp import web
from multidict import CIMultiDict

from agentest.config.agents.mock_servers import RestMock
from agentest.mock_servers.listener import MAX_BODY_BYTES, Opening, callers_of, headers_of, listen
from agentest.mock_servers.port import CallReal, How, ServedAnswer, ServedCall
from agentest.mock_servers.registry import Names, names_of
from agentest.mock_servers.rest.document import Document
from agentest.mock_servers.rest.operations import Api, Content, Operation, read_api
from agentest.mock_servers.rest.request_reader import Asked, Found, Read, Routes, allowed, read_request
from agentest.mock_servers.rest.responses import Answer, Upstream, in_json, misfit, misfits, written
from agentest.mock_servers.rest.schema import Problem
from agentest.support.errors import ConfigError
from agentest.support.function_threads import in_thread
from agentest.support.http.caller_guard import Callers
from agentest.support.http.request_bodies import BodyRefused, read_body
from agentest.support.spelling import nearest
from agentest.support.text import shortened

_SHOWN_OPERATIONS = 40
_NAME_CHARS = 200
_LARGE_BYTES = 100_000
_OWN_DOCUMENT = "/openapi.json"


async def open_rest_server(settings: RestMock, opening: Opening) -> str:
    """Serve the operations until the run ends. Returns the server's base URL. Raises ConfigError."""
    document, api = _read(settings, opening)
    routes = Routes(api)
    if opening.only_way:
        _check_mocks(api, routes, opening, document.path.name)
    opening.group.tools.update(operation.tool for operation in api.operations)
    named = {*opening.spoken, *(tool.name for tool in opening.tools)}
    opening.group.tools.update(name for name in named if _is_beside(name, routes))
    url = settings.upstream
    upstream = Upstream(url=url, client=opening.client, redact=opening.redact) if url else None
    place = opening.place("rest_mock")
    server = _Server(opening, document, api, routes, upstream, callers_of(settings, place))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    return await listen(app, settings, place, opening.stack, opening.on_note)


def _read(settings: RestMock, opening: Opening) -> tuple[Document, Api]:
    """The document and its operations, by the names that mocks know them by."""
    try:
        document = Document(opening.root / Path(settings.openapi).expanduser())
        api = read_api(document)
        return document, api.named_as(_names_of_mocks(api, opening), opening.spoken)
    except ConfigError as error:
        raise ConfigError(f"{opening.place('rest_mock.openapi')}: {error}") from None


def _names_of_mocks(api: Api, opening: Opening) -> set[str]:
    """The names that tools have in scenarios; where none has any yet, those that read best."""
    if opening.left_out is None:
        return {each.short_name for each in api.operations if each.short_name}
    return {tool.name for tool in opening.tools} | opening.left_out


def _check_mocks(api: Api, routes: Routes, opening: Opening, file: str) -> None:
    """Raise ConfigError where a mock is of no operation: it would reach no tool."""
    names = {operation.tool for operation in api.operations}
    # An id that FastAPI made is shown by the name of its function, as mocks may call it.
    shown_api = api.named_as(each.short_name for each in api.operations if each.short_name)
    known = [operation.tool for operation in shown_api.operations]
    for tool in opening.tools:
        if tool.name in names or _is_beside(tool.name, routes):
            continue
        close = _meant(tool.name, routes) or nearest(tool.name, known)
        operation = next((each for each in shown_api.operations if each.tool == close), None)
        hint = f"the nearest is {close!r} ({operation})" if operation else "none is like it"
        shown = ", ".join(f"{each.tool} ({each})" for each in shown_api.operations[:_SHOWN_OPERATIONS])
        more = len(known) - _SHOWN_OPERATIONS
        where = opening.mocked_in.get(tool.name, "")
        raise ConfigError(
            f"the mock {tool.name!r}{where} is no operation of {file}, and the "
            f"tools of agent {opening.group.agents[0]!r} are reached by rest_mock alone; {hint}. Operations: "
            f"{shown}{f' and {more} more' if more > 0 else ''}"
        )


def _meant(name: str, routes: Routes) -> str | None:
    """The tool of the operation that a name like `GET /orders/{id}` says, if any."""
    method, _, path = name.partition(" ")
    found = routes.find(method, path).operation if path.startswith("/") else None
    return found.tool if found else None


def _is_beside(name: str, routes: Routes) -> bool:
    """Whether a name says method and path of a request that the document does not have."""
    method, _, path = name.partition(" ")
    return method.isupper() and path.startswith("/") and _meant(name, routes) is None


class _Server:
    def __init__(
        self,
        opening: Opening,
        document: Document,
        api: Api,
        routes: Routes,
        upstream: Upstream | None,
        callers: Callers,
    ) -> None:
        self._opening = opening
        self._document = document
        self._api = api
        self._routes = routes
        self._beside = frozenset(tool.name for tool in opening.tools if _is_beside(tool.name, routes))
        """Mocks of requests that the document does not have."""
        self._upstream = upstream
        self._callers = callers
        self._noted: set[str] = set()
        self._in_threads = document.has_patterns

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request, whatever it is."""
        path, _, query = _target(request).partition("?")
        found = self._routes.find(request.method, path)
        if is_preflight(request) and found.operation is None:
            return preflight(request, self._callers)
        answer = await self._answered(request, found, query)
        headers = CIMultiDict([*answer.headers, *allowing(request, self._callers)])
        return web.Response(status=answer.status, headers=headers, body=answer.body)

    async def _answered(self, request: web.Request, found: Found, query: str) -> Answer:
        headers = headers_of(request)
        names = names_of(headers, found.conversation)
        self._opening.registry.reach(self._opening.group, "rest_mock", names)
        body, problem = await _body_of(request)
        real = self._real(request.method, found.path + (query and f"?{query}"), headers, body)
        pairs = parse_qsl(query, keep_blank_values=True, errors="replace")
        asked = Asked(query=pairs, headers=headers, body=body, values=found.values)
        if found.operation is None:
            return await self._unknown(request, found, asked, problem, names, real)
        read = problem or await self._read(found.operation, asked)
        return await self._called(found.operation, read, names, real)

    async def _read(self, operation: Operation, asked: Asked) -> Read:
        """Read a request; a large one, or a slow pattern, holds up no other conversation."""
        if len(asked.body) > _LARGE_BYTES or self._in_threads:
            read: Read = await in_thread(read_request, operation, asked, self._api.keys_in_query)
            return read
        return read_request(operation, asked, self._api.keys_in_query)

    async def _called(self, operation: Operation, read: Read, names: Names, real: CallReal | None) -> Answer:
        call = ServedCall(
            tool=operation.tool,
            arguments=read.arguments,
            problem=read.problem,
            would_run=self._upstream is not None,
        )
        answer = await self._opening.registry.answer(self._opening.group, names, call, real)
        if read.strangers:
            self._note(
                f"{', '.join(read.strangers)} in requests of {operation.tool} ({operation}) is unknown to "
                f"{self._document.path.name}, and was left out of its arguments"
            )
        made = _told(operation, read, answer)
        await self._check(operation, made, answer)
        return made

    async def _check(self, operation: Operation, made: Answer, answer: ServedAnswer) -> None:
        """Note once for each operation that a mock answers what the document does not have."""
        by_nobody = self._opening.passthrough and answer.result is None
        by_a_mock = answer.how is How.ANSWERED or answer.status is not None
        if answer.real is not None or by_nobody or not by_a_mock:
            return
        arguments = operation, made, answer.result
        problem = await in_thread(misfits, *arguments) if self._in_threads else misfits(*arguments)
        if problem:
            self._note(
                f"the mock of {operation.tool} answered what {operation} does not by "
                f"{self._document.path.name}: {shortened(problem, 300)}",
                about=f"answers of {operation.tool}",
            )

    async def _unknown(
        self,
        request: web.Request,
        found: Found,
        asked: Asked,
        problem: Read | None,
        names: Names,
        real: CallReal | None,
    ) -> Answer:
        """A request that is no operation: recorded where it is a conversation's, which goes on."""
        if request.method == "GET" and found.path == _OWN_DOCUMENT:
            return self._own_document(request, found)
        one = _unheard_of(request.method, found.path)
        status, headers = (405, [("allow", allowed(found.methods))]) if found.methods else (404, [])
        there = f"it has {allowed(found.methods)}" if found.methods else self._routes.shown(found.path)
        text = f"{one.tool} is no operation of {self._document.path.name}: {there}"
        registry, group = self._opening.registry, self._opening.group
        if not registry.claims(group, names):
            self._note(f"{text}. It came outside of conversations, and was answered with status {status}")
            return in_json(status, {"error": text}, headers)
        read = problem or await self._read(one, asked)
        arguments = {**dict(asked.query), **read.arguments}
        answered = one.tool in self._beside or (real is not None and self._opening.passthrough)
        call = ServedCall(tool=one.tool, arguments=arguments, problem=read.problem if answered else text)
        answer = await registry.answer(group, names, call, real)
        if answer.how is How.INVALID and not answered:
            return in_json(status, {"error": text}, headers)
        return _told(one, read, answer)

    def _own_document(self, request: web.Request, found: Found) -> Answer:
        """The document itself, for agents that make their tools of it; its address is ours."""
        conversation = f"/c/{found.conversation}" if found.conversation else ""
        servers = [{"url": f"{request.scheme}://{request.host}{conversation}"}]
        return in_json(200, {**self._document.source, "servers": servers})

    def _real(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> CallReal | None:
        if self._upstream is None or not self._opening.passthrough:
            return None  # evaluation sets let calls pass by default, which is no leave for real tools
        return partial(self._upstream.call, method, target, headers, body)

    def _note(self, text: str, about: str | None = None) -> None:
        """Tell the user at the end of the run, once."""
        if (about or text) not in self._noted and len(self._noted) < 100:
            self._noted.add(about or text)
            self._opening.on_note(self._opening.redact(text))


def _told(operation: Operation, read: Read, answer: ServedAnswer) -> Answer:
    """What goes back: of a misfit what the document does not allow, else what the mock does not take."""
    if answer.how is not How.INVALID:
        return written(operation, answer)
    problems = read.problems or (Problem(at=("arguments",), text=answer.message),)
    return misfit(operation, problems, read.status)


def _unheard_of(method: str, path: str) -> Operation:
    """What a request would be that the document does not have; whatever body it has is read."""
    name = shortened(f"{method} {path}", _NAME_CHARS)
    return Operation(tool=name, method=method, path=path, body=Content(kinds={"*/*": None}))


def _target(request: web.Request) -> str:
    """Path and query as they were sent: `%2F` is no slash."""
    raw = request.raw_path
    return raw if raw.startswith("/") else str(request.rel_url)


async def _body_of(request: web.Request) -> tuple[bytes, Read | None]:
    """The body, unpacked; or what is said where it is too large or packed wrongly."""
    try:
        return await read_body(request, MAX_BODY_BYTES), None
    except BodyRefused as error:
        problem = Problem(at=("body",), text=str(error))
        return b"", Read(arguments={}, problems=(problem,), status=error.status)


def is_preflight(request: web.Request) -> bool:
    """Whether a browser asks what it may ask."""
    return request.method == "OPTIONS" and "access-control-request-method" in request.headers


def preflight(request: web.Request, callers: Callers) -> web.Response:
    """What a page that may call may ask: all."""
    told = request.headers
    headers = dict(allowing(request, callers))
    if headers:
        headers["access-control-allow-methods"] = told["access-control-request-method"]
        headers["access-control-allow-headers"] = told.get("access-control-request-headers", "*")
    return web.Response(status=204, headers=headers)


def allowing(request: web.Request, callers: Callers) -> Sequence[tuple[str, str]]:
    """The headers that let a page that may call read an answer."""
    origin = request.headers.get("origin", "")
    if not callers.allows(origin):
        return ()
    allowed = ("access-control-allow-origin", origin), ("access-control-expose-headers", "*")
    return (*allowed, ("access-control-allow-credentials", "true"), ("vary", "origin"))
