"""How conversations end, and for which reasons the person who talks to an agent ends one.

`REASONS_TO_STOP` is the one list: the simulated user is told to stop by it, and whoever judges the simulated
user judges by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

PATIENCE = 3
"""How often a user takes the same answer that does not help before giving up."""


class Ending(StrEnum):
    """How a conversation came to its end."""

    SATISFIED = "satisfied"
    """The user has what they wanted, or has nothing more to say and gives no other reason."""
    REFUSED = "refused"
    GAVE_UP = "gave up"
    HANDED_OVER = "handed over"
    CLOSED = "closed"
    CANNOT_PROVIDE = "cannot provide"
    MAX_TURNS = "max turns"
    SCRIPT = "script"
    """All messages of the script have been said."""
    ERROR = "error"


REASONS_TO_STOP: Mapping[Ending, str] = MappingProxyType(
    {
        Ending.SATISFIED: "the assistant has done or answered all that you wanted, and has said so",
        Ending.REFUSED: (
            "the assistant has made plain that it cannot or will not do what you want, and there is nothing "
            "else that you want of it"
        ),
        Ending.GAVE_UP: (
            "the assistant has given you {{patience}} times the same answer that does not help, in whatever "
            "words, or has asked {{patience}} times for what you had told it"
        ),
        Ending.HANDED_OVER: (
            "the assistant has passed you on: a person takes over, or you are to go on by telephone, by mail "
            "or elsewhere"
        ),
        Ending.CLOSED: "the assistant has said goodbye or closed the chat and does not go on with the matter",
        Ending.CANNOT_PROVIDE: (
            "the assistant does not go on without something that you cannot have or give, and you have told "
            "it so"
        ),
    }
)
"""Ending → when a user ends a conversation so, as the user is told; `{{patience}}` is a number."""


IN_WORDS: Mapping[Ending, str] = MappingProxyType(
    {
        Ending.SATISFIED: "the user was satisfied",
        Ending.REFUSED: "the user was refused",
        Ending.GAVE_UP: "the user gave up",
        Ending.HANDED_OVER: "the user was handed over",
        Ending.CLOSED: "the agent closed the chat",
        Ending.CANNOT_PROVIDE: "the user could not give what was asked for",
        Ending.MAX_TURNS: "stopped at max_turns",
        Ending.SCRIPT: "the script was finished",
        Ending.ERROR: "ended by an error",
    }
)
"""Ending → how reports and judges are told of it."""


def ending_of_older(value: str) -> str:
    """The value of today for one of results that were written before version 3."""
    return {"user_stopped": "satisfied", "script_finished": "script", "max_turns": "max turns"}.get(
        value, value
    )
