"""The tools of a google-adk agent, answered by Agentest's mocks: `--extra_plugins agentest_adk.MockTools`.

This file needs google-adk and nothing else, not even Agentest. Before a tool runs, it asks the MCP server of
the run (AGENTEST_MCP_URL) for the answer; the real tool runs only where that server says so.
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
"""What leads agents and asks people: these run as ever."""
_TIMEOUT_S = 3600.0
"""Mocks have a time limit of their own, which the run knows."""
_AT_ONCE = 256
_outer: ContextVar[str | None] = ContextVar("agentest_outer", default=None)
"""The conversation in whose tool an agent of its own runs (AgentTool): that one has a session of its own."""


class NotAnswered(RuntimeError):
    """No mock has answered a tool call, and the real tool has not run."""


class MockTools(BasePlugin):  # type: ignore[misc, unused-ignore]
    """Asks the mocks before each tool runs."""

    def __init__(self, name: str = "agentest", url: str | None = None) -> None:
        """`url`: where the run's MCP server is; default: AGENTEST_MCP_URL."""
        super().__init__(name=name)
        self._url = url or os.environ.get("AGENTEST_MCP_URL")
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="agentest")
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._running: dict[tuple[str, str], tuple[str, int, str | None]] = {}
        """The real tools that run, by session and call: conversation, number, and what `_outer` was."""

    async def before_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any
    ) -> dict[str, Any] | None:
        """The mock's answer; None: the tool runs. Raises NotAnswered."""
        if tool.name in FRAMEWORK_TOOLS or getattr(tool, "_defers_response", False):
            return None
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
        """Tell what the real tool answered."""
        await self._tell(tool_context, result, failed=False)

    async def on_tool_error_callback(self, *, tool_context: Any, error: Exception, **_: Any) -> None:
        """Tell what the real tool raised; of one that is cancelled nothing is known."""
        words = str(error) or type(error).__name__
        await self._tell(tool_context, {"error": words}, failed=True)

    async def _tell(self, tool_context: Any, result: Any, *, failed: bool) -> None:
        running = self._running.pop(_key(tool_context), None)
        if running is None:
            return
        conversation, number, before = running
        _outer.set(before)
        params = {"number": number, "result": result, "failed": failed}
        told = {"method": "notifications/agentest/answered", "params": params}
        await self._post(conversation, told)

    async def _post(self, conversation: str, message: dict[str, Any]) -> bytes:
        """Send a message for a conversation. Returns the body of the answer."""
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


def _key(tool_context: Any) -> tuple[str, str]:
    return tool_context.session.id, tool_context.function_call_id or ""


def _answer(body: bytes) -> dict[str, Any]:
    """What became of a call. Raises NotAnswered."""
    try:
        found = json.loads(body)["result"]["_meta"]["agentest/answer"]
    except (ValueError, KeyError, TypeError):
        raise NotAnswered(f"agentest_adk.MockTools: not Agentest's answer: {body[:200]!r}") from None
    answer: dict[str, Any] = found
    return answer
