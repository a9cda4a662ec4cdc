"""A shop's agent as a team would write it with LiveKit Agents; its model follows rules."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from livekit.agents import Agent, AgentSession, RunContext, function_tool, llm
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS
from shop_talk import next_step, ran


class _Stream(llm.LLMStream):
    async def _run(self) -> None:
        items = self._chat_ctx.items
        said = [item.text_content or "" for item in items if item.type == "message" and item.role == "user"]
        last_user = max(i for i, item in enumerate(items) if item.type == "message" and item.role == "user")
        results = [item.output for item in items[last_user:] if item.type == "function_call_output"]
        step = next_step(said, results)
        if isinstance(step, str):
            delta = llm.ChoiceDelta(role="assistant", content=step)
        else:
            call = llm.FunctionToolCall(name=step[0], arguments=json.dumps(step[1]), call_id=uuid4().hex)
            delta = llm.ChoiceDelta(role="assistant", tool_calls=[call])
        self._event_ch.send_nowait(llm.ChatChunk(id=uuid4().hex, delta=delta))


class Rules(llm.LLM):
    def chat(self, *, chat_ctx: Any, tools: Any = None, **_: Any) -> _Stream:
        return _Stream(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=DEFAULT_API_CONNECT_OPTIONS)


class Shop(Agent):
    def __init__(self) -> None:
        super().__init__(instructions="You sell lamps.", llm=Rules())

    @function_tool
    async def check_stock(self, item: str) -> str:
        return ran(f"looked for {item}")

    @function_tool
    async def reserve_item(self, item: str, quantity: int) -> str:
        return ran(f"reserved {quantity} {item}")

    @function_tool
    async def lift(self, item: str) -> str:
        raise RuntimeError(f"the {item} fell")

    @function_tool
    async def customer(self, ctx: RunContext[Any]) -> str:
        return str(ctx.userdata)


def agent() -> Agent:
    return Shop()


async def session() -> Any:
    """A session that is started as LiveKit's own tests start it."""
    started: AgentSession[Any] = AgentSession(llm=Rules(), userdata="Ann")
    await started.start(Shop())
    return started


used = Shop()


def context() -> str:
    return "Bob"
