from agentest import scenario

scenario(
    "tells the latest transfers",
    turns=["Hi, show me the latest transfers of my account AC-1."],
    tools={
        "get_account": {"account": "AC-1", "owner": "C-5", "balance": 120},
        "list_transfers": {
            "account": "AC-1",
            "transfers": [{"to": "IB-4", "amount": 12}, {"to": "IB-9", "amount": 30}],
        },
    },
    trajectory={"expected": ["get_account", "list_transfers"]},
    expect={"says": ["12 euros to IB-4", "30 euros to IB-9"]},
)
