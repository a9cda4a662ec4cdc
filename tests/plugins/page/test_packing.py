"""Packed data of a page, and its commands."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from agentest.plugins.page.viewer.overview import show_command
from agentest.plugins.page.viewer.page import CHUNK_BYTES, Chunks
from agentest.report.agent import rerun


def unpacked(text: str | None) -> Any:
    assert text is not None
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_pieces_are_found_at_their_places() -> None:
    """Each piece is at its reported place, and no list is longer than a chunk."""
    pieces = [json.dumps("x" * 40_000 + str(n)).encode() for n in range(20)]
    chunks = Chunks()
    places = [chunks.add(piece) for piece in pieces]
    chunks.close()
    lists = [unpacked(text) for text in chunks.packed]
    assert [json.dumps(lists[place[0]][place[1]]).encode() for place in places if place] == pieces
    assert len(lists) == 4
    assert all(len(json.dumps(held)) <= CHUNK_BYTES + 2 * len(held) for held in lists)


def test_without_pieces_there_is_no_list() -> None:
    chunks = Chunks()
    chunks.close()
    assert (chunks.packed, chunks.absent, chunks.left_out) == ([], [], 0)


SCENARIO = {"file": "a b.sim.py", "line": 3, "name": "x y", "agent": "it's"}


@pytest.mark.parametrize(
    ("scenario", "several", "command"),
    [
        (SCENARIO, False, "agentest run 'a b.sim.py::x y'"),
        (SCENARIO, True, "agentest run 'a b.sim.py::x y' --agent 'it'\"'\"'s'"),
        ({**SCENARIO, "file": "-x.sim.py"}, False, "agentest run './-x.sim.py::x y'"),
        ({**SCENARIO, "file": "s.test.json", "evalId": "$(id)"}, False, "agentest eval 's.test.json:$(id)'"),
        ({**SCENARIO, "agent": ""}, True, "agentest run 'a b.sim.py'"),
        ({**SCENARIO, "file": "", "agent": ""}, True, ""),
        ({**SCENARIO, "file": "agentest.config.yaml", "line": 0}, True, ""),
    ],
    ids=["plain", "agent", "option", "case", "file", "nothing", "recorded sessions"],
)
def test_a_command_is_safe_in_a_shell(scenario: Any, several: bool, command: str) -> None:
    """Names that others chose are quoted, and are never taken for options."""
    assert rerun(scenario, several) == command


def test_a_run_that_is_not_stored_is_the_latest() -> None:
    """The command that prints transcripts names the run, or the latest one."""
    assert show_command("", "a\nb") == "agentest show latest --scenario '=a\nb' --verbose"
