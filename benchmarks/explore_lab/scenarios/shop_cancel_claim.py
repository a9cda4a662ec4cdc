from agentest import call, scenario

TOOLS = {
    "get_order": {"id": "ORD-3", "status": "open"},
    "cancel_order": {"id": "ORD-3", "status": "cancelled"},
}

scenario(
    "cancels an open order",
    turns=["Good morning. Please cancel my order ORD-3, I bought it by mistake."],
    tools=TOOLS,
    trajectory={"expected": ["get_order", call("cancel_order", id="ORD-3")]},
    expect={"says": "ORD-3 is cancelled"},
)
scenario(
    "asks for the number of the order",
    turns=["I would like to cancel an order.", "It is ORD-3."],
    tools=TOOLS,
    trajectory={"reads": ["get_*"], "expected_writes": [call("cancel_order", id="ORD-3")]},
)
