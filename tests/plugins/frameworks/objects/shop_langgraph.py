"""A shop's graph as a team would write it with LangGraph; its chat model follows rules."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime, tools_condition
from langgraph.types import interrupt
from pydantic import BaseModel
from shop_talk import next_step, ran
from typing_extensions import TypedDict


class Rules(BaseChatModel):
    """Answers by rules, and says what it used."""

    @property
    def _llm_type(self) -> str:
        return "rules"

    def bind_tools(self, *_: Any, **__: Any) -> Rules:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        said = [str(m.content) for m in messages if m.type == "human"]
        last_user = max(i for i, m in enumerate(messages) if m.type == "human")
        results = [str(m.content) for m in messages[last_user:] if m.type == "tool"]
        step = next_step(said, results)
        usage: Any = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}
        calls: list[Any] = []
        if not isinstance(step, str):
            calls = [{"name": step[0], "args": step[1], "id": uuid4().hex}]
        message = AIMessage("" if calls else str(step), tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])


MODEL = Rules()


@dataclass
class Customer:
    name: str


def context(session: Any) -> Customer:
    return Customer(session.state.get("customer", "nobody"))


@tool
def check_stock(item: str) -> str:
    """Look for an item."""
    return ran(f"looked for {item}")


@tool
async def reserve_item(item: str, quantity: int) -> str:
    """Reserve an item."""
    return ran(f"reserved {quantity} {item}")


@tool
async def ask_clerk(input: str) -> str:
    """Ask the clerk, who has a graph of his own."""
    state = await clerk.ainvoke({"messages": [HumanMessage(input)]})
    return str(state["messages"][-1].content)


@tool
def lift(item: str) -> str:
    """Break something."""
    raise RuntimeError(f"the {item} fell")


@tool
def wait() -> str:
    """Never end."""
    threading.Event().wait()
    return "never"


@tool
def customer(runtime: ToolRuntime[Customer]) -> str:
    """Who asks."""
    return runtime.context.name


@tool
def pay(amount: int) -> str:
    """Pay, when somebody has said yes."""
    interrupt({"approve": amount})
    return ran(f"paid {amount}")


async def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await MODEL.ainvoke(state["messages"])]}


def graph(tools: Any, model: Any = think, **kwargs: Any) -> StateGraph[Any]:
    made: StateGraph[Any] = StateGraph(MessagesState, **kwargs)
    made.add_node("model", model)
    made.add_node("tools", tools)
    made.add_edge(START, "model")
    made.add_conditional_edges("model", tools_condition)
    made.add_edge("tools", "model")
    return made


clerk = graph(ToolNode([check_stock, reserve_item])).compile()
TOOLS: list[BaseTool] = [check_stock, reserve_item, ask_clerk, lift, wait, customer, pay]
not_compiled = graph(ToolNode(TOOLS), context_schema=Customer)
agent = not_compiled.compile()


def by_hand(state: MessagesState) -> dict[str, Any]:
    """A node that calls the tools itself, without the ids of the calls."""
    tools = {known.name: known for known in (check_stock, lift)}
    return {
        "messages": [
            ToolMessage(tools[call["name"]].invoke(call["args"]), tool_call_id=call["id"])
            for call in state["messages"][-1].tool_calls  # type: ignore[union-attr]
        ]
    }


def past_the_tools(state: MessagesState) -> dict[str, Any]:
    """A node that does without tools of LangChain's."""
    calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]
    return {"messages": [ToolMessage(ran(call["name"]), tool_call_id=call["id"]) for call in calls]}


def think_on_the_loop(state: MessagesState) -> dict[str, Any]:
    return {"messages": [MODEL.invoke(state["messages"])]}


async def by_hand_on_the_loop(state: MessagesState) -> dict[str, Any]:
    """Code that is async and calls its tools plainly: the event loop stands still meanwhile."""
    return by_hand(state)


handmade = graph(by_hand, think_on_the_loop).compile()
blocking = graph(by_hand_on_the_loop).compile()
hidden = graph(past_the_tools).compile()


@tool("pay")
def pay_at_once(amount: int) -> str:
    """Pay."""
    return ran(f"paid {amount}")


def approving_by(pay: Any) -> Any:
    return create_agent(MODEL, [pay_at_once], middleware=[HumanInTheLoopMiddleware({"pay": pay})])


approving = approving_by(True)
responding = approving_by({"allowed_decisions": ["respond"]})
editing = approving_by({"allowed_decisions": ["edit"]})


def make_graph() -> Any:
    return graph(ToolNode(TOOLS)).compile()


class Answer(BaseModel):
    text: str


class Answered(MessagesState):
    structured_response: Answer


def answer(state: MessagesState) -> dict[str, Any]:
    return {"structured_response": Answer(text=str(state["messages"][-1].content))}


_structured: StateGraph[Any] = StateGraph(Answered)
_structured.add_node("talk", clerk)
_structured.add_node("answer", answer)
_structured.add_edge(START, "talk")
_structured.add_edge("talk", "answer")
structured = _structured.compile()


class Question(TypedDict):
    question: str


_asked: StateGraph[Any] = StateGraph(Question)
_asked.add_node("answer", lambda state: state)
_asked.add_edge(START, "answer")
without_messages = _asked.compile()

chain: Runnable[Any, Any] = (
    ChatPromptTemplate.from_messages([("system", "A shop."), ("placeholder", "{messages}")]) | MODEL
)
of_a_name: Runnable[Any, Any] = ChatPromptTemplate.from_messages([("human", "{name}")]) | MODEL
