"""Labels files keep the date of their conversations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from agentest.plugins.page.labels.labels import content_id, read_labels

MAY = "2024-05-15"


def test_labels_files_keep_the_date(tmp_path: Path) -> None:
    """A judge is calibrated with the date of the run."""
    line = {"type": "conversation", "background": {"goal": "Book.", "date": MAY}, "turns": [
        {"userMessage": "Hi", "agentMessage": "Ho"},
    ]}  # fmt: skip
    file = tmp_path / "labels.jsonl"
    file.write_text(json.dumps(line) + "\n", encoding="utf-8")
    [conversation] = read_labels(file).conversations.values()
    assert conversation.background.date == MAY
    undated = replace(conversation.background, date="")
    assert content_id(conversation.background, (), conversation.turns) == conversation.id
    assert content_id(undated, (), conversation.turns) == "c-90a850167db7"
