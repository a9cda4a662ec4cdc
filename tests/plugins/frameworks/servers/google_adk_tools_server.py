"""A google-adk agent behind FastAPI whose tools come from an MCP server, by McpToolset.

`--tools rest`: tools that call REST with requests; `--tools own`: tools of its own. `--hook` says how it
forwards what a request says of its conversation: not at all, by the `url` in its body, or by a `header`.
The same agent for `adk api_server`: adk_apps.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import own_tools
import rest_tools
from errands import ASKED, add_chat, mcp_url, next_round
from fastapi import FastAPI
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.genai.types import Content, FunctionCall, Part
from serving import options, serve

LIMIT_S = 60
TOOLS = {"rest": rest_tools.TOOLS, "own": own_tools.TOOLS}


class ScriptedModel(BaseLlm):
    """Says what the script says."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        step = next_round(*read(llm_request.contents))
        if isinstance(step, str):
            parts = [Part(text=step)]
        else:
            parts = [Part(function_call=FunctionCall(name=call.name, args=call.args)) for call in step]
        yield LlmResponse(content=Content(role="model", parts=parts))


def read(contents: list[Content]) -> tuple[str, list[str]]:
    """The user's last text, and the results since then."""
    text, results = "", []
    for part in (part for content in contents if content.role == "user" for part in content.parts or []):
        if part.function_response:
            results.append(json.dumps(part.function_response.response))
        elif part.text:
            text, results = part.text, []
    return text, results


def with_header(_: Any) -> dict[str, str]:
    """The one hook that a team would write."""
    return ASKED.get().headers


def mcp_tools(url: str, hook: str) -> McpToolset:
    return McpToolset(
        connection_params=StreamableHTTPConnectionParams(url=url, timeout=LIMIT_S),
        header_provider=with_header if hook == "header" else None,
    )


def make_agent(tools: list[Any]) -> LlmAgent:
    return LlmAgent(name="shop", model=ScriptedModel(model="scripted"), description="A shop.", tools=tools)


def shop_tools(kind: str, hook: str) -> list[Any]:
    return [mcp_tools(mcp_url(), hook)] if kind == "mcp" else TOOLS[kind]


async def run(runner: InMemoryRunner, message: str) -> str:
    """The text of the last event. A conversation of its own for each message."""
    session = await runner.session_service.create_session(
        app_name="shop", user_id="u", session_id=uuid.uuid4().hex
    )
    reply = ""
    said = Content(role="user", parts=[Part(text=message)])
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=said):
        reply = "".join(part.text or "" for part in event.content.parts) if event.content else reply
    return reply


def make_app(kind: str, hook: str) -> FastAPI:
    runners = [] if hook == "url" else [InMemoryRunner(make_agent(shop_tools(kind, hook)), app_name="shop")]

    async def answer(message: str) -> str:
        if runners:
            return await run(runners[0], message)
        tools = mcp_tools(ASKED.get().mcp_url, hook)
        try:
            return await run(InMemoryRunner(make_agent([tools]), app_name="shop"), message)
        finally:
            await tools.close()

    app = FastAPI()
    add_chat(app, answer)
    return app


if __name__ == "__main__":
    chosen = options(tools="mcp", hook="none")
    serve(make_app(chosen.tools, chosen.hook), chosen.port)
