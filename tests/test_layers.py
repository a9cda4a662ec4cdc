"""Allowed imports: the map of ARCHITECTURE.md as a table, and a single place for litellm."""

from __future__ import annotations

import ast
import builtins
import json
import re
from functools import cache
from pathlib import Path

import budgets
import pytest

from agentest.plugin import PLUGINS

PACKAGE = Path(__file__).parent.parent / "agentest"

FLOORS: list[dict[str, str]] = [
    {
        "support": "",
        "version": "",
    },
    {
        "domain": "support",
        "plugin": "support",
    },
    {
        "adk_plugin": "plugin",
        "config": "domain plugin support",
        "core": "plugin",
        "mocks": "domain plugin support",
        "store": "domain plugin support version",
    },
    {
        "models": "config domain plugin support version",
        "report": "domain plugin store support",
        "scenarios": "config domain mocks plugin support",
    },
    {
        "agents": "config domain mocks plugin support",
        "trajectory": "domain scenarios support",
    },
    {
        "conversation": "agents domain mocks models scenarios support",
        "judging": "config domain models scenarios support trajectory",
        "plugins/protocols": "agents config domain mocks plugin support",
    },
    {
        "plugins/frameworks": "agents config domain models plugin plugins/protocols support",
        "runner": ("agents config conversation domain judging mocks models plugin scenarios support version"),
    },
    {
        "history": "domain report runner store support",
        "testing": "config domain models report runner scenarios support",
        "workers": "agents domain models runner store support",
    },
    {
        "cli": "config domain history judging models plugin report runner scenarios store support version",
        "plugins/ray": "models plugin runner support version workers",
    },
    {
        "__main__": "cli",
        "plugins/adk": (
            "cli config conversation domain judging mocks models plugin plugins/frameworks report runner "
            "scenarios store support"
        ),
        "plugins/explore": (
            "agents cli config conversation domain judging mocks models plugin runner scenarios store support"
        ),
        "plugins/servers": (
            "agents cli config conversation domain mocks models plugin plugins/protocols runner scenarios "
            "support version workers"
        ),
        "pytest_plugin": "cli config domain plugin report runner scenarios store support testing",
    },
    {
        "plugins/page": (
            "agents cli config conversation domain history judging mocks models plugin plugins/adk report "
            "runner scenarios store support version"
        ),
    },
    {
        "plugins/authoring": (
            "agents cli config conversation domain history mocks models plugin plugins/adk plugins/explore "
            "plugins/page plugins/protocols plugins/servers report runner scenarios store support"
        ),
    },
]
"""From the ground up: room → the rooms it may import, none of them on its own floor or above."""

ALLOWED = {room: set(others.split()) for floor in FLOORS for room, others in floor.items()}
LEVEL = {room: level for level, floor in enumerate(FLOORS) for room in floor}
FACES = {
    "__init__.py",
    "domain/results/__init__.py",
    "adk.py",
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
    name = ".".join(("agentest", *path.relative_to(PACKAGE).with_suffix("").parts))
    return room(name.removesuffix(".__init__")) if name != "agentest.__init__" else "__init__"


def room(module: str) -> str:
    """Return the room of a module: the first part of its name, or the plug-in."""
    _, first, *rest = module.split(".")
    return f"plugins/{rest[0]}" if first == "plugins" and rest else first


@cache
def imports(path: Path) -> set[str]:
    """The names of all imported modules, including those in functions and under TYPE_CHECKING."""
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
    mine = room_of(path)
    for name in ours(path):
        if shown(path) in FACES:  # names of the core that are loaded when they are used
            assert not room(name).startswith("plugins/"), f"{shown(path)} imports {name}"
            continue
        assert name != "agentest", f"{shown(path)} imports the package's face; import where it is defined"
        other = room(name)
        assert other == mine or other in ALLOWED[mine], f"{shown(path)} imports {name}"


def test_the_core_names_no_plugin() -> None:
    """Everything outside of agentest/plugins works without that folder, because it uses the registry."""
    named = {
        (shown(path), module)
        for path in modules()
        if not room_of(path).startswith("plugins") and path.name != "plugin.py"
        for module in re.findall(r"agentest[./]plugins[./][\w./]+\w", path.read_text(encoding="utf-8"))
    }
    assert named == set()


def test_the_core_advises_no_command_that_it_lacks() -> None:
    """Messages of the core name plug-in commands only in `if_command`, which checks for them."""
    commands = [name for name, each in PLUGINS.all("command").items() if each.plugin.name != "core"]
    names_one = re.compile(rf"(?<!from )agentest ({'|'.join(commands)})(?![\w-])")
    named = set()
    for path in modules():
        nodes = [] if room_of(path).startswith("plugins") else [*ast.walk(ast.parse(path.read_text("utf-8")))]
        asked = [inside for node in nodes if _asks_for_command(node) for inside in ast.walk(node)]
        names = {node.id for node in asked if isinstance(node, ast.Name)}
        constants = [each for each in nodes if isinstance(each, ast.Assign) and _names_of(each) & names]
        allowed = {id(each) for part in (*asked, *constants) for each in ast.walk(part)}
        allowed |= {id(each.value) for each in nodes if isinstance(each, ast.Expr)}  # docstrings
        for node in nodes:
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in allowed and names_one.search(node.value):
                named.add(f"{shown(path)}:{node.lineno}")
    assert named == set()


def _asks_for_command(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "if_command"


def _names_of(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def test_the_table_goes_downward() -> None:
    """No room may import a room of its own floor or above, so there are no cycles of rooms."""
    for room, others in ALLOWED.items():
        for other in others:
            assert LEVEL[other] < LEVEL[room], f"{room} may import {other}"


def test_a_run_knows_no_reporter() -> None:
    """Reporters and files are passed to a run: `runner` reaches neither `report` nor `store`."""
    reached, rest = set(), {"runner"}
    while rest:
        room = rest.pop()
        reached.add(room)
        rest |= ALLOWED[room] - reached
    assert not reached & {"report", "store"}


def test_the_table_allows_no_more_than_is_used() -> None:
    """The table matches the code, without unused entries."""
    used: dict[str, set[str]] = {room: set() for room in ALLOWED}
    for path in modules():
        if room_of(path) in used:
            used[room_of(path)] |= {room(name) for name in ours(path) if name != "agentest"}
    unused = {room: others - used[room] for room, others in ALLOWED.items() if others - used[room]}
    assert not unused


def test_there_are_no_cycles() -> None:
    """No module imports itself through others."""
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
    assert importers == ["plugins/frameworks/litellm_models.py"]
    tree = ast.parse((PACKAGE / importers[0]).read_text(encoding="utf-8"))
    at_top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not any("litellm" in ast.dump(node) for node in at_top)


def test_dataclasses_are_compiled_late() -> None:
    """`dataclass` is ours, which costs nothing until a class is used."""
    importers = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
                importers += [shown(path) for name in node.names if name.name == "dataclass"]
    assert set(importers) <= {"support/lazy_dataclasses.py"}


def test_every_module_has_a_place() -> None:
    """The table has every room, and no room that is gone."""
    assert {room_of(p) for p in modules()} - {"__init__", "adk"} == set(ALLOWED)


SHORTEST, LONGEST = 40, 600
SHORT = {
    "__main__.py",
    "adk.py",  # a face
    "version.py",
    "adk_plugin.py",  # prints a file
    "mocks/function_tools.py",  # prints a file
    "report/json.py",  # a reporter of its own
    "plugins/protocols/ai_sdk/settings.py",
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


def measured() -> dict[str, dict[str, int]]:
    """What each budget limits, and how much of it is where."""
    rooms = {room_of(path) for path in modules() if len(path.relative_to(PACKAGE).parts) > 1}
    floors = {", ".join(floor): 1 for floor in FLOORS}
    return {**budgets.measure(PACKAGE), "rooms": dict.fromkeys(rooms, 1), "floors": floors}


def numbers() -> dict[str, int]:
    return {name: sum(parts.values()) for name, parts in measured().items()}


def test_the_package_is_within_its_budgets() -> None:
    """Whoever adds something makes room for it first."""
    limits = json.loads((budgets.ROOT / budgets.FILE).read_text("utf-8"))
    assert set(limits) - {budgets.UNTESTED} == set(measured())
    over = {
        f"{name}: {sum(parts.values()):,}, at most {limits[name]:,}": parts
        for name, parts in measured().items()
        if sum(parts.values()) > limits[name]
    }
    assert over == {}


def test_no_commit_raises_a_budget() -> None:
    """Lower the numbers by `python tests/support/budgets.py` in a commit that makes the package smaller."""
    try:
        assert budgets.find_raises(budgets.ROOT) == []
    except budgets.NoHistory as reason:
        pytest.skip(str(reason))


def test_docstrings_name_errors_that_exist() -> None:
    """Renaming a class must reach the docstrings that say it is raised."""
    trees = {shown(path): ast.parse(path.read_text(encoding="utf-8")) for path in modules()}
    nodes = [(name, node) for name, tree in trees.items() for node in ast.walk(tree)]
    known = set(dir(builtins)) | {node.name for _, node in nodes if isinstance(node, ast.ClassDef)}
    for _, node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(each.asname or each.name).rpartition(".")[2] for each in node.names}
    raised = re.compile(r"\b[Rr]aises? (?:an? )?((?:[A-Z][\w.]+(?:, (?:and |or )?| and | or )?)+)")
    unknown = {
        f"{name}: {error}"
        for name, node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for errors in raised.findall(ast.get_docstring(node) or "")
        for error in re.findall(r"[A-Z][\w.]+\w", errors)
        if error.rpartition(".")[2] not in known
    }
    assert unknown == set()


def test_modules_are_chapters() -> None:
    """Neither paragraphs nor books, and named by a noun of the domain."""
    lengths = {
        shown(p): p.read_text(encoding="utf-8").count("\n") for p in modules() if p.name != "__init__.py"
    }
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}
    assert {
        name: n
        for name, n in lengths.items()
        if n < SHORTEST and name not in SHORT and not name.endswith("/plugin.py")
    } == {}
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
