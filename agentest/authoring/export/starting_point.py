"""A conversation as the beginning of a scenario with a simulated user: what is known, and what is to do."""

from __future__ import annotations

from collections.abc import Iterator

from agentest.authoring.export.selection import Held
from agentest.codegen.literals import (
    Brackets,
    Item,
    Text,
    bracketed,
    imports,
    literal,
    mapping,
    node,
    opened,
)
from agentest.codegen.script import NAMES, answered_by_us, mocks
from agentest.scenarios.model import Scenario
from agentest.support.text import shortened

_ABOUT = (
    '"""A scenario with a simulated user, begun from a conversation. What is left to do is marked TODO."""'
)
_SHOWN_CHARS = 80
GOAL = "TODO: what the user wants, and when they have it."


def starting_point(held: Held, scenario: Scenario) -> str:
    """The source of a `*.sim.py` with one scenario, whose user a model plays.

    Its tools answer as they were seen to answer, its user wants and knows what the scenario says that the
    conversation went through.
    """
    calls = held.conversation.tool_calls
    asked = answered_by_us(calls)
    names = list(dict.fromkeys(call.name for call in calls))
    expected = bracketed("[", [Item(Text(name)) for name in names], "]")
    state = scenario.session.state if scenario.session else None
    items = [
        Item(Text(held.exported_name)),
        *([Item(Text(scenario.profile), "profile=")] if scenario.profile else []),
        Item(Text(scenario.goal or GOAL), "goal="),
        *([Item(node(list(scenario.knowledge)), "knowledge=")] if scenario.knowledge else []),
        *([Item(node({"state": dict(state)}), "session=")] if state else []),
        *([Item(mapping(list(mocks(asked))), "tools=")] if asked else []),
        *(
            [Item(mapping([("match_mode", Text("contains")), ("expected", expected)]), "trajectory=")]
            if names
            else []
        ),
        Item(node(["from-a-talk"]), "tags="),
    ]
    made = Brackets("scenario(", tuple(items), ")")
    used = imports([made], NAMES, "agentest")
    return "\n\n".join([_ABOUT, used, "\n".join([*_remarks(held, scenario), opened(made)])]) + "\n"


def _remarks(held: Held, scenario: Scenario) -> Iterator[str]:
    """What a person has to decide, each a line of a comment."""
    turns = held.conversation.turns
    if turns:
        yield f"# The user began with: {literal(shortened(turns[0].user_message, _SHOWN_CHARS))}"
    yield from (
        [] if scenario.goal else ["# TODO: write the goal; until then the simulated user wants nothing."]
    )
    yield from (
        [] if scenario.profile else ["# TODO: say who the user is, with profile=…, where that matters."]
    )
    yield from [] if scenario.knowledge else ["# TODO: list what the user knows, with knowledge=[…]."]
    if answered_by_us(held.conversation.tool_calls):
        yield "# TODO: tools answer as in that one conversation; another one may call them otherwise."
    if held.conversation.tool_calls:
        yield "# TODO: keep in `expected` what has to be called every time, and say what may never be."
