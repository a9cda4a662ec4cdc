from agentest import call, scenario

scenario(
    "orders after a yes",
    turns=["Hi, I want to buy 3 units of SKU-5.", "Yes, please."],
    tools={"place_order": {"order_id": "ORD-90", "sku": "SKU-5", "quantity": 3}},
    trajectory={"expected": [call("place_order", sku="SKU-5", quantity=3)]},
    consent={"place_order": "yes|go ahead"},
    expect={"says": "ORD-90"},
)
