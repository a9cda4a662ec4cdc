"""Recording and replaying model responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.models.cassette import Cassettes, recorded_models, recorded_named_models
from agentest.models.port import AnswerSource, CallKey, Ledger, ModelAnswer, Question
from agentest.models.response_cache import FILE, CachedModel, ResponseCache
from agentest.models.structured_output import StructuredModel
from agentest.models.tape import (
    CassetteError,
    CassetteMode,
    RecordedModel,
    cassette_path,
    digest,
)
from agentest.support.dates import prompt_date
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.redaction import Redactor

SCOPE = "'books a slot' @ 'default'"
OTHER = "'books a slot' @ 'second'"


class Rating(BaseModel):
    """A rating."""

    value: int


class Remark(BaseModel):
    """Something else."""

    words: str


def question(
    text: str = "How was it?",
    conversation: int = 1,
    turn: int | None = 0,
    metric: str | None = "helpfulness",
    *,
    role: Any = "judge",
    scope: str = SCOPE,
    sample: int = 0,
    repair: int = 0,
    answer: type[BaseModel] = Rating,
) -> Question:
    key = CallKey(role, scope, conversation, turn, metric, sample)
    return Question([{"role": "user", "content": text}], answer, key, repair)


USED = ModelUsage(2, Usage(100, 7, 64), 1, 0.25)


@dataclass
class Live:
    """A model that returns prepared answers in order; every question costs the same."""

    ledger: Ledger
    prepared: Sequence[str | ModelAnswer | ModelError] = ()
    name: str = "openai/m"
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.5})
    asked: list[Question] = field(default_factory=list)

    async def answer(self, question: Question) -> ModelAnswer:
        await checkpoint()
        said = self.prepared[len(self.asked)] if self.prepared else f"answer {len(self.asked)}"
        self.asked.append(question)
        # As attempts and retries are counted: one by one.
        self.ledger.add(question.key, ModelUsage(1, Usage(50, 3, 32), 0, 0.125))
        self.ledger.add(question.key, ModelUsage(1, Usage(50, 4, 32), 1, 0.125))
        if isinstance(said, ModelError):
            raise said
        return said if isinstance(said, ModelAnswer) else ModelAnswer(said, model="m-2026-01-01")


def recorded(cassettes: Cassettes, ledger: Ledger, live: Live) -> RecordedModel:
    return RecordedModel(cassettes, ledger, live.name, live.parameters, live)


@dataclass
class Tape:
    """One folder of cassettes, and runs that use it."""

    folder: Path
    redact: Redactor = field(default_factory=Redactor)
    failures: list[CassetteError] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    live: Live = field(default_factory=lambda: Live(Ledger()))

    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Part → models that may be asked in its place."""

    def cassettes(self, mode: CassetteMode, models: Mapping[str, str] | None = None) -> Cassettes:
        return Cassettes(
            self.folder,
            mode,
            self.redact,
            names={SCOPE: "books a slot"},
            models=models,
            named=self.named,
            on_failure=self.failures.append,
        )

    def record(
        self,
        questions: Sequence[Question],
        *prepared: str | ModelAnswer | ModelError,
        name: str = "openai/m",
        models: Mapping[str, str] | None = None,
        finished: bool = True,
        closed: bool = True,
    ) -> list[ModelAnswer | str]:
        cassettes, ledger = self.cassettes(CassetteMode.RECORD, models), Ledger()
        self.ledger, self.live = ledger, Live(ledger, prepared, name)
        said = ask(recorded(cassettes, self.ledger, self.live), questions)
        if closed:
            cassettes.close(finished=finished)
        return said

    def replay(
        self,
        questions: Sequence[Question],
        *,
        name: str = "openai/m",
        parameters: Mapping[str, Any] | None = None,
    ) -> list[ModelAnswer | str]:
        cassettes, self.ledger = self.cassettes(CassetteMode.REPLAY), Ledger()
        replay = RecordedModel(cassettes, self.ledger, name, parameters or {"temperature": 0.5})
        try:
            return ask(replay, questions)
        finally:
            cassettes.close()

    def fill(
        self,
        questions: Sequence[Question],
        *prepared: str | ModelAnswer | ModelError,
        name: str = "openai/m",
        models: Mapping[str, str] | None = None,
        finished: bool = True,
    ) -> list[ModelAnswer | str]:
        cassettes, ledger = self.cassettes(CassetteMode.FILL, models), Ledger()
        self.ledger, self.live = ledger, Live(ledger, prepared, name)
        said = ask(recorded(cassettes, self.ledger, self.live), questions)
        cassettes.close(finished=finished)
        return said

    @property
    def path(self) -> Path:
        return cassette_path(self.folder, SCOPE)

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def edit(self, change: Callable[[list[bytes]], None]) -> None:
        lines = self.path.read_bytes().splitlines()
        change(lines)
        self.path.write_bytes(b"".join(line + b"\n" for line in lines))


def ask(answers: AnswerSource, questions: Sequence[Question]) -> list[ModelAnswer | str]:
    """Ask the questions one by one; if a question has no answer, return the error message instead."""

    async def all_of_them() -> list[ModelAnswer | str]:
        return [await one(answers, each) for each in questions]

    return anyio.run(all_of_them)


async def one(answers: AnswerSource, question: Question) -> ModelAnswer | str:
    try:
        return await answers.answer(question)
    except ModelUnavailable as error:
        return str(error)


def texts(said: Sequence[ModelAnswer | str]) -> list[str]:
    return [each.text if isinstance(each, ModelAnswer) else each for each in said]


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    return Tape(tmp_path / "cassettes")


# What is replayed


def test_a_replay_repeats_the_run(tape: Tape) -> None:
    """A replay returns the recorded answers, models, refusals and errors, with the same usage."""
    questions = [question(metric=metric) for metric in ("a", "b", "c")]
    prepared = [
        '{"value": 3}',
        ModelAnswer("", "I will not.", "m-2"),
        ModelUnavailable("model openai/m: 500"),
    ]
    said = tape.record(questions, *prepared)
    used = tape.ledger.of(SCOPE)
    assert tape.replay(questions) == said
    assert said == [
        ModelAnswer('{"value": 3}', "", "m-2026-01-01", USED),
        ModelAnswer("", "I will not.", "m-2", USED),
        "model openai/m: 500",
    ]
    assert tape.ledger.of(SCOPE) == used
    assert used["judge"].calls == 6


def test_an_unknown_price_stays_unknown(tape: Tape) -> None:
    """If the recording has no cost, the replay has none."""
    ledger, cassettes = Ledger(), tape.cassettes(CassetteMode.RECORD)

    class Unpriced(Live):
        async def answer(self, question: Question) -> ModelAnswer:
            self.ledger.add(question.key, ModelUsage(1, cost=None))
            return ModelAnswer("x")

    ask(recorded(cassettes, ledger, Unpriced(ledger)), [question()])
    cassettes.close()
    tape.replay([question()])
    assert tape.ledger.of(SCOPE)["judge"] == ModelUsage(1, cost=None)


KEYS = st.builds(
    question,
    text=st.just("the same"),
    conversation=st.integers(1, 3),
    turn=st.none() | st.integers(0, 2),
    metric=st.none() | st.sampled_from(["", "a", "b"]),
    role=st.sampled_from(["user", "judge", "dedup"]),
    scope=st.sampled_from([SCOPE, OTHER]),
    sample=st.integers(0, 2),
    repair=st.integers(0, 2),
)


@given(st.lists(KEYS, max_size=30))
def test_repeats_never_collapse(questions: list[Question]) -> None:
    """Identical questions get separate answers for each place, even when repeated."""
    with TemporaryDirectory() as folder:
        tape = Tape(Path(folder))
        said = tape.record(questions)
        assert texts(said) == [f"answer {n}" for n in range(len(questions))]
        assert tape.replay(questions) == said


@given(
    st.lists(KEYS, min_size=1, max_size=20, unique_by=lambda q: (q.key, q.repair)).flatmap(
        lambda questions: st.tuples(st.just(questions), st.permutations(questions))
    )
)
def test_the_order_of_arrival_does_not_matter(orders: tuple[list[Question], list[Question]]) -> None:
    """The same answers give the same bytes in any order and can be replayed in any order."""

    class Constant(Live):
        async def answer(self, question: Question) -> ModelAnswer:
            return ModelAnswer(f"{question.key} {question.repair}")

    written: list[dict[str, bytes]] = []
    for order in orders:
        with TemporaryDirectory() as folder:
            tape, ledger = Tape(Path(folder)), Ledger()
            cassettes = tape.cassettes(CassetteMode.RECORD)
            said = ask(recorded(cassettes, ledger, Constant(ledger)), order)
            cassettes.close()
            written.append({path.name: path.read_bytes() for path in tape.folder.iterdir()})
            assert tape.replay(order[::-1]) == said[::-1]
    assert written[0] == written[1]


def test_concurrent_questions(tape: Tape) -> None:
    """Each of many concurrent questions is recorded with its own usage, including errors."""
    questions = [question(f"{n}", conversation=n) for n in range(1, 21)]

    class Uneven(Live):
        async def answer(self, question: Question) -> ModelAnswer:
            number = question.key.conversation
            for _ in range(20 - number):
                self.ledger.add(question.key, ModelUsage(1))
                await checkpoint()
            if number % 3 == 0:
                raise ModelUnavailable(f"no {number}")
            return ModelAnswer(f"{number}")

    cassettes, ledger = tape.cassettes(CassetteMode.RECORD), Ledger()
    recorder = recorded(cassettes, ledger, Uneven(ledger))

    async def at_once() -> None:
        async with anyio.create_task_group() as tasks:
            for each in questions:
                tasks.start_soon(one, recorder, each)

    anyio.run(at_once)
    cassettes.close()
    answers = tape.lines[1:-1]
    assert [line["used"]["calls"] for line in answers] == [20 - n for n in range(1, 21)]
    assert [line["conversation"] for line in answers if "error" in line] == [3, 6, 9, 12, 15, 18]
    assert texts(tape.replay(questions)) == [f"no {n}" if n % 3 == 0 else f"{n}" for n in range(1, 21)]


# What the file is


def test_a_file_reads_as_the_conversations_went(tape: Tape) -> None:
    """A file has a header, then user messages and judgements by conversation and turn, then an end line."""
    tape.record(
        [
            question(role="dedup", conversation=0, turn=None, metric=None),
            question(conversation=1, turn=None, metric="goal_completion"),
            question(conversation=1, turn=0),
            question(conversation=1, turn=0, repair=1),
            question(conversation=2, role="user", metric=None),
            question(conversation=1, turn=1, role="user", metric=None),
            question(conversation=1, turn=0, role="user", metric=None),
        ],
        models={"user": "openai/unasked", "judge": "x"},
    )
    header, *answers, end = tape.lines
    assert header == {
        "cassette": 1,
        "scenario": SCOPE,
        "models": {"judge": "openai/m", "user": "openai/m"},
    }
    order = [(a["conversation"], a["turn"], a["role"], a["metric"], a["repair"]) for a in answers]
    assert order == [
        (1, 0, "user", None, 0),
        (1, 0, "judge", "helpfulness", 0),
        (1, 0, "judge", "helpfulness", 1),
        (1, 1, "user", None, 0),
        (1, None, "judge", "goal_completion", 0),
        (2, 0, "user", None, 0),
        (0, None, "dedup", None, 0),
    ]
    assert end == {"end": True, "answers": 7}
    assert answers[0]["model"] == "openai/m"
    assert answers[0]["answered_by"] == "m-2026-01-01"


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_every_text_survives(text: str) -> None:
    """Any text is replayed unchanged, even with line separators, control characters and lone surrogates."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    with TemporaryDirectory() as folder:
        tape = Tape(Path(folder))
        assert texts(tape.record([question(text)], text)) == [whole]
        assert texts(tape.replay([question(text)])) == [whole]
        assert len(tape.path.read_bytes().decode().split("\n")) == 4  # header, answer, end, nothing


def test_text_is_readable(tape: Tape) -> None:
    """Non-ASCII text is stored as is; only lone surrogates are escaped."""
    tape.record(
        [question()],
        "für 3 € 🙂\ud83d",
    )
    assert "für 3 € 🙂\\ud83d" in tape.path.read_text(encoding="utf-8")


@pytest.mark.parametrize("answer", [ModelAnswer("the key is sk-1"), ModelAnswer("", refusal="not with sk-1")])
def test_an_answer_with_a_secret_is_not_stored(tmp_path: Path, answer: ModelAnswer) -> None:
    path, told = tmp_path / FILE, list[str]()
    first = ResponseCache(path, lambda text: text.replace("sk-1", "***"), told.append)
    first.store("secret", answer)
    first.store("plain", ModelAnswer("sure"))
    first.close()
    second = ResponseCache(path, str, told.append)
    assert (second.find("secret"), second.find("plain") is None, told) == (None, False, [])
    second.close()


def test_no_secrets(tape: Tape) -> None:
    """Files contain no secrets, and the recording run gets the same redacted text as its replay."""
    tape.redact = Redactor(["hunter22"])
    said = tape.record(
        [question(metric="a"), question(metric="b")],
        'the word is "hunter22", sk-abcdefgh1234',
        ModelUnavailable("401: hunter22"),
    )
    assert texts(said)[0] == 'the word is "[redacted]", [redacted]'
    assert b"hunter22" not in tape.path.read_bytes()
    assert b"sk-abc" not in tape.path.read_bytes()
    tape.redact = Redactor()
    assert texts(tape.replay([question(metric="a"), question(metric="b")])) == [
        texts(said)[0],
        "401: [redacted]",
    ]


@given(st.text(), st.text())
def test_every_scope_has_a_file_of_its_own(one: str, other: str) -> None:
    """File names are short, safe and readable, and differ between scopes."""
    folder = Path("x")
    name = cassette_path(folder, one).name
    assert (name == cassette_path(folder, other).name) == (one == other)
    assert cassette_path(folder, one).parent == folder
    assert len(name.encode()) < 240


def test_a_file_is_named_after_its_scenario() -> None:
    """The file name of a scenario contains its name."""
    assert cassette_path(Path("x"), SCOPE).name.startswith("books-a-slot-default-")


# What is missing


def miss(tape: Tape, asked: Question, **options: Any) -> str:
    """Return the message of the error that ends the replay, which is also reported to the run."""
    with pytest.raises(CassetteError) as caught:
        tape.replay([asked], **options)
    assert tape.failures[-1] is caught.value
    return str(caught.value)


AGAIN = "Record it again: agentest run --record --scenario 'books a slot'"


def test_nothing_recorded(tape: Tape) -> None:
    """The error names the scenario and question, and the command to record them."""
    message = miss(tape, question(turn=2))
    assert message == (
        "scenario 'books a slot': nothing to replay for judge, conversation 1, turn 3, metric helpfulness: "
        f"nothing is recorded for it in {tape.path}. {AGAIN}"
    )


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (question(conversation=2), "judge, conversation 2, turn 1, metric helpfulness"),
        (question(turn=None), "judge, conversation 1, metric helpfulness"),
        (question(turn=1, role="user", metric=None), "user, conversation 1, turn 2"),
        (
            question(sample=1, repair=2),
            "judge, conversation 1, turn 1, metric helpfulness, sample 1, repair 2",
        ),
    ],
)
def test_a_question_that_was_not_recorded(tape: Tape, asked: Question, shown: str) -> None:
    """A question at a place without an answer is a miss that names the file."""
    tape.record([question()])
    message = miss(tape, asked)
    assert f"nothing to replay for {shown}: {tape.path} has no such answer" in message
    assert message.endswith(AGAIN)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (question("How was it really?"), {}),
        (question(answer=Remark), {}),
        (question(), {"parameters": {"temperature": 0.6}}),
        (question(), {"parameters": {"temperature": 0.5, "max_tokens": 9}}),
    ],
    ids=["prompt", "schema", "parameter", "more parameters"],
)
def test_a_question_that_has_changed(tape: Tape, asked: Question, options: dict[str, Any]) -> None:
    """A changed prompt, schema or parameter is a miss that names the scenario."""
    tape.record([question()])
    message = miss(tape, asked, **options)
    assert f"changed since {tape.path} was recorded" in message
    assert message.endswith(AGAIN)


def test_another_model(tape: Tape) -> None:
    """A question to another model is a miss that names both models."""
    tape.record([question()])
    message = miss(tape, question(), name="openai/n")
    assert "contains the answer of openai/m, and openai/n is asked" in message


def test_asked_once_more_than_recorded(tape: Tape) -> None:
    """Asking a question more often than recorded is a miss; the last answer is not repeated."""
    tape.record([question()])
    with pytest.raises(CassetteError, match="no such answer"):
        tape.replay([question(), question()])


def test_a_replay_writes_nothing(tape: Tape) -> None:
    """A replay does not change the folder, even on a miss."""
    tape.record([question()])
    before = {path: path.read_bytes() for path in tape.folder.iterdir()}
    tape.replay([question()])
    miss(tape, question(scope=OTHER))
    assert {path: path.read_bytes() for path in tape.folder.iterdir()} == before
    empty = Tape(tape.folder / "no such folder")
    miss(empty, question())
    assert not empty.folder.exists()


# What is damaged


def swap(line: int, old: bytes, new: bytes) -> Callable[[list[bytes]], None]:
    def change(lines: list[bytes]) -> None:
        assert old in lines[line]
        lines[line] = lines[line].replace(old, new)

    return change


DAMAGE: dict[str, tuple[Callable[[list[bytes]], None], int, str]] = {
    "another version": (
        swap(0, b'"cassette": 1', b'"cassette": 2'),
        1,
        "version 2, and this Agentest knows 1",
    ),
    "no header": (lambda lines: lines.pop(0), 1, "this is not a cassette"),
    "empty": (lambda lines: lines.clear(), 1, "not a line of JSON"),
    "another scenario": (swap(0, b"default", b"renamed"), 1, "the file was renamed"),
    "no models": (swap(0, b'"models"', b'"modals"'), 1, "lacks the scenario or the models"),
    "header's model": (swap(0, b"openai/m", b"openai/n"), 2, "of openai/m, the header says openai/n"),
    "edited text": (swap(2, b"answer 1", b"answer 7"), 3, "edited by hand"),
    "edited usage": (swap(2, b'"calls": 2', b'"calls": 1'), 3, "edited by hand"),
    "edited hash": (swap(2, b'"sum": "', b'"sum": "0'), 3, "edited by hand"),
    "another type": (swap(2, b'"calls": 2', b'"calls": "x"'), 3, "edited by hand"),
    "list": (lambda lines: lines.insert(2, b"[]"), 3, "expected a JSON object"),
    "bytes": (lambda lines: lines.insert(2, b'{"text": "\xff"}'), 3, "not a line of JSON"),
    "deep": (lambda lines: lines.insert(2, b"[" * 200_000), 3, "not a line of JSON"),
    "conflict": (lambda lines: lines.insert(2, b"<<<<<<< HEAD"), 3, "not a line of JSON"),
    "twice": (lambda lines: lines.insert(2, lines[1]), 3, "a second answer to judge, conversation 1"),
    "taken out": (lambda lines: lines.pop(2), 4, "counts 3 answers, the file contains 2"),
    "cut between lines": (
        lambda lines: lines.pop(),
        4,
        "ends after 3 answers without its end line: it was cut",
    ),
    "more": (lambda lines: lines.append(lines[1]), 6, "something follows the end line"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file(tape: Tape, damage: str) -> None:
    """A truncated, edited, outdated or duplicated line is reported with file, line and advice."""
    questions = [question(conversation=n) for n in (1, 2, 3)]
    tape.record(questions)
    change, line, what = DAMAGE[damage]
    tape.edit(change)
    message = miss(tape, questions[0])
    assert message.startswith(f"scenario 'books a slot': {tape.path}:{line}: ")
    assert what in message
    assert message.endswith(AGAIN)
    with pytest.raises(CassetteError):
        tape.fill(questions)
    with pytest.raises(CassetteError):
        tape.cassettes(CassetteMode.REPLAY).check([OTHER, SCOPE])


@given(st.integers(min_value=1), st.booleans())
def test_a_cut_anywhere_is_noticed(cut: int, ends: bool) -> None:
    """A file that lost more than its last newline is reported as damaged."""
    with TemporaryDirectory() as folder:
        tape = Tape(Path(folder))
        tape.record([question(), question(turn=1)])
        whole = tape.path.read_bytes().rstrip()
        kept = whole[: -1 - cut % len(whole)]
        tape.path.write_bytes(kept + b"\n" if ends else kept)
        with pytest.raises(CassetteError, match=r":[1-4]: "):
            tape.replay([question()])


def test_other_line_ends(tape: Tape) -> None:
    """Windows line endings, which git may introduce, change nothing."""
    tape.record([question()])
    tape.path.write_bytes(tape.path.read_bytes().replace(b"\n", b"\r\n"))
    assert texts(tape.replay([question()])) == ["answer 0"]


def test_a_damaged_file_can_be_recorded_again(tape: Tape) -> None:
    """Recording does not read the file that it replaces."""
    tape.record([question()])
    tape.path.write_bytes(b"\xff")
    tape.record([question()])
    assert texts(tape.replay([question()])) == ["answer 0"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """If the folder is not writable, recording fails at the first answer."""
    (tmp_path / "file").write_text("")
    tape = Tape(tmp_path / "file" / "cassettes")
    with pytest.raises(CassetteError, match=r"the recording cannot be written: .*file") as caught:
        tape.record([question()])
    assert tape.failures == [caught.value]


# Recording again, and filling gaps


def test_recording_again_replaces_whole_scenarios(tape: Tape) -> None:
    """Recording a scenario again discards its old answers; other scenarios stay unchanged."""
    tape.record([question(), question(turn=1), question(scope=OTHER)])
    other = cassette_path(tape.folder, OTHER).read_bytes()
    tape.record([question()], "new")
    assert [line["text"] for line in tape.lines[1:-1]] == ["new"]
    assert cassette_path(tape.folder, OTHER).read_bytes() == other


def test_replay_or_record_fills_gaps_only(tape: Tape) -> None:
    """Recorded answers are replayed; missing or changed ones are requested and stored."""
    tape.record([question(), question(turn=1), question(turn=2), question(scope=OTHER)])
    other = cassette_path(tape.folder, OTHER).read_bytes()
    questions = [question(), question("changed", turn=1), question(turn=2), question(turn=3)]
    assert texts(tape.fill(questions)) == ["answer 0", "answer 0", "answer 2", "answer 1"]
    assert tape.live.asked == [questions[1], questions[3]]
    filled = tape.ledger.of(SCOPE)
    assert texts(tape.replay(questions)) == ["answer 0", "answer 0", "answer 2", "answer 1"]
    assert tape.ledger.of(SCOPE) == filled
    assert cassette_path(tape.folder, OTHER).read_bytes() == other
    assert len(tape.lines) == 6


def test_replay_or_record_without_a_gap_writes_nothing(tape: Tape) -> None:
    """If nothing is missing, no model is called and no file is touched."""
    tape.record([question()])
    before = tape.path.stat()
    tape.fill([question()])
    assert tape.live.asked == []
    assert tape.path.stat().st_mtime_ns == before.st_mtime_ns
    assert not tape.partial.exists()


def test_replay_or_record_retries_a_recorded_error(tape: Tape) -> None:
    """A recorded outage of the model counts as a gap."""
    tape.record([question()], ModelUnavailable("down"))
    assert texts(tape.fill([question()], "up")) == ["up"]
    assert texts(tape.replay([question()])) == ["up"]


def test_replay_or_record_with_another_model(tape: Tape) -> None:
    """Answers of a new model replace those of the old; a file never mixes two models for one role."""
    tape.record([question(), question(turn=1), question(role="user", metric=None)])
    tape.fill([question()], "new", name="openai/n")
    assert tape.lines[0]["models"] == {"judge": "openai/n", "user": "openai/m"}
    assert [line["model"] for line in tape.lines[1:-1]] == ["openai/m", "openai/n"]
    assert texts(tape.replay([question()], name="openai/n")) == ["new"]


# Runs that did not finish


def test_an_interrupted_recording(tape: Tape) -> None:
    """It replaces nothing, a miss mentions it, and replay-or-record completes it."""
    tape.record([question()], "old")
    old = tape.path.read_bytes()
    tape.record([question(), question(turn=1)], "new", "more", finished=False)
    assert tape.path.read_bytes() == old
    assert texts(tape.replay([question()])) == ["old"]
    assert "an unfinished recording is next to it, which --replay-or-record completes" in miss(
        tape, question(turn=1)
    )
    assert texts(tape.fill([question(), question(turn=1)])) == ["new", "more"]
    assert tape.live.asked == []
    assert not tape.partial.exists()
    assert texts(tape.replay([question(), question(turn=1)])) == ["new", "more"]


@given(st.integers(min_value=0), st.booleans())
@pytest.mark.slow
def test_a_killed_recording_loses_nothing(cut: int, garbage: bool) -> None:
    """The next run uses all complete answers of a killed run and ignores a partial line."""
    with TemporaryDirectory() as folder:
        tape = Tape(Path(folder))
        questions = [question(turn=n) for n in range(3)]
        tape.record(questions, "a", "b", "c", closed=False)
        whole = tape.partial.read_bytes()
        whole_lines = whole.split(b"\n")[1:]
        kept = whole[: cut % (len(whole) + 1)]
        tape.partial.write_bytes(kept + b"\0\xff" * garbage)
        said = texts(tape.fill(questions, "A", "B", "C"))
        asked = [each.key.turn for each in tape.live.asked]
        kept_lines = kept.split(b"\n")[:-1] if garbage else kept.split(b"\n")
        assert asked == list(range(len([line for line in kept_lines if line in whole_lines]), 3))
        assert texts(tape.replay(questions)) == said


def test_filling_that_is_killed(tape: Tape) -> None:
    """Gaps filled by a killed run stay filled."""
    tape.record([question()])
    cassettes, ledger = tape.cassettes(CassetteMode.FILL), Ledger()
    live = Live(ledger, ["b"])
    ask(recorded(cassettes, ledger, live), [question(), question(turn=1)])
    assert texts(tape.fill([question(), question(turn=1)])) == ["answer 0", "b"]
    assert tape.live.asked == []


def test_recording_starts_anew(tape: Tape) -> None:
    """A new recording ignores an unfinished one."""
    tape.record([question(turn=1)], "old", closed=False)
    tape.record([question()], "new")
    assert [line["text"] for line in tape.lines[1:-1]] == ["new"]
    assert not tape.partial.exists()


def test_filling_that_is_interrupted(tape: Tape) -> None:
    """An interrupted replay-or-record keeps the old answers and the new ones."""
    tape.record([question(), question(turn=1)])
    tape.fill([question(turn=2)], "third", finished=False)
    assert texts(tape.replay([question(turn=n) for n in range(3)])) == ["answer 0", "answer 1", "third"]


# Which models were recorded


def test_the_recorded_models(tape: Tape) -> None:
    """A replay reads model names from the cassettes, including models that were never called."""
    tape.record([question(role="user", metric=None), question(scope=OTHER)], models={"judge": "openai/m"})
    assert recorded_models(tape.folder) == {"user": "openai/m", "judge": "openai/m"}


def test_grouping_failures_is_part_of_the_judge(tape: Tape) -> None:
    """Failures are grouped by the judge's model, under the same role."""
    tape.record([question(role="dedup", conversation=0, turn=None, metric=None)])
    assert recorded_models(tape.folder) == {"judge": "openai/m"}


def test_models_that_disagree(tape: Tape) -> None:
    """Cassettes with different models are an error, unless the selected ones agree."""
    tape.record([question()])
    tape.record([question(scope=OTHER)], name="openai/n")
    with pytest.raises(
        CassetteError, match=r"disagree on the judge model: openai/. in .*, openai/. in .*jsonl"
    ):
        recorded_models(tape.folder)
    assert recorded_models(tape.folder, [OTHER, "never recorded"]) == {"judge": "openai/n"}


def test_models_named_in_files(tape: Tape) -> None:
    """Answers of a model named in a file are stored next to those of the role's model, and replayed.

    Answers of any other model are dropped when a recording is completed, because nothing could replay them.
    """
    judge, named, old = question(metric="a"), question(metric="b"), question(metric="c")
    tape.record([old], name="openai/old")
    tape.named = {"judge": ["openai/n", "openai/never-asked"]}
    tape.fill([named], name="openai/n", models={"judge": "openai/m"})
    tape.fill([judge])
    assert texts(tape.replay([judge])) == texts(tape.replay([named], name="openai/n")) == ["answer 0"]
    assert recorded_models(tape.folder) == {"judge": "openai/m"}
    assert recorded_named_models(tape.folder) == {"openai/n"}
    with pytest.raises(CassetteError):
        tape.replay([old], name="openai/old")


def test_a_judge_named_like_the_users_model(tape: Tape) -> None:
    """If a file names the user's model as a judge, each role keeps its own answers."""
    models, tape.named = {"user": "openai/n", "judge": "openai/m"}, {"judge": ["openai/n"]}
    tape.record([question(metric="a")], name="openai/n", models=models)
    tape.fill([question(metric="b")], models=models)
    assert recorded_models(tape.folder) == models
    assert texts(tape.replay([question(metric="a")], name="openai/n")) == ["answer 0"]


def test_no_recorded_models(tape: Tape) -> None:
    """A missing folder, or one without cassettes, is an error that says how to record."""
    with pytest.raises(CassetteError, match=r"nothing is recorded in .*agentest run --record"):
        recorded_models(tape.folder)


def test_models_in_a_broken_header(tape: Tape) -> None:
    """The error about a broken header names the file."""
    tape.record([question()])
    tape.edit(swap(0, b'"cassette": 1', b'"cassette": "one"'))
    with pytest.raises(CassetteError, match=r"jsonl:1: this is a cassette of version 'one'"):
        recorded_models(tape.folder)


def test_a_forged_checksum_does_not_help(tape: Tape) -> None:
    """A line with a valid checksum and invalid fields is an error that names the field."""
    tape.record([question()])
    line = tape.lines[1]
    del line["sum"]
    for change, what in (
        ({"turn": "soon"}, "`turn`"),
        ({"text": 3}, "no text"),
        ({"used": {"calls": None}}, "`calls`"),
    ):
        forged = {**line, **change}
        text = json.dumps({**forged, "sum": digest(forged, 8)}).encode()
        tape.edit(lambda lines, text=text: lines.__setitem__(1, text))  # type: ignore[misc]
        assert what in miss(tape, question())


def test_a_model_with_a_strange_name(tape: Tape) -> None:
    """A model name with a lone surrogate does not break a recording."""
    said = tape.record([question()], ModelAnswer("x", model="m\ud83d"))
    assert tape.replay([question()]) == said == [ModelAnswer("x", "", "m?", USED)]


def test_a_call_that_the_budget_refuses_leaves_nothing_behind(tape: Tape) -> None:
    """The next question with the same key measures its own usage alone."""
    ledger = Ledger()
    refusing = Live(ledger, [ModelError("the budget is spent"), ModelAnswer("x")])
    model = recorded(tape.cassettes(CassetteMode.RECORD), ledger, refusing)
    with pytest.raises(ModelError, match="spent"):
        anyio.run(model.answer, question())
    assert anyio.run(model.answer, question()).used == USED
    assert ledger.taken(question().key) == ModelUsage()


def test_a_question_with_another_conversation_before_it(tape: Tape) -> None:
    """The hash covers all messages, not only the last."""
    tape.record([question()])
    asked = question()
    longer = replace(asked, messages=[{"role": "system", "content": "You judge."}, *asked.messages])
    assert "changed since" in miss(tape, longer)


MESSAGES = st.lists(
    st.builds(
        lambda role, text: {"role": role, "content": text},
        st.sampled_from(["system", "user", "assistant"]),
        st.text(max_size=3),
    ),
    max_size=3,
)
KEY_PARTS: dict[str, st.SearchStrategy[Any]] = {
    "messages": MESSAGES,
    "answer": st.sampled_from([Rating, Remark]),
    "key": KEYS.map(lambda question: question.key),
    "repair": st.integers(0, 1),
}


@given(one=st.fixed_dictionaries(KEY_PARTS), data=st.data())
@settings(deadline=None)
def test_every_part_of_a_question_is_part_of_its_key(one: dict[str, Any], data: st.DataObject) -> None:
    """The response cache answers no other question; a cassette's hash covers what its place does not say."""
    assert {each.name for each in fields(Question)} == {*KEY_PARTS, "timeless"}
    name = data.draw(st.sampled_from(sorted(KEY_PARTS)))
    other = {**one, name: data.draw(KEY_PARTS[name])}
    questions = Question(**one), Question(**other)
    cache = CachedModel(ResponseCache(Path("/dev/null/x"), str, str), Ledger(), Live(Ledger(), []), {})
    first, second = map(cache._digest, questions)
    assert (first == second) == (one == other)
    with TemporaryDirectory() as folder:
        tape = Cassettes(Path(folder), CassetteMode.RECORD, Redactor())
        asked = [tape.recorded_request(each, "m", {"seed": 1}) for each in questions]
        assert (asked[0].hash == asked[1].hash) == (one == other or name in ("key", "repair"))
        models = [tape.recorded_request(questions[0], *model) for model in (("n", {"seed": 1}), ("m", {}))]
    assert len({asked[0].hash, *(each.hash for each in models)}) == 3


WRITTEN = st.lists(
    st.sampled_from(
        ["Sunday, 2026-11-29, 20:57", "Sunday, 2026-11-29, 20:58", "(a moment)", "@", "Hi", "17"]
    ),
    max_size=3,
).map(" ".join)


@given(first=st.tuples(WRITTEN, WRITTEN), second=st.tuples(WRITTEN, WRITTEN))
@settings(deadline=None)
def test_only_the_time_that_the_run_inserts_is_ignored(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    """Any other change, even of a time that the agent wrote, asks another question, of cassette and cache."""
    with TemporaryDirectory() as folder:
        cassettes = Cassettes(Path(folder), CassetteMode.RECORD, Redactor())
        cache = ResponseCache(Path(folder) / "answers", str, print)
        hashes = []
        moments = {
            "2026-11-29T20:57": "Sunday, 2026-11-29, 20:57",
            "2027-01-02T23:59": "Saturday, 2027-01-02, 23:59",
        }
        for (moment, shown), (user, agent) in zip(moments.items(), (first, second), strict=True):
            live = Live(Ledger(), ['{"value": 4}'])
            text = f"It is now {prompt_date(None, moment)}. User: {user!r}. Agent: {agent!r}."
            messages = [{"role": "user", "content": text}]
            anyio.run(StructuredModel(live).ask, messages, Rating, CallKey("judge", SCOPE))
            (asked,) = live.asked
            assert asked.messages[0]["content"].startswith(f"It is now {shown}. User")
            recorded = cassettes.recorded_request(asked, "m", {}).hash
            hashes.append((recorded, CachedModel(cache, live.ledger, live, {})._digest(asked)))
        cache.close()
        assert [one == other for one, other in zip(*hashes, strict=True)] == [first == second] * 2
