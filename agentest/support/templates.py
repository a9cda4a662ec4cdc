"""Fill `{{name}}` placeholders in prompts and in messages to agents.

Templates are filled in one pass, so a value that looks like a placeholder stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from agentest.support.text import did_you_mean

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_PATH = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")
"""A placeholder in a message to an agent, which may name a part of a value: `{{state.user}}`."""


def placeholders(template: str) -> tuple[str, ...]:
    """Return the names of a template's placeholders, in order."""
    return tuple(_PLACEHOLDER.findall(template))


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace every placeholder in the template. Raises KeyError for a name without a value."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


class Values(Protocol):
    """The values for the placeholders of a template."""

    def __getitem__(self, name: str, /) -> Any:
        """Return the JSON value of a name. Raises AgentestError with the reason if there is none."""


NO_VALUES: Values = dict[str, Any]()


class Template:
    """A JSON value with placeholders in its texts, at any depth. Object keys are not filled.

    A text that consists of one placeholder becomes the value with its type. In a longer text, a value is
    written by `as_text`. Filled values are not searched for placeholders again.
    """

    def __init__(self, template: Any) -> None:
        self._template = template
        self.names = frozenset(_names(template))

    def filled(self, values: Values) -> Any:
        """Return the value with all placeholders replaced, or the template itself if it has none."""
        return _filled(self._template, values) if self.names else self._template


def fill_known(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders that have a value. All others stay as they are."""
    return _PATH.sub(lambda match: values.get(match[1], match[0]), text)


def without(template: Any, absent: Collection[str]) -> Any:
    """Remove keys and items that consist of a placeholder with one of these names."""
    if not absent:
        return template
    if isinstance(template, Mapping):
        return {k: without(v, absent) for k, v in template.items() if not _is_absent(v, absent)}
    if isinstance(template, list):
        return [without(item, absent) for item in template if not _is_absent(item, absent)]
    return template


def _is_absent(value: Any, absent: Collection[str]) -> bool:
    if isinstance(value, tuple):
        return _is_absent(value[-1], absent)
    match = _PATH.fullmatch(value.strip()) if isinstance(value, str) else None
    return match is not None and match[1] in absent


def as_text(value: Any) -> str:
    """Return the form of a value within a text: a text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check_names(template: Any, known: Iterable[str], families: Iterable[str] = ()) -> None:
    """Raise ValueError for an unknown placeholder.

    Args:
        known: names that have a value.
        families: first parts of names, such as `state` in `{{state.user}}`.
    """
    known = tuple(known)
    for name in _names(template):
        if name not in known and name.partition(".")[0] not in families:
            options = [*known, *(f"{family}.…" for family in families)]
            raise ValueError(
                f"has the placeholder {{{{{name}}}}}, which stands for nothing; {did_you_mean(name, options)}"
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
        if whole := _PATH.fullmatch(template):
            return values[whole[1]]
        return _PATH.sub(lambda match: as_text(values[match[1]]), template)
    if isinstance(template, Mapping):
        return {key: _filled(value, values) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [_filled(value, values) for value in template]
    return template
