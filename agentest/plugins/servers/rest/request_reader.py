"""Read an HTTP request as a tool call: find its operation, read the arguments and report violations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import unquote

from agentest.plugins.servers.rest.operations import TEMPLATE, Api, Operation, Parameter
from agentest.plugins.servers.rest.request_values import (
    MISSING,
    Pairs,
    UnreadableRequest,
    names_of_query,
    read_body,
    value_of,
)
from agentest.plugins.servers.rest.schema import SchemaViolation
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean, first_names, nearest

BODY = "body"  # the argument for a body that is not an object


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHttpRequest:
    """The parts of a request that matter for a call."""

    query: Pairs
    headers: Mapping[str, str]  # by lower-case name
    body: bytes
    values: Mapping[str, str]  # the path's values for its parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """The arguments and the problems of a request."""

    arguments: Mapping[str, Any]
    problems: tuple[SchemaViolation, ...] = ()
    status: int | None = None  # the response status for problems; None for the status in the document
    strangers: tuple[str, ...] = field(default=())
    """Descriptions of unknown query parameters and bodies, which servers ignore."""

    @property
    def problem(self) -> str | None:
        """The problems in one sentence."""
        return "; ".join(map(str, self.problems[:5])) or None


def read_request(
    operation: Operation, request: ToolHttpRequest, keys_in_query: frozenset[str]
) -> ParsedRequest:
    """Read a request; `keys_in_query` are credentials. Never raises: problems are part of the result."""
    arguments: dict[str, Any] = {}
    problems: list[SchemaViolation] = []
    for parameter in operation.interface().parameters:
        value = _value(parameter, request, problems)
        if value is not MISSING and parameter.where in ("path", "query"):
            arguments[parameter.argument] = value
    status = _read_body(operation, request, arguments, problems)
    return ParsedRequest(
        arguments=arguments,
        problems=tuple(problems),
        status=status,
        strangers=tuple(_strangers(operation, request, keys_in_query)),
    )


def _value(parameter: Parameter, request: ToolHttpRequest, problems: list[SchemaViolation]) -> Any:
    at = (parameter.where, parameter.name)
    try:
        value = value_of(parameter, _pairs(parameter, request))
    except (ValueError, RecursionError) as error:
        problems.append(SchemaViolation(at=at, text=str(error)))
        return MISSING
    if value is not MISSING:
        problems += parameter.schema.problems(value, *at)
    elif parameter.required:
        problems.append(SchemaViolation(at=at, text="is missing"))
    return value


def _pairs(parameter: Parameter, request: ToolHttpRequest) -> Pairs:
    match parameter.where:
        case "path":
            return list(request.values.items())
        case "query":
            return request.query
        case "cookie":
            with suppress(CookieError):
                cookies = SimpleCookie(request.headers.get("cookie", ""))
                return [(name, morsel.value) for name, morsel in cookies.items()]
            return []
    header = request.headers.get(parameter.name.lower())
    return [] if header is None else [(parameter.name, header)]


def _read_body(
    operation: Operation, request: ToolHttpRequest, arguments: dict[str, Any], problems: list[SchemaViolation]
) -> int | None:
    content = operation.interface().body
    if not request.body:
        if content and content.required:
            problems.append(SchemaViolation(at=(BODY,), text="is missing"))
        return None
    if content is None:
        return None  # the operation has no body
    try:
        value, schema = read_body(request.body, request.headers.get("content-type", ""), content)
    except UnreadableRequest as error:
        problems.append(SchemaViolation(at=(BODY,), text=str(error)))
        return error.status
    if schema:
        problems += schema.problems(value, BODY)
    if not isinstance(value, Mapping):
        arguments[BODY] = value
        return None
    for name, item in value.items():
        arguments[f"{BODY}_{name}" if name in arguments else name] = item
    return None


def _strangers(
    operation: Operation, request: ToolHttpRequest, keys_in_query: frozenset[str]
) -> Iterator[str]:
    mine = [each for each in operation.interface().parameters if each.where == "query"]
    known = {name for each in mine for name in names_of_query(each)} | keys_in_query
    deep = tuple(f"{each.name}[" for each in mine if each.style == "deepObject")
    if request.body and operation.interface().body is None:
        yield f"a body of {len(request.body)} bytes"
    for name in dict.fromkeys(name for name, _ in request.query):
        if name not in known and not (deep and name.startswith(deep)):
            yield f"`{name}` ({did_you_mean(name, known)})" if known else f"`{name}`"


_CONVERSATION = re.compile(r"/c/([^/]+)(/.*)?")
_KEY = re.compile(r"[0-9a-f]{24}")
_MAX_LISTED_OPERATIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTarget:
    """The target of a request."""

    conversation: str | None  # the conversation that the path names
    path: str  # the path in the document, without conversation and base
    operation: Operation | None = None
    values: Mapping[str, str]  # the path's values for its parameters
    methods: tuple[str, ...] = ()
    """The methods that the path supports, if the request's method is not one of them."""


class Routes:
    """The paths of an API."""

    def __init__(self, api: Api) -> None:
        self._api = api
        by_path: dict[str, list[Operation]] = {}
        for operation in api.operations:
            by_path.setdefault(operation.path, []).append(operation)

        def openness(path: str) -> list[tuple[int, str]]:
            # More literal paths come first, compared part by part.
            return [("{" in p and 1 + bool(TEMPLATE.fullmatch(p)), p) for p in path.split("/")]

        def pattern(path: str) -> re.Pattern[str]:
            parts = TEMPLATE.split(path)
            return re.compile(
                "".join("([^/]+?)" if i % 2 else re.escape(part) for i, part in enumerate(parts))
            )

        self._paths = [(pattern(path), by_path[path]) for path in sorted(by_path, key=openness)]

    def find(self, method: str, raw_path: str) -> RequestTarget:
        """Find the target of a request. `raw_path` is as sent, with `%2F` for a slash within a segment."""
        path = re.sub("/{2,}", "/", raw_path)
        match = _CONVERSATION.fullmatch(path)
        if match is None:
            return self._found(method, path, None)
        inside = self._found(method, match[2] or "/", unquote(match[1]))
        if inside.operation or _KEY.fullmatch(match[1]):
            return inside
        target = self._found(method, path, None)
        return target if target.operation or target.methods else inside

    def describe_operations(self, path: str) -> str:
        """Describe the available operations, for the sender of an unknown request."""
        close = nearest(path, [operation.path for operation in self._api.operations])
        listed = first_names([str(each) for each in self._api.operations], _MAX_LISTED_OPERATIONS)
        return (f"the nearest path is {close}; " if close else "") + f"there are {listed}"

    def _found(self, method: str, path: str, conversation: str | None) -> RequestTarget:
        methods: tuple[str, ...] = ()
        # Clients may or may not include the base path of the real API.
        bases = [base for base in self._api.bases if path == base or path.startswith(base + "/")]
        for each in (*(path[len(base) :] or "/" for base in bases), path):
            other_end = each[:-1] if each.endswith("/") else each + "/"
            for pattern, operations in self._paths:
                match = pattern.fullmatch(each) or pattern.fullmatch(other_end)
                if match is None:
                    continue
                operation = next((operation for operation in operations if operation.method == method), None)
                if operation:
                    values = dict(zip(TEMPLATE.findall(operation.path), match.groups(), strict=True))
                    return RequestTarget(
                        conversation=conversation,
                        path=each,
                        operation=operation,
                        values={name: unquote(value) for name, value in values.items()},
                    )
                methods = methods or tuple(operation.method for operation in operations)
        return RequestTarget(conversation=conversation, path=path, values={}, methods=methods)
