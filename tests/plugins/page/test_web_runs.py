"""Stored runs over HTTP: partial, in progress, damaged, linked, and followed by events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import builders
import pytest
import sample_run
import stored
from report_file import read_report
from ui_server import Client, with_server

from agentest.domain.events import Event, RunFinished, RunStarted
from agentest.domain.results import CaseId, RunResult, Severity, Status
from agentest.domain.results.exploration import Explored, ExploredPart, Finding, FindingStatus
from agentest.plugins.page.report import HtmlReporter
from agentest.store.journal import Journal
from agentest.store.reader import read_results
from agentest.store.runs.folder import (
    RunKind,
    RunRecord,
    StoredRunFolder,
    new_run_folder,
    with_end,
    write_record,
)
from agentest.version import __version__

NOW = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
TWO = builders.run_result(builders.scenario_result(name="books"), builders.scenario_result(name="cancels"))


class Run:
    """A run that writes its journal as it goes on."""

    def __init__(self, root: Path, result: RunResult) -> None:
        self._stack = ExitStack()
        self.folder: StoredRunFolder = self._stack.enter_context(new_run_folder(root / ".agentest", NOW))
        self.record = RunRecord(
            id=self.folder.id, kind=RunKind.RUN, started_at=NOW.isoformat(), version=__version__
        )
        write_record(self.folder.path, self.record)
        self.result = result
        self.journal = Journal(self.folder.path / "journal.jsonl")
        self._events = _planned(builders.events(replace(result, version=__version__)), result)

    @property
    def path(self) -> Path:
        return self.folder.path / "journal.jsonl"

    def step(self, most: int | None = None) -> None:
        """Write what happens next; None: all that is left."""
        for number, event in enumerate(self._events, start=1):
            self.journal.on_event(event)
            if number == most:
                break
        self.journal.flush()

    def end(self) -> None:
        self.step()
        write_record(self.folder.path, with_end(self.record, self.result))
        self.kill()

    def kill(self) -> None:
        self.journal.close()
        self._stack.close()


def _planned(events: Iterator[Event], result: RunResult) -> Iterator[Event]:
    planned = tuple((each.name, each.agent, len(each.conversations)) for each in result.scenarios)
    for event in events:
        yield replace(event, planned=planned) if isinstance(event, RunStarted) else event


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    begun = Run(tmp_path, TWO)
    yield begun
    begun.kill()


def rows(overview: Any) -> list[tuple[str, str]]:
    return [(row["name"], row["status"]) for row in overview["scenarios"]]


FINDING = Finding(
    id="no_claim-pay-123456",
    title="the agent says that pay worked",
    oracle="no_claim",
    severity=Severity.HIGH,
    status=FindingStatus.NEW,
    part=ExploredPart.FAULTS,
    change="error of pay, call 1",
    scenario="books",
    agent="shop",
    source="a.sim.py",
    line=1,
)
EXPLORED = Explored(findings=(FINDING,), tries=12, conversations=60)


def test_an_exploration_has_its_findings(tmp_path: Path) -> None:
    run = Run(tmp_path, replace(TWO, explored=EXPLORED))
    run.end()

    async def work(client: Client) -> None:
        _, overview = await client.ask("GET", "/api/runs/latest")
        [found] = overview["head"]["findings"]
        assert (found["id"], found["fault"]) == (FINDING.id, FINDING.change)
        assert overview["head"]["explored"]["tries"] == 12

    with_server(tmp_path, work)


CASE = builders.scenario_result(
    "tuesday", verdict=builders.verdict(Status.FAILED), case=CaseId("booking_set", "tuesday")
)


@pytest.mark.parametrize(
    "result",
    [
        builders.run_result(sample_run.refused(), builders.scenario_result("books")),
        replace(TWO, explored=EXPLORED),
        replace(TWO, interrupted=True, stopped="interrupted"),
        builders.run_result(CASE, builders.broken_file(), builders.skipped_scenario()),
    ],
    ids=["failures", "explored", "interrupted", "a case, a broken file, a skipped scenario"],
)
def test_page_and_report_have_one_head(tmp_path: Path, result: RunResult) -> None:
    """The served page of a stored run and its file tell the same of the run, its causes and its scenarios."""
    run = Run(tmp_path, result)
    run.end()
    HtmlReporter(tmp_path / "report.html", run_id=run.folder.id).on_event(
        RunFinished(read_results(run.folder.path / "journal.jsonl"))
    )
    filed = read_report(tmp_path / "report.html").overview

    async def work(client: Client) -> None:
        _, served = await client.ask("GET", "/api/runs/latest")
        for part in ("head", "figures", "causes", "scenarios"):
            assert served[part] == filed[part], part
        assert served["run"]["state"] == filed["run"]["state"]

    with_server(tmp_path, work)


def test_a_run_is_shown_in_parts(tmp_path: Path, run: Run) -> None:
    """List, overview, scenario, conversation and search agree with the stored run."""
    run.end()
    document = stored.to_json(TWO)

    async def work(client: Client) -> None:
        _, listed = await client.ask("GET", "/api/runs")
        assert [(each["id"], each["state"]) for each in listed["runs"]] == [(run.folder.id, "passed")]
        _, overview = await client.ask("GET", "/api/runs/latest")
        assert rows(overview) == [("books", "passed"), ("cancels", "passed")]
        assert overview["head"]["summary"] == document["summary"]
        assert [each["id"] for each in overview["trend"]] == [run.folder.id]
        at = f"/api/runs/{run.folder.id}"
        who = {"name": "books", "agent": overview["scenarios"][0]["agent"]}
        _, scenario = await client.ask("GET", f"{at}/scenario", **who)
        id = scenario["conversations"][0]["conversationId"]
        _, opened = await client.ask("GET", f"{at}/conversation", **who, id=id)
        assert opened["conversation"] == document["scenarios"][0]["conversations"][0]
        _, found = await client.ask("GET", f"{at}/search", text="is TUESDAY")
        assert {hit["name"] for hit in found["hits"]} == {"books", "cancels"}
        assert (await client.ask("GET", f"{at}/search", text="turnIndex"))[1]["hits"] == []
        assert (await client.ask("GET", f"{at}/conversation", **who, id="none"))[0] == 404

    with_server(tmp_path, work)


def test_a_run_in_progress_is_followed(tmp_path: Path, run: Run) -> None:
    """Planned scenarios are running, finished ones appear on the next request, and a stream reports them."""
    run.step(2)

    async def work(client: Client) -> None:
        headers = {"Authorization": f"Bearer {client.token}"}
        _, overview = await client.ask("GET", "/api/runs/latest")
        assert (overview["run"]["state"], overview["head"]) == ("under way", None)
        assert {status for _, status in rows(overview)} == {"running"}
        async with client.session.get(f"{client.origin}/api/runs/latest/events", headers=headers) as events:
            first = json.loads((await events.content.readline()).removeprefix(b"data: "))
            assert first == {"type": "changed", "mark": overview["run"]["mark"]}
            run.end()
            told = await events.content.read()
        assert told.strip().endswith(b'data: {"type": "over"}')
        _, overview = await client.ask("GET", "/api/runs/latest")
        assert rows(overview) == [("books", "passed"), ("cancels", "passed")]
        assert (overview["run"]["state"], overview["run"]["finished"]) == ("passed", 2)

    with_server(tmp_path, work)


def test_a_killed_and_damaged_run_shows_what_is_left(tmp_path: Path, run: Run) -> None:
    """A line that cannot be read is named, one that was cut waits, and what never finished is errored."""
    run.step(3)
    run.kill()
    with run.path.open("ab") as journal:
        journal.write(b'{"type": "conversation"\n{"type": "scen')

    async def work(client: Client) -> None:
        _, overview = await client.ask("GET", "/api/runs/latest")
        assert overview["run"]["state"] == "killed"
        assert overview["run"]["resume"] == f"agentest run --resume {overview['run']['id']}"
        assert [problem.partition(" of ")[0] for problem in overview["run"]["problems"]] == ["line 4"]
        assert ("cancels", "errored") in rows(overview)

    with_server(tmp_path, work)


def test_a_run_from_elsewhere_is_shown(tmp_path: Path) -> None:
    """A results.json from a CI job is what the page begins with, wherever it lies."""
    path = tmp_path / "artifact" / "results.json"
    path.parent.mkdir()
    path.write_text(json.dumps(stored.to_json(TWO)))

    async def work(client: Client) -> None:
        assert (await client.ask("GET", "/api/runs"))[1]["chosen"] == "chosen"
        _, overview = await client.ask("GET", "/api/runs/chosen")
        assert (overview["run"]["state"], len(rows(overview))) == ("passed", 2)
        _, found = await client.ask("GET", "/api/runs/chosen/search", text="tuesday")
        assert len(found["hits"]) == 2

    with_server(tmp_path, work, chosen=path)


def test_other_paths_are_not_found(tmp_path: Path) -> None:
    """Invalid paths, links and removed runs get a message."""
    (tmp_path / ".agentest" / "runs").mkdir(parents=True)
    (tmp_path / "else").mkdir()
    linked = tmp_path / ".agentest" / "runs" / "20260301-093000-000-abcd"
    linked.symlink_to(tmp_path / "else")

    async def work(client: Client) -> None:
        for name, words in {
            "..%2f..%2felse": "is not a run",
            "nothing": "is not a run",
            "latest": "no run is stored",
            "20250101-000000-000-abcd": "no longer stored",
            linked.name: "links to another folder",
        }.items():
            for path in ("", "/events", "/scenario", "/search?text=a"):
                status, text = await client.raw(
                    "GET", f"/api/runs/{name}{path}", headers={"Authorization": f"Bearer {client.token}"}
                )
                assert (status, words in text) == (404, True), (name, path, text)

    with_server(tmp_path, work)
