"""Filling `{{name}}` in prompts: one pass, so that a value which looks like a placeholder stays text."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def placeholders(template: str) -> tuple[str, ...]:
    """The names of a template's placeholders, in order."""
    return tuple(_PLACEHOLDER.findall(template))


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with every placeholder replaced. Raises KeyError for a name without a value."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)
