"""A salon's booking agent in Google's ADK, for trying `type: adk` without a model and without a key.

    pip install google-adk
    adk api_server examples/adk_agent --port 8000 --session_service_uri memory://

A few rules stand in the place of the model. Everything else, sessions, tools and events, is ADK's own.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import ToolContext
from google.genai import types

_FREE = {"tuesday": ["09:00", "10:30"], "friday": ["15:00"]}


def check_availability(day: str) -> dict[str, Any]:
    """The free times of a day."""
    return {"day": day, "times": _FREE.get(day, [])}


def create_booking(day: str, time: str, tool_context: ToolContext) -> dict[str, Any]:
    """Books a time for the customer of this session."""
    state = tool_context.state
    state["bookings"] = state.get("bookings", 0) + 1
    return {"customer": state.get("customer", "somebody"), "day": day, "time": time, "n": state["bookings"]}


class Rules(BaseLlm):
    """Answers as a model would: with texts, with calls of tools, and in pieces when it is asked to stream."""

    model: str = "rules"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = _answer(llm_request.contents[-1])
        text = parts[0].text
        if stream and text:
            for piece in re.findall(r".{1,8}", text, re.S):
                yield LlmResponse(content=_content([types.Part(text=piece)]), partial=True)
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=3)
        yield LlmResponse(content=_content(parts), usage_metadata=usage)


def _answer(last: types.Content) -> list[types.Part]:
    results = [p.function_response for p in last.parts or [] if p.function_response]
    if results:
        return [types.Part(text=" ".join(_told(r.name, r.response) for r in results))]
    said = " ".join(p.text for p in last.parts or [] if p.text).lower()
    if "crash" in said:
        raise RuntimeError("the rules have nothing to say about that")
    if match := re.search(r"book (\w+) at ([\d:]+)", said):
        return [_call("create_booking", day=match[1], time=match[2])]
    if days := [day for day in ("monday", "tuesday", "friday") if day in said]:
        return [types.Part(text="Let me look."), *(_call("check_availability", day=day) for day in days)]
    return [types.Part(text="I can look for free times on a day, or book one.")]


def _told(name: str, result: dict[str, Any]) -> str:
    if name == "create_booking":
        return "{customer}, {day} at {time} is yours (booking {n}).".format(**result)
    return f"Free on {result['day']}: {', '.join(result['times']) or 'nothing'}."


def _call(name: str, **args: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=args))


def _content(parts: list[types.Part]) -> types.Content:
    return types.Content(role="model", parts=parts)


root_agent = LlmAgent(name="salon", model=Rules(), tools=[check_availability, create_booking])
