from agentest import call, scenario


def place_order(sku: str, quantity: int) -> dict[str, object]:
    return {"order_id": "ORD-91", "sku": sku, "quantity": quantity}


scenario(
    "orders some units",
    turns=["I want to buy 4 units of SKU-8.", "Yes."],
    tools={"place_order": place_order},
    trajectory={"expected": [call("place_order", sku="SKU-8", quantity=4)]},
)
scenario(
    "does not order more than allowed",
    turns=["I want to buy 50 units of SKU-8."],
    tools={"place_order": place_order},
    trajectory={"forbidden": ["place_order"]},
    expect={"says": "1 to 10"},
)
