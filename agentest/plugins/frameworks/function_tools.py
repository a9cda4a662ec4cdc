"""Tools that ask the mocks before they run: `agentest.mocks.wrap`.

A program that Agentest has started asks the mock server of the run. A program in which Agentest runs asks the
mocks of the conversation. Anywhere else, `wrap` returns the function that it is given.

This file needs only Python, so it works where Agentest is not installed: `python -m
agentest.mocks.function_tools > agentest_tools.py` writes it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import os
import sys
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])
_TIMEOUT_S = 3600.0  # the limit for one request. Mocks have a shorter time limit, which the run enforces.


class ToolNotRun(RuntimeError):
    """No mock answered a tool call, and the real tool did not run."""


def wrap(function: _F) -> _F:
    """Return a function, plain or async, whose calls the mocks answer during a run.

    Name, docstring and signature stay the same, so any framework makes the same tool of it. Use it as a
    decorator below that of the framework. Raises TypeError for anything else, such as a tool of a framework.
    """
    url = os.environ.get("AGENTEST_MCP_URL")
    calling = sys.modules.get("agentest.support.calling")
    if not url and calling is None:
        return function
    if not inspect.isroutine(function):
        raise TypeError(
            f"agentest.mocks.wrap takes a function, not a {type(function).__name__}: write it below the "
            "decorator of the framework"
        )
    if url and not (calling and calling.is_run_in_progress()):
        server = _MockServer(url)
        return _asking(function, lambda _: server)
    gates = importlib.import_module("agentest.plugins.frameworks.tool_gate")
    return _asking(function, gates.gate_for_wrapped_tool)


def _asking(function: _F, find: Callable[[str], Any]) -> _F:
    name = function.__name__

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def answered_async(*args: Any, **kwargs: Any) -> Any:
            gate = find(name)
            if gate is None:
                return await function(*args, **kwargs)
            arguments = _arguments(function, args, kwargs)
            return (await gate.answer(name, arguments, lambda: function(*args, **kwargs))).value

        return cast("_F", answered_async)

    @functools.wraps(function)
    def answered(*args: Any, **kwargs: Any) -> Any:
        gate = find(name)
        if gate is None:
            return function(*args, **kwargs)
        arguments = _arguments(function, args, kwargs)
        return gate.answer_plainly(name, arguments, lambda: function(*args, **kwargs)).value

    return cast("_F", answered)


class _MockServer:
    """Answers calls by the mock server of the run, as the gate of a conversation in this process does."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def answer(self, name: str, args: Any, run: Callable[[], Any]) -> SimpleNamespace:
        answer = await asyncio.to_thread(self._begin, name, args)
        if answer["how"] != "real":
            return SimpleNamespace(value=_value(answer))
        try:
            result = await run()
        except Exception as error:
            await asyncio.to_thread(self._report, answer, {"error": str(error)}, failed=True)
            raise
        await asyncio.to_thread(self._report, answer, result)
        return SimpleNamespace(value=result)

    def answer_plainly(self, name: str, args: Any, run: Callable[[], Any]) -> SimpleNamespace:
        answer = self._begin(name, args)
        if answer["how"] != "real":
            return SimpleNamespace(value=_value(answer))
        try:
            result = run()
        except Exception as error:
            self._report(answer, {"error": str(error)}, failed=True)
            raise
        self._report(answer, result)
        return SimpleNamespace(value=result)

    def _begin(self, name: str, args: Any) -> dict[str, Any]:
        params = {"name": name, "arguments": args, "_meta": {"agentest/caller": "python"}}
        return _answer(_post(self._url, {"id": 1, "method": "tools/call", "params": params}), self._url)

    def _report(self, answer: dict[str, Any], result: Any, *, failed: bool = False) -> None:
        params = {"number": answer["number"], "result": result, "failed": failed}
        _post(self._url, {"method": "notifications/agentest/answered", "params": params})


def _arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    named = dict(zip(inspect.signature(function).parameters, args, strict=False)) | kwargs
    found: dict[str, Any] = {}
    for name, value in named.items():
        try:
            found[name] = json.loads(json.dumps(value, default=_plain))
        except (TypeError, ValueError):
            continue
    return found


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # of pydantic
        return value.model_dump(mode="json")
    raise TypeError


def _value(answer: dict[str, Any]) -> Any:
    """Return the mock's answer. Raises ToolNotRun."""
    if answer["how"] == "answered":
        return answer["result"]
    if answer["how"] in ("failed", "invalid"):
        return {"error": answer["message"]}
    raise ToolNotRun(answer["message"])


def _post(url: str, message: dict[str, Any]) -> bytes:
    headers = {"Content-Type": "application/json"}
    if "opentelemetry.propagate" in sys.modules:  # names the conversation, if the agent is instrumented
        sys.modules["opentelemetry.propagate"].inject(headers)
    body = json.dumps({"jsonrpc": "2.0", **message}, default=str).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, body, headers), timeout=_TIMEOUT_S) as response:
            found: bytes = response.read()
            return found
    except OSError as error:
        raise ToolNotRun(f"agentest.mocks.wrap: no answer of {url}: {error}") from error


def _answer(body: bytes, url: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(body)["result"]["_meta"]["agentest/answer"]
    except (ValueError, KeyError, TypeError):
        raise ToolNotRun(f"agentest.mocks.wrap: not Agentest's answer of {url}: {body[:200]!r}") from None
    return found
