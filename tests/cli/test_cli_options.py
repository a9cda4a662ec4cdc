"""Options reach their command as one typed value: each has a field of its type, and none travels untyped."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import pytest

import agentest
from agentest.authoring.export import Expecting, Form
from agentest.cli.main import cli
from agentest.cli.options import ParsedOptions

PACKAGE = Path(agentest.__file__).parent
VALUES = {
    "run": "cli.requests:RunOptions",
    "eval": "cli.requests:EvalOptions",
    "chat": "cli.requests:RequestOptions",
    "doctor": "cli.requests:RequestOptions",
    "record-tools": "cli.record_tools:RecordToolsOptions",
    "judge": "cli.judge:JudgeOptions",
    "coverage": "cli.coverage:CoverageOptions",
    "runs": "cli.stored_runs:ListOptions",
    "show": "cli.stored_runs:ShowOptions",
    "ui": "cli.ui:UiOptions",
    "compare": "cli.comparison:CompareOptions",
    "merge": "cli.merge:MergeOptions",
    "label": "cli.calibrate:LabelOptions",
    "calibrate": "cli.calibrate:CalibrateOptions",
    "init": "authoring.new_project:InitRequest",
    "mcp-tools": "cli.mcp_bridge:McpToolsOptions",
}
PARSED = {"repeat": "Repeat", "shard": "Shard", "workers": "int | str"}
"""Options with a type of their own, which a callback parses."""


def commands() -> Iterator[tuple[str, click.Command]]:
    for name, command in cli.commands.items():
        of_group = command.commands.items() if isinstance(command, click.Group) else [(name, command)]
        yield from of_group


def value_of(name: str) -> type:
    module, _, kind = VALUES[name].partition(":")
    found: type = getattr(import_module(f"agentest.{module}"), kind)
    return found


def hints_of(kind: type) -> dict[str, Any]:
    """The types of all fields of a value and of its parts, the first of a name."""
    found: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for each in fields(kind):
        if isinstance(each.default_factory, type) and is_dataclass(each.default_factory):
            found = {**hints_of(each.default_factory), **found}
        else:
            found.setdefault(each.name, hints[each.name])
    return found


def fits(param: click.Parameter, hint: Any) -> bool:
    """True if every value that click makes of the option is one of the type."""
    several = getattr(param, "multiple", False) or param.nargs == -1
    if several:
        return bool(hint == tuple[str, ...])
    kinds = set(get_args(hint)) if get_origin(hint) in (types.UnionType, Union) else {hint}
    can_be_none = param.default is None or "UNSET" in repr(param.default).upper()
    if param.required or (getattr(param, "is_flag", False) and param.default is not None):
        can_be_none = False
    if can_be_none and types.NoneType not in kinds:
        return False
    return any(fits_value(param.type, kind) for kind in kinds)


def fits_value(made: click.ParamType[Any], kind: Any) -> bool:
    if isinstance(made, click.Choice):
        return kind is str or (get_origin(kind) is Literal and set(get_args(kind)) >= {*made.choices})
    by_type = {click.Path: Path, click.IntRange: int, click.FloatRange: float}
    expected = next((into for each, into in by_type.items() if isinstance(made, each)), None)
    return kind is (expected or {"boolean": bool, "text": str}[made.name])


def own(command: click.Command) -> list[click.Parameter]:
    return [each for each in command.params if each.expose_value]


@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_option_is_a_field_of_its_type(name: str) -> None:
    """An option without a field, or with a field of another type, would be lost or wrong only at run time."""
    hints = hints_of(value_of(name))
    for param in own(cli.commands[name]):
        assert param.name in hints, param.name
        if param.name in PARSED:
            assert PARSED[param.name] in str(hints[param.name])
        else:
            assert fits(param, hints[param.name]), (param.name, hints[param.name])


@pytest.mark.parametrize("name", sorted(name for name, _ in commands() if name not in VALUES))
def test_every_option_is_an_argument_of_its_type(name: str) -> None:
    """Commands of a few options take them as arguments."""
    command = dict(commands())[name]
    assert command.callback
    hints = get_type_hints(command.callback.__wrapped__, localns={"Form": Form, "Expecting": Expecting})  # type: ignore[attr-defined]
    params = {param.name: param for param in own(command)}
    assert params.keys() == hints.keys() - {"return"}
    for option, param in params.items():
        assert fits(param, hints[option or ""]), option


def test_an_option_without_a_field_is_refused() -> None:
    """It would be dropped without a word."""
    with pytest.raises(TypeError, match="ListOptions has no field for most"):
        ParsedOptions({"every": True, "most": 3}).to(value_of("runs"))


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for room in ("cli", "pytest_plugin", "testing", "tracing", "mock_servers/mcp", "mock_servers/rest"):
        for path in sorted((PACKAGE / room).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}", node


def test_nothing_takes_untyped_options() -> None:
    """`**options: Any` hides from mypy which options a function takes."""
    for where, node in functions():
        kind = node.args.kwarg and node.args.kwarg.annotation
        if where.startswith(("cli", "pytest_plugin")) and kind:
            assert ast.unparse(kind) != "Any", where


def test_functions_take_at_most_eight_parameters() -> None:
    """More belong together as a value."""
    for where, node in functions():
        given = node.args
        names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
        assert len(names - {"self", "cls"}) <= 8, where
