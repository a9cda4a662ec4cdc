"""The shop's agent behind servers with a public API: gradio, chatkit, graphql.

Nothing of the wire is written here: the libraries speak it.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime
from typing import Any

import shop
from serving import options, serve


async def answer(texts: list[str]) -> str:
    """Return the agent's reply, using the shop's own tools."""
    results: list[Any] = []
    while isinstance(step := await shop.think(texts, results), shop.Call):
        results.append(shop.run_tool(step))
    return step


def gradio(port: int) -> None:
    import gradio as gr

    async def reply(message: str, history: list[dict[str, Any]]) -> AsyncIterator[str]:
        said = [turn["content"] for turn in history if turn["role"] == "user"]
        texts = [text if isinstance(text, str) else text[0]["text"] for text in said]
        text = await answer([*texts, message])
        for length in range(1, len(text) + 1):
            yield text[:length]

    chat = gr.ChatInterface(reply, api_name="chat").queue(default_concurrency_limit=20)
    chat.launch(server_name="127.0.0.1", server_port=port)


def chatkit(port: int) -> None:
    from chatkit import types
    from chatkit.server import ChatKitServer
    from chatkit.store import Store
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    class Memory(Store[None]):
        """What a server without a database keeps. A text does nothing else, so the rest is not there."""

        def __init__(self) -> None:
            self.threads: dict[str, Any] = {}
            self.items: dict[str, list[Any]] = {}

        async def load_thread(self, thread_id: str, context: None) -> Any:
            return self.threads[thread_id]

        async def save_thread(self, thread: Any, context: None) -> None:
            self.threads[thread.id] = thread

        async def load_thread_items(
            self, thread_id: str, after: str | None, limit: int, order: str, context: None
        ) -> Any:
            items = self.items.get(thread_id, [])
            return types.Page(data=(items[::-1] if order == "desc" else items)[:limit])

        async def add_thread_item(self, thread_id: str, item: Any, context: None) -> None:
            self.items.setdefault(thread_id, []).append(item)

        async def _unused(self, *_: Any) -> Any:
            raise NotImplementedError

        save_attachment = load_attachment = delete_attachment = _unused
        load_threads = save_item = load_item = delete_thread = delete_thread_item = _unused

    class Server(ChatKitServer[None]):
        async def respond(self, thread: Any, item: Any, context: None) -> AsyncIterator[Any]:
            said = [each for each in store.items[thread.id] if each.type == "user_message"]
            text = await answer(["".join(part.text for part in each.content) for each in said])
            yield types.ProgressUpdateEvent(text="Looking")
            message = types.AssistantMessageItem(
                id=f"msg_{uuid.uuid4().hex}",
                thread_id=thread.id,
                created_at=datetime.now(),
                content=[types.AssistantMessageContent(text=text)],
            )
            yield types.ThreadItemDoneEvent(item=message)

    store = Memory()
    server = Server(store)

    async def handle(request: Request) -> StreamingResponse:
        stream = await server.process(await request.body(), None)
        return StreamingResponse(stream, media_type="text/event-stream")

    serve(Starlette(routes=[Route("/chatkit", handle, methods=["POST"])]), port)


def graphql(port: int) -> None:
    import strawberry
    from strawberry.asgi import GraphQL

    said: dict[str, list[str]] = {}

    @strawberry.type
    class Chunk:
        delta: str

    @strawberry.type
    class Query:
        name: str = "shop"

    async def resolve(text: str, session: strawberry.ID) -> AsyncGenerator[Chunk, None]:
        said.setdefault(session, []).append(text)
        for character in await answer(said[session]):
            yield Chunk(delta=character)

    # The names above are local, and annotations are texts in this module.
    resolve.__annotations__ = {"text": str, "session": strawberry.ID, "return": AsyncGenerator[Chunk, None]}

    @strawberry.type
    class Subscription:
        chat = strawberry.subscription(resolver=resolve)

    schema = strawberry.Schema(Query, subscription=Subscription)
    serve(GraphQL(schema, keep_alive=True, keep_alive_interval=0.05), port)


if __name__ == "__main__":
    given = options(api="")
    {"gradio": gradio, "chatkit": chatkit, "graphql": graphql}[given.api](given.port)
