"""Recordings of a model's API by the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentest.models.cassette import Cassettes
from agentest.models.port import CallKey
from agentest.models.tape import CassetteMode
from agentest.plugins.servers.agent_tape import agent_tape
from agentest.plugins.servers.model_gateway.exchange import GatewayError
from agentest.plugins.servers.model_gateway.recording import RecordedApi, without_ignored
from agentest.support.errors import ModelError
from agentest.support.http.client import StoredResponse
from agentest.support.redaction import Redactor

pytestmark = pytest.mark.anyio
KEY = "the-key-of-the-agent-9f8e7d"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Live:
    """A model's API that answers with these pieces."""

    pieces: list[bytes]
    method: str = "POST"
    url: str = f"http://127.0.0.1:9/v1beta/models/m:generateContent?key={KEY}"
    headers: tuple[tuple[str, str], ...] = (("Authorization", f"Bearer {KEY}"),)
    keys: tuple[str, ...] = (KEY,)
    sent: list[Any] = field(default_factory=list)

    async def send(self, body: Any) -> Pieces:
        self.sent.append(body)
        headers = {"Content-Type": "text/event-stream", "Set-Cookie": "session=1", "X-Request-Id": KEY}
        return Pieces(status_code=200, headers=headers, body=b"".join(self.pieces), all=self.pieces)


@dataclass(frozen=True, kw_only=True)
class Pieces(StoredResponse):
    """A response that comes in pieces."""

    all: list[bytes]

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self.all:
            yield piece


class Recordings:
    """The recordings of one conversation in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[ModelError] = []
        self.session_id: str | None = None

    @property
    def text(self) -> str:
        """The cassette."""
        (path,) = self.folder.glob("*.jsonl")
        return path.read_text()

    def api(self, mode: CassetteMode, live: Live, *ignored: str) -> RecordedApi:
        self.cassettes = Cassettes(self.folder, mode, Redactor())
        tape = agent_tape(self.cassettes, CallKey("agent", "scope", 1), lambda: 0)
        assert tape
        return RecordedApi(
            live=live,
            tape=tape,
            path=live.url.partition("/v1beta/")[2],
            ignored=ignored,
            session_id=self.session_id,
            keys=live.keys,
            on_problem=self.problems.append,
        )


@pytest.fixture
def recordings(tmp_path: Path) -> Recordings:
    return Recordings(tmp_path)


async def test_no_key_is_stored(recordings: Recordings) -> None:
    live = Live([b'data: {"text": "', KEY.encode(), b'"}\n\n'])
    response = await recordings.api(CassetteMode.RECORD, live).send({"text": f"my key is {KEY}"})
    assert b"".join([piece async for piece in response.pieces()]).count(KEY.encode()) == 1
    await response.aclose()
    recordings.cassettes.close()
    stored = recordings.text

    assert KEY not in stored
    assert "cookie" not in stored.lower()
    url = "http://127.0.0.1:9/v1beta/models/m:generateContent?key=unused"
    keyless = Live([], url=url, headers=(), keys=())
    body = {"text": "my key is [redacted]"}
    replayed = await recordings.api(CassetteMode.REPLAY, keyless).send(body)
    assert await replayed.read() == b'data: {"text": "[redacted]"}\n\n'
    assert dict(replayed.headers) == {"content-type": "text/event-stream", "x-request-id": "[redacted]"}
    assert keyless.sent == []


async def test_a_stream_that_the_agent_left_is_replayed_up_to_there(recordings: Recordings) -> None:
    response = await recordings.api(CassetteMode.RECORD, Live([b"one", b"two"])).send({"a": 1})
    async for _ in response.pieces():
        break
    await response.aclose()
    recordings.cassettes.close()

    replayed = await recordings.api(CassetteMode.REPLAY, Live([])).send({"a": 1})
    assert await replayed.read() == b"one"
    live = Live([b"three"])
    asked = await recordings.api(CassetteMode.FILL, live).send({"a": 1})
    assert await asked.read() == b"three"
    assert len(live.sent) == 1


async def test_the_session_of_a_replay_is_another(recordings: Recordings) -> None:
    recordings.session_id = "agentest-asks-1-0123"
    live = Live([b'{"user": "agentest-asks-1-0123"}'])
    response = await recordings.api(CassetteMode.RECORD, live).send({"user": "agentest-asks-1-0123"})
    assert await response.read() == b'{"user": "agentest-asks-1-0123"}'
    recordings.cassettes.close()

    recordings.session_id = "agentest-asks-1-4567"
    replayed = await recordings.api(CassetteMode.REPLAY, Live([])).send({"user": "agentest-asks-1-4567"})
    assert await replayed.read() == b'{"user": "agentest-asks-1-4567"}'


async def test_a_miss_ends_the_conversation_and_asks_nobody(recordings: Recordings) -> None:
    live = Live([b"one"])
    with pytest.raises(GatewayError, match="nothing is recorded"):
        await recordings.api(CassetteMode.REPLAY, live).send({"a": 1})

    assert live.sent == []
    assert len(recordings.problems) == 1


@pytest.mark.parametrize(
    ("ignored", "left"),
    [
        ("a", {"a": "(ignored)", "b": [{"id": "x1", "n": 2}, {"id": "x2"}]}),
        ("b[0].id", {"a": "x1 y", "b": [{"id": "(ignored)", "n": 2}, {"id": "x2"}]}),
        ("b.0.id", {"a": "x1 y", "b": [{"id": "(ignored)", "n": 2}, {"id": "x2"}]}),
        ("b[*].id", {"a": "x1 y", "b": [{"id": "(ignored)", "n": 2}, {"id": "(ignored)"}]}),
        ("b[0].*", {"a": "x1 y", "b": [{"id": "(ignored)", "n": "(ignored)"}, {"id": "x2"}]}),
        ("/x\\d/", {"a": "(ignored) y", "b": [{"id": "(ignored)", "n": 2}, {"id": "(ignored)"}]}),
        ("c.d[7].e", {"a": "x1 y", "b": [{"id": "x1", "n": 2}, {"id": "x2"}]}),
    ],
)
def test_paths_and_patterns_are_ignored(ignored: str, left: dict[str, Any]) -> None:
    body = {"a": "x1 y", "b": [{"id": "x1", "n": 2}, {"id": "x2"}]}

    assert without_ignored(body, [ignored]) == left
    assert body["a"] == "x1 y"
