"""How a file of JSON is written: what is added to it is written in the same way."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_FIRST_ENTRY = re.compile(r"[\[{](\r?\n)([ \t]+)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_COLON = re.compile(r":( ?)")
_COMMA = re.compile(r",( ?)\S")
_LOOKED_AT = 200_000
"""Characters of a file that tell how it is written."""
_ESCAPED = re.compile(r"\\u(?:00[89a-fA-F]|0[1-9a-fA-F]|[1-9a-fA-F])")
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Style:
    """How a file is written.

    Attributes:
        newline: "" where the whole file is one line.
        indent: by how much each level is further in.
        colon, comma: what stands between key and value, and between the values of one line.
        ascii: whether letters beyond ASCII are escaped.
    """

    newline: str = "\n"
    indent: str = "  "
    colon: str = ": "
    comma: str = ", "
    ascii: bool = False

    def lines(self, value: Any, margin: str) -> str:
        """A value over several lines, whose first line begins at a margin; in one where the file is one."""
        if not self.newline:
            return self.line(value)
        text = self._dumped(value, indent=self.indent, separators=(",", self.colon))
        return text.replace("\n", self.newline + margin)

    def line(self, value: Any) -> str:
        """A value in one line."""
        return self._dumped(value, separators=(self.comma, self.colon))

    def _dumped(self, value: Any, **layout: Any) -> str:
        text = json.dumps(value, ensure_ascii=self.ascii, allow_nan=False, **layout)
        # Halves of characters have no other form: the reader says what is wrong with them.
        return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def style_of(text: str) -> Style:
    """How a text of JSON is written, by what comes first in it."""
    bare = _STRING.sub('""', text[:_LOOKED_AT])
    first, colon, comma = _FIRST_ENTRY.search(bare), _COLON.search(bare), _COMMA.search(bare)
    return Style(
        newline=first[1] if first else "",
        indent=first[2] if first else "",
        colon=f":{colon[1]}" if colon else ": ",
        comma=f",{comma[1]}" if comma else ", ",
        ascii=bool(_ESCAPED.search(text)) and text.isascii(),
    )
