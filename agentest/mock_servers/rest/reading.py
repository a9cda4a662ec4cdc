"""A request read as a tool's call: its arguments, and what in it does not fit the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any

from agentest.mock_servers.rest.bodies import BadBody, read_body
from agentest.mock_servers.rest.operations import Operation, Parameter
from agentest.mock_servers.rest.parameters import MISSING, Pairs, names_of_query, value_of
from agentest.mock_servers.rest.schema import Problem
from agentest.support.spelling import did_you_mean

BODY = "body"
"""The argument that a body is which is no object."""
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, as far as it counts for a call."""

    query: Pairs
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    values: Mapping[str, str]
    """What stands in the path for its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a request says."""

    arguments: Mapping[str, Any]
    problems: tuple[Problem, ...] = ()
    status: int | None = None
    """What is answered where something does not fit; None: what the document says."""
    strangers: tuple[str, ...] = field(default=())
    """What the operation does not know, in words: names in the query, a body. Servers leave it out."""

    @property
    def problem(self) -> str | None:
        """What does not fit, in a sentence."""
        shown = [str(problem) for problem in self.problems[:_SHOWN]]
        return "; ".join(shown) or None


def read_request(operation: Operation, asked: Asked, keys_in_query: frozenset[str]) -> Read:
    """Read a request. It never raises: what does not fit is told.

    Args:
        keys_in_query: names in queries that are credentials.
    """
    arguments: dict[str, Any] = {}
    problems: list[Problem] = []
    for parameter in operation.parameters:
        value = _value(parameter, asked, problems)
        if value is not MISSING and parameter.where in ("path", "query"):
            arguments[parameter.argument] = value
    status = _read_body(operation, asked, arguments, problems)
    return Read(
        arguments=arguments,
        problems=tuple(problems),
        status=status,
        strangers=tuple(_strangers(operation, asked, keys_in_query)),
    )


def _value(parameter: Parameter, asked: Asked, problems: list[Problem]) -> Any:
    """The value of a parameter, MISSING where it has none; what is wrong with it is added."""
    at = (parameter.where, parameter.name)
    try:
        value = value_of(parameter, _pairs(parameter, asked))
    except (ValueError, RecursionError) as error:
        problems.append(Problem(at=at, text=str(error)))
        return MISSING
    if value is not MISSING:
        problems += parameter.schema.problems(value, *at)
    elif parameter.required:
        problems.append(Problem(at=at, text="is missing"))
    return value


def _pairs(parameter: Parameter, asked: Asked) -> Pairs:
    match parameter.where:
        case "path":
            return list(asked.values.items())
        case "query":
            return asked.query
        case "cookie":
            return _cookies(asked.headers.get("cookie", ""))
    told = asked.headers.get(parameter.name.lower())
    return [] if told is None else [(parameter.name, told)]


def _cookies(header: str) -> Pairs:
    try:
        return [(name, morsel.value) for name, morsel in SimpleCookie(header).items()]
    except CookieError:
        return []


def _read_body(
    operation: Operation, asked: Asked, arguments: dict[str, Any], problems: list[Problem]
) -> int | None:
    """Add what the body says to the arguments. Returns the status that its fault has."""
    content = operation.body
    if not asked.body:
        if content and content.required:
            problems.append(Problem(at=(BODY,), text="is missing"))
        return None
    if content is None:
        return None  # nobody reads it
    try:
        value, schema = read_body(asked.body, asked.headers.get("content-type", ""), content)
    except BadBody as error:
        problems.append(Problem(at=(BODY,), text=str(error)))
        return error.status
    if schema:
        problems += schema.problems(value, BODY)
    if not isinstance(value, Mapping):
        arguments[BODY] = value
        return None
    for name, item in value.items():
        arguments[f"{BODY}_{name}" if name in arguments else name] = item
    return None


def _strangers(operation: Operation, asked: Asked, keys_in_query: frozenset[str]) -> Iterator[str]:
    mine = [each for each in operation.parameters if each.where == "query"]
    known = {name for each in mine for name in names_of_query(each)} | keys_in_query
    deep = tuple(f"{each.name}[" for each in mine if each.style == "deepObject")
    if asked.body and operation.body is None:
        yield f"a body of {len(asked.body)} bytes"
    for name in dict.fromkeys(name for name, _ in asked.query):
        if name not in known and not (deep and name.startswith(deep)):
            yield f"`{name}` ({did_you_mean(name, known)})" if known else f"`{name}`"
