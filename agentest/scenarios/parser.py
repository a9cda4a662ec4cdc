"""Parse plain options of scenario files, and matchers that are written as data.

Invalid values raise ValueError with a message that begins with the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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
from agentest.support.errors import errors_as
from agentest.support.text import did_you_mean, snake_case, snake_keys

_LONGEST_NAME = 100  # limit for suggestions: a longer text is not a misspelt name, and slow to compare
_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}
CALL_WORDS = ("any_of", "exactly", "before", "never_after", "regex")
_MORE_KEYS = {
    "approx": ("rel", "abs"),
    "text": ("ignore_case", "ignore_space", "ignore_punctuation"),
    "regex": ("ignore_case", "flags"),
}
_MOST_KEYS = 4
_NESTING_WORDS = ("optional", "one_of", "number", "each")  # words whose values may be words themselves
_WORDS_FOR_KEYS = ("optional", "one_of")


class InvalidOptions(ValueError):
    """All problems of a scenario's options, as one message each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class ProblemCollector:
    """Parses values one after another, so that all invalid ones are reported together."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def parse(self, parse: Callable[..., Any], *values: Any, **options: Any) -> Any:
        """Return the parsed value; if it is invalid, collect the problems and return None."""
        try:
            return parse(*values, **options)
        except ValueError as error:
            self.problems += error.problems if isinstance(error, InvalidOptions) else [str(error)]
            return None

    def check(self) -> None:
        """Raise InvalidOptions if there was a problem."""
        if self.problems:
            raise InvalidOptions(self.problems)


def has_text_keys(value: Any) -> bool:
    """Return True if it is a mapping whose keys are texts."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def kind_of(value: Any) -> str:
    """Describe the type of a value that should be a mapping with text keys."""
    return type_text(value) + (" with other keys" if isinstance(value, Mapping) else "")


_MEANT = {
    "says": "contain contains include includes text reply",
    "never_says": "excludes not_contain not_contains never_contains does_not_contain",
    "turns": "messages script steps prompts input inputs",
    "tools": "mock mocked_tools tool_mocks",
    "trajectory": "calls tool_calls expected_calls expected_tools expected_writes forbidden match_mode reads",
    "criteria": "criterion rubric rubrics judge",
    "profile": "persona user description",
    "expect": "asserts expected expectations says never_says",
    "conversations_per_scenario": "conversations runs repeats",
    "user_message": "user role content message input prompt query",
    "name": "tool tool_name function",
    "args": "arguments input parameters params kwargs",
}


def meant(name: str, valid: Sequence[str]) -> str:
    """Return a hint for an unknown key: the key that means this, the most similar one, or all of them."""
    for key, others in _MEANT.items():
        if key in valid and snake_case(name) in others.split() and f"{snake_case(name)}s" not in valid:
            return f"did you mean `{key}`?"
    return did_you_mean(name, valid)


def known_keys(value: Any, valid: tuple[str, ...], key: str) -> dict[str, Any]:
    """Return the dict with snake_case keys. Raises ValueError for another type or an unknown key."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a dict, found {type_text(value)}; write {{'{valid[0]}': …}}")
    with errors_as(ValueError, f"{key}: "):
        options = snake_keys(value, valid)
    for name in options:
        if name not in valid:
            raise ValueError(f"{key}: unknown key `{name}`; {meant(str(name), valid)}")
    return options


def names_of(cls: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def suggest_one_of(value: Any, valid: tuple[str, ...]) -> str:
    return did_you_mean(value if isinstance(value, str) and len(value) < _LONGEST_NAME else "", valid)


def checked(value: Any, key: str, what: str, is_valid: bool) -> Any:
    """Return the value of a key. Raises ValueError unless it is valid, which is `what` was expected."""
    if not is_valid:
        raise ValueError(f"{key}: expected {what}, found {brief(value)}")
    return value


def is_whole(value: Any) -> bool:
    """Return True for an int that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def count_of(value: Any, key: str) -> int | None:
    return None if value is None else count_not_none(value, key)


def count_not_none(value: Any, key: str) -> int:
    number: int = checked(value, key, "a whole number of at least 0", is_whole(value) and value >= 0)
    return number


def checked_text(value: Any, key: str) -> str:
    """Return a text, which may be empty."""
    text: str = checked(value, key, "a text", isinstance(value, str))
    return text


def positive(value: Any, key: str) -> int:
    """Return a whole number of at least 1."""
    number: int = checked(value, key, "a whole number of at least 1", is_whole(value) and value >= 1)
    return number


def boolean(value: Any, key: str) -> bool:
    is_true: bool = checked(value, key, "True or False", isinstance(value, bool))
    return is_true


def listed(value: Any, key: str, what: str) -> Sequence[Any]:
    """Return a sequence that is not a text."""
    if isinstance(value, str) and what in ("a list of texts", "a list of user messages"):
        raise ValueError(f"{key}: expected {what}, found {brief(value)}; write [{brief(value)}]")
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    items: Sequence[Any] = checked(value, key, what, is_list)
    return items


def nonempty_text(value: Any, key: str) -> str:
    """Return a text that is not empty."""
    if not checked_text(value, key).strip():
        raise ValueError(f"{key}: is empty")
    return str(value)


def texts_of(value: Any, key: str) -> tuple[str, ...]:
    texts = as_list(value)
    for item in texts:
        checked(item, key, "a text or a list of texts", isinstance(item, str) and bool(item))
    return tuple(texts)


def pattern_of(value: Any, key: str) -> re.Pattern[str]:
    """Return a compiled pattern; data may also be `{regex: …, ignore_case: true, flags: "ms"}`."""
    if isinstance(value, Mapping):
        return _pattern_of_data(value, key)
    text = value.pattern if isinstance(value, re.Pattern) else value
    checked(value, key, "a regular expression", isinstance(text, str))
    problem = f"{key}: {brief(value)} is not a regular expression: "
    with errors_as(ValueError, problem, (re.error, OverflowError, RecursionError)):
        return re.compile(value)


def _pattern_of_data(value: Mapping[Any, Any], key: str) -> re.Pattern[str]:
    options = known_keys(value, ("regex", "ignore_case", "flags"), key)
    flags = options.get("flags", "")
    are_flags = isinstance(flags, str) and set(flags) <= _FLAGS.keys()
    checked(flags, f"{key}.flags", f"letters of {''.join(_FLAGS)!r}", are_flags)
    ignore_case = options.get("ignore_case", False)
    checked(ignore_case, f"{key}.ignore_case", "True or False", isinstance(ignore_case, bool))
    text = options.get("regex")
    plain = pattern_of(
        checked(text, f"{key}.regex", "a regular expression", isinstance(text, str)), f"{key}.regex"
    )
    letters = [*flags, *(["i"] if ignore_case else [])]
    return re.compile(plain.pattern, sum(_FLAGS[letter] for letter in set(letters)))


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
    items = {name: _replaced(item, of_key=True, only_words=only_words) for name, item in value.items()}
    return value if all(items[name] is item for name, item in value.items()) else items


def _value_of_form(value: Mapping[Any, Any], *, of_key: bool, only_words: bool) -> Any:
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


def _approx(value: Any, options: Mapping[str, Any]) -> Matcher:
    from agentest.scenarios.matchers.numbers import approx

    return approx(value, **options)


def _number(value: Any, _: Mapping[str, Any]) -> Matcher:
    from agentest.scenarios.matchers.numbers import number

    return number(value)


_WORDS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "optional": lambda value, _: optional(value),
    "absent": lambda value, _: checked(value, "absent", "true", value is True) and absent,
    "one_of": lambda value, _: one_of(*checked(value, "one_of", "a list", isinstance(value, list | tuple))),
    "approx": _approx,
    "text": lambda value, options: text(value, **options),
    "number": _number,
    "instance": lambda value, _: instance(
        *(None if name is None else type_named(name) for name in as_list(value))
    ),
    "each": lambda value, _: each(value),
    "regex": lambda value, options: pattern_of({"regex": value, **options}, "regex"),
    # A dict that is not changed, although it has the form of a word.
    "exactly": lambda value, _: checked(value, "exactly", "a dict", isinstance(value, Mapping)),
}
WORDS = tuple(_WORDS)  # words that a dict in place of a value may represent
