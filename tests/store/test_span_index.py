"""Spans of many conversations, found in the file of a run."""

from __future__ import annotations

import json
from pathlib import Path

from agentest.store.span_index import MOST_SPANS, SpanIndex


def line(id: str, name: str = "chat", **more: object) -> str:
    return json.dumps({"scenario": "s", "agent": "a", "conversationId": id, "name": name, **more}) + "\n"


def test_each_conversation_has_its_own_spans(tmp_path: Path) -> None:
    """Spans are found by scenario, agent and conversation, in their order, past damaged and cut lines."""
    path = tmp_path / "spans.jsonl"
    lines = [line("c1", "one"), "{damaged\n", "[]\n", line("c2"), line("c1", "two"), line("c1", "cut")[:-4]]
    path.write_text("".join(lines), encoding="utf-8")
    index = SpanIndex(path)
    assert [span["name"] for span in index.of("s", "a", "c1")] == ["one", "two"]
    assert len(index.of("s", "a", "c2")) == 1
    assert index.of("s", "other", "c1") == []


def test_no_file_is_no_spans(tmp_path: Path) -> None:
    """A run whose agents sent none has no file."""
    assert SpanIndex(tmp_path / "spans.jsonl").of("s", "a", "c1") == []


def test_more_than_can_be_shown_are_counted(tmp_path: Path) -> None:
    """How many spans are left out is told where the spans end."""
    path = tmp_path / "spans.jsonl"
    path.write_text(line("c1") * (MOST_SPANS + 3), encoding="utf-8")
    found = SpanIndex(path).of("s", "a", "c1")
    assert found[-1] == {"leftOut": 3}
    assert len(found) == MOST_SPANS + 1
