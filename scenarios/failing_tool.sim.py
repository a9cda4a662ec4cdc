"""Tools that fail: `sequence()` answers a first call with an exception and the next with a value."""

from salon import create_booking

from agentest import scenario, sequence

scenario(
    "availability answers at the second attempt",
    turns=[
        {
            "user_message": "Can I have a haircut tomorrow at 9:00?",
            "trajectory": {
                "match_mode": "strict",
                "expected": ["check_availability", "check_availability", "create_booking"],
            },
            "expect": {"contains": "BK-001"},
        }
    ],
    tools={
        "check_availability": sequence(TimeoutError("calendar timed out"), {"slots": ["09:00"]}),
        "create_booking": create_booking,
    },
    tags=["booking", "failure"],
)

scenario(
    "no booking is claimed while the calendar is down",
    goal="Book a haircut for tomorrow.",
    knowledge=["Any time suits me."],
    tools={"check_availability": sequence(ConnectionError("calendar is down"))},
    trajectory={"forbidden": ["create_booking"], "max_calls_per_tool": 4},
    tags=["booking", "failure"],
)
