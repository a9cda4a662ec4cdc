"""Models' answers that are recorded, and recorded ones that are given in a model's place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from anyio.lowlevel import checkpoint

from agentest.domain.results import ModelUsage
from agentest.models.port import Answered, Answers, CallKey, Ledger, Question
from agentest.models.recording.cassette_file import Asked, Entry
from agentest.models.recording.tape import Mode, Tape
from agentest.support.errors import ModelUnavailable


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
