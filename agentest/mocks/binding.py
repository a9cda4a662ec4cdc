"""The kinds of mocks, and how a function's parameters receive a tool call's arguments.

A function whose parameters are `args` (and `ctx`), or one or two that begin with `_`, receives the raw
argument dict and the context. A function without parameters accepts any call. Any other function is bound by
name and type, like a Python call: pydantic checks and converts the values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from dis import get_instructions
from functools import partial
from types import FunctionType
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticInvalidForJsonSchema,
    PydanticUserError,
    ValidationError,
    create_model,
)

from agentest.domain.changes import ChangedAnswers
from agentest.domain.messages import ToolSpec
from agentest.support.calling import is_async
from agentest.support.errors import errors_as
from agentest.support.json_text import NotJson, check_plain
from agentest.support.lazy_dataclasses import dataclass

_RAW = {"args", "ctx"}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class MockSequence:
    """Answers in order and repeats the last one. Its position is stored in each conversation."""

    steps: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A tool's recorded answer to a call with exactly these arguments, from an evaluation set."""

    name: str
    args: Mapping[str, Any]
    result: Any


class InvalidArguments(ValueError):
    """The agent's arguments do not fit the function's parameters."""


@dataclass(frozen=True, slots=True)
class BoundFunction:
    """A mock function and how to call it."""

    function: Callable[..., Any]
    is_async: bool  # True if a call only creates a coroutine
    positions: int | None
    """Number of positional parameters for the raw arguments and the context; None: passed by name."""
    takes_args: bool = False
    takes_ctx: bool = False
    model: type[BaseModel] | None = None
    """Checks the arguments of a function that is bound by name; None if they are passed raw or ignored."""
    may_block: bool = True  # False if the function's code shows that a call takes no time

    @property
    def receives_context(self) -> bool:
        """True if a call receives the context, and with it the state."""
        return self.takes_ctx or self.positions == 2

    def __call__(self, args: Mapping[str, Any], ctx: object) -> Any:
        """Call the function. Raises InvalidArguments, or any exception of the function."""
        if self.positions is not None:
            return self.function(*(dict(args), ctx)[: self.positions])
        keywords: dict[str, Any] = {}
        if self.takes_args:
            keywords["args"] = dict(args)
        elif self.model is not None:
            keywords = _validated(self.model, args)
        if self.takes_ctx:
            keywords["ctx"] = ctx  # last: an agent may send an argument of this name to a `**` function
        return self.function(**keywords)


Mock = Any
"""A JSON-serializable value, a BoundFunction, an exception, a MockSequence, or one with ChangedAnswers."""


def steps_of(mock: Mock) -> tuple[Any, ...]:
    """Return the answers of a mock in order: those of a sequence, or the mock itself."""
    if isinstance(mock, ChangedAnswers):
        mock = mock.mock
    return mock.steps if isinstance(mock, MockSequence) else (mock,)


def bind(function: Callable[..., Any]) -> BoundFunction:
    """Read a function's signature. Raises TypeError or ValueError if it cannot be bound."""
    bound = _bind(function)
    return replace(bound, may_block=False) if _is_instant(bound) else bound


def _bind(function: Callable[..., Any]) -> BoundFunction:
    parameters = inspect.signature(function).parameters
    named = [p for p in parameters.values() if p.kind not in _VARIADIC]
    names, waits = {p.name for p in named}, is_async(function)
    if _takes_raw_by_position(named):
        return BoundFunction(function, waits, len(named))
    for parameter in named:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TypeError(f"parameter `{parameter.name}` is positional-only, but tools are called by name")
    takes_ctx = "ctx" in names
    if "args" in names and names <= _RAW:
        return BoundFunction(function, waits, None, True, takes_ctx)
    if names > _RAW:
        others = ", ".join(f"`{name}`" for name in sorted(names - _RAW))
        raise TypeError(f"it takes all arguments in `args`, so nothing is left for {others}")
    if names <= {"ctx"} and not _takes_any(parameters):
        return BoundFunction(function, waits, None, takes_ctx=takes_ctx)
    model = _shared_model(function, parameters)
    return BoundFunction(function, waits, None, takes_ctx=takes_ctx, model=model)


_CONTEXT_FIELDS = frozenset({"call_index", "conversation_id", "scenario", "state", "turn_index"})
_PLAIN_TYPES = (str, int, float, bool, dict, list, Any)


def _is_instant(bound: BoundFunction) -> bool:
    """Return True if a function calls nothing and has no loop, so that it cannot block the event loop."""
    if not isinstance(bound.function, FunctionType) or bound.is_async:
        return False
    code, fields = bound.function.__code__, bound.model.model_fields.values() if bound.model else ()
    if code.co_freevars or not _CONTEXT_FIELDS.issuperset(code.co_names):
        return False
    if any(field.annotation not in _PLAIN_TYPES or field.metadata for field in fields):
        return False  # users' types may run code
    return not any(
        "BACKWARD" in step.opname or "CALL" in step.opname or step.argrepr in ("**", "**=", "<<", "<<=")
        for step in get_instructions(code)
    )


def _takes_raw_by_position(named: Sequence[inspect.Parameter]) -> bool:
    if not 1 <= len(named) <= 2 or any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in named):
        return False
    return any(p.name.startswith("_") for p in named) and all(
        p.name == plain or p.name.startswith("_") for p, plain in zip(named, ("args", "ctx"), strict=False)
    )


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


_MODELS: WeakKeyDictionary[FunctionType, type[BaseModel]] = WeakKeyDictionary()
"""Cached argument models: scenarios made in a loop share mocks, and building a model is slow."""


def _shared_model(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> type[BaseModel]:
    if not isinstance(function, FunctionType):
        return _arguments_model(function, parameters)
    model = _MODELS.get(function)
    if model is None:
        model = _MODELS[function] = _arguments_model(function, parameters)
    return model


def _arguments_model(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> type[BaseModel]:
    hints = _hints(function)
    # Numbered fields with the parameters' names as aliases: a parameter may be called `schema` or `_x`. Their
    # defaults only mark them as optional; the function's own defaults are used, which pydantic would copy.
    fields: dict[str, Any] = {
        f"p{i}": (
            hints.get(name, Any),
            Field(... if p.default is inspect.Parameter.empty else None, alias=name),
        )
        for i, (name, p) in enumerate(parameters.items())
        if name != "ctx" and p.kind not in _VARIADIC
    }
    settings = ConfigDict(extra="allow" if _takes_any(parameters) else "forbid", arbitrary_types_allowed=True)
    try:
        return create_model("Arguments", __config__=settings, **fields)
    except PydanticUserError as error:
        raise TypeError(f"its annotations cannot be checked: {error.message}") from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    while isinstance(function, partial):
        function = function.func
    target: Any = function if inspect.isroutine(function) else type(function).__call__
    if isinstance(function, type):
        target = getattr(function, "__init__")  # noqa: B009 - mypy refuses the plain form
    unresolved = (NameError, AttributeError, SyntaxError, TypeError)
    with errors_as(TypeError, "its annotations cannot be resolved: ", unresolved):
        return get_type_hints(target, include_extras=True)


def _validated(model: type[BaseModel], args: Mapping[str, Any]) -> dict[str, Any]:
    try:
        checked = model.model_validate(dict(args))
    except ValidationError as error:
        raise InvalidArguments("; ".join(_mismatch(e) for e in error.errors(include_url=False))) from None
    known = {
        info.alias or name: getattr(checked, name)
        for name, info in model.model_fields.items()
        if name in checked.model_fields_set
    }
    return known | (checked.model_extra or {})


def _mismatch(details: Any) -> str:
    at = ".".join(str(part) for part in details["loc"])
    if details["type"] == "missing":
        return f"`{at}` is missing"
    if details["type"] == "extra_forbidden":
        return f"`{at}` is not a parameter"
    return f"`{at}`: {details['msg'][0].lower()}{details['msg'][1:]}"


ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
"""The schema of a tool whose arguments are unknown."""
_SCHEMAS: WeakKeyDictionary[type[BaseModel], Mapping[str, Any]] = WeakKeyDictionary()
"""Cached schemas, because every conversation needs them."""
_NOTHING_KNOWN: Mapping[str, ToolSpec] = {}


def tool_specs(
    tools: Mapping[str, Mock], known: Mapping[str, ToolSpec] = _NOTHING_KNOWN
) -> tuple[ToolSpec, ...]:
    """Describe mocks as tools, in order. Descriptions in `known` (by name) override those of the mocks."""
    return tuple(known.get(name) or _spec(name, mock) for name, mock in tools.items())


def any_tool(name: str) -> ToolSpec:
    """Describe a tool by its name alone."""
    return ToolSpec(name=name, description="", parameters=ANY_ARGUMENTS)


def _spec(name: str, mock: Mock) -> ToolSpec:
    if isinstance(mock, ChangedAnswers):
        spec = _spec(name, mock.mock)
        planted = [each.payload for each in mock.changes if getattr(each, "path", "") == "description"]
        return replace(spec, description=" ".join([spec.description, *planted]).strip()) if planted else spec
    # The first function of a sequence shows the call's signature.
    bound = next((step for step in steps_of(mock) if isinstance(step, BoundFunction)), None)
    if bound is None:
        return any_tool(name)
    description = (inspect.getdoc(bound.function) or "") if inspect.isroutine(bound.function) else ""
    parameters = ANY_ARGUMENTS
    if bound.model is not None:
        if bound.model not in _SCHEMAS:
            _SCHEMAS[bound.model] = _schema(bound.model, inspect.signature(bound.function).parameters)
        parameters = _SCHEMAS[bound.model]
    return ToolSpec(name=name, description=description, parameters=parameters)


def _schema(model: type[BaseModel], parameters: Mapping[str, inspect.Parameter]) -> Mapping[str, Any]:
    try:
        schema = model.model_json_schema()
    except (PydanticInvalidForJsonSchema, PydanticUserError):
        return ANY_ARGUMENTS  # a custom type without a JSON Schema
    properties = {
        name: _with_default(value, parameters[name]) for name, value in schema.get("properties", {}).items()
    }
    return {**{key: value for key, value in schema.items() if key != "title"}, "properties": properties}


def _with_default(schema: Mapping[str, Any], parameter: inspect.Parameter) -> dict[str, Any]:
    settings = {key: value for key, value in schema.items() if key not in ("title", "default")}
    if parameter.default is inspect.Parameter.empty:
        return settings
    try:
        check_plain(parameter.default)
    except NotJson:
        return settings
    return {**settings, "default": parameter.default}
