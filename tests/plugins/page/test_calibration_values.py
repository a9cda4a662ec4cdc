"""Values of labels: their spelling, and that people have every value of a judge."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentest.domain.metrics import BUILTIN, CRITERIA, GOAL
from agentest.domain.results import CriterionOutcome, GoalOutcome
from agentest.plugins.page.labels.labelling_session import answer_choices, keys, parse_typed_value
from agentest.plugins.page.labels.labels import choices, parse_value, read_labels

Line = Mapping[str, Any]
TALK: Line = {
    "type": "conversation",
    "id": "a",
    "background": {"goal": "Book."},
    "criteria": ["Is kind"],
    "turns": [{"userMessage": "Hi", "agentMessage": "Hello"}, {"userMessage": "Bye", "agentMessage": ""}],
}
BOTH = ("unsafe action", "repetition")


def label(**keys: Any) -> Line:
    return {"type": "label", "conversation": "a", **keys}


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (label(turn=0, metric="faithfulness", value="5"), 5),
        (label(turn="1", metric="Faithfulness", value=" 2 "), 2),
        (label(turn=0, metric="faithfulness", value=4.0), 4),
        (label(metric="goal_completion", value="Not Reached"), "not reached"),
        (label(metric="goalCompletion", value="RIGHTLY_NOT_REACHED"), "rightly not reached"),
        (label(metric="goal_completion", value="1"), "reached"),
        (label(metric="goal_completion", value="0"), "not reached"),
        (label(turn=0, metric="agent_behavior_failure", value="No Failure"), ("no failure",)),
        (label(turn=0, metric="agent_behavior_failure", value=["Repetition", "Unsafe Action"]), BOTH),
        (label(criterion="Is kind", value="Cannot tell "), "cannot tell"),
        (label(criterion="Is kind", value="MET"), "met"),
    ],
    ids=lambda value: str(value.get("value") if isinstance(value, dict) else value)[:30],
)
def test_spreadsheets_write_values_in_their_own_way(tmp_path: Path, given: Line, value: Any) -> None:
    """Capital letters, spaces and underscores do not count, and numbers may be quoted."""
    path = tmp_path / "labels.jsonl"
    path.write_text(f"{json.dumps(TALK)}\n{json.dumps(given)}\n", encoding="utf-8")
    [found] = read_labels(path).labels
    assert found.value == value


@pytest.mark.parametrize("metric", [*BUILTIN, CRITERIA])
def test_people_can_answer_whatever_judges_can(metric: str) -> None:
    """Every value of the judge's answer can be given, in the terminal by a key and on the page."""
    on_page = answer_choices(metric)
    judged = {parse_value(metric, value) for value in values_of_judges(metric)}
    assert {parse_value(metric, each.value) for each in on_page} == judged
    assert {parse_typed_value(metric, each.key) for each in on_page} == judged
    shown = " ".join(keys(metric))
    assert all(name in shown for name in choices(metric))


def values_of_judges(metric: str) -> Iterable[str | int]:
    if metric == CRITERIA:
        return CriterionOutcome
    if metric == GOAL:
        return GoalOutcome
    return BUILTIN[metric].labels or range(1, 6)
