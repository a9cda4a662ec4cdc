"""Mocks that are written from recorded calls: they answer the same calls in the same way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentest.analysis.recorded.calls import Declared, Gathered, gather
from agentest.analysis.recorded.module import Module, module_of
from agentest.mocks.resolver import MockResolver
from agentest.scenarios.tools import parse_tools
from agentest.sight import SeenBy
from agentest.support.redact import Redactor
from agentest.transcript import ToolCall

RUFF = [sys.executable, "-m", "ruff"]
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["haircut", "2026-11-24", "it's", 'a "b"', "x" * 120, "word " * 30, "日本語", "\n", '"""', "\\"]
)
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.0, 1e300]) | texts
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
parameters = st.sampled_from(["service", "date", "n", "class", "args", "ctx", "_x", "tool", "match", "a b"])
arguments = st.dictionaries(parameters, scalars | json_values, max_size=3)
outcomes = json_values | texts.filter(str.strip).map(RuntimeError)
tool_names = st.sampled_from(["lookup", "get-orders", "print", "class", "tools", "1st", "Any", "größe"])
histories = st.lists(st.tuples(tool_names, arguments, outcomes), min_size=1, max_size=7)


def call(name: str, args: Any, outcome: Any, **more: Any) -> ToolCall:
    """A call that the agent's own tool answered, or failed."""
    more = {"seen_by": SeenBy.AGENT, **more}
    if isinstance(outcome, Exception):
        return ToolCall(name, args, {"error": str(outcome)}, False, 0, error=str(outcome), **more)
    return ToolCall(name, args, outcome, False, 0, **more)


def recorded(calls: Sequence[ToolCall], declared: Mapping[str, Declared] | None = None) -> Gathered:
    return gather([calls], Redactor(), declared)


def written(gathered: Gathered) -> Module:
    return module_of(gathered.tools, "recorded_tools")


def imported(module: Module, folder: Path) -> dict[str, Any]:
    """What the module defines, when it lies in a folder with its files."""
    path = folder / "recorded_tools.py"
    for name, text in module.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    names: dict[str, Any] = {"__file__": str(path), "__name__": "recorded_tools"}
    exec(compile(module.source, str(path), "exec", dont_inherit=True), names)
    return names


def answers(module: Module, folder: Path, calls: Sequence[tuple[str, Any]]) -> list[ToolCall]:
    """What the mocks answer to these calls in one conversation."""
    tools = parse_tools({"tools": imported(module, folder)["tools"]})
    mocks = MockResolver(tools, scenario="s", conversation_id="c")

    async def ask() -> None:
        for name, args in calls:
            await mocks.resolve(name, args, 0)

    asyncio.run(ask())
    return list(mocks.calls)


def outcome(told: ToolCall) -> Any:
    return told.error if told.error else told.result


@QUICK
@given(histories)
def test_the_same_calls_have_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, Any, Any]]
) -> None:
    """Whatever was called and answered: the module imports, and answers each call as the real tool did."""
    made = written(recorded([call(*each) for each in history]))
    told = answers(made, tmp_path_factory.mktemp("m"), [(name, args) for name, args, _ in history])
    expected = [outcome(call(*each)) for each in history]
    assert [outcome(each) for each in told] == expected, made.source
    assert not any(each.invalid_arguments for each in told), made.source


@settings(QUICK, max_examples=8)
@given(histories)
def test_the_module_is_formatted_and_linted(history: list[tuple[str, Any, Any]]) -> None:
    """A project that checks its format with ruff finds nothing to change."""
    source = written(recorded([call(*each) for each in history])).source
    for command in (["format", "--check", "--diff", "-"], ["check", "--isolated", "--ignore", "E501", "-"]):
        done = subprocess.run([*RUFF, *command], input=source, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{source}"
