"""Two spellings of one key: Python's `snake_case` and the `camelCase` of the original's files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake_case(key: str) -> str:
    """`matchMode` → `match_mode`, `baseURL` → `base_url`; a snake_case key stays as it is."""
    return _HUMP.sub("_", key).lower()


def snake_keys(mapping: Mapping[Any, Any], valid: Iterable[str]) -> dict[Any, Any]:
    """The mapping with every key that is a valid one in another spelling renamed; others as they are.

    Raises ValueError when a key is given in both spellings.
    """
    names = frozenset(valid)
    renamed: dict[Any, Any] = {}
    for key, value in mapping.items():
        name = snake_case(key) if isinstance(key, str) and key not in names else key
        name = name if name in names else key
        if name in renamed:
            raise ValueError(f"`{name}` is given twice, in both spellings")
        renamed[name] = value
    return renamed


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that looks most like this one, or None when none does."""
    matches = difflib.get_close_matches(snake_case(name), list(valid), n=1, cutoff=0.5)
    return matches[0] if matches else None


def nearest_part(text: str, names: Iterable[str]) -> str | None:
    """The name of which some part looks most like this text, or None when none does.

    Parts are as many words as the text has, and the name as a whole; letter case does not count.
    """
    parts: dict[str, str] = {}
    for name in names:
        words = re.findall(r"[^\W_]+", name.casefold())
        count = max(1, len(re.findall(r"[^\W_]+", text)))
        for start in range(max(1, len(words) - count + 1)):
            parts.setdefault(" ".join(words[start : start + count]), name)
        parts.setdefault(name.casefold(), name)
    close = difflib.get_close_matches(text.casefold(), parts, n=1, cutoff=0.6)
    return parts[close[0]] if close else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """A sentence for an error message: the nearest valid name, or all of them."""
    names = sorted(valid)
    close = nearest(name, names)
    if close:
        return f"did you mean `{close}`?"
    return "valid are: " + ", ".join(f"`{n}`" for n in names)
