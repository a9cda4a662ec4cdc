"""Find scenario files, import them, and select scenarios by path, line and name."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from agentest.config.file import NAMES, repository_root
from agentest.scenarios.definition import collect_scenarios
from agentest.scenarios.model import Scenario
from agentest.support.calling import message_of_error
from agentest.support.errors import UsageError
from agentest.support.files import (
    EVERYTHING,
    check_user_file,
    contains_any,
    matches_any,
    patterns,
    readable,
    shown_path,
)
from agentest.support.importing import Imports, user_traceback
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor
from agentest.support.text import nearest

_MOST_BYTES = 10_000_000
DATA_ENDINGS = (".sim.yaml", ".sim.yml")
ENDINGS = (".sim.py", *DATA_ENDINGS)  # endings of scenario files; `include` may match other Python files, too
EXACT_NAME_PREFIX = "="
_AT_LINE = re.compile(r"(?P<path>.+?):(?P<line>\d+)(:\d+)?")
_BETWEEN_PROBLEMS = re.compile(r"\n(?=[^\n]+:\d+: scenario )")


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A scenario file that could not be loaded."""

    file: str
    line: int
    message: str


def _at_own_line(file: str, line: int, message: str) -> tuple[str, int, str]:
    begin = re.match(rf"{re.escape(readable(file))}(?::(\d+))?: ", message)
    return (file, int(begin[1] or line), message[begin.end() :]) if begin else (file, line, message)


@dataclass(frozen=True, slots=True)
class DiscoveredScenarios:
    """The contents of a run's scenario files.

    Attributes:
        scenarios: all scenarios, including refused ones, so that paths and filters select them as well.
        files: the scenario files, all user files that they imported, and files of rows.
    """

    scenarios: tuple[Scenario, ...] = ()
    broken: tuple[BrokenFile, ...] = ()
    files: frozenset[Path] = frozenset()
    empty: tuple[str, ...] = ()  # files that define no scenario
    left_out: tuple[str, ...] = ()  # folders with their own configuration that contain scenario files
    is_partial: bool = False  # True if the filters left a scenario file out

    def leaves_out(self, names: Collection[str]) -> bool:
        """Return True if a scenario that could run is not among the names."""
        able = (each.name for each in self.scenarios if each.skip is None and each.refused is None)
        return self.is_partial or any(name not in names for name in able)

    @property
    def problems(self) -> list[tuple[str, int, str]]:
        """File, line and message of each file that could not be loaded and each scenario that was refused."""
        problems = [(each.file, each.line, each.message) for each in self.broken]
        problems += [
            (each.file, each.line, message)
            for each in self.scenarios
            for message in _BETWEEN_PROBLEMS.split(each.refused or "")
            if message
        ]
        return [_at_own_line(*problem) for problem in problems]

    def redacted(self, redact: Redactor) -> DiscoveredScenarios:
        """Return a copy with secrets redacted in names, tags and messages."""
        broken = tuple(replace(file, message=redact(file.message)) for file in self.broken)
        scenarios = _with_unique_names(_redacted(each, redact) for each in self.scenarios)
        return replace(self, broken=broken, scenarios=tuple(scenarios))


def discover(
    root: Path,
    include: Sequence[str],
    exclude: Sequence[str],
    file_filter: Sequence[str] = (),
    config: Path | None = None,
    paths: Sequence[PathChoice] = (),
) -> DiscoveredScenarios:
    """Import the scenario files below `root`, ordered by path.

    Args:
        include, exclude: patterns relative to `root`; `**` matches any number of folders.
        file_filter: select only files whose path contains one of these texts, ignoring case.
        config: the configuration of the run. A folder below `root` with another one is a separate run.
        paths: select only these; a file named here need not match `include`.
    """
    scenarios: list[Scenario] = []
    broken: list[BrokenFile] = []
    empty: list[str] = []
    imports = Imports()
    searched = search(root, include, exclude, config)
    wanted = [readable(part) for part in file_filter]
    chosen = _chosen_files(searched.files, paths)
    chosen = [path for path in chosen if not wanted or contains_any(shown_path(path, root), wanted)]
    for path in chosen:
        defined, problem = _load(path, root, imports)
        scenarios += defined
        broken += [problem] if problem else []
        empty += [] if defined or problem else [shown_path(path, root)]
    left_out = tuple(shown_path(folder, root) for folder in searched.left_out)
    unique = tuple(_with_unique_names(scenarios))
    files = _read_files(imports, scenarios)
    partial = not set(searched.files).issubset(chosen)
    return DiscoveredScenarios(unique, tuple(broken), files, tuple(empty), left_out, partial)


def discover_file(
    path: Path,
    imports: Imports,
    earlier: Sequence[Scenario] = (),
    root: Path | None = None,
    source: bytes | None = None,
) -> DiscoveredScenarios:
    """Import one scenario file.

    Args:
        source: replaces the content of the file, which need not exist.
        earlier: the scenarios of other files, whose names are taken.
        root: the project's root; None: the file's own folder.
    """
    defined, problem = _load(path, root or path.parent, imports, source)
    unique = _with_unique_names([*earlier, *defined])[len(earlier) :]
    return DiscoveredScenarios(
        tuple(unique), (problem,) if problem else (), _read_files(imports, [*earlier, *defined])
    )


def _read_files(imports: Imports, scenarios: Iterable[Scenario]) -> frozenset[Path]:
    return frozenset({*imports.files, *(Path(each.data_file) for each in scenarios if each.data_file)})


def _chosen_files(files: Sequence[Path], choices: Sequence[PathChoice]) -> Sequence[Path]:
    if not choices:
        return files
    chosen = [file for file in files if any(choice.has(file) for choice in choices)]
    others = {
        choice.path: None
        for choice in choices
        if choice.path.is_file() and not any(choice.has(file) for file in chosen)
    }
    return sorted([*chosen, *others])


def _load(
    path: Path, root: Path, imports: Imports, source: bytes | None = None
) -> tuple[list[Scenario], BrokenFile | None]:
    if source is None and (why := _why_not_imported(path, root)):
        return [], BrokenFile(str(path), 1, readable(f"not imported: {why}"))
    with collect_scenarios() as scenarios:
        try:
            if path.name.endswith(DATA_ENDINGS):
                from agentest.scenarios.data_files import define_scenarios

                imports.files.add(path)
                define_scenarios(path, source)
            else:
                imports.import_file(path, source)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's module may raise anything, sys.exit() too
            return scenarios, _broken_file(error, path)
    return scenarios, None


def _why_not_imported(path: Path, root: Path) -> str | None:
    try:
        if path.is_symlink() and path.exists():
            target, project = path.resolve(), repository_root(root.resolve())
            if not target.is_relative_to(project):
                return (
                    f"it is a link to {target}, outside of the project ({project}). Copy the file into the "
                    "project, or name the link in `exclude`"
                )
        check_user_file(path, _MOST_BYTES)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None


def _broken_file(error: BaseException, path: Path) -> BrokenFile:
    traceback_text, line = user_traceback(error, path)
    if not isinstance(error, UsageError):
        hint = _import_hint(error)
        rows = ["importing the file failed", *([hint] if hint else []), traceback_text]
        return BrokenFile(str(path), line, readable("\n".join(rows)))
    return BrokenFile(*_at_own_line(str(path), line, readable(str(error))))


_HINTS = {
    "scenario() takes from 1 to 2 positional": 'only the name has no keyword: scenario("a name", goal="…")',
    "'module' object is not callable": "import the function: from agentest import scenario",
    "'Scenario' object is not callable": 'scenario(…) is not a decorator: scenario("a name", turns=[…])',
    "call() missing 1 required positional argument: 'tool'": 'write call("TOOL", ARGUMENT="VALUE")',
    "source code string cannot contain null bytes": "it may be UTF-16: save the file as UTF-8",
}
"""Maps the beginning of an error's message to what to do."""


def _import_hint(error: BaseException) -> str:
    text = message_of_error(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{error.name} is neither in this project nor installed for {sys.executable}"
    if isinstance(error, ImportError) and error.name == "agentest":
        close = nearest(text.partition("'")[2].partition("'")[0], sys.modules["agentest"].__all__)
        return f"did you mean `{close}`?" if close else ""
    return next((hint for beginning, hint in _HINTS.items() if text.startswith(beginning)), "")


def _redacted(scenario: Scenario, redact: Redactor) -> Scenario:
    refused = scenario.refused and redact(scenario.refused)
    hide = redact.hiding_in((scenario.name, *scenario.tags))
    if not hide and refused is scenario.refused:
        return scenario
    return replace(scenario, name=hide(scenario.name), tags=tuple(map(hide, scenario.tags)), refused=refused)


def _with_unique_names(scenarios: Iterable[Scenario]) -> list[Scenario]:
    first: dict[str, Scenario] = {}
    unique = []
    for scenario in scenarios:
        known = first.setdefault(scenario.name, scenario)
        if known is not scenario and not scenario.refused:
            message = (
                f"{readable(scenario.file)}:{scenario.line}: the name {scenario.name!r} is taken: "
                f"{readable(known.file)}:{known.line} defines a scenario of that name. "
                "Give one of them another name"
            )
            scenario = replace(scenario, refused=message)
        unique.append(scenario)
    return unique


@dataclass(frozen=True, slots=True)
class SearchedFiles:
    """Scenario files below a working directory, sorted by path."""

    files: tuple[Path, ...]
    left_out: tuple[Path, ...]  # folders that are separate runs and contain matching files


def search(
    root: Path, include: Sequence[str], exclude: Sequence[str], config: Path | None = None
) -> SearchedFiles:
    """Find the scenario files of a run, and the folders that are separate runs.

    Folders that `exclude` covers completely are not entered. Links to folders are not followed.
    """
    wanted, unwanted = patterns(include), patterns(exclude)
    covered = [pattern[:-2] for pattern in unwanted if pattern[-2:] == EVERYTHING]
    paths: list[Path] = []
    left_out: dict[Path, None] = {}
    for folder, folders, names in os.walk(root):
        at = Path(folder).relative_to(root).parts
        folders[:] = [name for name in folders if not matches_any((*at, name), covered)]
        files = [
            name
            for name in names
            if is_scenario_name(name)
            and matches_any((*at, name), wanted)
            and not matches_any((*at, name), unwanted)
        ]
        if files and (other := separate_run_folder(Path(folder), root, config, wanted)):
            left_out[other] = None
        else:
            paths += [Path(folder, name) for name in files]
    return SearchedFiles(tuple(sorted(paths)), tuple(sorted(left_out)))


def is_scenario_name(name: str) -> bool:
    """Return True if a file with this name can define scenarios: any Python file, or `*.sim.yaml`.

    Emacs marks a file that is being edited with a link of the same name after `.#`.
    """
    return name.endswith((".py", *DATA_ENDINGS)) and not name.startswith(".#")


def separate_run_folder(
    folder: Path, root: Path, config: Path | None, wanted: Sequence[tuple[str, ...]] = ()
) -> Path | None:
    """Return the first folder with its own configuration that `include` does not name; None: no such."""
    used = config.resolve().parent if config else None
    folders = [*reversed(folder.relative_to(root).parents), folder.relative_to(root)]
    for part in folders[1:]:
        has_one = any((root / part / name).is_file() for name in NAMES)
        named = any(pattern[: len(part.parts)] == part.parts for pattern in wanted)
        if has_one and not named and (root / part).resolve() != used:
            return root / part
    return None


def is_scenario_file(
    path: Path, root: Path, include: Sequence[str], exclude: Sequence[str], config: Path | None = None
) -> bool:
    """Return True if `search` would find this file."""
    if not path.is_relative_to(root) or not is_scenario_name(path.name):
        return False
    parts = path.relative_to(root).parts
    included = matches_any(parts, patterns(include)) and not matches_any(parts, patterns(exclude))
    return included and separate_run_folder(path.parent, root, config, patterns(include)) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathChoice:
    """A file or folder from the command line, with an optional line or scenario name."""

    text: str  # the argument as written
    path: Path  # absolute
    line: int | None = None  # select the scenario at this line; None: all
    name: str | None = None  # select the scenario with this complete name; None: all

    def has(self, file: Path) -> bool:
        """Return True if a file is the chosen one, or is in the chosen folder."""
        return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(self.path))


def parse_path_choice(text: str, folder: Path) -> PathChoice:
    """Parse PATH, PATH:LINE or PATH::NAME relative to `folder`."""

    def chosen(path: str, line: int | None = None, name: str | None = None) -> PathChoice:
        return PathChoice(text=text, path=Path(os.path.normpath(folder / path)), line=line, name=name)

    path, _, name = text.partition("::")
    with_line = _AT_LINE.fullmatch(text)
    if (folder / text).exists():
        return chosen(text)
    if name and path:
        return chosen(path, name=name)
    return chosen(with_line["path"], line=int(with_line["line"])) if with_line else chosen(text)


def matches_name(name: str, texts: Iterable[str]) -> bool:
    """Return True if a name contains one of the texts, ignoring case; `=TEXT` requires the complete name."""
    return any(
        name == text.removeprefix(EXACT_NAME_PREFIX)
        if text.startswith(EXACT_NAME_PREFIX)
        else text.casefold() in name.casefold()
        for text in texts
    )


def select_by_paths(scenarios: Sequence[Scenario], choices: Iterable[PathChoice]) -> list[Scenario]:
    """Return the scenarios that one of the choices selects, in order."""
    chosen = {id(scenario) for choice in choices for scenario in select_by_path(scenarios, choice)}
    return [scenario for scenario in scenarios if id(scenario) in chosen]


def select_by_path(scenarios: Sequence[Scenario], choice: PathChoice) -> list[Scenario]:
    in_file = [scenario for scenario in scenarios if choice.has(Path(scenario.file))]
    if choice.name is not None:
        return [scenario for scenario in in_file if scenario.name == choice.name]
    if choice.line is None:
        return in_file
    if not in_file:
        return []
    if in_file[0].file.endswith(DATA_ENDINGS):  # a scenario reaches to the line before the next one
        begin = max((scenario.line for scenario in in_file if scenario.line <= choice.line), default=0)
        return [scenario for scenario in in_file if scenario.line == begin]
    tree = ast.parse(Path(in_file[0].file).read_bytes())
    for nodes in ([node for node in ast.walk(tree) if isinstance(node, ast.Call)], tree.body):
        spans = [_span(node) for node in nodes if choice.line in _span(node)]
        # Try the narrowest span first, because a call may be an argument of another one.
        for span in sorted(spans, key=len):
            at_line = [scenario for scenario in in_file if scenario.line in span]
            if at_line:
                return at_line
    return []


def _span(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
