from agentest import call, scenario


def get_order(id: str) -> dict[str, str]:
    return {"id": id, "status": "shipped" if id == "ORD-21" else "delivered"}


scenario(
    "tells where an order is",
    turns=["Where is my order ORD-21?", "And what is the status of ORD-22?"],
    tools={"get_order": get_order},
    trajectory={"expected": [call("get_order", id="ORD-21"), call("get_order", id="ORD-22")]},
    expect={"says": ["shipped", "delivered"]},
)
