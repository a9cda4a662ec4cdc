"""The shop's agent in LangGraph: a model and a ToolNode, for `langgraph dev` and for AG-UI."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

sys.path.append(str(Path(__file__).parent.parent))
import shop


@tool
def place_order(item: str) -> dict[str, Any]:
    """Buys an item, once a person has agreed."""
    return shop.place_order(item) if agreed(interrupt({"question": f"Order {item}?"})) else {"refused": item}


def agreed(answer: Any) -> bool:
    return answer is True or (isinstance(answer, str) and answer.startswith("yes"))


TOOLS = [tool(shop.check_stock), tool(shop.reserve_item), tool(shop.search), place_order]


def read(messages: list[AnyMessage]) -> tuple[list[str], list[Any]]:
    """The user's texts, and the results since the last of them."""
    texts: list[str] = []
    results: list[Any] = []
    for message in messages:
        if isinstance(message, HumanMessage):
            texts.append(str(message.text))
            results = []
        elif isinstance(message, ToolMessage):
            results.append(message.content)
    return texts, results


async def model(state: MessagesState) -> dict[str, Any]:
    step = await shop.think(*read(state["messages"]))
    if isinstance(step, str):
        return {"messages": [AIMessage(content=step)]}
    call = {"name": step.name, "args": step.args, "id": f"call_{uuid.uuid4().hex}"}
    return {"messages": [AIMessage(content="", tool_calls=[call])]}


def build(own_tools: bool = True) -> StateGraph[Any]:
    """Without tools of its own, its calls are left to whoever has called it."""
    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_edge(START, "model")
    if own_tools:
        graph.add_node("tools", ToolNode(TOOLS))
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
    return graph


graph = build().compile()
