"""The html reporter: `report.html` when the run is over, one file with everything in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentest.events import Event, RunFinished
from agentest.results import RunResult, ScenarioResult
from agentest.store.document import Conversations, completed_by, kept_conversations
from agentest.store.layouts import CODECS
from agentest.store.runs import stored_head
from agentest.store.scenarios import stored_scenario
from agentest.support.files import report_writer
from agentest.support.json_text import Json
from agentest.verdict import run_status
from agentest.viewer.overview import brief, causes, overview, scenario_row
from agentest.viewer.packing import packed
from agentest.viewer.page import Coat, data_element, page


class HtmlReporter:
    """Writes `report.html` when the run is over.

    Args:
        conversations: reads those of a scenario; `Journal.conversations` where results let them go.
    """

    name = "html"
    repeats = True
    """What it does at the end it may do again: see `report.registry.Broadcast`."""

    def __init__(
        self, path: Path, conversations: Conversations = kept_conversations, run_id: str = ""
    ) -> None:
        self._path = path
        self._conversations = conversations
        self._run_id = run_id

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            with report_writer(self._path) as file:
                file.writelines(piece.encode() for piece in self._document(event.result))

    def _document(self, result: RunResult) -> Iterator[str]:
        conversations = completed_by(result, self._conversations)
        chunks = [_chunk(scenario, conversations, n) for n, scenario in enumerate(result.scenarios)]
        scenarios = [chunk["scenarios"][0] for chunk in chunks]
        state = "interrupted" if result.interrupted else run_status(result)
        whole = overview(
            run={"id": self._run_id, "state": state, "startedAt": result.started_at},
            head=CODECS.write(stored_head(result)),
            scenarios=[scenario_row(each["scenario"], each["conversations"]) for each in scenarios],
            root_causes=causes(each["scenario"] for each in scenarios),
            packed=[{"chunk": n, "at": 0} for n in range(len(chunks))],
        )
        shown = page(Coat.FILE, f"Run {self._run_id} · agentest", {"overview": packed(whole)})
        yield shown.head
        for n, chunk in enumerate(chunks):
            yield data_element(f"chunk-{n}", packed(chunk))
        yield shown.tail


def _chunk(scenario: ScenarioResult, conversations: Conversations, number: int) -> dict[str, Any]:
    stored: Json = CODECS.write(stored_scenario(scenario))
    found = [json.loads(piece) for piece in conversations(scenario)]
    detail = {
        "scenario": stored,
        "conversations": [brief(each) for each in found],
        "places": [[number, at] for at in range(len(found))],
        "command": "",
    }
    opened = [{"conversation": each, "script": "", "spans": []} for each in found]
    return {"scenarios": [detail], "conversations": opened}
