"""Reading the spans of one conversation from the file of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentest.store.spans import MOST_BYTES, MOST_SPANS, SPANS, SpanIndex, spans_of

Reader = Callable[..., list[Any]]


def by_index(folder: Path, *place: str) -> list[Any]:
    return SpanIndex(folder).of(*place)


both = pytest.mark.parametrize("read", [spans_of, by_index], ids=["one", "many"])


def line(conversation: str = "asks-1", **more: Any) -> dict[str, Any]:
    """A line as the run writes it."""
    place = {"conversationId": conversation, "scenario": "asks", "agent": "bot", "turnIndex": 0}
    return {**place, "spanId": "s1", "parentSpanId": "", "name": "tool", "durationMs": 1.5, **more}


def write(folder: Path, *lines: Any) -> None:
    texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in lines]
    (folder / SPANS).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


@both
def test_the_spans_of_one_conversation_are_found(tmp_path: Path, read: Reader) -> None:
    """Spans of other conversations, agents and scenarios are excluded, whatever their text."""
    mine = [line(name="a"), line(name="b — ü", turnIndex=1)]
    others = [
        line("asks-10"),
        line("asks-2", name='"asks-1"'),
        line(agent="other"),
        line(scenario="tells", attributes={"conversationId": "asks-1"}),
    ]
    write(tmp_path, mine[0], *others, mine[1])
    assert read(tmp_path, "asks", "bot", "asks-1") == mine
    assert read(tmp_path, "asks", "bot", "asks-3") == []


@both
def test_a_run_without_spans_has_none(tmp_path: Path, read: Reader) -> None:
    """Without the file there are no spans; an unreadable file is an error."""
    assert read(tmp_path, "asks", "bot", "asks-1") == []
    (tmp_path / SPANS).mkdir()
    with pytest.raises(OSError):
        read(tmp_path, "asks", "bot", "asks-1")


@pytest.mark.parametrize(
    "odd",
    ['{"conversationId": "asks-1", half', '["asks-1"]', "[" * 100_000 + '"asks-1"', "", '"asks-1"' * 2],
    ids=["half", "list", "deep", "empty", "text"],
)
@both
def test_invalid_lines_are_skipped(tmp_path: Path, read: Reader, odd: str) -> None:
    write(tmp_path, line(name="a"), odd, line(name="b"))
    assert [each["name"] for each in read(tmp_path, "asks", "bot", "asks-1")] == ["a", "b"]


@both
def test_an_incomplete_last_line_is_not_read(tmp_path: Path, read: Reader) -> None:
    write(tmp_path, line(name="a"))
    with (tmp_path / SPANS).open("a") as file:
        file.write(json.dumps(line(name="b")))
    assert [each["name"] for each in read(tmp_path, "asks", "bot", "asks-1")] == ["a"]


def test_omitted_spans_are_counted(tmp_path: Path) -> None:
    """An entry at the end counts spans left out because they are too many, too long or not stored."""
    who = {"conversationId": "asks-1", "scenario": "asks", "agent": "bot"}
    cut = {**who, "turnIndex": 0, "cut": True}
    write(tmp_path, *[line(name=str(n)) for n in range(5)], cut)
    found = spans_of(tmp_path, "asks", "bot", "asks-1", most=3)
    assert [each.get("name") for each in found] == ["0", "1", "2", None]
    assert found[-1] == {**who, "cut": True, "leftOut": 2}
    half = "x" * (MOST_BYTES // 2)
    write(tmp_path, line(name=half), line(name=half), line(name="c"))
    assert spans_of(tmp_path, "asks", "bot", "asks-1")[1:] == [{**who, "leftOut": 2}]


@both
def test_an_overlong_line_is_skipped(tmp_path: Path, read: Reader) -> None:
    """It is never loaded as a whole, and the next line is read."""
    write(tmp_path, json.dumps(line(name="x" * 11_000_000)), line(name="b"))
    assert [each["name"] for each in read(tmp_path, "asks", "bot", "asks-1")] == ["b"]


def test_one_index_finds_all_conversations(tmp_path: Path) -> None:
    """The file is read once, and spans over the limit of a conversation are counted."""
    write(tmp_path, *[line(), line("asks-2")] * 2, *[line("asks-3")] * (MOST_SPANS + 3))
    index = SpanIndex(tmp_path)
    assert [len(index.of("asks", "bot", f"asks-{number}")) for number in (1, 2)] == [2, 2]
    assert index.of("asks", "bot", "asks-3")[-1]["leftOut"] == 3
