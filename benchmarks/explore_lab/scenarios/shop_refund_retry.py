from agentest import call, scenario

scenario(
    "refunds a delivered order",
    turns=["Hello, please refund order ORD-17."],
    tools={
        "get_order": {"id": "ORD-17", "status": "delivered", "amount": 20},
        "refund_order": {"id": "ORD-17", "refund_id": "RF-1"},
    },
    trajectory={"reads": ["get_order"], "expected_writes": [call("refund_order", id="ORD-17")]},
    expect={"says": "refunded"},
)
scenario(
    "does not refund an order that is on its way",
    turns=["I want my money back for order ORD-18."],
    tools={
        "get_order": {"id": "ORD-18", "status": "shipped", "amount": 35},
        "refund_order": {"id": "ORD-18", "refund_id": "RF-2"},
    },
    trajectory={"expected": [call("get_order", id="ORD-18")], "forbidden": ["refund_order"]},
    expect={"says": "only delivered"},
)
