"""Conversations as scripted scenarios: the source of a `*.sim.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentest.codegen.literals import (
    Brackets,
    Item,
    Node,
    Text,
    bracketed,
    imports,
    is_parameter,
    mapping,
    node,
    opened,
)
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Conversation, ToolCall
from agentest.support.text import shortened

_ABOUT = '"""Exported conversations: what users said, tools answered and the agent called."""'
NAMES = (
    *("absent", "any_of", "approx", "before", "call", "each", "exactly", "instance", "never_after"),
    *("number", "one_of", "optional", "scenario", "sequence", "text"),
)
"""The words that exported scenarios import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What must happen in a conversation, in the words of a scenario: keys with their source."""

    whole: Mapping[str, Node]
    turns: tuple[Mapping[str, Node], ...] = ()


class Held(Protocol):
    """A conversation, and what the scenario is called that is made of it."""

    @property
    def exported_name(self) -> str: ...

    @property
    def conversation(self) -> Conversation: ...

    @property
    def words(self) -> Words | None:
        """What must happen; None: the same calls."""


def script(held: Sequence[Held]) -> str:
    """A module that defines a scripted scenario for every conversation.

    Its users say the same, its tools answer the same, call by call, and the agent must make the same calls.
    Tools that the agent ran itself have no mocks: none would reach them.
    """
    scenarios = [_scenario(each) for each in held]
    used = imports(scenarios, NAMES, "agentest")
    return "\n\n".join([_ABOUT, used, *(opened(each) for each in scenarios)]) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One conversation as the source of a module.

    Attributes:
        source: the module; "": there is none.
        missing: why there is none, as a clause about the conversation.
    """

    source: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class _One:
    scenario: str
    conversation: Conversation
    words: Words | None = None

    @property
    def exported_name(self) -> str:
        return exported_name(self.scenario, self.conversation)


def told(scenario: str, conversation: Conversation) -> Told:
    """One conversation of a scenario, as a module of its own."""
    if why := missing(conversation):
        return Told(missing=why)
    if nameless(conversation):
        return Told(missing="in which the agent called a tool without a name")
    try:
        return Told(source=script([_One(scenario, conversation)]))
    except (ValueError, RecursionError) as error:
        return Told(missing=f"which holds a value that has no source: {shortened(str(error))}")


def missing(conversation: Conversation) -> str | None:
    """What a test made of the conversation would lack, as a clause; None: nothing."""
    if why := unfinished(conversation):
        return f"which did not finish: {shortened(why)}"
    if conversation.invalid is not None:
        return f"which says nothing of the agent: {shortened(conversation.invalid)}"
    if any(turn.attachments for turn in conversation.turns):
        return "whose user sent files along: results do not keep them"
    return None


def unfinished(conversation: Conversation) -> str | None:
    """Why a conversation cannot be told again, or None when it can."""
    if conversation.failure:
        return conversation.failure.message
    if conversation.unfinished:
        return "its last turn has no reply"
    return None if conversation.turns else "it has no turn"


def exported_name(scenario: str, conversation: Conversation) -> str:
    """What a scenario is called that tells a conversation again, beside the one that was run."""
    return f"{scenario} ({conversation.conversation_id})"


def nameless(conversation: Conversation) -> bool:
    """Whether the agent called a tool by a name that no mock can have."""
    return any(not call.name.strip() for call in conversation.tool_calls)


def _scenario(held: Held) -> Brackets:
    conversation = held.conversation
    calls = conversation.tool_calls
    asked = answered_by_us(calls)
    words = held.words or _same_calls(calls)
    items = [
        Item(Text(held.exported_name)),
        Item(bracketed("[", _turns(conversation, words), "]"), "turns="),
        *([Item(node({"state": state}), "session=")] if (state := conversation.initial_state) else []),
        *([Item(mapping(list(mocks(asked))), "tools=")] if asked else []),
        *(Item(source, f"{key}=") for key, source in words.whole.items()),
        Item(node(["exported"]), "tags="),
    ]
    return Brackets("scenario(", tuple(items), ")")


def _same_calls(calls: Sequence[ToolCall]) -> Words:
    expected = bracketed("[", [Item(_expected(call)) for call in calls], "]")
    return Words(whole={"trajectory": mapping([("match_mode", Text("strict")), ("expected", expected)])})


def _turns(conversation: Conversation, words: Words) -> Iterator[Item]:
    for turn in conversation.turns:
        message, at = Text(turn.user_message), turn.turn_index
        said = words.turns[at] if at < len(words.turns) else {}
        yield Item(mapping([("user_message", message), *said.items()]) if said else message)


def _expected(call: ToolCall) -> Node:
    if not isinstance(call.args, Mapping):  # it was no argument object, and only its name can be expected
        return Text(call.name)
    if all(map(is_parameter, call.args)):
        arguments = [Item(node(value), f"{name}=") for name, value in call.args.items()]
        return bracketed("call(", [Item(Text(call.name)), *arguments], ")")
    return node({"name": call.name, "args": call.args, "arg_match_mode": "exact"})


def answered_by_us(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """The calls that mocks can answer: handed to us, or asked of a server that stood for the tools."""
    return [
        call
        for call in calls
        if call.seen_by is SeenBy.CALLER or (call.seen_by is SeenBy.MOCK_SERVER and call.mocked)
    ]


def mocks(calls: Sequence[ToolCall]) -> Iterator[tuple[str, Node]]:
    """Tool → a mock that answers the same, call by call."""
    for name in dict.fromkeys(call.name for call in calls):
        # A call without an argument object is refused before the mock is asked.
        answered = [call for call in calls if call.name == name and isinstance(call.args, Mapping)]
        yield name, _mock(answered)


def _mock(calls: Sequence[ToolCall]) -> Node:
    if not calls:
        return "None"
    steps = list(calls)
    while len(steps) > 1 and _answer(steps[-1]) == _answer(steps[-2]):
        del steps[-1]  # a sequence repeats its last answer
    if len(steps) == 1 and not _raised(steps[0]):
        return node(steps[0].result)
    return bracketed("sequence(", [Item(_step(call)) for call in steps], ")")


def _step(call: ToolCall) -> Node:
    if _raised(call):
        return bracketed("RuntimeError(", [Item(Text(str(call.error)))], ")")
    return node(call.result)


def _raised(call: ToolCall) -> bool:
    """Whether the agent got what it gets from a mock that raises."""
    return bool(call.error) and call.result == {"error": call.error}


def _answer(call: ToolCall) -> tuple[bool, str]:
    return _raised(call), json.dumps(call.result)  # as text, for which 1, 1.0 and True are not the same
