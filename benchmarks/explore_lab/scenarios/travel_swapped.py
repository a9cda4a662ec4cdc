from agentest import call, scenario

scenario(
    "finds a flight",
    turns=["Hi, I leave from Oslo on 2026-06-10. I need a flight to Rome."],
    tools={"find_flights": {"flights": [{"id": "FL-1", "price": 150}]}},
    trajectory={"expected": [call("find_flights", origin="Oslo", destination="Rome", date="2026-06-10")]},
    expect={"says": "FL-1"},
    date="2026-05-12",
)
