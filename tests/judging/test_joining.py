"""Joining the graded groups of different scenarios, with one call per fifty groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import builders
import pytest

from agentest.domain.results import CauseJoin, Severity, UniqueError
from agentest.domain.root_causes import JudgedCause, judged_causes, root_causes_of
from agentest.judging.cause_joining import GROUPS_PER_CALL, MOST_GROUPS, CauseJoiner, can_join
from agentest.models.admission import LocalGate
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.circuit import Places
from agentest.models.port import ChatRequest, Ledger
from agentest.models.structured_output import StructuredModel
from agentest.support.errors import ModelError
from agentest.testing import ScriptedModel


def causes(*labels: str) -> list[JudgedCause]:
    """One group in each of several scenarios, with these labels."""
    return judged_causes(
        builders.scenario_result(
            f"s{n}", errors=[UniqueError(label, Severity.LOW, (f"s{n}-1-F1",), f"why {label}")]
        )
        for n, label in enumerate(labels)
    )


def lines(request: ChatRequest) -> list[dict[str, Any]]:
    text = request.messages[-1]["content"] if len(request.messages) == 2 else request.messages[1]["content"]
    return [json.loads(line) for line in text.split("\n") if line.startswith('{"id"')]


def by_first_letter(request: ChatRequest) -> dict[str, Any]:
    """Give labels with the same first letter the same cause."""
    found: dict[str, list[str]] = {}
    for line in lines(request):
        found.setdefault(line["label"][0], []).append(line["id"])
    return {"causes": [{"title": f"{letter} cause", "groups": ids} for letter, ids in found.items()]}


def joined(
    groups: Sequence[str] | Sequence[JudgedCause], answer: Callable[[ChatRequest], Any]
) -> tuple[CauseJoiner, ScriptedModel, ModelError | None]:
    model = ScriptedModel(answer=answer)
    problem: ModelError | None = None

    async def go() -> CauseJoiner:
        nonlocal problem
        live = LiveModel(model, Ledger(), LocalGate("m", Places(4)), patience=RetryPolicy(retries=0))
        names = [each for each in groups if isinstance(each, str)]
        judged = causes(*names) if names else [each for each in groups if isinstance(each, JudgedCause)]
        joining = CauseJoiner(judged, StructuredModel(live), "the run")
        try:
            await joining.run()
        except ModelError as error:
            problem = error
        return joining

    return anyio.run(go), model, problem


def test_groups_with_one_cause_are_joined() -> None:
    """Groups that share no cause keep their labels."""
    joining, model, _ = joined(["apple pie", "berry", "apple juice"], by_first_letter)
    assert [(join.title, set(join.labels)) for join in joining.joins] == [
        ("a cause", {"apple pie", "apple juice"})
    ]
    assert len(model.requests) == 1
    assert {line["label"] for line in lines(model.requests[0])} == {"apple pie", "berry", "apple juice"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"causes": [{"title": "t", "groups": ["G1", "G2", "G9"]}]}, "not among the groups: G9"),
        ({"causes": [{"title": "t", "groups": ["G1"]}]}, "in no cause: G2"),
        ({"causes": [{"title": "t", "groups": ["G1", "G1", "G2"]}]}, "several causes, or twice in one: G1"),
        ({"causes": [{"title": "t", "groups": ["G1", "G2"]}, {"title": "u", "groups": []}]}, "has no groups"),
        ({"causes": []}, "in no cause: G1, G2"),
    ],
)
def test_an_answer_with_wrong_ids_is_repaired(answer: Any, problem: str) -> None:
    """The retry tells the model what was wrong, and its second answer counts."""
    answers = iter([answer, {"causes": [{"title": "both", "groups": ["G2", "G1"]}]}])
    joining, model, _ = joined(["a", "b"], lambda _: next(answers))
    assert [join.title for join in joining.joins] == ["both"]
    assert len(model.requests) == 2
    assert problem in model.requests[1].messages[-1]["content"]


def test_without_a_valid_answer_groups_stay_apart() -> None:
    """Nothing is joined, and no group is lost."""
    joining, _, problem = joined(["a", "b"], lambda _: {"causes": []})
    assert problem
    assert joining.joins == ()
    assert len(root_causes_of([scenario for c in causes("a", "b") for scenario, _ in c.groups])) == 2


def test_joins_survive_a_later_failed_call() -> None:
    """A later call sees earlier causes and adds to them; if it fails, they stay."""
    labels = [f"{'ab'[n % 2]}{n:03}" for n in range(GROUPS_PER_CALL + 10)]
    joining, model, _ = joined(labels, by_first_letter)
    assert len(model.requests) == 2
    assert [line["label"] for line in lines(model.requests[1])][:2] == ["a cause", "b cause"]
    assert len(lines(model.requests[1])) == 2 + 10
    assert [request.key.turn for request in model.requests] == [0, 1]
    assert sorted(len(join.labels) for join in joining.joins) == [30, 30]

    def fails_later(request: ChatRequest) -> Any:
        return by_first_letter(request) if len(lines(request)) == GROUPS_PER_CALL else "no"

    joining, _, problem = joined(labels, fails_later)
    assert problem
    assert sum(len(join.labels) for join in joining.joins) == GROUPS_PER_CALL


def test_the_number_of_calls_is_bounded() -> None:
    """If there are too many groups, only the worst and most frequent are compared."""
    labels = [f"label {n}" for n in range(MOST_GROUPS + 200)]

    def apart(request: ChatRequest) -> dict[str, Any]:
        return {"causes": [{"title": "t", "groups": [line["id"]]} for line in lines(request)]}

    joining, model, _ = joined(labels, apart)
    assert len(model.requests) == MOST_GROUPS // GROUPS_PER_CALL
    assert joining.joins == ()
    assert max(len(lines(request)) for request in model.requests) == 2 * GROUPS_PER_CALL


def test_later_calls_show_the_largest_causes() -> None:
    """Every call shows a cause that many groups share, so that later groups can join it."""
    apart, shared = GROUPS_PER_CALL, 4 * GROUPS_PER_CALL
    labels = [f"{chr(0x4E00 + n) if n < apart or n % 3 else 'a'}{n:03}" for n in range(apart + shared)]
    joining, _, _ = joined(labels, by_first_letter)
    assert [len(join.labels) for join in joining.joins] == [sum(label[0] == "a" for label in labels)]


def test_the_line_of_a_group() -> None:
    """A joined cause shows the facts of all its groups, and no text can end its block."""
    told = [
        builders.scenario_result(
            f"s{n}", errors=[UniqueError(label, severity, (f"s{n}-1-F1",), "</data> why")]
        )
        for n, (label, severity) in enumerate(
            [("Apple, pie!", Severity.LOW), ("apple juice", Severity.HIGH), ("berry", Severity.LOW)]
        )
    ]
    join = CauseJoin(title="apples", labels=("apple pie", "apple juice"))
    _, model, _ = joined(judged_causes(told, [join]), by_first_letter)
    first, _ = lines(model.requests[0])
    assert first == {
        "id": "G1",
        "label": "apples",
        "severity": "high",
        "scenarios": 2,
        "first_scenario": "s0",
        "explanation": "&lt;/data&gt; why",
    }
    assert '<data name="groups">' in model.requests[0].messages[-1]["content"]


def test_joins_name_labels_as_they_are_compared() -> None:
    """Labels are normalized, so that case and punctuation do not hide them from other runs."""
    joining, _, _ = joined(["Apple, pie!", "Apple juice"], by_first_letter)
    assert {label for join in joining.joins for label in join.labels} == {"apple pie", "apple juice"}


def test_a_later_call_shows_the_worst_severity_and_all_scenarios() -> None:
    """A joined cause has the worst severity and all scenarios, in whatever order the model names groups."""
    told = [
        builders.scenario_result(
            f"s{n}", errors=[UniqueError(f"a{n:03}", Severity.LOW if n else Severity.HIGH, ("x-F1",), "why")]
        )
        for n in range(GROUPS_PER_CALL + 1)
    ]

    def backwards(request: ChatRequest) -> dict[str, Any]:
        return {"causes": [{"title": "a cause", "groups": [line["id"] for line in lines(request)][::-1]}]}

    _, model, _ = joined(judged_causes(told), backwards)
    first = lines(model.requests[1])[0]
    assert (first["label"], first["severity"], first["scenarios"]) == ("a cause", "high", GROUPS_PER_CALL)


def test_causes_that_do_not_fit_stay_joined() -> None:
    """Causes that a later call does not show stay joined."""
    labels = [f"{chr(0x4E00 + n // 2)}{n:03}" for n in range(5 * GROUPS_PER_CALL)]
    joining, _, _ = joined(labels, by_first_letter)
    assert [len(join.labels) for join in joining.joins] == [2] * (len(labels) // 2)


def test_a_single_group_is_shown_by_its_own_label() -> None:
    """A model's title for a single group is ignored."""
    labels = [f"{'a' if n else 'z'}{n:03}" for n in range(GROUPS_PER_CALL + 1)]
    _, model, _ = joined(labels, by_first_letter)
    assert {line["label"] for line in lines(model.requests[1])} == {"a cause", "z000", "a050"}


def test_a_cause_without_a_title_is_called_by_its_first_group() -> None:
    """A cause always has a name in lists."""
    joining, _, _ = joined(["a", "b"], lambda _: {"causes": [{"title": " ", "groups": ["G2", "G1"]}]})
    assert [join.title for join in joining.joins] == ["b"]


def test_one_group_is_compared_with_nothing() -> None:
    joining, model, _ = joined(["a"], by_first_letter)
    assert (joining.joins, model.requests) == ((), [])


def test_640_labels_of_two_bugs_are_two_causes() -> None:
    """Two bugs stay two causes even if each scenario labels them differently."""
    joining, model, _ = joined([f"{'ab'[n % 2]}{n:03}" for n in range(640)], by_first_letter)
    assert sorted(len(join.labels) for join in joining.joins) == [320, 320]
    assert len(model.requests) == 13


def test_only_groups_of_different_scenarios_are_worth_a_call() -> None:
    """No call is made for groups of one scenario, or for equal labels."""
    one = builders.scenario_result("s", errors=[builders.error_group("a"), builders.error_group("b")])
    assert not can_join(judged_causes([one]))
    assert not can_join(causes("Same label", "same label!"))
    assert not can_join([])
    assert can_join(causes("a", "b"))
