"""Names that users need in annotations can be imported from their documented modules."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import agentest
from agentest.plugin import PluginRegistry, core_plugin

PUBLIC = {
    door: {
        name: value
        for name in getattr(import_module(door), "__all__", None) or vars(import_module(door))
        if not name.startswith("_") and not inspect.ismodule(value := getattr(import_module(door), name))
    }
    for door in ("agentest", "agentest.testing", "agentest.adk")
}
EXPORTED = {id(value) for names in PUBLIC.values() for value in names.values()}
WRITTEN_BY_AGENTEST = {"MetricModel.__init__", "BoundFunction.__init__"}
"""What Agentest makes and users only receive."""
USED_DIRECTLY = {
    "MockResolver": {"resolve", "resolve_json", "calls", "calls_of", "state"},
    "SimulatedUser": {"next_message"},
    "TrajectoryMatcher": {"of"},
    "ConsoleReporter": {"on_event"},
    "GitHubActionsReporter": {"on_event"},
    "Options": {"__init__"},
}
"""Parts of a run that have more methods for Agentest than for users: those that docs/python-api.md shows."""


def is_for_users(function: Callable[..., Any]) -> bool:
    owner, _, name = function.__qualname__.rpartition(".")
    return function.__qualname__ not in WRITTEN_BY_AGENTEST and name in USED_DIRECTLY.get(owner, {name})


def functions(value: Any) -> Iterator[Callable[..., Any]]:
    """A function, or the methods defined in a class."""
    if inspect.isfunction(value):
        yield value
    elif inspect.isclass(value) and value.__module__.startswith("agentest"):
        for name, member in list(vars(value).items()):
            generated = name == "__init__" and dataclasses.is_dataclass(value)
            function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if inspect.isfunction(function) and not generated and (name == "__init__" or name[0] != "_"):
                yield function


def classes(hint: Any) -> Iterator[type]:
    """Agentest's own classes in a type."""
    if isinstance(hint, type) and hint.__module__.startswith("agentest"):
        yield hint
    for part in typing.get_args(hint):
        for each in part if isinstance(part, list) else [part]:
            yield from classes(each)


@pytest.mark.parametrize("door", PUBLIC)
def test_types_of_public_signatures_are_exported(door: str) -> None:
    """Every class of ours in the signature of a public function or method is itself public."""
    missing = {
        f"{function.__qualname__}: {cls.__module__}.{cls.__name__}"
        for value in PUBLIC[door].values()
        for function in functions(value)
        if is_for_users(function)
        # A name that a signature imports for type checkers alone is looked up among the exported ones.
        for hint in typing.get_type_hints(function, localns=dict(PUBLIC["agentest"])).values()
        for cls in classes(hint)
        if id(cls) not in EXPORTED
    }
    assert not missing


def test_a_name_means_one_thing() -> None:
    """A name exported by several public modules is the same object."""
    meanings: dict[str, set[int]] = {}
    for names in PUBLIC.values():
        for name, value in names.items():
            meanings.setdefault(name, set()).add(id(value))
    assert {name for name, ids in meanings.items() if len(ids) > 1} <= {"annotations"}


NAMED_IN_CODE = [
    "ConversationInput",
    "ConversationResult",
    "ExpectedCall",
    "MetricModel",
    "MockContext",
    "RunResult",
    "ScenarioResult",
    "ToolCall",
    "Turn",
    "TurnContext",
    "ScoreInput",
    "Verdict",
]


@pytest.mark.parametrize("name", NAMED_IN_CODE)
def test_types_that_handlers_metrics_and_tests_name(name: str) -> None:
    """Types that mocks, metrics, handlers and tests receive are public under their own name."""
    assert PUBLIC["agentest"][name].__name__ == name


FACES = {"agentest": "__init__.pyi", "agentest.adk": "adk.pyi", "agentest.mocks": "mocks/__init__.pyi"}


@pytest.mark.parametrize("face", FACES)
def test_type_checkers_see_the_public_names(face: str) -> None:
    """The stub of a module has the names that exist at run time."""
    path = Path(agentest.__file__).parent / FACES[face]
    imports = ast.parse(path.read_text(encoding="utf-8")).body[1:]
    stub = {}
    for statement in imports:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            assert alias.asname == alias.name
            stub[alias.name] = f"{statement.module}.{alias.name}"
    module = import_module(face)
    assert {"mocks", *stub} == {"mocks", *module.__all__}
    for name, place in stub.items():
        assert getattr(module, name) is pkgutil.resolve_name(place)


@pytest.mark.parametrize(("face", "plugin"), [("agentest", "explore"), ("agentest.mocks", "frameworks")])
def test_a_public_name_of_a_missing_plugin(face: str, plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names work; this one raises AttributeError with its plug-in."""
    monkeypatch.setattr("agentest.plugin.PLUGINS", PluginRegistry([core_plugin]))
    module = import_module(face)
    with pytest.raises(AttributeError, match=f"has no attribute 'wrap': the plug-in '{plugin}' has more"):
        _ = module.wrap
    assert agentest.scenario


def test_a_name_of_another_tool_says_what_to_use() -> None:
    with pytest.raises(ImportError, match="write `knowledge` as texts"):
        from agentest import KnowledgeItem  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match="run scenarios with `Runner`"):
        from agentest import InMemoryRunner  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match=r"define_config\(agent="):
        from agentest import AgentBuilder  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"give the agent's URL, or the agent itself, to AgentEvaluator"):
        from agentest.adk import InMemoryRunner  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"has no attribute 'EvalSet': from agentest\.adk import EvalSet"):
        from agentest import EvalSet  # type: ignore[attr-defined]  # noqa: F401


def test_a_name_that_nothing_has() -> None:
    for face in FACES:
        with pytest.raises(AttributeError, match=f"^module '{face}' has no attribute 'nothing'$"):
            import_module(face).nothing  # noqa: B018 - it raises
