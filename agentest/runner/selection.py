"""The selection of scenarios: why filters match nothing, and plans with some or reordered units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from agentest.config.file import LoadedConfig
from agentest.runner.plan import Options, Plan, Unit
from agentest.scenarios.discovery import (
    EXACT_NAME_PREFIX,
    DiscoveredScenarios,
    PathChoice,
    SearchedFiles,
    is_scenario_name,
    matches_name,
    search,
    select_by_path,
    separate_run_folder,
)
from agentest.support.files import contains_any, path_from, readable, shown_path
from agentest.support.text import nearest_part, quoted_names

_SHOW_ALL = "agentest run --list shows all"
_SHOWN = 5


def empty_selection_reason(
    discovered: DiscoveredScenarios, options: Options, root: Path, loaded: LoadedConfig
) -> str:
    """Return a sentence for each filter that matches nothing, or one if they match nothing together."""
    lines = list(_unmatched(discovered, options, root, loaded))
    if not lines:
        filters = "paths, --scenario, --file, --tag" if options.paths else "--scenario, --file, --tag"
        lines = [f"no scenario matches all of the filters ({filters}), though some match each"]
    return "; ".join([*lines, _SHOW_ALL])


def unusable_path(
    choices: Sequence[PathChoice], root: Path, cwd: Path | None, loaded: LoadedConfig
) -> str | None:
    """Return why the first unusable path of the command line (in `cwd`, else the root) matches nothing."""
    if not choices:
        return None
    config = loaded.config
    searched = search(root, config.include, config.exclude, loaded.path)
    shorten = partial(path_from, cwd or root)
    folders = {file.parent for file in searched.files} - {root}
    known = [*map(shorten, (*searched.files, *folders))]
    problems = (_unusable(choice, root, searched, loaded, known) for choice in choices)
    return next((problem for problem in problems if problem), None)


def _unusable(
    choice: PathChoice, root: Path, searched: SearchedFiles, loaded: LoadedConfig, known: Sequence[str]
) -> str | None:
    written, path = readable(choice.text), choice.path
    if not path.exists():
        return f"{written}: there is no such file or folder{_nearest(written, known)}; {_SHOW_ALL}"
    if path.is_dir() and (choice.line is not None or choice.name is not None):
        return f"{written}: {readable(path.name)} is a folder; name a scenario file before the colon"
    if path.is_file():
        if is_scenario_name(path.name):
            return None
        return f"{written}: is neither a Python file nor a *.sim.yaml{_nearest(written, known)}"
    if any(choice.has(file) for file in searched.files):
        return None
    other = separate_run_folder(path, root, loaded.path) if path.is_relative_to(root) else None
    if other:
        return f"{written}: belongs to another configuration; agentest run --cwd {written} runs it"
    include = ", ".join(loaded.config.include)
    return f"{written}: no file there matches {include} (`include`){_nearest(written, known)}; {_SHOW_ALL}"


def missed_place(discovered: DiscoveredScenarios, choices: Iterable[PathChoice]) -> str | None:
    """Return why the first line or name on the command line matches no scenario of a sound file."""
    for choice in choices:
        broken = any(choice.has(Path(file.file)) for file in discovered.broken)
        asks = choice.line is not None or choice.name is not None
        if asks and not broken and not select_by_path(discovered.scenarios, choice):
            return f"{readable(choice.text)}: {_missed(discovered, choice)}"
    return None


def _missed(discovered: DiscoveredScenarios, choice: PathChoice) -> str:
    in_place = [scenario for scenario in discovered.scenarios if choice.has(Path(scenario.file))]
    file = readable(choice.path.name)
    if not in_place:
        return f"{file} defines no scenario: it never calls scenario(…)"
    if choice.name is not None:
        names = [scenario.name for scenario in in_place]
        what = f"no scenario in {file} is named {readable(choice.name)!r}"
        return what + (_nearest(choice.name, names) or f"; it has {quoted_names(names, _SHOWN)}")
    line = choice.line or 0
    near = min(in_place, key=lambda scenario: abs(scenario.line - line), default=None)
    hint = f"; the nearest is {near.name!r} at line {near.line}" if near else ""
    return f"line {choice.line} of {file} is in no scenario{hint}"


def _unmatched(
    discovered: DiscoveredScenarios, options: Options, root: Path, loaded: LoadedConfig
) -> Iterator[str]:
    if options.files:
        searched = search(root, loaded.config.include, loaded.config.exclude, loaded.path)
        files = [shown_path(path, root) for path in searched.files]
        if not any(contains_any(file, map(readable, options.files)) for file in files):
            # No file was imported, so the names in the files are unknown.
            yield _no_match("no scenario file", "--file", options.files, files)
            return
    names = [scenario.name for scenario in discovered.scenarios]
    if not names and discovered.empty and options.paths:
        verb = "defines" if len(discovered.empty) == 1 else "define"
        yield f"{', '.join(discovered.empty)} {verb} no scenario: scenario(…) is never called there"
        return
    if options.scenarios and not any(matches_name(name, options.scenarios) for name in names):
        yield _no_match("no scenario", "--scenario", options.scenarios, names)
    tags = sorted({tag for scenario in discovered.scenarios for tag in scenario.tags})
    if options.tags and not set(options.tags) & set(tags):
        text = _no_match("no scenario", "--tag", options.tags, tags)
        yield text if tags else f"{text}; no scenario has a tag"


def _no_match(what: str, option: str, values: Sequence[str], known: Iterable[str]) -> str:
    requested = " ".join(f"{option} {readable(text)!r}" for text in values)
    return f"{what} matches {requested}{_nearest(values[0].removeprefix(EXACT_NAME_PREFIX), known)}"


def _nearest(text: str, known: Iterable[str]) -> str:
    close = nearest_part(text, known)
    return f"; the nearest is {close!r}" if close else ""


def shuffled(plan: Plan, seed: int) -> Plan:
    """Return the plan with its units in random order. Reports keep the order of the files."""
    units = list(plan.units)
    Random(seed).shuffle(units)
    return replace(plan, units=tuple(units))


def first(plan: Plan, is_first: Callable[[Unit], bool]) -> Plan:
    """Return the plan with some units first. Both groups keep their order."""
    return replace(plan, units=tuple(sorted(plan.units, key=lambda unit: not is_first(unit))))
