"""Migrating keeps meaning: the same verdicts and scores before and after, in either spelling."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import builders
import pytest
from evalset_strategy import eval_sets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentest.domain.results import ScenarioResult
from agentest.domain.transcript import Conversation, ToolCall
from agentest.models.port import CallKey
from agentest.plugins.adk.cases import case_entries
from agentest.plugins.adk.formats.eval_set import EVAL_SET, EvalSet, eval_set_json
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.adk.plan import case_sets
from agentest.plugins.adk.set_commands import migrate
from agentest.support.errors import UsageError

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
names = st.sampled_from(["look", "pay"])
arguments = st.dictionaries(st.sampled_from("ab"), st.integers(0, 1), max_size=2)
words = st.sampled_from(["", "yes", "no", "yes no"])
CRITERIA: Mapping[str, Any] = {
    "tool_trajectory_avg_score": {"threshold": 0.5, "match_type": "ANY_ORDER"},
    "response_match_score": 0.5,
    "tool_trajectory_f1": 0.5,
}


def _some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


def _lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=2)


def _turn(use: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    said = st.fixed_dictionaries({"author": st.just("helper"), "text": words})
    rest = _some(
        reference=words, expected_tool_use=_lists(use), expected_intermediate_agent_responses=_lists(said)
    )
    return rest.map(lambda keys: {"query": "q", **keys})


ADK_USE = st.builds(lambda n, a: {"tool_name": n, **a}, names, _some(tool_input=arguments))
TS_USE = st.builds(lambda n, a: {"name": n, **a}, names, _some(args=arguments))


@st.composite
def data_sets(draw: st.DrawFn) -> dict[str, Any]:
    """ADK-TypeScript's format with every possible key."""
    cases = []
    for number in range(draw(st.integers(1, 2))):
        calls = draw(st.none() | _lists(names))
        made: dict[str, Any] = {"name": f"c{number}", "query": "q", **draw(_some(reference_answer=words))}
        if calls is not None:
            made["expected_tool_calls"] = calls
            args = {name: draw(arguments) for name in set(calls) if draw(st.booleans())}
            made |= {"expected_tool_args": args} if args else {}
        cases.append(made)
    metrics = st.sampled_from([*CRITERIA])
    rest = _some(
        metrics=_lists(metrics), thresholds=st.dictionaries(metrics, st.sampled_from([0.0, 0.5, 1.0]))
    )
    return {"name": "d", "data": cases, **draw(rest)}


files = st.one_of(
    st.lists(_turn(ADK_USE), min_size=1, max_size=2),
    st.lists(_turn(TS_USE), min_size=1, max_size=2),
    st.lists(_turn(ADK_USE), min_size=1, max_size=2).map(lambda turns: [{"name": "c", "data": turns}]),
    data_sets(),
)
answers = st.builds(
    lambda text, calls: builders.turn(
        agent=text,
        tool_calls=tuple(ToolCall(name, args, None, mocked=True, turn_index=0) for name, args in calls),
    ),
    words,
    _lists(st.tuples(names, arguments)),
)


def graded(path: Path, held: Conversation) -> Any:
    """The criteria of every case of the file, and the scores of its metrics for the conversation."""
    return [
        _of(entry, held)
        for entry in case_entries(case_sets([read_eval_set(path)], None, {}, path), ["a"], 1, path)
    ]


def _of(entry: Any, held: Conversation) -> Any:
    if isinstance(entry, ScenarioResult):
        return entry.name, entry.verdict
    grades = {
        grader.name: anyio.run(grader.grade, held, None, CallKey("judge", entry.scope, 1, 0))
        for grader in entry.graders
        if grader.name in CRITERIA
    }
    return (
        entry.scenario.name,
        entry.scenario.turns,
        entry.scenario.session,
        entry.thresholds,
        entry.information,
        grades,
    )


@given(
    document=files, turns=st.lists(answers, min_size=1, max_size=2), camel=st.booleans(), beside=st.booleans()
)
@QUICK
@pytest.mark.slow
def test_verdicts_are_the_same_before_and_after(
    document: Any, turns: list[Any], camel: bool, beside: bool
) -> None:
    """For any older file and any agent, scores and thresholds stay the same, even if the set moves to another
    folder together with its criteria."""
    held = builders.conversation("c", [replace(turn, turn_index=n) for n, turn in enumerate(turns)])
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old.test.json"), Path(folder, "new", "old.test.json")
        old.write_text(json.dumps(document))
        if beside:
            Path(folder, "test_config.json").write_text(json.dumps({"criteria": CRITERIA}))
        migrate(old, new, camel_case=camel)
        assert graded(new, held) == graded(old, held)


@given(eval_sets())
@settings(QUICK, max_examples=30)
def test_both_spellings_are_the_same_set(eval_set: EvalSet) -> None:
    """A set in camelCase reads like the one in snake_case, whatever its content."""
    try:
        snake, camel = eval_set_json(eval_set), eval_set_json(eval_set, camel_case=True)
    except ValueError:
        return
    assert EVAL_SET.validate_json(camel) == EVAL_SET.validate_json(snake) == eval_set
    assert b'"evalCases"' in camel


DATA = {
    "data": [{"name": "a", "query": "q", "expected_tool_calls": ["f"]}],
    "thresholds": {"tool_trajectory_avg_score": 1},
}


def test_existing_criteria_are_never_replaced(tmp_path: Path) -> None:
    """Different criteria next to the new file stop the migration before anything is written."""
    old, new, beside = (
        tmp_path / "old.json",
        tmp_path / "new" / "a.test.json",
        tmp_path / "new" / "test_config.json",
    )
    old.write_text(json.dumps(DATA))
    new.parent.mkdir()
    beside.write_text('{"criteria": {"safety_v1": 1}}')
    with pytest.raises(UsageError, match=r"test_config\.json: already exists and differs.*--config-out"):
        migrate(old, new)
    assert [path.name for path in new.parent.iterdir()] == ["test_config.json"]
    other = tmp_path / "strict.json"
    notes = "\n".join(migrate(old, new, config_out=other))
    assert f"is held to {other} with --config-file-path" in notes
    assert json.loads(other.read_text()) == {"criteria": {"tool_trajectory_avg_score": 1.0}}
    beside.write_text('{"criteria": {"tool_trajectory_avg_score": 1}}')
    assert any("already says" in note for note in migrate(old, new))


def test_effects_of_moving_are_noted(tmp_path: Path) -> None:
    """Criteria of the old folder move along unless the new one has some; other sets they affect are named."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = tmp_path / "old" / "a.test.json", tmp_path / "new" / "a.test.json"
    old.write_text('[{"query": "q"}]')
    (old.parent / "test_config.json").write_text('{"criteria": {"safety_v1": 1}}')
    assert any("test_config.json: copied from" in note for note in migrate(old, new))
    assert (new.parent / "test_config.json").read_text() == '{"criteria": {"safety_v1": 1}}'
    (new.parent / "test_config.json").write_text("{}")
    assert any(f"{new} is held to {new.parent / 'test_config.json'}; " in note for note in migrate(old, new))
    with pytest.raises(UsageError, match=r"--config-out: .* names no criteria of its own"):
        migrate(old, new, config_out=tmp_path / "x.json")
    (new.parent / "test_config.json").unlink()
    data = tmp_path / "data.json"
    data.write_text(json.dumps(DATA))
    assert any(
        "criteria of other sets of its folder from now on: a.test.json" in n
        for n in migrate(data, new.parent / "b.test.json")
    )


def test_what_google_adk_does_not_read_is_told(tmp_path: Path) -> None:
    """Metrics of our own, and those that are scored for information alone, are named."""
    old = tmp_path / "old.json"
    case = {"name": "a", "query": "q", "reference_answer": "yes"}
    metrics = ["safety_v1", "final_session_state_match"]
    old.write_text(json.dumps({"data": [case], "metrics": metrics, "rubric": "The reply is short."}))
    notes = "\n".join(migrate(old, tmp_path / "a.test.json"))
    assert "google-adk does not know reference_answer_match, final_session_state_match" in notes
    assert "reference_answer_match cannot fail a case (`information`)" in notes


def test_a_misspelt_key_of_ours_is_an_error(tmp_path: Path) -> None:
    """Under `agentest`, either spelling is read, and an unknown key is named with the nearest."""
    path = tmp_path / "a.test.json"
    turn = {"user_content": {"parts": [{"text": "x"}]}}
    for key, good in (("anyArgsWhereAbsent", True), ("any_args_where_absnt", False)):
        case = {"eval_id": "c", "conversation": [turn], "agentest": {key: True, "tags": ["task:a"]}}
        path.write_text(json.dumps({"eval_set_id": "s", "eval_cases": [case]}))
        if good:
            own = read_eval_set(path).eval_set.eval_cases[0].agentest
            assert own is not None
            assert own.any_args_where_absent
            assert own.tags == ("task:a",)
        else:
            with pytest.raises(
                UsageError, match=r"case `c`: `agentest.any_args_where_absnt`.*`any_args_where_absent`"
            ):
                read_eval_set(path)
