"""What is asked of a recording while conversations are held, wherever its files are.

The files are read and written by one process, and conversations may be held in others. What one of them can
need of a cassette is small, its own answers, and is handed to it before it begins: its `Page`.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, Protocol

from anyio.lowlevel import checkpoint

from agentest.domain.results import ModelUsage
from agentest.models.cassette_file import (
    Asked,
    Entries,
    Entry,
    digest,
    dump,
    parse,
    to_entry,
    to_json,
)
from agentest.models.port import Answered, Answers, CallKey, Ledger, Question
from agentest.models.structured_output import answer_schema
from agentest.support.dates import without_moments
from agentest.support.errors import ModelError, ModelUnavailable

_HASH_CHARS = 16


class CassetteError(ModelError):
    """A cassette lacks an answer, is damaged, or cannot be written."""


class Mode(StrEnum):
    RECORD = "record"
    REPLAY = "replay"
    FILL = "replay-or-record"
    """What is recorded is replayed; what is not, or was an error, is asked live and added."""
    KEEP = "keep"
    """As FILL, for conversations that a budget may leave unfinished: answers are kept until the conversation
    has finished, and what an earlier run has paid for does not count again."""


class Tape(Protocol):
    """Answers that are recorded, or are to be."""

    @property
    def mode(self) -> Mode:
        """What the run does with them."""
        ...

    def asked(self, question: Question, model: str, parameters: Mapping[str, Any]) -> Asked:
        """The question as a request of this run. To be called once for every time it is asked."""
        ...

    def find(self, asked: Asked) -> Entry | None:
        """What is recorded for the request; None where that is nothing, or would not be its answer."""
        ...

    def keep(self, entry: Entry) -> Entry:
        """Record the answer; back comes what a replay will give: without secrets. Raises CassetteError."""
        ...

    def missing(self, asked: Asked) -> CassetteError:
        """The error that says what of the request is not recorded, and what to do."""
        ...

    def close(self, *, finished: bool = True) -> None:
        """Nothing is asked any more. Of a run that did not finish, a recording replaces none.

        Raises CassetteError.
        """
        ...


class AskedTimes:
    """How often each question was asked, of conversations that are under way."""

    def __init__(self) -> None:
        self._of: defaultdict[tuple[str, int], Counter[tuple[CallKey, int]]] = defaultdict(Counter)

    def asked(self, question: Question, model: str, parameters: Mapping[str, Any]) -> Asked:
        """The question as a request; this time counts."""
        key = question.key
        times = self._of[key.scope, key.conversation]
        time = times[key, question.repair]
        times[key, question.repair] += 1
        # The day on which a conversation is held is no part of the question: a replay is held on another.
        messages = [
            {**message, "content": without_moments(message["content"])} for message in question.messages
        ]
        request = [model, dict(parameters), messages, answer_schema(question.answer)]
        return Asked(key, question.repair, time, digest(request, _HASH_CHARS), model)

    def forget(self, scope: str, number: int) -> None:
        """The conversation is over; should it be held again, its questions are asked for the first time."""
        self._of.pop((scope, number), None)


@dataclass(frozen=True, slots=True)
class Page:
    """What a conversation can need of its scope's cassette."""

    path: str
    recorded: tuple[Entry, ...] = ()
    """The conversation's answers in the file."""
    salvaged: tuple[Entry, ...] = ()
    """Those of a recording that did not finish; they come before what is in the file."""
    has_answers: bool = False
    """Whether the file has any, of whatever conversation."""
    unfinished: bool = False
    """Whether a recording that did not finish is beside the file."""


NO_PAGE = Page("")
"""Of a conversation of which nothing is recorded, nor will be."""


def found(layers: Iterable[Entries], asked: Asked, mode: Mode) -> Entry | None:
    """The request's answer in the first layer that has one; none where it is to be asked again."""
    for entries in layers:
        entry = entries.get(asked.slot)
        if entry and entry.asked.hash == asked.hash:
            return None if mode in (Mode.FILL, Mode.KEEP) and entry.kind == "error" else entry
    return None


def as_kept(entry: Entry, redact: Callable[[str], str]) -> tuple[Entry, bytes]:
    """An answer as a replay gives it, without secrets, and its line in a file."""
    entry = replace(entry, answered_by=redact(entry.answered_by), content=redact(entry.content))
    line = dump(to_json(entry))
    return to_entry(parse(line), entry.asked.key.scope), line


def missing_from(page: Page, recorded: Entries, asked: Asked, name: str) -> CassetteError:
    """Why the scenario of this name has no answer to the request. `recorded` is the page's, by slot."""
    entry = recorded.get(asked.slot)
    if not page.has_answers:
        why = f"nothing is recorded for it in {page.path}"
    elif entry is None:
        why = f"{page.path} has no such answer: the conversation went on longer or another way"
    elif entry.asked.model != asked.model:
        why = f"{page.path} holds the answer of {entry.asked.model}, and {asked.model} is asked"
    else:
        changed = "the prompt (what the agent said is in it), the parameters or the answer's form"
        why = f"{changed} changed since {page.path} was recorded"
    if page.unfinished:
        why += f"; an unfinished recording is beside it, which --{Mode.FILL} completes"
    return about_scenario(name, f"nothing to replay for {asked}: {why}")


def about_scenario(name: str, problem: str) -> CassetteError:
    """The problem of a scenario's cassette, and how to record it again."""
    command = f"agentest run --{Mode.RECORD} --scenario {shlex.quote(name)}"
    return CassetteError(f"scenario {name!r}: {problem}. Record it again: {command}")


def by_slot(entries: Iterable[Entry]) -> Entries:
    return {entry.asked.slot: entry for entry in entries}


class MeasuringLedger(Ledger):
    """A ledger that also measures what one question took, be it answered or not."""

    def __init__(self) -> None:
        super().__init__()
        self._watched: dict[CallKey, ModelUsage] = {}

    def add(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        if key in self._watched:
            self._watched[key] += used

    def watch(self, key: CallKey) -> None:
        self._watched[key] = ModelUsage()

    def taken(self, key: CallKey) -> ModelUsage:
        """What was added for this key since `watch`."""
        return self._watched.pop(key, ModelUsage())


class Recorder:
    """Answers of a live model, all kept; also that there was none."""

    def __init__(self, live: Answers, tape: Tape, ledger: MeasuringLedger) -> None:
        self.name = live.name
        self.parameters = live.parameters
        self._live = live
        self._tape = tape
        self._ledger = ledger

    async def answer(self, question: Question) -> Answered:
        """The live model's answer. Raises ModelUnavailable, CassetteError."""
        return await self.record(question, self._tape.asked(question, self.name, self.parameters))

    async def record(self, question: Question, asked: Asked) -> Answered:
        """The live model's answer to a question that counts as asked already."""
        self._ledger.watch(asked.key)
        try:
            answered = await self._live.answer(question)
        except ModelUnavailable as error:
            self._tape.keep(Entry(asked, "", "error", str(error), self._ledger.taken(asked.key)))
            raise
        kind: Literal["text", "refusal"] = "refusal" if answered.refusal else "text"
        content, used = answered.refusal or answered.text, self._ledger.taken(asked.key)
        answered_by = answered.model.encode(errors="replace").decode()
        return self._tape.keep(Entry(asked, answered_by, kind, content, used)).answered()


class Replay:
    """Recorded answers, which count in the ledger as they did; with `live`, what is missing is recorded."""

    def __init__(
        self,
        tape: Tape,
        ledger: Ledger,
        name: str,
        parameters: Mapping[str, Any],
        live: Recorder | None = None,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self._tape = tape
        self._ledger = ledger
        self._live = live

    async def answer(self, question: Question) -> Answered:
        """The recorded answer. Raises ModelUnavailable where there was none, CassetteError."""
        await checkpoint()
        asked = self._tape.asked(question, self.name, self.parameters)
        entry = self._tape.find(asked)
        if entry:
            if self._tape.mode is not Mode.KEEP:
                self._ledger.add_replayed(question.key, entry.used)
            return entry.answered()
        if self._live:
            return await self._live.record(question, asked)
        raise self._tape.missing(asked)
