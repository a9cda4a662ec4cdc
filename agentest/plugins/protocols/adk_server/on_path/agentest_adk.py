"""The tools of a google-adk agent, answered by Agentest's mocks: `--extra_plugins agentest_adk.MockTools`.

This file needs only google-adk, not Agentest. Before a tool runs, the plugin requests the result from the
run's MCP server (AGENTEST_MCP_URL). The real tool runs only if that server permits it.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from google.adk.plugins.base_plugin import BasePlugin

FRAMEWORK_TOOLS = (
    "transfer_to_agent",
    "set_model_response",
    "exit_loop",
    "finish_task",
    "adk_request_confirmation",
    "adk_request_credential",
    "adk_request_input",
)
"""Tools of the framework that control agents and request input. The mocks never replace them."""
_TIMEOUT_S = 3600.0
"""The limit for one request. Mocks have a shorter time limit, which the run enforces."""
_MAX_THREADS = 256
_outer: ContextVar[str | None] = ContextVar("agentest_outer", default=None)
"""The conversation whose tool is running. An agent in a tool (AgentTool) has a different session."""


class NotAnswered(RuntimeError):
    """No mock answered a tool call, and the real tool did not run."""


class MockTools(BasePlugin):  # type: ignore[misc, unused-ignore]
    """Requests a result from the mocks before each tool runs."""

    def __init__(self, name: str = "agentest", url: str | None = None) -> None:
        """Create the plugin. `url` is the address of the run's MCP server, by default AGENTEST_MCP_URL."""
        super().__init__(name=name)
        self._url = url or os.environ.get("AGENTEST_MCP_URL")
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="agentest")
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._running: dict[tuple[str, str], tuple[str, int, str | None]] = {}
        """Running real tools by session and call: conversation, number, and the previous `_outer`."""

    async def before_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any
    ) -> dict[str, Any] | None:
        """Return the mock's result, or None if the real tool is to run. Raises NotAnswered."""
        if tool.name in FRAMEWORK_TOOLS or getattr(tool, "_defers_response", False):
            return None
        if await is_not_confirmed(tool, tool_args, tool_context):
            return None  # google-adk asks, or refuses
        key = _key(tool_context)
        conversation = _outer.get() or key[0]
        meta = {"agentest/caller": "google-adk", "agentest/call_id": key[1]}
        params = {"name": tool.name, "arguments": tool_args, "_meta": meta}
        answered = await self._post(conversation, {"id": 1, "method": "tools/call", "params": params})
        answer = _answer(answered)
        if answer["how"] == "answered":
            result = answer["result"]
            return result if isinstance(result, dict) else {"result": result}
        if answer["how"] in ("failed", "invalid"):
            return {"error": answer["message"]}
        if answer["how"] != "real":
            raise NotAnswered(answer["message"])
        self._running[key] = (conversation, answer["number"], _outer.get())
        _outer.set(conversation)
        return None

    async def after_tool_callback(self, *, tool_context: Any, result: Any, **_: Any) -> None:
        """Report the real tool's result."""
        await self._report(tool_context, result, failed=False)

    async def on_tool_error_callback(self, *, tool_context: Any, error: Exception, **_: Any) -> None:
        """Report the real tool's error. Cancelled tools are not reported."""
        await self._report(tool_context, {"error": str(error) or type(error).__name__}, failed=True)

    async def _report(self, tool_context: Any, result: Any, *, failed: bool) -> None:
        running = self._running.pop(_key(tool_context), None)
        if running is None:
            return
        conversation, number, before = running
        _outer.set(before)
        params = {"number": number, "result": result, "failed": failed}
        await self._post(conversation, {"method": "notifications/agentest/answered", "params": params})

    async def _post(self, conversation: str, message: dict[str, Any]) -> bytes:
        if not self._url:
            raise NotAnswered(
                "agentest_adk.MockTools: AGENTEST_MCP_URL is not set, so nobody answers in the place of the "
                "tools, and none runs. Agentest sets it where `agent.server` starts this server and the "
                "agent has `mcp_mock`; else set it, or leave the plugin out"
            )
        body = json.dumps({"jsonrpc": "2.0", **message}, default=str).encode()
        headers = {"Content-Type": "application/json", "X-Agentest-Conversation": conversation}
        request = urllib.request.Request(self._url, body, headers)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._sent, request)
        except OSError as error:
            raise NotAnswered(f"agentest_adk.MockTools: no answer of {self._url}: {error}") from error

    def _sent(self, request: urllib.request.Request) -> bytes:
        with self._direct.open(request, timeout=_TIMEOUT_S) as response:
            found: bytes = response.read()
            return found


async def is_not_confirmed(tool: Any, tool_args: Any, tool_context: Any) -> bool:
    """Return True if a tool waits for the user's confirmation, or the user has refused it."""
    given = getattr(tool_context, "tool_confirmation", None)
    check = getattr(tool, "check_require_confirmation", None)
    if check is None or (given is not None and given.confirmed):
        return False
    return bool(await check(dict(tool_args), tool_context))


def _key(tool_context: Any) -> tuple[str, str]:
    return tool_context.session.id, tool_context.function_call_id or ""


def _answer(body: bytes) -> dict[str, Any]:
    """Return Agentest's answer about a call. Raises NotAnswered."""
    try:
        found = json.loads(body)["result"]["_meta"]["agentest/answer"]
    except (ValueError, KeyError, TypeError):
        raise NotAnswered(f"agentest_adk.MockTools: not Agentest's answer: {body[:200]!r}") from None
    answer: dict[str, Any] = found
    return answer
