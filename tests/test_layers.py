"""Who may import whom: the map of ARCHITECTURE.md as a table, and litellm in one place."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "agentest"

FLOORS: list[dict[str, str]] = [
    {
        "adk_plugin": "",
        "support": "",
        "version": "",
    },
    {
        "domain": "support",
    },
    {
        "config": "domain support",
        "mocks": "domain support",
        "store": "domain support version",
    },
    {
        "mock_servers": "config domain support version",
        "models": "config domain support version",
        "scenarios": "config domain mocks support",
    },
    {
        "agents": "config domain mock_servers mocks support",
        "report": "domain scenarios store support",
        "tracing": "config domain mock_servers support",
        "trajectory": "domain scenarios support",
    },
    {
        "conversation": "agents domain mock_servers mocks models scenarios support",
        "judging": "config domain models scenarios support trajectory",
    },
    {
        "runner": "adk_plugin agents config conversation domain judging mock_servers mocks models scenarios "
        "support tracing version",
    },
    {
        "adk": "config conversation domain judging mocks models report runner scenarios store support",
        "history": "domain report runner store support",
        "testing": "config domain models report runner scenarios support",
        "workers": "agents domain mock_servers models runner store support version",
    },
    {
        "authoring": "adk agents config conversation domain mocks models report runner scenarios store "
        "support",
        "calibration": "adk config domain judging models runner scenarios store support",
        "evalset": "adk",
        "explore": "config domain judging mocks models runner scenarios store support",
    },
    {
        "web": "adk authoring calibration domain history mocks report runner store support",
    },
    {
        "cli": "adk authoring calibration config conversation domain explore history judging mock_servers "
        "models report runner scenarios store support version web workers",
    },
    {
        "__main__": "cli",
        "pytest_plugin": "adk cli config domain report runner scenarios store support testing",
    },
]
"""From the ground up: room → the rooms it may import, none of them on its own floor or above."""

ALLOWED = {room: set(others.split()) for floor in FLOORS for room, others in floor.items()}
LEVEL = {room: level for level, floor in enumerate(FLOORS) for room in floor}
FACES = {
    "__init__.py",
    "domain/results/__init__.py",
    "adk/__init__.py",
    "testing/__init__.py",
    "config/__init__.py",
    "mocks/__init__.py",
}
"""Public doors: they only hand names on."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
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


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_imports_go_downward(path: Path) -> None:
    """A module imports from its own room and from the rooms below that the table allows it."""
    if shown(path) in ("__init__.py", "mocks/__init__.py"):
        return  # faces for users: names that are loaded when they are used
    mine = room_of(path)
    for name in ours(path):
        assert name != "agentest", f"{shown(path)} imports the package's face; import where it is defined"
        other = name.split(".")[1]
        assert other == mine or other in ALLOWED[mine], f"{shown(path)} imports {name}"


def test_the_table_goes_downward() -> None:
    """No room may import a room of its own floor or above it, so there is no circle of rooms."""
    for room, others in ALLOWED.items():
        for other in others:
            assert LEVEL[other] < LEVEL[room], f"{room} may import {other}"


def test_a_run_knows_no_reporter() -> None:
    """Reporters and files are handed to a run: no room that `runner` reaches is `report` or `store`."""
    reached, rest = set(), {"runner"}
    while rest:
        room = rest.pop()
        reached.add(room)
        rest |= ALLOWED[room] - reached
    assert not reached & {"report", "store"}


def test_the_table_allows_no_more_than_is_used() -> None:
    """What nobody imports is not allowed either: the table is what the code is."""
    used: dict[str, set[str]] = {room: set() for room in ALLOWED}
    for path in modules():
        if room_of(path) in used:
            used[room_of(path)] |= {name.split(".")[1] for name in ours(path) if name != "agentest"}
    unused = {room: others - used[room] for room, others in ALLOWED.items() if others - used[room]}
    assert not unused


def test_there_are_no_cycles() -> None:
    """No module imports itself by way of others."""
    names = {
        ".".join(("agentest", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): p
        for p in modules()
    }
    faces = {name for name, path in names.items() if shown(path) in FACES}
    graph = {
        name: set() if name in faces else {i for i in ours(path) if i in names and i not in faces}
        for name, path in names.items()
    }
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
    importers = [shown(p) for p in modules() if any(i.split(".")[0] == "litellm" for i in imports(p))]
    assert importers == ["models/litellm_adapter.py"]
    tree = ast.parse((PACKAGE / importers[0]).read_text(encoding="utf-8"))
    at_top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not any("litellm" in ast.dump(node) for node in at_top)


def test_dataclasses_are_compiled_late() -> None:
    """`dataclass` is ours, which costs nothing until a class is used. adk_plugin is one file for others."""
    importers = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
                importers += [shown(path) for name in node.names if name.name == "dataclass"]
    assert set(importers) <= {"adk_plugin.py", "support/lazy_dataclasses.py"}


def test_every_module_has_a_place() -> None:
    """No room is forgotten in the table, and the table names none that is gone."""
    assert {room_of(p) for p in modules()} - {"__init__"} == set(ALLOWED)


MOST_ROOMS, MOST_FLOORS, MOST_MODULES = 25, 12, 506
SHORTEST, LONGEST = 40, 600
SHORT = {
    "__main__.py",
    "version.py",
    "adk_plugin.py",  # `python -m agentest.adk_plugin` prints one file
    "evalset.py",  # the former name of a package
    "report/json.py",  # a reporter of its own
}
"""Modules that may be shorter than a chapter."""
RETIRED = frozenset(
    [
        "about",
        "afterwards",
        "aloud",
        "aside",
        "asked",
        "beside",
        "boxes",
        "by_hand",
        "crew",
        "deed",
        "desks",
        "door",
        "elsewhere",
        "ending",
        "frame",
        "gate",
        "going_on",
        "guests",
        "handed",
        "held",
        "holding",
        "hosts",
        "keeping",
        "kept",
        "known",
        "late_file",
        "life",
        "line",
        "lines",
        "looking",
        "members",
        "mishaps",
        "one_call",
        "own",
        "pace",
        "place",
        "printed",
        "pulse",
        "reach",
        "remark",
        "sayings",
        "seeing",
        "shares",
        "shown",
        "sight",
        "sightings",
        "spreading",
        "standing",
        "talking",
        "told",
        "unanswered",
        "under_way",
        "unheard",
        "whose_code",
        "wish",
        "wishes",
        "words",
    ]
)
"""Names that tell a stranger nothing. No module has one, and no class of ours alone."""


def test_there_are_few_rooms_and_floors() -> None:
    """Twenty-four folders are what a newcomer can keep in mind."""
    folders = {room_of(path) for path in modules() if len(path.relative_to(PACKAGE).parts) > 1}
    assert len(folders) <= MOST_ROOMS
    assert len(FLOORS) <= MOST_FLOORS
    assert len(modules()) <= MOST_MODULES


def test_modules_are_chapters() -> None:
    """Neither paragraphs nor books, and named by a noun of the domain."""
    lengths = {
        shown(p): p.read_text(encoding="utf-8").count("\n") for p in modules() if p.name != "__init__.py"
    }
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}
    assert {name: n for name, n in lengths.items() if n < SHORTEST and name not in SHORT} == {}
    assert {name for name in lengths if Path(name).stem in RETIRED} == set()


def test_each_class_name_has_one_meaning() -> None:
    """Two classes of one name make a reader open both files."""
    places: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(shown(path))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
    retired = {"".join(word.capitalize() for word in name.split("_")) for name in RETIRED}
    assert {name for name in places if name.lstrip("_") in retired} == {"Ending", "Remark"}  # public
