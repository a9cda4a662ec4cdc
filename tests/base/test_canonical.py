"""One text for a value, the same in every process, by which two runs are compared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentest.support.json_text import CODE, canonical


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = ()


class Model(BaseModel):
    a: int = 1


def function() -> None: ...


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ({3, 1, 2}, {1, 2, 3}),
        ((1, 2), [1, 2]),
        (Point(Colour.RED), Point(Colour.RED)),
        (object(), object()),
        (Path("a/b"), Path("a") / "b"),
    ],
    ids=["keys", "sets", "sequences", "dataclasses", "objects", "paths"],
)
def test_equal_values_have_the_same_text(one: object, other: object) -> None:
    """The order of keys, the kind of sequence and memory addresses do not count."""
    assert canonical(one) == canonical(other)


def test_different_values_have_different_texts() -> None:
    """Values, types of numbers and fields count."""
    values = [
        1,
        1.5,
        "1",
        True,
        None,
        [1],
        [[1]],
        {"a": 1},
        Point(1),
        Point(1, 2),
        Model(),
        Model(a=2),
        function,
    ]
    assert len({canonical(value) for value in values}) == len(values)


def test_functions_are_identified_by_name() -> None:
    """A function is its name, a value that contains itself terminates, and no text has an address."""
    endless: list[Any] = []
    endless.append(endless)
    texts = [canonical(value) for value in (function, re.compile("x"), endless, {"f": lambda: 1})]
    assert texts[0].startswith(f"{CODE}")
    assert texts[0].endswith("test_canonical.function")
    assert not any(" at 0x" in text for text in texts)
