"""One scenario, as many conversations as you like: all workers share them."""

from agentest import scenario

scenario(
    "customer asks for a refund",
    turns=[
        {"user_message": "Hello, is anybody there?", "expect": {"contains": "help"}},
        {"user_message": "I want a refund.", "expect": {"contains": "five days"}},
    ],
)
