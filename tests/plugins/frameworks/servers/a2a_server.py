"""The shop's agent on the A2A project's own SDK: version 1 (A2A 1.0 and 0.3 on one address), or version 0.3.

Beside the words of the shop: "message X" is answered with a message and no task, "two X" with two artifacts,
"pieces X" with one in pieces; "failed", "reject" and "auth" end in these states; "ask X" asks for input.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import shop
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill
from serving import options, serve

try:
    from a2a.helpers import new_task_from_user_message as new_task
    from a2a.helpers import new_text_message, new_text_part
except ImportError:  # 0.3
    from a2a.types import Part, TextPart
    from a2a.utils import new_agent_text_message as new_text_message
    from a2a.utils import new_task

    def new_text_part(text: str) -> Part:
        return Part(root=TextPart(text=text))


class ShopExecutor(AgentExecutor):
    """The script, with tools of its own, for whose calls A2A has no place."""

    def __init__(self) -> None:
        self._heard: dict[str, list[str]] = defaultdict(list)
        self._asked: set[str] = set()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        if text.startswith("message "):
            await event_queue.enqueue_event(
                new_text_message(f"You said: {text}", context_id=context.context_id)
            )
            return
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        await self._work(text, TaskUpdater(event_queue, task.id, task.context_id))

    async def _work(self, text: str, updater: TaskUpdater) -> None:
        word, _, rest = text.partition(" ")
        ends = {"failed": updater.failed, "reject": updater.reject, "auth": updater.requires_auth}
        if updater.task_id in self._asked:
            self._asked.discard(updater.task_id)
            await self._finish(updater, "Ordered." if text == "yes" else "Not ordered.")
        elif word == "ask":
            self._asked.add(updater.task_id)
            await updater.requires_input(_message(updater, f"Order {rest}?"))
        elif word in ends:
            await ends[word](_message(updater, f"{word}: the shop is closed"))
        elif word == "two":
            await self._finish(updater, "First.", f"Second: {rest}")
        elif word == "pieces":
            await self._in_pieces(updater, rest)
        else:
            await updater.start_work(_message(updater, "Let me see."))
            await self._finish(updater, await self._answer(updater.context_id, text))

    async def _answer(self, context_id: str, text: str) -> str:
        self._heard[context_id].append(text)
        results: list[Any] = []
        while isinstance(step := await shop.think(self._heard[context_id], results), shop.Call):
            results.append(json.dumps(shop.run_tool(step)))
        return step

    async def _finish(self, updater: TaskUpdater, *texts: str) -> None:
        for text in texts:
            await updater.add_artifact([new_text_part(text)])
        await updater.complete()

    async def _in_pieces(self, updater: TaskUpdater, text: str) -> None:
        await updater.start_work()
        pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
        for number, piece in enumerate(pieces):
            more = {"append": number > 0, "last_chunk": number == len(pieces) - 1}
            await updater.add_artifact([new_text_part(piece)], artifact_id="a1", **more)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def _message(updater: TaskUpdater, text: str) -> Any:
    return updater.new_agent_message([new_text_part(text)])


def make_card(streaming: bool, **more: Any) -> AgentCard:
    return AgentCard(
        name="shop",
        description="A shop.",
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="shop", name="shop", description="Sells lamps.", tags=["shop"])],
        **more,
    )


def app_of_1(url: str, streaming: bool) -> Any:
    from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
    from a2a.types import AgentInterface
    from starlette.applications import Starlette

    spoken = (("JSONRPC", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "1.0"))
    interfaces = [
        AgentInterface(url=url, protocol_binding=way, protocol_version=number) for way, number in spoken
    ]
    card = make_card(streaming, supported_interfaces=interfaces)
    handler = DefaultRequestHandler(ShopExecutor(), InMemoryTaskStore(), card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)]
    return Starlette(routes=[*routes, *create_rest_routes(handler, enable_v0_3_compat=True)])


def app_of_0_3(url: str, streaming: bool) -> Any:
    from a2a.server.apps import A2AStarletteApplication

    handler = DefaultRequestHandler(ShopExecutor(), InMemoryTaskStore())
    return A2AStarletteApplication(make_card(streaming, url=url), handler).build()


if __name__ == "__main__":
    chosen = options(sdk="1", no_streaming=False)
    make_app = app_of_1 if chosen.sdk == "1" else app_of_0_3
    serve(make_app(f"http://127.0.0.1:{chosen.port}/", not chosen.no_streaming), chosen.port)
