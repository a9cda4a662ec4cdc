"""Scenarios and expectations as data of scenario files (`*.sim.yaml`): ours, and those of other tools."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree.ElementTree import ParseError, fromstring

import yaml

from agentest.domain.messages import Session
from agentest.mocks.binding import Mock, MockSequence
from agentest.scenarios.discovery import DATA_ENDINGS
from agentest.scenarios.expectations import Expect, ExpectedRemark, Saying
from agentest.scenarios.matchers.display import FUNCTIONS, shown
from agentest.scenarios.matchers.numbers import Approx, Number
from agentest.scenarios.matchers.values import (
    FLAGS,
    Absent,
    DataMatcher,
    Each,
    Instance,
    OneOf,
    Optional,
    Text,
)
from agentest.scenarios.model import Scenario, ScriptedTurn
from agentest.scenarios.options import mock_form_of
from agentest.scenarios.parser import flags_of, replace_forms
from agentest.scenarios.python_formatting import StringLiteral, call_of, node, split_source
from agentest.scenarios.trajectory import ANYTHING, AnyOf, CallOrder, ExpectedCall, ToolName, Trajectory
from agentest.scenarios.trajectory_parser import ORDERS
from agentest.support.errors import errors_as
from agentest.support.files import user_text
from agentest.support.json_text import json_or
from agentest.support.templates import as_text
from agentest.support.text import shortened

_SHOWN_CHARS = 80
_HEADING = "# Exported conversations: what users said, tools answered and the agent called.\n"
_WIDTH = 110
_UNUSUAL_BREAKS = frozenset("\r\x85\u2028\u2029\ufeff")


def as_data(value: Any, key: str = "") -> Any:
    """Return a scenario, or an expectation or value in it, as JSON data. A tuple becomes a list.

    Args:
        key: the location, for errors.

    Raises ValueError, beginning with the location, for functions, custom matchers and anything else without a
    JSON form.
    """
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write(value, key)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise _no_form(value, key)


def _no_form(value: Any, key: str) -> ValueError:
    is_function = isinstance(value, FUNCTIONS) or callable(value)
    what = "function" if is_function else type(value).__name__
    text = shortened(shown(value), _SHOWN_CHARS)
    return ValueError(f"{key}: {text} is a {what}, which has no form in data".removeprefix(": "))


def _joined_key(key: str, part: str | int) -> str:
    if isinstance(part, int):
        return f"{key}[{part}]"
    return f"{key}.{part}" if key else part


def _list(value: Iterable[Any], key: str) -> list[Any]:
    return [as_data(item, _joined_key(key, at)) for at, item in enumerate(value)]


def _mapping(value: Mapping[Any, Any], key: str) -> dict[str, Any]:
    data = _keys(value, key)
    return {"exactly": data} if isinstance(replace_forms(data), DataMatcher) else data


def _keys(value: Mapping[Any, Any], key: str) -> dict[str, Any]:
    for name in value:
        if not isinstance(name, str):
            raise ValueError(f"{key}: {shown(name)} is a key, and keys of data are texts".removeprefix(": "))
    return {name: as_data(item, _joined_key(key, name)) for name, item in value.items()}


def _pattern(value: re.Pattern[Any], key: str) -> dict[str, Any]:
    if not isinstance(value.pattern, str):
        raise _no_form(value, key)
    unsaid = set(flags_of(value)) - set(flags_of(re.compile(value.pattern)))
    flags = "".join(sorted(unsaid - {"i"}))
    return {
        "regex": value.pattern,
        **({"ignore_case": True} if "i" in unsaid else {}),
        **({"flags": flags} if flags else {}),
    }


def _numeral(value: Any, key: str) -> Any:
    if isinstance(value, OneOf):
        return {"one_of": [_numeral(each, key) for each in value.values]}
    return str(value) if isinstance(value, Decimal | Fraction) else as_data(value, key)


def _approx(value: Approx, key: str) -> dict[str, Any]:
    # The value is a number, or lists and dicts of numbers, whose keys are not read as forms.
    write = _keys if isinstance(value.value, Mapping) else as_data
    data = _fields(value, key, {"value": lambda inner, _: write(inner, key)})
    return {"approx": data.pop("value"), **data}


def _instance(value: Instance, key: str) -> dict[str, Any]:
    with errors_as(ValueError, f"{key}: ".removeprefix(": ")):
        names = value.names
    return {"instance": names[0] if len(names) == 1 else names}


def _name(name: ToolName, key: str) -> Any:
    return name if isinstance(name, str) else _pattern(name, key)


def _call(value: ExpectedCall, key: str) -> Any:
    if value.where is not None:
        as_data(value.where, _joined_key(key, "where"))
    data: dict[str, Any] = {"name": _name(value.name, _joined_key(key, "name"))}
    if value.args is not None:
        data["args"] = _keys(value.args, _joined_key(key, "args"))
    if value.result is not ANYTHING:
        data["result"] = as_data(value.result, _joined_key(key, "result"))
    if value.nth is not None:
        data |= {1: {"first": True}, -1: {"last": True}}.get(value.nth, {"nth": value.nth})
    if value.arg_match_mode == "exact" and value.args is not None:
        return {"exactly": data}
    if value.arg_match_mode != "partial":
        data["arg_match_mode"] = value.arg_match_mode
    return data["name"] if data.keys() == {"name"} else data


def _pair(value: CallOrder, key: str) -> list[Any]:
    return _list((value.first, value.then), _joined_key(key, value.kind))


def _trajectory(value: Trajectory, key: str) -> dict[str, Any]:
    writers: dict[str, Callable[[Any, str], Any]] = {
        "reads": lambda names, at: [_name(name, at) for name in names],
        "max_calls_per_tool": lambda limits, _: dict(limits) if isinstance(limits, Mapping) else limits,
    }
    data = _fields(replace(value, orders=()), key, writers)
    if value.expected is not None:
        data["match_mode"] = value.match_mode
    for kind in ORDERS:
        if pairs := [_pair(order, key) for order in value.orders if order.kind == kind]:
            alone = len(pairs) == 1 and not all(isinstance(side, list) for side in pairs[0])
            data[kind] = pairs[0] if alone else pairs
    return data


def _saying(value: Saying, key: str) -> dict[str, Any]:
    word = "never_says" if value.never else "says"
    position = {} if value.in_turn is None else {"in_turn": value.in_turn}
    return {word: as_data(value.wanted, _joined_key(key, word)), **position}


def _fields(
    value: Any, key: str, writers: Mapping[str, Callable[[Any, str], Any]] = MappingProxyType({})
) -> dict[str, Any]:
    return {
        each.name: writers.get(each.name, as_data)(field_value, _joined_key(key, each.name))
        for each in fields(value)
        if (field_value := getattr(value, each.name)) is not each.default
    }


_OPTIONS = (
    *("name", "profile", "goal", "knowledge", "turns", "session", "tools", "trajectory", "expect"),
    *("final_session_state", "expected_outcome", "thresholds", "date", "tags"),
)


def _scenario(value: Scenario) -> dict[str, Any]:
    given = {option: getattr(value, option) for option in _OPTIONS if getattr(value, option)}
    data = {option: each if option == "tools" else as_data(each, option) for option, each in given.items()}
    if value.tools:
        data["tools"] = {name: _mock(mock) for name, mock in value.tools.items()}
    if len(value.trajectory) == 1:
        (data["trajectory"],) = data["trajectory"]
    return data


def _turn(value: ScriptedTurn, key: str) -> Any:
    data = _fields(value, key)
    return data if len(data) > 1 else value.user_message


def _mock(mock: Mock) -> Any:
    if isinstance(mock, MockSequence):
        steps = list(map(_mock, mock.steps))
        return steps[0] if len(steps) == 1 else {"sequence": steps}
    if isinstance(mock, BaseException):
        return {"error": str(mock)}
    return mock if mock_form_of(mock) is None else {"exactly": mock}


_WRITERS: Mapping[Any, Callable[[Any, str], Any]] = {
    Scenario: lambda value, _: _scenario(value),
    ScriptedTurn: _turn,
    Session: lambda value, _: {"state": dict(value.state)},
    Trajectory: _trajectory,
    ExpectedCall: _call,
    AnyOf: lambda value, key: {
        "any_of": _list((path[0] if len(path) == 1 else path for path in value.paths), key)
    },
    CallOrder: lambda value, key: {value.kind: _pair(value, key)},
    Expect: partial(_fields, writers={"session_state": _keys, "json_schema": lambda each, _: list(each)}),
    ExpectedRemark: _fields,
    Saying: _saying,
    DataMatcher: lambda value, key: as_data(value.word, key),
    Optional: lambda value, key: {"optional": as_data(value.value, key)},
    Absent: lambda *_: {"absent": True},
    OneOf: lambda value, key: {"one_of": _list(value.values, key)},
    Each: lambda value, key: {"each": as_data(value.value, key)},
    Text: lambda value, _: {"text": value.value, **{f: True for f in FLAGS if getattr(value, f)}},
    Number: lambda value, key: {"number": _numeral(value.value, _joined_key(key, "number"))},
    Approx: _approx,
    Instance: _instance,
    re.Pattern: _pattern,
    Mapping: _mapping,
    list: _list,
    tuple: _list,
}


def scenario_file(scenarios: Sequence[Mapping[str, Any]], heading: str = "") -> str:
    """Return the text of a `*.sim.yaml` with these options of scenarios. Raises ValueError."""
    data = {"scenarios": [dict(each) for each in scenarios]}
    json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    return heading + yaml.dump(data, Dumper=_NoAliases, sort_keys=False, allow_unicode=True, width=_WIDTH)


def file_of_rows(output: Path, data: str, options: Mapping[str, Any]) -> str:
    """Return the text of a scenario file, YAML or Python, with a scenario for each row of another file."""
    about = f"Written by `agentest import`. The rows stay in {data}: {{column}} stands for a row's value."
    if output.name.endswith(DATA_ENDINGS):
        others = {key: value for key, value in options.items() if key != "name"}
        entry = {"name": options["name"], "each": data, **others}
        return scenario_file([entry], f"# {about}\n")
    others = {key: node(value) for key, value in options.items()}
    call = call_of("scenario.each", [StringLiteral(data)], others)
    return f'"""{about}"""\n\nfrom agentest import scenario\n\n{split_source(call)}\n'


class _NoAliases(yaml.SafeDumper):
    """Writes equal parts of a file out, because a reader would have to look up aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = '"' if _UNUSUAL_BREAKS & {*data} else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_NoAliases.add_representer(str, _NoAliases.represent_str)


def export_data(scenarios: Sequence[Scenario]) -> str:
    """Return a `*.sim.yaml` that defines the same scenarios as `source_code.export_script`."""
    return scenario_file(list(map(as_data, scenarios)), _HEADING)


_PATTERNS = {"regex": "{}", "equals": r"^\s*{}\s*$", "starts-with": "^{}", "ends-with": r"{}\Z"}
"""Assertions about a text → the pattern of replies with it."""


_ASSERTION = re.compile(
    r"((?:not-)?(?:i?contains(?:-[a-z]+)?|is-[a-z-]+|equals|regex|(?:starts|ends)-with|latency|cost|similar"
    r"(?::[a-z]+)?|levenshtein|(?:llm|search|agent)-rubric|model-graded-[a-z]+|factuality|g-eval|javascript|python|"
    r"ruby|webhook|rouge-[nls]|bleu|gleu|meteor|perplexity(?:-score)?|moderation|guardrails|classifier|"
    r"(?:answer|conversation)-relevance|context-[a-z]+|finish-reason|pi|human|select-best|tool-call-f1|skill-used|"
    r"word-count|(?:trace-|trajectory:)[a-z-]+)|(?:fn|eval|grade|file)(?=:))(?:\(([\d.]+)\))?(?::\s*(.*))?",
    re.S,
)
"""promptfoo's assertions as texts: any other text is the expected reply."""


def assertion_of(text: str) -> dict[str, Any]:
    """Return an assertion of promptfoo that stands in the cell of a table, such as `latency(500)`."""
    found = _ASSERTION.fullmatch(text)
    kind, least, value = found.groups() if found else ("equals", None, text)
    given = {"type": kind, "threshold": least and float(least), "value": value}
    return {key: each for key, each in given.items() if each}


def assertion_data(kind: str, value: Any) -> dict[str, Any] | None:
    """Return the `expect` of a turn for an assertion of promptfoo; None if there is no exact counterpart.

    Args:
        kind: like `contains`, perhaps with `not-` and `i` (ignore case) before it, `-any` or `-all` after it.
        value: a text or several; the schema of `is-json`; the threshold of `latency`.
    """
    plain, is_never = kind.removeprefix("not-"), kind.startswith("not-")
    if kind == "is-json" or (kind == "equals" and isinstance(value, Mapping | list)):
        schema = {"const": value} if kind == "equals" else value or {}
        schema = json_or(schema) if isinstance(schema, str) else schema
        return {"json_schema": schema} if isinstance(schema, Mapping) else None
    name, _, several = re.sub("-(any|all)$", r" \1", plain.removeprefix("i")).partition(" ")
    if value in (None, "", []) or (is_never and several == "all"):
        return None
    if kind == "latency":
        return {"max_latency_ms": value}
    texts = [as_text(each) for each in (value if isinstance(value, list) else [value])]
    if several and isinstance(value, str):  # items with a comma are quoted
        texts = [quoted or bare.strip() for quoted, bare in re.findall(r'\s*"([^"]*)"\s*|([^,]+)', value)]
    wanted = [{"text": each} for each in texts] if name == "contains" else []
    if pattern := _PATTERNS.get(name):
        patterns = [pattern.format(each if name == "regex" else re.escape(each)) for each in texts]
        with suppress(re.error):  # not all patterns of JavaScript are Python's
            wanted = [{"regex": re.compile(each).pattern} for each in patterns]
    if not wanted:
        return None
    says: list[Any] = [{**each, "ignore_case": plain[0] == "i"} for each in wanted]
    if several != "all" and not is_never and len(says) > 1:
        says = [{"one_of": says}]
    return {"never_says" if is_never else "says": says if len(says) > 1 else says[0]}


def agentforce_cases(path: Path) -> list[Any]:
    """Return the cases of an AiEvaluationDefinition. Raises ValueError."""
    with errors_as(ValueError, f"{path.name}: ", ParseError):
        root = fromstring(user_text(path))
    cases = []
    for case in root.iterfind("{*}testCase"):
        found = [(each.findtext("{*}name"), each.findtext("{*}expectedValue")) for each in case]
        expected = {name: value for name, value in found if name}
        calls = re.findall(r"[\w.-]+", expected.pop("action_sequence_match", "") or "")
        outcome = expected.pop("bot_response_rating", None)
        given = {"utterance": case.findtext("{*}inputs/{*}utterance"), "expectedActions": calls}
        cases.append({**given, "expectedOutcome": outcome, **expected})
    if not cases:
        raise ValueError(f"{path.name}: has no testCase, as the XML of an AiEvaluationDefinition has")
    return cases


_SECTION = re.compile(r"^#(begin|end|include|me|bot)\b.*$", re.M)
_ASSERTER = re.compile(r"[?!]?[A-Z][A-Z0-9_]{2,}(?: .*)?")


def botium_case(path: Path, notes: list[str]) -> dict[str, Any]:
    """Return the case of a convo of Botium: what the user says, and what the replies contain."""
    head, *sections = _SECTION.split(user_text(path))
    turns: list[str] = []
    expect: list[dict[str, Any]] = []
    for sender, body in zip(sections[::2], sections[1::2], strict=True):
        rows = [*filter(None, map(str.strip, body.splitlines()))]
        said = [row for row in rows if sender in ("me", "bot") and not _ASSERTER.fullmatch(row)]
        notes += [f"left out of {path.name}: {row}" for row in rows if row not in said]
        if sender == "me" and said:
            turns.append("\n".join(said))
        elif said and turns:
            words = " ".join(said).removeprefix("!").split()
            pattern = re.sub(r"\\\*|\\\$\w+", ".*", r"\s+".join(map(re.escape, words)))
            word = "never_says" if said[0][0] == "!" else "says"
            expect.append({word: {"regex": pattern, "ignore_case": True}, "in_turn": len(turns) - 1})
    case: dict[str, Any] = {"name": head.strip().partition("\n")[0] or path.stem, "turns": turns}
    return {**case, "expect": expect} if expect else case
