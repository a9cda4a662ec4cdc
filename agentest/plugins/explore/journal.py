"""The journal of an exploration, `explore.jsonl` in the folder of its run: one line per conversation.

A resumed exploration takes conversations from it instead of running them again. They are known by their unit,
the name of the change and a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentest.domain.results import ConversationResult
from agentest.plugins.explore.model import Converse
from agentest.runner.plan import Unit
from agentest.scenarios.model import Scenario
from agentest.store.codec import CODECS, conversation_json
from agentest.store.journal import RetryingLineFile
from agentest.support.json_text import Json, encoded, json_value

EXPLORE_JOURNAL = "explore.jsonl"
_Key = tuple[str, str, int, str]
"""Scope, name of the change, number, and the fingerprint of scenario and agent."""


class TryJournal:
    """Stores the conversations of changed scenarios.

    Args:
        file: receives the lines; None: they are not stored.
        earlier: the journal of the exploration that is being resumed.
    """

    def __init__(self, file: RetryingLineFile | None, earlier: Path | None = None) -> None:
        self._file = file
        self._earlier: Mapping[_Key, bytes] = _read(earlier) if earlier else {}
        self.reused = 0
        """The number of conversations that were taken from the earlier journal."""

    @property
    def size(self) -> int:
        """The number of conversations in the earlier journal."""
        return len(self._earlier)

    def around(self, converse: Converse) -> Converse:
        """Return a function that runs only the conversations that no earlier journal has."""

        async def run(base: Unit, scenario: Scenario, name: str, number: int) -> ConversationResult:
            key = (base.scope, name, number, base.fingerprint)
            if (line := self._earlier.get(key)) is not None:
                self.reused += 1
                self._add(line)
                return CODECS.read(ConversationResult, json_value(line)["result"])
            result = await converse(base, scenario, name, number)
            data = {"scope": base.scope, "name": name, "number": number, "fingerprint": base.fingerprint}
            self._add(encoded({**data, "result": conversation_json(result, None, {})}) + b"\n")
            return result

        return run

    def _add(self, line: bytes) -> None:
        if self._file is not None:
            self._file.add(line)


def _read(path: Path) -> dict[_Key, bytes]:
    """Return the lines of a journal by what they are about. A line that was cut off is left out."""
    lines: dict[_Key, bytes] = {}
    try:
        content = path.read_bytes()
    except OSError:
        return lines
    for line in content.splitlines(keepends=True):
        if key := _key_of(line):
            lines[key] = line
    return lines


def _key_of(line: bytes) -> _Key | None:
    if not line.endswith(b"\n"):
        return None
    try:
        data: Json = json_value(line)
        return data["scope"], data["name"], data["number"], data["fingerprint"]
    except (ValueError, KeyError, TypeError):
        return None
