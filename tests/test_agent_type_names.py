"""The name of a plug-in's agent type appears only in its own folder and its `plugin.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentest
from agentest.plugin import PLUGINS

PACKAGE = Path(agentest.__file__).parent
TYPES = PLUGINS.all("agent type")
HOMES = {
    name: PACKAGE.joinpath(*kind.path.partition(":")[0].split(".")[1:-1])
    for name, kind in TYPES.items()
    if kind.plugin.name != "core"
}
"""Type of a plug-in → the folder of its client."""
WORDS = {"adk", "command", "langgraph", "realtime", "responses", "websocket"}
"""Names that are other things, too: google-adk and LangGraph the frameworks, and keys."""
API_FORMS = PACKAGE / "plugins/servers/model_gateway"
"""The APIs of models, which have names of their own."""


def strings(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def compared_texts(tree: ast.AST) -> Iterator[str]:
    """Yield texts that code compares with a type, or lists next to another type."""
    for node in ast.walk(tree):
        compares = isinstance(node, ast.Compare) and re.search("type|kind", ast.unparse(node))
        if compares or isinstance(node, ast.MatchValue):
            yield from strings(node)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            entries = node.keys if isinstance(node, ast.Dict) else node.elts
            listed = {str(each.value) for each in entries if isinstance(each, ast.Constant)}
            yield from listed if len(listed & TYPES.keys()) > 1 else ()


@pytest.mark.parametrize("name", HOMES)
def test_a_type_is_named_only_in_its_folder(name: str) -> None:
    """Other files use the registry, but for the `plugin.py` that hands it in.

    A file names a type if it says `type: NAME` in a text or a comment, sets `type` to it, compares a type
    with it, or lists it with others. A name that means nothing else may not stand there at all, except as a
    part of a module's path: those are the imports, about which `test_no_protocol_needs_another` is.
    """
    usage = rf"""\btype\b["']?\s*[:=]\s*[`"']?{name}\b|agents? of type `?{name}\b"""
    anywhere = rf"(?<![\w.]){name}(?![\w.])"
    form = re.compile(usage if name in WORDS else f"{usage}|{anywhere}")
    naming = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if HOMES[name] in path.parents or API_FORMS in path.parents or path.name == "plugin.py":
            continue
        text = path.read_text(encoding="utf-8")
        if form.search(text) or (name in text and name in set(compared_texts(ast.parse(text)))):
            naming.append(path.relative_to(PACKAGE).as_posix())
    assert naming == []


def test_no_protocol_needs_another() -> None:
    """A protocol's folder can be deleted: no module outside imports from it."""
    folders = {f"agentest.plugins.protocols.{home.name}": home for home in HOMES.values()}
    importers = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) and node.module else ""
            folder = ".".join(module.split(".")[:4])
            if folder in folders and folders[folder] not in path.parents:
                importers.append(path.relative_to(PACKAGE).as_posix())
    # google-adk's runner, in this process or behind its server, has the same events and sessions.
    assert set(importers) == {"plugins/frameworks/google_adk.py"}
