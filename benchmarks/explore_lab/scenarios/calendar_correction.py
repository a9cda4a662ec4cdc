from agentest import call, scenario

scenario(
    "creates a meeting",
    turns=["Hi. Please schedule a meeting with Ann Lee on Friday at 10:00."],
    tools={"create_event": {"event": "EV-9"}},
    trajectory={"expected": [call("create_event", person="Ann Lee", day="Friday", time="10:00")]},
    expect={"says": "is in your calendar"},
)
scenario(
    "asks for the day of a meeting",
    turns=["Create a meeting with Bob at 14:30.", "On Tuesday."],
    tools={"create_event": lambda person, day, time: {"event": "EV-10"}},
    trajectory={"expected": [call("create_event", person="Bob", day="Tuesday", time="14:30")]},
)
