"""What the server does with a message, by whichever transport it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio

from agentest.mock_servers.listener import MAX_BODY_BYTES
from agentest.mock_servers.mcp.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RpcError,
    RpcRequest,
    id_of,
    parsed,
    request_in,
)
from agentest.mock_servers.mcp.tool_catalog import Catalog, Misfit, answered, failed
from agentest.mock_servers.mcp.upstream import Upstream
from agentest.mock_servers.port import CallReal, How, RealAnswer, ServedAnswer, ServedCall
from agentest.mock_servers.registry import Group, Names, Registry, names_of
from agentest.version import __version__

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Those that are agreed upon by `initialize`."""
STATELESS_VERSIONS = ("2026-07-28",)
"""Those that each request names."""
UNSUPPORTED_VERSION = -32022
MOST_IN_BATCH = 1000
"""Messages. All are answered at once, and a million of them would hold up every conversation for minutes."""
_VERSION = "io.modelcontextprotocol/protocolVersion"
_SERVER = "io.modelcontextprotocol/serverInfo"
_CAPABILITIES = {"tools": {"listChanged": False}}
_INFO = {"name": "agentest", "version": __version__}
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
_NOTHING = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
"""What some clients ask for at their start, whatever the server says of itself, → the list that is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """What is known of who sends a message."""

    headers: Mapping[str, str]
    """By lower-case name."""
    conversation: str | None = None
    """What the path names."""
    tools: frozenset[str] | None = None
    """The tools of the server in whose place we stand, where the address names them; None: all."""

    def names(self, params: Mapping[str, Any]) -> Names:
        """What may name the conversation of a message with these `params`."""
        return names_of(self.headers, self.conversation, meta_of(params))


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """The server's methods. It keeps nothing of who asks."""

    registry: Registry
    group: Group
    catalog: Catalog
    upstream: Upstream | None
    has_real: bool
    """Whether there is a real server, whether its tools may run or not."""
    """The real server; None: it is not known, or must not be asked."""

    async def answers(self, body: bytes, sender: Sender) -> Any:
        """The answer to the body of a request, or the list of those to a batch; None: nobody waits for one.

        Raises RpcError for what is no JSON-RPC.
        """
        content = parsed(body)
        self.registry.reach(self.group, "mcp_mock", sender.names({}))
        size = len(body)
        if not isinstance(content, list):
            return await self._answer(content, sender, size)
        if not content:
            raise RpcError(INVALID_REQUEST, "the batch is empty")
        if len(content) > MOST_IN_BATCH:
            many = f"the batch has {len(content):,} messages, more than {MOST_IN_BATCH:,}"
            raise RpcError(INVALID_REQUEST, many)
        return await self._batch(content, sender, size)

    async def _batch(self, messages: list[Any], sender: Sender, size: int) -> list[Any] | None:
        found: list[Any] = [None] * len(messages)

        async def answer(number: int) -> None:
            found[number] = await self._answer(messages[number], sender, size)

        async with anyio.create_task_group() as tasks:
            for number in range(len(messages)):
                tasks.start_soon(answer, number)
        return [answer for answer in found if answer is not None] or None

    async def _answer(self, message: Any, sender: Sender, size: int) -> dict[str, Any] | None:
        try:
            request = request_in(message)
            if request is None:
                await self._hear(message, sender)
                return None
            result = await self._result(request, sender, size)
        except RpcError as error:
            return error.body(id_of(message))
        return {"jsonrpc": "2.0", "id": request.id, "result": result}

    async def _result(self, request: RpcRequest, sender: Sender, size: int) -> dict[str, Any]:
        version = meta_of(request.params).get(_VERSION)
        if version is not None and version not in STATELESS_VERSIONS:
            raise _unsupported(version)
        if request.method == "tools/call":
            result, is_list = await self._call(request.params, sender, size), False
        else:
            result, is_list = self._told(request, sender), request.method.endswith(("/list", "/discover"))
        if version is not None or request.method == "server/discover":
            result = {"resultType": "complete", **result, **(_UNCACHED if is_list else {})}
        return result

    def _told(self, request: RpcRequest, sender: Sender) -> dict[str, Any]:
        """What the server tells of itself."""
        match request.method:
            case "initialize":
                return _initialized(request.params.get("protocolVersion"))
            case "server/discover":
                versions = [*STATELESS_VERSIONS, *HANDSHAKE_VERSIONS]
                told = {"supportedVersions": versions, "capabilities": _CAPABILITIES}
                return {**told, "_meta": {_SERVER: _INFO}}
            case "ping":
                return {}
            case "tools/list":
                _check_first_page(request.params)
                return {"tools": self.catalog.listing(sender.tools)}
            case method if method in _NOTHING:
                return {_NOTHING[method]: []}
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {request.method!r}")

    async def _call(self, params: Mapping[str, Any], sender: Sender, size: int) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "`params.name`, the tool, is missing or no text")
        arguments = params.get("arguments")
        meta = meta_of(params)
        call = replace(
            await self._served_call(name, {} if arguments is None else arguments, size),
            call_id=call_id_of(meta),
            caller_runs=runs_tools(meta),
            would_run=self.has_real,
        )
        real = self._real(name, call.arguments)
        answer = await self.registry.answer(self.group, sender.names(params), call, real)
        return self._written(name, answer) | (told(answer) if call.caller_runs else {})

    async def _hear(self, message: Mapping[str, Any], sender: Sender) -> None:
        """Take what a caller tells of the real tool that it has run (`callers`)."""
        params = message.get("params")
        if message.get("method") != ANSWERED or not isinstance(params, Mapping):
            return
        if isinstance(number := params.get("number"), int):
            names, failed_ = sender.names(params), params.get("failed") is True
            await self.registry.answered(self.group, names, number, params.get("result"), failed=failed_)

    async def _served_call(self, name: str, arguments: Any, size: int) -> ServedCall:
        if size > MAX_BODY_BYTES:
            too_large = f"the request has {_mb(size)} MB, more than {_mb(MAX_BODY_BYTES)} MB"
            return ServedCall(tool=name, arguments=f"(not kept: {too_large})", problem=too_large)
        return ServedCall(
            tool=name,
            arguments=arguments,
            problem=await self.catalog.argument_problem(name, arguments),
            check=self.catalog.promised(name),
        )

    def _real(self, name: str, arguments: Any) -> CallReal | None:
        upstream = self.upstream
        if upstream is None:
            return None

        async def call() -> RealAnswer:
            return await upstream.call(name, arguments)

        return call

    def _written(self, name: str, answer: ServedAnswer) -> dict[str, Any]:
        if answer.real is not None:
            return dict(answer.real)
        if answer.how is How.INVALID:
            return failed(f"invalid arguments: {answer.message}")
        if answer.how is not How.ANSWERED:
            return failed(answer.message)
        promised = self.catalog.promised(name)
        try:
            return answered(answer.result, promised and promised.structured(answer.result))
        except Misfit as error:  # nobody mocks it, nobody really has it
            return failed(f"Agentest answered null, which is not what this tool answers: {error}")


def _initialized(wanted: Any) -> dict[str, Any]:
    version = wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
    return {"protocolVersion": version, "capabilities": _CAPABILITIES, "serverInfo": _INFO}


def _unsupported(version: Any) -> RpcError:
    supported = [*STATELESS_VERSIONS, *HANDSHAKE_VERSIONS]
    data = {"supported": supported, "requested": version}
    return RpcError(UNSUPPORTED_VERSION, f"the protocol version {version!r} is not known here", data)


def _check_first_page(params: Mapping[str, Any]) -> None:
    if params.get("cursor"):
        raise RpcError(INVALID_PARAMS, "`params.cursor` names no page: all tools are on the first one")


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f}".removesuffix(".0")


ANSWERED = "notifications/agentest/answered"
_CALLER = "agentest/caller"
_CALL_ID = "agentest/call_id"
_ANSWER = "agentest/answer"


def meta_of(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `_meta` of a message; empty where it has none."""
    meta = params.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def runs_tools(meta: Mapping[str, Any]) -> bool:
    """Whether the caller can run the real tool itself."""
    return _CALLER in meta


def call_id_of(meta: Mapping[str, Any]) -> str | None:
    """The id that the agent's framework gave to a call."""
    call_id = meta.get(_CALL_ID)
    return call_id if isinstance(call_id, str) and call_id else None


def told(answer: ServedAnswer) -> dict[str, Any]:
    """What is added to the result of a call for a caller that runs tools."""
    known = {
        "how": answer.how.value,
        "result": answer.result,
        "message": answer.message,
        "number": answer.number,
    }
    return {"_meta": {_ANSWER: known}}
