"""A happy path: a simulated user books an appointment, the salon's tools are mocked."""

from salon import create_booking

from agentest import call, scenario

scenario(
    "user books a morning slot",
    profile="A busy professional who writes short messages.",
    goal="Book a haircut for next Tuesday morning.",
    knowledge=["The time that suits me is 10:30."],
    tools={
        "check_availability": {"slots": ["09:00", "10:30"]},
        "create_booking": create_booking,
    },
    trajectory={
        "match_mode": "in_order",
        "expected": [
            call("check_availability", service="haircut"),
            call("create_booking", service="haircut", time="10:30"),
        ],
        "max_calls": 4,
    },
    tags=["booking", "happy-path"],
)
