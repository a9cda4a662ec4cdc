"""What is stored is read back as it was, and the schema describes the fields of what is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from enum import Enum
from importlib.resources import files
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentest.domain.results import (
    AlignedRow,
    ConversationResult,
    Figure,
    ModelUsage,
    Score,
    TrajectoryResult,
    UniqueError,
)
from agentest.domain.transcript import Remark, TimeSpent, ToolCall, Turn, UnfinishedTurn, Usage
from agentest.store import shapes
from agentest.store import shapes as lines
from agentest.store.codec import CODECS, NOT_STORED
from agentest.store.conversations import result_of, stored_conversation
from agentest.store.shapes import StoredConversation
from agentest.support.json_text import encoded

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
    """Values of a type; every field of a dataclass is drawn, but for those that are not stored."""
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
        ToolCall,
        Usage,
        Remark,
        TimeSpent,
        Score,
        shapes.StoredCheck,
        UniqueError,
        shapes.RunUsage,
        shapes.StoredTrajectory,
        shapes.StoredFailure,
        shapes.TurnScores,
        lines.RunLine,
    ],
)
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_stored_value_is_read_back(cls: type, data: st.DataObject) -> None:
    """Whatever the fields of a stored value hold, it is read from its JSON as it was."""
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
    )


def _told(trajectory: TrajectoryResult | None) -> TrajectoryResult | None:
    if trajectory is None:
        return None
    parts = tuple(filter(None, map(_told, trajectory.parts)))
    return replace(trajectory, parts=parts, matched=trajectory.matched and not trajectory.error)


@given(values(ConversationResult).map(consistent))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_conversation_is_read_back(result: ConversationResult) -> None:
    """A conversation with its evaluation is read back as it was, but for the fields that are not stored."""
    written = json.loads(encoded(CODECS.write(stored_conversation(result))))
    assert result_of(CODECS.read(StoredConversation, written)) == result


DESCRIBED = {
    "turn": Turn,
    "unfinishedTurn": UnfinishedTurn,
    "toolCall": ToolCall,
    "tokens": Usage,
    "roleUsage": ModelUsage,
    "runUsage": shapes.RunUsage,
    "check": shapes.StoredCheck,
    "errorGroup": UniqueError,
    "evaluation": shapes.StoredEvaluation,
    "turnEvaluation": shapes.TurnScores,
    "trajectory": shapes.StoredTrajectory,
    "trajectoryScore": shapes.StoredTrajectoryScore,
    "alignedRow": AlignedRow,
    "labelledFailure": shapes.StoredFailure,
    "figure": Figure,
    "conversation": shapes.StoredConversation,
    "scenario": shapes.StoredEntry,
    "comparedScenario": shapes.ComparedScenario,
    "counts": shapes.Counts,
    "time": shapes.StoredTime,
    "slowTurn": shapes.StoredSlowTurn,
    "comparisonSummary": shapes.Summary,
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_schema_has_every_field(name: str) -> None:
    """The schema describes each key that is written, and no other."""
    assert set(CODECS.of(DESCRIBED[name]).keys) == set(SCHEMA[name]["properties"])


def test_the_schema_has_every_field_of_a_turn_s_trajectory() -> None:
    """What stands within a conversation without a name of its own is described as wholly."""
    described = SCHEMA["conversation"]["properties"]["perTurnTrajectory"]["items"]["properties"]
    assert set(CODECS.of(shapes.TurnTrajectory).keys) == set(described)


def test_fields_that_are_not_stored_exist() -> None:
    """The list of what is not stored names fields."""
    for cls, names in NOT_STORED.items():
        assert set(names) <= {each.name for each in fields(cls)}
