"""Mistakes that Agentest catches. These scenarios fail, on purpose."""

from agentest import scenario

scenario(
    "a tool nobody mocked is caught",
    turns=["A haircut tomorrow at 9:00, please.", "Text me a confirmation to 0151 2345678."],
    tools={
        "check_availability": {"slots": ["09:00"]},
        "create_booking": {"booking_id": "BK-001"},
    },
)

scenario(
    "a booking at the wrong time is caught",
    turns=["Book a haircut for tomorrow at 9:00."],
    tools={
        "check_availability": {"slots": ["09:00"]},
        "create_booking": {"booking_id": "BK-001"},
    },
    trajectory={
        "match_mode": "contains",
        "expected": [{"name": "create_booking", "args": {"time": "10:30"}, "arg_match_mode": "partial"}],
    },
)
