"""Our `dataclass` behaves like that of the standard library, though it compiles later."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, is_dataclass
from types import ModuleType
from typing import Any, get_type_hints

import pytest

from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A frozen value with slots."""

    x: int
    y: float = 0.5
    tags: list[str] = field(default_factory=list, compare=False)
    note: str = field(default="", repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Place(Point):
    """Inherits fields and adds one."""

    name: str = "home"


@dataclass
class Counter:
    """Can change."""

    count: int = 0
    total: int = field(init=False, default=3)
    checked: bool = field(init=False)

    def __post_init__(self) -> None:
        self.checked = self.count >= 0


@dataclass(frozen=True)
class Nothing:
    """Has no field."""


def test_init_takes_positions_names_and_defaults() -> None:
    """Fields are parameters in order, and `kw_only` ones only by name."""
    assert (Point(1).y, Point(1).tags, Point(1, note="n").note) == (0.5, [], "n")
    assert Place(1, 2.0, ["t"], "away", note="n").name == "away"
    assert Point(1).tags is not Point(1).tags
    counter = Counter(2)
    assert (counter.total, counter.checked) == (3, True)
    assert str(inspect.signature(Point)) == (
        "(x: 'int', y: 'float' = 0.5, tags: 'list[str]' = <factory>, *, note: 'str' = '') -> None"
    )
    assert get_type_hints(Point.__init__)["tags"] == list[str]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Point(), r"Point\.__init__\(\) missing 1 required positional argument: 'x'"),  # type: ignore[call-arg]
        (lambda: Point(1, z=2), "unexpected keyword argument 'z'"),  # type: ignore[call-arg]
        (lambda: Point(1, 2.0, [], "n"), r"takes from 2 to 4 positional arguments"),  # type: ignore[misc]
    ],
)
def test_wrong_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    """The message names the class."""
    with pytest.raises(TypeError, match=message):
        call()


def test_values_compare_and_hash_by_their_fields() -> None:
    """Only objects of the same class are equal, and fields without `compare` do not count."""
    assert Point(1) == Point(1, tags=["t"])
    assert hash(Point(1)) == hash(Point(1, tags=["t"]))
    assert Point(1) != Point(2)
    assert Point(1) != Place(1)
    assert Nothing() == Nothing()
    assert {Nothing(), Nothing()} == {Nothing()}
    assert Counter(1) == Counter(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Counter())


def test_the_representation_shows_the_fields() -> None:
    """Fields without `repr` are left out, and a value that contains itself ends."""
    assert repr(Point(1)) == "Point(x=1, y=0.5, tags=[])"
    tags: list[Any] = []
    point = Point(1, tags=tags)
    tags.append(point)
    assert repr(point) == "Point(x=1, y=0.5, tags=[...])"


def test_a_frozen_value_cannot_change() -> None:
    """Neither by assignment nor by deletion."""
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        Point(1).x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del Point(1).x  # type: ignore[misc]
    counter = Counter()
    counter.count = 4
    assert counter == Counter(4)


@pytest.mark.parametrize("value", [Point(1, tags=["t"], note="n"), Place(2, name="p"), Counter(3), Nothing()])
def test_values_are_copied_and_sent(value: Any) -> None:
    """By `pickle`, as workers get them, by `copy`, and by `replace`."""
    for other in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert other == value
        assert type(other) is type(value)
    assert dataclasses.replace(value) == value


def test_the_standard_library_knows_the_class() -> None:
    """`fields`, `is_dataclass`, `asdict` and patterns work."""
    assert is_dataclass(Point)
    assert [each.name for each in fields(Place)] == ["x", "y", "tags", "note", "name"]
    assert dataclasses.asdict(Point(1)) == {"x": 1, "y": 0.5, "tags": [], "note": ""}
    match Point(1, 2.0):
        case Point(x, y):
            assert (x, y) == (1, 2.0)
    assert dataclasses.replace(Point(1), x=5) == Point(5)


@dataclasses.dataclass(frozen=True)
class UserPlace(Place):
    """A user's class, made by the standard library's decorator."""

    street: str = ""


class CachedPlace(Place):
    """A user's class without a decorator, which adds an attribute."""

    def __init__(self, x: int) -> None:
        super().__init__(x)
        self.cache = [x]


def test_users_inherit_with_the_standard_decorator() -> None:
    """As from a class that the standard library made."""
    place = UserPlace(1, note="n", street="s")
    assert (
        place == pickle.loads(pickle.dumps(place)) == dataclasses.replace(UserPlace(1, street="s"), note="n")
    )
    assert place != UserPlace(1, note="n", street="t")
    assert repr(place) == "UserPlace(x=1, y=0.5, tags=[], name='home', street='s')"
    for name in ("x", "street"):
        with pytest.raises(FrozenInstanceError):
            setattr(place, name, 2)
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        dataclasses.dataclass(type("Thawed", (Point,), {}))


def test_only_fields_of_a_plain_subclass_are_frozen() -> None:
    """Other attributes can be set and deleted."""
    place = CachedPlace(1)
    assert place.cache == [1]
    with pytest.raises(FrozenInstanceError):
        place.x = 2  # type: ignore[misc]
    del place.cache
    assert not hasattr(place, "cache")


def test_a_class_outlives_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plug-ins of pytest remove modules that a test imported, while their classes may still be in use."""
    module = ModuleType("gone_before_the_first_use")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = "from agentest.support.lazy_dataclasses import dataclass\n@dataclass\nclass Pair:\n one: int\n"
    exec(source, vars(module))
    monkeypatch.delitem(sys.modules, module.__name__)
    assert module.Pair(one=1).one == 1
