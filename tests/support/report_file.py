"""report.html as its page reads it: data from its elements, decompressed."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ELEMENT = re.compile(r'<script type="application/octet-stream" id="([\w-]+)">([^<]*)</script>')


@dataclass(frozen=True, slots=True)
class ReportFile:
    """A report, read."""

    text: str
    data: dict[str, Any]
    """Id of an element → what it holds."""

    @property
    def overview(self) -> Any:
        return self.data["overview"]

    def scenario(self, name: str, agent: str = "booking") -> Any:
        """The details of a scenario."""
        rows = self.overview["scenarios"]
        [number] = [n for n, row in enumerate(rows) if (row["name"], row["agent"]) == (name, agent)]
        chunk, at = self.overview["packed"][number]
        return self.data[f"details-{chunk}"][at]

    def transcript(self, name: str, id: str, agent: str = "booking") -> Any:
        """A conversation as the page opens it, or None if the file had no room for it."""
        detail = self.scenario(name, agent)
        ids = [row["conversationId"] for row in detail["conversations"]]
        place = detail["places"][ids.index(id)]
        if place is None or place[0] in self.overview["absent"]:
            return None
        return self.data[f"chunk-{place[0]}"][place[1]]

    def transcripts(self) -> list[tuple[str, str]]:
        """Scenario and conversation of all stored transcripts, in file order."""
        lists = [self.data[name] for name in self.data if name.startswith("chunk-")]
        return [(each["name"], each["conversation"]["conversationId"]) for held in lists for each in held]


def read_report(path: Path) -> ReportFile:
    """A report.html."""
    text = path.read_text(encoding="utf-8")
    found = _ELEMENT.findall(text)
    return ReportFile(text, {id: _unpacked(packed) for id, packed in found})


def _unpacked(packed: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(packed))) if packed else None
