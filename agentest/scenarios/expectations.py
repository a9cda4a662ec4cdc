"""What must hold: expected tool calls and checks of a reply.

Frozen values, parsed from what a scenario file says. Parsing raises ValueError whose message begins with the
key that is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from agentest.support.json_schema import check_references, draft_of
from agentest.support.json_text import json_text
from agentest.support.spelling import did_you_mean, snake_case, snake_keys

ArgMatchMode = Literal["ignore", "partial", "exact"]


MatchMode = Literal["strict", "unordered", "contains", "in_order", "within"]


ARG_MATCH_MODES = ("ignore", "partial", "exact")


MATCH_MODES = ("strict", "unordered", "contains", "in_order", "within")


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A tool call that is expected or forbidden; `args` is compared as `arg_match_mode` says."""

    name: str
    args: Mapping[str, Any] | None = None
    """None: every call of that name, whatever the mode."""
    arg_match_mode: ArgMatchMode = "partial"


def call(tool: str, /, **args: Any) -> ExpectedCall:
    """A call of `tool` whose arguments include `args`; other arguments may have any value."""
    return ExpectedCall(tool, args, "partial")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Which tool calls must, may and must not be made."""

    match_mode: MatchMode = "strict"
    expected: tuple[ExpectedCall, ...] | None = None
    """None: any calls will do as far as the match mode is concerned."""
    forbidden: tuple[ExpectedCall, ...] = ()
    max_calls: int | None = None
    max_turns: int | None = None
    max_calls_per_tool: int | Mapping[str, int] | None = None

    @property
    def about_calls(self) -> bool:
        """Whether it says anything of calls: one of `max_turns` alone does not."""
        return self.without_calls != self

    @property
    def named_tools(self) -> frozenset[str]:
        """The tools that are expected, forbidden or limited by name."""
        return frozenset(each.name for each in self.expected or ()) | self.banned_tools

    @property
    def banned_tools(self) -> frozenset[str]:
        """The tools that are forbidden or limited by name: what is not seen of them breaks nothing."""
        limited = self.max_calls_per_tool if isinstance(self.max_calls_per_tool, Mapping) else ()
        return frozenset([*(each.name for each in self.forbidden), *limited])

    @property
    def without_calls(self) -> Trajectory:
        """What it says of anything but calls."""
        return Trajectory(self.match_mode, max_turns=self.max_turns)


@dataclass(frozen=True, slots=True)
class ExpectedRemark:
    """Something that is said in a turn: what came before the reply, or the reply of an author that is named.

    One remark must fit `author`, `contains`, `regex` and `equals` together, and none of that author may hold
    a text of `not_contains`. `author` and `equals` are compared as arguments of calls are: values, matchers.
    """

    author: Any = None
    """None: whoever says it."""
    contains: tuple[str, ...] = ()
    not_contains: tuple[str, ...] = ()
    regex: tuple[re.Pattern[str], ...] = ()
    equals: Any = None
    """None: any text will do."""


@dataclass(frozen=True, slots=True)
class Expect:
    """Deterministic checks of one turn: its reply, what was said before it, and the session's state after it.

    All of them must hold.
    """

    contains: tuple[str, ...] = ()
    not_contains: tuple[str, ...] = ()
    regex: tuple[re.Pattern[str], ...] = ()
    json_schema: tuple[Mapping[str, Any], ...] = ()
    max_words: tuple[int, ...] = ()
    max_latency_ms: tuple[float, ...] = ()
    max_first_token_ms: tuple[float, ...] = ()
    """Until the first piece of the reply's text, of an agent that streams."""
    session_state: Mapping[str, Any] | None = None
    """Keys of the session's state → their values, or matchers; None: it is not looked at."""
    remarks: tuple[ExpectedRemark, ...] = ()


def parse_trajectory(value: Any, key: str = "trajectory") -> Trajectory:
    """A trajectory from the dict of a scenario file."""
    if isinstance(value, Trajectory):
        return value
    options = known_keys(value, _names(Trajectory), key)
    if not options:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    mode: Any = options.get("match_mode", "strict")
    mode = snake_case(mode) if isinstance(mode, str) else mode
    if mode not in MATCH_MODES:
        raise ValueError(f"{key}.match_mode: found {mode!r}; {_one_of(mode, MATCH_MODES)}")
    expected = options.get("expected")
    if expected is None and options.keys() == {"match_mode"}:
        raise ValueError(f"{key}.expected: is missing; write the calls that `match_mode` is about")
    return Trajectory(
        mode,
        None if expected is None else _calls(expected, f"{key}.expected"),
        _calls(options.get("forbidden", []), f"{key}.forbidden"),
        _count(options.get("max_calls"), f"{key}.max_calls"),
        _count(options.get("max_turns"), f"{key}.max_turns"),
        _count_per_tool(options.get("max_calls_per_tool"), f"{key}.max_calls_per_tool"),
    )


def parse_expect(value: Any, key: str = "expect") -> Expect:
    """The checks of a turn from the dict of a scenario file."""
    if isinstance(value, Expect):
        return value
    options = known_keys(value, _names(Expect), key)
    made = Expect(
        _texts(options.get("contains", []), f"{key}.contains"),
        _texts(options.get("not_contains", []), f"{key}.not_contains"),
        tuple(_pattern(p, f"{key}.regex") for p in _list(options.get("regex", []))),
        tuple(_schema(s, f"{key}.json_schema") for s in _list(options.get("json_schema", []))),
        tuple(_words(n, f"{key}.max_words") for n in _list(options.get("max_words", []))),
        tuple(_number(n, f"{key}.max_latency_ms") for n in _list(options.get("max_latency_ms", []))),
        tuple(_number(n, f"{key}.max_first_token_ms") for n in _list(options.get("max_first_token_ms", []))),
        parse_expected_state(options.get("session_state"), f"{key}.session_state"),
        _remarks(options.get("remarks"), f"{key}.remarks"),
    )
    if made == Expect():
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return made


def parse_expected_state(value: Any, key: str) -> Mapping[str, Any] | None:
    """Keys of a session's state with the values that are expected; None where nothing is."""
    if value is None:
        return None
    if not has_text_keys(value):
        raise ValueError(f"{key}: expected a dict from key to value, found {kind_of(value)}")
    if not value:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return dict(value)


def has_text_keys(value: Any) -> bool:
    """Whether it is a mapping whose keys are texts."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def kind_of(value: Any) -> str:
    """What a value is that should be a mapping with texts as keys."""
    return f"a {type(value).__name__}" + (" with other keys" if isinstance(value, Mapping) else "")


def known_keys(value: Any, valid: tuple[str, ...], key: str) -> dict[str, Any]:
    """The dict with its keys in snake_case. Raises ValueError for another type or an unknown key."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a dict, found a {type(value).__name__}")
    try:
        options = snake_keys(value, valid)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    for name in options:
        if name not in valid:
            raise ValueError(f"{key}: unknown key `{name}`; {did_you_mean(str(name), valid)}")
    return options


def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _calls(calls: Any, key: str) -> tuple[ExpectedCall, ...]:
    if not isinstance(calls, list | tuple):
        raise ValueError(f"{key}: expected a list of tool calls, found a {type(calls).__name__}")
    return tuple(_call(item, f"{key}[{i}]") for i, item in enumerate(calls))


def _call(value: Any, key: str) -> ExpectedCall:
    if isinstance(value, ExpectedCall):
        return value
    if isinstance(value, str):
        if not value:
            raise ValueError(f"{key}: the name of the tool is empty")
        return ExpectedCall(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a tool name, call(…) or a dict, found a {type(value).__name__}")
    options = known_keys(value, _names(ExpectedCall), key)
    name, args, mode = options.get("name"), options.get("args"), options.get("arg_match_mode", "partial")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{key}.name: the name of the tool is missing")
    if args is not None and not isinstance(args, Mapping):
        raise ValueError(f"{key}.args: expected a dict, found a {type(args).__name__}")
    if mode not in ARG_MATCH_MODES:
        raise ValueError(f"{key}.arg_match_mode: found {mode!r}; {_one_of(mode, ARG_MATCH_MODES)}")
    return ExpectedCall(name, args, mode)


def _remarks(value: Any, key: str) -> tuple[ExpectedRemark, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, list | tuple):
        raise ValueError(
            f"{key}: expected a list of remarks, each {{author, contains, …}}, found {kind_of(value)}"
        )
    if not value:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return tuple(_remark(item, f"{key}[{i}]") for i, item in enumerate(value))


def _remark(value: Any, key: str) -> ExpectedRemark:
    if isinstance(value, ExpectedRemark):
        return value
    options = known_keys(value, _names(ExpectedRemark), key)
    made = ExpectedRemark(
        options.get("author"),
        _texts(options.get("contains", []), f"{key}.contains"),
        _texts(options.get("not_contains", []), f"{key}.not_contains"),
        tuple(_pattern(p, f"{key}.regex") for p in _list(options.get("regex", []))),
        options.get("equals"),
    )
    for name in ("author", "equals"):
        if isinstance(options.get(name), bool | int | float | Mapping | list | tuple):
            raise ValueError(f"{key}.{name}: expected a text or a matcher of texts, found {options[name]!r}")
    if not any(given is not None and given != [] for given in options.values()):
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return made


def _one_of(value: Any, valid: tuple[str, ...]) -> str:
    return did_you_mean(str(value), valid)


def _count(value: Any, key: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key}: expected a whole number of at least 0, found {value!r}")
    return value


def _words(value: Any, key: str) -> int:
    count = _count(value, key)
    if count is None:
        raise ValueError(f"{key}: expected a whole number of at least 0, found None")
    return count


def _count_per_tool(value: Any, key: str) -> int | dict[str, int] | None:
    if not isinstance(value, Mapping):
        return _count(value, key)
    return {str(tool): _words(count, f"{key}.{tool}") for tool, count in value.items()}


def _texts(value: Any, key: str) -> tuple[str, ...]:
    texts = _list(value)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"{key}: expected a text or a list of texts, found {text!r}")
    return tuple(texts)


def _pattern(value: Any, key: str) -> re.Pattern[str]:
    if not isinstance(value.pattern if isinstance(value, re.Pattern) else value, str):
        raise ValueError(f"{key}: expected a regular expression, found {value!r}")
    try:
        return re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{key}: {value!r} is not a regular expression: {error}") from None


def _schema(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a JSON Schema as a dict, found {value!r}")
    from jsonschema import SchemaError  # a tenth of a second to import: only for who uses it

    try:
        schema: dict[str, Any] = json.loads(json_text(dict(value)))
        draft_of(schema).check_schema(schema)
        check_references(schema)
    except SchemaError as error:
        raise ValueError(f"{key}: is not a valid JSON Schema: {error.message}") from None
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    return schema


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{key}: expected a number of at least 0, found {value!r}")
    return float(value)
