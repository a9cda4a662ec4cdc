"""A shop for `adk api_server`, as its team would write it: each real tool leaves a line in real.log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.adk.tools.agent_tool import AgentTool
from google.genai.types import Content, FunctionCall, Part


def ran(what: str) -> str:
    with Path("real.log").open("a", encoding="utf-8") as log:
        log.write(f"{what}\n")
    return f"really {what}"


def stock(item: str) -> str:
    """Look for an item."""
    return ran(f"looked for {item}")


async def reserve(item: str) -> str:
    """Put an item aside."""
    return ran(f"reserved {item}")


def lift(item: str) -> str:
    """Break something."""
    raise RuntimeError(f"the {item} fell")


def order(item: str) -> dict[str, Any]:
    """Order an item, which takes days."""
    return {"status": ran(f"ordered {item}")}


def pay(item: str) -> str:
    """Pay for an item, when somebody has said yes."""
    return ran(f"paid {item}")


class Rules(BaseLlm):
    """`stock lamp sofa` calls a tool for each item at once; `ask` calls the clerk, `transfer` hands over."""

    model: str = "rules"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        said, results = read(llm_request.contents)
        word, *items = said.split()
        if results or word not in ("stock", "reserve", "lift", "order", "pay", "ask", "transfer"):
            parts = [Part(text=f"{said}: {results}")]
        elif word == "ask":
            parts = [calling("ask_clerk", request=" ".join(items))]
        elif word == "transfer":
            parts = [calling("transfer_to_agent", agent_name="helper")]
        else:
            parts = [calling(word, item=item) for item in items]
        yield LlmResponse(content=Content(role="model", parts=parts))


def calling(name: str, **args: Any) -> Part:
    return Part(function_call=FunctionCall(name=name, args=args))


def read(contents: list[Content]) -> tuple[str, list[Any]]:
    """Return the user's last message, and the tools' answers since then."""
    said, results = "", []
    for part in (part for content in contents if content.role == "user" for part in content.parts or []):
        if part.function_response:
            results.append(part.function_response.response)
        elif part.text and not part.text.startswith("For context"):
            said, results = part.text, []
    return said, results


TOOLS: list[Any] = [
    stock,
    reserve,
    lift,
    LongRunningFunctionTool(order),
    FunctionTool(pay, require_confirmation=True),
]
clerk = LlmAgent(name="ask_clerk", model=Rules(), tools=TOOLS)
helper = LlmAgent(name="helper", model=Rules(), tools=TOOLS)
root_agent = LlmAgent(name="shop", model=Rules(), tools=[*TOOLS, AgentTool(clerk)], sub_agents=[helper])
