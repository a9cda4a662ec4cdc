"""Conversations with an agent with its own tools: `find` is mocked, `send` really runs."""

from __future__ import annotations

from agentest import scenario


def find(q: str) -> dict[str, str]:
    return {"mocked": q}


for guest in "abcdefgh":
    scenario(
        f"guest {guest}",
        turns=[
            f"look {guest}1",
            f"recall {guest}",
            f"both {guest}2",
            f"look {guest}3",
            f"recall all {guest}",
        ],
        tools={"find": find},
    )
