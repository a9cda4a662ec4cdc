"""`dataclass` as in the standard library, except that a class is compiled when it is first used.

The standard library compiles six methods of every class when its module is imported, which was half of what a
run's own imports cost. Here, comparison and `repr` are shared functions, and `__init__` is compiled when the
first instance is made. Users' subclasses may have the standard library's decorator. The `replace` here is
faster, for values that are replaced many times in each conversation.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, TypeVar

_T = TypeVar("_T")
_Set = Callable[[Any, Any], None]
_Copier = tuple[Callable[[Any], Any], dict[str, _Set]]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        repr: bool = True,
        **options: bool,
    ) -> Any:
        """Make a class a dataclass. Takes the options of the standard library, without `init` and `order`."""

        def made(cls: type) -> type:
            cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library writes a signature
            base = getattr(cls, "__dataclass_params__", None)  # a frozen base has only frozen subclasses
            options["frozen"] = frozen and base is not None and base.frozen
            cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)
            params: Any = cls.__dict__["__dataclass_params__"]
            params.init, params.repr, params.eq, params.frozen = True, repr, eq, frozen
            methods = {"__init__": _FirstInit(cls, frozen)}
            if frozen:
                _freeze(cls)
            if frozen and "__slots__" in cls.__dict__:
                methods |= {"__getstate__": _get_state, "__setstate__": _set_state}
            methods |= {"__repr__": _repr_of(cls)} if repr else {}
            methods |= _comparison(cls, frozen) if eq else {}
            for name, method in methods.items():
                if name not in cls.__dict__ or (name == "__hash__" and cls.__hash__ is None):
                    setattr(cls, name, method)
            return cls

        return made if cls is None else made(cls)


class _DefaultFactory:
    def __repr__(self) -> str:
        return "<factory>"


_MISSING = _DefaultFactory()


class _FirstInit:
    def __init__(self, cls: type, frozen: bool) -> None:
        self._cls = cls
        self._frozen = frozen
        self._names = vars(sys.modules[cls.__module__])  # a test may remove the module before the first use

    def __get__(self, instance: Any, owner: type) -> Any:
        init = _compiled_init(self._cls, self._frozen, self._names)
        type.__setattr__(self._cls, "__init__", init)
        return init if instance is None else init.__get__(instance, owner)


def _compiled_init(cls: type, frozen: bool, of_module: dict[str, Any]) -> Any:
    names: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": _MISSING}
    positional, by_name, body = ["self"], list[str](), list[str]()
    for field in fields(cls):
        name, value, parameter = field.name, field.name, field.name
        if field.default_factory is not MISSING:
            names[f"_{name}_default"] = field.default_factory
            made = f"_{name}_default()"
            parameter, value = f"{name}=_MISSING", f"{made} if {name} is _MISSING else {name}"
            value = value if field.init else made
        elif field.default is not MISSING:
            names[f"_{name}_default"] = field.default
            parameter, value = f"{name}=_{name}_default", name if field.init else f"_{name}_default"
        elif not field.init:
            continue
        if field.init:
            (by_name if field.kw_only else positional).append(parameter)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *by_name] if by_name else [])])
    lines = "\n  ".join(body or ["pass"])
    functions: dict[str, Any] = {}
    code = f"def make({', '.join(names)}):\n def __init__({parameters}):\n  {lines}\n return __init__"
    exec(code, of_module, functions)  # with the module's names, for `typing.get_type_hints`
    init = functions["make"](**names)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in fields(cls) if field.init} | {"return": None}
    return init


def _comparison(cls: type, frozen: bool) -> dict[str, Any]:
    key = _key([field.name for field in fields(cls) if field.compare])
    hashed = _key([f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)])

    def __eq__(self: Any, other: object) -> bool:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(hashed(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _key(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _repr_of(cls: type) -> Callable[[Any], str]:
    names = [field.name for field in fields(cls) if field.repr]

    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return recursive_repr()(__repr__)


def _freeze(cls: Any) -> None:
    def is_frozen(value: Any, name: str) -> bool:
        return type(value) is cls or name in cls.__dataclass_fields__

    def __setattr__(self: Any, name: str, value: object) -> None:
        if is_frozen(self, name):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if is_frozen(self, name):
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    # In Python 3.11 the standard library's methods fail in subclasses of classes with slots.
    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def replace(value: _T, /, **changes: Any) -> _T:
    """Copy a dataclass instance with these fields changed, three times as fast as `dataclasses.replace`.

    For classes with slots only, `__init__` is not called, which takes most of the time. Raises TypeError for
    an unknown field.
    """
    kind: type = type(value)
    copier = _copier(kind)
    if copier is None:
        new: _T = dataclasses.replace(value, **changes)  # type: ignore[type-var]
        return new
    copy, setters = copier
    new = copy(value)
    for name, changed in changes.items():
        try:
            setters[name](new, changed)
        except KeyError:
            raise TypeError(f"{kind.__name__} has no field {name!r}") from None
    return new


@cache
def _copier(of: type) -> _Copier | None:
    """Return functions that copy an instance and set its fields, even if it is frozen.

    None if the class's `__init__` may do more than set fields.
    """
    if not dataclasses.is_dataclass(of) or hasattr(of, "__post_init__"):
        return None
    every = fields(of)
    slots = {field.name: getattr(of, field.name, None) for field in every}
    setters: dict[str, _Set] = {
        name: slot.__set__ for name, slot in slots.items() if isinstance(slot, MemberDescriptorType)
    }
    if len(setters) < len(every) or not all(field.init for field in every):
        return None
    known: dict[str, Any] = {"new": object.__new__, "of": of}
    known |= {f"set_{name}": each for name, each in setters.items()}
    lines = "".join(f"    set_{name}(copy, value.{name})\n" for name in setters)
    exec(f"def copied(value):\n    copy = new(of)\n{lines}    return copy\n", known)
    return known["copied"], setters
