from agentest import call, scenario

scenario(
    "tells free times",
    turns=["Which times are free on Tuesday?", "And what is available on Wednesday?"],
    tools={
        "list_slots": lambda args, ctx: {
            "day": args["day"],
            "slots": ["14:00", "15:30"] if args["day"] == "Tuesday" else ["08:15"],
        }
    },
    trajectory={"expected": [call("list_slots", day="Tuesday"), call("list_slots", day="Wednesday")]},
    expect={"says": ["14:00", "08:15"]},
)
