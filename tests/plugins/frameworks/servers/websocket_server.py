"""The shop's agent behind a WebSocket of FastAPI, a socket a conversation, as a team would write it.

/chat    {"type": "user_message", text} → {"type": "tool", name, args, result}…, {"type": "token", text}…, and
         {"type": "end"}
/agent   {"type": "user", text} → {"type": "tool_call", id, name, arguments}, to which the caller says
         {"type": "tool_result", id, result}, and {"type": "assistant", text}
What goes wrong closes the socket.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import shop
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from serving import options, serve

app = FastAPI()


async def heard(socket: WebSocket) -> AsyncIterator[list[str]]:
    """The user's texts so far, each time another has come."""
    await socket.accept()
    texts: list[str] = []
    with suppress(WebSocketDisconnect):
        while True:
            texts.append((await socket.receive_json())["text"])
            yield texts


@app.websocket("/chat")
async def chat(socket: WebSocket) -> None:
    async for texts in heard(socket):
        results: list[Any] = []
        while isinstance(step := await shop.think(texts, results), shop.Call):
            results.append(shop.run_tool(step))
            told = {"name": step.name, "args": step.args, "result": results[-1]}
            await socket.send_json({"type": "tool", **told})
        for word in step.split(" "):
            await socket.send_json({"type": "token", "text": f"{word} "})
        await socket.send_json({"type": "end"})


@app.websocket("/agent")
async def agent(socket: WebSocket) -> None:
    async for texts in heard(socket):
        results: list[Any] = []
        while isinstance(step := await shop.think(texts, results), shop.Call):
            results.append(await answered(socket, step))
        await socket.send_json({"type": "assistant", "text": step})


async def answered(socket: WebSocket, call: shop.Call) -> Any:
    """What the caller answers to a call."""
    call_id = uuid.uuid4().hex
    await socket.send_json({"type": "tool_call", "id": call_id, "name": call.name, "arguments": call.args})
    answer = await socket.receive_json()
    if (answer["type"], answer["id"]) != ("tool_result", call_id):
        raise RuntimeError(f"this is not an answer to {call_id}: {answer}")
    return answer["result"]


if __name__ == "__main__":
    serve(app, options().port)
