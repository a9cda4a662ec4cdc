"""People against the judge: what counts as agreement, whose word counts, and what a run may show of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from agentest.config.models import Batch
from agentest.domain.metrics import CRITERIA
from agentest.domain.results import (
    JudgeCalibration,
    Unscored,
)
from agentest.domain.transcript import Turn
from agentest.judging.judge import Judge
from agentest.judging.judge_input import JudgeBackground
from agentest.judging.questions import fingerprint
from agentest.models.port import Answer as Shape
from agentest.models.port import CallKey, Message
from agentest.plugins.page.labels.agreement import (
    Figures,
    JudgeAnswer,
    JudgeOutcome,
    consensus_of,
    differences,
    figures_of,
    labelled_metrics,
    pairs_of,
)
from agentest.plugins.page.labels.judge_answers import answers_to, judge_requests
from agentest.plugins.page.labels.labels import (
    Label,
    LabelledConversation,
    LabelQuestion,
    LabelSet,
    Value,
)
from agentest.runner.judge_models import CalibrationLine, known_calibrations, write_calibrations


def asked(n: int, metric: str = "faithfulness") -> LabelQuestion:
    return LabelQuestion(conversation=f"c{n}", turn=0, metric=metric)


def labels(*given: tuple[int, str, Value]) -> LabelSet:
    """Labels of conversation, person and value."""
    return LabelSet({}, [Label(question=asked(n), value=value, by=by) for n, by, value in given])


def test_figures_of_a_metric() -> None:
    """Faults are compared: misses and false alarms are separate; unscored questions are no agreement."""
    people = labels(*((n, "ann", value) for n, value in enumerate([5, 4, 5, 1, 2, 3, 5])))
    said: dict[LabelQuestion, JudgeOutcome] = {
        asked(n): JudgeAnswer(value, "why") for n, value in enumerate([5, 5, 2, 1, 5, 4])
    }
    said[asked(6)] = Unscored("model is down")
    consensus = consensus_of(people)
    found = figures_of("faithfulness", people, consensus, said)
    assert (found.n, found.unscored, found.undecided) == (6, 1, 0)
    assert (found.agreement.times, found.agreement.of) == (3, 6)
    assert (found.false_alarms.times, found.false_alarms.of) == (1, 3)
    assert (found.misses.times, found.misses.of) == (2, 3)
    assert (found.exact.times, found.within_one and found.within_one.times) == (2, 4)
    assert found.kappa == 0
    assert found.confusion["2", "5"] == 1
    order = [pair.question.conversation for pair in differences(pairs_of(consensus, said))]
    assert order == ["c4", "c5", "c2", "c1"]  # misses, the farthest first, then the false alarm


def test_no_interval_is_a_point() -> None:
    """A judge that always agreed may err the next time, the more so the fewer conversations there were."""

    def found(conversations: int) -> Figures:
        questions = [
            LabelQuestion(
                conversation=f"c{n % conversations}", turn=n // conversations, metric="faithfulness"
            )
            for n in range(20)
        ]
        given = [
            Label(question=question, value=1 if n % 4 else 5, by="ann")
            for n, question in enumerate(questions)
        ]
        said: dict[LabelQuestion, JudgeOutcome] = {
            each.question: JudgeAnswer(each.value, "why") for each in given
        }
        people = LabelSet({}, given)
        return figures_of("faithfulness", people, consensus_of(people), said)

    many, few = found(20), found(4)
    for share in (many.agreement, many.false_alarms, many.misses, many.exact, many.within_one):
        assert share is not None
        assert share.interval is not None
        assert share.interval.high - share.interval.low > 0.1
    assert many.kappa_interval is not None
    assert few.kappa_interval is not None
    assert few.kappa_interval.low < many.kappa_interval.low < many.kappa_interval.high == many.kappa == 1


def test_metrics_with_labels_are_told_of() -> None:
    """A metric about which people are divided everywhere is there with that: it is not left out."""
    people = labels((0, "ann", 5), (0, "bob", 1))
    assert labelled_metrics(people, ["relevance", "faithfulness"]) == ["faithfulness"]
    assert labelled_metrics(people, ["relevance"]) == []
    found = figures_of("faithfulness", people, consensus_of(people), {})
    assert (found.n, found.undecided) == (0, 1)


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([4], 4),
        ([5, 4, 1], 4),
        ([1, 2, 5], 1),
        ([2, 5], None),
        ([3, 3, 4, 4], None),
        ([("no failure",), ("repetition",), ("repetition",)], ("repetition",)),
        ([("repetition",), ("other",), ("repetition",)], ("repetition",)),
        (["met", "cannot tell", "met"], "met"),
        (["violated", "met"], None),
    ],
)
def test_the_majority_counts(values: Sequence[Value], counts: Value | None) -> None:
    """The majority decides between fault and none, then among those; a tie is undecided."""
    given = labels(*((1, f"p{n}", value) for n, value in enumerate(values)))
    consensus = consensus_of(given)
    assert consensus.values.get(asked(1)) == counts
    assert consensus.undecided == ([] if counts is not None else [asked(1)])


def test_people_are_compared_with_each_other() -> None:
    """Kappa of two people over the questions that both have answered."""
    ann = [(n, "ann", 5 if n % 2 else 1) for n in range(6)]
    given = labels(*ann, *((n, "bob", 4 if value == 5 else 2) for n, _, value in ann))
    found = figures_of("faithfulness", given, consensus_of(given), {})
    assert found.between_people == (1.0, 6)


class Recording:
    """A judge that records its questions and never answers."""

    name = "m"

    def __init__(self) -> None:
        self.keys: list[CallKey] = []
        self.messages: list[str] = []

    async def ask(self, messages: Sequence[Message], answer: type[Shape], key: CallKey) -> Shape:
        self.keys.append(key)
        self.messages.append("\n".join(message["content"] for message in messages))
        raise RuntimeError("no answer")


TALK = LabelledConversation(
    id="c1",
    background=JudgeBackground(goal="The goal.", expected_outcome="Refused."),
    turns=(Turn(0, "one", "first"), Turn(1, "two", "second")),
    criteria=("Is kind",),
)


@pytest.mark.parametrize(("batch", "calls"), [(Batch.OFF, 2), (Batch.TURN, 2), (Batch.CONVERSATION, 1)])
def test_judge_calls_are_those_of_a_run(batch: Batch, calls: int) -> None:
    """In every mode a call about labeled questions equals that of a run, without later turns."""
    questions = [
        LabelQuestion(conversation="c1", turn=0, metric="faithfulness"),
        LabelQuestion(conversation="c1", turn=None, metric=CRITERIA, criterion="Is kind"),
    ]
    model, talks = Recording(), {"c1": TALK}
    assert len(list(judge_requests(questions, talks, batch, ["faithfulness", "relevance"]))) == calls
    found = anyio.run(answers_to, questions, talks, Judge(model, 1, batch), ["faithfulness", "relevance"])
    assert list(found) == questions
    assert all(isinstance(answer, Unscored) for answer in found.values())
    assert len(model.keys) == calls
    of_turn = next(text for text in model.messages if "agree with the known facts" in text)
    assert "Refused." in of_turn
    assert ("second" in of_turn) is (batch is Batch.CONVERSATION)
    assert ("[relevance" in of_turn) is (batch is not Batch.OFF)


def kept(folder: Path, **keys: str) -> Path:
    path = folder / "agentest.calibration.json"
    line = {"metric": "faithfulness", "prompts": fingerprint("faithfulness", Batch.OFF), **keys}
    known = JudgeCalibration(model="m", n=131, agreement=0.9, kappa=0.71234567, low=0.6, high=0.8)
    write_calibrations(path, [CalibrationLine(calibration=known, **line)])
    return path


def test_a_calibration_is_valid_for_its_judge_and_prompt(tmp_path: Path) -> None:
    """It is ignored for another model; a changed prompt gives one note; other lines stay in the file."""
    path = kept(tmp_path)
    known, notes = known_calibrations(path, "m", ["faithfulness", "relevance"], Batch.OFF)
    assert known["faithfulness"].shown == "judge κ 0.71 [0.60, 0.80], n 131"
    assert not notes
    assert known_calibrations(path, "other", ["faithfulness"], Batch.OFF) == ({}, ())
    found, (note,) = known_calibrations(path, "m", ["faithfulness"], Batch.TURN)
    assert not found
    assert "calibrated with other prompts" in note
    kept(tmp_path, metric="relevance")
    assert [line["metric"] for line in json.loads(path.read_text())["calibrations"]] == [
        "faithfulness",
        "relevance",
    ]


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (None, None)])
def test_an_interval_of_zero_width_is_not_shown(low: float | None, high: float | None) -> None:
    """Older versions wrote them if nothing varied."""
    known = JudgeCalibration(model="m", n=5, agreement=1.0, kappa=1.0, low=low, high=high)
    assert known.shown == "judge κ 1.00, n 5"


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"version": 2}', '{"version": 1, "calibrations": [{}]}', '{"version":1,"calibrations":[3]}'],
)
def test_a_damaged_calibration_is_a_warning(tmp_path: Path, content: str) -> None:
    """A foreign file is ignored, and the warning says what to do."""
    path = tmp_path / "agentest.calibration.json"
    path.write_text(content)
    known, (note,) = known_calibrations(path, "m", ["faithfulness"], Batch.OFF)
    assert not known
    assert "agentest.calibration.json is not used" in note
    assert "agentest calibrate LABELS --write" in note


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kappa", "NaN"),
        ("kappa", "17"),
        ("high", "1e400"),
        ("low", "-Infinity"),
        ("agreement", "2"),
        ("n", "-5"),
        ("low", "0.9"),
    ],
)
def test_impossible_figures_are_not_shown(tmp_path: Path, key: str, value: str) -> None:
    """A calibration with a figure out of range is ignored, because it would look measured."""
    path = kept(tmp_path)
    document = json.loads(path.read_text())
    document["calibrations"][0][key] = "here"
    path.write_text(json.dumps(document).replace('"here"', value))
    known, (note,) = known_calibrations(path, "m", ["faithfulness"], Batch.OFF)
    assert not known
    assert "agentest.calibration.json is not used" in note
