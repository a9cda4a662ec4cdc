from agentest import call, scenario

scenario(
    "creates a meeting and shows the day",
    turns=["Please arrange a meeting with Kim Ode on Thursday at 11:15.", "Show my calendar of Thursday."],
    tools={
        "create_event": {"event": "EV-21"},
        "list_events": {"day": "Thursday", "events": [{"id": "EV-21", "time": "11:15"}]},
    },
    trajectory={
        "reads": ["list_*"],
        "expected_writes": [call("create_event", person="Kim Ode", day="Thursday", time="11:15")],
    },
    expect={"says": "EV-21"},
)
