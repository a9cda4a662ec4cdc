"""A graph whose state holds no messages: a question in, an answer out."""

from __future__ import annotations

from typing import TypedDict

from langgraph.graph import START, StateGraph


class State(TypedDict, total=False):
    question: str
    answer: str


async def answer(state: State) -> State:
    if state["question"] == "fail":
        raise RuntimeError("the shop is on fire")
    return {"answer": f"You asked: {state['question']}"}


builder = StateGraph(State)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
graph = builder.compile()
