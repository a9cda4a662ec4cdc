"""A LangGraph agent behind FastAPI whose tools come from an MCP server, by langchain-mcp-adapters.

`--tools rest`: tools that call REST with httpx; `--tools own`: tools of its own. `--hook` says how it
forwards what a request says of its conversation: not at all, by the `url` in its body, or by a `header`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import own_tools
import rest_tools
from errands import ASKED, add_chat, mcp_url, next_round
from fastapi import FastAPI
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool, tool
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from serving import options, serve
from shop import Call


class ScriptedModel(BaseChatModel):
    """Says what the script says."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
        text = next(m.text for m in reversed(messages) if isinstance(m, HumanMessage))
        step = next_round(text, [m.text for m in messages if isinstance(m, ToolMessage)])
        return ChatResult(generations=[ChatGeneration(message=message_of(step))])


def message_of(step: list[Call] | str) -> AIMessage:
    if isinstance(step, str):
        return AIMessage(step)
    calls = [{"name": call.name, "args": call.args, "id": f"call_{uuid.uuid4().hex}"} for call in step]
    return AIMessage("", tool_calls=calls)


async def model(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await ScriptedModel().ainvoke(state["messages"])]}


def build(tools: list[BaseTool]) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


async def with_header(request: Any, handler: Any) -> Any:
    """The one hook that a team would write."""
    return await handler(request.override(headers=ASKED.get().headers))


async def mcp_tools(url: str, hook: str) -> list[BaseTool]:
    interceptors = [with_header] if hook == "header" else []
    servers = {"shop": {"transport": "streamable_http", "url": url}}
    return await MultiServerMCPClient(servers, tool_interceptors=interceptors).get_tools()


def rest_or_own(kind: str) -> list[BaseTool]:
    if kind == "own":
        return [tool(function) for function in own_tools.TOOLS]
    return [
        StructuredTool.from_function(
            coroutine=getattr(rest_tools, f"{function.__name__}_async"), name=function.__name__
        )
        for function in rest_tools.TOOLS
    ]


def make_app(kind: str, hook: str) -> FastAPI:
    graphs: list[Any] = []

    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        """Tools are listed once, as the documentation of the adapters shows it."""
        if kind != "mcp":
            graphs.append(build(rest_or_own(kind)))
        elif hook != "url":
            graphs.append(build(await mcp_tools(mcp_url(), hook)))
        yield

    async def answer(message: str) -> str:
        graph = graphs[0] if graphs else build(await mcp_tools(ASKED.get().mcp_url, hook))
        state = await graph.ainvoke({"messages": [HumanMessage(message)]})
        return str(state["messages"][-1].text)

    app = FastAPI(lifespan=opened)
    add_chat(app, answer)
    return app


if __name__ == "__main__":
    chosen = options(tools="mcp", hook="none")
    serve(make_app(chosen.tools, chosen.hook), chosen.port)
