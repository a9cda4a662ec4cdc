"""A shop's agent as a team would write it with pydantic-ai; its model is a function."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, FunctionToolset, RunContext, Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from shop_talk import next_step, ran


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    said: list[str] = []
    results: list[str] = []
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                said.append(str(part.content))
                results.clear()
            elif isinstance(part, ToolReturnPart):
                results.append(part.model_response_str())
    step = next_step(said, results)
    if not isinstance(step, str):
        return ModelResponse(parts=[ToolCallPart(*step)])
    if info.output_tools:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"text": step})])
    return ModelResponse(parts=[TextPart(step)])


@dataclass
class Deps:
    customer: str


def context(session: Any) -> Deps:
    return Deps(session.state.get("customer", "nobody"))


agent = Agent(FunctionModel(respond), deps_type=Deps, output_type=[str, DeferredToolRequests])
clerk = Agent(FunctionModel(respond))


@agent.tool_plain
def check_stock(item: str) -> str:
    return ran(f"looked for {item}")


@clerk.tool_plain
@agent.tool_plain
async def reserve_item(item: str, quantity: int) -> str:
    return ran(f"reserved {quantity} {item}")


clerk.tool_plain(check_stock)


@agent.tool_plain
async def ask_clerk(input: str) -> str:
    return (await clerk.run(input)).output


@agent.tool_plain
def lift(item: str) -> str:
    raise RuntimeError(f"the {item} fell")


@agent.tool_plain
def wait() -> str:
    threading.Event().wait()
    return "never"


@agent.tool
def customer(ctx: RunContext[Deps]) -> str:
    return ctx.deps.customer


@agent.tool_plain(requires_approval=True)
def pay(amount: int) -> str:
    return ran(f"paid {amount}")


def pay_at_once(amount: int) -> str:
    return ran(f"paid {amount}")


guarded = Agent(
    FunctionModel(respond),
    output_type=[str, DeferredToolRequests],
    toolsets=[FunctionToolset([Tool(pay_at_once, name="pay")]).approval_required()],
)
undeferred = Agent(FunctionModel(respond), tools=[Tool(pay_at_once, name="pay", requires_approval=True)])


class Answer(BaseModel):
    text: str


structured = Agent(FunctionModel(respond), output_type=Answer, tools=[check_stock])
