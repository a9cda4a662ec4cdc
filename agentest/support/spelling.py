"""Spelling of keys: `snake_case` and `camelCase`, and suggestions for misspelled names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake_case(key: str) -> str:
    """Convert `matchMode` to `match_mode` and `baseURL` to `base_url`. Snake-case keys stay as they are."""
    return _HUMP.sub("_", key).lower()


def snake_keys(mapping: Mapping[Any, Any], valid: Iterable[str]) -> dict[Any, Any]:
    """Rename keys that are valid in another spelling. Other keys stay as they are.

    Raises ValueError if a key is given in both spellings.
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
    """Return the most similar valid name; None if none is similar."""
    matches = difflib.get_close_matches(snake_case(name), list(valid), n=1, cutoff=0.5)
    return matches[0] if matches else None


def nearest_part(text: str, names: Iterable[str]) -> str | None:
    """Return the name with the part most similar to this text; None if none is similar.

    Parts are sequences of as many words as the text has, and the whole name. Letter case is ignored.
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
    """Return a sentence for an error message with the most similar valid name, or all of them."""
    names = sorted(valid)
    close = nearest(name, names)
    if close:
        return f"did you mean `{close}`?"
    return "valid are: " + ", ".join(f"`{n}`" for n in names)
