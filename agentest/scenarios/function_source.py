"""Copy users' functions, such as mocks and checks, into written scenario files, and find useless checks.

A function can be copied if its source shows everything that it uses: builtins, imported modules, plain
values, and other functions of its file that can be copied.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from agentest.scenarios.python_formatting import BracketedSource, fits_line, node, split_source
from agentest.support.importing import is_users_file
from agentest.support.lazy_dataclasses import dataclass

_MOST_DEPTH = 5


@dataclass(frozen=True, slots=True)
class CopiedFunction:
    """A function as source."""

    name: str  # the name to use it by; for a lambda its source
    definitions: tuple[str, ...] = ()  # the function and what it uses of its file, in order
    imports: tuple[str, ...] = ()


def copy_function(function: Callable[..., Any], depth: int = 0) -> CopiedFunction | None:
    """Return the source of a function with everything that it uses; None if it cannot be copied."""
    if not isinstance(function, FunctionType) or function.__code__.co_freevars or depth > _MOST_DEPTH:
        return None
    if not is_users_file(function.__code__.co_filename):
        return None
    try:
        is_lambda = function.__name__ == "<lambda>"
        source = _lambda_source(function.__code__) if is_lambda else _source_of(function)
        tree = ast.parse(source, mode="eval" if is_lambda else "exec") if source else None
    except (OSError, SyntaxError, TypeError, ValueError, IndentationError):
        return None
    if tree is None or source is None:
        return None
    definitions: list[str] = []
    imports: list[str] = []
    for name in sorted(_free_names(tree)):
        if name not in function.__globals__:
            return None
        used = _used_global(name, function.__globals__[name], depth)
        if used is None:
            return None
        definitions += [each for each in used.definitions if each not in definitions]
        imports += [each for each in used.imports if each not in imports]
    if is_lambda:
        return CopiedFunction(source, tuple(definitions), tuple(imports))
    return CopiedFunction(function.__name__, (*definitions, source), tuple(imports))


def _source_of(function: FunctionType) -> str | None:
    source = textwrap.dedent(inspect.getsource(function)).rstrip()
    return None if source.startswith("@") else source


def _lambda_source(code: CodeType) -> str | None:
    text = "".join(linecache.getlines(code.co_filename))
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = [
        each
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.Lambda)
        and each.lineno == code.co_firstlineno
        and tuple(arg.arg for arg in (*each.args.args, *each.args.kwonlyargs)) == parameters
    ]
    source = ast.get_source_segment(text, found[0]) if len(found) == 1 else None
    return source if source and "\n" not in source else None


def _free_names(tree: ast.AST) -> set[str]:
    used: set[str] = set()
    defined: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Name):
            (used if isinstance(each.ctx, ast.Load) else defined).add(each.id)
        elif isinstance(each, ast.arg):
            defined.add(each.arg)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(each.name)
        elif isinstance(each, ast.alias):
            defined.add((each.asname or each.name).partition(".")[0])
        elif isinstance(each, ast.ExceptHandler) and each.name:
            defined.add(each.name)
    return {name for name in used - defined if not hasattr(builtins, name)}


def _used_global(name: str, value: Any, depth: int) -> CopiedFunction | None:
    if isinstance(value, ModuleType):
        if is_users_file(getattr(value, "__file__", None) or ""):
            return None
        word = value.__name__
        plain = word == name
        return CopiedFunction(name, imports=(f"import {word}" if plain else f"import {word} as {name}",))
    if isinstance(value, FunctionType) and is_users_file(value.__code__.co_filename):
        return copy_function(value, depth + 1) if value.__name__ == name else None
    module = getattr(value, "__module__", None)
    if isinstance(module, str) and callable(value):
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if getattr(value, "__name__", None) != name or is_users_file(file):
            return None
        public = "agentest" if module.startswith("agentest.") else module
        return CopiedFunction(name, imports=(f"from {public} import {name}",))
    try:
        written = _assignment(name, value)
    except ValueError:
        return None
    return CopiedFunction(name, definitions=(written,))


def _assignment(name: str, value: Any) -> str:
    _check_json(value)
    made = node(value)
    one_line = f"{name} = {value!r}"
    if fits_line(one_line) or not isinstance(made, BracketedSource):
        return one_line
    return f"{name} = {split_source(made)}"


def _check_json(value: Any) -> None:
    if isinstance(value, Mapping) and type(value) is dict:
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is not a text")
            _check_json(item)
    elif type(value) is list:
        for item in value:
            _check_json(item)
    elif not (value is None or type(value) in (str, int, float, bool)):
        raise ValueError(f"{value!r} has no source")


_Function = ast.FunctionDef | ast.AsyncFunctionDef
_UNKNOWN = object()


def find_check_flaw(check: Callable[..., Any]) -> str | None:
    """Return why a check proves nothing; None if it has no known flaw or its source is not available."""
    while isinstance(check, partial):
        check = check.func
    function = check if inspect.isroutine(check) else getattr(type(check), "__call__", None)  # noqa: B004
    function = getattr(function, "__func__", function)
    return _flaw(function) if isinstance(function, FunctionType) else None


_NEVER_FAILS = "it can never fail; have it `assert`, or return False or the reason why it does not hold"
_HOLDS = (None, True)  # what a check returns if all is well


@lru_cache(maxsize=64)
def _flaw(function: FunctionType) -> str | None:
    if function.__name__ == "<lambda>":
        return _NEVER_FAILS if _is_constant(function) else None
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, TypeError, ValueError):  # no source
        return None
    if not isinstance(tree, _Function):
        return None
    nodes = [each for statement in tree.body for each in ast.walk(statement)]
    stored = (n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    local = {*function.__code__.co_varnames, *function.__code__.co_cellvars, *stored}
    outside = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # not assigned yet
            outside[name] = cell.cell_contents
    known = {name: value for name, value in outside.items() if name not in local}
    for each in nodes:
        at = f"line {function.__code__.co_firstlineno + getattr(each, 'lineno', 1) - 1}"
        if isinstance(each, ast.Expr) and _makes_coroutine(each.value, known, tree):
            called = ast.unparse(each.value)
            return f"{called} in {at} is not awaited, so it never runs; write `await` in front (async def)"
        if isinstance(each, ast.Assert) and isinstance(each.test, ast.Tuple) and each.test.elts:
            return f"the assertion in {at} is always true, because it is a tuple; remove the parentheses"
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not any(map(callable, defaults)) and not any(_may_fail(each, local, known) for each in nodes):
        return _NEVER_FAILS
    return None


def _is_constant(function: FunctionType) -> bool:
    import dis

    code = [each for each in dis.get_instructions(function) if each.opname != "RESUME"]
    names = [each.opname for each in code]
    return names in (["RETURN_CONST"], ["LOAD_CONST", "RETURN_VALUE"]) and code[0].argval in _HOLDS


def _makes_coroutine(node: ast.expr, known: Mapping[str, Any], tree: _Function) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and any(
        isinstance(inner, ast.AsyncFunctionDef) and inner.name == node.func.id for inner in tree.body
    ):
        return True
    return inspect.iscoroutinefunction(_value(node.func, known))


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(module := _value(node.value, known), ModuleType):
        return getattr(module, node.attr, None)
    return None


def _may_fail(node: ast.AST, local: set[str], known: Mapping[str, Any]) -> bool:
    if isinstance(node, ast.Return):
        return node.value is not None and not (
            isinstance(node.value, ast.Constant) and node.value.value in _HOLDS
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
