"""An agent that requests approval before it orders: the user answers, or the configuration does."""

from agentest import call, scenario

QUESTION = {"user_message": "ask lamp", "expect": {"contains": "lamp", "not_contains": "ordered"}}
HELLO = {"user_message": "hello", "expect": {"contains": "You said: hello"}}
ORDERED = {"match_mode": "strict", "expected": [call("place_order", item="lamp")]}

scenario(
    "agrees",
    turns=[QUESTION, {"user_message": "yes, please", "expect": {"contains": "ordered"}}, HELLO],
    trajectory=ORDERED,
    conversations_per_scenario=3,
)
scenario(
    "refuses",
    turns=[QUESTION, {"user_message": "no, thank you", "expect": {"not_contains": "ordered"}}, HELLO],
    conversations_per_scenario=3,
)
scenario(
    "is approved by the configuration",
    turns=[{"user_message": "ask lamp", "expect": {"contains": "ordered"}}],
    trajectory=ORDERED,
    agent="approving",
)
scenario(
    "is denied by the configuration",
    turns=[{"user_message": "ask lamp", "expect": {"not_contains": "ordered"}}, HELLO],
    agent="denying",
)
