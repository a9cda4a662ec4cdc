"""The shop's agent in the OpenAI Agents SDK, behind FastAPI, as a team would write it.

POST /chat          {message, session_id} → {reply, session_id, tools: [{tool, input, output}]}
POST /chat/stream   server-sent events: `session`, `tool`, `token`, and [DONE]
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import shop
from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    RunResult,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic import BaseModel
from serving import options, serve

set_tracing_disabled(True)


def read(items: list[Any]) -> tuple[list[str], list[Any]]:
    """The user's texts, and the results since the last of them."""
    texts: list[str] = []
    results: list[Any] = []
    for item in items:
        if item.get("type") == "function_call_output":
            results.append(item["output"])
        elif item.get("role") == "user":
            texts.append(item["content"])
            results = []
    return texts, results


class ScriptedModel(Model):
    """Says what the script says."""

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **more: Any
    ) -> ModelResponse:
        step = await shop.think(*read(input))
        item = _message(step) if isinstance(step, str) else _call(step)
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def _message(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(
        id="m1", type="message", role="assistant", status="completed", content=[content]
    )


def _call(call: shop.Call) -> ResponseFunctionToolCall:
    arguments = json.dumps(call.args)
    return ResponseFunctionToolCall(
        type="function_call", call_id=f"call_{uuid.uuid4().hex}", name=call.name, arguments=arguments
    )


tools = [function_tool(tool) for tool in (shop.check_stock, shop.reserve_item, shop.search)]
agent = Agent(name="shop", model=ScriptedModel(), tools=tools)
app = FastAPI()
sessions: dict[str, SQLiteSession] = {}


class Question(BaseModel):
    message: str
    session_id: str | None = None


async def run(question: Question) -> tuple[str, RunResult]:
    session_id = question.session_id or uuid.uuid4().hex
    session = sessions.setdefault(session_id, SQLiteSession(session_id))
    return session_id, await Runner.run(agent, question.message, session=session)


def calls_of(result: RunResult) -> list[dict[str, Any]]:
    raw = [item.raw_item for item in result.new_items]
    outputs = {item["call_id"]: item["output"] for item in raw if isinstance(item, dict)}
    return [
        {"tool": item.name, "input": json.loads(item.arguments), "output": outputs.get(item.call_id)}
        for item in raw
        if isinstance(item, ResponseFunctionToolCall)
    ]


@app.post("/chat")
async def chat(question: Question) -> dict[str, Any]:
    session_id, result = await run(question)
    return {"reply": result.final_output, "session_id": session_id, "tools": calls_of(result)}


@app.post("/chat/stream")
async def streamed(question: Question) -> StreamingResponse:
    return StreamingResponse(events(question), media_type="text/event-stream")


async def events(question: Question) -> AsyncIterator[str]:
    session_id, result = await run(question)
    yield _event("session", {"session_id": session_id})
    for call in calls_of(result):
        yield _event("tool", call)
    for word in result.final_output.split(" "):
        yield _event("token", {"text": f"{word} "})
    yield "data: [DONE]\n\n"


def _event(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


if __name__ == "__main__":
    serve(app, options().port)
