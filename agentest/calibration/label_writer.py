"""Writing the labels file: lines are only ever added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentest.calibration.labels import Label, LabelledConversation
from agentest.store.layouts import CODECS
from agentest.support.errors import UsageError
from agentest.support.json_text import Json, encoded, plain


def conversation_line(conversation: LabelledConversation) -> Json:
    """A conversation as a line; what is empty is left out."""
    background = CODECS.write(conversation.background)
    background.pop("startedAt")
    line: Json = {
        "type": "conversation",
        "id": conversation.id,
        "scenario": conversation.scenario,
        "source": conversation.source,
        "background": {key: value for key, value in background.items() if value},
        "criteria": list(conversation.criteria),
        "complete": conversation.complete,
        "turns": [CODECS.write(turn) for turn in conversation.turns],
    }
    if conversation.complete:
        line.pop("complete")
    return {key: value for key, value in line.items() if value or key == "complete"}


def label_line(label: Label) -> Json:
    """A label as a line."""
    question = label.question
    values = label.value if isinstance(label.value, tuple) else (label.value,)
    line: Json = {"type": "label", "conversation": question.conversation}
    if question.turn is not None:
        line["turn"] = question.turn
    line |= {"criterion": question.criterion} if question.criterion else {"metric": question.metric}
    line["value"] = values[0] if len(values) == 1 else list(values)
    return line | {key: text for key in ("by", "at", "note") if (text := getattr(label, key))}


@dataclass(slots=True)
class LabelWriter:
    """Appends to a labels file, line by line: what has been written stays, whatever comes."""

    path: Path
    known: set[str]
    """Ids of the conversations that are in the file."""

    def add(self, conversation: LabelledConversation, label: Label) -> None:
        """Write a label, and its conversation where the file lacks it. Raises UsageError."""
        lines = [] if conversation.id in self.known else [conversation_line(conversation)]
        self._append([*lines, label_line(label)])
        self.known.add(conversation.id)

    def _append(self, lines: list[Json]) -> None:
        content = b"".join(encoded(plain(line)) + b"\n" for line in lines)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                file.write(b"".join(self._new_line(file)) + content)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from None

    @staticmethod
    def _new_line(file: Any) -> Iterator[bytes]:
        """The end of a last line that an editor left without one."""
        if file.seek(0, 2):
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                yield b"\n"
