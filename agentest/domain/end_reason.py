"""The reasons for which conversations end.

`REASONS_TO_STOP` is the only list of reasons for simulated users: it is part of the user's prompt and of the
prompt that judges the user. `PLAN_ENDS` has the reasons for users who follow the plan of an evaluation set.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from agentest.support.text import meanings

PATIENCE = 3  # how many unhelpful answers in a row a user accepts before giving up


class Ending(StrEnum):
    """The reason for which a conversation ended."""

    SATISFIED = "satisfied"
    """The user has reached their goal, or has nothing more to say and gives no other reason."""
    REFUSED = "refused"
    GAVE_UP = "gave up"
    HANDED_OVER = "handed over"
    CLOSED = "closed"
    CANNOT_PROVIDE = "cannot provide"
    MAX_TURNS = "max turns"
    SCRIPT = "script"  # every message of the script has been sent
    RECORDED = "recorded"  # it was recorded elsewhere, and why it ended is unknown
    ERROR = "error"


REASONS_TO_STOP: Mapping[Ending, str] = meanings(
    Ending,
    """\
satisfied: all that you wanted has been done or answered, or something else that you agreed to, and the \
assistant has said so and nothing to the contrary. A promise, a question or a part of it is not enough
refused: the assistant cannot or will not do what you want, still says so after you asked in another way or \
said why it matters, and offers nothing that would serve you instead. Once is enough where it gives a reason \
from your own case that leaves no room; if it offers something else, answer that first
gave up: the assistant's last {{patience}} replies have all left you where you were: each was the same \
answer that does not help, in whatever words, no real answer, something that you had not asked for, a \
question that you had answered, a promise of which nothing came, or the taking back of what it had said. A \
greeting does not count, and a reply that takes you further, such as a new question about your case, starts \
the count anew
handed over: the assistant has passed you on to a person, even one who takes over in this chat, or to a \
telephone, a mail address, a branch or the like, and asks nothing more of you. A mere 'you will hear from \
us' is a promise, and another automatic assistant in this chat is no end
closed: the assistant says that the chat is closed, or says goodbye again although you said what is missing
cannot provide: the assistant does not go on without something that you do not have; you have told it so, \
and it names no other way; where that thing is to be found is no other way""",
)
"""Reason → the condition, as the user's prompt states it; `{{patience}}` stands for a number."""

PLAN_ENDS: Mapping[Ending, str] = meanings(
    Ending,
    """\
satisfied: the assistant has confirmed that all goals of the plan are reached
gave up: the assistant has failed for the second time
refused: the assistant says that it cannot put a mistake right, or can never do what the plan wants
handed over: the assistant hands {{user}} over to a person""",
)
"""Reason → the condition for a user who follows a plan; `{{user}}` stands for the name of the user's role."""


IN_WORDS: Mapping[Ending, str] = MappingProxyType(
    {
        Ending.SATISFIED: "the user was done",
        Ending.REFUSED: "the user was refused",
        Ending.GAVE_UP: "the user gave up",
        Ending.HANDED_OVER: "the user was handed over",
        Ending.CLOSED: "the agent closed the chat",
        Ending.CANNOT_PROVIDE: "the user could not give what was asked for",
        Ending.MAX_TURNS: "stopped at max_turns",
        Ending.SCRIPT: "the script was finished",
        Ending.RECORDED: "it was recorded",
        Ending.ERROR: "ended by an error",
    }
)
"""Reason → its phrase in reports and in judge prompts."""
