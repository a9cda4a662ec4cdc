"""The configuration approves whatever the agent asks."""

from agentest import call, scenario

scenario(
    "orders",
    turns=[{"user_message": "ask lamp", "expect": {"contains": "ordered"}}],
    trajectory={"match_mode": "strict", "expected": [call("place_order", item="lamp")]},
)
