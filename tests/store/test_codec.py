"""Stored values are read back unchanged, and the schema describes every stored field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from enum import Enum
from importlib.resources import files
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentest.domain.end_reason import Ending
from agentest.domain.messages import EarlierMessage
from agentest.domain.metrics import TRAJECTORY_METRICS
from agentest.domain.repeat_setting import Repeat
from agentest.domain.results import (
    AlignedRow,
    AttackRate,
    CaseId,
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    Figure,
    LabelledFailure,
    ModelUsage,
    Reason,
    ReasonKind,
    RowStatus,
    RunResult,
    ScenarioResult,
    Score,
    Severity,
    Status,
    TrajectoryResult,
    TrajectoryScore,
    TurnEvaluation,
    UniqueError,
    Verdict,
    VerdictWarning,
    WarningCode,
)
from agentest.domain.transcript import (
    AttackLog,
    Conversation,
    Failure,
    ModelRequest,
    Remark,
    TimeSpent,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)
from agentest.store import shapes
from agentest.store import shapes as lines
from agentest.store.codec import CODECS, conversation_json, mark_vacuous
from agentest.support.json_text import encoded

NOT_STORED: Mapping[type, tuple[str, ...]] = {
    Conversation: ("time", "session_id", "invalid", "live_state", "sent"),
    Failure: ("bypassed",),
    Score: ("rubrics",),
    TurnEvaluation: ("reference",),
    RunResult: ("addresses",),
    ConversationResult: ("reasons",),
}
"""Fields of `transcript` and `results` that have their default after reading.

Time is stored once, with the result of the conversation; so is the reason for invalidity, which reading
copies. Rubrics and references are in the ADK part of a case. The state object of the mocks exists only until
it has been judged. A failure's message names the bypassed mocks. Agent addresses are in the record of a run
(`store.runs.folder`).
"""

SCHEMA = json.loads(files("agentest").joinpath("schemas/results.schema.json").read_text("utf-8"))["$defs"]
texts = st.text(max_size=5)
numbers = st.integers(0, 99) | st.integers(0, 99_999).map(lambda n: n / 1000)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: texts.filter(lambda text: text not in ("NaN", "Infinity", "-Infinity")),
    int: st.integers(0, 99),
    bool: st.booleans(),
    float: numbers,
    Any: json_values,
    NoneType: st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Draw values of a type, with every field of a dataclass that is stored."""
    if hint in PLAIN:
        return PLAIN[hint]
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(map(values, get_args(hint)))
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=2).map(tuple)
    if get_origin(hint) is Mapping:
        return st.dictionaries(texts, values(get_args(hint)[1]), max_size=2)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = get_type_hints(hint)
    stored = [each.name for each in fields(hint) if each.name not in NOT_STORED.get(hint, ())]
    inner = {name: hints[name] for name in stored if hint not in get_args(hints[name])}
    flat = st.builds(hint, **{name: values(each) for name, each in inner.items()})
    # A value that holds values of its own type holds flat ones.
    own = {name: st.lists(flat, max_size=2).map(tuple) for name in stored if name not in inner}
    return st.builds(hint, **{name: values(each) for name, each in inner.items()}, **own) if own else flat


@pytest.mark.parametrize(
    "cls",
    [
        Turn,
        UnfinishedTurn,
        ModelRequest,
        ToolCall,
        Usage,
        Remark,
        TimeSpent,
        Score,
        AlignedRow,
        UniqueError,
        LabelledFailure,
        shapes.RunUsage,
        shapes.StoredSlowTurn,
        lines.RunLine,
    ],
)
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_stored_value_is_read_back(cls: type, data: st.DataObject) -> None:
    """Any stored value equals the one read back from its JSON."""
    value = data.draw(values(cls))
    written = json.loads(encoded(CODECS.write(value)))
    again = CODECS.read(cls, written)
    assert again == value
    assert json.loads(encoded(CODECS.write(again))) == written


def consistent(result: ConversationResult) -> ConversationResult:
    """The result as runs make it: failures name their conversation, unknown trajectories do not match."""
    id = result.conversation.conversation_id
    return replace(
        result,
        turns=tuple(
            replace(turn, turn_index=index, trajectory=_told(turn.trajectory))
            for index, turn in enumerate(result.turns)
        ),
        trajectory=_told(result.trajectory),
        failures=tuple(replace(failure, conversation_id=id) for failure in result.failures),
        conversation=replace(result.conversation, invalid=result.invalid),
    )


def _told(trajectory: TrajectoryResult | None) -> TrajectoryResult | None:
    if trajectory is None:
        return None
    parts = tuple(filter(None, map(_told, trajectory.parts)))
    return replace(trajectory, parts=parts, matched=trajectory.matched and not trajectory.error)


@given(values(ConversationResult).map(consistent))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_conversation_is_read_back(result: ConversationResult) -> None:
    """A conversation with its evaluation is read back unchanged, apart from fields not stored."""
    written = json.loads(encoded(CODECS.write(result)))
    assert CODECS.read(ConversationResult, written) == result


DESCRIBED = {
    "turn": Turn,
    "unfinishedTurn": UnfinishedTurn,
    "modelRequest": ModelRequest,
    "toolCall": ToolCall,
    "tokens": Usage,
    "roleUsage": ModelUsage,
    "runUsage": shapes.RunUsage,
    "turnEvaluation": TurnEvaluation,
    "alignedRow": AlignedRow,
    "figure": Figure,
    "counts": shapes.Counts,
    "slowTurn": shapes.StoredSlowTurn,
    "comparisonSummary": shapes.Summary,
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_schema_has_every_field(name: str) -> None:
    """The schema describes exactly the keys that are written."""
    assert CODECS.of(DESCRIBED[name]).keys == set(SCHEMA[name]["properties"])


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        *DESCRIBED.items(),
        ("conversation", ConversationResult),
        ("evaluation", shapes.StoredEvaluation),
        ("trajectory", TrajectoryResult),
        ("check", CheckResult),
        ("errorGroup", UniqueError),
        ("scenario", ScenarioResult),
    ],
)
def test_a_valid_file_can_be_read(name: str, cls: type) -> None:
    """The schema requires every key needed to read a value."""
    assert CODECS.of(cls).needed <= set(SCHEMA[name].get("required", ()))


FULL_TRAJECTORY = TrajectoryResult(
    **{"matched": False, "summary": "s", "mode": "strict", "expected": "e", "forbidden": "f", "actual": "a"},
    broken=("b",),
    without_calls=True,
    alignment=(AlignedRow(expected="e", call=None, status=RowStatus.MISSING),),
    alignment_more=1,
    name="n",
    score=TrajectoryScore(met=0, precision=0, recall=0),
    parts=(TrajectoryResult(matched=False, summary="s", missing_calls=("e",)),),
)
FULL_CONVERSATION = ConversationResult(
    Conversation(
        "c1",
        (),
        Ending.ERROR,
        shortened=True,
        initial_state={"a": 1},
        mock_state={"b": 1},
        inexact_state=("b",),
        user_calls=(ToolCall("t", {}, None, True, 0),),
        attack=AttackLog("pair", "o", "words"),
        history=(EarlierMessage("user", "u"),),
    ),
    (TurnEvaluation(0, trajectory=FULL_TRAJECTORY),),
    {next(iter(TRAJECTORY_METRICS)): Score(0.5, "")},
    trajectory=FULL_TRAJECTORY,
    failures=(LabelledFailure("c1-1", "c1", 0, "m", "l", "r", Severity.LOW),),
    criteria=(
        CriterionResult(text="t", required=True, result=CriterionOutcome.MET, turn_index=0, reason=""),
    ),
    invalid="role",
    checks=(CheckResult(check="c", passed=True, summary="s", reply="r", turn_index=0),),
    severe_failures=("c1-1",),
    severity_unknown=True,
    time=TimeSpent(model_ms=1.0),
)


def test_the_schema_has_every_key_of_a_conversation() -> None:
    """The schema describes exactly the keys of a conversation with all fields set."""
    thresholds = {"m": 0.5}
    written = mark_vacuous(conversation_json(FULL_CONVERSATION, CaseId("set", "case"), thresholds))
    trajectory, part = written["trajectory"], written["trajectory"]["parts"][0]
    assert written.keys() == SCHEMA["conversation"]["properties"].keys()
    assert trajectory.keys() | part.keys() == SCHEMA["trajectory"]["properties"].keys()
    described = SCHEMA["conversation"]["properties"]["perTurnTrajectory"]["items"]["properties"]
    assert written["perTurnTrajectory"][0].keys() | part.keys() == described.keys()
    assert trajectory["score"].keys() == SCHEMA["trajectoryScore"]["properties"].keys()
    assert written["evaluation"].keys() == SCHEMA["evaluation"]["properties"].keys()
    assert written["checks"][0].keys() == SCHEMA["check"]["properties"].keys()
    assert written["labelledFailures"][0].keys() == SCHEMA["labelledFailure"]["properties"].keys()
    assert written["time"].keys() == SCHEMA["time"]["properties"].keys()


def test_the_schema_has_every_key_of_a_scenario() -> None:
    """The schema describes exactly the keys of a scenario with all fields set."""
    result = ScenarioResult(
        "s",
        "a",
        "f",
        1,
        Verdict(Status.FAILED, (Reason(Status.FAILED, ReasonKind.CONVERSATION, "m"),)),
        information=("i",),
        severity_unknown=True,
        case=CaseId("set", "case"),
        repeat=Repeat(),
        verdict_warnings=(VerdictWarning(code=WarningCode.ONLY_REPLIES, scenario="s", message="m"),),
        intervals={"m": Figure(1, 1)},
        pass_rate=Figure(1, 1),
        goal="g",
        profile="p",
        attack=AttackRate(
            strategy="pair", objectives=("o",), successes=0, attempts=1, low=0, high=1, success_at_k=(0.0,)
        ),
    )
    described = SCHEMA["scenario"]["properties"].keys()
    assert {*CODECS.write(result), "conversations"} == described


def test_fields_that_are_not_stored_exist() -> None:
    """NOT_STORED names only existing fields."""
    for cls, names in NOT_STORED.items():
        assert set(names) <= {each.name for each in fields(cls)}


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("turns", 0, "toolCalls"), None, "turns: toolCalls: 'NoneType' object is not iterable"),
        (("turns", 0), "odd", "turns: expected an object, not 'odd'"),
        (("time", "agentMs"), "odd", "time: agentMs: expected a number, not 'odd'"),
        (("evaluation", "goalCompletion"), {}, "goalCompletion: expected a value of another form, not {}"),
    ],
)
def test_a_damaged_value_is_refused_by_its_key(
    path: tuple[str | int, ...], value: object, problem: str
) -> None:
    """The error has the path of keys to the value and what was expected."""
    result = ConversationResult(Conversation("c1", (Turn(0, "Hi.", "Yes."),), Ending.SCRIPT))
    written = json.loads(encoded(CODECS.write(result)))
    inner = written
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=re.escape(problem)):
        CODECS.read(ConversationResult, written)


def test_a_missing_key_is_named() -> None:
    """A value without a required key is refused with the key's name."""
    with pytest.raises(LookupError, match="it has no agentMessage and no turnIndex"):
        CODECS.read(Turn, {"userMessage": "Hi."})
