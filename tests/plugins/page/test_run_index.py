"""A run read in parts: the same whether its journal comes at once, byte by byte, or as a results.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
import stored
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest.domain.events import RunStarted
from agentest.domain.results import RunResult
from agentest.plugins.page.server.run_index import RunIndex
from agentest.store.journal import Journal
from agentest.support.errors import UsageError
from agentest.version import __version__


def a_run(*names: str) -> RunResult:
    made: RunResult = builders.run_result(*(builders.scenario_result(name=name) for name in names))
    return made


TWO = a_run("books", "cancels")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The journal of a run of two scenarios."""
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    journal = Journal(path)
    planned = tuple((each.name, each.agent, len(each.conversations)) for each in TWO.scenarios)
    for event in builders.events(replace(TWO, version=__version__)):
        journal.on_event(replace(event, planned=planned) if isinstance(event, RunStarted) else event)
    journal.close()
    return path.read_bytes()


def opened(index: RunIndex) -> list[Any]:
    """All conversations, each read again."""
    return [each for key in index.scenarios for each in index.conversations(key)]


def conversations(run: RunResult) -> list[Any]:
    document = stored.to_json(run)
    return [each for scenario in document["scenarios"] for each in scenario["conversations"]]


def pieces(written: bytes, cuts: list[int]) -> Iterator[bytes]:
    ends = sorted({cut % len(written) for cut in cuts} | {len(written)})
    for start, end in zip([0, *ends], ends, strict=False):
        yield written[start:end]


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(min_value=1, max_value=1_000_000), max_size=8))
def test_a_journal_is_followed_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, written: bytes, cuts: list[int]
) -> None:
    """For any partial writes, in the end every line is read exactly once."""
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    path.touch()
    index = RunIndex(path)
    for piece in pieces(written, cuts):
        with path.open("ab") as journal:
            journal.write(piece)
        index.refresh()
        assert len(opened(index)) == sum(each.numbers.conversations for each in index.scenarios.values())
    assert index.head is not None
    assert all(each.result for each in index.scenarios.values())
    assert (opened(index), index.problems) == (conversations(TWO), [])


def test_a_journal_of_another_version_is_shown_in_today_s_form(tmp_path: Path, written: bytes) -> None:
    """Keys that another version did not write are filled in; ADK's own results stay as they are."""
    path = tmp_path / "journal.jsonl"
    lines = [json.loads(line) for line in written.splitlines()]
    lines[0]["version"] = "0.0.1"
    adk = [{"evalMetricResults": []}]
    for line in lines:
        if line["type"] == "conversation":
            del line["conversation"]["time"]
            line["conversation"] |= {"endedBy": "satisfied", "evalMetricResultPerInvocation": adk}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    index = RunIndex(path)
    index.refresh()
    shown = opened(index)
    assert len(shown) == len(conversations(TWO))
    for each in shown:
        assert (each["endedBy"], each["time"]["totalMs"]) == ("satisfied", 0.0)
        assert each["evalMetricResultPerInvocation"] == adk
    index.close()


def test_another_file_of_the_same_name_is_another_run(tmp_path: Path) -> None:
    """A results.json that the next run replaces: nothing of the old one is shown, and its spool is closed."""
    path, later = tmp_path / "results.json", tmp_path / "later.json"
    path.write_text(json.dumps(stored.to_json(TWO)))
    index = RunIndex(path)
    index.refresh()
    assert opened(index) == conversations(TWO)
    other = a_run("refunds")
    later.write_text(json.dumps(stored.to_json(other)))
    later.replace(path)
    index.refresh()
    assert [name for name, _ in index.scenarios] == ["refunds"]
    assert opened(index) == conversations(other)
    index.close()


def test_a_journal_in_place_of_a_document_is_read_as_one(tmp_path: Path, written: bytes) -> None:
    """Conversations come from the file that is there now."""
    path, later = tmp_path / "results.json", tmp_path / "later.jsonl"
    path.write_text(json.dumps(stored.to_json(a_run("refunds"))))
    index = RunIndex(path)
    index.refresh()
    later.write_bytes(written)
    later.replace(path)
    index.refresh()
    assert opened(index) == conversations(TWO)


def test_a_conversation_that_is_gone_is_told(tmp_path: Path) -> None:
    """Between the list and the opening the file may be another one, or none."""
    path = tmp_path / "results.json"
    path.write_text(json.dumps(stored.to_json(TWO)))
    index = RunIndex(path)
    index.refresh()
    with pytest.raises(UsageError, match="cannot be read any more"):
        list(index.conversations(("never", "agent")))
    path.unlink()
    with pytest.raises(UsageError, match="was removed"):
        index.refresh()
    index.close()
