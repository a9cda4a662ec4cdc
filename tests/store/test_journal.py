"""The journal: it loses nothing finished, and results are made from it."""

from __future__ import annotations

import errno
import json
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from builders import (
    MISSED,
    broken_file,
    conversation,
    conversation_result,
    error_group,
    events,
    failing_conversation,
    failure,
    labelled_failure,
    run_result,
    scenario_result,
    skipped_scenario,
    tool_call,
    turn,
    turn_evaluation,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from project import COMMAND, DEADLINE_S, Project, clean_environment, free_port
from stored import conversations_of, read_json, to_json

from agentest.cli.run_output import RunOutput
from agentest.cli.stored_runs import report_again
from agentest.domain.events import (
    ConversationFinished,
    Event,
    ReportRequest,
    RunFinished,
    ScenarioAmended,
)
from agentest.domain.results import (
    CaseId,
    Reason,
    ReasonKind,
    Reference,
    ReferenceCall,
    RunResult,
    ScenarioResult,
    Status,
    Verdict,
)
from agentest.domain.transcript import Blame
from agentest.history.compared_runs import measure_scenario
from agentest.report.json import JsonReporter
from agentest.report.registry import Broadcast
from agentest.store.journal import Journal, RetryingLineFile
from agentest.store.reader import StoredItems, index_journal, read_finished, read_results
from agentest.store.runs.folder import RunKind, RunRecord, StoredRunFolder
from agentest.support.errors import UsageError
from agentest.support.json_text import json_document, well_formed
from agentest.support.redaction import CredentialFilter
from agentest.testing import ScriptedAgent

texts = st.text(st.characters(categories=["L", "M", "N", "P", "S", "Z", "C", "Cs"]), max_size=20) | (
    st.sampled_from(['"', "\n", "\\", "\u2028", "\ud800", '", "conversation": {', "a\r\nb", "}"])
)


@st.composite
def scenarios(draw: st.DrawFn) -> ScenarioResult:
    """Draw a scenario with any texts and some conversations; it may be a case of an evaluation set."""
    text, case = draw(texts), draw(st.none() | st.builds(CaseId, texts, texts))
    reference = Reference(text, (ReferenceCall(text, {text: text}),), {"userContent": {"parts": [text]}})
    held = [
        conversation_result(
            f"c{n}",
            [turn_evaluation(reference=reference if case else None)],
            held=conversation(f"c{n}", [turn(agent=text, tool_calls=(tool_call(text, {text: text}, text),))]),
            failures=[labelled_failure(f"c{n}-F1", text)],
        )
        for n in range(draw(st.integers(0, 3)))
    ]
    return scenario_result(
        draw(texts),
        held,
        agent=draw(st.sampled_from(["booking", "other"])),
        case=case,
        errors=[error_group(text)],
        thresholds={"helpfulness": 3.5} if case else {},
    )


def key(scenario: ScenarioResult) -> tuple[str, str]:
    return well_formed(scenario.name), scenario.agent


runs = st.builds(
    lambda found, comparison, broken: run_result(*found, *broken, comparison=comparison),
    st.lists(scenarios(), min_size=1, max_size=4, unique_by=key),
    st.booleans(),
    st.sampled_from([(), (broken_file(), skipped_scenario())]),
)


def tell(told: Iterator[Event], folder: Path) -> Path:
    """Send events to a journal and to the reporter that writes results.json; return the journal's path."""
    journal = Journal(folder / "out" / "journal.jsonl")
    results = JsonReporter(folder / "out" / "results.json", journal.conversations)
    for event in told:
        journal.on_event(event)
        results.on_event(event)
    journal.close()
    return folder / "out" / "journal.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@given(runs)
@settings(max_examples=60, deadline=None)
def test_results_from_a_journal(result: RunResult) -> None:
    """results.json made from the journal, and the journal itself, equal the run in memory."""
    whole = json.loads(json_document(to_json(result)))
    with tempfile.TemporaryDirectory() as folder:
        path = tell(events(result), Path(folder))
        results = path.with_name("results.json")
        assert json.loads(results.read_bytes()) == whole
        read, again = read_json(path), to_json(read_results(results))
        assert read.pop("scenarios") == whole["scenarios"]
        assert read == {key: again[key] for key in again if key != "scenarios"}


@given(runs)
@settings(max_examples=40, deadline=None)
def test_the_index_has_what_the_lines_have(result: RunResult) -> None:
    """A journal that was changed after its end is read line by line instead."""
    with tempfile.TemporaryDirectory() as folder:
        path = tell(events(result), Path(folder))
        indexed = index_journal(path)
        places = {key: list(indexed.lines(key)) for key in indexed.places}
        path.write_bytes(path.read_bytes().replace(b'"type": "run", ', b'"type":  "run", ', 1))
        read = index_journal(path)
    assert (indexed.scenarios, indexed.document, indexed.order) == (read.scenarios, read.document, read.order)
    assert places == {key: list(read.lines(key)) for key in read.places}


def test_the_index_finds_lines_without_reading_others(tmp_path: Path) -> None:
    """Conversations are not read before they are used; a journal without its end is read whole."""
    result = run_result(scenario_result("s", [conversation_result("c1")]))
    *told, end = events(result)
    changed = ScenarioAmended(replace(result.scenarios[0], line=77), Status.PASSED)
    path = tell(iter([*told, changed, end]), tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"type": "conversation"', b'"type": "conversatiom"'))
    (found,) = read_results(path).scenarios
    assert (found.name, found.line, len(found.conversations)) == ("s", 77, 1)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, match="line 2: is not a line of a journal"):
        read_results(path)


def test_many_reasons_are_read_when_they_are_used(tmp_path: Path) -> None:
    """They stay in the file, and a damaged or removed one is named."""
    result = run_result(scenario_result("s", [failing_conversation(f"c{n}") for n in range(99)]))
    path = tell(events(result), tmp_path)
    (found,) = read_results(path).scenarios
    assert isinstance(found.verdict.reasons, StoredItems)
    assert (len(found.verdict.reasons), found.verdict) == (99, result.scenarios[0].verdict)
    assert read_json(path) == json.loads(json_document(to_json(result)))
    (again,) = read_results(path).scenarios
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        tuple(again.verdict.reasons)


def test_conversations_are_in_order() -> None:
    """Conversations that finish out of order, or interleaved with others, are stored in their order."""
    held = [conversation_result(f"c{n}") for n in range(1, 13)]
    result = run_result(scenario_result("s", held), scenario_result("s", held[:3], agent="other"))
    told = list(events(result))
    finished = [event for event in told if isinstance(event, ConversationFinished)]
    others = [event for event in told if not isinstance(event, ConversationFinished)]
    with tempfile.TemporaryDirectory() as folder:
        path = tell(iter([others[0], *finished[::-1], *others[1:]]), Path(folder))
        document = json.loads((path.parent / "results.json").read_bytes())
        assert document == json.loads(json_document(to_json(result))) == read_json(path)


def test_every_event_is_written_at_once(tmp_path: Path) -> None:
    """After each event the file has one more complete line."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    result = run_result(scenario_result("s", [failing_conversation("c1"), conversation_result("c2")]))
    for number, event in enumerate(events(result), start=1):
        journal.on_event(event)
        assert path.read_bytes().endswith(b"}\n")
        assert len(lines(path)) == number
    journal.close()
    assert [line["type"] for line in lines(path)] == [
        "run",
        "conversation",
        "conversation",
        "scenario",
        "end",
    ]


def test_a_taken_name_has_no_conversations(tmp_path: Path) -> None:
    """A file with a duplicate scenario name appears in the results without conversations."""
    taken = replace(broken_file(), name="s", agent="booking")
    result = run_result(scenario_result("s"), taken)
    tell(events(result), tmp_path)
    first, second = json.loads((tmp_path / "out" / "results.json").read_bytes())["scenarios"]
    assert (len(first["conversations"]), second["conversations"]) == (1, [])


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    """The journal of a killed run records its version, and other versions are refused."""
    path = tmp_path / "journal.jsonl"
    path.write_text('{"type": "run", "schemaVersion": 2}\n')
    with pytest.raises(UsageError, match=r"is not a results\.json or a journal of this version"):
        read_results(path)


def test_another_run_leaves_the_file_of_this_one(tmp_path: Path) -> None:
    """Two runs that write to one folder do not mix conversations."""
    path = tmp_path / "journal.jsonl"
    first, second = Journal(path), Journal(path)
    *told, _ = events(run_result(scenario_result("s", [conversation_result("mine")])))
    for event in told:
        first.on_event(event)
    other = run_result(scenario_result("s", [conversation_result("yours")]))
    for event in events(other):
        second.on_event(event)
    (found,) = first.conversations(scenario_result("s"))
    assert json.loads(found)["conversationId"] == "mine"
    assert read_json(path) == json.loads(json_document(to_json(other)))
    first.close()
    second.close()


class Disk:
    """A disk with limited room. If full, it takes part of a write and then nothing."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.content = bytearray()
        self.place = 0

    def __call__(self, path: Path) -> Disk:
        return self

    def write(self, data: memoryview) -> int:
        taken = min(self.room, len(data))
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= taken
        self.content += data[:taken]
        return taken

    def seek(self, position: int) -> int:
        self.place = position
        return position

    def read(self, size: int) -> bytes:
        return bytes(self.content[self.place : self.place + size])

    def close(self) -> None:
        pass


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=12), st.data())
def test_delayed_lines(added: list[bytes], data: st.DataObject) -> None:
    """However the free space changes, the file is a prefix of its final content and stays readable."""
    disk, said = Disk(0), list[str]()
    file = RetryingLineFile(Path("journal"), said.append, disk)
    starts = []
    for count, line in enumerate(added, start=1):
        disk.room = data.draw(st.integers(0, 20))
        starts.append(file.add(line))
        assert b"".join(added[:count]).startswith(disk.content)
        for start, known in zip(starts, added, strict=False):
            assert start is not None
            assert file.read(start, len(known)) == known
    disk.room = 200
    assert file.flush()
    assert bytes(disk.content) == b"".join(added)
    problems = ["cannot be written" in text for text in said]
    assert problems == [n % 2 == 0 for n in range(len(said))]  # told when it begins and when it is over


def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    """Lines are written once there is room, and results.json is complete; both events are reported."""
    disk, said = Disk(1_000), list[str]()
    journal = Journal(tmp_path / "journal.jsonl", said.append, disk)
    broadcast = Broadcast([journal, JsonReporter(tmp_path / "results.json", journal.conversations)])
    result = run_result(scenario_result("s", [conversation_result(f"c{n}") for n in range(8)]))
    for event in events(result):
        if isinstance(event, ConversationFinished):
            disk.room = 100 if event.number < 5 else 1_000_000
            broadcast(event)
            assert len(said) == (1 if event.number < 5 else 2)
        else:
            broadcast(event)
    assert (broadcast.problems, journal.flush()) == ([], True)
    assert "No space left on device" in said[0]
    assert "nothing that waited is lost" in said[1]
    whole = json.loads(json_document(to_json(result)))
    assert json.loads((tmp_path / "results.json").read_bytes()) == whole
    (tmp_path / "copy.jsonl").write_bytes(disk.content)
    assert read_json(tmp_path / "copy.jsonl") == whole


def test_a_disk_that_stays_full(tmp_path: Path) -> None:
    """Results come from memory, and the written part of the file can be read."""
    disk, said = Disk(5_000), list[str]()
    journal = Journal(tmp_path / "journal.jsonl", said.append, disk)
    broadcast = Broadcast([journal, JsonReporter(tmp_path / "results.json", journal.conversations)])
    result = run_result(scenario_result("s", [conversation_result(f"c{n}") for n in range(8)]))
    for event in events(result):
        broadcast(event)
    assert not journal.flush()
    assert json.loads((tmp_path / "results.json").read_bytes()) == json.loads(json_document(to_json(result)))
    (tmp_path / "copy.jsonl").write_bytes(disk.content)
    assert 0 < len(read_json(tmp_path / "copy.jsonl")["scenarios"][0]["conversations"]) < 8


def test_waiting_lines_are_bounded() -> None:
    """Lines over the memory limit are lost, with a message; waiting lines are written later."""
    disk, said = Disk(0), list[str]()
    file = RetryingLineFile(Path("journal"), said.append, disk, most_waiting=10)
    assert [file.add(b"12345\n"), file.add(b"67890\n"), file.add(b"1\n")] == [0, None, 6]
    assert (file.lost, len(said)) == (1, 2)
    assert "are lost" in said[1]
    disk.room = 100
    assert file.flush()
    assert disk.content == b"12345\n1\n"


def test_results_are_whole_or_not_written(tmp_path: Path) -> None:
    """If the journal lost a conversation, results.json is not written, and an error says so."""
    journal, said = Journal(tmp_path / "journal.jsonl"), list[str]()
    results = JsonReporter(tmp_path / "results.json", journal.conversations)
    broadcast = Broadcast([journal, results], said.append)
    for event in events(run_result(scenario_result("s", [conversation_result(f"c{n}") for n in range(3)]))):
        broadcast(event)
        if isinstance(event, ConversationFinished) and event.number == 1:
            journal.close()  # from now on nothing can be written
    (lost,) = broadcast.problems
    assert "holds 1 of 3 conversations of 's'" in lost
    assert said == [lost]
    assert broadcast.failed == {"json"}
    assert not (tmp_path / "results.json").exists()


def test_a_report_that_cannot_be_written_at_the_end() -> None:
    """It is reported at once. One for which the disk is full is left to the message about all files."""
    for number, unwritten in [(errno.ENOSPC, ["the report json"]), (errno.EROFS, [])]:

        class Late:
            name = "json"

            def on_event(self, event: Event, number: int = number) -> None:
                if isinstance(event, RunFinished):
                    raise OSError(number, "no")

        said: list[str] = []
        broadcast = Broadcast([Late()], said.append)
        for event in events(run_result()):
            broadcast(event)
        assert broadcast.failed == {"json"}
        assert broadcast.unwritten == unwritten
        assert len(said) == len(broadcast.problems) - len(unwritten)


def test_one_message_names_all_files_that_a_full_disk_lacks(tmp_path: Path) -> None:
    class Cut:
        held = 1

        def flush(self) -> bool:
            return False

    (tmp_path / "runs" / "r").mkdir(parents=True)
    output = RunOutput(
        folder=StoredRunFolder(tmp_path / "runs" / "r"),
        record=RunRecord(id="r", kind=RunKind.RUN, started_at="2026-01-01T00:00:00Z", version="1"),
        journal=cast("Journal", Cut()),
        keep_span=None,
        keep_output=lambda name, text: None,
        keep_runs=20,
    )
    [said] = output.end(None, [], ["the report json"])
    assert said.endswith("runs/r: the report json, journal.jsonl could not be written (the disk was full)")


def test_a_reporter_receives_the_events_that_it_names() -> None:
    """This holds even after another reporter has crashed."""

    class Ends:
        name = "ends"
        events = (RunFinished,)

        def __init__(self) -> None:
            self.seen: list[Event] = []

        def on_event(self, event: Event) -> None:
            self.seen.append(event)

    class Everything(Ends):
        events = get_args(Event)

    class Crashing:
        name = "crashing"

        def on_event(self, event: Event) -> None:
            raise ValueError(event)

    ends, everything = Ends(), Everything()
    broadcast = Broadcast([Crashing(), ends, everything])
    all_events = list(events(run_result()))
    for event in all_events:
        broadcast(event)
    assert everything.seen == all_events
    assert ends.seen == [event for event in all_events if isinstance(event, RunFinished)]
    assert broadcast.failed == {"crashing"}


def all_names() -> list[str]:
    return [f"number {n}" for n in range(60)]


MANY = "for n in range(60):\n    scenario(f'number {n}', turns=['x', str(n)])\n"


def test_a_killed_run_has_lost_nothing(project: Project) -> None:
    """After kill -9 the journal has every reported conversation, on complete lines."""
    stuck, over = threading.Event(), threading.Event()

    def answer(body: dict[str, Any]) -> str:
        if body["messages"][-1]["content"] == "40":
            stuck.set()
            over.wait(DEADLINE_S)
        return 'a "reply"\n' * 500

    project.scenario(MANY)
    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint, concurrency=4, request_timeout_ms=DEADLINE_S * 1000)
        process = project.start("--conversations", "3", "-v")
        assert process.stdout is not None
        shown = []
        while sum("passed" in line for line in shown) < 30:
            shown.append(process.stdout.readline())
        assert stuck.wait(DEADLINE_S)
        process.kill()
        shown += process.communicate(timeout=DEADLINE_S)[0].splitlines()
        over.set()
        told = [
            line.split("a.sim.py")[0].removeprefix("✓ passed").strip()
            for line in shown
            if line.startswith("✓")
        ]
        journal = project.root / ".agentest" / "journal.jsonl"
        held = conversations_of(read_results(journal))
        names = {name for name, _ in held}
        assert set(told) <= names
        assert len(told) >= 30
        assert all(len(held[name, "agent"]) == 3 for name in told)
        assert all(len(c.turns) == 2 for found in held.values() for c in found)
        whole = journal.read_bytes().split(b"\n")[:-1]
        assert len([json.loads(line) for line in whole]) == len(whole)
        assert not (project.root / ".agentest" / "results.json").exists()
        asked = len(agent.requests)
        done = project.agentest("judge", ".agentest/journal.jsonl")
        assert len(agent.requests) == asked
    assert done.returncode == 2, done.stdout + done.stderr
    judged = json.loads((project.root / ".agentest" / "judged.json").read_text())["scenarios"]
    whole_ones = {name for (name, _), found in held.items() if len(found) == 3}
    assert {s["name"] for s in judged if s["status"] == "passed"} == whole_ones
    assert {s["name"] for s in judged if s["status"] == "errored"} == set(all_names()) - whole_ones


@pytest.fixture
def cut(tmp_path: Path) -> Callable[[RunResult, int], Path]:
    """Make the journal of a run killed after this many lines, in the middle of the next."""

    def made(result: RunResult, count: int) -> Path:
        path = tell(events(result), tmp_path)
        whole = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(whole[:count]) + whole[count][: len(whole[count]) // 2])
        return path

    return made


def test_a_killed_run_is_read_as_interrupted(cut: Callable[[RunResult, int], Path]) -> None:
    """It does not pass, and unfinished scenarios are errored with a reason."""
    held = [conversation_result("c1"), conversation_result("c2")]
    document = read_json(cut(run_result(scenario_result("done"), scenario_result("cut", held)), 4))
    assert (document["interrupted"], document["stopped"]) == (True, "killed before its end")
    done, unfinished = document["scenarios"]
    assert (done["name"], done["status"], len(done["conversations"])) == ("done", "passed", 1)
    assert (unfinished["name"], unfinished["agent"], unfinished["status"]) == ("cut", "booking", "errored")
    assert unfinished["failures"] == [
        "the run was killed before its end: the journal contains 1 finished conversation"
    ]
    assert [c["conversationId"] for c in unfinished["conversations"]] == ["c1"]
    summary = document["summary"]
    assert (summary["passed"], summary["totalScenarios"], summary["erroredScenarios"]) == (False, 2, 1)
    assert (summary["llmCalls"], summary["agentCalls"], summary["durationMs"]) == (10, 2, 0)
    assert summary["time"]["agentMs"] == 241.0
    assert [turn["scenario"] for turn in summary["slowestTurns"]] == ["done", "cut"]


def test_a_killed_comparison(cut: Callable[[RunResult, int], Path]) -> None:
    """Results of all agents are grouped, including those that never finished."""
    result = run_result(
        scenario_result("s"), scenario_result("s", agent="other"), scenario_result("t"), comparison=True
    )
    run = read_results(cut(result, 4))
    assert run.comparison
    assert [(each.name, each.agent, each.verdict.status) for each in run.scenarios] == [
        ("s", "booking", "passed"),
        ("s", "other", "errored"),
    ]
    assert to_json(run)["summary"]["perAgent"]["other"]["erroredScenarios"] == 1


@given(runs, st.data())
@settings(max_examples=40, deadline=None)
def test_a_journal_cut_anywhere_can_be_read(result: RunResult, data: st.DataObject) -> None:
    """Any journal cut after its first line can be read, up to its last complete line."""
    with tempfile.TemporaryDirectory() as folder:
        path = tell(events(result), Path(folder))
        content = path.read_bytes()
        path.write_bytes(content[: data.draw(st.integers(content.index(b"\n") + 1, len(content)))])
        held = sum(line["type"] == "conversation" for line in whole_lines(path))
        assert sum(len(each.conversations) for each in read_results(path).scenarios) == held


def whole_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda rows: rows.insert(2, b"{"), "line 3: "),
        (lambda rows: rows.insert(2, b"\xff"), "line 3: "),
        (lambda rows: rows.insert(1, b'{"type": "conversation"}'), "line 2: is not a line of a journal"),
        (lambda rows: rows.insert(1, b"[]"), "line 2: is not a line of a journal"),
        (lambda rows: rows.__setitem__(2, rows[2].replace(b'"tags"', b'"tag"')), "line 3: it has no tags"),
    ],
)
@pytest.mark.parametrize("killed", [False, True])
def test_a_damaged_journal_is_refused(
    spoil: Callable[[list[bytes]], object], problem: str, killed: bool, tmp_path: Path
) -> None:
    """The error about an invalid line has its number or the difference."""
    path = tell(events(run_result()), tmp_path)
    rows = path.read_bytes().splitlines()[: 3 if killed else 4]
    spoil(rows)
    path.write_bytes(b"\n".join(rows) + b"\n")
    with pytest.raises(UsageError) as raised:
        read_results(path)
    assert problem in str(raised.value)


def test_finished_conversations_are_released(tmp_path: Path) -> None:
    """Reporters drop conversations when their scenario finishes, so that memory stays bounded."""
    script = """
import gc, io, sys
from pathlib import Path
from rich.console import Console
from builders import failing_conversation, run_result, scenario_result, events
from agentest.report.console.reporter import ConsoleReporter
from agentest.report.github import GitHubActionsReporter
from agentest.report.json import JsonReporter
from agentest.store.journal import Journal
from agentest.domain.results import ConversationResult

folder = Path(sys.argv[1])
journal = Journal(folder / "journal.jsonl")
reporters = [
    journal,
    JsonReporter(folder / "results.json", journal.conversations),
    GitHubActionsReporter(lambda line: None, folder, folder / "summary.md"),
    ConsoleReporter(Console(file=io.StringIO()), live=True, case_tables=True),
]
def run():
    for event in events(run_result(*(scenario_result(f"s{n}", [failing_conversation()]) for n in range(9)))):
        for reporter in reporters:
            reporter.on_event(event)
run()
gc.collect()
print(sum(isinstance(found, ConversationResult) and bool(found.trajectory) for found in gc.get_objects()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).parent.parent / "support",
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout.splitlines()[-1:] == ["0"], done.stdout + done.stderr
    assert len(json.loads((tmp_path / "results.json").read_bytes())["scenarios"]) == 9


def limited(project: Project, kib: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `agentest run` with a limit on file sizes."""
    command = shlex.join([*COMMAND, "run", *arguments])
    return subprocess.run(
        ["bash", "-c", f"ulimit -f {kib}; exec {command}"],
        cwd=project.root,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize(("reporters", "code"), [(["console", "json"], 2), (["console"], 0)])
@pytest.mark.slow
def test_a_full_disk(project: Project, reporters: list[str], code: int) -> None:
    """The run continues and reports the error once; it is errored if json was requested."""
    project.scenario("for n in range(20):\n    scenario(f'number {n}', turns=['x'])\n")
    with ScriptedAgent(["a reply " * 500]) as agent:
        project.config(agent.endpoint, reporters=reporters, concurrency=2)
        done = limited(project, 32)
    assert done.returncode == code, done.stdout + done.stderr
    assert "20 passed" in done.stdout
    assert done.stderr.count("journal.jsonl cannot be written to (File too large)") == 1
    assert done.stderr.count("journal.jsonl could not be written (the disk was full)") == 1
    assert done.stderr.count("reporter json failed: OSError") == 1
    folder = project.root / ".agentest"
    assert sorted(path.name for path in folder.iterdir()) == ["journal.jsonl", "runs"]
    assert sorted(path.name for path in folder.glob("runs/*/*")) == ["journal.jsonl", "run.json"]
    held = conversations_of(read_results(folder / "journal.jsonl"))
    assert 0 < len(held) < 20


@pytest.mark.parametrize(("reporters", "code", "asked"), [(["json"], 2, 0), (["console"], 0, 1)])
def test_a_folder_that_cannot_be_made(project: Project, reporters: list[str], code: int, asked: int) -> None:
    """A run for the console continues with a note; one with the json reporter does not start."""
    project.write("file", "")
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["y"]) as agent:
        project.config(agent.endpoint, reporters=reporters, output_dir="file/inside")
        done = project.run()
        assert (done.returncode, len(agent.requests)) == (code, asked), done.stderr
    assert done.stderr.count("output_dir") >= 1
    assert ("finished conversations are not stored" in done.stderr) == (code == 0)


def test_judge_accepts_a_journal(project: Project) -> None:
    """`judge` reads a journal and writes its own."""
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
    path = project.root / ".agentest" / "journal.jsonl"
    before = path.read_bytes()
    assert project.agentest("judge", ".agentest/journal.jsonl").returncode == 0
    assert path.read_bytes() == before
    assert read_results(path.with_name("judged.jsonl")) == read_results(path.with_name("judged.json"))


def test_a_part_of_a_scenario_does_not_pass(project: Project) -> None:
    """Judged again, a scenario only partly in a killed run is errored; a complete one passes."""
    project.scenario("for name in ('whole', 'part', 'none', 'fails'):\n    scenario(name, turns=['x'])")
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        assert project.run("--conversations", "2", "--concurrency", "1").returncode == 0
        path = project.root / ".agentest" / "journal.jsonl"
        kept = {"run": 1, "whole": 3, "part": 1, "fails": 1}

        def is_kept(line: dict[str, Any]) -> bool:
            name = line.get("scenario", line["type"])
            name = name["name"] if isinstance(name, dict) else name
            kept[name] = kept.get(name, 0) - 1
            return kept[name] >= 0

        rows = [row for row in path.read_bytes().splitlines(keepends=True) if is_kept(json.loads(row))]
        path.write_bytes(b"".join(rows))
        text = (project.root / "a.sim.py").read_text()
        (project.root / "a.sim.py").write_text(
            text.replace("turns=['x']", "turns=['x'], trajectory={'expected': ['t'] * (name == 'fails')}")
        )
        done = project.agentest("judge", ".agentest/journal.jsonl")
        assert done.returncode == 1, done.stdout + done.stderr
        judged = json.loads((project.root / ".agentest" / "judged.json").read_text())
        found = {s["name"]: (s["status"], s["plannedConversations"]) for s in judged["scenarios"]}
        assert found == {
            "whole": ("passed", 2),
            "part": ("errored", 2),
            "none": ("errored", 2),
            "fails": ("failed", 2),
        }
        assert "of 2 conversations the earlier run finished 1" in done.stdout
        assert "of 2 planned conversations, the earlier run finished none" in done.stdout
        again = project.agentest("judge", ".agentest/judged.json", "--scenario", "part")
    assert again.returncode == 2, again.stdout + again.stderr


def test_a_run_that_cannot_begin_leaves_the_journal(project: Project) -> None:
    """The conversations of a killed run are kept until another run starts."""
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["y"]) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
    project.config(f"http://127.0.0.1:{free_port()}/")
    assert project.run().returncode == 2  # nobody listens there
    assert conversations_of(read_results(project.root / ".agentest" / "journal.jsonl"))


def test_comparisons_measure_a_journal_as_they_measure_the_run(tmp_path: Path) -> None:
    """The measurements in the lines, also of a resumed run, equal those of the conversations."""
    errored = conversation_result("c2", held=conversation("c2", failure=failure(Blame.MODEL, "no")))
    slow = conversation_result("c3", failures=[labelled_failure("c3-F1")])
    group = replace(error_group(occurrences=("c3-F1",)), fails=True)
    result = run_result(
        scenario_result("s", [conversation_result("c1"), errored]),
        replace(scenario_result("f", [slow]), errors=(group,)),
    )
    path = tell(events(result), tmp_path)
    scenarios = read_results(path).scenarios
    measured = [measure_scenario(each) for each in scenarios]
    assert measured == [
        measure_scenario(replace(each, conversations=tuple(each.conversations))) for each in scenarios
    ]
    assert [(each.passed, each.known, each.conversations) for each in measured] == [(1, 1, 2), (0, 1, 1)]
    begun = replace(next(events(result)), planned=(("s", "booking", 2),))  # type: ignore[type-var]
    first = tell(iter([begun, *list(events(result))[1:]]), tmp_path / "first")
    kept = read_finished(first).events(("s", "booking"), iter([1, 2]))
    assert lines(tell(iter([begun, *kept]), tmp_path / "again")) == lines(first)[:3]


def test_a_damaged_line_is_named_by_the_path(tmp_path: Path) -> None:
    path = tell(events(run_result(scenario_result("s", [conversation_result("c1")]))), tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"latency": [', b'"latency": [x'))
    with pytest.raises(UsageError, match="is damaged: a conversation cannot be read"):
        measure_scenario(read_results(path).scenarios[0])


def test_a_credential_that_only_a_conversation_shows_is_hidden_in_reasons(tmp_path: Path) -> None:
    """A stored run is read bit by bit, but what hides a value in one part hides it in all.

    As during the run, a console looks at the conversations that did not pass, and other reports at all.
    """
    said = turn(agent="Use api_key=Zq8Rk2Lm9Xw4Tv7Bn3 from now on.")
    held = conversation("c1", [said])
    result = scenario_result("s", [conversation_result("c1", held=held, trajectory=MISSED)])
    quoted = Reason(Status.FAILED, ReasonKind.CHECK, "the reply has Zq8Rk2Lm9Xw4Tv7Bn3")
    failing = replace(result, verdict=Verdict(Status.FAILED, (quoted,)))
    path = tell(events(run_result(failing)), tmp_path)
    report_again(path, tmp_path, [ReportRequest("console", tmp_path / "report.txt")])
    quoting = replace(failing, name="quotes", conversations=(conversation_result("c2"),))
    path = tell(events(run_result(quoting, result)), tmp_path / "apart")
    report_again(path, tmp_path, [ReportRequest("json", tmp_path / "report.json")])
    for report in ("report.txt", "report.json"):
        assert "Zq8Rk2" not in (tmp_path / report).read_text("utf-8")
    assert "Zq8Rk2" not in str(CredentialFilter()(read_results(path)).scenarios[1].conversations[0])
    report_again(path, tmp_path, [ReportRequest("console", tmp_path / "all.txt")], verbosity=2)


@pytest.mark.parametrize("content", [b"", b'{"type": "run", "schemaVersion": 3, "vers'])
def test_a_journal_without_a_whole_first_line(tmp_path: Path, content: bytes) -> None:
    """A run that was killed as it began has no conversation, and one sentence says so."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="line 1: is not whole, as the run ended before its first conv"):
        read_results(path)
