"""Parse plain options of scenario files, and matchers that are written as data.

Invalid values raise ValueError with a message that begins with the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from agentest.scenarios.matchers.comparison import Matcher, may_be_absent
from agentest.scenarios.matchers.display import brief, shown, type_text
from agentest.scenarios.matchers.values import (
    DataMatcher,
    absent,
    each,
    instance,
    one_of,
    optional,
    text,
    type_named,
)
from agentest.support.text import did_you_mean, snake_case, snake_keys

_LONGEST_NAME = 100
"""Limit for suggestions: a longer text is not a misspelt name, and slow to compare."""
_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}
CALL_WORDS = ("any_of", "exactly", "before", "never_after", "regex")
_MORE_KEYS = {
    "approx": ("rel", "abs"),
    "text": ("ignore_case", "ignore_space", "ignore_punctuation"),
    "regex": ("ignore_case", "flags"),
}
"""Additional keys of the dict for each word."""
_MOST_KEYS = 4
_NESTING_WORDS = ("optional", "one_of", "number", "each")
"""Words whose values may be words themselves."""
_WORDS_FOR_KEYS = ("optional", "one_of")
"""Words whose inner value is the value of the same key."""


def has_text_keys(value: Any) -> bool:
    """Return True if it is a mapping whose keys are texts."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def kind_of(value: Any) -> str:
    """Describe the type of a value that should be a mapping with text keys."""
    return type_text(value) + (" with other keys" if isinstance(value, Mapping) else "")


def known_keys(value: Any, valid: tuple[str, ...], key: str) -> dict[str, Any]:
    """Return the dict with snake_case keys. Raises ValueError for another type or an unknown key."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a dict, found {type_text(value)}")
    try:
        options = snake_keys(value, valid)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    for name in options:
        if name not in valid:
            raise ValueError(f"{key}: unknown key `{name}`; {did_you_mean(str(name), valid)}")
    return options


def names_of(cls: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def suggest_one_of(value: Any, valid: tuple[str, ...]) -> str:
    return did_you_mean(value if isinstance(value, str) and len(value) < _LONGEST_NAME else "", valid)


def count_of(value: Any, key: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key}: expected a whole number of at least 0, found {brief(value)}")
    return value


def count_not_none(value: Any, key: str) -> int:
    count = count_of(value, key)
    if count is None:
        raise ValueError(f"{key}: expected a whole number of at least 0, found None")
    return count


def checked_text(value: Any, key: str) -> str:
    """Return a text, which may be empty."""
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected a text, found {brief(value)}")
    return value


def nonempty_text(value: Any, key: str) -> str:
    """Return a text that is not empty."""
    if not checked_text(value, key).strip():
        raise ValueError(f"{key}: is empty")
    return str(value)


def positive_or_none(value: Any, key: str) -> int | None:
    """Return a whole number of at least 1; None: the option was not given."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}: expected a whole number of at least 1, found {brief(value)}")
    return value


def bool_or_none(value: Any, key: str) -> bool | None:
    """Return a boolean; None: the option was not given."""
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key}: expected True or False, found {brief(value)}")
    return value


def texts_of(value: Any, key: str) -> tuple[str, ...]:
    texts = as_list(value)
    for item in texts:
        if not isinstance(item, str) or not item:
            raise ValueError(f"{key}: expected a text or a list of texts, found {brief(item)}")
    return tuple(texts)


def pattern_of(value: Any, key: str) -> re.Pattern[str]:
    """Return a compiled pattern; data may also be `{regex: …, ignore_case: true, flags: "ms"}`."""
    if isinstance(value, Mapping):
        return _pattern_of_data(value, key)
    if not isinstance(value.pattern if isinstance(value, re.Pattern) else value, str):
        raise ValueError(f"{key}: expected a regular expression, found {brief(value)}")
    try:
        return re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{key}: {brief(value)} is not a regular expression: {error}") from None


def _pattern_of_data(value: Mapping[Any, Any], key: str) -> re.Pattern[str]:
    options = known_keys(value, ("regex", "ignore_case", "flags"), key)
    flags = options.get("flags", "")
    if not isinstance(flags, str) or not set(flags) <= _FLAGS.keys():
        raise ValueError(f"{key}.flags: expected letters of {''.join(_FLAGS)!r}, found {brief(flags)}")
    ignore_case = options.get("ignore_case", False)
    if not isinstance(ignore_case, bool):
        raise ValueError(f"{key}.ignore_case: expected True or False, found {brief(ignore_case)}")
    plain = pattern_of(_regex_text(options.get("regex"), f"{key}.regex"), f"{key}.regex")
    letters = [*flags, *(["i"] if ignore_case else [])]
    return re.compile(plain.pattern, sum(_FLAGS[letter] for letter in set(letters)))


def _regex_text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected a regular expression, found {brief(value)}")
    return value


def flags_of(pattern: re.Pattern[str]) -> str:
    """Return the letters of a pattern's flags, including inline flags."""
    return "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag)


def word_in(value: Mapping[Any, Any]) -> str | None:
    """Return the name of the call function that a dict stands for, or None."""
    return _word_among(value, CALL_WORDS)


def _word_among(value: Mapping[Any, Any], words: tuple[str, ...]) -> str | None:
    if not 1 <= len(value) <= _MOST_KEYS:
        return None
    names = [snake_case(name) if isinstance(name, str) else "" for name in value]
    word = next((name for name in names if name in words), None)
    return word if word and {*names} <= {word, *_MORE_KEYS.get(word, ())} else None


def replace_forms(value: Any, *, of_key: bool = True, is_word: bool = True) -> Any:
    """Replace each dict that has the form of a matcher by a `DataMatcher`, which accepts the matcher or the
    dict itself.

    Args:
        of_key: True if it is the value of a key, which may be missing.
        is_word: False for a dict with user-defined names, like the arguments of a call or a state.
    """
    return _replaced(value, of_key=of_key, is_word=is_word, only_words=False)


def matcher_from_data(value: Any) -> Any:
    """Replace each dict by its matcher, if the value cannot contain dicts. Raises ValueError."""
    return _replaced(value, of_key=False, is_word=True, only_words=True)


def _replaced(value: Any, *, of_key: bool, only_words: bool, is_word: bool = True) -> Any:
    if isinstance(value, Mapping):
        parsed = _value_of_form(value, of_key=of_key, only_words=only_words) if is_word else None
        return _with_replaced_values(value, only_words=only_words) if parsed is None else parsed
    if not isinstance(value, list | tuple):
        return value
    items = [_replaced(item, of_key=False, only_words=only_words) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return tuple(items) if type(value) is tuple else items


def _with_replaced_values(value: Mapping[Any, Any], *, only_words: bool) -> Mapping[Any, Any]:
    """Return a mapping with replaced values; the same object, with its class, if nothing changed."""
    items = {name: _replaced(item, of_key=True, only_words=only_words) for name, item in value.items()}
    return value if all(items[name] is item for name, item in value.items()) else items


def _value_of_form(value: Mapping[Any, Any], *, of_key: bool, only_words: bool) -> Any:
    """Return the value that a dict stands for; None if it does not have the form of a word."""
    name = _word_among(value, tuple(_WORDS))
    if name is None:
        return None
    try:
        word = _value_of_word(name, value, of_key=of_key, only_words=only_words)
    except ValueError:
        if only_words:
            raise
        return None
    if may_be_absent(word) and not of_key:
        if only_words:
            raise ValueError(f"{shown(word)} stands for the value of a key, which may be missing")
        return None
    return word if only_words else DataMatcher(word, value)


def _value_of_word(name: str, value: Mapping[Any, Any], *, of_key: bool, only_words: bool) -> Any:
    options = snake_keys(value, (name, *_MORE_KEYS.get(name, ())))
    inner = options.pop(name)
    if name in _NESTING_WORDS:
        only_words = only_words or name == "number"  # it can contain only numbers
        of_key = of_key and name in _WORDS_FOR_KEYS
        several = name == "one_of" and isinstance(inner, list | tuple)
        inner = (
            [_replaced(item, of_key=of_key, only_words=only_words) for item in inner]
            if several
            else (_replaced(inner, of_key=of_key, only_words=only_words))
        )
    elif name == "exactly" and isinstance(inner, Mapping):
        inner = _with_replaced_values(inner, only_words=only_words)
    return _WORDS[name](inner, options)


def _one_of(value: Any, options: Mapping[str, Any]) -> Matcher:
    del options
    return one_of(*_checked_list(value, "one_of"))


def _approx(value: Any, options: Mapping[str, Any]) -> Any:
    from agentest.scenarios.matchers.numbers import approx

    return approx(value, **options)


def _number(value: Any, _: Mapping[str, Any]) -> Any:
    from agentest.scenarios.matchers.numbers import number

    return number(value)


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
    """Return a dict unchanged, although it has the form of a word."""
    del options
    if not isinstance(value, Mapping):
        raise ValueError(f"exactly: expected a dict, found {brief(value)}")
    return value


def _checked_list(value: Any, word: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{word}: expected a list, found {brief(value)}")
    return value


_WORDS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "optional": lambda value, _: optional(value),
    "absent": _absent,
    "one_of": _one_of,
    "approx": _approx,
    "text": lambda value, options: text(value, **options),
    "number": _number,
    "instance": _instance,
    "each": lambda value, _: each(value),
    "regex": _regex,
    "exactly": _exactly,
}
WORDS = tuple(_WORDS)
"""Words that a dict in place of a value may represent."""
