"""Export conversations and expectations as Python source of scenario files (`*.sim.py`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Protocol

from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Conversation, ToolCall
from agentest.scenarios.calls import ANYTHING, AnyOf, CallOrder, ExpectedCall, Step, ToolName
from agentest.scenarios.expectations import Expect, ExpectedRemark, Saying
from agentest.scenarios.matchers.comparison import Matcher
from agentest.scenarios.matchers.display import shown
from agentest.scenarios.matchers.values import DataMatcher
from agentest.scenarios.python_formatting import (
    BracketedSource,
    SourceItem,
    SourceNode,
    StringLiteral,
    bracketed,
    imports,
    is_parameter,
    mapping,
    node,
    split_source,
)
from agentest.scenarios.trajectory import Trajectory
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import shortened, snake_case

_MODULE_DOCSTRING = '"""Exported conversations: what users said, tools answered and the agent called."""'
NAMES = (
    *("absent", "any_of", "approx", "before", "call", "each", "exactly", "instance", "never_after"),
    *("number", "one_of", "optional", "scenario", "sequence", "text"),
)
"""Names that exported scenarios may import."""
_CALL_PARAMETERS = ("where", "result", "first", "last", "nth")
"""Parameters of `call()` that are not arguments of the tool."""
_FLAGS = (re.ASCII, re.IGNORECASE, re.MULTILINE, re.DOTALL, re.VERBOSE)
_PLACES = {1: "first", -1: "last"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedExpectations:
    """Expectations about a conversation, as option → source."""

    keys: Mapping[str, SourceNode]
    turns: tuple[Mapping[str, SourceNode], ...] = ()


class ExportableConversation(Protocol):
    """A conversation with the name of its exported scenario."""

    @property
    def exported_name(self) -> str: ...

    @property
    def conversation(self) -> Conversation: ...

    @property
    def words(self) -> ExportedExpectations | None:
        """The expectations; None: the same calls."""


def export_script(conversations: Sequence[ExportableConversation]) -> str:
    """Return a module that defines a scripted scenario for every conversation.

    Its users send the same messages, its mocks return the same results call by call, and the agent must make
    the same calls. Tools that the agent ran itself have no mocks, because their calls would not reach them.
    """
    scenarios = [_scenario(each) for each in conversations]
    used = imports(scenarios, NAMES, "agentest")
    return "\n\n".join([_MODULE_DOCSTRING, used, *(split_source(each) for each in scenarios)]) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSource:
    """The source of a module for one conversation.

    Attributes:
        source: the module; "": it cannot be exported.
        missing: why it cannot be exported, as a clause about the conversation.
    """

    source: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class _NamedConversation:
    scenario: str
    conversation: Conversation
    words: ExportedExpectations | None = None

    @property
    def exported_name(self) -> str:
        return exported_name(self.scenario, self.conversation)


def export_conversation(scenario: str, conversation: Conversation) -> ExportedSource:
    """Export one conversation of a scenario as a module."""
    if why := missing(conversation):
        return ExportedSource(missing=why)
    if has_nameless_call(conversation):
        return ExportedSource(missing="in which the agent called a tool without a name")
    try:
        return ExportedSource(source=export_script([_NamedConversation(scenario, conversation)]))
    except (ValueError, RecursionError) as error:
        return ExportedSource(missing=f"which holds a value that has no source: {shortened(str(error))}")


def missing(conversation: Conversation) -> str | None:
    """Return what an exported test would lack, as a clause; None if it is complete."""
    if why := why_unfinished(conversation):
        return f"which did not finish: {shortened(why)}"
    if conversation.invalid is not None:
        return f"which says nothing of the agent: {shortened(conversation.invalid)}"
    if any(turn.attachments for turn in conversation.turns):
        return "whose user sent files along: results do not keep them"
    return None


def why_unfinished(conversation: Conversation) -> str | None:
    """Return why a conversation cannot be exported, or None."""
    if conversation.failure:
        return conversation.failure.message
    if conversation.unfinished:
        return "its last turn has no reply"
    return None if conversation.turns else "it has no turn"


def exported_name(scenario: str, conversation: Conversation) -> str:
    """Return the name of the exported scenario."""
    return f"{scenario} ({conversation.conversation_id})"


def has_nameless_call(conversation: Conversation) -> bool:
    """Return True if the agent called a tool without a name, which cannot be mocked."""
    return any(not call.name.strip() for call in conversation.tool_calls)


def _scenario(exportable: ExportableConversation) -> BracketedSource:
    conversation = exportable.conversation
    calls = conversation.tool_calls
    mocked_calls = mockable_calls(calls)
    words = exportable.words or _same_calls(calls)
    items = [
        SourceItem(StringLiteral(exportable.exported_name)),
        SourceItem(bracketed("[", _turns(conversation, words), "]"), "turns="),
        *([SourceItem(node({"state": state}), "session=")] if (state := conversation.initial_state) else []),
        *([SourceItem(mapping(list(mocks(mocked_calls))), "tools=")] if mocked_calls else []),
        *(SourceItem(source, f"{key}=") for key, source in words.keys.items()),
        SourceItem(node(["exported"]), "tags="),
    ]
    return BracketedSource("scenario(", tuple(items), ")")


def _same_calls(calls: Sequence[ToolCall]) -> ExportedExpectations:
    expected = bracketed("[", [SourceItem(_expected(call)) for call in calls], "]")
    return ExportedExpectations(
        keys={"trajectory": mapping([("match_mode", StringLiteral("strict")), ("expected", expected)])}
    )


def _turns(conversation: Conversation, words: ExportedExpectations) -> Iterator[SourceItem]:
    for turn in conversation.turns:
        message, at = StringLiteral(turn.user_message), turn.turn_index
        options = words.turns[at] if at < len(words.turns) else {}
        yield SourceItem(mapping([("user_message", message), *options.items()]) if options else message)


def _expected(call: ToolCall) -> SourceNode:
    if not isinstance(call.args, Mapping):  # without valid arguments, only the name can be expected
        return StringLiteral(call.name)
    if all(map(is_parameter, call.args)):
        arguments = [SourceItem(node(value), f"{name}=") for name, value in call.args.items()]
        return bracketed("call(", [SourceItem(StringLiteral(call.name)), *arguments], ")")
    return node({"name": call.name, "args": call.args, "arg_match_mode": "exact"})


def mockable_calls(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Return the calls that mocks can answer: sent to Agentest, or to a mock server."""
    return [
        call
        for call in calls
        if call.seen_by is SeenBy.CALLER or (call.seen_by is SeenBy.MOCK_SERVER and call.mocked)
    ]


def mocks(calls: Sequence[ToolCall]) -> Iterator[tuple[str, SourceNode]]:
    """Yield each tool with a mock that returns the same results, call by call."""
    for name in dict.fromkeys(call.name for call in calls):
        # A call without an argument object is rejected before the mock is called.
        answered = [call for call in calls if call.name == name and isinstance(call.args, Mapping)]
        yield name, _mock(answered)


def _mock(calls: Sequence[ToolCall]) -> SourceNode:
    if not calls:
        return "None"
    steps = list(calls)
    while len(steps) > 1 and _answer(steps[-1]) == _answer(steps[-2]):
        del steps[-1]  # a sequence repeats its last answer
    if len(steps) == 1 and not _has_raised(steps[0]):
        return node(steps[0].result)
    return bracketed("sequence(", [SourceItem(_step(call)) for call in steps], ")")


def _step(call: ToolCall) -> SourceNode:
    if _has_raised(call):
        return bracketed("RuntimeError(", [SourceItem(StringLiteral(str(call.error)))], ")")
    return node(call.result)


def _has_raised(call: ToolCall) -> bool:
    """Return True if the agent received the error of a mock that raises."""
    return bool(call.error) and call.result == {"error": call.error}


def _answer(call: ToolCall) -> tuple[bool, str]:
    return _has_raised(call), json.dumps(call.result)  # as text, to distinguish 1, 1.0 and True


class NoSourceForm(ValueError):
    """Raised for a value without a source form. The message begins with its location."""


def trajectories(values: Sequence[Trajectory]) -> SourceNode:
    """Return the source of a `trajectory` option: one, or a list of several."""
    if len(values) == 1:
        return trajectory(values[0])
    return _list(trajectory(each, f"[{n}]") for n, each in enumerate(values))


def trajectory(value: Trajectory, at: str = "") -> SourceNode:
    """Return the source of one trajectory: a dict, or a single order."""
    if len(value.orders) == 1 and value == Trajectory(orders=value.orders):
        return order(value.orders[0], at)
    return mapping(list(_trajectory_items(value, at)))


def _trajectory_items(value: Trajectory, at: str) -> Iterator[tuple[str, SourceNode]]:
    # The name comes first for readability.
    for option, option_value in sorted(_set_fields(value), key=lambda each: each[0].name != "name"):
        location = f"{at}.{option.name}"
        if option.name in ("expected", "forbidden"):
            yield option.name, _list(step(each, f"{location}[{n}]") for n, each in enumerate(option_value))
        elif option.name == "reads":
            yield option.name, _list(map(tool, option_value))
        elif option.name == "orders":
            yield from _orders(option_value, at)
        else:
            yield option.name, value_of(option_value, location)


def _orders(values: Sequence[CallOrder], at: str) -> Iterator[tuple[str, SourceNode]]:
    for kind in ("before", "never_after"):
        pairs = [
            _list([step(each.first, f"{at}.{kind}"), step(each.then, f"{at}.{kind}")])
            for each in values
            if each.kind == kind
        ]
        if pairs:
            yield kind, _list(pairs)


def order(value: CallOrder, at: str = "") -> SourceNode:
    """Return the source of `before(…)` or `never_after(…)`."""
    both = [step(each, f"{at}.{value.kind}") for each in (value.first, value.then)]
    return _function_call(value.kind, both)


def step(value: Step, at: str = "") -> SourceNode:
    """Return the source of an item in a list of expected calls."""
    if isinstance(value, ExpectedCall):
        return expected_call(value, at)
    alone = all(len(path) == 1 and isinstance(path[0], ExpectedCall) for path in value.paths)
    return _function_call(
        "any_of", [_path(path, f"{at}.any_of[{n}]", alone) for n, path in enumerate(value.paths)]
    )


def _path(path: Sequence[ExpectedCall | AnyOf], at: str, alone: bool) -> SourceNode:
    steps = [step(each, at) for each in path]
    return steps[0] if alone else _list(steps)


def expected_call(value: ExpectedCall, at: str = "") -> SourceNode:
    """Return a call as a name, `call(…)`, `exactly(call(…))`, or a dict if arguments are ignored."""
    if value == ExpectedCall(value.name):
        return tool(value.name)
    if value.args is None or value.arg_match_mode == "ignore":
        return mapping(list(_call_items(value, at)))
    made = bracketed("call(", list(_call_arguments(value, value.args, at)), ")")
    return made if value.arg_match_mode == "partial" else _function_call("exactly", [made])


def _call_items(value: ExpectedCall, at: str) -> Iterator[tuple[str, SourceNode]]:
    for option, option_value in _set_fields(value):
        location = f"{at}.{option.name}"
        yield option.name, tool(option_value) if option.name == "name" else value_of(option_value, location)


def _call_arguments(value: ExpectedCall, args: Mapping[str, Any], at: str) -> Iterator[SourceItem]:
    yield SourceItem(tool(value.name))
    nodes = {key: value_of(item, f"{at}.args.{key}") for key, item in args.items()}
    named = {key for key in nodes if is_parameter(key) and key not in _CALL_PARAMETERS}
    if others := [(key, nodes[key]) for key in nodes if key not in named]:
        yield SourceItem(mapping(others))
    yield from (SourceItem(nodes[key], f"{key}=") for key in nodes if key in named)
    if value.where is not None:
        raise _no_form(value.where, f"{at}.where")
    if value.result is not ANYTHING:
        yield SourceItem(value_of(value.result, f"{at}.result"), "result=")
    if value.nth is not None:
        yield (
            SourceItem("True", f"{_PLACES[value.nth]}=")
            if value.nth in _PLACES
            else SourceItem(str(value.nth), "nth=")
        )


def tool(name: ToolName) -> SourceNode:
    """Return the source of a tool name or a pattern."""
    return StringLiteral(name) if isinstance(name, str) else _pattern(name, "name")


def sayings_source(values: Sequence[Saying]) -> SourceNode:
    """Return the source of a scenario's `expect`."""
    if len(values) == 1:
        return _saying(values[0], "")
    return _list(_saying(each, f"[{n}]") for n, each in enumerate(values))


def _saying(value: Saying, at: str) -> SourceNode:
    word = "never_says" if value.never else "says"
    turn = [] if value.in_turn is None else [("in_turn", node(value.in_turn))]
    return mapping([(word, value_of(value.wanted, f"{at}.{word}")), *turn])


def expect(value: Expect) -> SourceNode:
    """Return the source of a turn's `expect`."""
    return mapping(
        [
            (option.name, _checks(option_value, f".{option.name}"))
            for option, option_value in _set_fields(value)
        ]
    )


def _checks(checks: Any, at: str) -> SourceNode:
    """Return the source of a key of `expect`: the only value of a tuple, or a list of several."""
    if not isinstance(checks, tuple):
        return value_of(checks, at)
    nodes = [_remark(each, at) if isinstance(each, ExpectedRemark) else value_of(each, at) for each in checks]
    return nodes[0] if len(nodes) == 1 and at != ".remarks" else _list(nodes)


def _remark(value: ExpectedRemark, at: str) -> SourceNode:
    return mapping(
        [
            (option.name, _checks(option_value, f"{at}.{option.name}"))
            for option, option_value in _set_fields(value)
        ]
    )


def value_of(value: Any, at: str = "") -> SourceNode:
    """Return the source of an expected value: JSON, with matchers at any depth."""
    if isinstance(value, DataMatcher):  # it was written as data
        return value_of(value.word, at)
    if isinstance(value, Matcher):
        return _matcher(value, at)
    if isinstance(value, re.Pattern):
        return _pattern(value, at)
    if isinstance(value, Mapping):
        return mapping([(_key(key, at), value_of(item, f"{at}.{key}")) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return _list(value_of(item, f"{at}[{n}]") for n, item in enumerate(value))
    if value is None or type(value) in (str, int, float, bool):
        return node(value)
    raise _no_form(value, at)


def _key(key: Any, at: str) -> str:
    if not isinstance(key, str):
        raise NoSourceForm(f"{_location_text(at)}: the key {key!r} is no text")
    return key


def _matcher(value: Matcher, at: str) -> SourceNode:
    """Return the source of a matcher: the function named like its class, with its values."""
    word = snake_case(type(value).__name__)
    set_fields = list(_set_fields(value))
    if not set_fields:
        return word
    (first, first_value), *more = set_fields
    several = first.name in ("values", "types")
    nodes = [_inner_source(each, at) for each in first_value] if several else [_inner_source(first_value, at)]
    named = [SourceItem(_inner_source(each, at), f"{option.name}=") for option, each in more]
    return bracketed(f"{word}(", [*map(SourceItem, nodes), *named], ")")


def _inner_source(value: Any, at: str) -> SourceNode:
    if isinstance(value, type):
        return "None" if value is type(None) else value.__name__
    return value_of(value, at)


def _pattern(value: re.Pattern[Any], at: str) -> SourceNode:
    if not isinstance(value.pattern, str):
        raise _no_form(value, at)
    flags = [f"re.{flag.name}" for flag in _FLAGS if value.flags & flag]
    implied = re.compile(value.pattern).flags == value.flags
    items = [
        SourceItem(_pattern_literal(value.pattern)),
        *([] if implied else [SourceItem(" | ".join(flags))]),
    ]
    return bracketed("re.compile(", items, ")")


def _pattern_literal(pattern: str) -> SourceNode:
    """Return a pattern with backslashes as a raw string, if possible."""
    plain = pattern.isascii() and pattern.isprintable() and '"' not in pattern and not pattern.endswith("\\")
    return f'r"{pattern}"' if "\\" in pattern and plain else StringLiteral(pattern)


def _function_call(word: str, nodes: Iterable[SourceNode]) -> SourceNode:
    return bracketed(f"{word}(", map(SourceItem, nodes), ")")


def _list(nodes: Iterable[SourceNode]) -> SourceNode:
    return bracketed("[", map(SourceItem, nodes), "]")


def _set_fields(value: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield the fields of a value that differ from their default."""
    for each_field in (each for each in fields(value) if each.compare):
        field_value = getattr(value, each_field.name)
        if each_field.default is MISSING or (
            field_value is not each_field.default and field_value != each_field.default
        ):
            yield each_field, field_value


def _no_form(value: Any, at: str) -> NoSourceForm:
    return NoSourceForm(f"{_location_text(at)}: {shown(value)} cannot be written")


def _location_text(at: str) -> str:
    return at.removeprefix(".") or "it"
