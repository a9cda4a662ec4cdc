"""Handle MCP messages, which are JSON-RPC 2.0, independent of the transport."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

from agentest.agents.listener import MAX_BODY_BYTES
from agentest.plugins.servers.active_conversations import Names, Registry, ServerGroup, names_of
from agentest.plugins.servers.mcp.tool_catalog import Catalog, OutputSchemaError, answered, failed
from agentest.plugins.servers.mcp.upstream import Upstream
from agentest.plugins.servers.port import CallOutcome, RealAnswer, ServedAnswer, ServedCall
from agentest.support.errors import errors_as
from agentest.support.json_text import parse_untrusted_json
from agentest.support.lazy_dataclasses import dataclass
from agentest.version import __version__

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The versions that `initialize` negotiates."""
STATELESS_VERSIONS = ("2026-07-28",)  # the versions that each request states
UNSUPPORTED_VERSION = -32022
MOST_IN_BATCH = 1000
"""The maximum messages of a batch. All are answered at once, and a million would block every conversation."""
_VERSION = "io.modelcontextprotocol/protocolVersion"
_SERVER = "io.modelcontextprotocol/serverInfo"
_CAPABILITIES = {"tools": {"listChanged": False}}
_INFO = {"name": "agentest", "version": __version__}
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
_EMPTY_LISTS = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
"""Methods that some clients call at their start regardless of capabilities → the key of the empty list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSender:
    """The facts about the sender of a message."""

    headers: Mapping[str, str]  # by lower-case name
    conversation: str | None = None  # the conversation in the path
    tools: frozenset[str] | None = None
    """The tools of the server that we replace, if the address names them; None for all tools."""

    def names(self, params: Mapping[str, Any]) -> Names:
        """Return the possible names of the conversation for a message with these `params`."""
        return names_of(self.headers, self.conversation, meta_of(params))


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """The methods of the server. It has no state about its callers."""

    registry: Registry
    group: ServerGroup
    catalog: Catalog
    upstream: Upstream | None  # the real server; None if it is unknown or must not be called
    has_real: bool  # True if there is a real server, even if its tools must not run

    async def answers(self, body: bytes, sender: MessageSender) -> Any:
        """Return the response to a request body, or a list for a batch; None if no response is expected.

        Raises RpcError if the body is not JSON-RPC.
        """
        try:
            content = parse_untrusted_json(body)
        except (ValueError, RecursionError) as error:
            raise RpcError(PARSE_ERROR, f"the body is not JSON: {error}") from None
        self.registry.reach(self.group, "mcp_mock", sender.names({}))
        if not isinstance(content, list):
            return await self._answer(content, sender, len(body))
        if not content:
            raise RpcError(INVALID_REQUEST, "the batch is empty")
        if len(content) > MOST_IN_BATCH:
            problem = f"the batch has {len(content):,} messages, more than {MOST_IN_BATCH:,}"
            raise RpcError(INVALID_REQUEST, problem)
        answers = await asyncio.gather(*(self._answer(each, sender, len(body)) for each in content))
        return [answer for answer in answers if answer is not None] or None

    async def _answer(self, message: Any, sender: MessageSender, size: int) -> dict[str, Any] | None:
        try:
            request = request_in(message)
            if request is None:
                await self._accept_report(message, sender)
                return None
            result = await self._result(request, sender, size)
        except RpcError as error:
            id = message.get("id") if isinstance(message, dict) else None
            return error.body(id if is_id(id) else None)
        return {"jsonrpc": "2.0", "id": request.id, "result": result}

    async def _result(self, request: RpcRequest, sender: MessageSender, size: int) -> dict[str, Any]:
        async def call(params: Mapping[str, Any]) -> dict[str, Any]:
            return await self._call(params, sender, size)

        def listing() -> Sequence[Mapping[str, Any]]:
            names = sender.names(request.params)
            return self.registry.planted(self.group, names, self.catalog.listing(sender.tools))

        return await result_of(request, listing, call)

    async def _call(self, params: Mapping[str, Any], sender: MessageSender, size: int) -> dict[str, Any]:
        name, arguments, meta = params.get("name"), params.get("arguments"), meta_of(params)
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "`params.name`, the tool, is missing or no text")
        arguments = {} if arguments is None else arguments
        check = self.catalog.promised(name)
        if size > MAX_BODY_BYTES:
            sizes = [f"{each / 1e6:.1f}".removesuffix(".0") for each in (size, MAX_BODY_BYTES)]
            problem: str | None = f"the request has {sizes[0]} MB, more than {sizes[1]} MB"
            arguments, check = f"(not kept: {problem})", None
        else:
            problem = await self.catalog.argument_problem(name, arguments)
        call_id = meta.get(_CALL_ID)
        call = ServedCall(
            tool=name,
            arguments=arguments,
            problem=problem,
            check=check,
            call_id=call_id if isinstance(call_id, str) and call_id else None,
            caller_runs=_CALLER in meta,
            would_run=self.has_real,
        )
        real = partial(self.upstream.call, name, arguments) if self.upstream else None
        answer = await self.registry.answer(self.group, sender.names(params), call, real)
        written = self._written(name, answer)
        if call.caller_runs:
            known = {"how": answer.how.value, "result": answer.result}
            known |= {"message": answer.message, "number": answer.number}
            written["_meta"] = {_ANSWER: known}
        return written

    async def _accept_report(self, message: Mapping[str, Any], sender: MessageSender) -> None:
        params = message.get("params")
        if message.get("method") != ANSWERED or not isinstance(params, Mapping):
            return
        if isinstance(number := params.get("number"), int):
            answer = RealAnswer(result=params.get("result"), failed=params.get("failed") is True)
            await self.registry.answered(self.group, sender.names(params), number, answer)

    def _written(self, name: str, answer: ServedAnswer) -> dict[str, Any]:
        if answer.real is not None:
            return dict(answer.real)
        if answer.how is CallOutcome.INVALID:
            return failed(f"invalid arguments: {answer.message}")
        if answer.how is not CallOutcome.ANSWERED:
            return failed(answer.message)
        promised = self.catalog.promised(name)
        try:
            return answered(answer.result, promised and promised.structured(answer.result))
        except OutputSchemaError as error:  # no mock answers it, and no real server has it
            return failed(f"Agentest answered null, which is not what this tool answers: {error}")


async def result_of(
    request: RpcRequest,
    listing: Callable[[], Sequence[Mapping[str, Any]]],
    call: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
    instructions: str = "",
) -> dict[str, Any]:
    """Return the result of a request to a server that has only tools.

    Args:
        listing: returns the tools; raises ValueError if the address of the server selects an unknown one.
        call: returns the result of a tool for the `params` of a call.
        instructions: tell a client's model when to use the server.

    Raises RpcError for an unknown method or version.
    """
    params, method, versions = request.params, request.method, [*STATELESS_VERSIONS, *HANDSHAKE_VERSIONS]
    version = meta_of(params).get(_VERSION)
    if version is not None and version not in STATELESS_VERSIONS:
        problem = f"the protocol version {version!r} is not known here"
        raise RpcError(UNSUPPORTED_VERSION, problem, {"supported": versions, "requested": version})
    guide = {"instructions": instructions} if instructions else {}
    result: dict[str, Any]
    match method:
        case "tools/call":
            result = await call(params)
        case "initialize":
            wanted = params.get("protocolVersion")
            agreed = wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
            result = {"protocolVersion": agreed, "capabilities": _CAPABILITIES, "serverInfo": _INFO, **guide}
        case "server/discover":
            result = {"supportedVersions": versions, "capabilities": _CAPABILITIES, **guide}
            result["_meta"] = {_SERVER: _INFO}
        case "ping":
            result = {}
        case "tools/list":
            if params.get("cursor"):
                problem = "`params.cursor` names no page: all tools are on the first one"
                raise RpcError(INVALID_PARAMS, problem)
            with errors_as(partial(RpcError, INVALID_PARAMS), ""):
                result = {"tools": listing()}
        case _ if method in _EMPTY_LISTS:
            result = {_EMPTY_LISTS[method]: []}
        case _:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {method!r}")
    if version is not None or method == "server/discover":
        is_list = method.endswith(("/list", "/discover"))
        result = {"resultType": "complete", **result, **(_UNCACHED if is_list else {})}
    return result


ANSWERED = "notifications/agentest/answered"
_CALLER = "agentest/caller"
_CALL_ID = "agentest/call_id"
_ANSWER = "agentest/answer"


def meta_of(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `_meta` of a message; empty if it has none."""
    meta = params.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
TOO_LARGE = -32001

RequestId = str | int | float | None


class RpcError(Exception):
    """An error response to a request: a code of JSON-RPC or MCP, a message, and data for programs."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    def body(self, request_id: RequestId) -> dict[str, Any]:
        """Return the error as a response."""
        data = {} if self.data is None else {"data": self.data}
        error = {"code": self.code, "message": str(self), **data}
        return {"jsonrpc": "2.0", "id": request_id, "error": error}


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRequest:
    """A request that expects a response."""

    id: RequestId
    method: str
    params: Mapping[str, Any]


def request_in(message: Any) -> RpcRequest | None:
    """Return the request in a message; None if the message expects no response.

    Raises RpcError if it is not a valid message.
    """
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, f"expected a JSON-RPC message, an object, found {_kind(message)}")
    if "method" not in message:
        if message.keys() & {"result", "error"}:  # a response, although we never send requests
            return None
        raise RpcError(INVALID_REQUEST, "the message has no `method`")
    method, params = message["method"], message.get("params")
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, f"`method` is {_kind(method)}, and must be a text")
    if "id" not in message:
        return None
    if not is_id(message["id"]):
        raise RpcError(INVALID_REQUEST, f"`id` is {_kind(message['id'])}, and must be a text or a number")
    if params is not None and not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, f"`params` is {_kind(params)}, and must be an object")
    return RpcRequest(id=message["id"], method=method, params=params or {})


def is_id(value: Any) -> TypeGuard[str | int | float]:
    """Return True if a value can be the id of a request, and be written back."""
    if isinstance(value, float):
        return math.isfinite(value)  # 1e999 is valid JSON, but cannot be written back
    return isinstance(value, str | int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is too large"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
