"""Names of tools as expectations write them: a name, a glob (`get_*`), or a compiled pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

from agentest.scenarios.matchers.showing import shown
from agentest.support.patterns import PatternTimeout, matches_whole

ToolName = str | re.Pattern[str]
"""A name, a glob (`get_*`) or a compiled pattern, which matches the whole name."""

_KEPT_ANSWERS = 4096


def is_glob(name: str) -> bool:
    """Whether a name of a tool stands for several."""
    return any(sign in name for sign in "*?[")


def is_one_tool(name: ToolName) -> bool:
    """Whether it names a tool, not a kind of tools."""
    return isinstance(name, str) and not is_glob(name)


def name_matches(wanted: ToolName, made: str) -> bool:
    """Whether a tool called `made` is one that `wanted` names. May block. Raises PatternTimeout."""
    if isinstance(wanted, str):
        return wanted == made or (is_glob(wanted) and fnmatchcase(made, wanted))
    answer = _whole(wanted, made)
    if isinstance(answer, str):
        raise PatternTimeout(answer)
    return answer


@lru_cache(maxsize=_KEPT_ANSWERS)
def _whole(pattern: re.Pattern[str], name: str) -> bool | str:
    """Whether the pattern matches, or why that is not known: a run asks it of the same few names."""
    try:
        return matches_whole(pattern, name)
    except PatternTimeout as error:
        return str(error)


def matches_any(wanted: Iterable[ToolName], made: str) -> bool:
    """Whether one of several names a tool called `made`. Raises PatternTimeout."""
    return any(name_matches(each, made) for each in wanted)


def covers(wider: ToolName, name: ToolName) -> bool:
    """Whether every tool that `name` stands for is surely one that `wider` names. Raises PatternTimeout."""
    if wider == name or wider == "*":
        return True
    return isinstance(name, str) and not is_glob(name) and name_matches(wider, name)


def name_text(name: ToolName) -> str:
    """A name as it is shown."""
    return name if isinstance(name, str) else shown(name)
