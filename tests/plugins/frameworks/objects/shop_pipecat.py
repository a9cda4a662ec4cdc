"""A shop's agent as a team would write it with Pipecat; its model follows rules."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pipecat.frames.frames import (
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.llm_service import FunctionCallFromLLM, LLMService
from shop_talk import next_step, ran


class Rules(LLMService):
    async def process_frame(self, frame: Any, direction: Any) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        messages = frame.context.messages
        said = [each["content"] for each in messages if each["role"] == "user"]
        last_user = max(at for at, each in enumerate(messages) if each["role"] == "user")
        results = [str(each["content"]).strip('"') for each in messages[last_user:] if each["role"] == "tool"]
        step = next_step(said, results)
        await self.push_frame(LLMFullResponseStartFrame())
        if isinstance(step, str):
            for piece in (step[:4], step[4:]):
                await self.push_frame(LLMTextFrame(piece))
        else:
            call = FunctionCallFromLLM(
                function_name=step[0], tool_call_id=uuid4().hex, arguments=step[1], context=frame.context
            )
            await self.run_function_calls([call])
        await self.push_frame(LLMFullResponseEndFrame())


async def check_stock(params: Any) -> None:
    await params.result_callback(ran(f"looked for {params.arguments['item']}"))


async def reserve_item(params: Any) -> None:
    await params.result_callback(ran(f"reserved {params.arguments['quantity']} {params.arguments['item']}"))


async def lift(params: Any) -> None:
    raise RuntimeError(f"the {params.arguments['item']} fell")


async def customer(params: Any) -> None:
    await params.result_callback(str(params.app_resources))


def agent() -> Pipeline:
    model = Rules()
    for function in (check_stock, reserve_item, lift, customer):
        model.register_function(function.__name__, function)
    pair = LLMContextAggregatorPair(LLMContext())
    return Pipeline([pair.user(), model, pair.assistant()])


used = agent()


def context() -> str:
    return "Bob"
