"""Reading a JSON object out of what a model wrote, without ever guessing a value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

Answer = TypeVar("Answer", bound=BaseModel)
_THINKING = re.compile(r"^\s*<think(?:ing)?>.*?</think(?:ing)?>", re.S)
_MAX_OBJECTS = 20


class Unreadable(ValueError):
    """The text holds no answer of the expected shape; the message tells the model what was wrong."""


def read(text: str, answer: type[Answer]) -> Answer:
    """The one object in the text that has the expected shape.

    Code fences, reasoning in `<think>` and prose around the object are passed over. Nothing is converted: a
    number in quotes, a label outside the set, a key given twice is invalid. Raises Unreadable.
    """
    text = _THINKING.sub("", text)
    candidates = list(_objects(text))
    if not candidates:
        raise Unreadable("there is no JSON object in it" if text.strip() else "it is empty")
    valid, problem = _validated(candidates, answer)
    if not valid:
        raise Unreadable(problem)
    if any(other != valid[0] for other in valid[1:]):
        raise Unreadable("it holds several different answers; give exactly one JSON object")
    return valid[0]


def _validated(candidates: list[dict[str, Any]], answer: type[Answer]) -> tuple[list[Answer], str]:
    valid: list[Answer] = []
    problem = ""
    for candidate in candidates:
        try:
            valid.append(answer.model_validate(candidate, strict=True))
        except ValidationError as error:
            problem = "; ".join(_problem(e) for e in error.errors(include_url=False)[:5])
    return valid, problem


def _problem(details: Any) -> str:
    at = ".".join(str(part) for part in details["loc"])
    return f"{at}: {details['msg']}" if at else str(details["msg"])


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text that stand inside no other, in order."""
    at = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if at < 0:
            return
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            continue
        yield value
        at = text.find("{", end)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
