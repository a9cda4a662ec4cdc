"""Labeling over HTTP: blind until an answer is saved, with the same file as `agentest label`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import builders
import httpx
import page_at
import pytest
from project import DEADLINE_S

from agentest.domain.results import CriterionOutcome, CriterionResult, GoalOutcome, Score, Unscored
from agentest.plugins.page.labels.labelling_session import NOT_ASKED, judged
from agentest.plugins.page.labels.labels import Label, LabelQuestion, LabelsFile, read_labels

SECRET = "The judge thinks so"


@dataclass(frozen=True, slots=True)
class Client:
    """Sends requests as the page does."""

    root: Path
    address: str
    token: str

    def get(self, path: str, **query: Any) -> httpx.Response:
        address = f"{self.address}{path}?{urlencode(query)}"
        return httpx.get(address, headers=self.headers, timeout=DEADLINE_S)

    def post(self, **body: Any) -> httpx.Response:
        address = f"{self.address}/api/labels"
        return httpx.post(address, json=body, headers=self.headers, timeout=DEADLINE_S)

    def undo(self, **body: Any) -> httpx.Response:
        address = f"{self.address}/api/labels"
        return httpx.request("DELETE", address, json=body, headers=self.headers, timeout=DEADLINE_S)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def questions(self, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/labels", **query).json()["questions"]
        return found


def judged_run() -> Any:
    """A conversation of two turns with many judgements; the second turn is bad."""
    metrics = {
        "helpfulness": Score(5, SECRET),
        "faithfulness": Unscored(f"{SECRET}: no answer"),
        "agent_behavior_failure": Score("false information", SECRET, labels=("false information",)),
    }
    turns = (builders.turn(0), builders.turn(1, "And Monday?", "No."))
    held = builders.conversation_result(
        turns=[
            builders.turn_evaluation(0, metrics),
            builders.turn_evaluation(1, {"helpfulness": Score(1, SECRET)}),
        ],
        metrics={"goal_completion": Score(1, SECRET, outcome=GoalOutcome.REACHED)},
        held=builders.conversation(turns=turns),
    )
    return builders.run_result(builders.scenario_result("asks twice", [held]))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("project")
    page_at.keep_runs(root, [judged_run()])
    with page_at.served(root) as address:
        parts = urlsplit(address)
        yield Client(root, f"http://{parts.netloc}", parts.query.removeprefix("token="))


@pytest.fixture
def client(served: Client) -> Iterator[Client]:
    yield served
    (served.root / "labels.jsonl").unlink(missing_ok=True)


def identity(question: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = question["key"]
    return found


def query(question: dict[str, Any]) -> dict[str, Any]:
    return identity(question)


def test_nothing_of_the_judge_is_sent_before_ones_own_answer_is_saved(client: Client) -> None:
    """Neither list nor questions have judgements; saving an answer returns only its own."""
    listed = client.get("/api/labels", metric="helpfulness", by="ann")
    first, second = listed.json()["questions"]
    opened = [client.get("/api/labels/question", by="ann", **query(each)) for each in (first, second)]
    for response in (listed, *opened):
        assert response.status_code == 200
        assert SECRET not in response.text
    assert [each.json()["judge"] for each in opened] == [None, None]

    saved = client.post(by="ann", times=0, value=4, note="kind", **identity(first)).json()
    assert saved["judge"] == {
        "sameSide": True,
        "said": saved["judge"]["said"],
        "value": "5",
        "reason": SECRET,
    }
    assert saved["judge"]["said"].startswith("You nearly agree")
    assert saved["mine"]["value"] == 4

    (figures,) = client.get("/api/labels/agreement", by="ann").json()["metrics"]
    assert (figures["metric"], figures["agreement"]["times"], figures["n"]) == ("helpfulness", 1, 1)
    assert figures["confusion"] == [{"people": "4", "judge": "5", "times": 1}]
    assert client.get("/api/labels/agreement", by="bob").json() == {"metrics": []}

    for path, given in (
        ("/api/labels/question", {"by": "ann", **query(second)}),
        ("/api/labels/question", {"by": "bob", **query(first)}),
        ("/api/labels", {"by": "ann"}),
        ("/api/labels", {"by": "bob"}),
    ):
        assert SECRET not in client.get(path, **given).text
    assert client.get("/api/labels/question", by="ann", **query(first)).json()["judge"]["reason"] == SECRET


def test_only_the_last_line_of_the_file_can_be_taken_back(client: Client) -> None:
    """An answer before another one stays. An earlier answer to the same question counts again."""
    first, second = client.questions(metric="helpfulness")
    for times, value in enumerate((4, 2)):
        client.post(by="ann", times=times, value=value, **identity(first))
    client.post(by="bob", times=0, value=5, **identity(second))
    refused = client.undo(by="ann", **identity(first))
    assert refused.status_code == 400
    assert "Only the last line of labels.jsonl" in refused.json()["error"]
    assert client.undo(by="bob", **identity(second)).json()["judge"] is None
    left = [client.undo(by="ann", **identity(first)).json()["mine"] for _ in range(2)]
    assert (left[0]["value"], left[1]) == (4, None)
    assert client.undo(by="ann", **identity(first)).status_code == 400


def test_what_is_refused_tells_nothing_and_writes_nothing(client: Client) -> None:
    """An answer that cannot be is refused, without the judge's, and the file is not even made."""
    (question, _) = client.questions(metric="helpfulness")
    given: dict[str, Any] = {"times": 0, "value": 4, **identity(question)}
    refused = {
        "answer: expected a whole number from 1 to 5": {**given, "value": 6},
        "`times` must be a number": {**given, "times": None},
        "labels file: expected a .jsonl file": {**given, "file": "../labels.jsonl"},
        "labels file: expected": {**given, "file": ".agentest/config.py"},
        "metric: there is no metric 'helpfullness'": {**given, "metric": "helpfullness"},
        "no run 'elsewhere' is kept": {**given, "run": "elsewhere"},
        "`by` must be a text": {**given, "by": ["ann"]},
    }
    for message, body in refused.items():
        response = client.post(**body)
        assert response.status_code == 400, message
        assert message in response.json()["error"]
        assert SECRET not in response.text
    gone = client.post(**{**given, "turn": 7})
    assert (gone.status_code, SECRET in gone.text) == (404, False)
    text = httpx.post(
        f"{client.address}/api/labels", content=json.dumps(given), headers=client.headers, timeout=DEADLINE_S
    )
    assert text.status_code == 415
    stranger = httpx.post(f"{client.address}/api/labels", json=given, timeout=DEADLINE_S)
    assert stranger.status_code == 403
    assert not (client.root / "labels.jsonl").exists()


def test_a_file_that_holds_no_labels_is_never_written_to(client: Client) -> None:
    """A journal is JSON lines, too: its name is not enough."""
    (client.root / "labels.jsonl").write_text('{"number": 1}\n')
    response = client.get("/api/labels")
    assert response.status_code == 400
    assert "labels.jsonl:1: `type` must be conversation or label" in response.json()["error"]
    assert client.post(times=0, value=4, conversation="c", metric="helpfulness").status_code == 400
    assert (client.root / "labels.jsonl").read_text() == '{"number": 1}\n'


def test_two_tabs_do_not_answer_over_each_other(client: Client) -> None:
    """The second answer to a question open in both is refused with the first; sent again, it counts."""
    (question, _) = client.questions(metric="helpfulness")
    first = client.post(by="ann", times=0, value=2, **identity(question))
    assert first.json()["judge"]["said"] == "You differ: you see a fault, the judge sees none."
    second = client.post(by="ann", times=0, value=5, **identity(question))
    assert second.status_code == 409
    assert "You said there: 2. Save again" in second.json()["error"]
    again = client.post(by="ann", times=second.json()["times"], value=5, **identity(question))
    assert again.json()["judge"]["said"] == "You agree."
    labels = read_labels(client.root / "labels.jsonl")
    assert [each.value for each in labels.labels] == [2, 5]
    assert client.get("/api/labels", metric="helpfulness", by="ann").json()["agreement"] == {
        "same": 1,
        "of": 1,
    }


def test_the_page_and_the_terminal_write_one_file(client: Client) -> None:
    """Answers of `agentest label` appear on the page, and the reverse."""
    first, second = client.questions(metric="helpfulness", by="ann")
    client.post(by="ann", times=0, value=4, **identity(first))
    path = client.root / "labels.jsonl"
    labels = read_labels(path)
    other = Label(question=labels.labels[0].question, value=3, by="bob", at="2026-01-01T00:00:00+00:00")
    LabelsFile(path).append(other)
    assert [each["answer"] for each in client.questions(metric="helpfulness", by="bob")] == ["3", None]
    assert [each["answer"] for each in client.questions(metric="helpfulness", by="ann")] == ["4", None]
    assert client.get("/api/labels").json()["people"] == ["ann", "bob"]
    lines = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert lines == ["conversation", "label", "label"]
    assert second["key"]["turn"] == 1


def test_a_question_is_shown_with_what_judges_are_shown(client: Client) -> None:
    """The conversation up to the turn, the question in the judge's words, and each answer with its key."""
    (question, _) = client.questions(metric="agent_behavior_failure")
    opened = client.get("/api/labels/question", **query(question)).json()
    assert [turn["index"] for turn in opened["turns"]] == [0]
    assert opened["turns"][0]["rows"] == [["user", "Is Tuesday free?"], ["agent", "Yes, at 9:00."]]
    assert opened["turns"][0]["asked"]
    assert opened["several"]
    assert opened["choices"][0]["key"] == "0"
    assert opened["choices"][0]["value"] == "no failure"
    assert opened["asked"].startswith("agent_behavior_failure (turn 1): ")
    assert opened["whole"].startswith("Question:")
    saved = client.post(times=0, value=["false information"], **identity(question)).json()
    assert saved["judge"]["said"] == "You agree."
    (faith, _) = client.questions(metric="faithfulness")
    unanswered = client.post(times=0, value=5, **identity(faith)).json()["judge"]
    assert (unanswered["sameSide"], unanswered["value"]) == (None, None)


def test_the_list_is_limited_and_filtered(client: Client) -> None:
    """`most` limits the list, which has the total; a text selects scenarios."""
    listed = client.get("/api/labels", most=3).json()
    assert (len(listed["questions"]), listed["total"] > 3) == (3, True)
    assert client.questions(text="no such scenario") == []
    assert client.get("/api/labels", most="0").status_code == 400


def test_criteria_have_their_own_answers() -> None:
    """Results of criteria are compared with their own values."""
    met = CriterionResult(
        text="Is polite.", required=True, result=CriterionOutcome.MET, turn_index=None, reason="It is."
    )
    stored = _Stored((met,))
    question = LabelQuestion(conversation="c", turn=None, metric="criteria", criterion="Is polite.")
    assert judged(question, stored).value == "met"  # type: ignore[arg-type, union-attr]
    other = LabelQuestion(conversation="c", turn=None, metric="criteria", criterion="Is quick.")
    assert judged(other, stored).error == NOT_ASKED  # type: ignore[arg-type, union-attr]


@dataclass(frozen=True, slots=True)
class _Stored:
    criteria: tuple[CriterionResult, ...]
