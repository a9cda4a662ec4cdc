"""Reading what a scenario file says. What is wrong raises ValueError whose message begins with the key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from agentest.scenarios.matchers.showing import brief, type_text
from agentest.support.spelling import did_you_mean, snake_keys


def has_text_keys(value: Any) -> bool:
    """Whether it is a mapping whose keys are texts."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def kind_of(value: Any) -> str:
    """What a value is that should be a mapping with texts as keys."""
    return type_text(value) + (" with other keys" if isinstance(value, Mapping) else "")


def known_keys(value: Any, valid: tuple[str, ...], key: str) -> dict[str, Any]:
    """The dict with its keys in snake_case. Raises ValueError for another type or an unknown key."""
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


_LONGEST_NAME = 100
"""What is longer is no name that somebody has misspelt, and takes long to compare."""


def one_of_these(value: Any, valid: tuple[str, ...]) -> str:
    return did_you_mean(value if isinstance(value, str) and len(value) < _LONGEST_NAME else "", valid)


def count_of(value: Any, key: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key}: expected a whole number of at least 0, found {brief(value)}")
    return value


def needed_count(value: Any, key: str) -> int:
    count = count_of(value, key)
    if count is None:
        raise ValueError(f"{key}: expected a whole number of at least 0, found None")
    return count


def checked_text(value: Any, key: str) -> str:
    """A text, be it empty."""
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected a text, found {brief(value)}")
    return value


def needed_text(value: Any, key: str) -> str:
    """A text that says something."""
    if not checked_text(value, key).strip():
        raise ValueError(f"{key}: is empty")
    return str(value)


def positive(value: Any, key: str) -> int | None:
    """A whole number of at least 1; None: the option was not given."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}: expected a whole number of at least 1, found {brief(value)}")
    return value


def yes_or_no(value: Any, key: str) -> bool | None:
    """A truth value; None: the option was not given."""
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key}: expected True or False, found {brief(value)}")
    return value


def texts_of(value: Any, key: str) -> tuple[str, ...]:
    texts = as_list(value)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"{key}: expected a text or a list of texts, found {brief(text)}")
    return tuple(texts)


_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


def pattern_of(value: Any, key: str) -> re.Pattern[str]:
    """A compiled pattern; of data also `{regex: …, ignore_case: true, flags: "ms"}`."""
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
    plain = pattern_of(_text(options.get("regex"), f"{key}.regex"), f"{key}.regex")
    given = [*flags, *(["i"] if ignore_case else [])]
    return re.compile(plain.pattern, sum(_FLAGS[letter] for letter in set(given)))


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected a regular expression, found {brief(value)}")
    return value


def flags_of(pattern: re.Pattern[str]) -> str:
    """The letters of a pattern's flags, those in the text of the pattern among them."""
    return "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag)
