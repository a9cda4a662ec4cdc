"""Every regular expression in the package, and texts on which it could take long."""

from __future__ import annotations

import ast
import pickle
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from subprocess import PIPE, Popen
from typing import Any

import agentest

ROOT = Path(agentest.__file__).parent
METHODS = {"match", "search", "fullmatch", "sub", "subn", "findall", "finditer", "split"}
PROGRAM = """
import pickle, re, signal, sys
while True:
    try:
        pattern, flags, method, text, seconds = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    signal.setitimer(signal.ITIMER_PROF, seconds)
    compiled = re.compile(pattern, flags)
    if method in ("match", "fullmatch"):
        getattr(compiled, method)(text)
    else:
        for _ in compiled.finditer(text):
            pass
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.buffer.write(b"+")
    sys.stdout.buffer.flush()
"""
CHARACTERS = (
    "a",
    "0",
    " ",
    "\n",
    "A",
    ".",
    "-",
    "_",
    "@",
    "<",
    "{",
    "[",
    "(",
    '"',
    "'",
    "\\",
    "/",
    ":",
    "ß",
    "\u200b",
)
"""Foreign texts repeat one of these, besides what a pattern asks for."""


@dataclass(frozen=True)
class Found:
    """A pattern of the package."""

    text: str | bytes
    flags: int
    methods: frozenset[str]
    place: str
    in_table: bool = False

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]


def patterns() -> list[Found]:
    """Return all patterns that modules write: constants, f-strings, and tables that are compiled."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}
    uses: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                name = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                uses[f"{path}: {name}" if name.startswith("_") else name].add(node.attr)
    return [found for path, tree in trees.items() for found in _of_module(path, tree, uses)]


def _of_module(path: Path, tree: ast.Module, uses: dict[str, set[str]]) -> Iterator[Found]:
    calls = [node for node in ast.walk(tree) if _is_of_re(node)]
    if not calls:
        return
    name = ".".join(("agentest", *path.relative_to(ROOT).with_suffix("").parts))
    try:
        values = vars(import_module(name.removesuffix(".__init__")))
    except ImportError:
        values = {"re": re}
    names = {id(node.value): node.targets[0] for node in ast.walk(tree) if isinstance(node, ast.Assign)}
    compiled = {
        (each.pattern, each.flags): name for name, value in values.items() for each in _compiled(value)
    }
    for call in calls:
        text = _value(call.args[0], values)
        if text is None:
            continue
        position = (
            1 if call.func.attr == "compile" else {"sub": 4, "subn": 4, "split": 3}.get(call.func.attr, 2)
        )
        flags = [*call.args[position:], *(k.value for k in call.keywords if k.arg == "flags")]
        number = int(_value(flags[0], values) or 0) if flags else 0
        methods = {call.func.attr}
        if methods == {"compile"}:
            target = names.get(id(call))
            name = target.id if isinstance(target, ast.Name) else ""
            methods = METHODS & uses[f"{path}: {name}" if name.startswith("_") else name]
        try:
            found = re.compile(text, number)
        except re.error:
            continue
        compiled.pop((found.pattern, found.flags), None)
        place = f"{path.relative_to(ROOT)}:{call.lineno}"
        yield Found(found.pattern, found.flags, frozenset(methods or {"search"}), place, not methods)
    for (text, number), name in compiled.items():
        place = f"{path.relative_to(ROOT)}: {name}"
        yield Found(text, number, frozenset({"search"}), place, in_table=True)


def _is_of_re(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in METHODS | {"compile"}
        and bool(node.args)
    )


def _compiled(value: Any, depth: int = 4) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        yield from _compiled([*value, *value.values()], depth - 1)
    elif depth and isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from _compiled(each, depth - 1)


def _value(node: ast.expr, values: dict[str, Any]) -> Any:
    """Return an expression's value. Parts that only a running function knows are `abc`."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(_value(part, values) or "abc") for part in node.values)
    if isinstance(node, ast.FormattedValue):
        node = node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = _value(node.left, values), _value(node.right, values)
        return sides[0] + sides[1] if type(sides[0]) is type(sides[1]) and sides[0] is not None else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        left = _value(node.left, values) or ""
        return (left.replace(b"%b", b"abc") if isinstance(left, bytes) else left.replace("%s", "abc")) or None
    try:
        return eval(compile(ast.Expression(node), "", "eval"), dict(values))
    except Exception:  # noqa: BLE001 - names of a function
        return None


def hostile(found: Found, size: int) -> Iterator[str | bytes]:
    """Return texts of about `size` characters that repeat what the pattern repeats, without an end."""
    seeds = dict.fromkeys([*CHARACTERS, *_pumped(parser.parse(found.text, found.flags))])
    is_bytes = isinstance(found.text, bytes)
    for seed in seeds:
        head, body = seed if isinstance(seed, tuple) else ("", seed)
        if body:
            text = head + body * (size // len(body)) + "\0!"
            yield text.encode("latin-1", "replace") if is_bytes else text


def _pumped(tree: Any) -> Iterator[tuple[str, str]]:
    """Return what stands before each repetition and what it repeats."""
    for choice in (0, 1):
        for before, body in _repeats([*tree], "", choice):
            example = "".join(_example(body, choice))
            yield before, example
            yield before, "".join(_example(body, 1 - choice))
            yield "", before + example
            yield "", before + example * 2 + "\n"


def _repeats(items: list[Any], before: str, choice: int) -> Iterator[tuple[str, list[Any]]]:
    for code, value in items:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            _, most, body = value
            if most > 8:
                yield before, [*body]
            yield from _repeats([*body], before, choice)
        elif code is codes.SUBPATTERN:
            yield from _repeats([*value[-1]], before, choice)
        elif code is codes.ATOMIC_GROUP:
            yield from _repeats([*value], before, choice)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from _repeats([*branch], before, choice)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from _repeats([*value[1]], before, choice)
        before += "".join(_example([(code, value)], choice))


def _example(items: list[Any], choice: int) -> Iterator[str]:
    """Return a text that the items match, roughly: `choice` is the number of the branch or character."""
    for code, value in items:
        if code is codes.LITERAL:
            yield chr(value)
        elif code is codes.NOT_LITERAL:
            yield "a" if value != ord("a") else "b"
        elif code is codes.ANY:
            yield "ax"[choice]
        elif code is codes.IN:
            yield _member(value, choice)
        elif code is codes.BRANCH:
            branches = value[1]
            yield from _example([*branches[min(choice, len(branches) - 1)]], choice)
        elif code is codes.SUBPATTERN:
            yield from _example([*value[-1]], choice)
        elif code is codes.ATOMIC_GROUP:
            yield from _example([*value], choice)
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            yield from [*_example([*value[2]], choice)] * max(choice, value[0])


_CATEGORIES = {
    codes.CATEGORY_DIGIT: "07",
    codes.CATEGORY_SPACE: " \n",
    codes.CATEGORY_WORD: "a0",
    codes.CATEGORY_NOT_DIGIT: "a.",
    codes.CATEGORY_NOT_SPACE: "a.",
    codes.CATEGORY_NOT_WORD: ". ",
}


def _member(items: list[Any], choice: int) -> str:
    if items[0][0] is codes.NEGATE:
        plain = re.compile("|".join(re.escape(chr(v)) for c, v in items if c is codes.LITERAL) or r"(?!)")
        return next(islice((c for c in "a .\n0" if not plain.match(c)), choice, None), "b")
    code, value = items[min(choice, len(items) - 1)]
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.RANGE:
        return chr(value[choice])
    return _CATEGORIES[value][choice] if code is codes.CATEGORY else "a"


class Matcher:
    """A process that matches patterns, and dies of one that takes longer than its limit of CPU time."""

    def __init__(self) -> None:
        self._process: Popen[bytes] | None = None

    def ends(self, found: Found, method: str, text: str | bytes, seconds: float) -> bool:
        if self._process is None:
            self._process = Popen([sys.executable, "-I", "-S", "-c", PROGRAM], stdin=PIPE, stdout=PIPE)
        assert self._process.stdin
        assert self._process.stdout
        flags = found.flags & ~re.DEBUG
        self._process.stdin.write(pickle.dumps((found.text, flags, method, text, seconds)))
        self._process.stdin.flush()
        if self._process.stdout.read(1):
            return True
        code = self._process.wait()
        assert code == -signal.SIGPROF, f"{found}: {code}"
        self.close()
        return False

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None
