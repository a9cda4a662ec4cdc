"""Conversations with an agent that returns its answer by a tool: all others are mocked."""

from __future__ import annotations

from agentest import call, scenario


def find(q: str) -> dict[str, str]:
    return {"mocked": q}


for guest in "ae":
    scenario(
        f"guest {guest}",
        turns=[f"look {guest}1", f"both {guest}2", f"recall {guest}"],
        tools={"find": find, "send": "sent"},
        trajectory={
            "expected": [
                call("find", q=f"{guest}1"),
                call("find", q=f"{guest}2"),
                call("send", q=f"{guest}2"),
                call("find", q=f"{guest}22"),
            ]
        },
    )
