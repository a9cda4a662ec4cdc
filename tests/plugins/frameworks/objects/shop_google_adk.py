"""A shop's agent as a team would write it with google-adk; its model follows rules."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import FunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.genai.types import Content, GenerateContentResponseUsageMetadata, Part
from shop_talk import next_step, ran


class Rules(BaseLlm):
    """Answers by rules, and says what it used."""

    model: str = "rules"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        said: list[str] = []
        results: list[str] = []
        for content in llm_request.contents:
            for part in content.parts or []:
                if part.text and content.role == "user" and not part.text.startswith("For context"):
                    said.append(part.text)
                    results.clear()
                elif part.function_response:
                    results.append(str((part.function_response.response or {}).get("result")))
        step = next_step(said, results)
        if isinstance(step, str):
            part = Part(text=step)
        else:
            name, args = step
            known = {"request": args["input"]} if name == "ask_clerk" else args
            part = Part.from_function_call(name=name, args=known)
        usage = GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=3)
        yield LlmResponse(content=Content(role="model", parts=[part]), usage_metadata=usage)


def check_stock(item: str) -> str:
    """Look for an item."""
    return ran(f"looked for {item}")


async def reserve_item(item: str, quantity: int) -> str:
    """Reserve an item."""
    return ran(f"reserved {quantity} {item}")


def lift(item: str) -> str:
    """Break something."""
    raise RuntimeError(f"the {item} fell")


def pay(amount: int) -> str:
    """Pay, when somebody has said yes."""
    return ran(f"paid {amount}")


def ask_and_pay(amount: int, tool_context: ToolContext) -> str:
    """Pay, after it has asked by itself."""
    if tool_context.tool_confirmation is None:
        tool_context.request_confirmation(hint="Really?")
        return "it waits"
    return ran(f"paid {amount}") if tool_context.tool_confirmation.confirmed else "not paid"


ask_and_pay.__name__ = "pay"
asking = LlmAgent(name="asking", model=Rules(), tools=[ask_and_pay])
clerk = LlmAgent(name="ask_clerk", model=Rules(), tools=[check_stock, reserve_item])
agent = LlmAgent(
    name="shop",
    model=Rules(),
    tools=[
        check_stock,
        reserve_item,
        lift,
        AgentTool(clerk),
        FunctionTool(pay, require_confirmation=True),
    ],
)
