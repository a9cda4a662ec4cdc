"""The layers of ARCHITECTURE.md: imports go downward only, and litellm is imported in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "agentest"

LAYERS: dict[str, int] = {
    # 0: values
    "agentest": 0,
    "errors": 0,
    "transcript": 0,
    "results": 0,
    "metric_names": 0,
    "spelling": 0,
    "redact": 0,
    "terminal": 0,
    "jsonvalue": 0,
    "files": 0,
    "locking": 0,
    "interrupts": 0,
    "functions": 0,
    "invocations": 0,
    "storing": 0,
    "templates": 0,
    "unpacking": 0,
    "reaper": 0,
    "sight": 0,
    # 1: inputs
    "config": 1,
    "config_file": 1,
    "importing": 1,
    "calling": 1,
    "deadlines": 1,
    "expectations": 1,
    "mock_binding": 1,
    "scenarios": 1,
    "bodies": 1,
    "http": 1,
    "llm": 1,
    # 2: work
    "discovery": 2,
    "simulate": 2,
    "evaluate": 2,
    # 3: decision
    "verdict": 3,
    "events": 3,
    # 4: order
    "plan": 4,
    "holding": 4,
    "estimate": 4,
    "seeing": 4,
    "runner": 4,
    "totals": 4,
    # 5: telling
    "report": 5,
    # 6: doors
    "app": 6,
    "prepare": 6,
    "unmatched": 6,
    "execute": 6,
    "watch": 6,
    "workers": 6,
    "worker": 6,
    "links": 6,
    "file_descriptors": 6,
    "chat": 6,
    "rejudge": 6,
    "evalset": 6,
    "export": 6,
    "coverage": 6,
    "cli": 6,
    "mishaps": 6,
    "__main__": 6,
    "testing": 6,
}
SIBLINGS_APART = {"simulate", "evaluate", "discovery"}
"""Rooms of one layer that know nothing of each other."""
TELLING_MAY_IMPORT = {
    "report",
    "events",
    "results",
    "errors",
    "transcript",
    "verdict",
    "metric_names",
    "jsonvalue",
    "files",
    "invocations",
    "terminal",
    "sight",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(name: str) -> str:
    """`agentest.llm.port` → `llm`, `agentest` → `agentest`."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "agentest"


def module_room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "agentest" if first == "__init__" else first


def imports(path: Path) -> set[str]:
    """Names of all imported modules, those inside functions and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def ours(path: Path) -> set[str]:
    return {name for name in imports(path) if name.split(".")[0] == "agentest"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downward(path: Path) -> None:
    """A module imports from its own room or lower layers; siblings at work do not know each other."""
    mine = module_room(path)
    if mine == "agentest":
        return  # the package's face: re-exports, loaded when they are used
    for name in ours(path):
        other = room(name)
        if other == mine:
            continue
        assert other in LAYERS, f"{name} is in no layer"
        assert LAYERS[other] <= LAYERS[mine], f"{path.name} (layer {LAYERS[mine]}) imports {name} above it"
        assert not {mine, other} <= SIBLINGS_APART, f"{mine} and {other} know each other"
        if mine == "report":
            assert other in TELLING_MAY_IMPORT, f"a reporter imports {name}"


def test_there_are_no_cycles() -> None:
    """No module imports itself by way of others."""
    names = {
        ".".join(("agentest", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): p
        for p in modules()
    }
    graph = {name: {i for i in ours(path) if i in names and i != "agentest"} for name, path in names.items()}
    graph["agentest"] = set()
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_litellm_is_imported_in_one_place() -> None:
    """Only the adapter imports litellm, and only inside a function."""
    importers = [p.name for p in modules() if any(i.split(".")[0] == "litellm" for i in imports(p))]
    assert importers == ["litellm_adapter.py"]
    tree = ast.parse((PACKAGE / "llm" / "litellm_adapter.py").read_text(encoding="utf-8"))
    at_top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not any("litellm" in ast.dump(node) for node in at_top)


def test_every_module_has_a_place() -> None:
    """No module is forgotten in the table of layers, and the table names none that is gone."""
    assert {module_room(p) for p in modules()} == set(LAYERS)
