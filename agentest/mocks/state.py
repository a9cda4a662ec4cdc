"""The state that the mocks of a conversation share: its initial copy, and its snapshot at the end."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from agentest.domain.transcript import CUT_OFF
from agentest.support.calling import ends_the_run, message_of_error
from agentest.support.errors import MockError
from agentest.support.json_text import BuiltinState, builtin_bytes, json_text, safe_repr

_MOST_CHARS = 200_000
"""Maximum characters of a state that is stored completely; of a longer one only changes are stored."""
_MAX_PICKLED_BYTES = 3 * _MOST_CHARS
"""Size in bytes above which a state is surely too long: a pickle is less than three times its JSON."""
_MOST_DEPTH = 50
_MOST_BITS = 10_000
"""Maximum bits of an integer that Python converts to text; it refuses beyond about 14,000."""
_SHOWN_KEYS = 20
_TRIES = 3
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndState:
    """The mocks' state after a conversation has ended."""

    live: Mapping[str, Any]
    """A copy of the state. A value that cannot be copied is the object itself."""
    told: Mapping[str, Any]
    """The state in JSON types, as mocks' answers are sent. Other values are described in words."""
    inexact: tuple[str, ...] = ()
    """Keys whose values are not JSON or are incomplete."""


def copy_initial_state(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Copy a scenario's state for one conversation. Raises MockError if it cannot be copied."""
    if state is None:
        return {}
    try:
        return dict(deepcopy(state))
    except BaseException as error:
        if ends_the_run(error):
            raise
        raise MockError(
            f"the scenario's `state` cannot be copied for the conversation: {type(error).__name__}: "
            f"{message_of_error(error)}"
        ) from None


def end_state(state: Mapping[str, Any], begun: Mapping[str, Any] | None) -> EndState:
    """Return a snapshot of the state, unaffected by threads. `begun`: the scenario's initial state."""
    now = dict(state)
    data = builtin_bytes(now)
    if data is not None:
        return _end_of_builtins(pickle.loads(data), len(data), begun)
    memo: dict[int, Any] = {}  # one memo for all keys, so that shared objects stay shared in the copy
    return _end_of({key: _copy(value, memo) for key, value in now.items()}, begun)


def _end_of_builtins(live: dict[Any, Any], size: int, begun: Mapping[str, Any] | None) -> EndState:
    """Do the same as `_end_of` with fewer conversions, because each one blocks other conversations."""
    text = _text(live) if size <= _MAX_PICKLED_BYTES else None
    if text is not None and len(text) <= _MOST_CHARS and all(isinstance(key, str) for key in live):
        form = json.loads(text)
        inexact = tuple(key for key, value in live.items() if form[key] != value)
        return EndState(live=live, told=form, inexact=inexact)
    long = size > _MAX_PICKLED_BYTES or (text is not None and len(text) > _MOST_CHARS)
    if long and isinstance(begun, BuiltinState):
        try:
            return _end_of_long(live, begun)
        except RecursionError:  # contains itself
            pass
    return _end_of(live, begun)


def _end_of_long(live: Mapping[str, Any], begun: Mapping[str, Any]) -> EndState:
    """Convert only the changes of a state with megabytes."""
    changed = _changes(live, begun)
    cut = [_key(key) for key, value in changed.items() if key not in live or value != live[key]]
    converted = {_key(key): _exact_or_words(value) for key, value in changed.items()}
    inexact = [key for key, (_, exact) in converted.items() if not exact]
    forms = {key: form for key, (form, _) in converted.items()}
    return EndState(live=live, told=forms, inexact=tuple(dict.fromkeys((*inexact, *cut))))


def _end_of(live: Mapping[str, Any], begun: Mapping[str, Any] | None) -> EndState:
    converted = {_key(key): _exact_or_words(value) for key, value in live.items()}
    forms = {key: form for key, (form, _) in converted.items()}
    inexact = tuple(key for key, (_, exact) in converted.items() if not exact)
    if len(json.dumps(forms)) <= _MOST_CHARS:
        return EndState(live=live, told=forms, inexact=inexact)
    begins = {_key(key): _exact_or_words(value)[0] for key, value in (begun or {}).items()}
    changed = _changes(forms, begins)
    cut = tuple(key for key in changed if changed[key] != forms.get(key))
    return EndState(live=live, told=changed, inexact=tuple(dict.fromkeys((*inexact, *cut))))


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy; the value itself if it cannot be copied (a lock, a connection, a generator)."""
    for _ in range(_TRIES):
        try:
            return deepcopy(value, memo)
        except RuntimeError:  # a mock's thread is still changing it
            continue
        except BaseException as error:
            if ends_the_run(error):
                raise
            break
    return value


def _exact_or_words(value: Any) -> tuple[Any, bool]:
    """Return the value in JSON types, and True if the conversion is exact."""
    form = _form(value)
    if form is not None or value is None:
        return form, builtin_bytes(value) is not None and bool(form == value)
    try:
        return _in_words(value, ()), False
    except Exception:  # noqa: BLE001 - a mock's thread may still be changing the value
        return _words(value), False


def _form(value: Any) -> Any:
    """Return the value converted to JSON and back; None if that fails."""
    text = _text(value)
    return None if text is None else json.loads(text)


def _text(value: Any) -> str | None:
    """Return the value as JSON; None if that fails. Conversion may run user code."""
    try:
        return json_text(value)
    except BaseException as error:
        if ends_the_run(error):
            raise
        return None


def _in_words(value: Any, inside: tuple[int, ...]) -> Any:
    """Return a readable form that describes values JSON does not support."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"(an int of {value.bit_length():,} bits)"
    if value is None or isinstance(value, str | int | bool):
        return value
    if id(value) in inside or len(inside) >= _MOST_DEPTH:
        return CUT_OFF
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        return {_key(key): _in_words(item, inside) for key, item in [*value.items()]}
    if isinstance(value, list | tuple | set | frozenset):
        return [_in_words(item, inside) for item in [*value]]
    return _object_in_words(value, inside)


def _object_in_words(value: Any, inside: tuple[int, ...]) -> Any:
    """Return an object's attributes, or its repr without the address if it has one."""
    form = _form(value)
    if form is not None:
        return form
    held = getattr(value, "__dict__", None)
    shows_itself = getattr(type(value), "__repr__", None) != object.__repr__
    if not shows_itself and isinstance(held, dict) and held:
        return {_key(key): _in_words(item, inside) for key, item in [*held.items()]}
    return _words(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _words(key)


def _words(value: Any) -> str:
    return _ADDRESS.sub("", safe_repr(value))


def _changes(now: Mapping[str, Any], begun: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return the parts of the objects that changed, and count the rest."""
    kept: dict[str, Any] = {}
    for key, value in now.items():
        before = begun.get(key, CUT_OFF)
        inside = isinstance(value, dict) and isinstance(before, dict) and depth < _MOST_DEPTH
        if value != before:
            kept[key] = _changes(value, before, depth + 1) if inside else value
    more = [f"{len(now) - len(kept)} more, as at the beginning"] if len(kept) < len(now) else []
    if gone := [_key(key) for key in begun if key not in now]:
        more.append(f"gone: {', '.join(gone[:_SHOWN_KEYS])}{', …' if len(gone) > _SHOWN_KEYS else ''}")
    return {**kept, CUT_OFF: f"({'; '.join(more)})"} if more else kept
