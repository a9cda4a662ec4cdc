"""The operations of a document as tools: parameters, request bodies and responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from agentest.domain.messages import ToolSpec
from agentest.plugins.servers.rest.document import Document, Node
from agentest.plugins.servers.rest.schema import Schema, check_schema
from agentest.support.errors import ConfigError
from agentest.support.lazy_dataclasses import dataclass

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
PLACES = ("path", "query", "header", "cookie")
_STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The supported styles; the first is the default."""
_NOT_PARAMETERS = frozenset({"accept", "content-type", "authorization"})
_COLLECTIONS = {"ssv": "spaceDelimited", "tsv": "tabDelimited", "pipes": "pipeDelimited"}  # of Swagger 2.0
TEMPLATE = re.compile(r"\{([^{}/]+)\}")
_MAX_URLS = 1000  # of a server with variables
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter in the path, the query, a header or a cookie."""

    name: str
    where: str
    required: bool
    schema: Schema
    style: str
    explode: bool
    is_json: bool = False
    argument: str = ""  # the name of the tool's argument


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyContent:
    """The body of a request or a response: media type → schema; None for any value."""

    required: bool = False
    kinds: Mapping[str, Schema | None] = field(default_factory=dict)
    delimited: Mapping[str, str] = field(default_factory=dict)  # lists that one form field has: their styles


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What an operation accepts and returns."""

    parameters: tuple[Parameter, ...] = ()
    body: BodyContent | None = None
    answers: Mapping[str, BodyContent] = field(default_factory=dict)  # by status, `2XX` or `default`


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation, which is a tool."""

    tool: str
    method: str  # in upper case
    path: str  # the template, like `/orders/{id}`
    interface: Callable[[], Interface] = Interface  # read when it is first needed
    short_name: str | None = None  # the name of FastAPI's function, from which it generated the id
    summary: str = ""  # the document's summary of the operation

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem in a document."""

    place: str  # the operation, the path or the key
    names: frozenset[str]  # those of the operations that cannot be mocked because of it
    text: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Api:
    """All operations of a document. One with a problem is without parameters and schemas."""

    document: Document
    operations: tuple[Operation, ...]
    bases: tuple[str, ...]
    """Possible prefixes of each path, from all `servers` in the document; the longest comes first."""
    keys_in_query: frozenset[str]  # query parameters that are credentials, so that they are not arguments
    problems: tuple[Problem, ...] = ()

    def check(self, needed: Collection[str]) -> None:
        """Raise ConfigError for the first problem of operations that are needed, by any of their names."""
        for each in self.problems:
            if not each.names.isdisjoint(needed):
                raise ConfigError(each.text)

    def named_as(self, mocked: Iterable[str], spoken: Iterable[str] = ()) -> Api:
        """Rename operations to the names that mocks use: their ids, or else FastAPI's functions.

        Names in trajectories (`spoken`) decide the names of operations without a mock.
        """
        mocks, others = frozenset(mocked), frozenset(spoken)
        ids = {each.tool for each in self.operations}
        short = [each.short_name for each in self.operations if each.short_name]

        def name(operation: Operation) -> Operation:
            short_name = operation.short_name
            is_mocked = short_name in mocks or (short_name in others and operation.tool not in others)
            known = is_mocked and operation.tool not in mocks and short_name not in ids
            return (
                replace(operation, tool=short_name)
                if short_name and known and short.count(short_name) == 1
                else operation
            )

        return replace(self, operations=tuple(map(name, self.operations)))


def open_api(path: Path, outputs: Path) -> Api:
    """Read the operations of a document, once for each version of its files. Raises ConfigError.

    Args:
        outputs: the folder of the stored runs.
    """
    if path not in _OPENED or not _OPENED[path].document.is_current():
        _OPENED[path] = read_api(Document(path, outputs))
    return _OPENED[path]


_OPENED: dict[Path, Api] = {}


def read_api(document: Document) -> Api:
    """Read the operations of a document. Raises ConfigError if it has none."""
    reader = _Swagger2Reader if document.version == "2.0" else _OperationReader
    return reader(document).api()


_Part = TypeVar("_Part")


class _OperationReader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._problems: list[Problem] = []
        self._checked: set[int] = set()
        self._read: dict[int, Parameter | None] = {}
        self._ids: dict[str, str] = {}
        self._with_servers = [document.root]

    def api(self) -> Api:
        operations = list(self._operations())
        if not operations and self._problems:
            raise ConfigError(self._problems[0].text)
        if not operations:
            raise self._document.root.error("has no operation: nothing under `paths` that could be a tool")
        api = Api(
            document=self._document,
            operations=tuple(self._named(operations)),
            bases=self._or_noted("servers", (), self._bases) or (),
            keys_in_query=self._or_noted("security", (), self._keys_in_query) or frozenset(),
            problems=tuple(self._problems),
        )
        if not self._document.is_checked:
            self._document.store(
                {each.place: each.text for each in self._problems},
                {str(each): _schema_of_arguments(each) for each in api.operations},
            )
        return api

    def _or_noted(self, place: str, names: Iterable[str], read: Callable[[], _Part]) -> _Part | None:
        """Read a part of the document; None if it has a problem."""
        try:
            if place in self._document.problems:
                raise ConfigError(self._document.problems[place])
            return read()
        except ConfigError as error:
            self._problems.append(Problem(place=place, names=frozenset(names), text=str(error)))
            return None

    def _named(self, operations: list[Operation]) -> Iterator[Operation]:
        used = {each.tool for each in operations}
        for each in operations:
            name = each.tool or made_name(each.method, each.path)
            number = 2
            while not each.tool and name in used:
                name, number = f"{made_name(each.method, each.path)}_{number}", number + 1
            used.add(name)
            yield replace(each, tool=name)

    def _bases(self) -> tuple[str, ...]:
        paths = set()
        for holder in self._with_servers:
            for server in self._document.items(self._document.child(holder, "servers")):
                urls = [str(server.value.get("url", "/") if isinstance(server.value, Mapping) else "/")]
                for name, node in self._document.children(self._document.child(server, "variables")):
                    settings = node.value if isinstance(node.value, Mapping) else {}
                    others = settings.get("enum")
                    values = [settings.get("default", ""), *(others if isinstance(others, list) else ())]
                    made = (url.replace(f"{{{name}}}", str(value)) for value in values for url in urls)
                    urls = list(islice(dict.fromkeys(made), _MAX_URLS))
                paths |= {urlsplit(url).path.rstrip("/") for url in urls}
        return tuple(sorted({f"/{path.lstrip('/')}" for path in paths if path}, key=len, reverse=True))

    def _keys_in_query(self) -> frozenset[str]:
        schemes = self._document.children(self._document.child(self._document.root, *self._SCHEMES))
        settings = (node.value for _, node in schemes if isinstance(node.value, Mapping))
        return frozenset(str(each.get("name")) for each in settings if each.get("in") == "query")

    def _operations(self) -> Iterator[Operation]:
        paths = self._document.child(self._document.root, "paths")
        if paths is None and not self._document.version.startswith("3.1"):
            raise self._document.root.error("the key `paths` is missing")
        for path in self._document.names(paths) if paths else ():
            requests = [f"{method.upper()} {path}" for method in METHODS]
            for item, method in self._or_noted(path, requests, partial(self._methods, paths, path)) or ():
                yield self._operation_or_bare(path, method, item)

    def _methods(self, paths: Node | None, path: str) -> list[tuple[Node, str]]:
        item = paths and self._document.child(paths, path)
        if item and not path.startswith("/"):
            raise item.error(f"the path {path!r} does not begin with `/`")
        return [(item, name) for name in self._document.names(item) if name in METHODS] if item else []

    def _operation_or_bare(self, path: str, method: str, item: Node) -> Operation:
        name, settings = f"{method.upper()} {path}", item.value[method]
        id = str(settings.get("operationId", "")) if isinstance(settings, Mapping) else ""
        names = (name, id, _short_name(id, method, path), made_name(method, path))
        operation = self._or_noted(name, names, partial(self._operation, path, method, item))
        tool = id if self._ids.setdefault(id, name) == name else ""
        return operation or Operation(tool=tool, method=method.upper(), path=path)

    def _operation(self, path: str, method: str, item: Node) -> Operation:
        node = self._document.child(item, method)
        if node is None or not isinstance(node.value, Mapping):
            raise Node(item.file, (*item.at, method), None).error(
                f"expected an operation, found {type(item.value[method]).__name__}"
            )
        self._with_servers += [each for each in (item, node) if isinstance(each.value.get("servers"), list)]
        tool = node.value.get("operationId", "")
        at = Node(node.file, (*node.at, "operationId"), tool)
        if not isinstance(tool, str) or ("operationId" in node.value and not tool.strip()):
            raise at.error(f"expected a text, found {tool!r}")
        if tool and tool in self._ids:
            raise at.error(
                f"{tool!r} is the id of {self._ids[tool]}, too; each operation is a tool and needs its own"
            )
        self._ids[tool] = f"{method.upper()} {path}"
        texts = (node.value.get("summary"), node.value.get("description"))
        short_name = _short_name(tool, method, path)
        interface = cache(partial(self._interface, path, item, node))
        if not self._document.is_checked:
            interface()
        return Operation(
            tool=tool,
            method=method.upper(),
            path=path,
            interface=interface,
            short_name=None if short_name in ("", tool) else short_name,
            summary=next((text for text in texts if isinstance(text, str) and text), ""),
        )

    def _interface(self, path: str, item: Node, node: Node) -> Interface:
        given = [
            each
            for holder in (item, node)
            for each in self._document.items(self._document.child(holder, "parameters"))
        ]
        return Interface(
            parameters=tuple(self._parameters(path, given, node)),
            body=self._body(node, given),
            answers={
                status.upper(): BodyContent(kinds=self._answer(node, answer))
                for status, answer in self._document.children(self._document.child(node, "responses"))
            },
        )

    def _parameters(self, path: str, given: Sequence[Node], node: Node) -> Iterator[Parameter]:
        for each in given:  # operations share most parameters
            if id(each.value) not in self._read:
                self._read[id(each.value)] = self._parameter(each)
        read = filter(None, (self._read[id(each.value)] for each in given))
        known = {(each.where, each.name): each for each in read}
        in_path = [name for where, name in known if where == "path"]
        templates = TEMPLATE.findall(path)
        for name in templates:
            if name not in in_path:
                raise node.error(f"the path has {{{name}}}, and no parameter `{name}` with `in: path`")
        for parameter in known.values():
            if parameter.where != "path" or parameter.name in templates:
                # In a conflict, the path's parameter wins and the other becomes `query_id`.
                clashes = parameter.where == "query" and parameter.name in templates
                yield replace(parameter, argument=f"{'query_' if clashes else ''}{parameter.name}")

    def _parameter(self, node: Node) -> Parameter | None:
        settings = node.value if isinstance(node.value, Mapping) else {}
        name, where = settings.get("name"), settings.get("in")
        if not isinstance(name, str) or not name:
            raise node.error("a parameter needs a `name`")
        if where not in PLACES:
            raise node.error(f"parameter `{name}`: `in` is {where!r}, expected one of {', '.join(PLACES)}")
        if where == "header" and name.lower() in _NOT_PARAMETERS:
            return None
        style, explode = self._style(settings, _STYLES[where][0])
        if style not in _STYLES[where]:
            known = ", ".join(_STYLES[where])
            raise node.error(
                f"parameter `{name}`: there is no style {style!r} in: {where}; known are {known}"
            )
        schema, is_json = self._parameter_schema(node)
        return Parameter(
            name=name,
            where=where,
            required=settings.get("required") is True or where == "path",
            schema=schema or Schema(self._document, Node("", (), True)),
            style=style,
            explode=explode,
            is_json=is_json,
        )

    # What follows is different in Swagger 2.0.

    _SCHEMES: tuple[str, ...] = ("components", "securitySchemes")

    def _style(self, settings: Mapping[str, Any], default: str = "form") -> tuple[Any, bool]:
        """Return the style of a parameter or a form's field, and whether it explodes."""
        style, explode = settings.get("style") or default, settings.get("explode")
        return style, bool(style == "form" if explode is None else explode)

    def _parameter_schema(self, node: Node) -> tuple[Schema | None, bool]:
        """Return a parameter's schema, and whether the parameter is sent as JSON."""
        content = self._content(self._document.child(node, "content"))
        return self._schema_in(node) or next(iter(content.values()), None), any(map(is_json, content))

    def _body(self, operation: Node, _: Sequence[Node]) -> BodyContent | None:
        """Return the body of an operation with these parameters."""
        node = self._document.child(operation, "requestBody")
        if node is None:
            return None
        settings = node.value if isinstance(node.value, Mapping) else {}
        kinds = self._content(self._document.child(node, "content"))
        if not kinds:
            raise node.error("a body needs `content`: its media types and their schemas")
        media = (each for _, each in self._document.children(self._document.child(node, "content")))
        encodings = (self._document.children(self._document.child(each, "encoding")) for each in media)
        delimited = self._delimited(field for fields in encodings for field in fields)
        return BodyContent(required=settings.get("required") is True, kinds=kinds, delimited=delimited)

    def _delimited(self, fields: Iterable[tuple[str, Node]]) -> dict[str, str]:
        read = {name: self._style(each.value) for name, each in fields if isinstance(each.value, Mapping)}
        return {name: str(style) for name, (style, explode) in read.items() if not explode}

    def _answer(self, _: Node, answer: Node) -> dict[str, Schema | None]:
        """Return the schemas of an operation's answer by media type."""
        return self._content(self._document.child(answer, "content"))

    def _content(self, node: Node | None) -> dict[str, Schema | None]:
        return {kind.lower(): self._schema_in(media) for kind, media in self._document.children(node)}

    def _schema_in(self, holder: Node) -> Schema | None:
        value: Any = holder.value.get("schema") if isinstance(holder.value, Mapping) else None
        is_reference = isinstance(value, dict) and isinstance(value.get("$ref"), str) and len(value) > 1
        if is_reference and self._document.version >= "3.1" and isinstance(value.get("allOf", []), list):
            # References are followed to their targets; so, the words beside it would be lost.
            value["allOf"] = [*value.get("allOf", []), {"$ref": value.pop("$ref")}]
        return self._schema(self._document.child(holder, "schema"))

    def _schema(self, node: Node | None) -> Schema | None:
        if node is None:
            return None
        if not self._document.is_checked:
            check_schema(self._document, node, self._checked)
        return Schema(self._document, node)


class _Swagger2Reader(_OperationReader):
    """Reads Swagger 2.0, where a body is a parameter, and other parameters are their own schemas."""

    _SCHEMES = ("securityDefinitions",)

    def _bases(self) -> tuple[str, ...]:
        base = str(self._document.root.value.get("basePath") or "/").strip("/")
        return (f"/{base}",) if base else ()

    def _parameter(self, node: Node) -> Parameter | None:
        return None if _where(node) in ("body", "formData") else super()._parameter(node)

    def _style(self, settings: Mapping[str, Any], default: str = "form") -> tuple[Any, bool]:
        separators = str(settings.get("collectionFormat"))
        return _COLLECTIONS.get(separators, default), separators == "multi"

    def _parameter_schema(self, node: Node) -> tuple[Schema | None, bool]:
        return self._schema(node), False

    def _body(self, operation: Node, parameters: Sequence[Node]) -> BodyContent | None:
        consumes = self._media_types(operation, "consumes")
        for node in reversed(parameters):
            if _where(node) == "body":
                schema = self._schema(self._document.child(node, "schema"))
                required = node.value.get("required") is True
                return BodyContent(required=required, kinds=dict.fromkeys(consumes or [JSON], schema))
        form = {str(each.value.get("name")): each for each in parameters if _where(each) == "formData"}
        if not form:
            return None
        for each in form.values():
            self._schema(each)
        needed = [name for name, each in form.items() if each.value.get("required") is True]
        properties = {name: {"$ref": each.uri} for name, each in form.items()}
        value = {"type": "object", "properties": properties, "required": needed}
        has_file = any(each.value.get("type") == "file" for each in form.values())
        default = "multipart/form-data" if has_file else "application/x-www-form-urlencoded"
        kinds = [kind for kind in consumes if "form" in kind] or [default]
        schema = Schema(self._document, Node("", (), value))
        delimited = self._delimited(form.items())
        return BodyContent(required=bool(needed), kinds=dict.fromkeys(kinds, schema), delimited=delimited)

    def _answer(self, operation: Node, answer: Node) -> dict[str, Schema | None]:
        schema = self._schema(self._document.child(answer, "schema"))
        return dict.fromkeys(self._media_types(operation, "produces") or [JSON], schema) if schema else {}

    def _media_types(self, operation: Node, key: str) -> list[str]:
        declared = operation.value.get(key, self._document.root.value.get(key))
        types = declared if isinstance(declared, list) else []
        return [each.lower() for each in types if isinstance(each, str)]


def _where(parameter: Node) -> Any:
    return parameter.value.get("in") if isinstance(parameter.value, Mapping) else None


def _short_name(id: str, method: str, path: str) -> str:
    return id.removesuffix(re.sub(r"\W", "_", path) + f"_{method}")


def made_name(method: str, path: str) -> str:
    """Make a tool name for an operation without an id: `GET /orders/{id}` → `get_orders_by_id`."""
    words = [method.lower()]
    for part in path.strip("/").split("/"):
        for index, piece in enumerate(TEMPLATE.split(part)):
            if word := re.sub(r"\W+", "_", piece).strip("_"):
                words.append(f"by_{word}" if index % 2 else word)
    return "_".join(words) if len(words) > 1 else f"{words[0]}_root"


def is_json(kind: str) -> bool:
    """True if a media type is JSON."""
    plain = kind.partition(";")[0].strip().lower()
    return plain.endswith(("/json", "+json")) or plain in ("*/*", "application/*")


def operation_specs(api: Api, mocked: Iterable[str], spoken: Iterable[str]) -> Iterator[ToolSpec]:
    """Yield the operations as tools, under the names that mocks or else trajectories use."""
    for each in api.named_as(mocked, spoken).operations:
        parameters = api.document.arguments[str(each)]
        yield ToolSpec(name=each.tool, description=each.summary, parameters=parameters)


def _schema_of_arguments(operation: Operation) -> dict[str, Any]:
    arguments = list(_arguments(operation))
    return {
        "type": "object",
        "properties": {name: schema for name, schema, _ in arguments},
        "required": [name for name, _, required in arguments if required],
    }


def _arguments(operation: Operation) -> Iterator[tuple[str, dict[str, Any], bool]]:
    interface = operation.interface()
    for each in interface.parameters:
        if each.where in ("path", "query"):
            yield each.argument or each.name, _type(each.schema), each.required
    kinds = interface.body.kinds.values() if interface.body else ()
    schema = next((kind for kind in kinds if kind), None)
    for name in schema.properties if schema else ():
        yield name, _type(schema.property(name) if schema else None), False


def _type(schema: Schema | None) -> dict[str, Any]:
    types = sorted(schema.types) if schema else []
    return {"type": types[0] if len(types) == 1 else types} if types else {}
