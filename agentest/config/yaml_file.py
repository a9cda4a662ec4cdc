"""Read YAML files of users, with the line of every key and errors that name it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from agentest.config.fields import Path_, dotted
from agentest.support.errors import ConfigError, errors_as
from agentest.support.files import user_text
from agentest.support.json_text import plainly
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import snake_case

_AS_TEXT = (("timestamp",), ("timestamp", "bool"))
_TEXT_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
_TAB = re.compile(r" *\t")
_UNQUOTED = re.compile(r"(?<![\"'\w])(\{\{ *[\w.]+ *\}\})")
MAX_BYTES = 5_000_000  # size limit of a YAML file of a user, because YAML needs minutes for larger files
TOO_DEEP = "is nested too deeply, or a part of it contains itself"
_MAX_REPEATED_VALUES = 100_000
"""Limit on the values that aliases (`*name`) add to a file: as many as a machine reads in a second."""
_CHARACTERS_PER_VALUE = 100  # a repeated text counts as one more value for every 100 characters


class _LoaderWithoutDates(yaml.SafeLoader):
    """A loader that leaves dates, and the words yes, no, on and off, as the texts that were written."""


_LoaderWithoutDates.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0].rpartition(":")[2] not in _AS_TEXT[first in "yYnNoO"]]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The content of a YAML file, and the line of each key and list item.

    Positions in `lines` have keys in snake case.
    """

    data: Any
    lines: dict[Path_, int]


def read_yaml(path: Path, source: bytes | None = None, *, has_dates: bool = True) -> YamlDocument:
    """Read a YAML file. Raises ConfigError with file and line.

    Args:
        source: replaces the content of the file, which need not exist.
        has_dates: False to leave dates, yes and no as texts, because the JSON of calls and replies has none.
    """
    lines: dict[Path_, int] = {}
    with errors_as(ConfigError, f"{path}: cannot be read: ", OSError):
        text = user_text(path, MAX_BYTES) if source is None else source.decode()
    kind = yaml.SafeLoader if has_dates else _LoaderWithoutDates
    data = parse_yaml(text, path, kind, lambda node: _note_lines(node, (), lines, path))
    return YamlDocument(data, lines)


def parse_yaml(
    text: str, path: Path, kind: Any, on_node: Callable[[yaml.Node], object] = lambda _: None
) -> Any:
    """Return the content of a YAML file; None if it is empty. Raises ConfigError with file and line.

    Args:
        kind: the class of the loader.
        on_node: receives the file's node before it is constructed, which changes nodes with merge keys.
    """
    try:
        loader = kind(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _AliasSizes(path).measure(node)
            on_node(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        rows = text.splitlines()
        if mark and mark.line < len(rows) and _TAB.match(rows[mark.line]):
            problem = "the line is indented with a tab; YAML takes spaces only"
        hint = _placeholder_hint(rows, mark.line) if mark else ""
        if "',' or" in problem and not hint:
            hint = '; quote the texts of the list or mapping: ["Where is it?"]'
        raise ConfigError(f"{path}{line}: the YAML does not parse: {problem}{hint}") from None
    except ValueError as error:  # a date such as 2024-13-45
        raise ConfigError(f"{path}: the YAML does not parse: {plainly(error)}") from None
    except RecursionError:
        raise ConfigError(f"{path}: {TOO_DEEP}") from None


def _placeholder_hint(lines: list[str], number: int) -> str:
    unquoted = _UNQUOTED.search(lines[number]) if number < len(lines) else None
    return f'; placeholders stand in quotes: "{unquoted[1]}"' if unquoted else ""


def _note_lines(node: yaml.Node, at: Path_, lines: dict[Path_, int], path: Path) -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[*at, index] = item.start_mark.line + 1
            _note_lines(item, (*at, index), lines, path)
    if isinstance(node, yaml.MappingNode):
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            where = f"{path}:{line}: the key `{dotted((*at, key))}`"
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag not in _TEXT_TAGS:
                raise ConfigError(f"{where} is not a text for YAML; put it in quotes")
            if key in first_lines and key != "<<":
                raise ConfigError(f"{where} is given twice, first on line {first_lines[key]}")
            first_lines[key] = line
            lines[*at, snake_case(key)] = line
            _note_lines(value_node, (*at, snake_case(key)), lines, path)


class _AliasSizes:
    """Counts the values that each YAML node stands for, with its aliases expanded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[yaml.Node, int] = {}
        self._entered: set[yaml.Node] = set()
        self._written = 0  # values so far, without repetitions

    def measure(self, node: yaml.Node) -> int:
        """Return the size of a node. Raises ConfigError if aliases make it too large."""
        if node in self._entered and node not in self._sizes:
            raise RecursionError  # the node contains itself
        if node not in self._sizes:
            self._entered.add(node)
            is_text = isinstance(node, yaml.ScalarNode)
            size = 1 + (len(node.value) // _CHARACTERS_PER_VALUE if is_text else 0)
            self._written += size
            self._sizes[node] = size + sum(map(self.measure, _children(node)))
            if self._sizes[node] - self._written > _MAX_REPEATED_VALUES:
                raise ConfigError(
                    f"{self._path}:{node.start_mark.line + 1}: aliases (`*name`) repeat parts of the file so "
                    f"often that more than {_MAX_REPEATED_VALUES:,} values come of it; write out what is "
                    "really needed"
                )
        return self._sizes[node]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
