"""`agentest run --watch`: run again what a change affects, what failed, or what a key requests."""

from __future__ import annotations

import ast
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

from watchfiles import Change, DefaultFilter, watch

from agentest.cli.main import print_user_error
from agentest.cli.rerun_selection import ScenarioSelection, has_failed, narrowed, verdicts_of
from agentest.cli.run import run_once
from agentest.cli.watch_keys import ENTER, QUIT, Keys, open_keys
from agentest.domain.results import ScenarioResult, Status
from agentest.plugin import PLUGINS
from agentest.runner.plan import PlanEntry, Unit
from agentest.runner.prepare import Prepared, RunRequest, prepare
from agentest.scenarios.discovery import is_scenario_file, search
from agentest.store.runs.folder import RunKind, latest_run
from agentest.store.runs.past_runs import LatestVerdicts
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import contains_any, matches_any, modified_ns, path_from, patterns
from agentest.support.importing import forget_modules, imported_files
from agentest.support.interrupts import was_interrupted
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import open_in_browser, tell
from agentest.support.text import count

Done = TypeVar("Done")
Stamps = dict[Path, int]
_KEYS = "f failed, a all, p pattern, q quit, h help"
_HELP = "f runs what failed, a all, p what matches a pattern, Enter the same again, u opens the page, q quits"
_LOOK_AGAIN_MS = 250
_SETTLED_S, _LONGEST_SERIES_S = 0.1, 2.0
_CHANGED = -1  # a modification time that no file has
_SOURCES = frozenset({".py", ".csv", ".json", ".jsonl", ".tsv", ".yaml", ".yml"})
_WILDCARDS = frozenset("*?[")
_TOOL_FILES_FILTER = DefaultFilter()
"""Ignores files that tools write: `__pycache__`, `.git`, `node_modules`, editor files."""


def run_and_watch(request: RunRequest, select: ScenarioSelection) -> ExitCode:
    """Run, then run again what a change affects or a key requests, until interrupted or quit."""
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    with open_keys() as keys:
        return _Watcher(request, select, keys).run()


class _Watcher:
    def __init__(self, request: RunRequest, select: ScenarioSelection, keys: Keys) -> None:
        self._request, self._first_selection, self._keys = request, select, keys
        self._selection = replace(select, last_failed=False)
        self._environ = dict(os.environ)
        self._prepared: Prepared | None = None
        """All scenarios; None if the configuration or all scenarios are unusable."""
        self._known: frozenset[Path] = frozenset()
        """The configuration, scenario files, their data and what they import."""
        self._before: Stamps = {}  # the state of the files that the last run read, and of the servers' files
        self._seen: Stamps = {}  # the state of the files at the last look
        self._servers, self._written_by_servers = WatchedFiles(), _FilesWrittenByServers()
        self._last_plan: frozenset[_Identity] | None = None  # what ran last; None: everything
        self._missed: _Choice | None = None  # what a run selected that could not begin
        self._status = ExitCode.PASSED
        self._ways_out = _KEYS if keys.is_terminal else "Ctrl-C ends"

    def run(self) -> ExitCode:
        """Run until interrupted or quit."""
        runs: _Choice | None = _everything
        select = self._first_selection
        while True:
            if runs:
                status = self._run(runs, select)
                if status is ExitCode.INTERRUPTED or was_interrupted():
                    return ExitCode.INTERRUPTED
                self._status, select = status, self._selection
            with self._keys.waiting():
                if runs:
                    # Keys pressed during the run, except for the first, were pressed without an answer.
                    self._keys.keep_first()
                    tell(f"agentest: waiting for changes ({self._ways_out})")
                changed, key = self._wait()
                if key in QUIT:
                    return self._status
                if (not changed and not key) or was_interrupted():
                    return ExitCode.INTERRUPTED
                runs = self._choice_of(key) if key else None
                if changed := changed | self._changed():
                    changed = self._settled(changed)
            if self._keys.quits:
                return self._status
            if changed:
                runs = self._affected(changed, runs)

    def _run(self, choice: _Choice, select: ScenarioSelection) -> ExitCode:
        os.environ.clear()  # otherwise variables from the last `.env` would hide its current values
        os.environ.update(self._environ)
        forget_modules(self._known)
        self._prepared = prepared = _attempt(lambda: prepare(self._request))
        self._known = _files(prepared, self._known)
        if prepared:
            servers = prepared.managed_servers.of_any(prepared.plan.agents)
            watched = (entry for each in servers for entry in each.server.watch)
            self._servers = parse_watch_entries(watched, prepared.request.root, [prepared.output_dir])
        # A file that changed after the last look may have been read before or after that.
        before = _stamps(self._known | self._candidates())
        before |= {file: stamp for file, stamp in self._seen.items() if file in before}
        sources = _stamps(self._servers.files)
        status = _attempt(lambda: self._run_chosen(prepared, choice, select)) if prepared else None
        if status is ExitCode.INTERRUPTED or was_interrupted():
            return ExitCode.INTERRUPTED
        self._missed = choice if status is None else None
        # Watch files that the run itself imported, such as handlers and code in mocks.
        self._known = _files(prepared, self._known)
        before = _stamps(self._known) | before
        for entry in self._servers.missing:
            tell(f"agentest: watch: {entry!r} names no file that is there")
        after = _stamps(self._servers.files)
        again = self._written_by_servers.to_run_for(_changed_between(sources, after))
        self._before = before | after | dict.fromkeys(again, _CHANGED)
        return ExitCode.ERRORED if status is None else status

    def _run_chosen(self, prepared: Prepared, choice: _Choice, select: ScenarioSelection) -> ExitCode:
        self._last_plan = None
        if choice is not _everything:
            verdicts, total = verdicts_of(prepared), len(prepared.plan.entries)
            prepared = narrowed(prepared, verdicts, lambda entry: choice(entry, verdicts))
            is_new = not any(has_failed(entry, verdicts) for entry in prepared.plan.entries)
            is_picked = is_new and len(prepared.plan.entries) < total
            prepared = replace(prepared, picked=prepared.picked or is_picked)
            self._last_plan = frozenset(map(_identity, prepared.plan.entries))
            tell(f"agentest: runs {len(self._last_plan) or 'none'} of {count(total, 'scenario')}")
        return run_once(select(prepared)) if prepared.plan.entries else self._status

    def _choice_of(self, key: str) -> _Choice | None:
        if key == "a":
            return _everything
        if key == "f":
            return has_failed
        if key in ENTER:
            last = self._last_plan
            return _everything if last is None else lambda entry, _: _identity(entry) in last
        if key == "p":
            pattern = self._keys.read_line("pattern: ").strip()
            return partial(_matches, pattern) if pattern else None
        if key == "u":
            self._open_page()
        elif key in ("h", "?"):
            tell(f"agentest: {_HELP}")
        return None

    def _wait(self) -> tuple[frozenset[Path], str]:
        if key := self._keys.take():
            return frozenset(), key
        if changed := self._changed():
            return changed, ""
        folders = {self._request.root, *self._servers.folders}
        folders |= {file.parent for file in self._known if file.parent.is_dir()}
        is_first = True
        for found in watch(
            *folders,
            watch_filter=lambda _, path: self._is_relevant(Path(path)),
            raise_interrupt=False,
            stop_event=self._keys.pressed,
            rust_timeout=max(_LOOK_AGAIN_MS, len(self._before)),
            yield_on_timeout=True,
        ):
            # The watcher saw nothing before it began, and on some file systems it never sees anything.
            changed = frozenset(Path(path) for _, path in found) | self._changed(new_too=is_first)
            is_first = False
            if changed:
                return changed, ""
        return frozenset(), self._keys.take()

    def _changed(self, *, new_too: bool = True) -> frozenset[Path]:
        new = self._candidates() if new_too else frozenset()
        self._seen = _stamps(new.union(self._before))
        return _changed_between(self._before, self._seen)

    def _is_relevant(self, path: Path) -> bool:
        if path in self._known or self._servers.has(path.resolve()):
            return True
        root = self._request.root
        inside = path.relative_to(root) if path.is_relative_to(root) else path
        if not _TOOL_FILES_FILTER(Change.modified, str(inside)):
            return False
        if self._prepared is None or self._is_broken:
            return _is_source(path) and not path.is_relative_to(self._output_dir)
        loaded = self._prepared.loaded
        return is_scenario_file(path, root, loaded.config.include, loaded.config.exclude, loaded.path)

    def _scenario_files(self) -> frozenset[Path]:
        if self._prepared is None:
            return frozenset()
        loaded, root = self._prepared.loaded, self._request.root
        return frozenset(search(root, loaded.config.include, loaded.config.exclude, loaded.path).files)

    def _candidates(self) -> frozenset[Path]:
        if not self._is_broken:
            return self._scenario_files()
        everything = parse_watch_entries(["."], self._request.root, [self._output_dir])
        return self._scenario_files() | frozenset(filter(_is_source, everything.files))

    @property
    def _is_broken(self) -> bool:
        return self._prepared is None or any(map(_is_broken, self._prepared.plan.entries))

    @property
    def _output_dir(self) -> Path:
        return self._prepared.output_dir if self._prepared else self._request.root / ".agentest"

    def _settled(self, changed: frozenset[Path]) -> frozenset[Path]:
        deadline = monotonic() + _LONGEST_SERIES_S
        while monotonic() < deadline:
            before = self._seen
            sleep(_SETTLED_S)
            changed |= self._changed()
            if self._seen == before:
                break
        return changed

    def _affected(self, changed: frozenset[Path], requested: _Choice | None) -> _Choice:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        first = path_from(self._request.here or self._request.root, min(changed))
        tell(f"agentest: {first}{more} changed: running again")
        prepared, missed = self._prepared, self._missed
        restarts = any(self._servers.has(path.resolve()) for path in changed)
        if prepared is None or _everything in (requested, missed) or restarts:
            return _everything
        config = prepared.loaded.path.resolve()
        if changed & {config, config.parent / ".env"}:
            return _everything
        root = self._request.root
        scenario_files = self._scenario_files() | {_file_of(entry, root) for entry in prepared.plan.entries}
        graph = ImportGraph(self._known | changed)
        of_all = graph.reached_from(config)
        of_scenarios = {file: graph.reached_from(file) for file in scenario_files}
        data = {Path(unit.scenario.data_file) for unit in prepared.plan.units if unit.scenario.data_file}
        covered = data.union(*of_scenarios.values())
        # What no scenario imports was imported by the agent, or in a way that the source does not show.
        if changed & of_all or (changed & self._known) - covered:
            return _everything
        files = {file for file, reached in of_scenarios.items() if reached & changed}

        def is_affected(entry: PlanEntry, verdicts: LatestVerdicts) -> bool:
            return (
                _file_of(entry, root) in files
                or (isinstance(entry, Unit) and Path(entry.scenario.data_file or "") in changed)
                or has_failed(entry, verdicts)
                or any(choice(entry, verdicts) for choice in (requested, missed) if choice)
            )

        return is_affected

    def _open_page(self) -> None:
        prepared = self._prepared
        run = latest_run(prepared.output_dir, [RunKind.RUN]) if prepared else None
        if run is None or run.file is None:
            tell("agentest: no run is stored")
            return
        results = run.file
        page = _attempt(lambda: PLUGINS.hook("agentest show --open", "page")(results, self._request.root))
        if page:
            open_in_browser(page.as_uri())


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEntry:
    """One entry of `watch`: a file, or the files in a folder that match a pattern."""

    entry: str
    folder: Path  # the folder, or the file if the entry names one
    pattern: tuple[str, ...]
    """Pattern for paths relative to the folder; () for the file itself or everything in the folder."""

    @property
    def watched_folder(self) -> Path:
        return self.folder if self.folder.is_dir() else self.folder.parent

    def has(self, path: Path) -> bool:
        """Return True if the entry matches a file."""
        if not path.is_relative_to(self.folder):
            return False
        parts = path.relative_to(self.folder).parts
        # The user chose the folder, so only the path below it is filtered.
        if parts and not _TOOL_FILES_FILTER(Change.modified, str(Path(*parts))):
            return False
        return not self.pattern or matches_any(parts, [self.pattern])

    @property
    def files(self) -> Iterator[Path]:
        """Yield the existing files."""
        if self.folder.is_file():
            yield self.folder
        for at, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if _TOOL_FILES_FILTER(Change.modified, name)]
            yield from (path for name in names if self.has(path := Path(at, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFiles:
    """All files that restart the servers of a run."""

    entries: tuple[WatchEntry, ...] = ()
    left_out: tuple[Path, ...] = ()  # folders that runs write to

    def has(self, path: Path) -> bool:
        """Return True if a file is one of them."""
        written = any(path.is_relative_to(folder) for folder in self.left_out)
        return not written and any(entry.has(path) for entry in self.entries)

    @property
    def files(self) -> frozenset[Path]:
        """The existing files."""
        return frozenset(path for entry in self.entries for path in entry.files if self.has(path))

    @property
    def folders(self) -> set[Path]:
        return {entry.watched_folder for entry in self.entries if entry.watched_folder.is_dir()}

    @property
    def missing(self) -> list[str]:
        """Entries that match no existing file."""
        return [entry.entry for entry in self.entries if not any(True for _ in entry.files)]


def parse_watch_entries(entries: Iterable[str], root: Path, left_out: Iterable[Path] = ()) -> WatchedFiles:
    """Return the files that the entries of `watch` mean."""
    return WatchedFiles(
        entries=tuple(_watched(entry, root) for entry in dict.fromkeys(entries)),
        left_out=tuple(folder.resolve() for folder in left_out),
    )


class _FilesWrittenByServers:
    """Detects which server files changed because a server wrote them.

    A file that changes during two consecutive runs counts as written by a server, because running again
    for it would never end. Between runs no server is active, so every change counts.
    """

    def __init__(self) -> None:
        self._last: frozenset[Path] = frozenset()
        self._reported: set[Path] = set()

    def to_run_for(self, changed: frozenset[Path]) -> frozenset[Path]:
        """Return the files to run again for, given those that changed during the last run."""
        for path in sorted(changed & self._last - self._reported):
            self._reported.add(path)
            tell(
                f"agentest: {path.name} changed during this run, and during the one before: taken for what a "
                "server writes; save it again if it was you"
            )
        again, self._last = changed - self._last, changed
        return again


class ImportGraph:
    """Which files import which, according to their source. It finds too many rather than too few."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._named: dict[str, set[Path]] = {}
        self._imports: dict[Path, frozenset[Path]] = {}
        for file in files:
            parts = file.with_suffix("").parts if file.suffix == ".py" else ()
            parts = parts[:-1] if parts[-1:] == ("__init__",) else parts
            for begin in range(max(1, len(parts) - _MOST_PARTS), len(parts)):
                self._named.setdefault(".".join(parts[begin:]), set()).add(file)

    def reached_from(self, file: Path) -> frozenset[Path]:
        """Return a file and everything that it imports, directly or not."""
        reached, rest = {file}, [file]
        while rest:
            new = self._imported_by(rest.pop()) - reached
            reached |= new
            rest += new
        return frozenset(reached)

    def _imported_by(self, file: Path) -> frozenset[Path]:
        if file not in self._imports:
            self._imports[file] = frozenset(
                found for name in _imported_names(file) for found in self._find(name, file)
            )
        return self._imports[file]

    def _find(self, name: str, file: Path) -> Iterable[Path]:
        found = self._named.get(name, set())
        return [path for path in found if path.is_relative_to(file.parent)] or found


_MOST_PARTS = 8
_WORD = re.compile(r"[^\s\"',\[\]{}()]+")


def _imported_names(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        tree = ast.parse(text) if file.suffix == ".py" else None
    except (OSError, SyntaxError, ValueError):
        return
    if tree is None:  # of a configuration, any word may name a module or a file
        for word in _WORD.findall(text):
            if not word.endswith(":"):
                yield from _with_packages(
                    word.partition(":")[0].removesuffix(".py").strip("./").replace("/", ".")
                )
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield from _with_packages(each.name)
        elif isinstance(node, ast.ImportFrom):
            folder = file.parents[node.level - 1].parts[-2:] if node.level else ()
            module = ".".join((*folder, *filter(None, [node.module])))
            yield from _with_packages(module)
            yield from (f"{module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module, colon, name = node.value.partition(":")
            if colon and name.isidentifier():
                yield from _with_packages(module)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                yield from _with_packages(str(node.args[0].value))


def _with_packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _changed_between(before: Stamps, after: Stamps) -> frozenset[Path]:
    return frozenset(
        file for file in before.keys() | after.keys() if before.get(file, 0) != after.get(file, 0)
    )


def _stamps(files: frozenset[Path]) -> Stamps:
    """Return the modification time of each file in nanoseconds; 0 if it does not exist."""
    return {file: modified_ns(file) for file in files}


def _attempt(work: Callable[[], Done]) -> Done | None:
    try:
        return work()
    except UsageError as error:
        print_user_error(error)
        return None


def _files(prepared: Prepared | None, known: frozenset[Path]) -> frozenset[Path]:
    if prepared is None:
        return known | imported_files()
    config = prepared.loaded.path.resolve()
    return frozenset({*prepared.files, config, config.parent / ".env"}) | imported_files()


_Choice = Callable[[PlanEntry, LatestVerdicts], bool]
"""Returns True if a run includes an entry, given the latest verdicts."""
_Identity = tuple[str, str, str]


def _everything(_: PlanEntry, __: LatestVerdicts) -> bool:
    return True


def _matches(pattern: str, entry: PlanEntry, _: LatestVerdicts) -> bool:
    return any(contains_any(text, [pattern]) for text in _identity(entry)[:2])


def _identity(entry: PlanEntry) -> _Identity:
    name = entry.scenario.name if isinstance(entry, Unit) else entry.name
    return entry.file, name, entry.agent


def _is_broken(entry: PlanEntry) -> bool:
    return isinstance(entry, ScenarioResult) and entry.verdict.status is Status.ERRORED


def _is_source(path: Path) -> bool:
    return path.suffix in _SOURCES or path.name == ".env"


def _file_of(entry: PlanEntry, root: Path) -> Path:
    return Path(entry.scenario.file) if isinstance(entry, Unit) else root / entry.file


def _watched(entry: str, root: Path) -> WatchEntry:
    parts = Path(entry).parts
    fixed = next((at for at, part in enumerate(parts) if _WILDCARDS & {*part}), len(parts))
    (pattern,) = patterns(["/".join(parts[fixed:])])
    return WatchEntry(entry=entry, folder=root.joinpath(*parts[:fixed]).resolve(), pattern=pattern)
