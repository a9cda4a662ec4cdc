from agentest import call, scenario

TOOLS = {"create_ticket": {"ticket": "TK-101"}}

scenario(
    "opens a ticket",
    turns=["Hello, please open a ticket: the screen of LT-4 is broken."],
    tools=TOOLS,
    trajectory={"expected": [call("create_ticket", device="LT-4", problem="screen")]},
    expect={"says": "TK-101"},
)
scenario(
    "asks which device is broken",
    turns=["Please open a ticket, my keyboard is broken.", "It is LT-9."],
    tools=TOOLS,
    trajectory={"expected": [call("create_ticket", device="LT-9", problem="keyboard")]},
)
