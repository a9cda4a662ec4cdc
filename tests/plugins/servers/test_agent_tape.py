"""Recorded requests of an agent to its model are found again by content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentest.domain.results import ModelUsage
from agentest.models.cassette import Cassettes
from agentest.models.port import CallKey
from agentest.models.tape import CassetteEntry, CassetteMode, RecordedRequest
from agentest.plugins.servers.agent_tape import AgentTape, agent_tape, first_difference
from agentest.support.http.client import StoredResponse
from agentest.support.redaction import Redactor


def response(body: bytes, status: int = 200) -> StoredResponse:
    return StoredResponse(status_code=status, headers={"content-type": "application/json"}, body=body)


class Recording:
    """The cassettes of a folder, and one conversation of one run after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.turn = 0

    def tape(self, mode: CassetteMode) -> AgentTape:
        self.cassettes = Cassettes(self.folder, mode, Redactor())
        self.turn = 0
        tape = agent_tape(self.cassettes, CallKey("agent", "scope", 1), lambda: self.turn)
        assert tape
        return tape

    def record(self, *exchanges: tuple[dict[str, Any], bytes]) -> None:
        tape = self.tape(CassetteMode.RECORD)
        for sent, body in exchanges:
            tape.begin(sent, "m", same).record(response(body))
        self.cassettes.close()


def same(sent: Any) -> Any:
    return sent


def answer_of(tape: AgentTape, sent: dict[str, Any]) -> bytes | None:
    found = tape.begin(sent, "m", same).recorded()
    return found.body if found else None


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def test_parallel_requests_are_found_in_any_order(recording: Recording) -> None:
    recording.record(({"ask": "one"}, b"1"), ({"ask": "two"}, b"2"), ({"ask": "one"}, b"3"))
    tape = recording.tape(CassetteMode.REPLAY)

    assert answer_of(tape, {"ask": "two"}) == b"2"
    assert answer_of(tape, {"ask": "one"}) == b"1"
    assert answer_of(tape, {"ask": "one"}) == b"3"
    assert answer_of(tape, {"ask": "one"}) is None


def test_a_request_that_came_late_is_found_in_the_next_turn(recording: Recording) -> None:
    recording.record(({"ask": "title"}, b"1"))
    tape = recording.tape(CassetteMode.REPLAY)
    recording.turn = 1

    assert answer_of(tape, {"ask": "title"}) == b"1"


def test_a_request_that_was_sent_too_often_is_named_so(recording: Recording) -> None:
    recording.record(({"ask": "one"}, b"1"))
    tape = recording.tape(CassetteMode.REPLAY)
    answer_of(tape, {"ask": "one"})
    again = tape.begin({"ask": "one"}, "m", same)

    assert again.recorded() is None
    assert "more often than recorded" in again.missing()


def test_long_parts_of_a_history_are_stored_once(recording: Recording, tmp_path: Path) -> None:
    texts = [f"{number}: {'long ' * 100}" for number in range(20)]
    asked = [{"tools": ["t" * 500], "messages": texts[: number + 1]} for number in range(20)]
    asked.append({"messages": [{"$same": "unknown"}, {"$same": 5}]})
    recording.record(*((sent, str(number).encode()) for number, sent in enumerate(asked)))
    (path,) = tmp_path.glob("*.jsonl")

    assert path.read_text().count("long long") < 21 * 100
    tape = recording.tape(CassetteMode.REPLAY)
    assert [answer_of(tape, sent) for sent in reversed(asked)] == [
        str(number).encode() for number in reversed(range(21))
    ]
    assert [
        entry.http and entry.http.sent for entry in recording.cassettes.page("scope", 1).recorded
    ] == asked


def test_bytes_that_are_no_text_are_kept(recording: Recording) -> None:
    recording.record(({"ask": "sound"}, b"\xff\x00\xfe"))

    assert answer_of(recording.tape(CassetteMode.REPLAY), {"ask": "sound"}) == b"\xff\x00\xfe"


def test_an_error_of_the_model_is_replayed_and_otherwise_asked_again(recording: Recording) -> None:
    tape = recording.tape(CassetteMode.RECORD)
    tape.begin({"ask": "one"}, "m", same).record(response(b"slow down", 429))
    recording.cassettes.close()

    assert answer_of(recording.tape(CassetteMode.REPLAY), {"ask": "one"}) == b"slow down"
    tape = recording.tape(CassetteMode.FILL)
    request = tape.begin({"ask": "one"}, "m", same)
    assert request.recorded() is None
    request.record(response(b"1"))
    recording.cassettes.close()
    assert answer_of(recording.tape(CassetteMode.REPLAY), {"ask": "one"}) == b"1"


@pytest.mark.parametrize("kept", ["agent", "user"])
def test_what_is_recorded_anew_leaves_the_rest_of_a_cassette(recording: Recording, kept: str) -> None:
    def record_user(cassettes: Cassettes, text: str) -> None:
        request = RecordedRequest(CallKey("user", "scope", 1, 0), 0, 0, "h", "m")
        cassettes.record(CassetteEntry(request, "m", "text", text, ModelUsage()))

    tape = recording.tape(CassetteMode.RECORD)
    tape.begin({"ask": "one"}, "m", same).record(response(b"old"))
    record_user(recording.cassettes, "old")
    recording.cassettes.close()
    mode, agent_mode = CassetteMode.RECORD, CassetteMode.REPLAY
    if kept == "user":
        mode, agent_mode = agent_mode, mode
    again = Cassettes(recording.folder, mode, Redactor(), agent_modes={"scope": agent_mode})
    tape = AgentTape(again, CallKey("agent", "scope", 1), lambda: 0)
    request = tape.begin({"ask": "one"}, "m", same)
    if kept == "user":
        request.record(response(b"new"))
    else:
        assert request.recorded()
        record_user(again, "new")
    again.done("scope", 1)
    again.close()

    recording.tape(CassetteMode.REPLAY)
    found = {each.part: each.content for each in recording.cassettes.page("scope", 1).recorded}
    assert found == {"user": "new", "agent": "new", kept: "old"}


@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "y"}]}, ("a[1].b", '"x"', '"y"')),
        ({"a": [1]}, {"a": [1, 2]}, ("a[1]", "missing", "2")),
        ({"a": 1, "b": 2}, {"a": 1}, ("b", "2", "missing")),
        ({"a": True}, {"a": 1}, ("a", "true", "1")),
        ({"a": [None]}, {"a": []}, ("a[0]", "null", "missing")),
    ],
)
def test_the_first_difference_has_its_path_and_both_values(
    before: Any, now: Any, difference: tuple[str, str, str] | None
) -> None:
    assert first_difference(before, now) == difference
