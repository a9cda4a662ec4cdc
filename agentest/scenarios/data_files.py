"""Load scenarios that are written as data: `*.sim.yaml`.

A file is read into the options that `scenario()` takes, so both forms share their validation. Only what data
cannot express directly, such as the mocks that fail, has a form of its own (`options.DataTools`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentest.config.fields import Path_
from agentest.config.yaml_file import read_yaml
from agentest.scenarios.definition import OPTIONS, define, define_each, register_invalid
from agentest.scenarios.matchers.display import brief, type_text
from agentest.scenarios.options import DataTools
from agentest.scenarios.parser import known_keys
from agentest.support.errors import ScenarioError, errors_as
from agentest.support.text import snake_case, snake_keys

KEYS = ("scenarios", "defaults")
EACH = "each"
_UNKNOWN = re.compile(r"unknown (?:key|option) `([^`]+)`")
_TOKENS = re.compile(r"\[(\d+)\]|\['([^']*)'\]|([^.\[\]:,\s]+)")


_SHAPE = '\n  # for example\n  scenarios:\n    - name: asks for an order\n      turns: ["Where is order 17?"]'


def define_scenarios(path: Path, source: bytes | None = None) -> None:
    """Define the scenarios of a file, or of the source that replaces its content.

    Raises UsageError for a file that cannot be read; invalid scenarios are registered with their problems.
    """
    document = read_yaml(path, source, has_dates=False)
    lines = document.lines
    file = str(path.resolve())

    def fail(problem: str, *at: str | int) -> ScenarioError:
        return ScenarioError(f"{path}:{_line_at(lines, at)}: {problem}")

    if not isinstance(document.data, dict):
        found = "the file is empty" if document.data is None else f"found {type_text(document.data)}"
        raise fail(f"write the list of scenarios below a key `scenarios:`; {found}")
    try:
        keys = known_keys(document.data, KEYS, "the file")
    except ValueError as error:
        unknown = next((key for key in document.data if snake_case(str(key)) not in KEYS), "scenarios")
        shape = "" if "scenarios" in document.data else _SHAPE
        raise fail(f"{error}{shape}", snake_case(str(unknown))) from None
    entries, defaults = keys.get("scenarios"), keys.get("defaults", {})
    if not isinstance(entries, list) or not entries:
        raise fail(f"scenarios: expected a list of scenarios that is not empty{_SHAPE}", "scenarios")
    if not isinstance(defaults, dict):
        raise fail(f"defaults: expected options, found {type_text(defaults)}", "defaults")
    with errors_as(lambda text: ScenarioError(f"{path}:{_line_of(lines, (), text)}: {text}"), ""):
        defaults = known_keys(defaults, OPTIONS, "defaults")
    if "name" in defaults:
        raise fail("defaults: `name` belongs to each scenario", "defaults", "name")
    for number, entry in enumerate(entries):
        at: Path_ = ("scenarios", number)
        _define(entry, defaults, file, lines, at)


def _define(
    entry: Any, defaults: Mapping[str, Any], file: str, lines: Mapping[Path_, int], at: Path_
) -> None:
    line = _line_at(lines, at)
    locate = partial(_line_of, lines, at)
    options: dict[str, Any] = {"name": f"scenarios[{at[-1]}]"}
    try:
        if not isinstance(entry, dict):
            raise ValueError(f"expected options of a scenario, found {type_text(entry)}")
        own = snake_keys(entry, (*OPTIONS, EACH))
        rows = own.pop(EACH, None)
        options = {**options, **defaults, **own}
        if rows is None and "name" not in own:
            raise ValueError("name: is missing")
        if "check" in options:
            raise ValueError("check: is a function; write the scenario in a *.sim.py file")
    except ValueError as error:
        problem = str(error)
        text = f"{file}:{locate(problem)}: scenario {brief(options['name'])}: {problem}"
        register_invalid(options, file, line, text)
        return
    if rows is None:
        head = f"scenario {brief(options['name'])}: "
        define(
            _with_data_tools(options),
            file,
            line,
            lambda problem: f"{file}:{locate(problem)}: {head}{problem}",
        )
    else:
        template = {**options, "name": own.get("name", "{name}")}
        define_each(rows, template, file, line, convert=_with_data_tools, locate=locate)


def _with_data_tools(options: Mapping[str, Any]) -> dict[str, Any]:
    marked = {
        key: DataTools(value) if key in ("tools", "user_tools") and isinstance(value, dict) else value
        for key, value in options.items()
    }
    mocks = marked.get("mocks")
    if isinstance(mocks, dict) and isinstance(mocks.get("tools"), dict):
        marked["mocks"] = {**mocks, "tools": DataTools(mocks["tools"])}
    return marked


def _line_of(lines: Mapping[Path_, int], at: Path_, problem: str) -> int:
    key = problem.partition(": ")[0] if ": " in problem else ""
    unknown = _UNKNOWN.search(problem.partition(";")[0])
    if key.startswith("unknown "):
        key = ""
    parts: list[str | int] = [
        int(index) if index else snake_case(quoted or name) for index, quoted, name in _TOKENS.findall(key)
    ]
    parts += [snake_case(unknown[1])] if unknown else []
    for begin in (at, ("defaults",)):
        found = begin
        for part in parts:
            if (*found, part) not in lines:
                break
            found = (*found, part)
        if found != begin:
            return lines[found]
    return _line_at(lines, at)


def _line_at(lines: Mapping[Path_, int], at: tuple[str | int, ...]) -> int:
    while at and at not in lines:
        at = at[:-1]
    return lines.get(at, 1)
