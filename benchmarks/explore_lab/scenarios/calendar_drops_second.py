from agentest import call, scenario

scenario(
    "tidies up a Friday",
    turns=["Please delete event EV-3.", "And show my calendar of Friday."],
    tools={
        "delete_event": {"deleted": "EV-3"},
        "list_events": {
            "day": "Friday",
            "events": [{"id": "EV-4", "time": "10:00"}, {"id": "EV-5", "time": "15:30"}],
        },
    },
    trajectory={"expected": [call("delete_event", id="EV-3"), call("list_events", day="Friday")]},
    expect={"says": ["EV-3 is deleted", "EV-4 at 10:00"]},
)
