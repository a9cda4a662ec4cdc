"""Load an OpenAPI document and the files that it refers to, in one schema dialect."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import yaml

from agentest.config.fields import dotted
from agentest.config.yaml_file import AliasSizes
from agentest.support.errors import ConfigError, errors_as
from agentest.support.files import user_text
from agentest.support.json_text import json_value, plainly
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean, nearest

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
        others: list[str] = []
        with suppress(OSError):
            others = [each.name for each in path.parent.iterdir() if each.is_file()]
        close = nearest(path.name, others)
        hint = f"; did you mean {close}?" if close else ""
        raise ConfigError(f"{path}: there is no such file{hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


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


def _twice(node: yaml.Node, visited: set[int]) -> Iterator[tuple[str, int]]:
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _twice(item, visited)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if str(key.value) in keys and key.value != "<<":
                yield str(key.value), key.start_mark.line + 1
            keys.add(str(key.value))
            yield from _twice(value, visited)


def _with_text_keys(value: Any) -> Any:
    """Convert keys to strings, because YAML reads the status `200` as a number."""
    if isinstance(value, dict):
        return {k if isinstance(k, str) else json.dumps(k): _with_text_keys(v) for k, v in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _line(path: Path, at: At) -> int | None:
    """Find a line by reading the file again, because only errors need lines."""
    try:
        node = yaml.compose(user_text(path), Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    line = None
    for part in at:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            children = [(item, item) for item in node.value[part : part + 1]]
        elif isinstance(node, yaml.MappingNode):
            children = [(key, value) for key, value in node.value if str(key.value) == str(part)]
        else:
            children = []
        if not children:
            break
        marked, node = children[0]
        line = marked.start_mark.line + 1
    return line


_MOST_REFERENCES = 100  # the maximum length of a chain of references; longer chains are circular


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the document, and its location."""

    file: Path
    at: At
    value: Any

    @property
    def uri(self) -> str:
        """Return its address in the form of a reference."""
        parts = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in self.at)
        return f"{self.file.as_uri()}#{quote(parts)}"

    def error(self, problem: str) -> ConfigError:
        """Return an error with `file:line: key` of the value, or of its nearest existing parent."""
        line = _line(self.file, self.at)
        key = f": {dotted(self.at)}" if self.at else ""
        return ConfigError(f"{self.file}{f':{line}' if line else ''}{key}: {problem}")


class Document:
    """All files of a document. A reference without a target is an error where it is followed."""

    def __init__(self, path: Path) -> None:
        """Read the file and those that it refers to. Raises ConfigError."""
        self.path = path.resolve()
        raw = read_file(self.path)
        self.version = _version(raw, path)
        self.source: Mapping[str, Any] = raw  # the main file, unchanged
        if self.version == "2.0":
            raw = from_swagger_2(raw)
        self._files: dict[Path, Any] = {}
        self._raw: dict[Path, Any] = {self.path: raw}
        self._broken: dict[str, ConfigError] = {}  # what replaces a reference without a target → the problem
        self._inlined = list[str]()  # references whose targets are being converted in their place
        self._waiting = [self.path]
        while self._waiting:
            file = self._waiting.pop()
            self._files[file] = self._converted(Node(file, (), self._raw[file]), named=False)
        self.root = Node(self.path, (), self._files[self.path])
        self._registry: Any = None

    @cached_property
    def has_patterns(self) -> bool:
        """True if a schema has a `pattern`, which may take long to match."""
        return any('"pattern":' in json.dumps(content) for content in self._files.values())

    def follow(self, node: Node) -> Node:
        """Return the node itself, or the target of its reference. Raises ConfigError for a circle."""
        current = node
        for _ in range(_MOST_REFERENCES):
            if not _is_reference(current.value):
                return current
            if problem := self._broken.get(current.value["$ref"]):
                raise problem
            current = self._at_address(current.value["$ref"])
        raise node.error("the reference leads back to itself")

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

    def children(self, node: Node | None) -> Iterator[tuple[str, Node]]:
        """Yield the values of a mapping by key, following references; extensions (`x-…`) are skipped."""
        if node is None:
            return
        if not isinstance(node.value, Mapping):
            raise node.error(f"expected keys and values, found {type(node.value).__name__}")
        for key in node.value:
            child = self.child(node, key)
            if child and not str(key).startswith("x-"):
                yield key, child

    def items(self, node: Node | None) -> Iterator[Node]:
        """Yield the items of a list, following references."""
        if node is None:
            return
        if not isinstance(node.value, list):
            raise node.error(f"expected a list, found {type(node.value).__name__}")
        for index in range(len(node.value)):
            item = self.child(node, index)
            if item:
                yield item

    def validator(self, node: Node, **options: Any) -> Any:
        """Return a jsonschema validator for the schema at the node."""
        from jsonschema import Draft202012Validator
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        if self._registry is None:
            files = [
                (file.as_uri(), DRAFT202012.create_resource(value)) for file, value in self._files.items()
            ]
            self._registry = Registry().with_resources(files)
        kind = options.pop("kind", Draft202012Validator)
        return kind({"$ref": node.uri}, registry=self._registry, **options)

    def _converted(self, node: Node, *, named: bool) -> Any:
        value, at = node.value, node.at
        if isinstance(value, list):
            return [self._converted(Node(node.file, (*at, i), v), named=False) for i, v in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        if _is_reference(value):
            try:
                target = self._checked(node)
                if named and target.uri in self._inlined:
                    raise node.error("the reference leads back to itself")
            except ConfigError as error:
                self._broken[f"broken:{node.uri}"] = error
                return {**value, "$ref": f"broken:{node.uri}"}
            if named:  # a reference in place of all properties
                self._inlined.append(target.uri)
                made = self._converted(target, named=True)
                self._inlined.pop()
                return made
            value = {**value, "$ref": target.uri}
        made = {
            key: item
            if key == "$ref" or (not named and (key in NO_SCHEMAS or key.startswith("x-")))
            else self._converted(Node(node.file, (*at, key), item), named=not named and key in NAMED)
            for key, item in value.items()
        }
        return made if named else as_json_schema(made)

    def _checked(self, node: Node) -> Node:
        ref = node.value["$ref"]
        address = urlsplit(ref)
        if address.scheme or address.netloc:
            raise node.error(f"`$ref` {ref!r}: documents are never fetched; put the file next to this one")
        file = (node.file.parent / unquote(address.path)).resolve() if address.path else node.file
        at = _parts(unquote(address.fragment))
        if at is None:
            raise node.error(f"`$ref` {ref!r}: expected a path like #/components/schemas/Order")
        with errors_as(node.error, f"`$ref` {ref!r}: ", ConfigError):
            if file not in self._raw:
                self._raw[file] = read_file(file)
                self._waiting.append(file)
            target = self._raw[file]
        value, path = target, list[str | int]()
        for part in at:
            if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                path.append(int(part))
            elif isinstance(value, Mapping) and part in value:
                path.append(part)
            else:
                names = list(map(str, value)) if isinstance(value, Mapping) else []
                is_helpful = names and (nearest(part, names) or len(names) <= 10)
                hint = f"; {did_you_mean(part, names)}" if is_helpful else ""
                raise node.error(f"`$ref` {ref!r} leads nowhere: there is no {part!r}{hint}")
            value = value[path[-1]]
        return Node(file, tuple(path), value)

    def _at_address(self, uri: str) -> Node:
        address, _, fragment = uri.partition("#")
        file = next(file for file in self._files if file.as_uri() == address)
        node = Node(file, (), self._files[file])
        for part in _parts(unquote(fragment)) or ():
            key: Any = int(part) if isinstance(node.value, list) else part
            node = Node(file, (*node.at, key), node.value[key])
        return node


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


def _is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("$ref"), str)


def _parts(pointer: str) -> tuple[str, ...] | None:
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        return None
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))


NAMED = frozenset(
    [
        "properties",
        "patternProperties",
        "definitions",
        "$defs",
        "dependentSchemas",
        "schemas",
        "parameters",
        "responses",
        "requestBodies",
        "headers",
        "paths",
        "pathItems",
        "callbacks",
        "content",
        "securitySchemes",
    ]
)
"""Keys whose values are mappings with names of the user."""
NO_SCHEMAS = frozenset({"example", "examples", "default", "enum", "const"})
"""Keys whose values are data, which is not interpreted."""
_BOUNDS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def as_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a schema of any dialect; other parts of a document stay unchanged."""
    made = {key: value for key, value in schema.items() if key != "$id"}
    for exclusive, bound in _BOUNDS.items():
        if isinstance(made.get(exclusive), bool) and (made.pop(exclusive) and bound in made):
            made[exclusive] = made.pop(bound)
    if made.get("type") == "file":
        made["type"] = "string"
    return _nullable(made) if made.pop("nullable", None) is True else made


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if not isinstance(kind, str):
        return {"anyOf": [schema, {"type": "null"}]}
    made = {**schema, "type": [kind, "null"]}
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        made["enum"] = [*schema["enum"], None]
    return made


_JSON = "application/json"
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_OF_PARAMETER = frozenset({"name", "in", "required", "description", "collectionFormat", "allowEmptyValue"})
_STYLES = {"ssv": "spaceDelimited", "pipes": "pipeDelimited"}


def from_swagger_2(document: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the document to the form of OpenAPI 3."""
    paths = document.get("paths")
    made = {**document, "servers": [{"url": str(document.get("basePath") or "/")}]}
    if isinstance(document.get("securityDefinitions"), Mapping):
        made["components"] = {"securitySchemes": document["securityDefinitions"]}
    if isinstance(paths, Mapping):
        made["paths"] = {
            path: _item(document, item) if isinstance(item, Mapping) else item for path, item in paths.items()
        }
    return made


def _item(document: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    shared = _parameters(document, item)
    made = {**item, "parameters": _plain(shared)}
    for method in _METHODS:
        if isinstance(item.get(method), Mapping):
            made[method] = _operation(document, item[method], shared)
    return made


def _operation(
    document: Mapping[str, Any], operation: Mapping[str, Any], shared: list[Any]
) -> dict[str, Any]:
    def media_types(key: str) -> list[str]:
        declared = operation.get(key, document.get(key))
        return [each for each in declared if isinstance(each, str)] if isinstance(declared, list) else []

    parameters = _parameters(document, operation)
    made = {**operation, "parameters": _plain(parameters)}
    if body := _body([*parameters, *shared], media_types("consumes") or [_JSON]):
        made["requestBody"] = body
    if isinstance(operation.get("responses"), Mapping):
        made["responses"] = {}
        for status, response in operation["responses"].items():
            known = _dereferenced(document, response)
            if isinstance(known, Mapping) and "schema" in known:
                kinds = media_types("produces") or [_JSON]
                response = {**known, "content": {kind: {"schema": known["schema"]} for kind in kinds}}
            made["responses"][status] = response
    return made


def _parameters(document: Mapping[str, Any], holder: Mapping[str, Any]) -> list[Any]:
    parameters = holder.get("parameters")
    return [_dereferenced(document, each) for each in parameters] if isinstance(parameters, list) else []


def _dereferenced(document: Mapping[str, Any], value: Any) -> Any:
    ref = value.get("$ref") if isinstance(value, Mapping) else None
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return value
    target: Any = document
    for part in _parts(ref[1:]) or ():
        target = target.get(part) if isinstance(target, Mapping) else None
    return value if target is None else target


def _plain(parameters: list[Any]) -> list[Any]:
    plain: list[Any] = []
    for each in parameters:
        if not isinstance(each, Mapping) or "$ref" in each:
            plain.append(each)
        elif each.get("in") not in ("body", "formData"):
            kept = {key: each[key] for key in ("name", "in", "required") if key in each}
            separators = each.get("collectionFormat", "csv")
            style = {"style": _STYLES[separators]} if separators in _STYLES else {}
            plain.append({**kept, **style, "explode": separators == "multi", "schema": _schema(each)})
    return plain


def _schema(parameter: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameter.items() if key not in _OF_PARAMETER}


def _body(parameters: list[Any], consumes: list[str]) -> dict[str, Any] | None:
    known = [each for each in parameters if isinstance(each, Mapping)]
    for each in known:
        if each.get("in") == "body":
            content = {kind: {"schema": each.get("schema", {})} for kind in consumes}
            return {"required": each.get("required") is True, "content": content}
    form = [each for each in known if each.get("in") == "formData"]
    if not form:
        return None
    required = [each.get("name") for each in form if each.get("required") is True]
    schema = {
        "type": "object",
        "properties": {str(each.get("name")): _schema(each) for each in form},
        **({"required": required} if required else {}),
    }
    has_file = any(each.get("type") == "file" for each in form)
    default = "multipart/form-data" if has_file else "application/x-www-form-urlencoded"
    kinds = [kind for kind in consumes if "form" in kind] or [default]
    return {"required": bool(required), "content": {kind: {"schema": schema} for kind in kinds}}
