"""Answer a question that the same project has asked before from a local file, without calling the model.

A question is the same if the model, its endpoint and settings, the prompt, the form of the answer, the
scenario and the numbers of conversation and sample are. Times in prompts do not count, but answers are used
only on the day they were given, because prompts name the date.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anyio.lowlevel import checkpoint

from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.models.port import AnswerSource, Ledger, ModelAnswer, Question
from agentest.models.structured_output import answer_schema
from agentest.models.tape import digest
from agentest.support.dates import mask_moments

FILE = "cache/answers.sqlite3"
"""The path of the file in `output_dir`."""
_HASH_CHARS = 40
_WAIT_S = 5.0
"""How long to wait for another process that writes."""
_TABLE = (
    "create table if not exists answers (day text, question text, answer text, primary key (day, question))"
)


class ResponseCache:
    """The answers of one project, in a SQLite file that several processes may use.

    If the file cannot be used, every question is new.

    Args:
        redact: answers that it changes contain secrets and are not stored.
        tell: receives a message if the file cannot be used.
    """

    def __init__(self, path: Path, redact: Callable[[str], str], tell: Callable[[str], None]) -> None:
        self._path, self._redact, self._tell = path, redact, tell
        self._day = datetime.now(UTC).date().isoformat()
        self._database: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = off")  # lost answers are requested again
            self._database.execute(_TABLE)
            self._database.execute("delete from answers where day <> ?", (self._day,))
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)

    def find(self, question: str) -> ModelAnswer | None:
        """Return the stored answer to a question, by its digest."""
        if self._database is None:
            return None
        try:
            statement = "select answer from answers where day = ? and question = ?"
            row = self._database.execute(statement, (self._day, question)).fetchone()
            return _answer_of(json.loads(row[0])) if row else None
        except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
            self._give_up(error)
            return None

    def store(self, question: str, answer: ModelAnswer) -> None:
        """Store the answer to a question."""
        if self._database is None or any(map(self._has_secrets, (answer.text, answer.refusal))):
            return
        try:
            row = (self._day, question, json.dumps(asdict(answer)))
            self._database.execute("insert or replace into answers values (?, ?, ?)", row)
        except sqlite3.Error as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    def _has_secrets(self, text: str) -> bool:
        return self._redact(text) != text

    def _give_up(self, error: Exception) -> None:
        self.close()
        self._tell(f"stored model responses cannot be used ({error}): delete {self._path}, or use --no-cache")


class CachedModel:
    """A model that is asked only what the cache cannot answer. Cached answers count as saved usage.

    Args:
        identity: everything about the model that may change its answers.
    """

    def __init__(
        self, cache: ResponseCache, ledger: Ledger, live: AnswerSource, identity: Mapping[str, Any]
    ) -> None:
        self.name = live.name
        self._cache, self._ledger, self._live, self._identity = cache, ledger, live, dict(identity)

    async def answer(self, question: Question) -> ModelAnswer:
        """Return the stored answer or that of the model. Raises ModelUnavailable."""
        key = self._digest(question)
        await checkpoint()
        if found := self._cache.find(key):
            saved = ModelUsage(cost=0.0, cached=found.used.calls, saved=found.used.cost)
            self._ledger.add(question.key, saved)
            return ModelAnswer(found.text, found.refusal, found.model, saved)
        self._ledger.watch(question.key)
        try:
            answer = await self._live.answer(question)
        finally:
            used = self._ledger.taken(question.key)
        self._cache.store(key, replace(answer, used=used))
        return answer

    def _digest(self, question: Question) -> str:
        messages = [{**each, "content": mask_moments(each["content"])} for each in question.messages]
        asked = [asdict(question.key), question.repair, messages, answer_schema(question.answer)]
        return digest([self._identity, *asked], _HASH_CHARS)


def _answer_of(data: Mapping[str, Any]) -> ModelAnswer:
    used = data["used"]
    usage = ModelUsage(**{**used, "tokens": Usage(**used["tokens"])})
    return ModelAnswer(data["text"], data["refusal"], data["model"], usage)
