"""Reporters and stores only show verdicts: they do not compare scores or parse messages."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "agentest"
ROOMS = ("report", "store")
ADK_API = (
    "agent_evaluator",
    "in_process_evaluation",
    "local_eval_service",
    "metrics/evaluator_base",
    "prebuilt_evaluators",
)
SCORES = {"threshold", "thresholds", "least", "score", "scores", "average", "averages"}
TEXTS = {"message", "reason", "summary"}
PARSERS = {
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find", "index",
    "match", "fullmatch", "search", "findall", "finditer",
}  # fmt: skip


def modules() -> list[Path]:
    in_rooms = (path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py")))
    # The page groups what is decided already; its figures are shown, and never compared.
    shown = [path for path in in_rooms if "viewer" not in path.parts]
    return [*shown, *(PACKAGE / "plugins" / "adk" / f"{name}.py" for name in ADK_API)]


def names(node: ast.AST) -> set[str]:
    """All variables and attributes in an expression."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def faults(source: str) -> list[str]:
    """The expressions that make decisions reserved for `verdict`."""
    return [ast.unparse(node) for node in ast.walk(ast.parse(source)) if _decides(node)]


def _decides(node: ast.AST) -> bool:
    match node:
        case ast.Compare():
            return _compares_scores(node) or _looks_into_a_message(node)
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in PARSERS and bool(names(node) & TEXTS)
    return False


def _compares_scores(node: ast.Compare) -> bool:
    ordered = any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops)
    return ordered and bool(names(node) & SCORES)


def _looks_into_a_message(node: ast.Compare) -> bool:
    sides = zip(node.ops, node.comparators, strict=True)
    within = [side for op, side in sides if isinstance(op, ast.In | ast.NotIn)]
    return any(isinstance(side, ast.Attribute) and side.attr in TEXTS for side in within)


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_verdict_decides(path: Path) -> None:
    """Other modules use its verdicts and the fields of its reasons."""
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "score >= threshold",
        "value < result.thresholds[name]",
        "result.averages[name] > 1",
        "reason.message.startswith('error')",
        "'; the reply was ' in reason.message",
        "SIDE.fullmatch(reason.message)",
        "reason.message.partition(':')",
    ],
)
def test_each_way_to_decide_is_noticed(source: str) -> None:
    """Every known spelling of comparing with thresholds and searching in messages is a fault."""
    assert faults(source) == [source]
