"""Why the filters of the command line select nothing, and what comes nearest to what was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agentest.config.file import LoadedConfig
from agentest.run.plan import Options
from agentest.scenarios.discovery import Discovered, search
from agentest.support.files import readable
from agentest.support.paths import contains_any, shown_path
from agentest.support.spelling import nearest_part


def why_nothing(discovered: Discovered, options: Options, root: Path, loaded: LoadedConfig) -> str:
    """A sentence for every filter that fits nothing by itself, or one where they fit nothing together."""
    lines = list(_unmatched(discovered, options, root, loaded))
    if not lines:
        lines = ["no scenario matches all of the filters (--scenario, --file, --tag), though some match each"]
    return "; ".join([*lines, "agentest run --list shows all"])


def _unmatched(discovered: Discovered, options: Options, root: Path, loaded: LoadedConfig) -> Iterator[str]:
    if options.files:
        searched = search(root, loaded.config.include, loaded.config.exclude, loaded.path)
        files = [shown_path(path, root) for path in searched.files]
        if not any(contains_any(file, map(readable, options.files)) for file in files):
            # What is in the files is not known: none of them was imported.
            yield _no_match("no scenario file", "--file", options.files, files)
            return
    names = [scenario.name for scenario in discovered.scenarios]
    if options.scenarios and not any(contains_any(name, options.scenarios) for name in names):
        yield _no_match("no scenario", "--scenario", options.scenarios, names)
    tags = sorted({tag for scenario in discovered.scenarios for tag in scenario.tags})
    if options.tags and not set(options.tags) & set(tags):
        yield _no_match("no scenario", "--tag", options.tags, tags)


def _no_match(what: str, option: str, values: Sequence[str], known: Iterable[str]) -> str:
    asked = " ".join(f"{option} {readable(text)!r}" for text in values)
    close = nearest_part(values[0], known)
    return f"{what} matches {asked}" + (f"; the nearest is {close!r}" if close else "")
