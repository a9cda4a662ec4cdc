"""The operations of a document as tools: parameters, request bodies and responses."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any
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
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The supported styles; the first is the default."""
_NOT_PARAMETERS = frozenset({"accept", "content-type", "authorization"})
_TEMPLATE = re.compile(r"\{([^{}/]+)\}")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation, which is a tool."""

    tool: str
    method: str  # in upper case
    path: str  # the template, like `/orders/{id}`
    parameters: tuple[Parameter, ...] = ()
    body: BodyContent | None = None
    answers: Mapping[str, BodyContent] = field(default_factory=dict)  # by status, `2XX` or `default`
    short_name: str | None = None  # the name of FastAPI's function, from which it generated the id
    summary: str = ""  # the document's summary of the operation

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """All operations of a document."""

    operations: tuple[Operation, ...]
    bases: tuple[str, ...]
    """Possible prefixes of each path, from the document's `servers`; the longest comes first."""
    keys_in_query: frozenset[str]  # query parameters that are credentials, so that they are not arguments
    problems: tuple[str, ...] = ()  # of operations that nothing needs: their values are not checked

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


def read_api(document: Document, needed: Collection[str] | None = None) -> Api:
    """Read the operations of a document. Raises ConfigError with a location.

    Args:
        needed: the operations, by any of their names, that must be without problems; None: all.
    """
    return _OperationReader(document, needed).api()


class _OperationReader:
    def __init__(self, document: Document, needed: Collection[str] | None) -> None:
        self._document = document
        self._needed = needed
        self._problems: list[str] = []
        self._checked: set[int] = set()
        self._ids: dict[str, str] = {}

    def api(self) -> Api:
        operations = list(self._operations())
        if not operations:
            raise self._document.root.error("has no operation: nothing under `paths` that could be a tool")
        return Api(
            operations=tuple(self._named(operations)),
            bases=tuple(self._bases()),
            keys_in_query=frozenset(self._keys_in_query()),
            problems=tuple(self._problems),
        )

    def _named(self, operations: list[Operation]) -> Iterator[Operation]:
        used = {each.tool for each in operations}
        for each in operations:
            name = each.tool or made_name(each.method, each.path)
            number = 2
            while not each.tool and name in used:
                name, number = f"{made_name(each.method, each.path)}_{number}", number + 1
            used.add(name)
            yield replace(each, tool=name)

    def _bases(self) -> Iterator[str]:
        paths = set()
        for server in self._document.items(self._document.child(self._document.root, "servers")):
            url = server.value.get("url", "/") if isinstance(server.value, Mapping) else "/"
            for name, node in self._document.children(self._document.child(server, "variables")):
                default = node.value.get("default", "") if isinstance(node.value, Mapping) else ""
                url = str(url).replace("{" + name + "}", str(default))
            paths.add(urlsplit(str(url)).path.rstrip("/"))
        return iter(sorted({f"/{path.lstrip('/')}" for path in paths if path}, key=len, reverse=True))

    def _keys_in_query(self) -> Iterator[str]:
        schemes = self._document.child(self._document.root, "components", "securitySchemes")
        for _, node in self._document.children(schemes):
            if isinstance(node.value, Mapping) and node.value.get("in") == "query":
                yield str(node.value.get("name"))

    def _operations(self) -> Iterator[Operation]:
        paths = self._document.child(self._document.root, "paths")
        if paths is None and not self._document.version.startswith("3.1"):
            raise self._document.root.error("the key `paths` is missing")
        for path, item in self._document.children(paths):
            if not path.startswith("/"):
                raise item.error(f"the path {path!r} does not begin with `/`")
            for method, node in self._document.children(item):
                if method in METHODS:
                    yield self._operation_or_bare(path, method, item, node)

    def _operation_or_bare(self, path: str, method: str, item: Node, node: Node) -> Operation:
        """Return the operation; one with a problem that nothing needs is without parameters and schemas."""
        try:
            return self._operation(path, method, item, node)
        except ConfigError as error:
            name = f"{method.upper()} {path}"
            id = str(node.value.get("operationId", "")) if isinstance(node.value, Mapping) else ""
            names = {name, id, _short_name(id, method, path), made_name(method, path)}
            if self._needed is None or not names.isdisjoint(self._needed):
                raise
            self._problems.append(str(error))
            tool = id if self._ids.get(id) == name else ""
            return Operation(tool=tool, method=method.upper(), path=path)

    def _operation(self, path: str, method: str, item: Node, node: Node) -> Operation:
        if not isinstance(node.value, Mapping):
            raise node.error(f"expected an operation, found {type(node.value).__name__}")
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
        return Operation(
            tool=tool,
            method=method.upper(),
            path=path,
            parameters=tuple(self._parameters(path, item, node)),
            body=self._body(self._document.child(node, "requestBody")),
            answers={
                status.upper(): BodyContent(kinds=self._content(self._document.child(answer, "content")))
                for status, answer in self._document.children(self._document.child(node, "responses"))
            },
            short_name=None if short_name in ("", tool) else short_name,
            summary=next((text for text in texts if isinstance(text, str) and text), ""),
        )

    def _parameters(self, path: str, item: Node, node: Node) -> Iterator[Parameter]:
        known: dict[tuple[str, str], Parameter] = {}
        for holder in (item, node):
            for each in self._document.items(self._document.child(holder, "parameters")):
                parameter = self._parameter(each)
                if parameter:
                    known[parameter.where, parameter.name] = parameter
        in_path = [name for where, name in known if where == "path"]
        templates = _TEMPLATE.findall(path)
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
        style = settings.get("style", _STYLES[where][0])
        if style not in _STYLES[where]:
            known = ", ".join(_STYLES[where])
            raise node.error(
                f"parameter `{name}`: there is no style {style!r} in: {where}; known are {known}"
            )
        content = self._content(self._document.child(node, "content"))
        schema = self._schema(self._document.child(node, "schema")) or next(iter(content.values()), None)
        return Parameter(
            name=name,
            where=where,
            required=settings.get("required") is True or where == "path",
            schema=schema or Schema(self._document, Node(node.file, (*node.at, "schema"), True)),
            style=style,
            explode=bool(settings.get("explode", style == "form")),
            is_json=any(map(is_json, content)),
        )

    def _body(self, node: Node | None) -> BodyContent | None:
        if node is None:
            return None
        settings = node.value if isinstance(node.value, Mapping) else {}
        kinds = self._content(self._document.child(node, "content"))
        if not kinds:
            raise node.error("a body needs `content`: its media types and their schemas")
        return BodyContent(required=settings.get("required") is True, kinds=kinds)

    def _content(self, node: Node | None) -> dict[str, Schema | None]:
        return {
            kind.lower(): self._schema(self._document.child(media, "schema"))
            for kind, media in self._document.children(node)
        }

    def _schema(self, node: Node | None) -> Schema | None:
        if node is None:
            return None
        check_schema(self._document, node, self._checked)
        return Schema(self._document, node)


def _short_name(id: str, method: str, path: str) -> str:
    return id.removesuffix(re.sub(r"\W", "_", path) + f"_{method}")


def made_name(method: str, path: str) -> str:
    """Make a tool name for an operation without an id: `GET /orders/{id}` → `get_orders_by_id`."""
    words = [method.lower()]
    for part in path.strip("/").split("/"):
        for index, piece in enumerate(_TEMPLATE.split(part)):
            if word := re.sub(r"\W+", "_", piece).strip("_"):
                words.append(f"by_{word}" if index % 2 else word)
    return "_".join(words) if len(words) > 1 else f"{words[0]}_root"


def is_json(kind: str) -> bool:
    """True if a media type is JSON."""
    plain = kind.partition(";")[0].strip().lower()
    return plain.endswith(("/json", "+json")) or plain in ("*/*", "application/*")


def operation_specs(api: Api, mocked: Iterable[str], spoken: Iterable[str]) -> Iterator[ToolSpec]:
    """Yield the operations as tools, under the names that mocks or else trajectories use."""
    for operation in api.named_as(mocked, spoken).operations:
        arguments = list(_arguments(operation))
        parameters = {
            "type": "object",
            "properties": {name: schema for name, schema, _ in arguments},
            "required": [name for name, _, required in arguments if required],
        }
        yield ToolSpec(name=operation.tool, description=operation.summary, parameters=parameters)


def _arguments(operation: Operation) -> Iterator[tuple[str, dict[str, Any], bool]]:
    for each in operation.parameters:
        if each.where in ("path", "query"):
            yield each.argument or each.name, _type(each.schema), each.required
    kinds = operation.body.kinds.values() if operation.body else ()
    schema = next((kind for kind in kinds if kind), None)
    for name in schema.properties if schema else ():
        yield name, _type(schema.property(name) if schema else None), False


def _type(schema: Schema | None) -> dict[str, Any]:
    types = sorted(schema.types) if schema else []
    return {"type": types[0] if len(types) == 1 else types} if types else {}
