"""How GitHub's runner finds workflow commands in a step's output: line by line, in each stream.

It trims leading white space, and compares by language rules that ignore some characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

NAMES = {
    *(
        "add-mask",
        "add-matcher",
        "add-path",
        "debug",
        "echo",
        "endgroup",
        "error",
        "group",
        "internal-set-repo-path",
    ),
    *("notice", "remove-matcher", "save-state", "set-env", "set-output", "stop-commands", "warning", "x"),
}
STEERING = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
"""What steers a terminal, or hides from whoever reads it."""
_IGNORED = ("Cc", "Cf", "Cn", "Cs", "Me", "Mn")
_IN_DATA = (("%0D", "\r"), ("%0A", "\n"), ("%25", "%"))
_IN_PROPERTY = (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))


@dataclass(frozen=True)
class Command:
    name: str
    data: str = ""
    properties: dict[str, str] = field(default_factory=dict)


def commands(stream: str) -> list[Command]:
    """The commands that the runner would find."""
    return [found for line in re.split(r"\r\n|\r|\n", stream) for found in _of_line(line)]


def _of_line(line: str) -> Iterator[Command]:
    for seen in dict.fromkeys((line, re.sub(r"\x1b\[[0-9;:]*m", "", line), _compared(line))):
        found = parsed(seen)
        if found:
            yield found
            return


def parsed(line: str) -> Command | None:
    """Parse `::name key=value,…::data` after white space, or `##[name key=value;…]data` anywhere."""
    trimmed = line.lstrip()
    if trimmed.startswith("::"):
        about, found, data = trimmed[2:].partition("::")
        name, _, properties = about.partition(" ")
        if found and name in NAMES:
            return Command(name, _unescaped(data, _IN_DATA), _properties(properties, ","))
    _, found, rest = line.partition("##[")
    about, closed, data = rest.partition("]")
    name, _, properties = about.partition(" ")
    return Command(name, data, _properties(properties, ";")) if found and closed and name in NAMES else None


def _compared(line: str) -> str:
    """The line without characters that comparisons ignore."""
    kept = (c for c in line if c.isspace() or unicodedata.category(c) not in _IGNORED)
    return "".join(c for c in kept if not 0xFE00 <= ord(c) <= 0xFE0F and c != "\u034f")


def _properties(text: str, separator: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.strip().split(separator))
    return {key: _unescaped(value, _IN_PROPERTY) for key, found, value in pairs if found and value}


def _unescaped(text: str, escapes: tuple[tuple[str, str], ...]) -> str:
    for escape, character in escapes:
        text = text.replace(escape, character)
    return text
