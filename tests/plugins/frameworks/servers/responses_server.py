"""The shop's agent behind the Responses protocol, on Microsoft's host for agents: POST /responses.

It runs its own tools and reports them; with --client-tools it leaves its calls to the caller.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import shop
from azure.ai.agentserver.responses import (
    CreateResponse,
    ResponseContext,
    ResponseEventStream,
    ResponsesAgentServerHost,
)
from serving import options


def read(items: list[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """The user's texts, and the results since the last of them."""
    texts: list[str] = []
    results: list[Any] = []
    for item in items:
        if item.get("type") == "function_call_output":
            results.append(item["output"])
        elif item.get("role") == "user":
            content = item["content"]
            texts.append(content if isinstance(content, str) else "".join(part["text"] for part in content))
            results = []
    return texts, results


async def events(request: CreateResponse, context: ResponseContext, client_tools: bool) -> AsyncIterator[Any]:
    stream = ResponseEventStream(response_id=context.response_id, request=request)
    yield stream.emit_created()
    yield stream.emit_in_progress()
    items = [*await context.get_history(), *await context.get_input_items()]
    texts, results = read([dict(item) for item in items])
    while isinstance(step := await shop.think(texts, results), shop.Call):
        call_id = f"call_{uuid.uuid4().hex}"
        for event in stream.output_item_function_call(step.name, call_id, json.dumps(step.args)):
            yield event
        if client_tools:
            yield stream.emit_completed()
            return
        results.append(json.dumps(shop.run_tool(step)))
        for event in stream.output_item_function_call_output(call_id, results[-1]):
            yield event
    for event in stream.output_item_message(step):
        yield event
    incomplete = texts[-1] == "incomplete"
    yield stream.emit_incomplete(reason="max_output_tokens") if incomplete else stream.emit_completed()


if __name__ == "__main__":
    chosen = options(client_tools=False)
    app = ResponsesAgentServerHost()

    @app.response_handler
    async def answer(
        request: CreateResponse, context: ResponseContext, cancelled: asyncio.Event
    ) -> AsyncIterator[Any]:
        async for event in events(request, context, chosen.client_tools):
            yield event

    app.run(host="127.0.0.1", port=chosen.port)
