"""Recordings of conversations that workers hold: the run's own process alone reads and writes the files.

A worker gets with each conversation what is recorded of it, and sends every answer that it records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentest.models.port import Question
from agentest.models.recording.cassette import Cassettes
from agentest.models.recording.cassette_file import Asked, Entries, Entry
from agentest.models.recording.tape import (
    AskedTimes,
    CassetteError,
    Mode,
    Page,
    as_kept,
    by_slot,
    found,
    missing_from,
)
from agentest.support.redact import Redactor
from agentest.workers.links import Send


@dataclass(frozen=True, slots=True)
class Recorded:
    """From a worker: an answer that a conversation of it has recorded, without secrets, and its line."""

    entry: Entry
    line: bytes


class _OpenPage:
    """The page of a conversation under way, by slot."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.recorded: Entries = by_slot(page.recorded)
        self.salvaged: Entries = by_slot(page.salvaged)


class PagesTape:
    """In a worker: the tape of its conversations, each of which answers from its own page.

    Args:
        names: scope → the scenario's name as `--scenario` takes it.
        on_failure: receives every CassetteError before it is raised, to stop the run at the first.
    """

    def __init__(
        self,
        mode: Mode,
        redact: Redactor,
        send: Send,
        names: Mapping[str, str],
        on_failure: Callable[[CassetteError], None],
    ) -> None:
        self.mode = mode
        self._redact = redact
        self._send = send
        self._names = names
        self._on_failure = on_failure
        self._times = AskedTimes()
        self._pages: dict[tuple[str, int], _OpenPage] = {}

    def begin(self, scope: str, number: int, page: Page) -> None:
        """A conversation begins, which nothing was asked for yet."""
        self._pages[scope, number] = _OpenPage(page)

    def end(self, scope: str, number: int) -> None:
        """The conversation is done, or given up."""
        self._times.forget(scope, number)
        self._pages.pop((scope, number), None)

    def asked(self, question: Question, model: str, parameters: Mapping[str, Any]) -> Asked:
        return self._times.asked(question, model, parameters)

    def find(self, asked: Asked) -> Entry | None:
        own = self._page_of(asked)
        return found((own.salvaged, own.recorded), asked, self.mode)

    def keep(self, entry: Entry) -> Entry:
        entry, line = as_kept(entry, self._redact)
        self._send(Recorded(entry, line))
        return entry

    def missing(self, asked: Asked) -> CassetteError:
        own, scope = self._page_of(asked), asked.key.scope
        error = missing_from(own.page, own.recorded, asked, self._names.get(scope, scope))
        self._on_failure(error)
        return error

    def close(self, *, finished: bool = True) -> None:
        """There is nothing to do: the files are not ours."""

    def _page_of(self, asked: Asked) -> _OpenPage:
        return self._pages[asked.key.scope, asked.key.conversation]


class RecordingDesk:
    """In the run's own process: gives conversations their pages, and writes what workers record."""

    def __init__(self, cassettes: Cassettes) -> None:
        self._cassettes = cassettes

    def page(self, scope: str, number: int) -> Page:
        """What goes with a conversation to the worker that is to hold it."""
        return self._cassettes.page(scope, number)

    def receive(self, message: Recorded) -> None:
        """Write the answer. A file that cannot be written stops the run, by what Cassettes were given."""
        with suppress(CassetteError):  # its `on_failure` has reported it
            self._cassettes.write(message.entry, message.line)

    def done(self, scope: str, number: int) -> None:
        """The conversation is done."""
        self._cassettes.done(scope, number)

    def forget(self, scope: str, number: int) -> None:
        """The conversation was lost with its worker: held again, it records everything again."""
        self._cassettes.forget(scope, number)
