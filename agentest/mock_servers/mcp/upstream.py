"""An MCP client session with the real server: its tools, and calls to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import anyio

from agentest.mock_servers.mcp.jsonrpc import METHOD_NOT_FOUND
from agentest.mock_servers.mcp.tool_catalog import failed, value_of
from agentest.mock_servers.port import RealAnswer
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentestError
from agentest.support.text import shortened
from agentest.version import __version__

_VERSION = "2025-06-18"
_LIMIT_S = 30.0
_MAX_PAGES = 1000
_SHOWN_CHARS = 300


class UpstreamError(AgentestError):
    """The real server is unreachable, or its response is not MCP."""


class SessionLost(Exception):
    """The real server no longer knows the session."""


class Transport(Protocol):
    """The connection to a server."""

    shown: str
    """The server's name for people."""

    async def ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and wait for the response with its id. Raises UpstreamError, SessionLost."""
        ...

    async def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message without a response. Raises UpstreamError."""
        ...

    def agreed(self, version: str | None) -> None:
        """Set the protocol version of all further messages; None when a new session starts."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Upstream:
    """A session with the real server, opened on first use and shared by all conversations."""

    def __init__(self, transport: Transport, limit_s: float = _LIMIT_S) -> None:
        self._transport = transport
        self._limit_s = limit_s
        self._begun = False
        self._beginning = anyio.Lock()
        self._last_id = 0

    @property
    def shown(self) -> str:
        return self._transport.shown

    async def close(self) -> None:
        """End the session, and the server process if there is one."""
        await self._transport.close()

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return all tools from all pages. Raises UpstreamError."""
        tools: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(_MAX_PAGES):
            result = await self._result("tools/list", params)
            page = result.get("tools")
            if not isinstance(page, list):
                raise UpstreamError(f"{self.shown} answered `tools/list` without a list `tools`")
            tools += page
            if not result.get("nextCursor"):
                return tools
            params = {"cursor": result["nextCursor"]}
        raise UpstreamError(f"{self.shown} has more than {_MAX_PAGES} pages of tools")

    async def call(self, name: str, arguments: Any) -> RealAnswer:
        """Call a tool. Raises UpstreamError if the server is unreachable."""
        answer = await self._answer("tools/call", {"name": name, "arguments": arguments})
        if "error" in answer:
            message = _error_text(answer["error"])
            return RealAnswer(result={"error": message}, raw=failed(message), failed=True)
        result = answer.get("result")
        if not isinstance(result, Mapping):
            raise UpstreamError(f"{self.shown} answered a call of {name!r} with no result")
        return RealAnswer(result=value_of(result), raw=result, failed=result.get("isError") is True)

    async def _result(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = await self._answer(method, params)
        if "error" in answer:
            raise UpstreamError(f"{self.shown} answered `{method}` with: {_error_text(answer['error'])}")
        result = answer.get("result")
        if not isinstance(result, Mapping):
            raise UpstreamError(f"{self.shown} answered `{method}` with no result")
        return result

    async def _answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        limit = TimeLimit(self._limit_s)
        try:
            with limit:
                return await self._in_session(method, params)
        except TimeoutError:
            raise UpstreamError(
                f"{self.shown} did not answer `{method}` within {self._limit_s:g} s"
            ) from None

    async def _in_session(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._begin()
        try:
            return await self._transport.ask(self._request(method, params))
        except SessionLost:  # the server was restarted, or drops idle sessions
            self._begun = False
            await self._begin()
        try:
            return await self._transport.ask(self._request(method, params))
        except SessionLost:
            raise UpstreamError(f"{self.shown} forgets each session as soon as it has begun") from None

    async def _begin(self) -> None:
        async with self._beginning:
            if self._begun:
                return
            self._transport.agreed(None)
            client = {"name": "agentest", "version": __version__}
            params = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": client}
            try:
                answer = await self._transport.ask(self._request("initialize", params))
            except SessionLost:
                raise UpstreamError(f"{self.shown} has no MCP server: it answered 404") from None
            self._transport.agreed(self._version_in(answer))
            await self._transport.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
            self._begun = True

    def _version_in(self, answer: Mapping[str, Any]) -> str:
        if "error" in answer:
            raise UpstreamError(f"{self.shown} answered `initialize` with: {_error_text(answer['error'])}")
        result = answer.get("result")
        version = result.get("protocolVersion") if isinstance(result, Mapping) else None
        if not isinstance(version, str):
            raise UpstreamError(f"{self.shown} answered `initialize` with no `protocolVersion`")
        return version

    def _request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self._last_id += 1
        return {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}


def reply_to(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the response to a request from the server; None if the message is not a request."""
    if "method" not in message or "id" not in message:
        return None
    head = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return {**head, "result": {}}
    return {**head, "error": {"code": METHOD_NOT_FOUND, "message": "Agentest offers nothing to servers"}}


def _error_text(error: Any) -> str:
    message = error.get("message") if isinstance(error, Mapping) else error
    return shortened(str(message), _SHOWN_CHARS)
