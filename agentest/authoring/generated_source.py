"""Write generated cases as a scenario file, and compare them with the scenarios that exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentest.authoring.generation import GENERATED, Case, DaysAgo, ExpectedTool, plain_number
from agentest.mocks.binding import BoundFunction, MockSequence
from agentest.mocks.calls import HttpResponse
from agentest.scenarios.function_source import CopiedFunction, copy_function
from agentest.scenarios.model import Scenario
from agentest.scenarios.python_formatting import (
    NAMES,
    BracketedSource,
    SourceNode,
    StringLiteral,
    call_of,
    imports,
    is_parameter,
    list_of,
    mapping,
    node,
    split_source,
)
from agentest.scenarios.source_code import plain_value
from agentest.support.text import shortened

SAME = 0.8
"""Scenarios that share this part of their words, and their numbers, test the same."""
_COMMENT_CHARS = 100


def similarity(case: Case | Scenario, other: Case | Scenario) -> float:
    """Return how much of their words and tools two scenarios share: 0 to 1, at most 0.5 if numbers differ."""
    (mine, numbers), (theirs, others) = _shingles(case), _shingles(other)
    shared = len(mine & theirs) / max(len(mine | theirs), 1)
    return shared if numbers == others else min(shared, 0.5)


def _shingles(each: Case | Scenario) -> tuple[set[str], set[str]]:
    if isinstance(each, Case):
        texts = [*each.turns] if not each.goal else [each.goal, *each.knowledge]
        tools = {step.name for step in (*each.expected, *each.forbidden)}
    else:
        texts = [turn.user_message for turn in each.turns] or [each.goal, *each.knowledge]
        tools = set(each.named_tools)
    words = re.findall(r"\w+", " ".join(texts).lower())
    return {*map(" ".join, pairwise(words)), *(f"tool {name}" for name in tools)}, {
        word for word in words if word.isdigit()
    }


def nearest(case: Case, existing: Iterable[Scenario]) -> tuple[float, str]:
    """Return the most similar existing scenario, with the similarity; (0, "") without any."""
    shares = ((1.0 if each.name == case.name else similarity(case, each), each.name) for each in existing)
    return max(shares, default=(0.0, ""))


def source_of(cases: Sequence[Case], about: str) -> str:
    """Return the module that defines these scenarios. Raises ValueError if a mock has no source."""
    writer = _SourceOfMocks()
    calls = [_scenario(case, writer) for case in cases]
    names = (*NAMES, "Criterion", "persona")
    lines = [*writer.import_lines, imports(calls, names, "agentest")]
    body = []
    for case, call in zip(cases, calls, strict=True):
        origin = "".join(each if each.isprintable() else " " for each in case.origin)
        body.append(f"# {shortened(origin, _COMMENT_CHARS)}\n{split_source(call)}")
    head = [f'"""{about}"""', "\n".join(sorted(lines, key=_import_order))]
    functions = "".join(f"\n\n{each}\n" for each in writer.definitions)
    return "\n\n".join(head) + f"\n{functions}\n" + "\n" * bool(functions) + "\n\n".join(body) + "\n"


def _import_order(line: str) -> tuple[bool, bool, str]:
    return line.startswith("from agentest"), line.startswith("from"), line


def _scenario(case: Case, writer: _SourceOfMocks) -> BracketedSource:
    expected, forbidden = [list_of(map(_call, steps)) for steps in (case.expected, case.forbidden)]
    checks: list[tuple[str, SourceNode]] = (
        [("match_mode", StringLiteral("contains"))] if case.expected else []
    )
    checks += [("expected", expected)] if case.expected else []
    checks += [("forbidden", forbidden)] if case.forbidden else []
    options: dict[str, SourceNode | None] = {}
    if case.goal:
        options["profile"] = call_of("persona", [StringLiteral(case.style)]) if case.style else None
        options["goal"] = StringLiteral(case.goal)
        options["knowledge"] = node(list(case.knowledge)) if case.knowledge else None
    else:
        turns: list[SourceNode] = [StringLiteral(each) for each in case.turns]
        if case.asks_first:
            ban = mapping([("forbidden", node([case.tool]))])
            turns[0] = mapping([("user_message", turns[0]), ("trajectory", ban)])
        options["turns"] = list_of(turns)
    used = case.tools.items()
    options["tools"] = mapping([(name, writer.mock(mock)) for name, mock in used]) if case.tools else None
    options["trajectory"] = mapping(checks) if checks else None
    options["expected_outcome"] = StringLiteral(case.outcome) if case.outcome else None
    required = {} if case.goal else {"required": "False"}
    criterion: SourceNode = StringLiteral(case.criterion)
    criterion = call_of("Criterion", [criterion], required) if required else criterion
    options["criteria"] = list_of([criterion]) if case.criterion else None
    options["tags"] = node([GENERATED])
    return call_of("scenario", [StringLiteral(case.name)], options)


def _call(step: ExpectedTool) -> SourceNode:
    if not step.args:
        return StringLiteral(step.name)
    values = {
        name: call_of("number", [node(plain_number(each))]) if isinstance(each, Fraction) else node(each)
        for name, each in step.args.items()
    }
    if all(map(is_parameter, values)):
        return call_of("call", [StringLiteral(step.name)], values)
    return mapping([("name", StringLiteral(step.name)), ("args", mapping(list(values.items())))])


class _SourceOfMocks:
    """Writes mocks, and collects the functions and imports that they need."""

    def __init__(self) -> None:
        self.definitions: list[str] = []
        self.import_lines: list[str] = []
        self._copied: dict[str, CopiedFunction] = {}

    def mock(self, value: Any) -> SourceNode:
        if isinstance(value, DaysAgo):
            self._import("from datetime import date, timedelta")
            sign = "-" if value.days >= 0 else "+"
            return f"(date.today() {sign} timedelta(days={abs(value.days)})).isoformat()"
        if isinstance(value, MockSequence):
            return call_of("sequence", map(self.mock, value.steps))
        if isinstance(value, BoundFunction):
            copied = copy_function(value.function)
            if copied is None or self._copied.setdefault(copied.name, copied) != copied:
                return node({"status": "ok"})
            for line in copied.imports:
                self._import(line)
            self.definitions += [each for each in copied.definitions if each not in self.definitions]
            return copied.name
        if isinstance(value, HttpResponse):
            return call_of("HttpResponse", [node(value.status), self.mock(value.body)])
        if isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException)):
            return call_of("ToolError", [StringLiteral(str(value) or type(value).__name__)])
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return mapping([(key, self.mock(each)) for key, each in value.items()])
        if isinstance(value, list):
            return list_of(map(self.mock, value))
        return node(plain_value(value))

    def _import(self, line: str) -> None:
        if line not in self.import_lines:
            self.import_lines.append(line)


def free_path(path: Path) -> Path:
    """Return the path, or with the next number if it exists: `generated-2.sim.py`."""
    stem, number, free = path.name.removesuffix(".sim.py"), 2, path
    while free.exists():
        free, number = path.with_name(f"{stem}-{number}.sim.py"), number + 1
    return free
