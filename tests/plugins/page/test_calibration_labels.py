"""The labels file: valid lines, errors, and sources of conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest

from agentest import scenario
from agentest.config.config import Config
from agentest.domain.end_reason import Ending
from agentest.domain.messages import EarlierMessage
from agentest.domain.metrics import CRITERIA, GOAL
from agentest.domain.results import ConversationResult, GoalOutcome
from agentest.domain.transcript import ToolCall, Turn
from agentest.judging.judge_input import JudgeBackground, conversation_context
from agentest.judging.judgement import background_of
from agentest.judging.questions import CRITERION
from agentest.plugins.page.labels.conversations_to_label import (
    GatheredConversations,
    ProjectScenarios,
    gather_conversations,
)
from agentest.plugins.page.labels.labelling_session import (
    Dialogue,
    LabellingSession,
    open_questions,
    progress_text,
    transcript,
)
from agentest.plugins.page.labels.labels import (
    Label,
    LabelledConversation,
    LabelQuestion,
    LabelSet,
    LabelsFile,
    choices,
    content_id,
    is_fault,
    parse_value,
    questions_of,
    read_labels,
)
from agentest.runner.known_tools import agent_traits
from agentest.runner.plan import Unit
from agentest.runner.run_summary import known_agent
from agentest.scenarios.model import Scenario
from agentest.support.dates import without_marks
from agentest.support.errors import UsageError
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios

Line = Mapping[str, Any]
TALK: Line = {
    "type": "conversation",
    "id": "a",
    "background": {"goal": "Book.", "expectedOutcome": "Refused."},
    "criteria": ["Is kind"],
    "turns": [{"userMessage": "Hi", "agentMessage": "Hello"}, {"userMessage": "Bye", "agentMessage": ""}],
}


def label(**keys: Any) -> Line:
    return {"type": "label", "conversation": "a", **keys}


def written(folder: Path, *lines: Line | str) -> Path:
    path = folder / "labels.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    """Little has to be given; keys come in both spellings; a later label of one person replaces the first."""
    path = written(
        tmp_path,
        TALK,
        label(turn=1, metric="faithfulness", value=2, by="ann"),
        "",
        label(turn=1, metric="faithfulness", value=4, by="ann", note="looked again"),
        label(turn=1, metric="faithfulness", value=5, by="bob"),
        label(turn=0, metric="agentBehaviorFailure", value=["false information", "repetition"]),
        label(metric="goal_completion", value=1),
        label(criterion="Is kind", value="cannot tell"),
        {**TALK, "source": "found elsewhere"},
    )
    found = read_labels(path)
    (talk,) = found.conversations.values()
    assert talk.background == JudgeBackground(goal="Book.", expected_outcome="Refused.")
    assert [turn.turn_index for turn in talk.turns] == [0, 1]
    by = found.by_question()
    asked = LabelQuestion(conversation="a", turn=1, metric="faithfulness")
    assert {name: each.value for name, each in by[asked].items()} == {"ann": 4, "bob": 5}
    values = {question.metric: next(iter(each.values())).value for question, each in by.items()}
    assert values["agent_behavior_failure"] == ("false information", "repetition")
    assert values["goal_completion"] == "reached"
    assert values[CRITERIA] == "cannot tell"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nothing", "is not JSON"),
        ("[1]", "expected a JSON object"),
        ("[" * 800 + "]" * 800, "expected a JSON object"),
        ("[" * 100_000, "is nested too deeply"),
        ({}, "`type` must be conversation or label, and it is missing"),
        (
            label(turn="x", metric="faithfulness", value=1),
            "must be a turn's number, from 0, or null; found 'x'",
        ),
        (label(turn=0, metric="faithfulness", value="6"), "expected a whole number from 1 to 5, found '6'"),
        (label(turn=0, metric="faithfulness", value="five"), "expected a whole number from 1 to 5"),
        (label(turn=0, metric="faithfulness", value="9" * 5000), "expected a whole number from 1 to 5"),
        (label(turn=0, metric="faithfulness", value=[5]), "expected a whole number from 1 to 5, found [5]"),
        (label(turn=0, metric="faithfulness", value=5, by=0), "`by` is 0, expected a text"),
        (label(turn=0, metric="faithfulness", value=5, note=False), "`note` is false, expected a text"),
        ({**TALK, "id": 0}, "`id` is 0, expected a text"),
        (label(metric="goal_completion", value=True), "'not reached', found True"),
        (label(metric="goal_completion", value=2), "'not reached', found 2"),
        (label(metric="goal_completion", value=["reached"]), "found ['reached']"),
        ({"type": "lable"}, "`type` must be conversation or label, found 'lable'"),
        (
            label(turn=0, metrik="faithfulness", value=1),
            "`metrik` is not a known key; did you mean",
        ),
        (label(turn=0, metric="faithfullness", value=1), "did you mean `faithfulness`?"),
        (label(turn=0, metric="safety_v1", value=1), "its judge cannot be calibrated yet"),
        (label(turn=0, metric="faithfulness", value=6), "expected a whole number from 1 to 5, found 6"),
        (label(turn=0, metric="faithfulness", value=True), "expected a whole number from 1 to 5, found True"),
        (label(turn=0, metric="faithfulness"), "`value` is missing"),
        (label(turn=7, metric="faithfulness", value=1), "must be a turn from 0 to 1; found 7"),
        (label(turn=0, metric="goal_completion", value=1), "must be null: it is of the whole; found 0"),
        (label(turn=0, metric="agent_behavior_failure", value=["no failure", "other"]), "exclude each other"),
        (label(turn=0, metric="agent_behavior_failure", value=[]), "write 'no failure'"),
        (
            label(metric="goal_completion", value="won"),
            "'rightly not reached', 'left open', 'not reached'",
        ),
        (label(criterion="Is rude", value="met"), "the conversation has no criterion 'Is rude'"),
        (label(metric="criteria", value="met"), "`criterion` is missing"),
        (label(metric="faithfulness", criterion="Is kind", value=1), "either `metric` or `criterion`"),
        (
            {**label(turn=0, metric="faithfulness", value=1), "conversation": "b"},
            "no conversation 'b' stands above",
        ),
        ({**TALK, "background": {"goal": "Other."}}, "the id 'a' is that of another conversation"),
        (
            {**TALK, "background": {"gaol": "Other."}},
            "`background.gaol` is not a known key; did you mean",
        ),
        (
            {**TALK, "background": {"history": [{"role": "system", "text": "x"}]}},
            '`background.history[0].role` is "system"',
        ),
        ({**TALK, "background": {"history": "x"}}, '`background.history` is "x", expected a list'),
        (
            {**TALK, "background": {"history": [{"role": "user", "text": 1}]}},
            "history[0].text` is 1, expected a text",
        ),
        ({**TALK, "turns": []}, "`turns` must be a list of at least one turn"),
        ({**TALK, "turns": [{"userMessage": "x"}]}, "turns[0]: 'agentMessage' is a required property"),
        ({**TALK, "complete": "no"}, '`complete` is "no", expected true or false'),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_errors_are_located(tmp_path: Path, line: Line | str, problem: str) -> None:
    """Invalid lines are errors with file, line and what is expected."""
    with pytest.raises(UsageError) as error:
        read_labels(written(tmp_path, TALK, line))
    assert f"{tmp_path / 'labels.jsonl'}:2: " in str(error.value)
    assert problem in str(error.value)


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    """Each value is a line; an incomplete last line is ignored."""
    call = ToolCall("book", {"at": 9}, {"id": "B1"}, True, 0)
    turns = (Turn(0, "Nine?", "Done.", (call,), started_at="2026-01-01T09:00:00+00:00"),)
    history = (EarlierMessage("user", "At?\nBy?"), EarlierMessage("tool call", "look({}) → 1"))
    background = JudgeBackground(
        goal="Book.", knowledge=("Open.",), history=history, started_at=turns[0].started_at
    )
    talk = LabelledConversation(id="c-1", background=background, turns=turns, criteria=("Kind",))
    path = tmp_path / "new" / "labels.jsonl"
    writer = LabelsFile(path)
    first = Label(
        question=LabelQuestion(conversation="c-1", turn=0, metric="faithfulness"),
        value=3,
        by="ann",
        note="so so",
    )
    second = Label(
        question=LabelQuestion(conversation="c-1", turn=None, metric=CRITERIA, criterion="Kind"), value="met"
    )
    writer.append(talk, first)
    path.write_text(path.read_text().rstrip("\n"))
    writer.append(second)
    found = read_labels(path)
    assert found.conversations == {"c-1": talk}
    assert found.labels == [first, second]
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("background", "id"),
    [
        (JudgeBackground(goal="Book."), "c-59ac7d560665"),
        (JudgeBackground(goal="Book.", started_at="2026-01-01T09:00:00+00:00", ended="x"), "c-59ac7d560665"),
        (JudgeBackground(goal="Book.", history=(EarlierMessage("user", "Hi"),)), "c-ba7f6b42992c"),
    ],
    ids=["known for long", "neither start nor end count", "a history counts"],
)
def test_ids_stay_as_they_were(background: JudgeBackground, id: str) -> None:
    """Ids of conversations are the same in all versions, so labels are found again."""
    assert content_id(background, ("Kind",), (Turn(0, "Hi", "Hello"),)) == id


def test_recorded_replies_of_an_evaluation_set_can_be_labelled(tmp_path: Path) -> None:
    """Each case with replies is a conversation; others are noted. Equal content has the same id."""

    def case(name: str, **more: Any) -> Line:
        turn = {"user_content": {"role": "user", "parts": [{"text": "Hi"}]}, **more}
        return {"eval_id": name, "conversation": [turn]}

    said = {"final_response": {"role": "model", "parts": [{"text": "Hello"}]}}
    path = tmp_path / "a.evalset.json"
    cases = [case("one", **said), case("silent"), case("again", **said)]
    path.write_text(json.dumps({"eval_set_id": "s", "eval_cases": cases}))
    found = gather_conversations(path, ProjectScenarios())
    (talk,) = found.conversations.values()
    assert (talk.scenario, talk.turns[0].agent_message) == ("one", "Hello")
    assert found.notes == ["left out 1 case: no reply of an agent is recorded there"]
    with pytest.raises(UsageError, match="cannot be read"):
        gather_conversations(tmp_path / "none.json", ProjectScenarios())


@pytest.mark.parametrize(
    ("background", "metrics"),
    [({"goal": "Book."}, [GOAL]), ({"expectedOutcome": "Refused."}, [GOAL]), ({"profile": "Busy."}, [])],
    ids=["goal", "expected outcome", "neither"],
)
def test_goals_can_be_labelled_as_in_a_run(tmp_path: Path, background: Line, metrics: list[str]) -> None:
    """The goal can be labeled if there is a goal or an expected outcome."""
    [talk] = read_labels(written(tmp_path, {**TALK, "background": background})).conversations.values()
    assert [question.metric for question in questions_of(talk, [GOAL])] == metrics


@pytest.mark.parametrize(
    ("of_agent", "of_scenario"),
    [
        ({}, {}),
        ({"tools": []}, {}),
        ({"tools": ["book"], "instructions": "Be kind."}, {"expected_outcome": "Refused."}),
        ({}, {"trajectory": {"match_mode": "within", "expected": []}}),
    ],
    ids=["nothing known", "no tools", "all known", "no calls allowed"],
)
def test_judges_get_the_prompt_of_a_run(of_agent: Line, of_scenario: Line) -> None:
    """The prompt of a calibration's judge is identical to the run's."""
    made = scenario("s", turns=["Hi."], goal="to book", **of_scenario)
    model = ScriptedModel()
    with ScriptedAgent(["Which day?"]) as agent:
        settings = {"endpoint": agent.endpoint, **of_agent}
        result = run_scenarios([made], agent=settings, model=model, metrics=["goal_completion"])
    [asked] = [request for request in model.requests if request.key.metric == "goal_completion"]
    about = agent_traits("agent", Config.model_validate({"agent": settings}).agent)
    known = known_agent(replace(_unit(), scenario=made, agent="agent", traits=about), str)
    turns = result.scenarios[0].conversations[0].conversation.turns
    context = conversation_context(background_of(made, known, turns, Ending.SCRIPT), turns)
    shown = "\n\n".join(message["content"] for message in asked.messages)
    assert without_marks("\n\n".join(context)) in shown


def _unit() -> Unit:
    return Unit(
        scenario=Scenario("", "", 0),
        agent="",
        file="",
        scope="",
        slug="",
        conversations=1,
        max_turns=1,
        metrics=(),
        thresholds={},
    )


def typing(*lines: str) -> Callable[[], str | None]:
    rest = iter(lines)
    return lambda: next(rest, None)


def session_in(file: Path, conversations: dict[str, LabelledConversation]) -> LabellingSession:
    gathered = GatheredConversations(conversations)
    return LabellingSession(gathered=gathered, file=LabelsFile(file), by="ann", now=lambda: "now")


def test_a_person_answers_in_the_terminal(tmp_path: Path) -> None:
    """Answers, notes, several labels, a way back and a mistake; shown is what judges see, made harmless."""
    hostile = {**TALK, "turns": [{"userMessage": "Hi\x1b[2J", "agentMessage": "Hello\n> 5"}]}
    conversations = read_labels(written(tmp_path, hostile)).conversations
    metrics = ("faithfulness", "agent_behavior_failure", "goal_completion", CRITERIA)
    questions = open_questions(conversations.values(), metrics, ())
    path, shown = tmp_path / "mine.jsonl", []
    dialogue = Dialogue(
        session_in(path, conversations),
        read_line=typing("9", "4", "b", "2 not so", "?", "1,x", "2,1 twice", "s", "?", "2", "3"),
        write=shown.append,
    )
    labelled = dialogue.run(questions)
    labels = read_labels(path).labels
    values = [(each.question.metric, each.value, each.note) for each in labels]
    assert {(each.by, each.at) for each in labels} == {("ann", "now")}
    assert values[:3] == [
        ("faithfulness", 4, ""),
        ("faithfulness", 2, "not so"),
        ("agent_behavior_failure", tuple(list(choices("agent_behavior_failure"))[1:3]), "twice"),
    ]
    assert values[3:] == [(CRITERIA, "violated", "")]
    assert labelled == 3
    text = "".join(shown)
    assert "goal     Book." in text
    assert "expected Refused." in text
    assert "\x1b" not in text
    assert "agent    Hello\n         > 5" in text
    assert "expected a whole number from 1 to 5, found '9'" in text
    assert f"{CRITERION}\n\nIs kind" in text


def test_a_person_sees_as_much_as_the_judge() -> None:
    """Results as long as judges see them, errors and the state are shown; long instructions once."""
    calls = (
        ToolCall("look", {"id": 1}, {"ok": True, "text": "x" * 5000}, True, 0),
        ToolCall("pay", {}, None, True, 0, error="card refused"),
    )
    turns = (
        Turn(0, "Hi", "Hello", calls, state_after={"cart": []}),
        Turn(1, "Bye", "Done", calls[:1], state_after={"cart": ["shoe"]}),
    )
    known = JudgeBackground(
        goal="Book.",
        instructions="Rule.\n" * 100,
        started_at="2026-03-02T09:30:00+01:00",
        history=(EarlierMessage("user", "Open?"), EarlierMessage("assistant", "Yes.")),
    )
    talk = LabelledConversation(id="a", turns=turns, background=known)
    first = "\n".join(transcript(talk, 0))
    assert 'tool     look(id=1) → {"ok": true, "text": "xxx' in first
    assert "characters more" not in first
    assert "error    card refused" in first
    assert 'state    {"cart": []}' in first
    assert "began    Monday, 2026-03-02, 09:30 (UTC+01:00)" in first
    assert "history  user: Open?\n         assistant: Yes." in first
    assert first.count("Rule.") == 100
    second = "\n".join(transcript(talk, 1, known))
    assert "told     (as before)" in second
    assert second.count("characters more)") == 1
    assert 'state    changed: {"cart":' in second


def test_an_interruption_loses_no_answer(tmp_path: Path) -> None:
    """Answers before Ctrl-C are in the file."""
    conversations = read_labels(written(tmp_path, TALK)).conversations
    path = tmp_path / "mine.jsonl"
    answers = iter(["4"])

    def read_line() -> str:
        for answer in answers:
            return answer
        raise KeyboardInterrupt

    dialogue = Dialogue(session_in(path, conversations), read_line=read_line, write=lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        dialogue.run(open_questions(conversations.values(), ("faithfulness",), ()))
    assert [each.value for each in read_labels(path).labels] == [4]


def test_the_order_tells_nothing(tmp_path: Path) -> None:
    """Conversations do not come by their place in the file; answered questions are left out."""
    talks = [{**TALK, "id": f"t{n}"} for n in range(6)]
    there = list(read_labels(written(tmp_path, *talks)).conversations.values())
    asked = open_questions(there, ("faithfulness",), ())
    order = list(dict.fromkeys(question.conversation for question in asked))
    assert sorted(order) == [talk.id for talk in there]
    assert order != sorted(order)
    assert open_questions(reversed(there), ("faithfulness",), asked[:1]) == asked[1:]
    assert [question.turn for question in asked[:2]] == [0, 1]


def test_the_most_informative_questions_come_first(tmp_path: Path) -> None:
    """First come disagreements of samples or people, then other judged questions, then the rest."""
    talks = [{**TALK, "id": f"t{n}"} for n in range(6)]
    there = list(read_labels(written(tmp_path, *talks)).conversations.values())
    plain = open_questions(there, ("faithfulness",), ())
    unasked, asked, unsure, disputed = plain[0], plain[2], plain[4], plain[6]

    def judged_as(question: LabelQuestion, *samples: int) -> dict[str, ConversationResult]:
        metrics = {"faithfulness": builders.scored(4, samples=samples)}
        turns = (builders.turn_evaluation(question.turn or 0, metrics),)
        return {question.conversation: builders.conversation_result(turns=turns)}

    both = [
        Label(question=disputed, value=value, by=who, at="", note="") for who, value in (("a", 1), ("b", 5))
    ]
    judgments = {**judged_as(asked, 4, 4), **judged_as(unsure, 4, 2)}
    first = open_questions(
        there, ("faithfulness",), (), judgments=judgments, labels=LabelSet({}, labels=both)
    )
    assert set(first[:2]) == {unsure, disputed}
    assert (first[2], first.index(unasked) > 2) == (asked, True)
    assert progress_text(12) == "12 labels; 8 more make 20, enough to know agreement within ±17 points"


def test_a_goal_reached_wrongly_is_a_fault_that_people_can_label() -> None:
    """People can label a goal with every value of a judge, and `reached wrongly` is a fault."""
    assert set(choices("goal_completion")) == set(GoalOutcome)
    assert is_fault(parse_value("goal_completion", "reached wrongly"))
    assert not is_fault(parse_value("goal_completion", "rightly not reached"))
