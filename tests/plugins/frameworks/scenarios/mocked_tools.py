"""Conversations with an agent that leaves its calls to the caller: mocks answer, no tool of the shop runs."""

from agentest import call, scenario

TOOLS = {
    "check_stock": lambda args, ctx: {"in_stock": 41 + ctx.call_index},
    "reserve_item": lambda item, quantity: {"reservation": f"mocked {quantity} {item}"},
}
RESERVED = [call("check_stock", item="lamp"), call("reserve_item", item="lamp", quantity=2)]


def counted(word: str) -> list[dict]:
    """A conversation whose mock counts its own calls."""
    return [
        f"remember {word}",
        {"user_message": "stock lamp", "expect": {"regex": "in_stock.*41"}},
        {"user_message": "stock lamp", "expect": {"regex": "in_stock.*42"}},
        {"user_message": "recall", "expect": {"contains": word}},
    ]


scenario(
    "tells the mocked stock",
    turns=[{"user_message": "stock lamp", "expect": {"regex": "in_stock.*41"}}],
    tools=TOOLS,
    trajectory={"match_mode": "strict", "expected": [call("check_stock", item="lamp")]},
)
scenario(
    "reserves by mocks",
    turns=[{"user_message": "reserve lamp 2", "expect": {"contains": "mocked 2 lamp"}}],
    tools=TOOLS,
    trajectory={"match_mode": "strict", "expected": RESERVED},
)
scenario("keeps a ban", turns=["stock lamp"], tools=TOOLS, trajectory={"forbidden": ["reserve_item"]})
scenario("breaks a ban", turns=["reserve lamp 2"], tools=TOOLS, trajectory={"forbidden": ["reserve_item"]})
scenario("calls what no mock answers", turns=["search lamp"], tools=TOOLS)
scenario("red", turns=counted("red"), tools=TOOLS, conversations_per_scenario=5)
scenario("green", turns=counted("green"), tools=TOOLS, conversations_per_scenario=5)
scenario("fails", turns=["hello", "fail"], tools=TOOLS)
