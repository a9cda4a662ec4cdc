"""Export conversations and expectations as Python source of scenario files (`*.sim.py`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

from agentest.domain.changes import Fault, Injection
from agentest.domain.messages import Session
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Conversation, ToolCall
from agentest.mocks.binding import BoundFunction, Mock, MockSequence
from agentest.mocks.calls import HttpResponse
from agentest.scenarios.expectations import Expect, ExpectedRemark, Saying
from agentest.scenarios.function_source import CopiedFunction, copy_function
from agentest.scenarios.matchers.comparison import Matcher
from agentest.scenarios.matchers.display import shown
from agentest.scenarios.matchers.values import DataMatcher
from agentest.scenarios.model import DECIDERS, Criterion, Scenario, ScriptedTurn
from agentest.scenarios.python_formatting import (
    BracketedSource,
    SourceExpression,
    SourceNode,
    StringLiteral,
    call_of,
    is_parameter,
    list_of,
    mapping,
    module_of,
    node,
)
from agentest.scenarios.trajectory import ANYTHING, CallOrder, ExpectedCall, Step, ToolName, Trajectory
from agentest.scenarios.trajectory_parser import ORDERS
from agentest.scenarios.variations import as_base
from agentest.support.errors import ToolError, errors_as
from agentest.support.json_text import NotJson, json_text
from agentest.support.text import shortened, snake_case

_MODULE_DOCSTRING = '"""Exported conversations: what users said, tools answered and the agent called."""'
_CALL_PARAMETERS = ("where", "result", "first", "last", "nth")
_FLAGS = (re.ASCII, re.IGNORECASE, re.MULTILINE, re.DOTALL, re.VERBOSE)
_PLACES = {1: "first", -1: "last"}


def scripted_scenario(name: str, conversation: Conversation, expected: Scenario | None = None) -> Scenario:
    """Return a scenario that repeats a conversation.

    Its user sends the same messages, and its mocks return the same results call by call. Tools that the agent
    ran itself have no mocks, because their calls would not reach them.

    Args:
        expected: a scenario whose expectations it gets; None: the agent must make the same calls.
    """
    if expected is None:
        same = Trajectory("strict", tuple(map(_same_call, conversation.tool_calls)))
        expected = Scenario(name, "", 0, trajectory=(same,))
    turns = []
    for turn in conversation.turns:
        of_turn = next(iter(expected.turns[turn.turn_index :]), ScriptedTurn(""))
        turns.append(ScriptedTurn(turn.user_message, of_turn.trajectory, of_turn.expect))
    state = conversation.initial_state
    return Scenario(
        name,
        file="",
        line=0,
        turns=tuple(turns),
        session=Session(state=dict(state)) if state else None,
        tools=repeating_mocks(conversation.tool_calls),
        trajectory=expected.trajectory,
        expect=expected.expect,
        final_session_state=expected.final_session_state,
        thresholds=expected.thresholds,
        date=expected.date,
        tags=("exported",),
    )


def exported_name(scenario: str, conversation: Conversation) -> str:
    """Return a name for a scenario that repeats a conversation of a scenario, which may still exist."""
    return f"{scenario} ({conversation.conversation_id})"


def export_script(scenarios: Sequence[Scenario]) -> str:
    """Return a module that defines scenarios that repeat conversations."""
    return scenarios_source(scenarios, _MODULE_DOCSTRING)


def missing(conversation: Conversation) -> str | None:
    """Return what an exported test would lack, as a clause; None if it is complete."""
    if conversation.failure:
        return f"which did not finish: {shortened(conversation.failure.message)}"
    if conversation.unfinished:
        return "which did not finish: its last turn has no reply"
    if not conversation.turns:
        return "which did not finish: it has no turn"
    if conversation.invalid is not None:
        return f"which says nothing of the agent: {shortened(conversation.invalid)}"
    if conversation.history:
        return "which began after a history: results keep only its texts"
    if any(turn.attachments for turn in conversation.turns):
        return "whose user sent files along: results do not keep them"
    return None


def has_nameless_call(conversation: Conversation) -> bool:
    """Return True if the agent called a tool without a name, which cannot be mocked."""
    return any(not call.name.strip() for call in conversation.tool_calls)


def _same_call(call: ToolCall) -> ExpectedCall:
    if not isinstance(call.args, Mapping):  # without valid arguments, only the name can be expected
        return ExpectedCall(call.name)
    return ExpectedCall(call.name, call.args, "partial" if all(map(is_parameter, call.args)) else "exact")


def mockable_calls(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Return the calls that mocks can answer: sent to Agentest, or to a mock server."""
    return [
        call
        for call in calls
        if call.seen_by is SeenBy.CALLER or (call.seen_by is SeenBy.MOCK_SERVER and call.mocked)
    ]


def repeating_mocks(calls: Sequence[ToolCall]) -> dict[str, Mock]:
    """Return mocks of the tools that mocks can answer, which return the same results call by call."""
    calls = mockable_calls(calls)
    return {name: _mock([call for call in calls if call.name == name]) for name in named_in(calls)}


def named_in(calls: Iterable[ToolCall]) -> tuple[str, ...]:
    """Return each called tool once, in order."""
    return tuple(dict.fromkeys(call.name for call in calls))


def _mock(calls: Sequence[ToolCall]) -> Mock:
    # A call without an argument object is rejected before the mock is called.
    answered = [call for call in calls if isinstance(call.args, Mapping)]
    while len(answered) > 1 and _answer(answered[-1]) == _answer(answered[-2]):
        del answered[-1]  # a sequence repeats its last answer
    steps = tuple(ToolError(str(call.error)) if has_raised(call) else call.result for call in answered)
    is_plain = len(steps) == 1 and not has_raised(answered[0])
    return steps[0] if is_plain else MockSequence(steps) if steps else None


def has_raised(call: ToolCall) -> bool:
    """Return True if the agent received the error of a mock that raises."""
    return bool(call.error) and call.result == {"error": call.error}


def _answer(call: ToolCall) -> tuple[bool, str]:
    return has_raised(call), json.dumps(call.result)  # as text, to distinguish 1, 1.0 and True


def scenarios_source(
    scenarios: Sequence[Scenario],
    about: str,
    comments: Sequence[str] = (),
    functions: Mapping[str, CopiedFunction] = MappingProxyType({}),
    recorded: Callable[[str], Any] = lambda _: None,
) -> str:
    """Return a module that defines scenarios. Raises ValueError if a part of one has no source.

    Args:
        about: the module's docstring, in quotes.
        comments: the lines above each scenario, joined; () for none.
        functions: option → function or other name, in place of the scenarios' own: `check`.
        recorded: returns the mock for a tool whose function cannot be copied, in JSON or as a sequence.
    """
    writer = _ScenarioWriter(recorded)
    calls = [_scenario_call(each, writer, functions) for each in scenarios]
    return module_of(about, calls, writer.definitions, writer.imports, comments)


def _scenario_call(
    scenario: Scenario, writer: _ScenarioWriter, functions: Mapping[str, CopiedFunction]
) -> BracketedSource:
    if problem := _unwritable(scenario):
        raise ValueError(problem)
    plain = as_base(scenario)
    never, sayings, trajectories_left = _never(plain)
    checks = [writer.function(each) for each in plain.never_checks]
    options: dict[str, SourceNode | None] = {
        **_written(plain, "profile", "goal", "knowledge", "user_prompt_template", "agent"),
        "turns": _list_if(map(_turn, plain.turns)),
        "then": node("simulate") if plain.is_continued else None,
        **_written(plain, "headers", "body"),
        "session": _session(plain.session) if plain.session else None,
        "tools": mapping([(name, writer.mock(name, mock)) for name, mock in plain.tools.items()])
        if plain.tools
        else None,
        **_written(plain, "state"),
        "faults": _list_if(map(_change, plain.faults)),
        "inject": _list_if(map(_change, plain.injections)),
        "mutate": node(list(plain.mutations)) if plain.mutations else None,
        "model_faults": _list_if(map(_change, plain.model_faults)),
        **_written(plain, "secrets", "consent"),
        "approve": None if plain.approve is None else node(plain.approve),
        "never": _list_if([*never, *checks]),
        "trajectory": trajectories(trajectories_left) if trajectories_left else None,
        "expect": sayings_source(sayings) if sayings else None,
        **_written(plain, "final_state", "final_session_state", "expected_outcome"),
        "decides": node(list(plain.decides)) if plain.decides != DECIDERS else None,
        "criteria": _list_if(map(_criterion, plain.criteria)),
        "check": writer.function(plain.check) if plain.check else None,
        "metrics": node(list(plain.metrics)) if plain.metrics is not None and not plain.scripted else None,
        **_written(plain, "thresholds", "date", "max_turns", "conversations_per_scenario", "tags"),
    }
    if plain.explore is not None and plain.explore.everything:
        options["explore"] = "False"
    for option, each in functions.items():
        options[option] = writer.add(each)
    return call_of("scenario", [StringLiteral(plain.name)], options)


def _written(scenario: Scenario, *names: str) -> dict[str, SourceNode]:
    return {name: value_of(value, f".{name}") for name in names if (value := getattr(scenario, name))}


def _criterion(criterion: Criterion) -> SourceNode:
    written = StringLiteral(criterion.text)
    return written if criterion.required else call_of("Criterion", [written], {"required": "False"})


def plain_value(value: Any) -> Any:
    """Return a mock's value as the JSON that the agent receives. Raises ValueError."""
    if isinstance(value, str):
        return value
    with errors_as(ValueError, f"{shown(value)} has no source: ", NotJson):
        return json.loads(json_text(value))  # which accepts surrogates, too


class _ScenarioWriter:
    def __init__(self, recorded: Callable[[str], Any]) -> None:
        self.definitions: list[str] = []
        self.imports: list[str] = []
        self._defined: dict[str, CopiedFunction] = {}  # name → function, because two may have one name
        self._recorded = recorded

    def mock(self, name: str, mock: Any) -> SourceNode:
        if isinstance(mock, MockSequence):
            return call_of("sequence", [self.mock(name, each) for each in mock.steps])
        if isinstance(mock, BoundFunction):
            copied = copy_function(mock.function)
            fits = copied is not None and self._defined.setdefault(copied.name, copied) == copied
            return self.add(copied) if copied and fits else self.mock(name, self._recorded(name))
        if isinstance(mock, HttpResponse):
            return call_of("HttpResponse", [node(mock.status), value_of(mock.body, f".tools.{name}")])
        if isinstance(mock, BaseException):
            return call_of("ToolError", [StringLiteral(str(mock))])
        if isinstance(mock, type):
            return call_of("ToolError", [StringLiteral(mock.__name__)])
        return self._data(mock, f".tools.{name}")

    def _data(self, value: Any, at: str) -> SourceNode:
        if isinstance(value, SourceExpression):
            self.imports += [each for each in [value.import_line] if each not in self.imports]
            return value.source
        if type(value) is dict and all(type(key) is str for key in value):
            return mapping([(key, self._data(each, f"{at}.{key}")) for key, each in value.items()])
        if type(value) is list:
            return list_of(self._data(each, f"{at}[{n}]") for n, each in enumerate(value))
        return value_of(plain_value(value), at)

    def function(self, function: Callable[..., Any]) -> SourceNode:
        copied = copy_function(function)
        if copied is None or self._defined.setdefault(copied.name, copied) != copied:
            raise ValueError(f"{shown(function)} cannot be copied")
        return self.add(copied)

    def add(self, copied: CopiedFunction) -> SourceNode:
        self.definitions += [each for each in copied.definitions if each not in self.definitions]
        self.imports += [each for each in copied.imports if each not in self.imports]
        return copied.name


def _unwritable(scenario: Scenario) -> str:
    if scenario.attachments or any(turn.attachments for turn in scenario.turns):
        return "its user attaches files"
    if scenario.history:
        return "its conversation begins with a history"
    if scenario.recorded is not None:
        return "its tools answer from a recording"
    if scenario.user_tools or scenario.attack or (scenario.plan and not scenario.scripted):
        return "its user needs a model with tools, a plan or an attack"
    return ""


def _session(session: Session) -> SourceNode:
    names = {"app_name": session.app_name, "user_id": session.user_id, "session_id": session.session_id}
    given = {name: value for name, value in names.items() if value}
    return value_of({**({"state": dict(session.state)} if session.state else {}), **given}, ".session")


def _never(scenario: Scenario) -> tuple[list[SourceNode], tuple[Saying, ...], tuple[Trajectory, ...]]:
    bans = [
        each
        for each in scenario.trajectory
        if each == Trajectory("contains", forbidden=each.forbidden, name="never")
    ]
    banned = [each for ban in bans for each in ban.forbidden]  # a name alone would be a text of a reply
    never = [
        call_of("call", [tool(each.name)]) if each == ExpectedCall(each.name) else step(each)
        for each in banned
    ]
    texts = [
        each for each in scenario.expect if each.never and each.in_turn is None and not callable(each.wanted)
    ]
    never += [value_of(each.wanted, ".never") for each in texts]
    sayings = tuple(each for each in scenario.expect if each not in texts)
    return never, sayings, tuple(each for each in scenario.trajectory if each not in bans)


def _turn(turn: ScriptedTurn) -> SourceNode:
    options: dict[str, SourceNode] = {}
    if turn.trajectory:
        options["trajectory"] = trajectories(turn.trajectory)
    if turn.expect:
        options["expect"] = expect(turn.expect)
    if turn.approve is not None:
        options["approve"] = node(turn.approve)
    message = StringLiteral(turn.user_message)
    return mapping([("user_message", message), *options.items()]) if options else message


def _change(value: Fault | Injection) -> SourceNode:
    word = "fault" if isinstance(value, Fault) else "injection"
    (_, name), *options = _set_fields(value)
    return call_of(word, [StringLiteral(name)], {key: node(each) for key, each in options})


def _list_if(nodes: Iterable[SourceNode]) -> SourceNode | None:
    items = list(nodes)
    return list_of(items) if items else None


def trajectories(values: Sequence[Trajectory]) -> SourceNode:
    """Return the source of a `trajectory` option: one, or a list of several."""
    if len(values) == 1:
        return trajectory(values[0])
    return list_of(trajectory(each, f"[{n}]") for n, each in enumerate(values))


def trajectory(value: Trajectory, at: str = "") -> SourceNode:
    """Return the source of one trajectory: a dict, or a single order."""
    if len(value.orders) == 1 and value == Trajectory(orders=value.orders):
        return order(value.orders[0], at)
    return mapping(list(_trajectory_items(value, at)))


def _trajectory_items(value: Trajectory, at: str) -> Iterator[tuple[str, SourceNode]]:
    mode = {} if value.expected is None else {"match_mode": value.match_mode}
    # The name comes first for readability.
    for name, option in sorted(
        {**mode, **dict(_set_fields(value))}.items(), key=lambda each: each[0] != "name"
    ):
        location = f"{at}.{name}"
        if name in ("expected", "forbidden"):
            yield name, list_of(step(each, f"{location}[{n}]") for n, each in enumerate(option))
        elif name == "reads":
            yield name, list_of(map(tool, option))
        elif name == "orders":
            for kind in ORDERS:
                pairs = [each for each in option if each.kind == kind]
                if pairs:
                    yield kind, list_of(list_of(_sides(each, at)) for each in pairs)
        else:
            yield name, value_of(option, location)


def order(value: CallOrder, at: str = "") -> SourceNode:
    """Return the source of `before(…)` or `never_after(…)`."""
    return call_of(value.kind, _sides(value, at))


def _sides(value: CallOrder, at: str) -> list[SourceNode]:
    return [step(each, f"{at}.{value.kind}") for each in (value.first, value.then)]


def step(value: Step, at: str = "") -> SourceNode:
    """Return the source of an item in a list of expected calls."""
    if isinstance(value, ExpectedCall):
        return expected_call(value, at)
    alone = all(len(path) == 1 and isinstance(path[0], ExpectedCall) for path in value.paths)
    paths = [[step(each, f"{at}.any_of[{n}]") for each in path] for n, path in enumerate(value.paths)]
    return call_of("any_of", (steps[0] if alone else list_of(steps) for steps in paths))


def expected_call(value: ExpectedCall, at: str = "") -> SourceNode:
    """Return a call as a name, `call(…)`, `exactly(call(…))`, or a dict if arguments are ignored."""
    if value == ExpectedCall(value.name):
        return tool(value.name)
    if value.args is None or value.arg_match_mode == "ignore":
        return mapping(
            [
                (name, tool(each) if name == "name" else value_of(each, f"{at}.{name}"))
                for name, each in _set_fields(value)
            ]
        )
    nodes = {key: value_of(item, f"{at}.args.{key}") for key, item in value.args.items()}
    named = {key for key in nodes if is_parameter(key) and key not in _CALL_PARAMETERS}
    others = [(key, nodes[key]) for key in nodes if key not in named]
    options: dict[str, SourceNode] = {key: nodes[key] for key in nodes if key in named}
    if value.where is not None:
        raise _no_form(value.where, f"{at}.where")
    if value.result is not ANYTHING:
        options["result"] = value_of(value.result, f"{at}.result")
    if value.nth in _PLACES:
        options[_PLACES[value.nth]] = "True"
    elif value.nth is not None:
        options["nth"] = str(value.nth)
    made = call_of("call", [tool(value.name), *([mapping(others)] if others else [])], options)
    return made if value.arg_match_mode == "partial" else call_of("exactly", [made])


def tool(name: ToolName) -> SourceNode:
    """Return the source of a tool name or a pattern."""
    return StringLiteral(name) if isinstance(name, str) else _pattern(name, "name")


def sayings_source(values: Sequence[Saying]) -> SourceNode:
    """Return the source of a scenario's `expect`."""
    if len(values) == 1:
        return _saying(values[0], "")
    return list_of(_saying(each, f"[{n}]") for n, each in enumerate(values))


def _saying(value: Saying, at: str) -> SourceNode:
    word = "never_says" if value.never else "says"
    turn = [] if value.in_turn is None else [("in_turn", node(value.in_turn))]
    return mapping([(word, value_of(value.wanted, f"{at}.{word}")), *turn])


def expect(value: Expect | ExpectedRemark, at: str = "") -> SourceNode:
    """Return the source of a turn's `expect`, or of a remark in it."""
    return mapping([(name, _checks(checks, f"{at}.{name}")) for name, checks in _set_fields(value)])


def _checks(checks: Any, at: str) -> SourceNode:
    if not isinstance(checks, tuple):
        return value_of(checks, at)
    nodes = [expect(each, at) if isinstance(each, ExpectedRemark) else value_of(each, at) for each in checks]
    return nodes[0] if len(nodes) == 1 and at != ".remarks" else list_of(nodes)


def value_of(value: Any, at: str = "") -> SourceNode:
    """Return the source of an expectation or an expected value: JSON, with matchers at any depth.

    Raises ValueError.
    """
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write(value, at)
    if isinstance(value, DataMatcher):  # it was written as data
        return value_of(value.word, at)
    if isinstance(value, Matcher):
        word, options = snake_case(type(value).__name__), dict(_set_fields(value))
        if not options:
            return word
        first, *more = options
        several = options[first] if first in ("values", "types") else [options[first]]
        nodes = [_inner_source(each, at) for each in several]
        return call_of(word, nodes, {name: _inner_source(options[name], at) for name in more})
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{at.removeprefix('.') or 'it'}: the key {key!r} is not a text")
        return mapping([(key, value_of(item, f"{at}.{key}")) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return list_of(value_of(item, f"{at}[{n}]") for n, item in enumerate(value))
    if value is None or type(value) in (str, int, float, bool):
        return node(value)
    raise _no_form(value, at)


_WRITERS: Mapping[type, Callable[[Any, str], SourceNode]] = {
    Trajectory: trajectory,
    Expect: expect,
    Saying: _saying,
    re.Pattern: lambda value, at: _pattern(value, at),
}


def _inner_source(value: Any, at: str) -> SourceNode:
    if isinstance(value, type):
        return "None" if value is type(None) else value.__name__
    return value_of(value, at)


def _pattern(value: re.Pattern[Any], at: str) -> SourceNode:
    text = value.pattern
    if not isinstance(text, str):
        raise _no_form(value, at)
    flags = " | ".join(f"re.{flag.name}" for flag in _FLAGS if value.flags & flag)
    is_plain = text.isascii() and text.isprintable() and '"' not in text and not text.endswith("\\")
    written = f'r"{text}"' if "\\" in text and is_plain else StringLiteral(text)
    return call_of("re.compile", [written, *([] if re.compile(text).flags == value.flags else [flags])])


def _set_fields(value: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(value):
        field_value = getattr(value, each.name)
        is_default = field_value is each.default or field_value == each.default
        if each.compare and (each.default is MISSING or not is_default):
            yield each.name, field_value


def _no_form(value: Any, at: str) -> ValueError:
    return ValueError(f"{at.removeprefix('.') or 'it'}: {shown(value)} cannot be written")
