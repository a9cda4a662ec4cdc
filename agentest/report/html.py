"""The html reporter: `report.html` when the run is over, one file with everything in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentest.domain.events import Event, RunFinished
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.domain.verdict import run_status
from agentest.report.comparison import ComparedRun
from agentest.report.viewer.overview import brief, overview, rerun, scenario_row, shown
from agentest.report.viewer.packing import Chunks, Place, packed
from agentest.report.viewer.page import Coat, data_element, page
from agentest.scenarios.source_code import Told, told
from agentest.store.codec import CODECS
from agentest.store.reader import usable
from agentest.store.results_json import Conversations, completed_by, kept_conversations
from agentest.store.run_results import stored_head, stored_scenario
from agentest.store.shapes import StoredConversation
from agentest.support.files import report_writer, shown_path
from agentest.support.json_text import Json, encoded
from agentest.support.text import count

Spans = Callable[[str, str, str], Sequence[Json]]
"""Names of a scenario and its agent, id of a conversation → its spans."""
_WORST_FIRST = (Status.FAILED, Status.ERRORED, Status.PASSED, Status.SKIPPED)


def no_spans(scenario: str, agent: str, conversation: str) -> Sequence[Json]:
    """Those of a run whose agents sent none."""
    del scenario, agent, conversation
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What stands in the file; all but the overview is packed.

    Attributes:
        details: lists of scenarios, each with a row for every conversation.
        transcripts: lists of conversations; None: one that had no room.
        left_out: how many conversations have no transcript.
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
) -> Data:
    """The data of a run.

    Args:
        run: what it is called and what it was: `overview.run`.
        most: how many bytes of transcripts there may be.

    Raises OSError where conversations cannot be read.
    """
    packer = _Packer(
        conversations=conversations,
        spans=spans,
        run_id=run["id"],
        several=len(result.agents) > 1,
        details=Chunks(),
        transcripts=Chunks(most),
    )
    packs = {number: packer.pack(result.scenarios[number]) for number in _worst_first(result.scenarios)}
    packer.close()
    rows = [packs[number] for number in sorted(packs)]
    head: Json = CODECS.write(stored_head(result))
    whole = overview(
        run=run,
        head=head,
        scenarios=[each.row for each in rows],
        root_causes=head["rootCauses"],
        trend=trend,
        left_out=packer.transcripts.left_out,
        packed=[each.place for each in rows],
        chunks=len(packer.transcripts.packed),
        absent=packer.transcripts.absent,
        show=shown(run["id"]),
    )
    return Data(
        overview=whole,
        details=packer.details.packed,
        transcripts=packer.transcripts.packed,
        left_out=packer.transcripts.left_out,
    )


def _worst_first(scenarios: Sequence[ScenarioResult]) -> list[int]:
    """The numbers of the scenarios in the order in which they get room."""
    return sorted(
        range(len(scenarios)), key=lambda number: _WORST_FIRST.index(scenarios[number].verdict.status)
    )


@dataclass(frozen=True, slots=True)
class _Packed:
    """A scenario whose details are packed.

    Attributes:
        row: its row in the overview.
        place: where its details are.
    """

    row: Json
    place: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packer:
    """Packs one scenario after another."""

    conversations: Conversations
    spans: Spans
    run_id: str
    several: bool
    details: Chunks
    transcripts: Chunks

    def pack(self, scenario: ScenarioResult) -> _Packed:
        """The scenario's row; its details and transcripts are put with the others."""
        stored: Json = CODECS.write(stored_scenario(scenario))
        rows = [brief(json.loads(piece)) for piece in self.conversations(scenario)]
        places = self._places(scenario, [row["passed"] for row in rows])
        detail = {
            "scenario": stored,
            "conversations": rows,
            "places": places,
            "command": rerun(stored, self.several),
            "show": shown(self.run_id, scenario.name),
        }
        return _Packed(scenario_row(stored, rows), self.details.add(encoded(detail)))

    def close(self) -> None:
        """End the last lists."""
        self.details.close()
        self.transcripts.close()

    def _places(self, scenario: ScenarioResult, passed: Sequence[bool]) -> list[Place | None]:
        """Where the transcripts are, those that failed first; None: there was no room."""
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
        """The conversation as the page opens it. Its own JSON stays as it is."""
        stored = json.loads(piece)
        more = {
            "name": scenario.name,
            "agent": scenario.agent,
            **to_copy(scenario.name, stored, len(piece)),
            "spans": self.spans(scenario.name, scenario.agent, stored["conversationId"]),
        }
        yield encoded(more).removesuffix(b"}")
        yield b', "conversation": '
        yield piece
        yield b"}"


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


_MOST_BYTES = 1_000_000
"""Of a conversation; the source of a longer one takes longer to lay out than the run took."""
_NOTHING_FOUND: Json = {
    "evaluation": {"turnEvaluations": [], "goalCompletion": None, "conversationMetrics": {}},
    "trajectory": None,
    "perTurnTrajectory": [],
    "labelledFailures": [],
    "criteria": [],
}
_TOO_LONG = Told(missing=f"which has more than {_MOST_BYTES // 1_000_000} MB; `agentest export` writes it")


def to_copy(scenario: str, conversation: Json, size: int) -> Json:
    """`script` and `noScript`, one of which is "".

    Args:
        scenario: its name.
        conversation: as in results.json.
        size: how many bytes it has there.
    """
    made = _told(scenario, conversation) if size <= _MOST_BYTES else _TOO_LONG
    return {"script": made.source, "noScript": made.missing}


def _told(scenario: str, conversation: Json) -> Told:
    # What was found out about it is most of it, and nobody needs it here.
    said = {**conversation, **_NOTHING_FOUND}
    return told(scenario, usable(CODECS.read(StoredConversation, said)))
