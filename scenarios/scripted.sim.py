"""Scripted conversations: the user's messages are fixed, every turn has checks of its own."""

import re

from salon import cancel_booking, create_booking

from agentest import call, scenario

scenario(
    "booking in two steps, then cancelled",
    turns=[
        {
            "user_message": "Hi, I'd like a beard trim on Friday.",
            "trajectory": {"match_mode": "strict", "expected": [call("check_availability", date="friday")]},
            "expect": {"contains": ["09:00", "15:30"], "not_contains": "booked", "max_words": 30},
        },
        {
            "user_message": "15:30 please.",
            "trajectory": {"match_mode": "strict", "expected": [call("create_booking", time="15:30")]},
            "expect": {"regex": r"reference is BK-\d+"},
        },
        {
            "user_message": "Sorry, please cancel booking BK-001.",
            "trajectory": {
                "match_mode": "strict",
                "expected": [
                    {
                        "name": "cancel_booking",
                        "args": {"booking_id": re.compile(r"BK-\d+")},
                        "arg_match_mode": "exact",
                    }
                ],
            },
            "expect": {"contains": "cancelled"},
        },
    ],
    tools={
        "check_availability": {"slots": ["09:00", "15:30"]},
        "create_booking": create_booking,
        "cancel_booking": cancel_booking,
    },
    tags=["booking", "scripted"],
)

scenario(
    "opening hours need no tool",
    turns=[{"user_message": "When are you open?", "expect": {"contains": ["9:00", "17:00"]}}],
    trajectory={"max_calls": 0},
    tags=["faq", "scripted"],
)
