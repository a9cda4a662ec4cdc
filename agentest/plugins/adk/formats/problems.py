"""Problems of an evaluation set, located by case, invocation, and key, in the file's spelling."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import islice
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import AliasChoices, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import nearest, snake_case

Location = tuple[str | int, ...]
_T = TypeVar("_T")

MAX_PROBLEMS = 5  # maximum number of problems of a file that an error lists

MAX_STORED_PROBLEMS = 100  # maximum number of problems of a file that an error stores

MAX_SHOWN = 60  # maximum number of characters of a value in a message

_EXPECTED = {
    "string_type": "a text",
    "dict_type": "an object",
    "dataclass_type": "an object",
    "tuple_type": "a list",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A problem of a file.

    Attributes:
        case: its index; None for a problem outside the cases.
        keys: the path to the value from the case's root, or from the file's, in the file's spelling.
        short_message: a message without the names of case and invocation, for readers who see the value.
    """

    case: int | None
    message: str
    keys: Location = ()
    short_message: str = ""


class EvalSetError(UsageError):
    """A file is malformed. `problems` has all of its problems."""

    def __init__(self, message: str, problems: Sequence[FileProblem]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class FormatNames:
    """The names of a file format's parts.

    Attributes:
        cases: key of the list of cases; "" if the file itself is that list.
        word: noun for an entry of that list.
        case_id: key of a case's id.
        invocations: key of a case's list of invocations; "" if there is none.
        line: key whose value locates a case in the text of the file; "" if there is none.
    """

    cases: str = ""
    word: str = "case"
    case_id: str = ""
    invocations: str = ""
    line: str = ""


NO_NAMES = FormatNames()


class InvalidDocument(ValueError):
    """A document does not have its form.

    `problems` has the first problems, in the order of the document, and `count` is the number of all.
    """

    def __init__(self, problems: Iterator[FileProblem], count: int) -> None:
        self.problems = tuple(islice(problems, MAX_STORED_PROBLEMS))
        self.count = count
        super().__init__("\n".join(problem.message for problem in self.problems[:MAX_PROBLEMS]))


def validated(shape: type[_T], document: Any, names: FormatNames = NO_NAMES) -> _T:
    """Return the values of a document: a dataclass, or a tuple of them. Raises InvalidDocument."""
    form: Any = shape
    try:
        return _adapter(form).validate_python(document)  # type: ignore[no-any-return]
    except ValidationError as error:
        found = _problems(error, document, valid_keys_of(form), names)
        raise InvalidDocument(found, error.error_count()) from None


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def _problems(
    error: ValidationError, document: Any, valid: Mapping[str, set[str]], names: FormatNames
) -> Iterator[FileProblem]:
    for detail in error.errors(include_url=False):
        location = _without_union_tags(detail["loc"])
        case, head, keys, rest = _split_location(location, document, names)
        message = _message(location, rest, detail, document, valid)
        yield FileProblem(case, f"{head}: {message}" if head else message, keys, message)


def line_texts(document: Any, names: FormatNames) -> list[str]:
    """Return the text that locates each case in the file; "" for a case without one."""
    cases = get(document, names.cases) if names.cases else document
    return [_text(case, names.line) for case in cases] if isinstance(cases, list) else []


def format_value(value: object) -> str:
    """Return a value as JSON, shortened to fit into a message."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def get(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key in either spelling; None if it is missing."""
    return values.get(key, values.get(to_camel(key)))


def _split_location(
    location: Location, document: Any, names: FormatNames
) -> tuple[int | None, str, Location, Location]:
    rest, keys, value, heads = location, location, document, []
    case: int | None = None
    steps = [(names.cases, names.word, names.case_id)]
    if names.invocations:
        steps.append((names.invocations, "invocation", "invocation_id"))
    for key, word, id_key in steps:
        step = _list_step(rest, key)
        if step is None:
            break
        index, after = step
        value = _value_at(value, rest[: len(rest) - len(after)])
        rest = after
        name = _text(value, id_key)
        heads.append(f"{word} `{name}`" if name else f"{word} {index + 1}")
        if case is None:
            case, keys = index, rest
    return case, ", ".join(heads), keys, rest


def _list_step(location: Location, key: str) -> tuple[int, Location] | None:
    if key and (not location or snake_case(str(location[0])) != key):
        return None
    after = location[1:] if key else location
    return (after[0], after[1:]) if after and isinstance(after[0], int) else None


def _text(entry: object, key: str) -> str:
    text = get(entry, key) if isinstance(entry, Mapping) and key else None
    return text if isinstance(text, str) else ""


def _message(
    location: Location, rest: Location, detail: ErrorDetails, document: Any, valid: Mapping[str, set[str]]
) -> str:
    kind = detail["type"]
    if kind == "unexpected_keyword_argument":
        return _unknown_key(location, rest, document, valid)
    if kind == "missing" and isinstance(location[-1], str):
        return _missing_key(location, rest, document, valid)
    if kind in ("missing", "too_long"):
        pair = _path_text(rest[:-1] if kind == "missing" else rest)
        return f"{pair} is {format_value(detail['input'])}, expected a pair: [author, [parts]]"
    if kind == "value_error":
        error = detail["ctx"]["error"]
        text, inside = str(error), getattr(error, "at", "")
        return (
            f"{_path_text(rest, inside)}: {text}"
            if rest
            else f"{text}; it has {', '.join(map(str, detail['input']))}"
        )
    expected = _EXPECTED.get(kind)
    where = _path_text(rest) if rest else "it"
    wanted = f"expected {expected}" if expected else detail["msg"]
    return f"{where} is {format_value(detail['input'])}, {wanted}"


def _unknown_key(location: Location, rest: Location, document: Any, valid: Mapping[str, set[str]]) -> str:
    key = str(location[-1])
    keys = valid.get(_enclosing_key(location), set())
    if key in _either_spelling(keys):
        return f"{_path_text(rest)} is given twice, in both spellings"
    camel = _uses_camel_case(location, document)
    close = nearest(key, keys)
    if close:
        return f"{_path_text(rest)} is not a known key; did you mean `{_spelt(close, camel)}`?"
    known = ", ".join(f"`{_spelt(name, camel)}`" for name in sorted(keys))
    return f"{_path_text(rest)} is not a known key; known are {known}"


def _missing_key(location: Location, rest: Location, document: Any, valid: Mapping[str, set[str]]) -> str:
    key = snake_case(str(location[-1]))
    spelt = _spelt(key, _uses_camel_case(location, document))
    message = f"{_path_text((*rest[:-1], spelt))} is missing"
    holder, known = _value_at(document, location[:-1]), valid.get(_enclosing_key(location), set())
    if not isinstance(holder, Mapping):
        return message
    unread = {snake_case(str(k)): str(k) for k in holder if k not in _either_spelling(known)}
    close = nearest(key, unread)
    return f"{message}; is `{unread[close]}` meant to be it?" if close else message


def _either_spelling(keys: set[str]) -> set[str]:
    return keys | {to_camel(key) for key in keys}


def _spelt(key: str, camel: bool) -> str:
    return to_camel(key) if camel else key


def _uses_camel_case(location: Location, document: Any) -> bool:
    holder = _value_at(document, location[:-1])
    beside = [key for key in holder if key != location[-1]] if isinstance(holder, Mapping) else []
    keys = [key for key in (*location[:-1], *beside) if isinstance(key, str)]
    return any(key != snake_case(key) and key == to_camel(snake_case(key)) for key in keys)


def _enclosing_key(location: Location) -> str:
    return next((snake_case(key) for key in reversed(location[:-1]) if isinstance(key, str)), "")


def _path_text(location: Location, inside: str = "") -> str:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in location]
    return f"`{''.join([*steps, inside]).removeprefix('.')}`"


def _value_at(document: Any, location: Location) -> Any:
    for step in location:
        inside = isinstance(document, Mapping) or (isinstance(step, int) and isinstance(document, Sequence))
        try:
            document = document[step] if inside else None
        except (KeyError, IndexError):
            return None
    return document


def _without_union_tags(location: Location) -> Location:
    return tuple(
        step
        for previous, step in zip(("", *location), location, strict=False)
        if snake_case(str(previous)) != "intermediate_data"
    )


@cache
def valid_keys_of(shape: Any) -> Mapping[str, set[str]]:
    """Map every key of a form to the valid keys of the objects under it; "" is the document itself."""
    keys: dict[str, set[str]] = {}
    for part in _shapes_in(shape):
        _collect_valid_keys("", part, keys)
    return keys


def _collect_valid_keys(key: str, shape: type, keys: dict[str, set[str]]) -> None:
    hints = get_type_hints(shape)
    for field in fields(shape):
        alias = shape.__pydantic_fields__[field.name].validation_alias  # type: ignore[attr-defined]
        spellings = map(str, alias.choices) if isinstance(alias, AliasChoices) else [field.name]
        keys.setdefault(key, set()).update(spellings)
        for part in _shapes_in(hints[field.name]):
            _collect_valid_keys(field.name, part, keys)


def _shapes_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and is_dataclass(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from _shapes_in(part)
