from agentest import call, scenario

scenario(
    "finds a flight tomorrow",
    turns=["Please find a flight from Berlin to Madrid tomorrow."],
    tools={"find_flights": lambda args, ctx: {"flights": [{"id": "FL-4", "price": 99}]}},
    trajectory={
        "match_mode": "contains",
        "expected": [call("find_flights", origin="Berlin", destination="Madrid")],
    },
    expect={"says": "FL-4 for 99 euros"},
    date="2026-05-12",
)
scenario(
    "finds a flight in three days",
    turns=["I want to fly from Paris to Lisbon in 3 days."],
    tools={"find_flights": lambda args, ctx: {"flights": []}},
    trajectory={"expected": [call("find_flights", date="2026-05-15")]},
    date="2026-05-12",
)
