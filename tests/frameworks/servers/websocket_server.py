"""The shop's agent behind a WebSocket of FastAPI, a socket a conversation, as a team would write it.

/ws         {"text": "…"} → {"type": "tool", name, args, result}…, {"type": "token", text}…, {"type": "done"}
/ws/tools   the caller answers the tools: {"type": "tool_call", id, name, args},
            and it says {"type": "tool_result", id, result}
What goes wrong is {"type": "error", "message": "…"}.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import shop
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from serving import options, serve

app = FastAPI()


@app.websocket("/ws")
async def with_own_tools(socket: WebSocket) -> None:
    async def ask(call: shop.Call) -> Any:
        told = {"name": call.name, "args": call.args, "result": shop.run_tool(call)}
        await socket.send_json({"type": "tool", **told})
        return told["result"]

    await converse(socket, ask)


@app.websocket("/ws/tools")
async def with_tools_of_the_caller(socket: WebSocket) -> None:
    async def ask(call: shop.Call) -> Any:
        call_id = uuid.uuid4().hex
        await socket.send_json({"type": "tool_call", "id": call_id, "name": call.name, "args": call.args})
        answer = await socket.receive_json()
        if answer["id"] != call_id:
            raise RuntimeError(f"this is no answer to {call_id}: {answer}")
        return answer["result"]

    await converse(socket, ask)


Ask = Callable[[shop.Call], Awaitable[Any]]


async def converse(socket: WebSocket, ask: Ask) -> None:
    await socket.accept()
    texts: list[str] = []
    with suppress(WebSocketDisconnect):
        while True:
            texts.append((await socket.receive_json())["text"])
            try:
                await answer(socket, texts, ask)
            except RuntimeError as error:
                await socket.send_json({"type": "error", "message": str(error)})


async def answer(socket: WebSocket, texts: list[str], ask: Ask) -> None:
    results: list[Any] = []
    while isinstance(step := await shop.think(texts, results), shop.Call):
        results.append(await ask(step))
    for word in step.split(" "):
        await socket.send_json({"type": "token", "text": f"{word} "})
    await socket.send_json({"type": "done", "text": step})


if __name__ == "__main__":
    serve(app, options().port)
