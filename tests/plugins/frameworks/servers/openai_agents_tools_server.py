"""An agent of the OpenAI Agents SDK behind FastAPI whose tools come from an MCP server, in one long session.

`--session lazy`: it is opened by the first request, and not before.
`--tools rest`: tools that call REST with requests; `--tools own`: tools of its own. `--hook` says how it
forwards what a request says of its conversation: not at all, by the `url` in its body, or by `meta` of calls.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import own_tools
import rest_tools
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from agents.mcp import MCPServerStreamableHttp
from errands import ASKED, add_chat, mcp_url, next_round
from fastapi import FastAPI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from serving import options, serve

LIMIT_S = 60
TOOLS = {"rest": rest_tools.TOOLS, "own": own_tools.TOOLS}


class ScriptedModel(Model):
    """Says what the script says."""

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **more: Any
    ) -> ModelResponse:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        text = next(item["content"] for item in items if item.get("role") == "user")
        step = next_round(text, [_text(item["output"]) for item in items if "output" in item])
        made = [_message(step)] if isinstance(step, str) else [_call(call.name, call.args) for call in step]
        return ModelResponse(output=made, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def _text(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output)


def _message(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(
        id="m1", type="message", role="assistant", status="completed", content=[content]
    )


def _call(name: str, args: dict[str, Any]) -> ResponseFunctionToolCall:
    call_id = f"call_{uuid.uuid4().hex}"
    return ResponseFunctionToolCall(
        type="function_call", call_id=call_id, name=name, arguments=json.dumps(args)
    )


def with_meta(_: Any) -> dict[str, str]:
    """The one hook that a team would write."""
    return ASKED.get().meta


def shop_server(url: str, hook: str) -> MCPServerStreamableHttp:
    return MCPServerStreamableHttp(
        {"url": url, "timeout": LIMIT_S},
        cache_tools_list=True,
        client_session_timeout_seconds=LIMIT_S,
        tool_meta_resolver=with_meta if hook == "meta" else None,
    )


def make_agent(**more: Any) -> Agent[None]:
    return Agent(name="shop", model=ScriptedModel(), **more)


def make_app(kind: str, hook: str, session: str) -> FastAPI:
    agents: list[Agent[None]] = []
    opening = asyncio.Lock()

    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        if kind != "mcp":
            agents.append(make_agent(tools=[function_tool(function) for function in TOOLS[kind]]))
            yield
        elif hook == "url" or session == "lazy":
            yield
        else:
            async with shop_server(mcp_url(), hook) as server:
                agents.append(make_agent(mcp_servers=[server]))
                yield

    async def open_late() -> None:
        async with opening:
            if not agents:
                server = shop_server(mcp_url(), hook)
                await server.connect()
                agents.append(make_agent(mcp_servers=[server]))

    async def answer(message: str) -> str:
        if session == "lazy":
            await open_late()
        if agents:
            return await run(agents[0], message)
        async with shop_server(ASKED.get().mcp_url, hook) as server:
            return await run(make_agent(mcp_servers=[server]), message)

    app = FastAPI(lifespan=opened)
    add_chat(app, answer)
    return app


async def run(agent: Agent[None], message: str) -> str:
    return str((await Runner.run(agent, message)).final_output)


if __name__ == "__main__":
    chosen = options(tools="mcp", hook="none", session="long")
    serve(make_app(chosen.tools, chosen.hook, chosen.session), chosen.port)
