"""The html reporter: a self-contained `report.html`, written when the run has ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path

from agentest.domain.events import Event, RunFinished
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.domain.transcript import Conversation
from agentest.domain.verdict import run_status
from agentest.report.content import WORST_FIRST, ComparedRun
from agentest.report.viewer.overview import brief, overview, rerun, scenario_row, show_command
from agentest.report.viewer.page import Chunks, PageVariant, Place, data_element, packed, page
from agentest.scenarios.source_code import ExportedSource, export_conversation
from agentest.store.codec import CODECS
from agentest.store.reader import usable
from agentest.store.run_results import (
    Conversations,
    completed_by,
    conversations_in_memory,
    stored_head,
)
from agentest.support.files import report_writer, shown_path
from agentest.support.json_text import Json, encoded
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count

Spans = Callable[[str, str, str], Sequence[Json]]
"""Returns the spans of a conversation, given scenario name, agent name and conversation id."""


def no_spans(scenario: str, agent: str, conversation: str) -> Sequence[Json]:
    """Return no spans, for a run whose agents sent none."""
    del scenario, agent, conversation
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """The contents of the file; everything except the overview is compressed.

    Attributes:
        details: lists of scenarios, each with a row for every conversation.
        transcripts: lists of conversations; None for a list without room.
        left_out: the number of conversations without a transcript.
    """

    overview: Json
    details: Sequence[str | None]
    transcripts: Sequence[str | None]
    left_out: int


def run_data(
    result: RunResult,
    conversations: Conversations,
    *,
    run: Json,
    trend: Sequence[Json],
    spans: Spans,
    most: int,
) -> PageData:
    """Build the data of a run.

    Args:
        run: the id and the properties of the run: `overview.run`.
        most: the maximum bytes of transcripts.

    Raises OSError if conversations cannot be read.
    """
    packer = _ScenarioPacker(
        conversations=conversations,
        spans=spans,
        run_id=run["id"],
        several=len(result.agents) > 1,
        details=Chunks(),
        transcripts=Chunks(most),
    )
    packs = {
        number: packer.pack(result.scenarios[number])
        for number in sorted(
            range(len(result.scenarios)),
            key=lambda number: WORST_FIRST.index(result.scenarios[number].verdict.status),
        )
    }
    packer.close()
    rows = [packs[number] for number in sorted(packs)]
    head: Json = CODECS.write(stored_head(result))
    run_overview = overview(
        run=run,
        head=head,
        scenarios=[each.row for each in rows],
        root_causes=head["rootCauses"],
        trend=trend,
        left_out=packer.transcripts.left_out,
        packed=[each.place for each in rows],
        chunks=len(packer.transcripts.packed),
        absent=packer.transcripts.absent,
        show=show_command(run["id"]),
    )
    return PageData(
        overview=run_overview,
        details=packer.details.packed,
        transcripts=packer.transcripts.packed,
        left_out=packer.transcripts.left_out,
    )


@dataclass(frozen=True, slots=True)
class _Packed:
    """A scenario whose details are compressed.

    Attributes:
        row: its row in the overview.
        place: the location of its details.
    """

    row: Json
    place: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScenarioPacker:
    """Compresses one scenario after another."""

    conversations: Conversations
    spans: Spans
    run_id: str
    several: bool
    details: Chunks
    transcripts: Chunks

    def pack(self, scenario: ScenarioResult) -> _Packed:
        """Return the scenario's row, and add its details and transcripts to the others."""
        stored: Json = CODECS.write(scenario)
        rows = [brief(json.loads(piece)) for piece in self.conversations(scenario)]
        places = self._places(scenario, [row["passed"] for row in rows])
        detail = {
            "scenario": stored,
            "conversations": rows,
            "places": places,
            "command": rerun(stored, self.several),
            "show": show_command(self.run_id, scenario.name),
        }
        return _Packed(scenario_row(stored, rows), self.details.add(encoded(detail)))

    def close(self) -> None:
        """End the last lists."""
        self.details.close()
        self.transcripts.close()

    def _places(self, scenario: ScenarioResult, passed: Sequence[bool]) -> list[Place | None]:
        """Return the locations of the transcripts, failed conversations first; None without room."""
        places: list[Place | None] = [None] * len(passed)
        for wanted in (False, True):
            if self.transcripts.full:
                self.transcripts.leave_out(passed.count(wanted))
            elif wanted in passed:
                for number, piece in enumerate(self.conversations(scenario)):
                    if passed[number] is wanted:
                        places[number] = self._add(scenario, piece)
        return places

    def _add(self, scenario: ScenarioResult, piece: bytes) -> Place | None:
        if self.transcripts.full:  # since the last one
            self.transcripts.leave_out(1)
            return None
        return self.transcripts.add(b"".join(self._opened(scenario, piece)))

    def _opened(self, scenario: ScenarioResult, piece: bytes) -> Iterator[bytes]:
        """Yield the conversation as the page shows it. Its own JSON stays unchanged."""
        stored = json.loads(piece)
        more = {
            "name": scenario.name,
            "agent": scenario.agent,
            **copyable_scripts(scenario.name, stored, len(piece)),
            "spans": self.spans(scenario.name, scenario.agent, stored["conversationId"]),
        }
        yield encoded(more).removesuffix(b"}")
        yield b', "conversation": '
        yield piece
        yield b"}"


MOST_BYTES = 25_000_000
"""The maximum bytes of transcripts in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about a run in addition to its results.

    Attributes:
        about: makes the description of the run from its record.
        trend: makes the trend of earlier runs when the run ends.
    """

    about: Json = field(default_factory=dict)
    trend: Callable[[RunResult], Sequence[Json]] = lambda _: ()


class HtmlReporter:
    """Writes `report.html` when the run has ended.

    Args:
        path: the file, whose folder is created if it does not exist.
        conversations: reads those of a scenario; `Journal.conversations` if results drop them.
        run_id: the id of a stored run.
        known: further facts about the run.
        spans: reads the spans of a conversation.
        compared: the comparison with another run, or between agents.
        tell: receives one line about omitted transcripts.
        most: the maximum bytes of transcripts in the file.
    """

    name = "html"
    events = (RunFinished,)
    repeats = True
    """The end of the run can be handled again: see `report.registry.Broadcast`."""

    def __init__(
        self,
        path: Path,
        conversations: Conversations = conversations_in_memory,
        run_id: str = "",
        *,
        known: RunFacts | None = None,
        spans: Spans = no_spans,
        compared: ComparedRun | None = None,
        tell: Callable[[str], object] = lambda _: None,
        most: int = MOST_BYTES,
    ) -> None:
        self._path = path
        self._conversations = conversations
        self._run_id = run_id
        self._known = known or RunFacts()
        self._spans = spans
        self._compared = compared
        self._tell = tell
        self._most = most

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            state = "interrupted" if event.result.interrupted else run_status(event.result)
            run = {
                "startedAt": event.result.started_at,
                **self._known.about,
                "id": self._run_id,
                "state": state,
            }
            conversations = completed_by(event.result, self._conversations)
            trend = self._known.trend(event.result)
            data = run_data(
                event.result, conversations, run=run, trend=trend, spans=self._spans, most=self._most
            )
            with report_writer(self._path) as file:
                file.writelines(piece.encode() for piece in self._document(data, event.result))
            self._tell(f"the page of this run: {shown_path(self._path, Path.cwd())}")
            if data.left_out:
                total = count(event.result.conversations, "conversation")
                self._tell(
                    f"{self._path.name}: no room for the transcripts of {data.left_out:,} of {total}, "
                    f"as it holds {self._most / 1_000_000:g} MB of them, failing ones first; "
                    f"`{show_command(self._run_id)}` prints all"
                )

    def _document(self, data: PageData, result: RunResult) -> Iterator[str]:
        """Yield the file in pieces.

        The script comes first, so that the page can show the pieces that have arrived.
        """
        shell = page(
            PageVariant.FILE,
            f"Run {self._run_id} · agentest" if self._run_id else "agentest",
            plain=self._plain(result),
        )
        yield shell.head
        yield data_element("overview", packed(data.overview))
        if comparisons := (self._compared.pages() if self._compared else ()):
            yield data_element("comparison", packed(comparisons))
        for name, texts in (("details", data.details), ("chunk", data.transcripts)):
            for number, text in enumerate(texts):
                if text is not None:
                    yield data_element(f"{name}-{number}", text)
        yield data_element("end", "")  # a file without it was cut
        yield shell.tail

    def _plain(self, result: RunResult) -> str:
        """Return the verdict for browsers that cannot show the page."""
        passed = sum(each.verdict.status is Status.PASSED for each in result.scenarios)
        state = "interrupted" if result.interrupted else run_status(result)
        total = count(len(result.scenarios), "scenario")
        command = show_command(self._run_id)
        return f"Run {self._run_id}: {state}. {passed:,} of {total} passed. `{command}` prints it."


_MOST_BYTES = 1_000_000
"""The size limit of a conversation for this; laying out the source of a longer one is too slow."""
_TOO_LONG = ExportedSource(
    missing=f"which has more than {_MOST_BYTES // 1_000_000} MB; `agentest export` writes it"
)


def copyable_scripts(scenario: str, conversation: Json, size: int) -> Json:
    """Return `script` and `noScript`; one of them is "".

    Args:
        scenario: the name of the scenario.
        conversation: as in results.json.
        size: its bytes in results.json.
    """
    made = (
        export_conversation(scenario, usable(CODECS.read(Conversation, conversation)))
        if size <= _MOST_BYTES
        else _TOO_LONG
    )
    return {"script": made.source, "noScript": made.missing}
