"""An MCP client session with the real server: its tools, and calls to them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from agentest.plugins.servers.mcp.tool_catalog import failed, value_of
from agentest.plugins.servers.port import ELICITATION, Elicitation, RealAnswer
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentestError, errors_as
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.bodies import MAX_BODY_BYTES, BadBody
from agentest.support.http.client import Client, DirectResponse
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.http.sse import events
from agentest.support.json_text import json_or, json_text
from agentest.support.process_groups import ChildProcess, OutputTail, start_process
from agentest.support.redaction import without_credentials
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


class Upstream:
    """A session with the real server, opened on first use and shared by all conversations."""

    def __init__(self, transport: HttpTransport | StdioTransport, limit_s: float = _LIMIT_S) -> None:
        self._transport = transport
        self.description = transport.description
        self._limit_s = limit_s
        self._begun = False
        self._beginning = anyio.Lock()
        self._last_id = 0

    async def close(self) -> None:
        """End the session, and the server process if there is one."""
        await self._transport.close()

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return all tools from all pages. Raises UpstreamError."""
        tools: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(_MAX_PAGES):
            result = self._result("tools/list", await self._answer("tools/list", params))
            page = result.get("tools")
            if not isinstance(page, list):
                raise UpstreamError(f"{self.description} answered `tools/list` without a list `tools`")
            tools += page
            if not result.get("nextCursor"):
                return tools
            params = {"cursor": result["nextCursor"]}
        raise UpstreamError(f"{self.description} has more than {_MAX_PAGES} pages of tools")

    async def call(self, name: str, arguments: Any) -> RealAnswer:
        """Call a tool. Raises UpstreamError if the server is unreachable."""
        answer = await self._answer("tools/call", {"name": name, "arguments": arguments})
        if "error" in answer:
            message = _error_text(answer["error"])
            return RealAnswer(result={"error": message}, raw=failed(message), failed=True)
        result = self._result("tools/call", answer)
        return RealAnswer(result=value_of(result), raw=result, failed=result.get("isError") is True)

    def _result(self, method: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        if "error" in answer:
            raise UpstreamError(
                f"{self.description} answered `{method}` with: {_error_text(answer['error'])}"
            )
        result = answer.get("result")
        if not isinstance(result, Mapping):
            raise UpstreamError(f"{self.description} answered `{method}` with no result")
        return result

    async def _answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            with TimeLimit(self._limit_s):
                await self._begin()
                try:
                    return await self._transport.request(self._request(method, params))
                except SessionLost:  # the server was restarted, or drops idle sessions
                    self._begun = False
                    await self._begin()
                return await self._transport.request(self._request(method, params))
        except SessionLost:
            raise UpstreamError(f"{self.description} forgets each session as soon as it has begun") from None
        except TimeoutError:
            raise UpstreamError(
                f"{self.description} did not answer `{method}` within {self._limit_s:g} s"
            ) from None

    async def _begin(self) -> None:
        async with self._beginning:
            if self._begun:
                return
            self._transport.version = None
            client = {"name": "agentest", "version": __version__}
            params = {"protocolVersion": _VERSION, "capabilities": {"elicitation": {}}, "clientInfo": client}
            try:
                answer = await self._transport.request(self._request("initialize", params))
            except SessionLost:
                raise UpstreamError(f"{self.description} has no MCP server: it answered 404") from None
            version = self._result("initialize", answer).get("protocolVersion")
            if not isinstance(version, str):
                raise UpstreamError(f"{self.description} answered `initialize` with no `protocolVersion`")
            self._transport.version = version
            await self._transport.notify({"jsonrpc": "2.0", "method": "notifications/initialized"})
            self._begun = True

    def _request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self._last_id += 1
        return {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}


def reply_to(message: Mapping[str, Any], asked: Sequence[Elicitation] = ()) -> dict[str, Any] | None:
    """Return the response to a request from the server; None if the message is not a request.

    `asked` are the calls that the server's question may be about.
    """
    if "method" not in message or "id" not in message:
        return None
    head = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return {**head, "result": {}}
    if message["method"] == "elicitation/create" and len({each.approve for each in asked}) == 1:
        answer = asked[0].answer() if len(asked) == 1 else asked[0].approve
        if answer is not None:
            return {**head, "result": _elicited(message.get("params"), approve=answer)}
    return {**head, "error": {"code": -32601, "message": "Agentest offers nothing to servers"}}


def _elicited(params: Any, *, approve: bool) -> dict[str, Any]:
    """Return the user's answer: with approval true for booleans, and otherwise the schema's defaults."""
    if not approve:
        return {"action": "decline"}
    schema = params.get("requestedSchema") if isinstance(params, Mapping) else None
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    content: dict[str, Any] = {}
    for name, each in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(each, Mapping):
            if each.get("type") == "boolean":
                content[name] = True
            elif "default" in each or each.get("enum"):
                content[name] = each["default"] if "default" in each else each["enum"][0]
    return {"action": "accept", "content": content}


def _error_text(error: Any) -> str:
    return shortened(str(error.get("message") if isinstance(error, Mapping) else error), _SHOWN_CHARS)


_SESSION = "mcp-session-id"
_SHOWN_ERROR_CHARS = 200
_LAST_WORDS_S = 2.0


class HttpTransport:
    """Streamable HTTP requests to one address, each with the configured headers, such as credentials."""

    def __init__(self, client: Client, url: str, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._session: str | None = None
        self.version: str | None = None  # of all further messages; None when a new session starts
        self.description = f"the real MCP server at {without_credentials(url)}"

    async def request(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and wait for the response with its id. Raises UpstreamError, SessionLost."""
        response = await self._send(message)
        try:
            self._check(response)
            self._session = response.headers.get(_SESSION, self._session if self.version else None)
            return await self._answer(response, message["id"])
        except BadBody as error:
            raise UpstreamError(f"{self.description}: the answer {error}") from None
        except CONNECTION_ERRORS as error:
            raise UpstreamError(f"{self.description}: its answer was cut off ({describe(error)})") from None
        finally:
            await response.aclose()

    async def notify(self, message: Mapping[str, Any]) -> None:
        """Send a message without a response. Raises UpstreamError."""
        response = await self._send(message)
        try:
            self._check(response)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """End the session, which the server would otherwise retain."""
        if self._session is None or self.version is None:
            return
        with suppress(RefusedAddress, *CONNECTION_ERRORS), TimeLimit(_LAST_WORDS_S):
            headers = list(self._all_headers().items())
            await (await self._client.send_direct("DELETE", self._url, headers, None)).aclose()

    async def _send(self, message: Mapping[str, Any]) -> DirectResponse:
        try:
            return await self._client.send_direct(
                "POST", self._url, list(self._all_headers().items()), json_text(message).encode()
            )
        except RefusedAddress as error:
            raise UpstreamError(f"{self.description}: {error}") from None
        except CONNECTION_ERRORS as error:
            raise UpstreamError(f"{self.description} cannot be reached: {describe(error)}") from None

    def _all_headers(self) -> dict[str, str]:
        session = self._session if self.version else None  # a new one starts without a version
        known = {_SESSION: session, "mcp-protocol-version": self.version}
        return {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **{name: value for name, value in known.items() if value},
            **self._headers,
        }

    def _check(self, response: DirectResponse) -> None:
        status = response.status_code
        if status == 404 and (self._session or not self.version):
            raise SessionLost
        if status in (401, 403):
            raise UpstreamError(
                f"{self.description} answered {status}: it wants credentials. Write them into the agent's "
                "`mcp_mock`: upstream_headers: {Authorization: Bearer ${TOKEN}}"
            )
        if 300 <= status < 400:
            where = response.headers.get("location", "nowhere")
            raise UpstreamError(f"{self.description} answered {status}: it is at {where}; write that URL")
        if status >= 400:
            raise UpstreamError(f"{self.description} answered {status}: is it its streamable HTTP endpoint?")

    async def _answer(self, response: DirectResponse, request_id: Any) -> Mapping[str, Any]:
        if "text/event-stream" not in response.headers.get("content-type", ""):
            return self._message(b"".join([piece async for piece in response.pieces()]))
        async for event in events(response.pieces()):
            if not event.data:
                continue
            message = self._message(event.data.encode())
            if message.get("id") == request_id and "method" not in message:
                return message
            asked = ELICITATION.get()
            if reply := reply_to(message, [asked] if asked else []):
                await self.notify(reply)
        raise UpstreamError(f"{self.description}: its stream ended without the answer")

    def _message(self, text: bytes) -> Mapping[str, Any]:
        message = json_or(text)
        if not isinstance(message, dict):
            excerpt = shortened(text[:1000].decode(errors="replace"), _SHOWN_ERROR_CHARS)
            raise UpstreamError(f"{self.description} answered no MCP message: {excerpt!r}")
        return message


_LOG_CHARS = 1000
_GRACE_S = 2.0


class StdioTransport:
    """A process that starts with the first message."""

    def __init__(self, command: str | Sequence[str], root: Path) -> None:
        """Raises ValueError for a command with unbalanced quotes."""
        self._words = shlex.split(command) if isinstance(command, str) else list(command)
        self._root = root
        self._process: ChildProcess | None = None
        self._log = OutputTail(_LOG_CHARS)
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[Any, asyncio.Future[Mapping[str, Any]]] = {}
        self._asked: dict[Any, Elicitation] = {}
        """Id of a call → the user's answer. The server's questions do not say which call they are about."""
        self.version: str | None = None  # not used, because only HTTP messages state the version
        self.description = f"the real MCP server (command {self._words[0]!r})"

    async def request(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._start()
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[message["id"]] = answer
        if asked := ELICITATION.get():
            self._asked[message["id"]] = asked
        try:
            await self.notify(message)
            return await answer
        finally:
            del self._waiting[message["id"]]
            self._asked.pop(message["id"], None)

    async def notify(self, message: Mapping[str, Any]) -> None:
        assert self._process
        assert self._process.stdin
        assert self._reading
        if self._process.stdin.is_closing():  # its status and the end of its log may come a little later
            await asyncio.wait({self._reading}, timeout=_GRACE_S)
            raise self._ended()
        self._process.stdin.write(json_text(message).encode() + b"\n")

    async def close(self) -> None:
        """Close its input, which requests its end; end the process if it does not exit."""
        if self._process and self._process.stdin and self._reading:
            self._process.stdin.close()
            try:
                with anyio.move_on_after(_GRACE_S, shield=True):
                    await self._process.wait()
            finally:
                self._reading.cancel()
                await self._process.end(_GRACE_S)

    async def _start(self) -> None:
        if self._process is None:
            output = asyncio.StreamReader(limit=MAX_BODY_BYTES)
            received = asyncio.StreamReaderProtocol(output)
            with errors_as(UpstreamError, f"{self.description} cannot be started: ", (OSError, ValueError)):
                self._process = await start_process(
                    self._words, cwd=self._root, stdin=True, stdout=received, stderr=self._log
                )
            self._reading = asyncio.create_task(self._read(self._process, output))
        elif self._process.returncode is not None or not self._reading or self._reading.done():
            raise self._ended()

    async def _read(self, process: ChildProcess, output: asyncio.StreamReader) -> None:
        with suppress(ValueError):  # an overlong line: the messages after it cannot be separated
            while line := await output.readline():
                await self._take(line)
        with anyio.move_on_after(_GRACE_S):
            await process.wait()
            await self._log.end()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._ended())

    async def _take(self, line: bytes) -> None:
        message = json_or(line)
        if not isinstance(message, dict):
            return  # many programs print other lines than messages
        if reply := reply_to(message, list(self._asked.values())):
            with suppress(UpstreamError):
                await self.notify(reply)
            return
        answer = self._waiting.get(message.get("id")) if "method" not in message else None
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _ended(self) -> UpstreamError:
        assert self._process is not None
        status = self._process.returncode
        how = "closed its output" if status is None else f"ended with status {status}"
        log = self._log.text
        return UpstreamError(f"{self.description} {how}{f'; its log ends with: {log}' if log else ''}")
