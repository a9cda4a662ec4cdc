"""Load an OpenAPI document and the files that it refers to.

Large documents are read once: their values, and the problems in them, are stored until a file changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

import yaml
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable

from agentest.config.fields import dotted
from agentest.config.yaml_file import parse_yaml
from agentest.support.errors import ConfigError, errors_as
from agentest.support.files import make_folder, modified_ns, user_text, write_atomically
from agentest.support.json_text import json_value, plainly
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean, nearest
from agentest.version import __version__

At = tuple[str | int, ...]  # the location of a value in a file: keys and indices from the top

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


def _object(loader: Any, node: yaml.MappingNode) -> dict[str, Any]:
    """Construct a mapping with its keys as texts, because YAML reads the status `200` as a number."""
    names: set[str] = set()
    for key, _ in node.value:
        if str(key.value) in names and key.value != "<<":
            problem = f"the key {key.value!r} is given twice"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        names.add(str(key.value))
    loader.flatten_mapping(node)
    return {str(key.value): loader.construct_object(value, deep=True) for key, value in node.value}


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:map", _object)


def _parsed(text: str, path: Path) -> Any:
    """Read a text as JSON values with string keys. Raises ConfigError with file and line."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return json_value(text, object_pairs_hook=_unique)
        except ValueError as error:
            if path.suffix == ".json":
                raise ConfigError(f"{path}: the JSON does not parse: {error}") from None
    data = parse_yaml(text, path, _Loader)
    if data is None:
        raise ConfigError(f"{path}: is empty")
    return data


def _text_of(path: Path) -> str:
    try:
        return user_text(path)
    except FileNotFoundError:
        others: list[str] = []
        with suppress(OSError):
            others = [each.name for each in path.parent.iterdir() if each.is_file()]
        close = nearest(path.name, others)
        hint = f"; did you mean {close}?" if close else ""
        raise ConfigError(f"{path}: there is no such file{hint}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} is given twice in one object")
    return made


def _line(path: Path, at: At) -> int | None:
    """Find a line by reading the file again, because only errors need lines."""
    node, line = _composed(path, modified_ns(path)), None
    for part in at:
        if isinstance(node, yaml.SequenceNode) and str(part).isdecimal():
            children = [(item, item) for item in node.value[int(part) : int(part) + 1]]
        elif isinstance(node, yaml.MappingNode):
            children = [(key, value) for key, value in node.value if str(key.value) == str(part)]
        else:
            children = []
        if not children:
            break
        marked, node = children[0]
        line = marked.start_mark.line + 1
    return line


@lru_cache(maxsize=1)  # a document with one problem often has many
def _composed(path: Path, _: int) -> yaml.Node | None:
    with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
        return yaml.compose(user_text(path), Loader=_Loader)
    return None


_MOST_REFERENCES = 100  # the maximum length of a chain of references; longer chains are circular
_STORE_FORMAT = 3  # to be raised when the stored values change
_STORED_CHARS = 50_000  # smaller documents are read again as quickly
_UNREADABLE = ""  # in place of the digest of a file that cannot be read


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the document, and its location."""

    file: str  # the file's URI; "" for a value that was made, whose references are absolute
    at: At
    value: Any

    @property
    def uri(self) -> str:
        """Return its address in the form of a reference."""
        parts = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in self.at)
        return f"{self.file}#{quote(parts)}"

    def error(self, problem: str) -> ConfigError:
        """Return an error with `file:line: key` of the value, or of its nearest existing parent."""
        path = _path(self.file)
        line = _line(path, self.at)
        key = f": {dotted(self.at)}" if self.at else ""
        return ConfigError(f"{path}{f':{line}' if line else ''}{key}: {problem}")


class Document:
    """All files of a document, which are read when a reference leads to them.

    Args:
        outputs: the folder of the stored runs, for what is read of a large document; None: nothing is stored.
    """

    def __init__(self, path: Path, outputs: Path | None = None) -> None:
        """Read the document. Raises ConfigError."""
        self.path = path.resolve()
        self.problems: dict[str, str] = {}
        """Operation → its first problem, after all of them have been checked."""
        self.arguments: dict[str, Any] = {}  # operation → the JSON Schema of its arguments, likewise
        self.has_patterns = False  # True if a checked schema has a `pattern`, which may take long to match
        self._outputs = outputs
        name = f"{hashlib.sha256(bytes(self.path)).hexdigest()[:24]}.json"
        self._store = outputs and outputs / "cache" / "openapi" / name
        self._digests: dict[str, str] = {}
        self._files: dict[str, Any] = {}
        self._read_ns: dict[str, int] = {}  # when the files were changed that have been read
        self.is_checked = self._restore()
        self._targets: dict[tuple[str, str], Node] = {}
        registry: Any = Registry
        self._registry = registry(retrieve=lambda uri: Resource.opaque(self._content(uri)))
        try:
            self.root = Node(self.path.as_uri(), (), self._content(self.path.as_uri()))
            self.version = _version(self.root.value, path)
        except ConfigError as error:
            raise _other_format(self.path) or error from None

    def follow(self, node: Node) -> Node:
        """Return the node itself, or the target of its reference. Raises ConfigError."""
        current = node
        for _ in range(_MOST_REFERENCES):
            if not (isinstance(current.value, Mapping) and isinstance(current.value.get("$ref"), str)):
                return current
            key = current.file, current.value["$ref"]
            if key not in self._targets:
                self._targets[key] = self._target(current)
            current = self._targets[key]
        raise node.error("the reference leads back to itself")

    def _target(self, node: Node) -> Node:
        ref = node.value["$ref"]
        uri, pointer = urldefrag(urljoin(node.file, ref))
        if urlsplit(uri)[:2] != ("file", ""):
            raise node.error(f"`$ref` {ref!r}: documents are never fetched; put the file next to this one")
        if pointer and not pointer.startswith("/"):
            raise node.error(f"`$ref` {ref!r}: expected a path like #/components/schemas/Order")
        with errors_as(node.error, f"`$ref` {ref!r}: ", ConfigError):
            self._content(uri)
        try:
            value = self._registry.resolver(uri).lookup(f"#{pointer}").contents
        except (Unresolvable, ValueError, TypeError):
            raise node.error(f"`$ref` {ref!r} leads nowhere{self._hint(uri, unquote(pointer))}") from None
        return Node(uri, _parts(unquote(pointer)), value)

    def _hint(self, uri: str, pointer: str) -> str:
        value = self._content(uri)
        for part in _parts(pointer):
            names = list(map(str, value)) if isinstance(value, Mapping) else []
            if part not in names:
                is_helpful = names and (nearest(part, names) or len(names) <= 10)
                return f": there is no {part!r}{f'; {did_you_mean(part, names)}' if is_helpful else ''}"
            value = value[part]
        return ""

    def child(self, node: Node, *keys: str | int) -> Node | None:
        """Return a value in a mapping or list, following references; None if it does not exist."""
        target = self.follow(node)
        for key in keys:
            at, value = target.at, target.value
            inside = isinstance(value, Mapping) and key in value
            listed = isinstance(value, list) and isinstance(key, int) and key < len(value)
            if not inside and not listed:
                return None
            target = self.follow(Node(target.file, (*at, key), value[key]))
        return target

    def names(self, node: Node) -> Iterator[str]:
        """Yield the keys of a mapping; extensions (`x-…`) are skipped."""
        if not isinstance(node.value, Mapping):
            raise node.error(f"expected keys and values, found {type(node.value).__name__}")
        return (key for key in node.value if not key.startswith("x-"))

    def children(self, node: Node | None) -> Iterator[tuple[str, Node]]:
        """Yield the values of a mapping by name, following references."""
        for key in self.names(node) if node else ():
            if node and (child := self.child(node, key)):
                yield key, child

    def items(self, node: Node | None) -> Iterator[Node]:
        """Yield the items of a list, following references."""
        if node is None:
            return
        if not isinstance(node.value, list):
            raise node.error(f"expected a list, found {type(node.value).__name__}")
        yield from filter(None, (self.child(node, index) for index in range(len(node.value))))

    def validator(self, node: Node, kind: Callable[..., Any]) -> Any:
        """Return a jsonschema validator for the schema at the node."""
        schema = {"$ref": node.uri} if node.file else node.value
        return kind(schema, registry=self._registry)

    def _content(self, uri: str) -> Any:
        if uri not in self._files:
            path = _path(uri)
            self._read_ns[uri], self._digests[uri] = modified_ns(path), _UNREADABLE
            text = _text_of(path)
            self._digests[uri] = _digest(text)
            self._files[uri] = _parsed(text, path)
        return self._files[uri]

    def is_current(self) -> bool:
        """True if no file has changed since it was read."""
        return all(modified_ns(_path(uri)) == changed for uri, changed in self._read_ns.items())

    def _restore(self) -> bool:
        """Take the stored values and problems. Returns False if a file has changed since."""
        if self._store is None:
            return False
        try:
            stored = self._store.read_text(encoding="utf-8")
            digest, _, text = stored.partition("\n")
            if digest != self._seal(text):  # damaged, of another version, or not of this file
                return False
            digests, files, *checked = json.loads(text)
        except (OSError, ValueError):
            return False
        self._read_ns = {uri: modified_ns(_path(uri)) for uri in digests}
        if any(_digest_of(_path(uri)) != digest for uri, digest in digests.items()):
            return False
        self._digests, self._files = digests, files
        self.problems, self.arguments, self.has_patterns = checked
        return True

    def store(self, problems: dict[str, str], arguments: dict[str, Any]) -> None:
        """Store what was read and what was found in it, if that is worth it."""
        self.problems, self.arguments, self.is_checked = problems, arguments, True
        text = json.dumps([self._digests, self._files, problems, arguments, self.has_patterns])
        if self._outputs and self._store and len(text) >= _STORED_CHARS:
            with suppress(OSError):  # the next run reads the files again
                make_folder(self._outputs, private=True)
                write_atomically(self._store, f"{self._seal(text)}\n{text}".encode())

    def _seal(self, text: str) -> str:
        return _digest(f"{__version__} {_STORE_FORMAT} {self.path}\n{text}")


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def _digest_of(path: Path) -> str:
    try:
        return _digest(user_text(path))
    except (OSError, ValueError):
        return _UNREADABLE


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _version(raw: Any, path: Path) -> str:
    declared = raw.get("openapi", raw.get("swagger")) if isinstance(raw, Mapping) else None
    version = str(declared)
    if declared is None:
        content = f"keys {', '.join(list(raw)[:5])}" if isinstance(raw, Mapping) else type(raw).__name__
        raise ConfigError(
            f"{path}: is not an OpenAPI document: expected the key `openapi` (3.0 or 3.1) or "
            f"`swagger` (2.0), found {content or 'nothing'}"
        )
    if version.startswith(("3.0", "3.1", "3.2")) or (version == "2.0" and "swagger" in raw):
        return version
    raise ConfigError(f"{path}: OpenAPI {version} is not known; 3.0, 3.1 and Swagger 2.0 are")


_OTHER_FORMATS = {
    "a Postman collection": r"_postman_id|getpostman\.com",
    "an Insomnia export": r"__export_format|insomnia\.rest",
    "a HAR file": r'\A\s*\{\s*"log"',
    "an AsyncAPI document": r"^\W*asyncapi\W",
    "an Arazzo document": r"^\W*arazzo\W",
    "a GraphQL schema": r'"__schema"|^(?:extend )?(?:type|schema|input|interface|enum)\b[^:\n]*\{\s*$',
    "a web page": r"\A\s*<(?:!doctype html|html)",
    "XML": r"\A\s*<\?xml",
    "a JSON Schema": r"json-schema\.org",
}
"""What is given by mistake in place of a document → a pattern of its beginning."""


def _other_format(path: Path) -> ConfigError | None:
    beginning = _text_of(path)[:2000]
    for name, pattern in _OTHER_FORMATS.items():
        if re.search(pattern, beginning, re.I | re.M):
            return ConfigError(f"{path}: is {name}; expected the API's document in OpenAPI 3 or Swagger 2.0")
    return None


def _parts(pointer: str) -> tuple[str, ...]:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
