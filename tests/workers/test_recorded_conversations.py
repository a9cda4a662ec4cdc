"""Recordings by several workers: the files are those of one process."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.models.cassette import Cassettes
from agentest.models.port import AnswerSource, CallKey, Ledger, ModelAnswer, Question
from agentest.models.tape import CassetteError, CassetteMode, RecordedModel, Tape
from agentest.support.errors import ModelUnavailable
from agentest.support.redaction import Redactor
from agentest.workers.channel import deliver, packed
from agentest.workers.forwarding import COLLECTORS, PageTape, RunCollectors, SendingLedger

SCOPE = "'books a slot' @ 'default'"
SECRET = "hunter2-hunter2"
NAME = "books a slot"


class Remark(BaseModel):
    """The next message."""

    words: str


@dataclass
class Live:
    """A model whose answer depends only on the question, and which records its questions."""

    ledger: Ledger
    name: str = "openai/m"
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.5})
    asked: list[CallKey] = field(default_factory=list)

    async def answer(self, question: Question) -> ModelAnswer:
        await anyio.lowlevel.checkpoint()
        self.asked.append(question.key)
        self.ledger.add(question.key, ModelUsage(1, Usage(10, len(question.messages)), 0, 0.25))
        said = question.messages[-1]["content"]
        if said.endswith("?"):
            raise ModelUnavailable(f"no idea: {said}")
        return ModelAnswer(f"{said}, says \ud800 with {SECRET}", model="m-1")


@dataclass
class Run:
    """A run with its files in one folder, a process that writes them, and workers."""

    folder: Path
    mode: CassetteMode
    failures: list[CassetteError] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.cassettes = Cassettes(
            self.folder,
            self.mode,
            Redactor([SECRET]),
            names={SCOPE: NAME},
            models={"user": "openai/m", "judge": "openai/m"},
            on_failure=self.failures.append,
        )
        self.desk = RunCollectors(self.ledger, self.cassettes)
        self.live = Live(self.ledger)

    def worker(self) -> Worker:
        return Worker(self)

    def answers(self, tape: Tape | None = None, ledger: Ledger | None = None) -> AnswerSource:
        tape, ledger = tape or self.cassettes, ledger or self.ledger
        live = Live(ledger, asked=self.live.asked)
        answers = None if self.mode is CassetteMode.REPLAY else live
        return RecordedModel(tape, ledger, live.name, live.parameters, answers)

    @property
    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.glob("*.jsonl*")}


class Worker:
    """The recording part of a worker; its messages are packed as for a real one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._alive = True
        self.failures: list[CassetteError] = []
        self.tape = PageTape(
            run.mode,
            Redactor([SECRET]),
            self._send,
            {SCOPE: NAME},
            self.failures.append,
        )
        self._ledger = SendingLedger(self._send, lambda: None, exact=True)
        self.answers = run.answers(self.tape, self._ledger)

    def _send(self, message: object) -> None:
        if self._alive:
            deliver(pickle.loads(packed(message)), {COLLECTORS: self._run.desk})

    def begin(self, number: int) -> None:
        page = pickle.loads(packed(self._run.desk.page(SCOPE, number)))
        self.tape.begin(SCOPE, number, page)

    def end(self, number: int) -> None:
        self.tape.end(SCOPE, number)
        self._run.desk.done(SCOPE, number)

    def die(self, *numbers: int) -> None:
        """Lose these conversations."""
        self._alive = False
        for number in numbers:
            self._run.desk.forget(SCOPE, number)


def questions(number: int, *said: str) -> list[Question]:
    """A user's and a judge's questions, one of them repeated."""
    of_user = [
        Question([{"role": "user", "content": each}], Remark, CallKey("user", SCOPE, number, turn))
        for turn, each in enumerate(said)
    ]
    judged = Question([{"role": "user", "content": "Good"}], Remark, CallKey("judge", SCOPE, number, 0, "m"))
    return [*of_user, judged, judged]


def asked(answers: AnswerSource, every: Sequence[Question]) -> list[str]:
    """Return the answer or error of each question."""

    async def go() -> list[str]:
        found = []
        for each in every:
            try:
                found.append((await answers.answer(each)).text)
            except ModelUnavailable as error:
                found.append(str(error))
            except CassetteError as error:
                found.append(str(error))
        return found

    return anyio.run(go)


DEDUP = Question([{"role": "user", "content": "Sort"}], Remark, CallKey("dedup", SCOPE))
CONVERSATIONS = {1: ["Hi", "And?", "Bye"], 2: ["Hello"], 3: ["Hi", "Bye"]}


def in_one_process(
    folder: Path, mode: CassetteMode, said: Mapping[int, Sequence[str]] = CONVERSATIONS
) -> Run:
    run = Run(folder, mode)
    answers = run.answers()
    for number, texts in said.items():
        asked(answers, questions(number, *texts))
    asked(answers, [DEDUP])
    run.cassettes.close()
    return run


def in_workers(folder: Path, mode: CassetteMode, said: Mapping[int, Sequence[str]] = CONVERSATIONS) -> Run:
    """Alternate the conversations' questions between two workers."""
    run = Run(folder, mode)
    workers = [run.worker(), run.worker()]
    open_ = {number: (workers[number % 2], questions(number, *texts)) for number, texts in said.items()}
    for number, (worker, _) in open_.items():
        worker.begin(number)
    while any(left for _, left in open_.values()):
        for worker, left in open_.values():
            if left:
                asked(worker.answers, [left.pop(0)])
    for number, (worker, _) in open_.items():
        worker.end(number)
    asked(run.answers(), [DEDUP])
    run.cassettes.close()
    return run


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.integers(1, 6), st.lists(st.sampled_from(["Hi", "Why?", "é\ud800"]), max_size=3)))
def test_the_files_are_those_of_one_process(said: dict[int, list[str]]) -> None:
    """Recorded, replayed or filled by workers, cassettes and usage equal those of one process."""
    with TemporaryDirectory() as one, TemporaryDirectory() as more:
        for mode in (CassetteMode.RECORD, CassetteMode.REPLAY, CassetteMode.FILL):
            if mode is CassetteMode.FILL:
                said = {**said, 7: ["Oh"], 1: [*said.get(1, []), "More"]}
            alone = in_one_process(Path(one), mode, said)
            together = in_workers(Path(more), mode, said)
            assert together.files == alone.files
            assert together.ledger.of(SCOPE) == alone.ledger.of(SCOPE)
            assert sorted(map(repr, together.live.asked)) == sorted(map(repr, alone.live.asked))
            assert not alone.failures
            assert not together.failures
            assert SECRET.encode() not in b"".join(together.files.values())


@pytest.mark.parametrize("mode", [CassetteMode.RECORD, CassetteMode.REPLAY, CassetteMode.FILL])
@pytest.mark.parametrize("before", range(5))
def test_a_worker_that_dies(tmp_path: Path, mode: CassetteMode, before: int) -> None:
    """Its conversation runs again, and cassette and results show no trace of it."""
    one, more = tmp_path / "one", tmp_path / "more"
    if mode is not CassetteMode.RECORD:
        part = {1: CONVERSATIONS[1] if mode is CassetteMode.REPLAY else ["Hi"], 2: ["Hello"]}
        for folder in (one, more):
            in_one_process(folder, CassetteMode.RECORD, part)
    every = questions(1, *CONVERSATIONS[1])
    alone = Run(one, mode)
    wanted = asked(alone.answers(), every)
    alone.cassettes.close()

    run = Run(more, mode)
    lost = run.worker()
    lost.begin(1)
    # It went another way: what it asked differs from what is asked when it is held again.
    asked(
        lost.answers,
        [*every[:before], *(questions(1, "Other")[:1] if mode is not CassetteMode.REPLAY else [])],
    )
    lost.die(1)
    asked(lost.answers, every[before:])  # nothing of it arrives
    again = run.worker()
    again.begin(1)
    assert asked(again.answers, every) == wanted
    again.end(1)
    run.cassettes.close()
    assert run.files == alone.files
    if mode is CassetteMode.REPLAY:
        assert run.ledger.of(SCOPE) == alone.ledger.of(SCOPE)


def test_a_worker_repeats_a_conversation(tmp_path: Path) -> None:
    """Numbers of repeated questions restart, even if the same worker repeats the conversation."""
    run = Run(tmp_path, CassetteMode.RECORD)
    worker = run.worker()
    for _ in range(2):
        worker.begin(1)
        asked(worker.answers, questions(1, "Hi"))
        worker.tape.end(SCOPE, 1)
        run.desk.forget(SCOPE, 1)
    worker.begin(1)
    asked(worker.answers, questions(1, "Hi"))
    worker.end(1)
    run.cassettes.close()
    alone = Run(tmp_path / "alone", CassetteMode.RECORD)
    asked(alone.answers(), questions(1, "Hi"))
    alone.cassettes.close()
    assert run.files == alone.files


@pytest.mark.parametrize(
    ("recorded", "finished", "said"),
    [
        ({}, True, "Hi"),
        ({2: ["Hello"]}, True, "Hi"),
        ({1: ["Hi"]}, True, "Hey"),
        ({2: ["Hello"]}, False, "Hi"),
    ],
)
def test_a_miss_has_the_same_message(
    tmp_path: Path, recorded: dict[int, list[str]], finished: bool, said: str
) -> None:
    """A worker's message equals that of a single process, and the run gets it once."""
    if recorded:
        in_one_process(tmp_path, CassetteMode.RECORD, recorded)
    if not finished:
        partial = next(tmp_path.glob("*.jsonl"))
        partial.with_name(partial.name + ".partial").touch()
    question = questions(1, said)[:1]
    alone = Run(tmp_path, CassetteMode.REPLAY)
    wanted = asked(alone.answers(), question)
    worker = Run(tmp_path, CassetteMode.REPLAY).worker()
    worker.begin(1)
    assert asked(worker.answers, question) == wanted
    assert "nothing to replay for user, conversation 1, turn 1" in wanted[0]
    assert ("an unfinished recording is next to it" in wanted[0]) is not finished
    assert list(map(str, worker.failures)) == wanted


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """The run gets the message of a single process; the worker continues."""
    folder = tmp_path / "file"
    folder.touch()
    alone = Run(folder, CassetteMode.RECORD)
    asked(alone.answers(), questions(1, "Hi")[:1])
    run = Run(folder, CassetteMode.RECORD)
    worker = run.worker()
    worker.begin(1)
    assert asked(worker.answers, questions(1, "Hi")[:1]) == ["Hi, says \ud800 with [redacted]"]
    assert list(map(str, run.failures)) == list(map(str, alone.failures))
    assert "the recording cannot be written" in str(run.failures[0])


def test_a_conversation_needs_its_own_answers_only(tmp_path: Path) -> None:
    """It gets only its own answers, which are dropped when it ends."""
    in_one_process(tmp_path, CassetteMode.RECORD)
    run = Run(tmp_path, CassetteMode.REPLAY)
    page = run.cassettes.page(SCOPE, 2)
    assert {entry.request.key.conversation for entry in page.recorded} == {2}
    assert len(page.recorded) == 3
    run.desk.done(SCOPE, 2)
    assert run.cassettes.page(SCOPE, 2).recorded == ()
    assert run.cassettes.page(SCOPE, 3).recorded
    assert run.cassettes.page(SCOPE, 2).has_answers
