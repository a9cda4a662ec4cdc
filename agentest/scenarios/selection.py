"""Which scenarios the words of a command line mean: names, files, folders, and places in a file."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentest.scenarios.model import Scenario

EXACTLY = "="
"""What `--scenario` begins with where the rest is the whole name."""
_AT_LINE = re.compile(r"(?P<path>.+?):(?P<line>\d+)(:\d+)?")
"""As editors and tracebacks write a place in a file, perhaps with a column."""
_IN_FILE = "::"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathChoice:
    """A file or folder of the command line, and which scenarios of the file are meant."""

    given: str
    """As the user wrote it."""
    path: Path
    """Absolute."""
    line: int | None = None
    """The scenario that is defined here; None: that of any line."""
    name: str | None = None
    """The whole name of the scenario; None: of any name."""

    def has(self, file: Path) -> bool:
        """Whether a file is the chosen one, or is in the chosen folder."""
        return _real(file).is_relative_to(_real(self.path))


def path_choice(given: str, here: Path) -> PathChoice:
    """What PATH, PATH:LINE or PATH::NAME means to a user who is in the folder `here`."""

    def chosen(path: str, line: int | None = None, name: str | None = None) -> PathChoice:
        return PathChoice(given=given, path=Path(os.path.normpath(here / path)), line=line, name=name)

    path, _, name = given.partition(_IN_FILE)
    place = _AT_LINE.fullmatch(given)
    if (here / given).exists():
        return chosen(given)
    if name and path:
        return chosen(path, name=name)
    return chosen(place["path"], line=int(place["line"])) if place else chosen(given)


def name_fits(name: str, texts: Iterable[str]) -> bool:
    """Whether a name contains one of the texts, whatever the case; `=TEXT` is the whole name."""
    return any(
        name == text.removeprefix(EXACTLY) if text.startswith(EXACTLY) else text.casefold() in name.casefold()
        for text in texts
    )


def on_paths(scenarios: Sequence[Scenario], choices: Iterable[PathChoice]) -> list[Scenario]:
    """The scenarios that one of the choices means, in their order."""
    chosen = {id(scenario) for choice in choices for scenario in meant(scenarios, choice)}
    return [scenario for scenario in scenarios if id(scenario) in chosen]


def meant(scenarios: Sequence[Scenario], choice: PathChoice) -> list[Scenario]:
    """The scenarios that a choice means."""
    there = [scenario for scenario in scenarios if choice.has(Path(scenario.file))]
    if choice.name is not None:
        return [scenario for scenario in there if scenario.name == choice.name]
    if choice.line is None:
        return there
    return _at_line(there, choice.line)


def _at_line(scenarios: Sequence[Scenario], line: int) -> list[Scenario]:
    """The scenarios whose call spans the line, or else those that the statement around it makes.

    Several of them where one call makes several, as in a loop.
    """
    if not scenarios:
        return []
    tree = ast.parse(Path(scenarios[0].file).read_bytes())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for nodes in (calls, tree.body):
        spans = [_span(node) for node in nodes if line in _span(node)]
        # The narrowest first: a call may be an argument of another one.
        for span in sorted(spans, key=len):
            found = [scenario for scenario in scenarios if scenario.line in span]
            if found:
                return found
    return []


def _span(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def nearest_to_line(scenarios: Sequence[Scenario], line: int) -> Scenario | None:
    """The scenario of a file that begins nearest to a line."""
    return min(scenarios, key=lambda scenario: abs(scenario.line - line), default=None)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
