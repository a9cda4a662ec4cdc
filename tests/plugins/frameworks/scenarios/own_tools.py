"""Conversations with an agent with its own tools: what must pass, what must fail, and concurrent ones."""

from agentest import call, scenario

RESERVED = [call("check_stock", item="lamp"), call("reserve_item", item="lamp", quantity=2)]


def told(word: str, item: str) -> list[dict]:
    """A conversation that remembers its own word and makes its own call."""
    strict = {"match_mode": "strict", "expected": [call("check_stock", item=item)]}
    return [
        f"remember {word}",
        {"user_message": f"stock {item}", "trajectory": strict},
        {"user_message": "recall", "expect": {"contains": word}, "trajectory": {"max_calls": 0}},
    ]


scenario("says hello", turns=[{"user_message": "hello you", "expect": {"contains": "You said: hello you"}}])
scenario(
    "tells the stock",
    turns=[{"user_message": "stock lamp", "expect": {"regex": "in_stock.*3"}}],
    trajectory={"match_mode": "strict", "expected": [call("check_stock", item="lamp")]},
)
scenario(
    "reserves",
    turns=[{"user_message": "reserve lamp 2", "expect": {"contains": "R-lamp-2"}}],
    trajectory={"match_mode": "strict", "expected": RESERVED},
)
scenario("keeps a ban", turns=["stock lamp"], trajectory={"forbidden": ["reserve_item"]})
scenario("breaks a ban", turns=["reserve lamp 2"], trajectory={"forbidden": ["reserve_item"]})
scenario("calls another tool", turns=["stock lamp"], trajectory={"expected": ["search"]})
scenario(
    "knows nothing of others",
    turns=[{"user_message": "recall", "expect": {"contains": "nothing"}}],
    conversations_per_scenario=5,
)
scenario(
    "remembers",
    turns=["remember blue", {"user_message": "recall", "expect": {"contains": "blue"}}],
    conversations_per_scenario=5,
)
scenario("red lamps", turns=told("red", "lamp"), conversations_per_scenario=5)
scenario("green sofas", turns=told("green", "sofa"), conversations_per_scenario=5)
scenario("fails", turns=["hello", "fail"])
