"""A shop's agent as a team would write it with the OpenAI Agents SDK; its model follows rules."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from agents import Agent, RunContextWrapper, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic import BaseModel
from shop_talk import next_step, ran

set_tracing_disabled(True)


def message(text: str) -> ResponseOutputMessage:
    content = [ResponseOutputText(type="output_text", text=text, annotations=[])]
    return ResponseOutputMessage(
        id="m", type="message", role="assistant", status="completed", content=content
    )


def call(name: str, args: dict[str, Any]) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        type="function_call", call_id=uuid4().hex, name=name, arguments=json.dumps(args)
    )


class Rules(Model):
    """The first word `to-clerk` hands over."""

    async def get_response(  # type: ignore[override]
        self,
        system_instructions: Any,
        input: Any,
        model_settings: Any,
        tools: Any,
        output_schema: Any,
        *_: Any,
        **__: Any,
    ) -> ModelResponse:
        items = input if isinstance(input, list) else [{"role": "user", "content": input}]
        said = [item["content"] for item in items if item.get("role") == "user"]
        last_user = max(i for i, item in enumerate(items) if item.get("role") == "user")
        results = [str(i["output"]) for i in items[last_user:] if i.get("type") == "function_call_output"]
        output: list[Any]
        if said[-1] == "to-clerk" and not results:
            output = [message("One moment."), call("transfer_to_clerk", {})]
        elif isinstance(step := next_step(said, results), str):
            plain = output_schema is None or output_schema.is_plain_text()
            output = [message(step if plain else json.dumps({"text": step}))]
        else:
            output = [call(*step)]
        # A model of one's own often counts no request.
        usage = Usage(requests=0, input_tokens=10, output_tokens=3, total_tokens=13)
        return ModelResponse(output=output, usage=usage, response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@dataclass
class Customer:
    name: str


def context(session: Any) -> Customer:
    return Customer(session.state.get("customer", "nobody"))


@function_tool
def check_stock(item: str) -> str:
    return ran(f"looked for {item}")


@function_tool
async def reserve_item(item: str, quantity: int) -> str:
    return ran(f"reserved {quantity} {item}")


@function_tool(failure_error_function=None)
def lift(item: str) -> str:
    raise RuntimeError(f"the {item} fell")


@function_tool
def wait() -> str:
    threading.Event().wait()
    return "never"


@function_tool
def customer(ctx: RunContextWrapper[Customer]) -> str:
    return ctx.context.name


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    return ran(f"paid {amount}")


class Answer(BaseModel):
    text: str


clerk: Agent[Any] = Agent(name="clerk", model=Rules(), tools=[check_stock, reserve_item])
agent: Agent[Any] = Agent(
    name="shop",
    model=Rules(),
    tools=[
        check_stock,
        reserve_item,
        lift,
        wait,
        customer,
        pay,
        clerk.as_tool("ask_clerk", "Ask the clerk."),
    ],
    handoffs=[clerk],
)
structured: Agent[Any] = Agent(name="shop", model=Rules(), tools=[check_stock], output_type=Answer)
