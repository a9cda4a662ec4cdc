"""The content of report.html."""

from __future__ import annotations

import hashlib
import json
import random
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import builders
import pytest
import report_file
import stored
from report_file import ReportFile

from agentest.domain.events import ReportRequest, RunFinished
from agentest.domain.results import CaseId, RunResult, ScenarioResult, Severity, Status
from agentest.domain.transcript import Blame
from agentest.plugins.page.report import HtmlReporter
from agentest.report.registry import ReporterContext, make_reporters
from agentest.store.codec import conversation_json
from agentest.store.runs.folder import RunKind, RunRecord, with_end, write_record
from agentest.support.json_text import encoded

FAILING = builders.failing_conversation
HOSTILE = "</script><!--<script>\u2028\u202e\ud800 & \"' \x00" + "W" * 50_000


def written(result: RunResult, path: Path, **more: Any) -> ReportFile:
    HtmlReporter(path, **more).on_event(RunFinished(result))
    return report_file.read_report(path)


def incompressible(id: str, chars: int, *, failing: bool = False) -> Any:
    """A conversation whose text has no shorter form."""
    text = random.Random(id).randbytes(chars // 2).hex()
    held = builders.conversation(id, [builders.turn(agent=text)])
    return builders.conversation_result(id, held=held, trajectory=builders.MISSED if failing else None)


def test_a_transcript_is_what_results_have(tmp_path: Path) -> None:
    """Scenario and conversation are to the letter those of results.json, hostile text and all."""
    turn = builders.turn(user=HOSTILE, agent=HOSTILE, tool_calls=(builders.tool_call(result=HOSTILE),))
    scenario = builders.scenario_result(
        HOSTILE[:60], [builders.conversation_result("c1", held=builders.conversation("c1", [turn]))]
    )
    result = builders.run_result(scenario)
    report = written(result, tmp_path / "report.html", run_id="20260102-030405-678-abcd")
    [wanted] = stored.to_json(result)["scenarios"]
    [conversation] = wanted.pop("conversations")
    name = report.overview["scenarios"][0]["name"]
    assert report.scenario(name)["scenario"] == wanted
    assert report.transcript(name, "c1")["conversation"] == conversation
    head = {key: value for key, value in stored.to_json(result).items() if key != "scenarios"}
    assert report.overview["head"] == head
    assert report.text.count("</script") == report.text.count("<script") == 5  # the page's own, and data


def test_a_conversation_can_be_copied_or_says_why_not(tmp_path: Path) -> None:
    """Each has the source of a scripted scenario; an unfinished one says that it has none."""
    broken = builders.conversation("c2", failure=builders.failure(Blame.AGENT))
    held = [builders.conversation_result("c1"), builders.conversation_result("c2", held=broken)]
    report = written(builders.run_result(builders.scenario_result("s", held)), tmp_path / "r.html")
    opened = report.transcript("s", "c1")
    names: dict[str, Any] = {}
    exec(compile(opened["script"], "copied.sim.py", "exec"), names)
    assert "Is Tuesday free?" in opened["script"]
    assert (opened["noScript"], opened["spans"]) == ("", [])
    assert report.transcript("s", "c2")["script"] == ""
    assert report.transcript("s", "c2")["noScript"] == (
        "which did not finish: the agent answered with status 500"
    )


def test_failures_have_room_first(tmp_path: Path) -> None:
    """If transcripts do not fit, failed scenarios have priority, then errored ones, failures before passes;
    the file counts and lists the missing ones, with the command that prints them."""
    passing = [incompressible(f"p{n}", 100_000) for n in range(3)]
    mixed = [incompressible(f"m{n}", 100_000, failing=n == 2) for n in range(4)]
    down = builders.conversation("e0", failure=builders.failure(Blame.INTERNAL))
    errored = [builders.conversation_result("e0", held=down)]
    result = builders.run_result(
        builders.scenario_result("passes", passing),
        builders.scenario_result("errs", errored),
        builders.scenario_result("fails", mixed),
    )
    assert [s.verdict.status for s in result.scenarios] == [Status.PASSED, Status.ERRORED, Status.FAILED]
    said: list[str] = []
    report = written(result, tmp_path / "r.html", run_id="RUN", tell=said.append, most=420_000)
    assert report.transcripts() == [("fails", f"m{n}") for n in (2, 0, 1, 3)] + [("errs", "e0")]
    assert report.overview["leftOut"] == 3
    assert report.transcript("passes", "p0") is None
    assert [row["name"] for row in report.overview["scenarios"]] == ["passes", "errs", "fails"]
    assert report.scenario("passes")["show"] == "agentest show RUN --scenario =passes --verbose"
    assert len(report.scenario("passes")["conversations"]) == 3
    page, left_out = said
    assert (page, left_out) == (
        f"the page of this run: {tmp_path / 'r.html'}",
        "r.html: left out the transcripts of 3 of 8 conversations, as it holds 0.42 MB of them, failing "
        "ones first; `agentest show RUN --verbose` prints all",
    )
    assert sum(len(text) for text in elements(report, "chunk-")) <= 420_000


def elements(report: ReportFile, prefix: str) -> list[str]:
    """The packed texts of elements."""
    return [part.partition(">")[2].partition("<")[0] for part in report.text.split(f'id="{prefix}')[1:]]


def test_a_giant_does_not_take_the_room_of_all(tmp_path: Path) -> None:
    """One transcript that is larger than all the room is left out, and the others are there."""
    held = [
        incompressible("giant", 900_000, failing=True),
        *(incompressible(f"c{n}", 1000) for n in range(3)),
    ]
    result = builders.run_result(builders.scenario_result("s", held))
    report = written(result, tmp_path / "r.html", most=300_000)
    assert [id for _, id in report.transcripts()] == ["c0", "c1", "c2"]
    assert report.transcript("s", "giant") is None
    assert report.overview["leftOut"] == 1


def test_conversations_are_not_all_in_memory(tmp_path: Path) -> None:
    """A run of many long conversations is written with few of them in memory at a time."""
    one = builders.conversation_result(
        held=builders.conversation("c", [builders.turn(agent="All is well.\n" * 8_000)])
    )
    piece = encoded(conversation_json(one, None, {}))
    result = builders.let_go(builders.run_result(builders.scenario_result("s", [one])))

    def conversations(_: ScenarioResult) -> Iterator[bytes]:
        return (piece.replace(b'"c"', b'"c%d"' % n) for n in range(100))

    reporter = HtmlReporter(tmp_path / "r.html", conversations)
    tracemalloc.start()
    try:
        reporter.on_event(RunFinished(result))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(report_file.read_report(tmp_path / "r.html").transcripts()) == 100
    assert most < 40 * len(piece)


CASE = builders.scenario_result(
    "set: pay", file="sets/pay.evalset.json", line=4, case=CaseId("set", "pay for two")
)
RUNS: dict[str, tuple[RunResult, Mapping[str, str]]] = {
    "one agent": (builders.run_result(), {"user books a morning slot": "agentest run "
                                          "'scenarios/booking.sim.py::user books a morning slot'"}),
    "several agents": (
        builders.run_result(
            builders.scenario_result("s"), builders.scenario_result("s", agent="it's"), comparison=True
        ),
        {"s": "agentest run scenarios/booking.sim.py::s --agent booking"},
    ),
    "an evaluation set": (
        builders.run_result(CASE),
        {"set: pay": "agentest eval 'sets/pay.evalset.json:pay for two'"},
    ),
    "broken and skipped": (
        builders.run_result(builders.broken_file(), builders.skipped_scenario()),
        {"later": "agentest run scenarios/later.sim.py::later"},
    ),
    "interrupted": (
        builders.run_result(builders.scenario_result("s", ()), interrupted=True, stopped="interrupted"),
        {"s": "agentest run scenarios/booking.sim.py::s"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_every_run_makes_a_report(kind: str, tmp_path: Path) -> None:
    """Every kind of run has a report, with the command that repeats each scenario."""
    result, commands = RUNS[kind]
    report = written(result, tmp_path / "r.html")
    assert len(report.overview["scenarios"]) == len(result.scenarios)
    assert report.overview["run"]["state"] == (
        "interrupted" if result.interrupted else "errored" if kind.startswith("broken") else "passed"
    )
    for name, command in commands.items():
        assert report.scenario(name)["command"] == command


def test_only_a_run_that_ended_early_has_the_command_that_continues_it(tmp_path: Path) -> None:
    """The command goes with scenarios that have not run; a run that finished has nothing to continue."""
    for kind, has_it in (("interrupted", True), ("one agent", False)):
        report = written(RUNS[kind][0], tmp_path / "r.html", next_step="agentest run --resume r1")
        assert ("resume" in report.overview["run"]) is has_it


def test_a_run_without_scenarios_has_a_report(tmp_path: Path) -> None:
    """The report says that nothing ran."""
    report = written(builders.replace(builders.run_result(), scenarios=()), tmp_path / "r.html")
    assert report.overview["scenarios"] == []


def test_the_same_run_is_the_same_file(tmp_path: Path) -> None:
    """Written twice, a report is the same to the byte."""
    result = builders.run_result(
        builders.scenario_result("s", [FAILING()], errors=[builders.error_group(severity=Severity.LOW)])
    )
    hashes = set()
    for name in ("one.html", "two.html"):
        written(result, tmp_path / name, run_id="RUN")
        hashes.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(hashes) == 1


def test_the_report_has_facts_of_the_record(tmp_path: Path) -> None:
    """The report of a stored run has commit, spans and earlier complete runs of the same kind."""
    records = [
        RunRecord(id=f"2026010{day}-030405-678-abcd", kind=kind, started_at="", version="1", commit="abc")
        for day, kind in enumerate((RunKind.RUN, RunKind.EVAL, RunKind.RUN, RunKind.RUN), start=1)
    ]
    result = builders.run_result(builders.scenario_result("s", [FAILING()]))
    for number, record in enumerate(records):
        folder = tmp_path / "runs" / record.id
        folder.mkdir(parents=True)
        write_record(folder, with_end(record, result) if number < 2 else record)
    last = records[-1]
    setting = ReporterContext(
        root=tmp_path,
        folder=tmp_path / "runs" / last.id,
        environ={},
        run_id=last.id,
        record=last,
    )
    span = {"scenario": "s", "agent": "booking", "conversationId": "c1", "name": "chat"}
    (setting.folder / "spans.jsonl").write_text(json.dumps(span) + "\n", encoding="utf-8")
    reporter = make_reporters([ReportRequest("html")], setting)[0]
    reporter.on_event(RunFinished(result))
    report = report_file.read_report(setting.folder / "report.html")
    assert report.overview["run"]["commit"] == "abc"
    assert report.overview["run"]["state"] == "failed"
    assert [(point["id"], point["failed"]) for point in report.overview["trend"]] == [
        (records[0].id, 1),
        (last.id, 1),
    ]
    assert report.transcript("s", "c1")["spans"] == [span]
    assert str(tmp_path) not in json.dumps(report.data)
