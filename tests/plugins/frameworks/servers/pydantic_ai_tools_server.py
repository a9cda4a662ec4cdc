"""A pydantic-ai agent whose tools come from an MCP server, behind FastAPI (/chat) and AG-UI (/ag-ui).

`--tools rest`: tools that call REST with requests; `--tools own`: tools of its own. `--hook` says how it
forwards what a request says of its conversation: not at all, by the `url` in its body, or by `meta` of calls.
`--instrument`: it sends spans of its tools.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import own_tools
import rest_tools
from errands import ASKED, add_chat, mcp_url, next_round
from fastapi import FastAPI, Request, Response
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.ui.ag_ui import AGUIAdapter
from serving import options, serve

TOOLS = {"rest": rest_tools.TOOLS, "own": own_tools.TOOLS}


def step_of(messages: list[ModelMessage]) -> Any:
    text, results = "", []
    for part in (part for message in messages if isinstance(message, ModelRequest) for part in message.parts):
        if isinstance(part, UserPromptPart):
            text, results = _text(part.content), []
        elif isinstance(part, ToolReturnPart):
            results.append(part.model_response_str())
    return next_round(text, results)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(map(str, content))


async def answer_of(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    step = step_of(messages)
    if isinstance(step, str):
        return ModelResponse(parts=[TextPart(step)])
    return ModelResponse(parts=[ToolCallPart(call.name, call.args) for call in step])


async def stream_of(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    step = step_of(messages)
    if isinstance(step, str):
        yield step
        return
    yield {at: DeltaToolCall(name=call.name, json_args=json.dumps(call.args)) for at, call in enumerate(step)}


async def with_meta(_: Any, call_tool: Any, name: str, args: dict[str, Any]) -> Any:
    """The one hook that a team would write."""
    return await call_tool(name, args, metadata=ASKED.get().meta)


def make_agent(**more: Any) -> Agent[None, str]:
    return Agent(FunctionModel(answer_of, stream_function=stream_of), name="shop", **more)


def mcp_agent(url: str, hook: str) -> Agent[None, str]:
    process = with_meta if hook == "meta" else None
    return make_agent(toolsets=[MCPToolset(url, process_tool_call=process)])


def shop_agent(kind: str, hook: str) -> Agent[None, str] | None:
    """The agent of all requests; None: each brings an address of its own."""
    if kind != "mcp":
        return make_agent(tools=TOOLS[kind])
    return None if hook == "url" else mcp_agent(mcp_url(), hook)


def make_app(agent: Agent[None, str] | None) -> FastAPI:
    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        """One session for all requests, as the documentation recommends it."""
        if agent is None:
            yield
        else:
            async with agent:
                yield

    async def answer(message: str) -> str:
        asked = agent or mcp_agent(ASKED.get().mcp_url, "url")
        return str((await asked.run(message)).output)

    app = FastAPI(lifespan=opened)
    add_chat(app, answer)

    @app.post("/ag-ui")
    async def ag_ui(request: Request) -> Response:
        return await AGUIAdapter.dispatch_request(request, agent=agent)

    return app


if __name__ == "__main__":
    chosen = options(tools="mcp", hook="none", instrument=False)
    if chosen.instrument:
        Agent.instrument_all()
    serve(make_app(shop_agent(chosen.tools, chosen.hook)), chosen.port)
