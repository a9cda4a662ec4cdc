"""The shop's agent in google-adk, behind A2A (`to_a2a`) or AG-UI (ag-ui-adk)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import shop
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai.types import Content, FunctionCall, Part
from serving import options, serve


def read(contents: list[Content]) -> tuple[list[str], list[Any]]:
    """The user's texts, and the results since the last of them."""
    texts: list[str] = []
    results: list[Any] = []
    for part in (part for content in contents if content.role == "user" for part in content.parts or []):
        if part.function_response:
            results.append(part.function_response.response)
        elif part.text:
            texts.append(part.text)
            results = []
    return texts, results


class ScriptedModel(BaseLlm):
    """Says what the script says."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        step = await shop.think(*read(llm_request.contents))
        if isinstance(step, str):
            part = Part(text=step)
        else:
            part = Part(function_call=FunctionCall(name=step.name, args=step.args))
        yield LlmResponse(content=Content(role="model", parts=[part]))


def make_agent(*more: Any) -> LlmAgent:
    tools = [shop.check_stock, shop.reserve_item, shop.search, *more]
    return LlmAgent(name="shop", model=ScriptedModel(model="scripted"), description="A shop.", tools=tools)


def a2a_app(port: int) -> Any:
    from google.adk.a2a.utils.agent_to_a2a import to_a2a

    return to_a2a(make_agent(shop.place_order), host="127.0.0.1", port=port)


def ag_ui_app(path: str, client_tools: bool) -> Any:
    """With the caller's tools, which then stand before its own of the same name."""
    from ag_ui_adk import ADKAgent, AGUIToolset, add_adk_fastapi_endpoint
    from fastapi import FastAPI

    app = FastAPI()
    agent = make_agent(*([AGUIToolset()] if client_tools else []))
    served = ADKAgent(adk_agent=agent, app_name="shop", user_id="somebody", use_in_memory_services=True)
    add_adk_fastapi_endpoint(app, served, path=path)
    return app


if __name__ == "__main__":
    chosen = options(protocol="a2a", client_tools=False)
    if chosen.protocol == "a2a":
        serve(a2a_app(chosen.port), chosen.port)
    else:
        serve(ag_ui_app(chosen.path, chosen.client_tools), chosen.port)
