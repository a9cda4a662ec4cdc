from agentest import call, scenario

scenario(
    "opens a ticket and tells about another",
    turns=["The battery of LT-31 is broken, please open a ticket.", "What is the status of TK-60?"],
    tools={
        "create_ticket": lambda device, problem: {"ticket": "TK-61"},
        "get_ticket": {"id": "TK-60", "status": "closed", "assignee": "Zoe"},
    },
    trajectory={"expected": [call("create_ticket", device="LT-31", problem="battery"), "get_ticket"]},
    expect={"says": ["TK-61", "closed"]},
)
