"""What agents do whose tools are elsewhere: the script in the place of their model, and their door.

The user's words: `stock ITEM`, `reserve ITEM N` (looks at the stock first), `search WORDS`, `both A B` (two
calls in one round), `cancel ITEM`, which no agent should do. Every reply repeats what the tools have
answered, so that an answer of another conversation shows.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel
from shop import Call

HEADER = "x-agentest-conversation"


def next_round(text: str, results: list[Any]) -> list[Call] | str:
    """The calls of the next round, or the reply. `results`: of this turn, in order, as texts.

    Raises RuntimeError when the user says "fail".
    """
    word, *rest = text.split() or [""]
    done = 0
    for calls in _rounds(word, rest):
        if len(results) == done:
            return calls
        done += len(calls)
    return f"{word}: {' | '.join(map(str, results))}" if results else f"You said: {text}"


def _rounds(word: str, rest: list[str]) -> list[list[Call]]:
    match word, rest:
        case "stock", [item]:
            return [[_stock(item)]]
        case "reserve", [item, quantity]:
            return [[_stock(item)], [Call("reserve_item", {"item": item, "quantity": int(quantity)})]]
        case "search", _:
            return [[Call("search", {"query": " ".join(rest)})]]
        case "both", [one, other]:
            return [[_stock(one), _stock(other)]]
        case "cancel", [item]:
            return [[Call("cancel_order", {"item": item})]]
        case "fail", _:
            raise RuntimeError("the shop is on fire")
    return []


def _stock(item: str) -> Call:
    return Call("check_stock", {"item": item})


@dataclass(frozen=True)
class Asked:
    """What a request tells about its conversation, for agents with a hook."""

    mcp_url: str = ""
    rest_url: str = ""
    conversation: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {HEADER: self.conversation} if self.conversation else {}

    @property
    def meta(self) -> dict[str, str]:
        return {"agentest/conversation": self.conversation} if self.conversation else {}


NOTHING = Asked()
ASKED = ContextVar("ASKED", default=NOTHING)


def mcp_url() -> str:
    """Return the address of the tools: the mocks, or the shop itself."""
    return os.environ.get("AGENTEST_MCP_URL") or os.environ["SHOP_MCP_URL"]


class Question(BaseModel):
    message: str
    mcp_url: str = ""
    rest_url: str = ""


def add_chat(app: FastAPI, answer: Callable[[str], Awaitable[str]], path: str = "/chat") -> None:
    """POST /chat: {message, mcp_url?, rest_url?} → {reply}."""

    @app.post(path)
    async def chat(question: Question, request: Request) -> dict[str, str]:
        conversation = request.headers.get(HEADER, "")
        ASKED.set(Asked(question.mcp_url, question.rest_url, conversation))
        return {"reply": await answer(question.message)}
