"""Conversations with agents whose tools our mock servers answer: many, each with its own answers.

SHOPS says how many. Every fifth makes the agent cancel an order, which is banned and must be caught; in every
seventh the tool that reserves fails.
"""

import os
from typing import Any

from agentest import call, scenario


def shop(number: int) -> dict[str, Any]:
    """The mocks of one conversation: what they say is said in no other."""

    def reserve_item(item: str, quantity: int) -> dict[str, Any]:
        if number % 7 == 3:
            raise ValueError(f"sold out, says shop {number}")
        return {"reservation": f"R-{number}-{quantity}"}

    return {
        "check_stock": lambda item, ctx: {"in_stock": f"{number}000{ctx.call_index}"},
        "reserve_item": reserve_item,
        "cancel_order": {"cancelled_by": f"shop {number}"},
    }


def said(text: str, *contains: str) -> dict[str, Any]:
    return {"user_message": text, "expect": {"contains": list(contains)}}


for number in range(int(os.environ["SHOPS"])):
    one, other = f"item{number}", f"other{number}"
    banned = [f"cancel {one}"] if number % 5 == 0 else []
    reserved = f"sold out, says shop {number}" if number % 7 == 3 else f"R-{number}-{number + 1}"
    stock = [call("check_stock", item=item) for item in (one, one, other)]
    scenario(
        f"shop {number}",
        turns=[
            said(f"reserve {one} {number + 1}", f"{number}0000", reserved),
            said(f"both {one} {other}", f"{number}0001", f"{number}0002"),
            *banned,
            said("hello", "You said: hello"),
        ],
        tools=shop(number),
        trajectory={
            "match_mode": "unordered",
            "expected": [*stock, call("reserve_item", item=one, quantity=number + 1)],
            "forbidden": ["cancel_order"],
        },
    )
