"""Answer a question that the same project has asked before from a local file, without calling the model.

A question is the same if the model, its endpoint and settings, the prompt, the form of the answer, the
scenario and the numbers of conversation and sample are. Times that the run inserts do not count, but answers
are used only on the day they were given, because prompts name the date.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anyio.lowlevel import checkpoint
from pydantic import BaseModel

from agentest.domain.results import ModelUsage
from agentest.models.port import AnswerSource, Ledger, ModelAnswer, Question
from agentest.models.structured_output import answer_schema
from agentest.support.files import make_folder

FILE = "cache/answers.sqlite3"
_WRITTEN_AT_ONCE = 50  # answers are written together, because each write costs as much as the rest of a call
_OPEN_S, _CLOSE_S = 0.2, 5.0  # waits for another process that writes; the event loop waits for the first
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

    def __init__(self, path: Path, redact: Callable[[str], str], tell: Callable[[str], object]) -> None:
        self._path, self._redact, self._tell = path, redact, tell
        self._day = datetime.now(UTC).date().isoformat()
        self._database: sqlite3.Connection | None = None
        self._unwritten: list[tuple[str, str, str]] = []
        try:
            make_folder(path.parent, private=True)
            path.touch(0o600)  # SQLite would let everybody read it.
            path.chmod(0o600)
            options: Any = {"isolation_level": None, "check_same_thread": False}
            self._database = sqlite3.connect(path, _OPEN_S, **options)
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = off")  # lost answers are requested again
            self._database.execute(_TABLE)
            self._database.execute("pragma busy_timeout = 0")  # from now on, conversations would wait, too
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)

    def find(self, question: str) -> ModelAnswer | None:
        """Return the stored answer to a question, by its digest, with what it saves as its usage."""
        if self._database is None:
            return None
        try:
            statement = "select answer from answers where day = ? and question = ?"
            row = self._database.execute(statement, (self._day, question)).fetchone()
            if row is None:
                return None
            text, refusal, model, calls, cost = json.loads(row[0])
            return ModelAnswer(text, refusal, model, ModelUsage(cost=0.0, cached=calls, saved=cost))
        except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
            if not _is_busy(error):
                self._give_up(error)
            return None

    def store(self, question: str, answer: ModelAnswer) -> None:
        """Store the answer to a question."""
        if self._database is None or any(
            self._redact(text) != text for text in (answer.text, answer.refusal)
        ):
            return
        used = answer.used
        stored = json.dumps([answer.text, answer.refusal, answer.model, used.calls, used.cost])
        self._unwritten.append((self._day, question, stored))
        if len(self._unwritten) >= _WRITTEN_AT_ONCE:
            try:
                self._write(self._database)
            except sqlite3.Error as error:
                if not _is_busy(error):
                    self._give_up(error)

    def _write(self, database: sqlite3.Connection) -> None:
        database.execute("begin immediate")
        database.executemany("insert or replace into answers values (?, ?, ?)", self._unwritten)
        database.execute("commit")
        self._unwritten = []

    def close(self) -> None:
        """Write what is left, and close the file. It may be called in another thread."""
        database, self._database = self._database, None
        if database is not None and self._unwritten:
            try:
                database.execute(f"pragma busy_timeout = {_CLOSE_S * 1000:.0f}")
                database.execute("delete from answers where day <> ?", (self._day,))
                self._write(database)
            except sqlite3.Error as error:
                self._tell(f"{len(self._unwritten)} model responses could not be stored: {error}")
        if database is not None:
            database.close()

    def _give_up(self, error: Exception) -> None:
        self._unwritten = []
        self.close()
        remedy = "another process writes to" if _is_busy(error) else "use --no-cache, or delete"
        self._tell(f"stored model responses cannot be used ({error}): {remedy} {self._path}")


class CachedModel:
    """A model that is asked only what the cache cannot answer. Cached answers count as saved usage.

    Args:
        identity: everything about the model that may change its answers.
    """

    def __init__(
        self, cache: ResponseCache, ledger: Ledger, live: AnswerSource, identity: Mapping[str, Any]
    ) -> None:
        self.name = live.name
        self._cache, self._ledger, self._live = cache, ledger, live
        self._begun = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
        self._forms: dict[type[BaseModel], bytes] = {}

    async def answer(self, question: Question) -> ModelAnswer:
        """Return the stored answer or that of the model. Raises ModelUnavailable."""
        key = self._digest(question)
        await checkpoint()
        if found := self._cache.find(key):
            self._ledger.add(question.key, found.used)
            return found
        self._ledger.watch(question.key)
        try:
            answer = await self._live.answer(question)
        finally:
            used = self._ledger.taken(question.key)
        self._cache.store(key, replace(answer, used=used))
        return answer

    def _digest(self, question: Question) -> str:
        form = self._forms.get(question.answer)
        if form is None:
            form = json.dumps(answer_schema(question.answer), sort_keys=True).encode()
            self._forms[question.answer] = form
        found = self._begun.copy()
        found.update(form)
        found.update(f"{question.key} {question.repair}".encode(errors="surrogatepass"))
        for each in question.messages if question.timeless is None else question.timeless:
            content = each["content"].encode(errors="surrogatepass")
            found.update(b"%b %d " % (each["role"].encode(), len(content)))
            found.update(content)
        return found.hexdigest()


def _is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
