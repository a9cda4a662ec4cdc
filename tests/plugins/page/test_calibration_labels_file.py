"""A labels file that is read again and again while it grows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentest.plugins.page.labels.labels import LabelsFile, read_labels
from agentest.support.errors import UsageError

TURNS = [{"userMessage": "Hi", "agentMessage": "Hello"}]
CONVERSATION = json.dumps({"type": "conversation", "id": "c", "turns": TURNS})


def label(value: int) -> str:
    return json.dumps(
        {"type": "label", "conversation": "c", "turn": 0, "metric": "helpfulness", "value": value}
    )


@pytest.mark.parametrize(
    "steps",
    [
        [[CONVERSATION, label(1)], [CONVERSATION, label(1), label(2)]],
        [[CONVERSATION, label(1)], [CONVERSATION, label(3), label(2)], [CONVERSATION, label(3)]],
        [[CONVERSATION], [CONVERSATION, "", label(1)]],
    ],
    ids=["grown", "changed", "empty line"],
)
@pytest.mark.parametrize("end", ["\n", ""], ids=["ended", "last line open"])
def test_what_is_read_is_what_the_file_has(tmp_path: Path, steps: list[list[str]], end: str) -> None:
    """However the file was changed between two readings, the later one is as if it were the first."""
    file = LabelsFile(tmp_path / "labels.jsonl")
    for lines in steps:
        file.path.write_text("\n".join(lines) + end)
        assert file.read() == read_labels(file.path)


def test_a_later_line_that_is_wrong_is_named(tmp_path: Path) -> None:
    """Lines are counted from the file's first, and what is mended is read."""
    file = LabelsFile(tmp_path / "labels.jsonl")
    file.path.write_text(f"{CONVERSATION}\n{label(1)}\n")
    file.read()
    file.path.write_text(f"{CONVERSATION}\n{label(1)}\n{label(9)}\n")
    with pytest.raises(UsageError, match=r"labels\.jsonl:3: `value` of helpfulness"):
        file.read()
    file.path.write_text(f"{CONVERSATION}\n{label(1)}\n{label(5)}\n")
    assert [each.value for each in file.read().labels] == [1, 5]
