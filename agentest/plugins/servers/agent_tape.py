"""Record and replay what an agent asks its own model, behind the model gateway.

A request is identified by its conversation, its turn and its content, because agents may send several at
once. Equal requests of a turn are answered in the order in which they were recorded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from itertools import zip_longest
from typing import Any

from agentest.domain.results import ModelUsage
from agentest.domain.transcript import NO_RECORDED_ANSWER
from agentest.models.port import CallKey
from agentest.models.tape import (
    CassetteEntry,
    CassetteMode,
    HttpExchange,
    RecordedRequest,
    Slot,
    Tape,
    digest,
)
from agentest.support.http.client import StoredResponse
from agentest.support.json_text import leaves
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import turn_name

_HASH_CHARS = 16
_SHOWN_CHARS = 60
_BEFORE_CHARS = 20
_MISSING = object()
Compared = Callable[[Any], Any]


@dataclass(slots=True)
class AgentTape:
    """The recordings of one conversation's requests.

    Args:
        key: identifies the conversation; the turn is filled in.
        turn_index: returns the current turn.
    """

    tape: Tape
    key: CallKey
    turn_index: Callable[[], int]
    _times: Counter[tuple[int, str]] = field(default_factory=Counter)
    used: set[Slot] = field(default_factory=set)
    _hashes: dict[Slot, str] = field(default_factory=dict)

    @property
    def mode(self) -> CassetteMode | None:
        return self.tape.mode_of(self.key)

    def begin(self, sent: Mapping[str, Any], model: str, compared: Compared) -> AgentRequest:
        """Identify a request. Call it once for each request.

        Args:
            compared: returns the part of a request that is the same in every run.
        """
        content = _redacted(sent, self.tape.redact)
        turn, content_hash = self.turn_index(), digest(content, _HASH_CHARS)
        again = self._times[turn, content_hash]
        self._times[turn, content_hash] += 1
        request = RecordedRequest(replace(self.key, turn=turn), 0, again, content_hash, model)
        return AgentRequest(self, request, content, compared)

    def hash_of(self, entry: CassetteEntry, compared: Compared) -> str:
        slot = entry.request.slot
        if slot not in self._hashes:
            self._hashes[slot] = digest(compared(_sent(entry)), _HASH_CHARS)
        return self._hashes[slot]

    def unused(self) -> Iterator[CassetteEntry]:
        key = self.key
        for entries in self.tape.layers(key.scope, key.conversation):
            for slot, entry in entries.items():
                if slot not in self.used and replace(slot[0], turn=None) == key:
                    yield entry

    def nearest(self, request: AgentRequest) -> CassetteEntry | None:
        """Return the recorded request that has most in common with one, first of those not yet asked."""
        key, wanted = self.key, set(leaves(request.content))
        page = self.tape.page(key.scope, key.conversation)
        of_conversation = [
            each for each in page.recorded if replace(each.request.key, turn=None, sample=key.sample) == key
        ]

        def likeness(entry: CassetteEntry) -> tuple[bool, int, int]:
            common = len(wanted & set(leaves(_sent(entry))))
            return entry.request.slot not in self.used, common, -_distance(entry, request.request)

        return max(of_conversation, key=likeness, default=None)


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request of an agent to its model."""

    tape: AgentTape
    request: RecordedRequest
    content: Any
    compared: Compared

    def recorded(self) -> StoredResponse | None:
        """Return the next recorded response to such a request.

        It is of another turn if the turn has none, because agents may work on between turns.
        """
        tape = self.tape
        if tape.mode is CassetteMode.RECORD:
            return None
        wanted = digest(self.compared(self.content), _HASH_CHARS)
        found = [
            each
            for each in tape.unused()
            if tape.hash_of(each, self.compared) == wanted
            and not (each.failed and tape.mode is CassetteMode.FILL)
        ]
        entry = min(found, key=lambda each: _distance(each, self.request), default=None)
        if entry is None:
            return None
        tape.used.add(entry.request.slot)
        if entry.http is None:
            return None
        body = entry.content.encode(errors="surrogateescape")
        return StoredResponse(status_code=entry.http.status, headers=entry.http.headers, body=body)

    def missing(self) -> str:
        """Return what is missing for the request, and what to do."""
        tape, key = self.tape.tape, self.request.key
        page = tape.page(key.scope, key.conversation)
        which = f"conversation {key.conversation}" + ("" if key.turn is None else f", {turn_name(key.turn)}")
        again, nearest = tape.remedy_for(key.scope), self.tape.nearest(self)
        if not page.has_answers:
            why = f"nothing is recorded for it in {page.path}. {again}"
        elif nearest is None:
            why = f"{page.path} has no further request of this conversation: it went another way. {again}"
        elif difference := first_difference(self.compared(_sent(nearest)), self.compared(self.content)):
            path, before, now = difference
            why = (
                f"{path} is {now}, and in the nearest request in {page.path} it is {before}. If it changes "
                f"in every run, write model_gateway.ignore: [{json.dumps(path)}]; if the agent has changed, "
                f"{again[0].lower()}{again[1:]}"
            )
        else:
            why = f"it was sent more often than recorded in {page.path}. {again}"
        where = f"scenario {tape.name_of(key.scope)!r}, {which}"
        return f"{where}: {NO_RECORDED_ANSWER}: {why}"

    def record(self, response: StoredResponse) -> None:
        """Record the response. Raises CassetteError if it cannot be written."""
        tape = self.tape.tape
        headers = {name: tape.redact(value) for name, value in response.headers.items()}
        http = HttpExchange(self.content, response.status_code, headers, response.cut)
        body = response.body.decode(errors="surrogateescape")
        entry = CassetteEntry(self.request, "", "response", body, ModelUsage(), http)
        self.tape.used.add(tape.record(entry).request.slot)


def agent_tape(tape: Tape, key: CallKey, turn_index: Callable[[], int]) -> AgentTape | None:
    """Return the recordings of a conversation; None if its agent's model is neither recorded nor replayed."""
    # What a run with a budget keeps is what Agentest itself pays for.
    return AgentTape(tape, key, turn_index) if tape.mode_of(key) not in (None, CassetteMode.KEEP) else None


def first_difference(before: Any, now: Any, path: str = "") -> tuple[str, str, str] | None:
    """Return the path of the first difference and both values in short; None if the values are equal."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys: Iterable[Any] = dict.fromkeys([*now, *before])
        pairs = [
            (f"{path}.{key}".lstrip("."), before.get(key, _MISSING), now.get(key, _MISSING)) for key in keys
        ]
    elif isinstance(before, list) and isinstance(now, list):
        pairs = [
            (f"{path}[{place}]", one, other)
            for place, (one, other) in enumerate(zip_longest(before, now, fillvalue=_MISSING))
        ]
    elif before == now and type(before) is type(now):
        return None
    else:
        texts = before, now
        if isinstance(before, str) and isinstance(now, str):
            end = min(len(before), len(now))
            start = max(0, next((i for i in range(end) if before[i] != now[i]), end) - _BEFORE_CHARS)
            texts = ("…" * bool(start) + before[start:], "…" * bool(start) + now[start:])
        return path, _short(texts[0]), _short(texts[1])
    return next(filter(None, (first_difference(one, other, place) for place, one, other in pairs)), None)


def _short(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _sent(entry: CassetteEntry) -> Any:
    return entry.http.sent if entry.http else {}


def _distance(entry: CassetteEntry, request: RecordedRequest) -> int:
    return abs((entry.request.key.turn or 0) - (request.key.turn or 0))


def _redacted(value: Mapping[str, Any], redact: Callable[[str], str]) -> Any:
    text = redact(json.dumps(value, ensure_ascii=False))
    try:
        return json.loads(text)
    except ValueError:  # a secret that was a part of the JSON itself
        return text
