"""Record and replay model responses during conversations, independent of where cassette files are stored.

One process reads and writes the files, but conversations may run in others. A conversation needs only its own
answers, which are sent along with it as its `CassettePage`.
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
    CassetteEntry,
    Entries,
    RecordedRequest,
    digest,
    dump,
    parse,
    to_entry,
    to_json,
)
from agentest.models.port import AnswerSource, CallKey, Ledger, ModelAnswer, Question
from agentest.models.structured_output import answer_schema
from agentest.support.dates import mask_moments
from agentest.support.errors import ModelError, ModelUnavailable

_HASH_CHARS = 16


class CassetteError(ModelError):
    """A cassette lacks an answer, is damaged, or cannot be written."""


class CassetteMode(StrEnum):
    RECORD = "record"
    REPLAY = "replay"
    FILL = "replay-or-record"
    """Replay recorded answers. Request and record missing answers and errors."""
    KEEP = "keep"
    """Like FILL, for conversations that may exceed a budget.

    Answers are stored until the conversation has finished, and those that an earlier run has paid for are not
    counted again.
    """


class Tape(Protocol):
    """A source of recorded answers and a place to record new ones."""

    @property
    def mode(self) -> CassetteMode:
        """How the run uses recordings."""
        ...

    def asked(self, question: Question, model: str, parameters: Mapping[str, Any]) -> RecordedRequest:
        """Convert the question to a request of this run. Call it once for each time the question is asked."""
        ...

    def find(self, asked: RecordedRequest) -> CassetteEntry | None:
        """Return the recorded answer to the request; None if there is none or it must not be used."""
        ...

    def keep(self, entry: CassetteEntry) -> CassetteEntry:
        """Record the answer and return it as a replay will, with secrets redacted. Raises CassetteError."""
        ...

    def missing(self, asked: RecordedRequest) -> CassetteError:
        """Return the error that says what is missing for the request, and what to do."""
        ...

    def close(self, *, finished: bool = True) -> None:
        """Finish. An unfinished recording replaces no cassette.

        Raises CassetteError.
        """
        ...


class RequestCounter:
    """Counts how often each question was asked in running conversations."""

    def __init__(self) -> None:
        self._of: defaultdict[tuple[str, int], Counter[tuple[CallKey, int]]] = defaultdict(Counter)

    def asked(self, question: Question, model: str, parameters: Mapping[str, Any]) -> RecordedRequest:
        """Convert the question to a request, and count it."""
        key = question.key
        times = self._of[key.scope, key.conversation]
        time = times[key, question.repair]
        times[key, question.repair] += 1
        # The date is not part of the question, because a replay runs on another day.
        messages = [{**message, "content": mask_moments(message["content"])} for message in question.messages]
        request = [model, dict(parameters), messages, answer_schema(question.answer)]
        return RecordedRequest(key, question.repair, time, digest(request, _HASH_CHARS), model)

    def forget(self, scope: str, number: int) -> None:
        """Reset the counts of a conversation that has ended, for a possible next attempt."""
        self._of.pop((scope, number), None)


@dataclass(frozen=True, slots=True)
class CassettePage:
    """The part of its scope's cassette that a conversation may need."""

    path: str
    recorded: tuple[CassetteEntry, ...] = ()
    """The conversation's answers in the file."""
    salvaged: tuple[CassetteEntry, ...] = ()
    """The conversation's answers from an unfinished recording, which take precedence over the file."""
    has_answers: bool = False
    """True if the file has answers of any conversation."""
    unfinished: bool = False
    """True if there is an unfinished recording in addition to the file."""


NO_PAGE = CassettePage("")
"""The page of a conversation that is not recorded."""


def found(layers: Iterable[Entries], asked: RecordedRequest, mode: CassetteMode) -> CassetteEntry | None:
    """Return the answer from the first layer that has one; None if the request has to be made again."""
    for entries in layers:
        entry = entries.get(asked.slot)
        if entry and entry.asked.hash == asked.hash:
            return None if mode in (CassetteMode.FILL, CassetteMode.KEEP) and entry.kind == "error" else entry
    return None


def redact_entry(entry: CassetteEntry, redact: Callable[[str], str]) -> tuple[CassetteEntry, bytes]:
    """Return an answer as a replay returns it, with secrets redacted, and its line in a file."""
    entry = replace(entry, answered_by=redact(entry.answered_by), content=redact(entry.content))
    line = dump(to_json(entry))
    return to_entry(parse(line), entry.asked.key.scope), line


def missing_answer_error(
    page: CassettePage, recorded: Entries, asked: RecordedRequest, name: str
) -> CassetteError:
    """Explain why a scenario has no answer to the request. `recorded` contains the page's answers by slot."""
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
        why += f"; an unfinished recording is beside it, which --{CassetteMode.FILL} completes"
    return scenario_error(name, f"nothing to replay for {asked}: {why}")


def scenario_error(name: str, problem: str) -> CassetteError:
    """Return an error with the problem of a scenario's cassette and how to record it again."""
    command = f"agentest run --{CassetteMode.RECORD} --scenario {shlex.quote(name)}"
    return CassetteError(f"scenario {name!r}: {problem}. Record it again: {command}")


def by_slot(entries: Iterable[CassetteEntry]) -> Entries:
    return {entry.asked.slot: entry for entry in entries}


class MeasuringLedger(Ledger):
    """A ledger that also measures the usage of one question, whether it was answered or not."""

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
        """Return the usage added for this key since `watch`."""
        return self._watched.pop(key, ModelUsage())


class Recorder:
    """Records all answers of a live model, and its failures."""

    def __init__(self, live: AnswerSource, tape: Tape, ledger: MeasuringLedger) -> None:
        self.name = live.name
        self.parameters = live.parameters
        self._live = live
        self._tape = tape
        self._ledger = ledger

    async def answer(self, question: Question) -> ModelAnswer:
        """Return the live model's answer. Raises ModelUnavailable or CassetteError."""
        return await self.record(question, self._tape.asked(question, self.name, self.parameters))

    async def record(self, question: Question, asked: RecordedRequest) -> ModelAnswer:
        """Return the live model's answer to a question that was counted before."""
        self._ledger.watch(asked.key)
        try:
            answered = await self._live.answer(question)
        except ModelUnavailable as error:
            self._tape.keep(CassetteEntry(asked, "", "error", str(error), self._ledger.taken(asked.key)))
            raise
        kind: Literal["text", "refusal"] = "refusal" if answered.refusal else "text"
        content, used = answered.refusal or answered.text, self._ledger.taken(asked.key)
        answered_by = answered.model.encode(errors="replace").decode()
        return self._tape.keep(CassetteEntry(asked, answered_by, kind, content, used)).answered()


class Replay:
    """Replays answers, with their original usage in the ledger. With `live`, missing answers are recorded."""

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

    async def answer(self, question: Question) -> ModelAnswer:
        """Return the recorded answer. Raises ModelUnavailable if there was none, CassetteError if it is
        missing.
        """
        await checkpoint()
        asked = self._tape.asked(question, self.name, self.parameters)
        entry = self._tape.find(asked)
        if entry:
            if self._tape.mode is not CassetteMode.KEEP:
                self._ledger.add_replayed(question.key, entry.used)
            return entry.answered()
        if self._live:
            return await self._live.record(question, asked)
        raise self._tape.missing(asked)
