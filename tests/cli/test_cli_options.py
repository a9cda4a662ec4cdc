"""Command options are typed values: each has a field of its type."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import pytest

import agentest
from agentest.cli.main import cli
from agentest.cli.options import groups_of

PACKAGE = Path(agentest.__file__).parent
PARSED = {"repeat": "Repeat", "shard": "Shard", "workers": "int | str"}
"""Options with a type of their own, which a callback parses."""


def commands() -> Iterator[tuple[str, click.Command]]:
    for name, command in cli.commands.items():
        of_group = command.commands.items() if isinstance(command, click.Group) else [(name, command)]
        yield from of_group


def hints_of(command: click.Command) -> dict[str, Any]:
    """The types of a command's arguments, and of the fields of those that group options."""
    function = command.callback.__wrapped__  # type: ignore[union-attr]
    groups = groups_of(function)
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(function, localns={g.__name__: g for g in groups.values()}).items():
        found |= get_type_hints(hint) if name in groups else {name: hint}
    return found


def fits(param: click.Parameter, hint: Any) -> bool:
    """Return whether every value that click makes of the option has the type."""
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


@pytest.mark.parametrize("name", sorted(name for name, _ in commands()))
def test_every_option_is_an_argument_of_its_type(name: str) -> None:
    """An option without an argument, or with one of another type, would be wrong only at run time."""
    command = dict(commands())[name]
    hints = hints_of(command)
    for param in own(command):
        assert param.name in hints, param.name
        if param.name in PARSED:
            assert PARSED[param.name] in str(hints[param.name])
        else:
            assert fits(param, hints[param.name]), (param.name, hints[param.name])


@pytest.mark.parametrize("name", sorted(name for name, _ in commands()))
def test_every_argument_has_an_option(name: str) -> None:
    """An argument that no option sets would fail at run time. Fields of groups have defaults."""
    command = dict(commands())[name]
    function = command.callback.__wrapped__  # type: ignore[union-attr]
    assert function.__annotations__.keys() - {"return", *groups_of(function)} <= {
        param.name for param in own(command)
    }


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for room in ("cli", "pytest_plugin", "testing"):
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
