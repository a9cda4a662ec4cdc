"""Conversations with agents that run their own tools and send spans: many, each with its own items.

SHOPS says how many. Every fifth makes the agent cancel an order, which is banned and must be caught.
"""

import os

from agentest import call, scenario

for number in range(int(os.environ["SHOPS"])):
    one, other = f"item{number}", f"other{number}"
    banned = [call("cancel_order", item=one)] if number % 5 == 0 else []
    stock = [call("check_stock", item=item) for item in (one, one, other)]
    scenario(
        f"shop {number}",
        turns=[
            f"reserve {one} {number + 1}",
            f"both {one} {other}",
            *([f"cancel {one}"] if banned else []),
            {"user_message": "hello", "trajectory": {"match_mode": "strict", "expected": []}},
        ],
        trajectory=[
            {
                "match_mode": "unordered",
                "expected": [*stock, call("reserve_item", item=one, quantity=number + 1), *banned],
            },
            {"name": "cancels nothing", "forbidden": ["cancel_order"]},
        ],
    )
