"""The data of report.html: rows for all, details of each scenario, and as many transcripts as have room.

Conversations are read one at a time, twice: first each gives its row, then those that failed are packed, then
those that passed. What is in memory is rows, and what is packed already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.report.copying import to_copy
from agentest.report.viewer.commands import rerun, shown
from agentest.report.viewer.overview import brief, overview, scenario_row
from agentest.report.viewer.packing import Chunks, Place
from agentest.store.document import Conversations
from agentest.store.layouts import CODECS
from agentest.store.run_results import stored_head
from agentest.store.scenarios import stored_scenario
from agentest.support.json_text import Json, encoded

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
