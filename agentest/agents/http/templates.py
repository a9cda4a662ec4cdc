"""Templates of which a part is left out as long as something has no value."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

_ONE_PLACEHOLDER = re.compile(r"\s*\{\{\s*([\w.-]+)\s*\}\}\s*")


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
    match = _ONE_PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    return match is not None and match[1] in absent
