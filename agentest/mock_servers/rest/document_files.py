"""Read one file of an OpenAPI document, JSON or YAML, as JSON values with line numbers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from agentest.config.errors import dotted
from agentest.config.file import AliasSizes
from agentest.support.errors import ConfigError
from agentest.support.files import user_text
from agentest.support.json_text import json_value, plainly
from agentest.support.spelling import nearest

At = tuple[str | int, ...]
"""The location of a value in a file: keys and indices from the top."""

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """YAML 1.2 restricted to JSON's values, as OpenAPI requires: a date, `no` and `on` are strings."""


_VALUES = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    "merge": (r"<<", "<"),
}
_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _VALUES.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern})$"), list(_first))


def _integer(_: Any, node: yaml.ScalarNode) -> int:
    try:
        return int(node.value)
    except ValueError as error:
        raise yaml.constructor.ConstructorError(None, None, str(plainly(error)), node.start_mark) from None


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def read_file(path: Path) -> Any:
    """Read a file as JSON values with string keys. Raises ConfigError with file and line."""
    text = _text_of(path)
    if text.lstrip().startswith(("{", "[")):
        try:
            return json_value(text, object_pairs_hook=_unique)
        except ValueError as error:
            if path.suffix == ".json":
                raise ConfigError(f"{path}: the JSON does not parse: {error}") from None
    return _read_yaml(text, path)


def _text_of(path: Path) -> str:
    try:
        return user_text(path)
    except FileNotFoundError:
        close = nearest(path.name, (each.name for each in _beside(path)))
        hint = f"; did you mean {close}?" if close else ""
        raise ConfigError(f"{path}: there is no such file{hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _beside(path: Path) -> Iterable[Path]:
    try:
        return [each for each in path.parent.iterdir() if each.is_file()]
    except OSError:
        return ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} is given twice in one object")
    return made


def _read_yaml(text: str, path: Path) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{path}: is empty")
        AliasSizes(path).measure(node)
        for twice, line in _twice(node, set()):
            raise ConfigError(f"{path}:{line}: the key {twice!r} is given twice")
        return _with_text_keys(loader.construct_document(node))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line_of = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{path}{line_of}: the YAML does not parse: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply, or a part of it contains itself") from None
    finally:
        loader.dispose()


def _twice(node: yaml.Node, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yield keys that occur twice in one mapping, with their lines."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _twice(item, seen)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if str(key.value) in keys and key.value != "<<":
                yield str(key.value), key.start_mark.line + 1
            keys.add(str(key.value))
            yield from _twice(value, seen)


def _with_text_keys(value: Any) -> Any:
    """Convert keys to strings, because YAML reads the status `200` as a number."""
    if isinstance(value, dict):
        return {_key(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key)


def place(path: Path, at: At) -> str:
    """Return `file:line: key` of a value, or of its nearest existing parent."""
    line = _line(path, at)
    key = f": {dotted(at)}" if at else ""
    return f"{path}:{line}{key}" if line else f"{path}{key}"


def _line(path: Path, at: At) -> int | None:
    """Find a line by reading the file again, because only errors need lines."""
    try:
        node = yaml.compose(user_text(path), Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    line = None
    for part in at:
        found = _part_of(node, part)
        if found is None:
            break
        line, node = found
    return line


def _part_of(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if str(key.value) == str(part):
                return key.start_mark.line + 1, value
    return None
