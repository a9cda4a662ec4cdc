from agentest import call, scenario

scenario(
    "tells the status of a ticket",
    turns=["Hi, what is the status of ticket TK-5?"],
    tools={"get_ticket": {"id": "TK-5", "status": "open", "assignee": "Zoe", "opened": "2026-05-02"}},
    trajectory={"expected": [call("get_ticket", id="TK-5")]},
    expect={"says": ["open", "Zoe"]},
)
