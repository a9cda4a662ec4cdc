"""Finding and importing scenario files: selection, order, and broken files."""

from __future__ import annotations

import glob
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.config.config import Config
from agentest.config.file import NAMES
from agentest.scenarios.discovery import DiscoveredScenarios, discover, is_scenario_file, search
from agentest.support.files import shown_path
from agentest.support.importing import Imports, forget_modules, import_object
from agentest.support.redaction import Redactor

INCLUDE = ["**/*.sim.py"]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Restore what importing user files changed in the process after each test."""
    modules, path = dict(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)  # what was forgotten, such as modules of other tests


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def scenarios(*names: str) -> str:
    return "from agentest import scenario\n" + "".join(f"scenario({name!r}, goal='g')\n" for name in names)


def found_in(root: Path, files: dict[str, str]) -> DiscoveredScenarios:
    write(root, files)
    return discover(root, INCLUDE, [])


def names(found: DiscoveredScenarios) -> list[str]:
    """The scenarios that can run."""
    return [scenario.name for scenario in found.scenarios if not scenario.refused]


# Patterns


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of all kinds, some levels deep."""
    root = tmp_path_factory.mktemp("tree")
    for folder in ("", "a", "a/b", "a/b/a", "b", ".h", "a/.h", "ab"):
        for name in ("a.py", "b.py", "ab.py", ".h.py", "a.sim.py", "b.txt", "[a].py"):
            write(root, {f"{folder}/{name}".lstrip("/"): ""})
    return root


SEGMENTS = """
** * a b ? ab *.py ?.py a* *b a** **.py *.sim.py [ab].py [!a].py [a-b]* []a].py [z-a].py [ [[]a].py .h .* a.py
b.txt *h*
"""
segments = st.sampled_from(SEGMENTS.split())
patterns = st.lists(segments, min_size=1, max_size=4).map("/".join)


@given(patterns)
def test_include_patterns_match_like_glob(tree: Path, pattern: str) -> None:
    """`*`, `?`, `[…]` and `**` match the Python files that Python's own glob matches, hidden files too."""
    try:
        expected = glob.glob(pattern, root_dir=tree, recursive=True, include_hidden=True)  # noqa: PTH207
    except re.error:  # a glob's own bug with some odd sets; here it is enough that nothing is raised
        expected = None
    found = [path.relative_to(tree).as_posix() for path in search(tree, [pattern], []).files]
    if expected is not None:
        assert sorted(found) == sorted({e for e in expected if e.endswith(".py") and (tree / e).is_file()})
    assert all(is_scenario_file(tree / path, tree, [pattern], []) for path in found)


@given(st.lists(patterns, max_size=3), st.lists(patterns, max_size=3))
def test_exclude_patterns_remove_matches(tree: Path, include: list[str], exclude: list[str]) -> None:
    """The result is every file that matches `include`, minus every file that matches `exclude`."""
    wanted = {path for pattern in include for path in search(tree, [pattern], []).files}
    unwanted = {path for pattern in exclude for path in search(tree, [pattern], []).files}
    assert set(search(tree, include, exclude).files) == wanted - unwanted
    everything = search(tree, ["**"], []).files
    assert {p for p in everything if is_scenario_file(p, tree, include, exclude)} == wanted - unwanted


@pytest.mark.parametrize(
    ("include", "exclude", "found"),
    [
        (["**/*.sim.py"], [], {"x.sim.py", "a/y.sim.py", "venv/z.sim.py", "a/venv/w.sim.py"}),
        (["*.sim.py"], [], {"x.sim.py"}),
        (["./a/**/*.sim.py"], [], {"a/y.sim.py", "a/venv/w.sim.py"}),
        (["a/**"], [], {"a/y.sim.py", "a/helper.py", "a/venv/w.sim.py"}),
        (["**/*.sim.py"], ["venv/**"], {"x.sim.py", "a/y.sim.py", "a/venv/w.sim.py"}),
        (["**/*.sim.py"], ["**/venv/**"], {"x.sim.py", "a/y.sim.py"}),
        (["**/*.sim.py"], ["./venv/**", "a/"], {"x.sim.py", "a/y.sim.py", "a/venv/w.sim.py"}),
        (["**/*.sim.py"], ["**"], set()),
        ([], [], set()),
        (["x.sim.py", "x.sim.py", "**/x*"], [], {"x.sim.py"}),
        (["../**"], [], set()),
    ],
)
def test_patterns_are_relative_to_the_working_directory(
    tmp_path: Path, include: list[str], exclude: list[str], found: set[str]
) -> None:
    """Patterns are relative to the working directory; each file is found once."""
    files = ["x.sim.py", "a/y.sim.py", "a/helper.py", "a/notes.md", "venv/z.sim.py", "a/venv/w.sim.py"]
    write(tmp_path, dict.fromkeys(files, ""))
    paths = [path.relative_to(tmp_path).as_posix() for path in search(tmp_path, include, exclude).files]
    assert sorted(paths) == sorted(found)


def test_excluded_folders_are_not_entered(tmp_path: Path) -> None:
    """A folder that is excluded as a whole is not read, however large it is."""
    write(tmp_path, {"node_modules/a/b.sim.py": "", "x.sim.py": ""})
    entered: list[str] = []

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.scandir" and watching:
            entered.append(Path(str(arguments[0])).name)

    watching = True
    sys.addaudithook(watch)
    config = Config.model_validate({"agent": {"endpoint": "http://h"}})
    assert len(list(search(tmp_path, config.include, config.exclude).files)) == 1
    watching = False
    assert "node_modules" not in entered
    assert entered


def test_links_that_mark_edited_files_are_not_found(tmp_path: Path) -> None:
    """Emacs marks a file with unsaved changes by a link of the same name after `.#`, which leads nowhere."""
    (tmp_path / "a.sim.py").touch()
    (tmp_path / ".#a.sim.py").symlink_to("user@host.1")
    assert [path.name for path in search(tmp_path, ["**/*.sim.py"], []).files] == ["a.sim.py"]


def test_files_and_scenarios_keep_their_order(tmp_path: Path) -> None:
    """Files are sorted by path; scenarios keep the order of their file."""
    files = {"b.sim.py": scenarios("5"), "a/z.sim.py": scenarios("2", "1"), "a/b/c.sim.py": scenarios("0")}
    found = found_in(tmp_path, {**files, "a-b/c.sim.py": scenarios("4", "3")})
    assert names(found) == ["0", "2", "1", "4", "3", "5"]


def test_the_file_filter_matches_part_of_a_path(tmp_path: Path) -> None:
    """Only files whose path contains one of the texts are imported, ignoring case."""
    write(tmp_path, {"Booking/a.sim.py": scenarios("a"), "b.sim.py": scenarios("b"), "c.sim.py": "1/0"})
    assert names(discover(tmp_path, INCLUDE, [], ["booking"])) == ["a"]
    assert names(discover(tmp_path, INCLUDE, [], ["KING/A", "b.sim"])) == ["a", "b"]
    found = discover(tmp_path, INCLUDE, [], [str(tmp_path)])
    assert (found.scenarios, found.broken, found.is_partial) == ((), (), True)


def test_a_folder_without_scenario_files_is_empty(tmp_path: Path) -> None:
    """A folder without scenario files yields no scenarios."""
    assert names(discover(tmp_path, INCLUDE, [])) == []


# Importing


def test_files_of_the_same_name_are_separate_modules(tmp_path: Path) -> None:
    """Neither takes a module name that other code may import."""
    text = "from agentest import scenario\nscenario(__name__, goal='g')\n"
    found = found_in(tmp_path, {"a/x.sim.py": text, "b/x.sim.py": text})
    first, second = names(found)
    assert first != second
    assert all(name.isidentifier() and "x_sim" in name for name in (first, second))
    assert "x" not in sys.modules


def test_scenario_modules_are_in_sys_modules(tmp_path: Path) -> None:
    """Dataclasses and pickle look up their module by name, during the import and later."""
    text = (
        "from __future__ import annotations\nimport dataclasses, sys\nfrom agentest import scenario\n"
        "@dataclasses.dataclass\nclass A:\n    x: int\n"
        "assert sys.modules[__name__].A is A\nscenario('s', goal='g', tools={'t': A(1)})\n"
    )
    found = found_in(tmp_path, {"a.sim.py": text})
    assert found.broken == ()
    assert type(found.scenarios[0].tools["t"]).__module__ in sys.modules


HELPER = "def name():\n    return {!r}\n"
USES = "from agentest import scenario\nimport helpers\nscenario(helpers.name(), goal='g')\n"


def test_each_folder_has_its_own_helpers(tmp_path: Path) -> None:
    """A scenario file imports helpers from its folder; two folders may have helpers of the same name."""
    found = found_in(
        tmp_path,
        {
            "a/helpers.py": HELPER.format("of a"),
            "b/helpers.py": HELPER.format("of b"),
            "a/x.sim.py": USES,
            "b/x.sim.py": USES,
            "b/y.sim.py": USES.replace(", goal", " + ' again', goal"),
        },
    )
    assert names(found) == ["of a", "of b", "of b again"]
    helpers = {tmp_path / "a/helpers.py", tmp_path / "b/helpers.py"}
    assert helpers < found.files


@pytest.mark.parametrize("initial", [{}, {"a/shared/__init__.py": "", "b/shared/__init__.py": ""}])
def test_each_folder_has_its_own_helper_packages(tmp_path: Path, initial: dict[str, str]) -> None:
    """This is also true of packages, with or without an `__init__.py`."""
    uses = "from agentest import scenario\nfrom shared import parts\nscenario(parts.name(), goal='g')\n"
    found = found_in(
        tmp_path,
        {
            **initial,
            "a/shared/parts.py": HELPER.format("of a"),
            "b/shared/parts.py": HELPER.format("of b"),
            "a/x.sim.py": uses,
            "b/x.sim.py": uses,
        },
    )
    assert names(found) == ["of a", "of b"]


def test_helpers_keep_their_state(tmp_path: Path) -> None:
    """Two files of one folder share one helper module: it is imported once."""
    files = {"helpers.py": "count = []\ndef name():\n    count.append(1)\n    return str(len(count))\n"}
    assert names(found_in(tmp_path, {**files, "a.sim.py": USES, "b.sim.py": USES})) == ["1", "2"]


def test_a_mock_can_import_a_helper_later(tmp_path: Path) -> None:
    """A mock may import a helper when it is called, long after its file was imported."""
    text = (
        "from agentest import scenario\ndef tool():\n    import late_helper\n    return late_helper.VALUE\n"
        "scenario('s', goal='g', tools={'t': tool})\n"
    )
    found = found_in(tmp_path, {"a/x.sim.py": text, "a/late_helper.py": "VALUE = 7\n"})
    assert found.scenarios[0].tools["t"]({}, None) == 7


def test_a_helper_does_not_replace_an_imported_module(tmp_path: Path) -> None:
    """Code that already imported a module keeps it if a helper has the same name."""
    import json

    found_in(tmp_path, {"a.sim.py": scenarios("s"), "json.py": "broken = True\n"})
    assert sys.modules["json"] is json


def test_forgotten_files_are_imported_again(tmp_path: Path) -> None:
    """After a discovery is forgotten, changed helpers are read again by every file that uses them."""
    files = {"a/helpers.py": HELPER.format("old"), "a/x.sim.py": USES}
    other = {"b/helpers.py": HELPER.format("old b"), "b/x.sim.py": USES}
    found = found_in(tmp_path, {**files, **other})
    forget_modules(found.files)
    changed = found_in(
        tmp_path, {"a/helpers.py": HELPER.format("newer"), "b/helpers.py": HELPER.format("newer b")}
    )
    assert names(changed) == ["newer", "newer b"]


def test_helpers_of_the_configuration_are_tracked(tmp_path: Path) -> None:
    """A helper that the configuration imported before is one of the scenario's source files."""
    write(tmp_path, {"helpers.py": HELPER.format("s"), "a.sim.py": USES})
    import_object("helpers:name", tmp_path)
    assert tmp_path / "helpers.py" in discover(tmp_path, INCLUDE, []).files


def calls_of(action: Callable[[], object]) -> int:
    """Count the functions called during the block, including Python's own."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("folder", ["all", "{n}", "all/{n}", "{n}/helped"])
@pytest.mark.slow
def test_discovery_time_is_linear(tmp_path: Path, folder: str) -> None:
    """Twice as many scenario files take twice as long, in one folder or many, with or without helpers."""

    def made(count: int) -> Path:
        root = tmp_path / str(count)
        for n in range(count):
            at = folder.format(n=n)
            write(root, {f"{at}/x{n}.sim.py": scenarios(f"s{n}")})
            if "helped" in folder:
                write(root, {f"{at}/x{n}.sim.py": USES, f"{at}/helpers.py": HELPER.format(f"s{n}")})
        return root

    roots = [made(20), made(50), made(100)]
    _, half, whole = (calls_of(lambda root=root: discover(root, INCLUDE, [])) for root in roots)
    assert len(discover(roots[-1], INCLUDE, []).scenarios) == 100
    assert whole < 2.2 * half


def test_helpers_survive_files_of_other_folders(tmp_path: Path) -> None:
    """Files of one folder keep their helper even if another folder's files are imported in between."""
    helpers = {"helpers.py": HELPER.format("outer"), "m/helpers.py": HELPER.format("inner")}
    uses = "from agentest import scenario\nimport helpers\nscenario({!r} + helpers.name(), goal='g')\n"
    files = {f"{path}.sim.py": uses.format(f"{path} ") for path in ("a", "m/b", "z")}
    found = found_in(tmp_path, {**helpers, **files})
    assert names(found) == ["a outer", "m/b inner", "z outer"]


def test_a_broken_file_does_not_affect_helpers(tmp_path: Path) -> None:
    """A file that removes itself or others from `sys.modules` does not break helpers of other files."""
    rude = "import helpers, sys\nfor name in list(sys.modules)[-3:]:\n    del sys.modules[name]\n1 / 0\n"
    files = {f"{folder}/helpers.py": HELPER.format(folder) for folder in "abc"}
    found = found_in(tmp_path, {**files, "a/x.sim.py": USES, "b/x.sim.py": rude, "c/x.sim.py": USES})
    assert names(found) == ["a", "c"]


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Such a file is imported, and its name is shown in a form that can be written anywhere."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    write(Path(folder), {"ok.sim.py": scenarios("ok", "ok"), "broken.sim.py": "1 / 0\n", "empty.sim.py": ""})
    found = discover(tmp_path, INCLUDE, [])
    assert names(found) == ["ok"]
    assert shown_path(found.scenarios[0].file, tmp_path) == "caf\\xe9/ok.sim.py"
    assert found.empty == ("caf\\xe9/empty.sim.py",)
    assert all("caf\\xe9" in message for _, _, message in found.problems)
    assert len(found.problems) == 2
    for path in ("caf\\xe9/ok", "caf\udce9/OK"):
        assert names(discover(tmp_path, INCLUDE, [], [path])) == ["ok"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_with_its_own_configuration_is_skipped(tmp_path: Path, name: str) -> None:
    """Such a folder belongs to another run: its files are not collected, and the folder is reported."""
    files = dict.fromkeys(["a.sim.py", "b/c/d.sim.py", "b/e.sim.py", "f/g.sim.py"], "")
    write(tmp_path, {**files, f"b/{name}": "", f"empty/{name}": "", name: ""})
    searched = search(tmp_path, INCLUDE, [], tmp_path / name)
    assert [shown_path(path, tmp_path) for path in searched.files] == ["a.sim.py", "f/g.sim.py"]
    assert searched.left_out == (tmp_path / "b",)
    assert search(tmp_path, INCLUDE, ["b/**"]).left_out == ()
    assert len(search(tmp_path, ["b/**/*.sim.py"], []).files) == 2  # asked for by name
    found = {
        path for path in files if is_scenario_file(tmp_path / path, tmp_path, INCLUDE, [], tmp_path / name)
    }
    assert found == {"a.sim.py", "f/g.sim.py"}


def test_the_folder_of_the_used_configuration_is_not_skipped(tmp_path: Path) -> None:
    """The folder of the configuration given by --config belongs to this run."""
    write(tmp_path, {"a.sim.py": "", "b/c.sim.py": "", "b/agentest.config.yaml": ""})
    searched = search(tmp_path, INCLUDE, [], tmp_path / "b/agentest.config.yaml")
    assert len(searched.files) == 2
    assert searched.left_out == ()


# Broken files


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("x = 1\n\nraise ValueError('boom')\n", 3, "ValueError: boom"),
        ("def f():\n    1 / 0\n\nf()\n", 4, "ZeroDivisionError"),
        ("x = 1\ndef f(:\n    pass\n", 2, "SyntaxError: invalid syntax"),
        ("x = 1\n  y = 2\n", 2, "IndentationError"),
        ("import sys\nsys.exit('enough')\n", 2, "SystemExit: enough"),
        ("import sys\nsys.exit()\n", 2, "SystemExit"),
        ("\nimport nowhere_to_be_found\n", 2, "nowhere_to_be_found is neither in this project"),
        ("from agentest import scenari\n", 1, "did you mean `scenario`?"),
        ("class Stop(BaseException): ...\nraise Stop('now')\n", 2, "Stop: now"),
        ("import asyncio\nraise asyncio.CancelledError\n", 2, "CancelledError"),
        ("from agentest import sequence\nsequence()\n", 2, "sequence() needs at least one value"),
        ("from agentest import scenario\nscenario('s', 'p')\n", 2, "only the name comes without a keyword: "),
        ("from agentest import scenario\nscenario('s', {}, 'p')\n", 2, "only the name has no keyword: "),
        ("from agentest import scenario\n@scenario\ndef s(): ...\n", 2, "scenario(…) is not a decorator"),
        ("from agentest import call\ncall(name='x')\n", 2, 'write call("TOOL", '),
        ("from agentest import scenario\nscenario()\n", 2, "missing 1 required positional argument: 'name'"),
        ("def f():\n    f()\nf()\n", 3, "RecursionError"),
        (
            "class E(Exception):\n    def __str__(self):\n        1 / 0\nraise E\n",
            4,
            "exception str() failed",
        ),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
    ],
)
def test_a_broken_file_is_reported_and_others_load(tmp_path: Path, text: str, line: int, said: str) -> None:
    """A file that fails is reported with its line and the user's part of the traceback."""
    found = found_in(tmp_path, {"broken.sim.py": text, "ok.sim.py": scenarios("ok")})
    [broken] = found.broken
    assert names(found) == ["ok"]
    assert (broken.file, broken.line) == (str(tmp_path / "broken.sim.py"), line)
    assert broken.message.startswith("importing the file failed\n")
    assert said in broken.message
    assert set(re.findall(r'File "([^"]+)"', broken.message)) <= {broken.file}
    assert len(broken.message.splitlines()) < 40


@pytest.mark.parametrize("content", [b"x = '\xff'\n", b"x = 1\x00\n", b"# coding: nope\n"])
def test_a_file_that_is_not_python_is_a_broken_file(tmp_path: Path, content: bytes) -> None:
    """A file that Python cannot parse is reported like any other broken file."""
    (tmp_path / "a.sim.py").write_bytes(content)
    [broken] = discover(tmp_path, INCLUDE, []).broken
    assert "importing the file failed" in broken.message


def test_a_decorator_and_utf_16_are_explained(tmp_path: Path) -> None:
    """Two mistakes whose Python errors name no cause have a hint."""
    for content, hint in [
        (b"from agentest import scenario\n@scenario('s')\ndef s(): ...\n", "is not a decorator"),
        ("x = 1\n".encode("utf-16"), "save the file as UTF-8"),
    ]:
        (tmp_path / "a.sim.py").write_bytes(content)
        [broken] = discover(tmp_path, INCLUDE, []).broken
        assert hint in broken.message


def test_an_error_in_a_helper_shows_the_users_traceback(tmp_path: Path) -> None:
    """The report shows the path through the user's files, and the line of the scenario file."""
    helper = "import json\n\ndef go():\n    json.loads('{')\n"
    found = found_in(
        tmp_path, {"a.sim.py": "import broken_helper\n\nbroken_helper.go()\n", "broken_helper.py": helper}
    )
    [broken] = found.broken
    assert broken.line == 3
    shown = re.findall(r'File "([^"]+)", line (\d+)', broken.message)
    assert shown == [(str(tmp_path / "a.sim.py"), "3"), (str(tmp_path / "broken_helper.py"), "4")]


def test_a_syntax_error_in_a_helper_shows_both_lines(tmp_path: Path) -> None:
    """The report shows the line in the helper, and the line that imports it."""
    found = found_in(tmp_path, {"a.sim.py": "\nimport bad_helper\n", "bad_helper.py": "x = 1\ndef f(:\n"})
    [broken] = found.broken
    assert broken.line == 2
    assert f'File "{tmp_path / "bad_helper.py"}", line 2' in broken.message


def test_a_broken_file_keeps_the_scenarios_before_the_error(tmp_path: Path) -> None:
    """If a file fails half-way, the scenarios that it defined until then run, and the file is reported."""
    found = found_in(tmp_path, {"a.sim.py": scenarios("first") + "1 / 0\n" + scenarios("never")})
    assert names(found) == ["first"]
    assert [(each.line, "division" in each.message) for each in found.broken] == [(3, True)]


def test_a_fixed_file_can_be_imported_again(tmp_path: Path) -> None:
    """A file that failed leaves nothing behind that prevents a second import."""
    assert names(found_in(tmp_path, {"a.sim.py": "1 / 0\n"})) == []
    assert names(found_in(tmp_path, {"a.sim.py": scenarios("mended now")})) == ["mended now"]


def test_duplicate_scenario_names_are_refused(tmp_path: Path) -> None:
    """The error shows both places; the first scenario still runs."""
    files = {"a.sim.py": scenarios("same", "other"), "b.sim.py": "\n" + scenarios("same", "same")}
    found = found_in(tmp_path, files)
    assert names(found) == ["same", "other"]
    twice = [each for each in found.scenarios if each.refused]
    assert [(Path(each.file).name, each.line, each.name) for each in twice] == [
        ("b.sim.py", 3, "same"),
        ("b.sim.py", 4, "same"),
    ]
    for each in twice:
        assert f"{tmp_path / 'b.sim.py'}:{each.line}: the name 'same' is taken" in str(each.refused)
        assert f"{tmp_path / 'a.sim.py'}:2 defines" in str(each.refused)


REFUSED = """\
from agentest import scenario

first = scenario("no aim")
scenario("fine", goal="g", tags=["t"])
scenario(
    "wrong words", goal="g", tags="t", knowledge="no list", profil="typo"
)
scenario(7, goal="g")
scenario("Fine too", goal=first.name)
"""


def test_each_refused_scenario_is_reported(tmp_path: Path) -> None:
    """Each has an entry with its place and message; the other scenarios of the file are kept."""
    found = found_in(tmp_path, {"a.sim.py": REFUSED})
    assert (names(found), found.broken, found.empty) == (["fine", "Fine too"], (), ())
    refused = [each for each in found.scenarios if each.refused]
    assert [(each.name, each.line, each.tags) for each in refused] == [
        ("no aim", 3, ()),
        ("wrong words", 5, ("t",)),
        ("scenario 7", 8, ()),
    ]
    said = [message for _, _, message in found.problems]
    assert said[0].startswith("scenario 'no aim': has neither `goal` nor `turns`; ")
    assert said[1].startswith("scenario 'wrong words': unknown option `profil`; did you mean `profile`")
    assert said[2].startswith("scenario 'wrong words': knowledge: expected a list of texts, found 'no list'")
    assert said[3].startswith("scenario 'wrong words': tags: expected a list of texts, found 't'")
    assert said[4].startswith("scenario 7: name: expected a text, found 7")
    for each in refused:
        assert str(each.refused).startswith(f"{tmp_path / 'a.sim.py'}:{each.line}: scenario ")


def test_a_refused_scenario_keeps_its_name(tmp_path: Path) -> None:
    """Its name counts as taken, and its own error is the one that is reported."""
    text = scenarios("same") + "scenario('same')\nscenario('other')\nscenario('other', goal='g')\n"
    found = found_in(tmp_path, {"a.sim.py": text})
    assert names(found) == ["same"]
    said = [(line, message.partition(";")[0]) for _, line, message in found.problems]
    assert said[0] == (3, "scenario 'same': has neither `goal` nor `turns`")
    assert said[1] == (4, "scenario 'other': has neither `goal` nor `turns`")
    assert said[2][1].startswith("the name 'other' is taken")


def test_a_failing_file_also_reports_refused_scenarios(tmp_path: Path) -> None:
    """Scenarios refused before a file failed are reported together with the failure."""
    found = found_in(tmp_path, {"a.sim.py": scenarios("fine") + "scenario('no aim')\n1 / 0\n"})
    assert names(found) == ["fine"]
    assert [(line, "division" in message) for _, line, message in found.problems] == [(4, True), (3, False)]


def test_refusals_show_no_secrets(tmp_path: Path) -> None:
    """The message about a refused scenario is redacted."""
    found = found_in(tmp_path, {"a.sim.py": "from agentest import scenario\nscenario('s', goal=['hush'])\n"})
    assert "hush" in str(found.scenarios[0].refused)
    assert "hush" not in str(found.redacted(Redactor(["hush"])).scenarios[0].refused)


def test_paths_are_relative_behind_a_symlink(tmp_path: Path) -> None:
    """Paths are relative to the working directory even if it is reached through a symlink."""
    write(tmp_path, {"real/a.sim.py": scenarios("s")})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    [scenario] = discover(tmp_path / "link", INCLUDE, []).scenarios
    assert shown_path(scenario.file, tmp_path / "link") == "a.sim.py"
    assert shown_path("/elsewhere/b.py", tmp_path) == "/elsewhere/b.py"


# Import paths


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("things", "is not an import path of the form pkg.module:Name"),
        ("things:", "is not an import path"),
        (":Thing", "is not an import path"),
        ("things:Nope", "module 'things' has no 'Nope'"),
        ("things:Think", "module 'things' has no 'Think'; did you mean 'Thing'?"),
        ("lib/things.py:Thing", "'lib/things.py:Thing' names a file; its import path is 'lib.things:Thing'"),
        ("thinks:Thing", "it is looked for in the working directory and where packages are installed"),
        ("things:Thing.nope", "module 'things' has no 'Thing.nope'"),
        ("nowhere_to_be_found:X", "importing 'nowhere_to_be_found' failed: ModuleNotFoundError"),
        ("quits:X", "importing 'quits' failed: SystemExit: 3"),
        ("..things:X", "is not an import path of the form pkg.module:Name"),
    ],
)
def test_wrong_import_paths(tmp_path: Path, reference: str, said: str) -> None:
    """An import path that leads nowhere is reported in one sentence."""
    write(tmp_path, {"things.py": "class Thing:\n    part = 1\n", "quits.py": "raise SystemExit(3)\n"})
    with pytest.raises(ValueError, match=re.escape(said)):
        import_object(reference, tmp_path)


def test_import_paths(tmp_path: Path) -> None:
    """An import path names an object of a module in the working directory, at any depth."""
    write(tmp_path, {"package/__init__.py": "", "package/things.py": "class Thing:\n    part = 7\n"})
    assert import_object("package.things:Thing.part", tmp_path) == 7


def test_assertions_are_rewritten(tmp_path: Path) -> None:
    """pytest rewrites the assertions of scenario files; line numbers do not change."""
    text = "def check(state):\n    # a comment\n    assert state['n'] == 2, 'n is wrong'\n"
    path = tmp_path / "a.sim.py"
    path.write_text(text)
    module = Imports().import_file(path)
    with pytest.raises(AssertionError) as caught:
        module.check({"n": 1})
    assert str(caught.value) == "n is wrong\nassert 1 == 2"
    assert caught.traceback[-1].lineno == 2
    assert inspect.getsource(module.check) == text
    assert not [*tmp_path.glob("__pycache__/*")]


def test_syntax_errors_are_reported_as_python_does(tmp_path: Path) -> None:
    """An error in a file with an assertion is reported as Python reports it."""
    path = tmp_path / "a.sim.py"
    path.write_text("assert True\nif\n")
    with pytest.raises(SyntaxError) as caught:
        Imports().import_file(path)
    assert caught.value.lineno == 2
    path.write_bytes("# coding: latin-1\nassert name == 'é'\n".encode("latin-1"))
    with pytest.raises(NameError):
        Imports().import_file(path)
