"""Rows of data, and the options that each row gives a scenario, for `scenario.each` and `each` in YAML.

Everything raises ValueError. Its message names the file, row or column.
"""

from __future__ import annotations

import copy
import csv
import io
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from agentest.plugin import PLUGINS, PluginError
from agentest.scenarios.matchers.display import brief, type_text
from agentest.scenarios.parser import has_text_keys, kind_of
from agentest.support.calling import message_of_error
from agentest.support.errors import errors_as
from agentest.support.files import MOST_BYTES, readable, user_text
from agentest.support.importing import raised_at
from agentest.support.json_text import json_or, json_value
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import as_text
from agentest.support.text import did_you_mean, nearest, snake_case

RowSource = str | os.PathLike[str] | Iterable[Any]
"""A file, or the rows: mappings, which type checkers join to `object` if their values differ in type."""
MakeOptions = Callable[[dict[str, Any]], Mapping[str, Any]]
_PLACEHOLDER = re.compile(r"(?<!\{)\{([^{}\n]+)\}(?!\})")
_DECLARED = re.compile(r"sep=(.)\n")
csv.field_size_limit(MOST_BYTES)
_DOUBLE = re.compile(r"\{\{\s*+([^{}\n]*[^{}\s])\s*+\}\}")
_NAME = re.compile(r"[^\W\d]\w*(\.\w+)*")
"""A placeholder of this form must name a column. Any other text in braces, like `\\d{3}`, stays as it is."""
_OF_PROMPTS = ("profile", "goal", "knowledge", "date")
"""Placeholders in double braces that scenarios have themselves."""
_TEXTS = ("profile", "goal", "user_prompt_template", "agent", "expected_outcome", "date")
_LISTS = ("knowledge", "turns", "metrics", "criteria", "tags")
_TEXT_ITEM = re.compile(rf"({'|'.join(_LISTS)})\[\d+\](\.(user_message|userMessage|content|text))?")
"""Locations of texts: there a placeholder never becomes a number."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its columns, and its location for messages."""

    columns: Mapping[str, Any]
    location: str
    number: int  # from 1; `{row}`, unless a column has that name
    is_text: bool = False  # True if all values are texts, as in CSV


def read_rows(source: RowSource, folder: Path) -> tuple[Row, ...]:
    """Return the rows of a file, relative to `folder`, or of a list of mappings."""
    if isinstance(source, str | os.PathLike):
        rows = tuple(_rows_of_file(folder / source))
        if not rows:
            raise ValueError(f"{readable(str(source))}: has no row, so it would define no scenario")
        return rows
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise ValueError(f"rows: expected a list of dicts, or the path of a file, found {brief(source)}")
    rows = tuple(Row(_columns(row, f"row {n}"), f"row {n}", n) for n, row in enumerate(source, 1))
    if not rows:
        raise ValueError("rows: is empty, so it would define no scenario")
    return rows


def _columns(row: Any, location: str) -> dict[str, Any]:
    if not has_text_keys(row):
        raise ValueError(f"{location}: expected a dict from column to value, found {kind_of(row)}")
    return dict(row)


def _rows_of_file(path: Path) -> Iterator[Row]:
    name = readable(path.name)
    format = PLUGINS.find("rows format", path.suffix.lower())
    if format is None:
        endings = ", ".join(PLUGINS.all("rows format"))
        raise ValueError(f"{name}: rows are read from {endings}; save it as one of these")
    try:
        for number, row in enumerate(format.load()(path), 1):
            where = f"{name}, row {number}"
            yield row if isinstance(row, Row) else Row(_columns(row, where), where, number)
    except FileNotFoundError:
        others = [
            each.name for each in path.parent.glob("*") if PLUGINS.find("rows format", each.suffix.lower())
        ]
        close = nearest(path.name, others)
        hint = f"; did you mean {readable(close)}?" if close else ""
        raise ValueError(f"{readable(str(path))}: there is no such file{hint}") from None
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror or error}") from None
    except (PluginError, ValueError) as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise ValueError(f"{name}: {format.problem('failed', error)}") from error


def csv_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a table whose first line, after `sep=;` of Excel, names the columns."""
    text, name = user_text(path), readable(path.name)
    declared = _DECLARED.match(text)
    unquoted = re.sub('"[^"]*"', "", text.partition("\n")[0])
    delimiter = declared[1] if declared else max(",;\t|", key=unquoted.count)
    table = text[declared.end() - 1 :] if declared else text
    reader = csv.reader(io.StringIO(table), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    end = number = 0
    try:
        for cells in reader:
            line, end = end + 1, reader.line_num
            location = f"{name}:{line}"
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(cells, location)
            elif len(cells) != len(header):
                raise ValueError(f"{location}: has {len(cells)} cells, but the header has {len(header)}")
            else:
                number += 1
                yield Row(dict(zip(header, cells, strict=True)), location, number, is_text=True)
    except csv.Error as error:
        raise ValueError(f"{name}:{reader.line_num}: the CSV does not parse: {error}") from None


def _header(cells: Sequence[str], location: str) -> list[str]:
    # Tables of pandas begin with the index, which has no name.
    names = [cell.strip() or f"column {at}" for at, cell in enumerate(cells, 1)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{location}: two columns are named {twice!r}")
    return names


def json_lines(path: Path) -> Iterator[Row]:
    """Yield the object of each line."""
    name, number = readable(path.name), 0
    for line_number, line in enumerate(user_text(path).split("\n"), 1):
        location = f"{name}:{line_number}"
        if line.strip():
            with errors_as(ValueError, f"{location}: the JSON does not parse: "):
                value = json_value(line)
            number += 1
            yield Row(_columns(value, location), location, number)


def json_rows(path: Path) -> Iterator[Any]:
    """Yield the objects of a list, or of the lines of a file that is JSON Lines in truth."""
    name, text = readable(path.name), user_text(path)
    first, _, others = text.partition("\n")
    if others.strip() and isinstance(json_or(first), Mapping):
        yield from json_lines(path)
        return
    with errors_as(ValueError, f"{name}: the JSON does not parse: "):
        values = json_value(text)
    if not isinstance(values, list):
        raise ValueError(f"{name}: expected a list of objects, found {kind_of(values)}")
    yield from values


class RowTemplate:
    """The options of a scenario for every row, with placeholders for its columns.

    Args:
        options: the options, in snake case, with the template of the `name`.
        valid: the names of all options.
        make: returns more options for a row.
    """

    def __init__(
        self, options: Mapping[str, Any], valid: Sequence[str], make: MakeOptions | None = None
    ) -> None:
        self.options = options
        self._valid = valid
        self._make = make

    def options_of(self, row: Row) -> dict[str, Any]:
        """Return the options for a row. Columns give options, unless a placeholder uses them as data."""
        filler = _Filler(row)
        template = self.options["name"]
        name = filler.text(template, "name") if isinstance(template, str) else template
        filler.used.clear()
        filled = {key: filler.fill(value, key) for key, value in self.options.items() if key != "name"}
        given = {snake_case(column): column for column in row.columns if column not in filler.used}
        columns = {
            key: _cell(row.columns[column], key) if row.is_text else row.columns[column]
            for key, column in given.items()
            if key in self._valid and key != "name"
        }
        filled |= {key: value for key, value in columns.items() if value is not None}
        return {"name": name, **filled, **self._made(row)}

    def _made(self, row: Row) -> dict[str, Any]:
        if self._make is None:
            return {}
        try:
            made = self._make(dict(row.columns))
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            at = raised_at(error, self._make)
            problem = f"{type(error).__name__}: {message_of_error(error)}".removesuffix(": ")
            raise ValueError(f"options: the function raised {problem}" + (f" ({at})" if at else "")) from None
        if not has_text_keys(made):
            raise ValueError(f"options: expected the function to return a dict, found {kind_of(made)}")
        return {snake_case(key): value for key, value in made.items()}


def _cell(text: str, option: str) -> Any:
    if not text.strip():
        return None
    if option in _TEXTS:
        return text
    try:
        value = json_value(text)
    except ValueError:
        value = text
    is_single = option in _LISTS and not isinstance(value, list)
    return [text] if is_single else value


class _Filler:
    """Replaces the placeholders in options with the columns of a row. `used` has the replaced columns."""

    def __init__(self, row: Row) -> None:
        self._columns = {"row": row.number, **row.columns}
        self.used: set[str] = set()

    def fill(self, value: Any, key: str, *, in_pattern: bool = False) -> Any:
        """Return a value with all placeholders replaced at any depth; the same object if it has none."""
        if isinstance(value, str):
            whole = _PLACEHOLDER.fullmatch(value)
            keeps_type = not (in_pattern or key in _TEXTS or _TEXT_ITEM.fullmatch(key))
            if whole and keeps_type and (found := self._found(whole[1], key)):
                return found[0]
            return self.text(value, key, in_pattern=in_pattern)
        if isinstance(value, Mapping):
            items = {
                self.fill(name, key): self.fill(item, f"{key}.{name}", in_pattern=name == "regex")
                for name, item in value.items()
            }
            same = all(a is b for a, b in zip(items, value, strict=False)) and len(items) == len(value)
            return value if same and all(items[name] is value[name] for name in items) else items
        if type(value) in (list, tuple):
            filled = [self.fill(item, f"{key}[{n}]", in_pattern=in_pattern) for n, item in enumerate(value)]
            return value if all(map(operator.is_, filled, value)) else type(value)(filled)
        return self._filled_object(value, key)

    def text(self, text: str, key: str, *, in_pattern: bool = False) -> str:
        """Return a text with all placeholders replaced by texts."""
        for name in _DOUBLE.findall(text):
            if name in self._columns and name not in _OF_PROMPTS:
                raise ValueError(f"{key}: for the column `{name}` write {{{name}}}, with single braces")

        def replaced(match: re.Match[str]) -> str:
            if not (found := self._found(match[1], key)):
                return match[0]
            (value,) = found
            if value is None:
                raise ValueError(f"{key}: the column `{match[1]}` has no value in this row")
            try:
                written = as_text(value)
            except (TypeError, ValueError, RecursionError):
                what = f"the column `{match[1]}` is {type_text(value)}, which no text can have in it"
                raise ValueError(f"{key}: {what}") from None
            return re.escape(written) if in_pattern else written

        filled = _PLACEHOLDER.sub(replaced, text)
        if not filled and text and key.startswith("turns["):
            raise ValueError(f"{key}: is empty in this row, so the user would say nothing")
        return filled

    def _filled_object(self, value: Any, key: str) -> Any:
        if isinstance(value, re.Pattern):
            if not isinstance(value.pattern, str):
                return value
            pattern = self.text(value.pattern, key, in_pattern=True)
            return value if pattern == value.pattern else re.compile(pattern, value.flags)
        if isinstance(value, BaseException):
            arguments = self.fill(value.args, key)
            if arguments is value.args:
                return value
            filled = copy.copy(value)
            filled.args = arguments
            vars(filled).update({name: self.fill(item, key) for name, item in vars(value).items()})
            return filled
        if is_dataclass(value) and not isinstance(value, type):
            items = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
            changed = {
                name: new
                for name, item in items.items()
                if (new := self.fill(item, f"{key}.{name}")) is not item
            }
            return replace(value, **changed) if changed else value
        return value

    def _found(self, name: str, key: str) -> tuple[Any] | None:
        """Return the value of a placeholder, and note its column; None for any other text in braces."""
        column, *path = [name] if name in self._columns else name.split(".")
        value: Any = self._columns
        for part in (column, *path):
            if not isinstance(value, Mapping) or part not in value:
                if _NAME.fullmatch(name):
                    raise ValueError(
                        f"{key}: there is no column `{name}`; {did_you_mean(name, self._columns)}"
                    )
                return None
            value = value[part]
        self.used.add(column)
        return (value,)
