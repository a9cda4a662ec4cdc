"""Copies of dataclasses with changed fields, equal to those of `dataclasses.replace`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentest.support.lazy_dataclasses import replace


@dataclass(frozen=True, slots=True)
class _Base:
    one: int
    two: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Slotted(_Base):
    three: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Checked:
    one: int

    def __post_init__(self) -> None:
        if self.one < 0:
            raise ValueError("less than 0")


@dataclass(frozen=True)
class _WithoutSlots:
    one: int
    two: str = ""


@dataclass(slots=True)
class _Counted:
    one: int
    count: int = field(init=False, default=7)


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (_Slotted(1, ("a",), {"b": 2}), {"two": (), "three": {}}),
        (_Slotted(1), {}),
        (_Base(1), {"one": 2}),
        (_Checked(1), {"one": 3}),
        (_WithoutSlots(1), {"two": "x"}),
        (_Counted(1), {"one": 2}),
    ],
)
def test_the_copy_is_the_one_of_the_standard_library(value: Any, changes: dict[str, Any]) -> None:
    before = dataclasses.asdict(value)

    found = replace(value, **changes)

    assert found == dataclasses.replace(value, **changes)
    assert type(found) is type(value)
    assert found is not value
    assert dataclasses.asdict(value) == before


@pytest.mark.parametrize("value", [_Slotted(1), _WithoutSlots(1)])
def test_an_unknown_field(value: Any) -> None:
    with pytest.raises(TypeError, match="four"):
        replace(value, four=4)


def test_checks_of_init_run() -> None:
    with pytest.raises(ValueError, match="less than 0"):
        replace(_Checked(1), one=-1)


def test_values_computed_by_init_are_recomputed() -> None:
    counted = _Counted(1)
    counted.count = 8

    assert replace(counted, one=2).count == 7
