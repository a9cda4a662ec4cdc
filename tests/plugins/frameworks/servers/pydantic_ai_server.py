"""The shop's agent in pydantic-ai, behind AG-UI, the protocol of the Vercel AI SDK, or A2A."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import shop
from fastapi import FastAPI, Request, Response
from pydantic_ai import Agent, DeferredToolRequests
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
from serving import options, serve


def read(messages: list[ModelMessage]) -> tuple[list[str], list[Any]]:
    """The user's texts, and the results since the last of them."""
    texts: list[str] = []
    results: list[Any] = []
    for part in (part for message in messages if isinstance(message, ModelRequest) for part in message.parts):
        if isinstance(part, UserPromptPart):
            texts.append(part.content if isinstance(part.content, str) else "".join(map(str, part.content)))
            results = []
        elif isinstance(part, ToolReturnPart):
            results.append(part.content)
    return texts, results


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    step = await shop.think(*read(messages))
    return ModelResponse(
        parts=[TextPart(step) if isinstance(step, str) else ToolCallPart(step.name, step.args)]
    )


async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Texts word by word, arguments in two pieces."""
    step = await shop.think(*read(messages))
    if isinstance(step, shop.Call):
        arguments = json.dumps(step.args)
        yield {0: DeltaToolCall(name=step.name, json_args=arguments[:4])}
        yield {0: DeltaToolCall(json_args=arguments[4:])}
        return
    for word in step.split(" "):
        yield f"{word} "


def make_agent(own_tools: bool, approvals: bool) -> Agent[None, Any]:
    output = [str, DeferredToolRequests] if approvals else str
    agent = Agent(FunctionModel(answer, stream_function=stream), name="shop", output_type=output)
    if own_tools:
        for tool in (shop.check_stock, shop.reserve_item, shop.search):
            agent.tool_plain(tool)
        agent.tool_plain(requires_approval=approvals)(shop.place_order)
    return agent


def make_app(agent: Agent[None, Any], protocol: str, path: str) -> FastAPI:
    from pydantic_ai.ui.ag_ui import AGUIAdapter
    from pydantic_ai.ui.vercel_ai import VercelAIAdapter

    app = FastAPI()

    @app.post(path)
    async def run(request: Request) -> Response:
        if protocol == "ag_ui":
            return await AGUIAdapter.dispatch_request(request, agent=agent)
        return await VercelAIAdapter.dispatch_request(request, agent=agent, sdk_version=6)

    return app


if __name__ == "__main__":
    chosen = options(protocol="ag_ui", client_tools=False)
    if chosen.protocol == "a2a":
        from fasta2a.pydantic_ai import agent_to_a2a

        url = f"http://127.0.0.1:{chosen.port}"
        serve(agent_to_a2a(make_agent(own_tools=True, approvals=False), url=url), chosen.port)
    else:
        made = make_agent(own_tools=not chosen.client_tools, approvals=True)
        serve(make_app(made, chosen.protocol, chosen.path), chosen.port)
