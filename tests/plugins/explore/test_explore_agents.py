"""Explorations of several agents, one of them exclusive, whose tools are behind an HTTP mock server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from http_agents import served
from project import Project

SCENARIOS = """
TOOLS = {"create_refund": {"refund": "R-4711"}}
ASK = ["Please refund order A-17."]
scenario("refunds", turns=ASK, tools=TOOLS)
scenario("refunds well", turns=ASK, tools=TOOLS, agent="good")
"""
SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
OPERATION = {
    "operationId": "create_refund",
    "requestBody": {"content": {"application/json": {"schema": SCHEMA}}},
    "responses": {"200": {"description": "made", "content": {"application/json": {"schema": {}}}}},
}
DOCUMENT = {
    "openapi": "3.0.0",
    "info": {"title": "Refunds", "version": "1"},
    "paths": {"/refunds": {"post": OPERATION}},
}


class Clerks:
    """Two agents at one address: `/bad` repeats a refund that failed."""

    def __init__(self) -> None:
        self.now = self.most = 0
        """How many conversations with the good one run at once."""

    async def _refund(self, at: str) -> Any:
        async with aiohttp.ClientSession() as session, session.post(at, json={"order": "A-17"}) as response:
            try:
                return await response.json(content_type=None)
            except ValueError:
                return None

    async def reply(self, request: web.Request) -> web.Response:
        is_good = request.path == "/good"
        self.now += is_good
        self.most = max(self.most, self.now)
        at = f"{(await request.json())['tools_at']}/refunds"
        answer = await self._refund(at)
        if not is_good and isinstance(answer, dict) and "error" in answer:
            answer = await self._refund(at)
        is_made = isinstance(answer, dict) and "refund" in answer
        self.now -= is_good
        return web.json_response(
            {"reply": "It is refunded." if is_made else "Sorry, I cannot tell if it worked."}
        )

    @contextmanager
    def serve(self) -> Iterator[str]:
        routes = {"POST /good": self.reply, "POST /bad": self.reply}
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(served(routes)) as url:
            yield url


def test_agents_with_an_http_mock_server_are_explored_and_exclusive_ones_one_by_one(tmp_path: Path) -> None:
    project, clerks = Project(tmp_path), Clerks()
    project.scenario(SCENARIOS)
    project.write("openapi.json", json.dumps(DOCUMENT))
    with clerks.serve() as url:

        def agent(name: str, **more: Any) -> dict[str, Any]:
            body = {"message": "{{message}}", "tools_at": "{{rest_url}}"}
            of_all = {
                "type": "http",
                "body": body,
                "reply": "reply",
                "rest_mock": {"openapi": "openapi.json"},
            }
            return {**of_all, "endpoint": f"{url}/{name}", **more}

        agents = {"good": agent("good", exclusive=True)}
        project.config("", agent=agent("bad"), agents=agents)
        faults = "--faults=error,applied_then_timeout"
        done = project.agentest("explore", "--offline", faults, "--conversations=40", "--no-shrink", "-q")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "create_refund is repeated after applied_then_timeout" in done.stdout
    latest = max((tmp_path / ".agentest" / "runs").iterdir())
    document = json.loads((latest / "results.json").read_text())
    assert [each["scenario"] for each in document["findings"]] == ["refunds"]
    assert document["explored"]["tries"] == 4
    assert clerks.most == 1
