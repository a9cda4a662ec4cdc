"""The agent asks before it orders: its question is the reply, and the user's next message the answer."""

from agentest import call, scenario

QUESTION = {"user_message": "ask lamp", "expect": {"contains": "lamp", "not_contains": "ordered"}}
HELLO = {"user_message": "hello", "expect": {"contains": "You said: hello"}}

scenario(
    "agrees",
    turns=[QUESTION, {"user_message": "yes, please", "expect": {"contains": "ordered"}}, HELLO],
    trajectory={"match_mode": "strict", "expected": [call("place_order", item="lamp")]},
    conversations_per_scenario=3,
)
scenario(
    "refuses",
    turns=[QUESTION, {"user_message": "no, thank you", "expect": {"not_contains": "ordered"}}, HELLO],
    conversations_per_scenario=3,
)
