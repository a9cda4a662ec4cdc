"""Reading words that are written as data: `{optional: 10}` where Python writes `optional(10)`.

A dict that has the form of a word may have been meant as itself: an argument can be `{"text": "hi"}`. So it
is equal to both, and what is not quite the form of a word is itself alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from agentest.scenarios.matchers.comparison import Matcher, may_be_absent
from agentest.scenarios.matchers.forms import Form
from agentest.scenarios.matchers.instances import instance, type_named
from agentest.scenarios.matchers.quantities import approx, number
from agentest.scenarios.matchers.showing import brief, shown
from agentest.scenarios.matchers.texts import text
from agentest.scenarios.matchers.values import absent, each, one_of, optional
from agentest.scenarios.parsing import pattern_of
from agentest.support.spelling import snake_case, snake_keys

CALL_WORDS = ("any_of", "exactly", "before", "never_after", "regex")


def word_in(value: Mapping[Any, Any]) -> str | None:
    """The word of calls that a dict is the form of; None where it is none."""
    return _word_among(value, CALL_WORDS)


def _word_among(value: Mapping[Any, Any], words: tuple[str, ...]) -> str | None:
    if not 1 <= len(value) <= _MOST_KEYS:
        return None
    names = [snake_case(name) if isinstance(name, str) else "" for name in value]
    word = next((name for name in names if name in words), None)
    return word if word and {*names} <= {word, *_BESIDE.get(word, ())} else None


_BESIDE = {
    "approx": ("rel", "abs"),
    "text": ("ignore_case", "ignore_space", "ignore_punctuation"),
    "regex": ("ignore_case", "flags"),
}
"""The keys that may stand beside a word."""
_MOST_KEYS = 4


def from_data(value: Any, *, of_key: bool = True, is_word: bool = True) -> Any:
    """A value, in which each dict that has the form of a word is equal to what the word says, too.

    Args:
        of_key: whether it is the value of a key, which may be missing.
        is_word: False for a dict of names of the user's own, like all arguments of a call, or a state.
    """
    return _read(value, of_key=of_key, is_word=is_word, only_words=False)


def word_from_data(value: Any) -> Any:
    """A value where a dict can only be a word: what is said is no dict. Raises ValueError."""
    return _read(value, of_key=False, is_word=True, only_words=True)


def _read(value: Any, *, of_key: bool, only_words: bool, is_word: bool = True) -> Any:
    if isinstance(value, Mapping):
        found = _form(value, of_key=of_key, only_words=only_words) if is_word else None
        return _read_keys(value, only_words=only_words) if found is None else found
    if not isinstance(value, list | tuple):
        return value
    items = [_read(item, of_key=False, only_words=only_words) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return tuple(items) if type(value) is tuple else items


def _read_keys(value: Mapping[Any, Any], *, only_words: bool) -> Mapping[Any, Any]:
    """A mapping with its values read; itself where there is none to read: it may be of its own class."""
    items = {name: _read(item, of_key=True, only_words=only_words) for name, item in value.items()}
    return value if all(items[name] is item for name, item in value.items()) else items


def _form(value: Mapping[Any, Any], *, of_key: bool, only_words: bool) -> Any:
    """What a dict stands for; None where it has not the form of a word."""
    name = _word_among(value, tuple(_WORDS))
    if name is None:
        return None
    try:
        word = _made(name, value, of_key=of_key, only_words=only_words)
    except ValueError:
        if only_words:
            raise
        return None
    if may_be_absent(word) and not of_key:
        if only_words:
            raise ValueError(f"{shown(word)} stands for the value of a key, which may be missing")
        return None
    return word if only_words else Form(word, value)


def _made(name: str, value: Mapping[Any, Any], *, of_key: bool, only_words: bool) -> Any:
    options = snake_keys(value, (name, *_BESIDE.get(name, ())))
    inner = options.pop(name)
    if name in _HOLDERS:
        only_words = only_words or name == "number"  # which holds nothing but numbers
        of_key = of_key and name in _OF_KEYS
        several = name == "one_of" and isinstance(inner, list | tuple)
        inner = (
            [_read(item, of_key=of_key, only_words=only_words) for item in inner]
            if several
            else (_read(inner, of_key=of_key, only_words=only_words))
        )
    elif name == "exactly" and isinstance(inner, Mapping):
        inner = _read_keys(inner, only_words=only_words)
    return _WORDS[name](inner, options)


def _one_of(value: Any, options: Mapping[str, Any]) -> Matcher:
    del options
    return one_of(*_listed(value, "one_of"))


def _instance(value: Any, options: Mapping[str, Any]) -> Matcher:
    del options
    names = value if isinstance(value, list | tuple) else [value]
    return instance(*(None if name is None else type_named(name) for name in names))


def _absent(value: Any, options: Mapping[str, Any]) -> Matcher:
    del options
    if value is not True:
        raise ValueError(f"absent: expected true, found {brief(value)}")
    return absent


def _regex(value: Any, options: Mapping[str, Any]) -> re.Pattern[str]:
    return pattern_of({"regex": value, **options}, "regex")


def _exactly(value: Any, options: Mapping[str, Any]) -> Any:
    """A dict as it is, though it has the form of a word."""
    del options
    if not isinstance(value, Mapping):
        raise ValueError(f"exactly: expected a dict, found {brief(value)}")
    return value


def _listed(value: Any, word: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{word}: expected a list, found {brief(value)}")
    return value


_WORDS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "optional": lambda value, _: optional(value),
    "absent": _absent,
    "one_of": _one_of,
    "approx": lambda value, options: approx(value, **options),
    "text": lambda value, options: text(value, **options),
    "number": lambda value, _: number(value),
    "instance": _instance,
    "each": lambda value, _: each(value),
    "regex": _regex,
    "exactly": _exactly,
}
_HOLDERS = ("optional", "one_of", "number", "each")
"""Words in which values stand that may be words themselves."""
_OF_KEYS = ("optional", "one_of")
"""Those in which a value is that of the same key."""
WORDS = tuple(_WORDS)
"""The words that a dict may be the form of, where a value stands."""
