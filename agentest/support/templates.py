"""Filling `{{name}}`: in prompts, and in what is sent to agents.

One pass, so that a value which looks like a placeholder stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from agentest.support.spelling import did_you_mean

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_PATH = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")
"""A placeholder in what is sent to an agent, which may name a part of a value: `{{state.user}}`."""


def placeholders(template: str) -> tuple[str, ...]:
    """The names of a template's placeholders, in order."""
    return tuple(_PLACEHOLDER.findall(template))


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with every placeholder replaced. Raises KeyError for a name without a value."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


class Values(Protocol):
    """What stands for the placeholders of a template."""

    def __getitem__(self, name: str, /) -> Any:
        """The value of a name, any JSON value. Raises AgentestError that says why there is none."""
        ...


NO_VALUES: Values = dict[str, Any]()


class Template:
    """A JSON value with placeholders in its texts, at any depth; keys of objects are taken as they are.

    A text that is one placeholder becomes the value with its type; within a longer text a value is written
    as `as_text` does. Nothing that was filled in is looked through again.
    """

    def __init__(self, template: Any) -> None:
        self._template = template
        self.names = frozenset(_names(template))
        """Of the placeholders."""

    def filled(self, values: Values) -> Any:
        """The value with all placeholders replaced; the template itself where it has none."""
        return _filled(self._template, values) if self.names else self._template


def filled_where_known(text: str, values: Mapping[str, str]) -> str:
    """The text with the placeholders that have a value replaced; all others stay as they are."""
    return _PATH.sub(lambda match: values.get(match[1], match[0]), text)


def without(template: Any, absent: Collection[str]) -> Any:
    """The template without keys and items that hold only a placeholder of one of these names."""
    if not absent:
        return template
    if isinstance(template, Mapping):
        return {k: without(v, absent) for k, v in template.items() if not _holds_only(v, absent)}
    if isinstance(template, list):
        return [without(item, absent) for item in template if not _holds_only(item, absent)]
    return template


def _holds_only(value: Any, absent: Collection[str]) -> bool:
    """Whether a value, or the value of a pair, is a placeholder without a value."""
    if isinstance(value, tuple):
        return _holds_only(value[-1], absent)
    match = _PATH.fullmatch(value.strip()) if isinstance(value, str) else None
    return match is not None and match[1] in absent


def as_text(value: Any) -> str:
    """A value within a text: a text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check_names(template: Any, known: Iterable[str], families: Iterable[str] = ()) -> None:
    """Raise ValueError for a placeholder that stands for nothing.

    Args:
        known: names that have a value.
        families: beginnings of names, like `state` of `{{state.user}}`.
    """
    known = tuple(known)
    for name in _names(template):
        if name not in known and name.partition(".")[0] not in families:
            shown = [*known, *(f"{family}.…" for family in families)]
            raise ValueError(
                f"has the placeholder {{{{{name}}}}}, which stands for nothing; {did_you_mean(name, shown)}"
            )


def _names(template: Any) -> Iterator[str]:
    if isinstance(template, str):
        yield from _PATH.findall(template)
    elif isinstance(template, Mapping):
        for value in template.values():
            yield from _names(value)
    elif isinstance(template, list | tuple):
        for value in template:
            yield from _names(value)


def _filled(template: Any, values: Values) -> Any:
    if isinstance(template, str):
        whole = _PATH.fullmatch(template)
        return values[whole[1]] if whole else _PATH.sub(lambda match: as_text(values[match[1]]), template)
    if isinstance(template, Mapping):
        return {key: _filled(value, values) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [_filled(value, values) for value in template]
    return template
