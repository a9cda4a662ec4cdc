"""Handle MCP messages, independent of the transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from agentest.mock_servers.mcp.tool_catalog import Catalog, OutputSchemaError, answered, failed
from agentest.mock_servers.mcp.upstream import Upstream
from agentest.mock_servers.port import CallOutcome, CallReal, RealAnswer, ServedAnswer, ServedCall
from agentest.mock_servers.registry import Names, Registry, ServerGroup, names_of
from agentest.support.lazy_dataclasses import dataclass
from agentest.version import __version__

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The versions that `initialize` negotiates."""
STATELESS_VERSIONS = ("2026-07-28",)
"""The versions that each request states."""
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

    headers: Mapping[str, str]
    """By lower-case name."""
    conversation: str | None = None
    """The conversation in the path."""
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
    upstream: Upstream | None
    """The real server; None if it is unknown or must not be called."""
    has_real: bool
    """True if there is a real server, even if its tools must not run."""

    async def answers(self, body: bytes, sender: MessageSender) -> Any:
        """Return the response to a request body, or a list for a batch; None if no response is expected.

        Raises RpcError if the body is not JSON-RPC.
        """
        content = parsed(body)
        self.registry.reach(self.group, "mcp_mock", sender.names({}))
        size = len(body)
        if not isinstance(content, list):
            return await self._answer(content, sender, size)
        if not content:
            raise RpcError(INVALID_REQUEST, "the batch is empty")
        if len(content) > MOST_IN_BATCH:
            problem = f"the batch has {len(content):,} messages, more than {MOST_IN_BATCH:,}"
            raise RpcError(INVALID_REQUEST, problem)
        return await self._batch(content, sender, size)

    async def _batch(self, messages: list[Any], sender: MessageSender, size: int) -> list[Any] | None:
        answers: list[Any] = [None] * len(messages)

        async def answer(number: int) -> None:
            answers[number] = await self._answer(messages[number], sender, size)

        async with anyio.create_task_group() as tasks:
            for number in range(len(messages)):
                tasks.start_soon(answer, number)
        return [answer for answer in answers if answer is not None] or None

    async def _answer(self, message: Any, sender: MessageSender, size: int) -> dict[str, Any] | None:
        try:
            request = request_in(message)
            if request is None:
                await self._accept_report(message, sender)
                return None
            result = await self._result(request, sender, size)
        except RpcError as error:
            return error.body(id_of(message))
        return {"jsonrpc": "2.0", "id": request.id, "result": result}

    async def _result(self, request: RpcRequest, sender: MessageSender, size: int) -> dict[str, Any]:
        version = meta_of(request.params).get(_VERSION)
        if version is not None and version not in STATELESS_VERSIONS:
            raise _unsupported(version)
        if request.method == "tools/call":
            result, is_list = await self._call(request.params, sender, size), False
        else:
            result, is_list = (
                self._describe_server(request, sender),
                request.method.endswith(("/list", "/discover")),
            )
        if version is not None or request.method == "server/discover":
            result = {"resultType": "complete", **result, **(_UNCACHED if is_list else {})}
        return result

    def _describe_server(self, request: RpcRequest, sender: MessageSender) -> dict[str, Any]:
        match request.method:
            case "initialize":
                return _initialized(request.params.get("protocolVersion"))
            case "server/discover":
                versions = [*STATELESS_VERSIONS, *HANDSHAKE_VERSIONS]
                description = {"supportedVersions": versions, "capabilities": _CAPABILITIES}
                return {**description, "_meta": {_SERVER: _INFO}}
            case "ping":
                return {}
            case "tools/list":
                _check_first_page(request.params)
                return {"tools": self.catalog.listing(sender.tools)}
            case method if method in _EMPTY_LISTS:
                return {_EMPTY_LISTS[method]: []}
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {request.method!r}")

    async def _call(self, params: Mapping[str, Any], sender: MessageSender, size: int) -> dict[str, Any]:
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
        return self._written(name, answer) | (answer_details(answer) if call.caller_runs else {})

    async def _accept_report(self, message: Mapping[str, Any], sender: MessageSender) -> None:
        """Accept a caller's report about a real tool that it has run."""
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
        if answer.how is CallOutcome.INVALID:
            return failed(f"invalid arguments: {answer.message}")
        if answer.how is not CallOutcome.ANSWERED:
            return failed(answer.message)
        promised = self.catalog.promised(name)
        try:
            return answered(answer.result, promised and promised.structured(answer.result))
        except OutputSchemaError as error:  # no mock answers it, and no real server has it
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
    """Return the `_meta` of a message; empty if it has none."""
    meta = params.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def runs_tools(meta: Mapping[str, Any]) -> bool:
    """True if the caller can run the real tool itself."""
    return _CALLER in meta


def call_id_of(meta: Mapping[str, Any]) -> str | None:
    """Return the id that the agent's framework gave to a call."""
    call_id = meta.get(_CALL_ID)
    return call_id if isinstance(call_id, str) and call_id else None


def answer_details(answer: ServedAnswer) -> dict[str, Any]:
    """Return the addition to a call's result for a caller that runs tools."""
    known = {
        "how": answer.how.value,
        "result": answer.result,
        "message": answer.message,
        "number": answer.number,
    }
    return {"_meta": {_ANSWER: known}}
