"""The html reporter: `report.html` when the run is over, one file with everything in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentest.domain.events import Event, RunFinished
from agentest.domain.results import RunResult, Status
from agentest.domain.verdict import run_status
from agentest.report.compared import ComparedRun
from agentest.report.html_data import Data, Spans, no_spans, run_data
from agentest.report.viewer.commands import shown
from agentest.report.viewer.packing import packed
from agentest.report.viewer.page import Coat, data_element, page
from agentest.store.document import Conversations, completed_by, kept_conversations
from agentest.support.files import report_writer
from agentest.support.json_text import Json
from agentest.support.paths import shown_path
from agentest.support.text import count

MOST_BYTES = 25_000_000
"""Of transcripts, as they stand in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a run beside its results.

    Attributes:
        about: `store.kept.history.about` of its record.
        trend: makes `store.kept.history.trend` of its end.
    """

    about: Json = field(default_factory=dict)
    trend: Callable[[RunResult], Sequence[Json]] = lambda _: ()


class HtmlReporter:
    """Writes `report.html` when the run is over.

    Args:
        conversations: reads those of a scenario; `Journal.conversations` where results let them go.
        run_id: what a kept run is called.
        known: what else is known of it.
        spans: reads the spans of a conversation.
        compared: what the run is compared with, or its agents with each other.
        tell: receives in a line what had no room.
        most: how many bytes of transcripts the file may have.
    """

    name = "html"
    repeats = True
    """What it does at the end it may do again: see `report.registry.Broadcast`."""

    def __init__(
        self,
        path: Path,
        conversations: Conversations = kept_conversations,
        run_id: str = "",
        *,
        known: Known | None = None,
        spans: Spans = no_spans,
        compared: ComparedRun | None = None,
        tell: Callable[[str], object] = lambda _: None,
        most: int = MOST_BYTES,
    ) -> None:
        self._path = path
        self._conversations = conversations
        self._run_id = run_id
        self._known = known or Known()
        self._spans = spans
        self._compared = compared
        self._tell = tell
        self._most = most

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            data = self._data(event.result)
            with report_writer(self._path) as file:
                file.writelines(piece.encode() for piece in self._document(data, event.result))
            self._tell(f"the page of this run: {shown_path(self._path, Path.cwd())}")
            if data.left_out:
                self._tell(self._left_out(data.left_out, event.result.conversations))

    @property
    def _title(self) -> str:
        return f"Run {self._run_id} · agentest" if self._run_id else "agentest"

    @property
    def _pages(self) -> Sequence[Json]:
        return self._compared.pages() if self._compared else ()

    def _data(self, result: RunResult) -> Data:
        state = "interrupted" if result.interrupted else run_status(result)
        run = {"startedAt": result.started_at, **self._known.about, "id": self._run_id, "state": state}
        conversations = completed_by(result, self._conversations)
        trend = self._known.trend(result)
        return run_data(result, conversations, run=run, trend=trend, spans=self._spans, most=self._most)

    def _left_out(self, number: int, of: int) -> str:
        return (
            f"{self._path.name}: no room for the transcripts of {number:,} of {count(of, 'conversation')}, "
            f"as it holds {self._most / 1_000_000:g} MB of them, failing ones first; "
            f"`{shown(self._run_id)}` prints all"
        )

    def _document(self, data: Data, result: RunResult) -> Iterator[str]:
        """The file, piece by piece: the script first, which shows what has arrived, and waits."""
        shell = page(Coat.FILE, self._title, plain=self._plain(result))
        yield shell.head
        yield data_element("overview", packed(data.overview))
        if comparisons := self._pages:
            yield data_element("comparison", packed(comparisons))
        for name, texts in (("details", data.details), ("chunk", data.transcripts)):
            for number, text in enumerate(texts):
                if text is not None:
                    yield data_element(f"{name}-{number}", text)
        yield data_element("end", "")  # a file without it was cut
        yield shell.tail

    def _plain(self, result: RunResult) -> str:
        """The verdict where the page cannot show it."""
        passed = sum(each.verdict.status is Status.PASSED for each in result.scenarios)
        state = "interrupted" if result.interrupted else run_status(result)
        of = count(len(result.scenarios), "scenario")
        return f"Run {self._run_id}: {state}. {passed:,} of {of} passed. `{shown(self._run_id)}` prints it."
