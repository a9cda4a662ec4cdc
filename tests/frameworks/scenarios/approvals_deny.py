"""The configuration denies whatever the agent asks."""

from agentest import scenario

scenario(
    "does not order",
    turns=[
        {"user_message": "ask lamp", "expect": {"not_contains": "ordered"}},
        {"user_message": "hello", "expect": {"contains": "You said: hello"}},
    ],
)
