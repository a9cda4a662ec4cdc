"""Detect flaws in the source of a `check`, such as a function that can never fail."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from types import FunctionType, ModuleType
from typing import Any

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_UNKNOWN = object()


def find_check_flaw(check: Callable[..., Any]) -> str | None:
    """Return why a check proves nothing; None if it has no known flaw or its source is not available."""
    while isinstance(check, partial):
        check = check.func
    function = check if inspect.isroutine(check) else getattr(type(check), "__call__", None)  # noqa: B004
    function = getattr(function, "__func__", function)
    return _flaw(function) if isinstance(function, FunctionType) else None


@lru_cache(maxsize=64)
def _flaw(function: FunctionType) -> str | None:
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, TypeError, ValueError):  # no source, or a lambda within a statement
        return None
    if not isinstance(tree, _Function):
        return None
    nodes = [node for statement in tree.body for node in ast.walk(statement)]
    stored = (n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    local = {*function.__code__.co_varnames, *function.__code__.co_cellvars, *stored}
    known = _outer_names(function, local)
    for node in nodes:
        at = f"line {function.__code__.co_firstlineno + getattr(node, 'lineno', 1) - 1}"
        if isinstance(node, ast.Expr) and _makes_coroutine(node.value, known, tree):
            called = ast.unparse(node.value)
            return f"{called} in {at} is not awaited, so it never runs; write `await` in front (async def)"
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts:
            return f"the assertion in {at} always holds: it is a tuple; leave out the parentheses"
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not any(map(callable, given)) and not any(_may_fail(node, local, known) for node in nodes):
        return "it can never fail; have it `assert`, or return False or the reason why it does not hold"
    return None


def _outer_names(function: FunctionType, local: set[str]) -> dict[str, Any]:
    """Return the names outside of the function that its source may use, with their values."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    outside = {**function.__globals__, **dict(_assigned_cells(cells))}
    return {name: value for name, value in outside.items() if name not in local}


def _assigned_cells(cells: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _makes_coroutine(node: ast.expr, known: Mapping[str, Any], tree: _Function) -> bool:
    """Return True if an expression calls an async function without awaiting it."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and any(
        isinstance(inner, ast.AsyncFunctionDef) and inner.name == node.func.id for inner in tree.body
    ):
        return True
    return inspect.iscoroutinefunction(_value(node.func, known))


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return the value of a name, or of a name in a module; None if it is unknown."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(module := _value(node.value, known), ModuleType):
        return getattr(module, node.attr, None)
    return None


def _may_fail(node: ast.AST, local: set[str], known: Mapping[str, Any]) -> bool:
    if isinstance(node, ast.Return):
        return node.value is not None and not (
            isinstance(node.value, ast.Constant) and node.value.value is None
        )
    if isinstance(node, ast.Attribute):
        return node.attr.startswith(("assert", "fail"))
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
        value = known.get(node.id, _UNKNOWN)
        if value is _UNKNOWN:  # a built-in function, or a name defined later
            return not hasattr(builtins, node.id)
        return callable(value) or isinstance(value, ModuleType)
    unclear = (ast.Assert, ast.Raise, ast.Await, ast.Yield, ast.YieldFrom, ast.Import, ast.ImportFrom)
    return isinstance(node, unclear)
