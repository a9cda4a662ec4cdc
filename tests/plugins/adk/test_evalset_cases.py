"""From cases to what is run: names, turns, sessions, criteria, recorded answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from evalset_documents import case, eval_set, invocation, response, simulated, use
from hypothesis import given
from hypothesis import strategies as st

from agentest.config.config import Config
from agentest.domain.messages import Session
from agentest.domain.results import CaseId, ReferenceCall, ScenarioResult, Status
from agentest.mocks.binding import RecordedAnswer
from agentest.plugins.adk.cases import CaseSet, case_entries, recorded_answers
from agentest.plugins.adk.formats.criteria import DEFAULT, Criteria, parse_criteria
from agentest.plugins.adk.formats.eval_set import EVAL_CASE, EVAL_SET, EvalCase
from agentest.plugins.adk.formats.set_reader import FileFormat, ReadSet
from agentest.plugins.adk.plan import eval_plan
from agentest.runner.plan import Unit
from agentest.support.errors import UsageError
from agentest.testing import ScriptedAgent

ROOT = Path("/project")
WORDS = parse_criteria({"response_match_score": 0.5}, "c")


def read(document: Any, path: str = "a.test.json", **lines: int) -> ReadSet:
    return ReadSet(EVAL_SET.validate_python(document), ROOT / path, FileFormat.EVAL_SET, lines)


def parsed(document: Any) -> EvalCase:
    return EVAL_CASE.validate_python(document)


def entries(
    *cases: Any, criteria: Criteria = DEFAULT, agents: Sequence[str] = ("agent",), **more: Any
) -> list[Unit | ScenarioResult]:
    chosen = CaseSet(read(eval_set("s", *cases), **more.pop("lines", {})), criteria, **more)
    return case_entries([chosen], agents, 2, ROOT)


def unit(document: Any, **more: Any) -> Unit:
    (found,) = entries(document, **more)
    assert isinstance(found, Unit)
    return found


def test_a_case_is_a_scripted_scenario_with_references() -> None:
    """Every invocation is a turn that knows what is expected; the case brings its session and its runs."""
    document = case(
        "c",
        invocation("Where is it?", "Here.", [use("look", id=1), {"name": "any"}]),
        invocation("And now?"),
        session_input={"app_name": "a", "user_id": "u", "state": {"k": None}, "session_id": "s1"},
    )
    found = unit(document, lines={"c": 7})
    assert (found.conversations, found.max_turns, found.file) == (2, 3, "a.test.json")
    scenario = found.scenario
    assert (scenario.name, scenario.line, scenario.case) == ("c", 7, CaseId("s", "c"))
    assert scenario.session == Session("a", "u", {"k": None}, "s1")
    first, second = scenario.turns
    assert first.user_message == "Where is it?"
    assert first.reference is not None
    assert first.reference.text == "Here."
    assert first.reference.tool_calls == (ReferenceCall("look", {"id": 1}), ReferenceCall("any", None))
    assert first.reference.invocation["finalResponse"]["parts"] == [{"text": "Here."}]
    assert second.reference is not None
    assert (second.reference.text, second.reference.tool_calls) == (None, None)


def test_a_simulated_case_has_a_plan() -> None:
    """A conversation scenario becomes a plan; offline, its sentences are what the user knows."""
    document = simulated("p", "Hello.", "Say the number. Ask when! Then go")
    criteria = parse_criteria(
        {
            "criteria": {"per_turn_user_simulator_quality_v1": {"threshold": 1, "stop_signal": "BYE"}},
            "user_simulator_config": {"max_allowed_invocations": 4},
        },
        "c",
    )
    found = unit(document, criteria=criteria)
    assert (found.max_turns, found.scenario.turns) == (4, ())
    assert found.scenario.goal == "Hello."
    assert found.scenario.knowledge == ("Say the number.", "Ask when!", "Then go")
    assert found.scenario.plan is not None
    assert (found.scenario.plan.starting_prompt, found.scenario.plan.stop_signal) == ("Hello.", "BYE")


@pytest.mark.parametrize(
    ("document", "metrics"),
    [
        (case("c", invocation("x", "y", [])), ["tool_trajectory_avg_score", "response_match_score"]),
        (case("c", invocation("x", "y")), ["response_match_score"]),
        (case("c", invocation("x", None, [])), ["tool_trajectory_avg_score"]),
        (case("c", invocation("x"), invocation("x", "y")), ["response_match_score"]),
        (case("c", invocation("x"), invocation("x")), None),
        (simulated("c"), None),
    ],
)
def test_the_default_criteria_ask_only_for_what_a_case_says(document: Any, metrics: list[str] | None) -> None:
    """A default criterion without data in any invocation is left out; without any left, nothing is run."""
    (found,) = entries(document)
    if metrics is None:
        assert isinstance(found, ScenarioResult)
        assert found.verdict.status is Status.ERRORED
        assert "the case has neither" in found.verdict.reasons[0].message
    else:
        assert isinstance(found, Unit)
        assert [*found.thresholds] == metrics == [grader.name for grader in found.graders]


@pytest.mark.parametrize(
    ("turn", "held"),
    [
        (invocation("x", "y", []), True),
        (invocation("x", "y"), True),
        (invocation("x", None, [use("f")]), False),
        (invocation("x"), True),  # it expects nothing: without a score it does not pass
    ],
)
def test_a_case_of_calls_alone_is_not_held_to_an_answer(turn: Any, held: bool) -> None:
    """In a file whose other cases have reference answers, one that expects calls alone is judged by them."""
    criteria = parse_criteria({"tool_trajectory_avg_score": 1.0, "reference_answer_match": 1.0}, "c")
    found = unit(case("c", turn), criteria=criteria)
    assert ("reference_answer_match" in found.thresholds) is held
    assert "tool_trajectory_avg_score" in found.thresholds


@pytest.mark.parametrize("document", [case("c", invocation("x", "y")), case("c", invocation("x"))])
def test_criteria_of_a_file_are_never_left_out(document: Any) -> None:
    """They stay whether or not the case has data for them."""
    criteria = parse_criteria({"tool_trajectory_avg_score": 1.0, "response_match_score": 0.8}, "c")
    assert [*unit(document, criteria=criteria).thresholds] == [
        "tool_trajectory_avg_score",
        "response_match_score",
    ]


def test_an_empty_text_is_sent() -> None:
    """How an agent takes a message without a word is an edge case that a set may hold."""
    (turn,) = unit(case("c", invocation("", "y")), criteria=WORDS).scenario.turns
    assert (turn.user_message, turn.attachments) == ("", ())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"role": "user"}, "has neither text nor a file"),
        ({"role": "user", "parts": []}, "has neither text nor a file"),
        ({"role": "user", "parts": [{"thought": True}]}, "has neither text nor a file"),
        ({"role": "user", "parts": [{"inline_data": {"data": "QQ=="}}]}, "`inline_data` without `mime_type`"),
        ({"role": "user", "parts": [{"fileData": {"mimeType": "a/b"}}]}, "`file_data` without `file_uri`"),
        ({"role": "user", "parts": [{"text": "x"}, {"functionCall": {"name": "f"}}]}, "`function_call`"),
        ({"role": "user", "parts": [{"text": "x", "video_metadata": {"fps": 1}}]}, "`video_metadata`"),
        (
            {"role": "user", "parts": [{"inline_data": {"data": "QQ=="}, "file_data": {"file_uri": "x:"}}]},
            "both `inline_data` and `file_data`",
        ),
        (
            {"role": "user", "parts": [{"inline_data": {"mime_type": "a/b", "data": "A" * 26_666_672}}]},
            "files of 20,000,004 bytes, more than the 20,000,000",
        ),
    ],
)
def test_a_message_that_cannot_be_sent_is_not_evaluated(content: Any, why: str) -> None:
    """A case with an empty or unsendable user message does not run, and names invocation and part."""
    document = case("c", invocation("x", "y"), {"user_content": content})
    for agents in (("one",), ("one", "two")):
        found = entries(document, criteria=WORDS, agents=agents)
        assert [entry.agent for entry in found] == [*agents]
        for entry in found:
            assert isinstance(entry, ScenarioResult)
            assert "user_content of invocation 2 has " in entry.verdict.reasons[0].message
            assert why in entry.verdict.reasons[0].message
    named = case("c", {"user_content": content, "invocation_id": "ask"})
    (found_one,) = entries(named, criteria=WORDS)
    assert isinstance(found_one, ScenarioResult)
    assert "user_content of invocation ask has " in found_one.verdict.reasons[0].message


def test_a_scenario_for_every_agent() -> None:
    """Each agent has its own unit for every case, with different scopes."""
    found = entries(case("c", invocation("x", "y")), case("d", invocation("x", "y")), agents=("one", "two"))
    assert [(e.scenario.name, e.agent) for e in found if isinstance(e, Unit)] == [
        ("c", "one"),
        ("c", "two"),
        ("d", "one"),
        ("d", "two"),
    ]
    assert len({e.scope for e in found if isinstance(e, Unit)}) == 4


def test_nothing_to_run_uses_no_agent() -> None:
    """A plan without units uses no agent."""
    with ScriptedAgent(["x"]) as agent:
        config = Config.model_validate({"agent": {"endpoint": agent.endpoint}})
    chosen = CaseSet(read(eval_set("s", case("c", invocation("x", "y")))), Criteria(()))
    plan = eval_plan([chosen], config, None, 1, ROOT)
    assert (plan.agents, plan.units, len(plan.entries)) == ({}, (), 1)


def test_criteria_that_contradict_a_case_are_refused() -> None:
    """Two rubrics of one id, one in the criteria and one in the case, stop the run before it begins."""
    rubric = {"rubric_id": "r", "rubric_content": {"text_property": "It is polite."}}
    criteria = parse_criteria(
        {"rubric_based_final_response_quality_v1": {"threshold": 1, "rubrics": [rubric]}}, "c"
    )
    document = case("c", invocation("x", "y"), rubrics=[rubric | {"type": "FINAL_RESPONSE_QUALITY"}])
    with pytest.raises(UsageError, match=r"^a\.test\.json: case 'c'.*'r'"):
        entries(document, criteria=criteria)


def test_a_missing_rubric_is_located_in_its_file() -> None:
    """The error about a metric without rubrics has the place and the key for them."""
    criteria = parse_criteria({"rubric_based_final_response_quality_v1": 0.8}, "c")
    with pytest.raises(UsageError, match=r"^a\.test\.json:7: case 'c': .* no rubrics; .*`rubric` in a file"):
        entries(case("c", invocation("x", "y")), criteria=criteria, lines={"c": 7})


names = st.sampled_from(["a", "b", "a/b", "s", "s/a", "x.json", "x.json/a", "s/a/b"])


@given(
    st.lists(st.tuples(names, st.lists(names, min_size=1, max_size=4, unique=True)), min_size=1, max_size=5)
)
def test_case_names_are_unique(sets: list[tuple[str, list[str]]]) -> None:
    """For any names of sets and cases, every case has a unique name that ends with its id."""
    chosen = [
        CaseSet(read(eval_set(set_id, *(case(i, invocation("x", "y")) for i in ids)), f"{n}.json"), DEFAULT)
        for n, (set_id, ids) in enumerate(sets)
    ]
    found = case_entries(chosen, ["agent"], 1, ROOT)
    named = [entry.scenario.name for entry in found if isinstance(entry, Unit)]
    assert len(set(named)) == len(named) == sum(len(ids) for _, ids in sets)
    for name, eval_id in zip(named, (i for _, ids in sets for i in ids), strict=True):
        assert name == eval_id or name.endswith(f"/{eval_id}")


@pytest.mark.parametrize(
    ("uses", "responses", "expected"),
    [
        ([use("t", n=1)], [response("t", r=1)], [("t", {"n": 1}, {"r": 1})]),
        ([use("t")], [], []),
        ([], [response("t", r=1)], []),
        ([use("t")], [response("other", r=1)], []),
        ([{"name": "t"}], [response("t", r=1)], [("t", {}, {"r": 1})]),
        (
            [use("t", n=1), use("t", n=2)],
            [response("t", r=1), response("t", r=2)],
            [("t", {"n": 1}, {"r": 1}), ("t", {"n": 2}, {"r": 2})],
        ),
        (
            [{"id": "1", **use("t", n=1)}, {"id": "2", **use("t", n=2)}],
            [{"id": "2", **response("t", r=2)}, {"id": "1", **response("t", r=1)}],
            [("t", {"n": 1}, {"r": 1}), ("t", {"n": 2}, {"r": 2})],
        ),
        ([{"id": "1", **use("t")}], [{"id": "2", **response("t", r=2)}], []),
        ([{"id": "1", **use("t")}], [response("t", r=2)], [("t", {}, {"r": 2})]),
        ([use("t")], [{"id": "1", "response": {"r": 1}}], [("t", {}, {"r": 1})]),
        ([use("t")], [{"name": "t"}], [("t", {}, None)]),
        (
            [use("a"), use("b")],
            [response("b", r=2), response("a", r=1)],
            [("a", {}, {"r": 1}), ("b", {}, {"r": 2})],
        ),
    ],
)
def test_recorded_responses_belong_to_calls(
    uses: list[Any], responses: list[Any], expected: list[tuple[str, Any, Any]]
) -> None:
    """A response answers the call of its id; without ids, the first call of its name that has none yet."""
    found = recorded_answers(parsed(case("c", invocation("x", None, uses, responses))))
    assert found == tuple(RecordedAnswer(*answer) for answer in expected)


def test_events_hold_recorded_responses_too() -> None:
    """Calls and responses are read from the newer form of intermediate data as well."""
    parts: list[Any] = [
        {"function_call": {"id": "1", **use("t", n=1)}},
        {"function_response": {"id": "1", **response("t", r=1)}},
    ]
    events = [{"author": "bot", "content": {"role": "model", "parts": [part]}} for part in parts]
    document = case("c", invocation("x", intermediate_data={"invocation_events": events}))
    assert recorded_answers(parsed(document)) == (RecordedAnswer("t", {"n": 1}, {"r": 1}),)
