"""Expectations about replies and conversations: the `expect` of a turn and of a scenario.

The values are frozen. Parsing raises ValueError with a message that begins with the invalid key.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any

from agentest.scenarios import parser
from agentest.scenarios.matchers.comparison import Matcher, may_be_absent
from agentest.scenarios.matchers.display import FUNCTIONS, brief
from agentest.scenarios.matchers.validity import check_expected, compares_itself, is_generator
from agentest.scenarios.matchers.values import OneOf, Text, is_call
from agentest.support.calling import accepted_values, is_async
from agentest.support.errors import errors_as
from agentest.support.json_text import json_text
from agentest.support.lazy_dataclasses import dataclass

SAYS_PARAMETERS = ("reply", "turn", "conversation")


@dataclass(frozen=True, slots=True)
class ExpectedRemark:
    """A message expected in a turn: one before the reply, or the reply itself if an author is given.

    One remark must match `author`, `contains`, `regex` and `equals` together, and no remark of that author
    may contain a text of `not_contains`. `author` and `equals` are values or matchers, as in arguments of
    calls.
    """

    author: Any = None  # None: any author
    contains: tuple[str, ...] = ()
    not_contains: tuple[str, ...] = ()
    regex: tuple[re.Pattern[str], ...] = ()
    equals: Any = None  # None: any text


@dataclass(frozen=True, slots=True)
class Expect:
    """Deterministic checks of one turn: its reply, the remarks before it, and the session's state after it.

    All of them must hold.
    """

    contains: tuple[str, ...] = ()
    not_contains: tuple[str, ...] = ()
    regex: tuple[re.Pattern[str], ...] = ()
    json_schema: tuple[Mapping[str, Any], ...] = ()
    max_words: tuple[int, ...] = ()
    max_latency_ms: tuple[float, ...] = ()
    max_first_token_ms: tuple[float, ...] = ()
    """Limits for the time to the first token of an agent that streams, in milliseconds."""
    session_state: Mapping[str, Any] | None = None
    """Keys of the session's state → their values, or matchers; None: not checked."""
    remarks: tuple[ExpectedRemark, ...] = ()
    says: tuple[Any, ...] = ()  # required content of the reply, as in a `Saying`
    never_says: tuple[Any, ...] = ()

    @property
    def sayings(self) -> tuple[Saying, ...]:
        """Required and forbidden content of the reply."""
        return (
            *(Saying(wanted=each) for each in self.says),
            *(Saying(wanted=each, never=True) for each in self.never_says),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying:
    """Content that the agent must, or must never, say in the conversation."""

    wanted: Any
    """A text that a reply must contain, a number, a pattern, a matcher, or a function of the reply."""
    never: bool = False
    in_turn: int | None = None
    """Index of the turn to search, from 0; negative: counted from the last; None: any."""


def parse_sayings(value: Any, key: str = "expect") -> tuple[Saying, ...]:
    """Parse a scenario's `expect` for the whole conversation: one dict, or a list of several."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        return _sayings(value, key)
    if not value:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return tuple(saying for at, each in enumerate(value) for saying in _sayings(each, f"{key}[{at}]"))


def _sayings(value: Any, key: str) -> tuple[Saying, ...]:
    if isinstance(value, Saying):
        return (value,)
    valid = ("says", "never_says", "in_turn")
    checks = parser.names_of(Expect) if isinstance(value, Mapping) else ()
    if misplaced := next((name for name in checks if name in value and name not in valid), None):
        raise ValueError(
            f"{key}: `{misplaced}` belongs into the `expect` of a turn; for the whole conversation, write "
            "`says` or `never_says`"
        )
    options = parser.known_keys(value, valid, key)
    in_turn = options.get("in_turn")
    is_turn = in_turn is None or parser.is_whole(in_turn)
    parser.checked(in_turn, f"{key}.in_turn", "a whole number, 0 for the first turn", is_turn)
    sayings = tuple(
        Saying(wanted=wanted, never=name == "never_says", in_turn=in_turn)
        for name in ("says", "never_says")
        for wanted in _parsed_sayings(options.get(name), f"{key}.{name}")
    )
    if not sayings:
        raise ValueError(f"{key}: is empty, so it would check nothing; write what the agent `says`")
    return sayings


def check_turns(sayings: Iterable[Saying], most: int, why: str, key: str = "expect") -> None:
    """Raise ValueError if a saying refers to a turn that cannot exist."""
    for saying in sayings:
        if saying.in_turn is not None and not -most <= saying.in_turn < most:
            raise ValueError(f"{key}.in_turn: is {saying.in_turn}, but {why}; the first turn is 0")


def _parsed_sayings(value: Any, key: str) -> tuple[Any, ...]:
    if value is None:
        return ()
    several = isinstance(value, list | tuple)
    return tuple(
        _parsed_saying(each, f"{key}[{at}]" if several else key)
        for at, each in enumerate(parser.as_list(value))
    )


def _parsed_saying(value: Any, key: str) -> Any:
    with errors_as(ValueError, f"{key}: "):
        value = parser.matcher_from_data(value)
    wanted_text = value.value if isinstance(value, Text) else value
    if isinstance(wanted_text, str) and not wanted_text:
        raise ValueError(f"{key}: is empty, which every reply contains")
    if isinstance(value, int | float):
        value_text = brief(value)
        raise ValueError(
            f"{key}: expected a text or a matcher, found {value_text}; write number({value_text})"
        )
    if not _may_match_reply(value):
        value_text = brief(value)
        instead = f"; write number({value_text})" if isinstance(value, Decimal | Fraction) else ""
        wanted = "a text, a pattern, a matcher or a function"
        raise ValueError(f"{key}: expected {wanted}, found {value_text}{instead}")
    if may_be_absent(value):
        raise ValueError(
            f"{key}: {brief(value)} stands for a key that may be missing, but a reply is not a key"
        )
    for each in value.values if isinstance(value, OneOf) else (value,):
        if isinstance(each, FUNCTIONS):
            if is_async(each):
                raise ValueError(f"{key}: a function that checks texts cannot be async; `check` may be")
            if is_generator(each):
                raise ValueError(f"{key}: a function that checks texts must return; this one yields")
            with errors_as(ValueError, f"{key}: the function cannot be called: ", TypeError):
                accepted_values(each, SAYS_PARAMETERS)
        else:
            check_expected(each, key, of_key=False)
    return value


def _may_match_reply(value: Any) -> bool:
    """Return True if a reply may match the value. Otherwise `never_says` would always pass."""
    if isinstance(value, (str, re.Pattern, Matcher, type, *FUNCTIONS)) or is_call(value):
        return True
    room = type(value).__module__.partition(".")[0]
    is_somebodys = room != "agentest" and room not in sys.stdlib_module_names
    return is_somebodys and compares_itself(value) and not isinstance(value, Mapping | Set)


def parse_expect(value: Any, key: str = "expect") -> Expect:
    """Parse the checks of a turn from the dict in a scenario file."""
    if isinstance(value, Expect):
        return value
    options = parser.known_keys(value, parser.names_of(Expect), key)

    def each_of(name: str, parse: Callable[[Any, str], Any]) -> tuple[Any, ...]:
        return tuple(parse(each, f"{key}.{name}") for each in parser.as_list(options.get(name, [])))

    def limit_of(value: Any, key: str) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(parser.checked(value, key, "a number of at least 0", is_number and value >= 0))

    expect = Expect(
        parser.texts_of(options.get("contains", []), f"{key}.contains"),
        parser.texts_of(options.get("not_contains", []), f"{key}.not_contains"),
        each_of("regex", parser.pattern_of),
        each_of("json_schema", _parsed_schema),
        each_of("max_words", parser.count_not_none),
        each_of("max_latency_ms", limit_of),
        each_of("max_first_token_ms", limit_of),
        parse_expected_state(options.get("session_state"), f"{key}.session_state"),
        _parsed_remarks(options.get("remarks"), f"{key}.remarks"),
        _parsed_sayings(options.get("says"), f"{key}.says"),
        _parsed_sayings(options.get("never_says"), f"{key}.never_says"),
    )
    if expect == Expect():
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return expect


def parse_expected_state(value: Any, key: str) -> Mapping[str, Any] | None:
    """Parse expected keys and values of a session's state; None if there are none."""
    if value is None:
        return None
    if not parser.has_text_keys(value):
        raise ValueError(f"{key}: expected a dict from key to value, found {parser.kind_of(value)}")
    if not value:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    expected = {name: parser.replace_forms(each) for name, each in value.items()}
    for name, each in expected.items():
        check_expected(each, f"{key}.{name}")
    return expected


def _parsed_remarks(value: Any, key: str) -> tuple[ExpectedRemark, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, list | tuple):
        raise ValueError(
            f"{key}: expected a list of remarks, each {{author, contains, …}}, found {parser.kind_of(value)}"
        )
    if not value:
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return tuple(_parsed_remark(item, f"{key}[{i}]") for i, item in enumerate(value))


def _parsed_remark(value: Any, key: str) -> ExpectedRemark:
    if isinstance(value, ExpectedRemark):
        return value
    options = parser.known_keys(value, parser.names_of(ExpectedRemark), key)
    remark = ExpectedRemark(
        options.get("author"),
        parser.texts_of(options.get("contains", []), f"{key}.contains"),
        parser.texts_of(options.get("not_contains", []), f"{key}.not_contains"),
        tuple(parser.pattern_of(p, f"{key}.regex") for p in parser.as_list(options.get("regex", []))),
        options.get("equals"),
    )
    for name in ("author", "equals"):
        is_text = not isinstance(options.get(name), bool | int | float | Mapping | list | tuple)
        parser.checked(options.get(name), f"{key}.{name}", "a text or a matcher of texts", is_text)
    if not any(option is not None and option != [] for option in options.values()):
        raise ValueError(f"{key}: is empty, so it would check nothing")
    return remark


def _parsed_schema(value: Any, key: str) -> Mapping[str, Any]:
    parser.checked(value, key, "a JSON Schema as a dict", isinstance(value, Mapping))
    from jsonschema import SchemaError  # import takes 0.1 s

    from agentest.support.json_schema import check_references, draft_of

    try:
        schema: dict[str, Any] = json.loads(json_text(dict(value)))
        draft_of(schema).check_schema(schema)
        check_references(schema)
    except SchemaError as error:
        raise ValueError(f"{key}: is not a valid JSON Schema: {error.json_path}: {error.message}") from None
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    return schema
