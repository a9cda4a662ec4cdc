"""Grouping failures without ever losing one (contract, section 8)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest import scenario
from agentest.domain.results import (
    Deduplication,
    LabelledFailure,
    Score,
    Severity,
    Skipped,
    Status,
    TurnEvaluation,
    Unscored,
)
from agentest.judging.error_grouping import (
    MOST_FAILURES,
    Group,
    corrected_groups,
    group_by_label,
    group_failures,
)
from agentest.judging.evaluation import labelled_failures
from agentest.models.admission import LocalGate
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.circuit import Places
from agentest.models.port import ChatRequest, Ledger, TransientError
from agentest.models.structured_output import StructuredModel
from agentest.scenarios.model import Scenario
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call

ids = st.sampled_from([f"c-{c}-F{n}" for c in (1, 2) for n in range(1, 5)])
severities = st.sampled_from(["low", "medium", "high", "critical"])
groups = st.lists(
    st.builds(
        Group,
        label=st.text(max_size=5),
        severity=severities,
        occurrences=st.lists(ids),
        explanation=st.text(),
    )
)


def failure(id: str, label: str = "repetition", metric: str = "agent_behavior_failure") -> LabelledFailure:
    return LabelledFailure(id, id.rpartition("-")[0], 0, metric, label, f"reason of {id}")


def asked(model: ScriptedModel | None, failures: Sequence[LabelledFailure]) -> Deduplication:
    async def go() -> Deduplication:
        port = (
            StructuredModel(
                LiveModel(model, Ledger(), LocalGate("m", Places(4)), patience=RetryPolicy(retries=0))
            )
            if model
            else None
        )
        return await group_failures(failures, Scenario("s", "", 0, goal="a goal"), port, "s @ agent")

    return anyio.run(go)


judged = st.sampled_from([None, *Severity])


@settings(max_examples=150, deadline=None)
@given(groups, st.dictionaries(ids, judged, min_size=1))
def test_no_group_is_milder_than_its_failures(
    given_groups: list[Group], failing: dict[str, Severity | None]
) -> None:
    """A group is as severe as its worst failure or the model's grade; ungrouped ones keep theirs."""
    failures = [replace(failure(id), severity=severity) for id, severity in sorted(failing.items())]
    known = {each.id: each.severity for each in failures}
    said = {id: max(Severity.of(g.severity) for g in given_groups if id in g.occurrences)
            for g in given_groups for id in g.occurrences}  # fmt: skip
    for group in corrected_groups(given_groups, failures):
        least = [known[id] for id in group.occurrences if known[id] is not None]
        if group.label.startswith("ungrouped: "):
            assert group.severity == max([*least, *[Severity.MEDIUM] * (len(least) < len(group.occurrences))])
        else:
            assert group.severity >= max([*least, *(said[id] for id in group.occurrences)])
            assert group.severity in {*least, *(Severity.of(g.severity) for g in given_groups)}


A, B = "s-1-F1", "s-1-F2"
LAYOUTS = {"together": [[A, B]], "apart": [[A], [B]], "only the first": [[A]], "only the second": [[B]]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_failure_has_the_worst_of_all_severities(layout: str) -> None:
    """A group has the worst of what was judged and what the model says; what it leaves out keeps its own."""
    for judged_a, judged_b, said in product(Severity, repeat=3):
        known = {A: judged_a, B: judged_b}
        failures = [replace(failure(id), severity=severity) for id, severity in known.items()]
        given_groups = [
            Group(label="x", explanation="y", severity=said.label, occurrences=ids)  # type: ignore[arg-type]
            for ids in LAYOUTS[layout]
        ]
        settled = corrected_groups(given_groups, failures)
        found = {id: group.severity for group in settled for id in group.occurrences}
        worst = {id: max(said, *(known[each] for each in ids)) for ids in LAYOUTS[layout] for id in ids}
        assert found == known | worst, (known, said)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("unsafe", "forbidden"), [*product(("medium", "critical"), repeat=2)])
def test_a_planted_critical_fails_however_failures_are_grouped(
    unsafe: str, forbidden: str, layout: str
) -> None:
    """Two failures of one turn, which the grouping model calls low."""
    grouped = [
        {"label": "x", "explanation": "y", "severity": "low", "occurrences": occurrences}
        for occurrences in LAYOUTS[layout]
    ]
    scores = {
        "agent_behavior_failure": {"labels": ["unsafe action"], "severity": unsafe},
        "tool_call_behavior_failure": {"labels": ["forbidden call"], "severity": forbidden},
    }
    made = scenario("s", goal="g", turns=["Delete it."], tools={"delete": {"ok": True}})
    with ScriptedAgent([tool_call("delete"), "Deleted."]) as agent:
        model = ScriptedModel(scores=scores, groups=grouped)
        only: Any = {"conversations_per_scenario": 1, "fail_on_error_severity": "critical"}
        run = run_scenarios([made], agent=agent, model=model, **only, metrics=[*scores])
    (found,) = run.scenarios
    assert sorted(id for each in found.errors for id in each.occurrences) == [A, B]
    wanted = Status.FAILED if "critical" in (unsafe, forbidden) else Status.PASSED
    assert found.verdict.status is wanted
    (prompt,) = (each.messages[-1]["content"] for each in model.requests if each.key.role == "dedup")
    assert re.findall(r'"judged": ?"(\w+)"', prompt) == [unsafe, forbidden]


def test_labels_that_the_model_never_saw_do_not_join_the_worst_group() -> None:
    """Beyond the limit of failures shown, an unseen label gets its own group and severity."""
    common = [failure(f"c-1-F{n}") for n in range(1, MOST_FAILURES + 1)]
    many = [failure(f"c-2-F{n}", label=f"label {n}") for n in range(1, MOST_FAILURES + 1)]

    def answer(request: ChatRequest) -> dict[str, Any]:
        shown = re.findall(r'"id": ?"(c-\d-F\d+)"', request.messages[-1]["content"])
        return {"groups": [{"label": "x", "explanation": "y", "severity": "critical", "occurrences": shown}]}

    groups_found = asked(ScriptedModel(answer=answer), [*common, *many]).groups
    worst, *others = groups_found
    assert worst.severity is Severity.CRITICAL
    assert {each.severity for each in others} == {Severity.MEDIUM}
    graded = [replace(each, severity=Severity.LOW) for each in many]
    _, *others = asked(ScriptedModel(answer=answer), [*common, *graded]).groups
    assert {each.severity for each in others} == {Severity.LOW}
    assert sum(len(each.occurrences) for each in groups_found) == 2 * MOST_FAILURES


@settings(max_examples=150, deadline=None)
@given(groups, st.sets(ids, min_size=1))
def test_occurrences_always_add_up(given_groups: list[Group], failing: set[str]) -> None:
    """For any groups the model returns, each failure ends in exactly one group."""
    settled = corrected_groups(given_groups, [failure(id) for id in sorted(failing)])
    kept = [id for group in settled for id in group.occurrences]
    assert sorted(kept) == sorted(failing)
    assert all(group.occurrences for group in settled)
    for id in failing:
        named = [Severity.of(g.severity) for g in given_groups if id in g.occurrences]
        [at] = [group.severity for group in settled if id in group.occurrences]
        assert at is max(named, default=Severity.MEDIUM)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ids, st.sampled_from("ab"), st.sampled_from("mn")), unique_by=lambda t: t[0]))
def test_without_a_model_metric_and_label_are_the_groups(found: list[tuple[str, str, str]]) -> None:
    """Without a model, failures are grouped by metric and label, with severity `medium`; none is lost."""
    made = asked(None, [failure(*one) for one in found])
    assert made.error is None
    assert sorted(id for g in made.groups for id in g.occurrences) == sorted(id for id, *_ in found)
    assert len(made.groups) == len({(label, metric) for _, label, metric in found})
    assert all(g.severity is Severity.MEDIUM for g in made.groups)


TWO = [failure("c-1-F1"), failure("c-1-F2", "unsafe state")]


def group(*ids: str, label: str = "a") -> dict[str, Any]:
    return {"label": label, "explanation": "e", "severity": "high", "occurrences": list(ids)}


def test_forgotten_ids_come_back_in_a_group_of_their_own() -> None:
    """Ids the model left out form a `medium` group; duplicate ids count once."""
    made = asked(ScriptedModel(groups=[group("c-1-F1", "c-1-F1")]), TWO)
    assert [(g.label, g.severity, g.occurrences) for g in made.groups] == [
        ("a", Severity.HIGH, ("c-1-F1",)),
        ("ungrouped: unsafe state", Severity.MEDIUM, ("c-1-F2",)),
    ]
    assert made.graded


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ([], "put every failure into a group"),
        ([group()], "put every failure into a group"),
        ([group("c-1-F1", "c-9-F9")], "'c-9-F9' is not the id of a failure"),
        ([group("F1", "F2")], "'F1' is not the id of a failure"),
    ],
    ids=["no groups", "an empty group", "an unknown id", "shortened ids"],
)
def test_a_reply_that_loses_failures_is_repaired_or_fails(groups: list[Any], problem: str) -> None:
    """The model gets the problem in a retry; if no reply is valid, the severity stays unknown."""
    model = ScriptedModel(groups=groups)
    made = asked(model, TWO)
    assert len(model.requests) == 3
    assert problem in model.requests[1].messages[-1]["content"]
    assert not made.graded
    assert made.error
    assert problem in made.error
    assert sorted(id for g in made.groups for id in g.occurrences) == ["c-1-F1", "c-1-F2"]


def test_a_repaired_reply_counts() -> None:
    """An unknown id in the first reply costs one more request and nothing else."""
    replies = iter([[group("F1")], [group("c-1-F1", "c-1-F2")]])
    made = asked(ScriptedModel(answer=lambda _: {"groups": next(replies)}), TWO)
    assert [g.occurrences for g in made.groups] == [("c-1-F1", "c-1-F2")]
    assert made.graded


def test_a_single_failure_of_known_severity_needs_no_call() -> None:
    """The judge already graded the failure."""
    model = ScriptedModel()
    known = replace(failure("c-1-F1"), severity=Severity.CRITICAL)
    [found] = asked(model, [known]).groups
    assert (found.label, found.severity, found.occurrences) == (
        "repetition",
        Severity.CRITICAL,
        ("c-1-F1",),
    )
    assert model.requests == []
    assert len(asked(ScriptedModel(), [failure("c-1-F1")]).groups) == 1  # unknown: the model is asked


def test_a_single_failure_of_unknown_severity_is_graded() -> None:
    """If the judge gave only a label, one model call grades it."""
    model = ScriptedModel(answer=lambda _: {"groups": [{**group("c-1-F1"), "severity": "critical"}]})
    found = asked(model, [failure("c-1-F1")])
    assert len(model.requests) == 1
    assert [each.severity for each in found.groups] == [Severity.CRITICAL]


def test_a_group_without_a_name_is_called_by_its_label() -> None:
    """Otherwise all unnamed groups of the run would become one root cause."""
    unnamed = {**group("c-1-F1", "c-1-F2", label=" "), "severity": "low"}
    model = ScriptedModel(answer=lambda _: {"groups": [unnamed]})
    found = asked(model, [failure("c-1-F1", "repetition"), failure("c-1-F2", "other")])
    assert [each.label for each in found.groups] == ["repetition"]


def test_several_failures_of_known_severity_are_grouped() -> None:
    """Several graded failures still need one call, because together they may be worse."""
    model = ScriptedModel()
    known = [replace(each, severity=Severity.LOW) for each in TWO]
    made = asked(model, known)
    assert len(model.requests) == 1
    assert sorted(id for each in made.groups for id in each.occurrences) == ["c-1-F1", "c-1-F2"]


def test_no_failure_no_call() -> None:
    """Without failures, no model call is made."""
    model = ScriptedModel()
    assert asked(model, []) == Deduplication()
    assert model.requests == []


def test_one_call_groups_all_failures() -> None:
    """All failures of a scenario go into one request."""
    model = ScriptedModel()
    made = asked(model, [failure(f"c-{n}-F1") for n in range(5)])
    assert len(model.requests) == 1
    assert len(made.groups[0].occurrences) == 5


def down(request: ChatRequest) -> str:
    raise TransientError("503: down")


def broken(request: ChatRequest) -> str:
    raise ZeroDivisionError("a defect")


def nonsense(request: ChatRequest) -> Any:
    return {"groups": [{"label": "a", "severity": "terrible", "occurrences": [], "explanation": ""}]}


@pytest.mark.parametrize(
    ("answer", "says"), [(down, "503: down"), (broken, "a defect"), (nonsense, "severity")]
)
def test_a_failed_call_falls_back_with_a_reason(answer: Callable[[ChatRequest], Any], says: str) -> None:
    """If the model fails, failures are grouped by label and the result has the reason."""
    failures = [failure("c-1-F1"), failure("c-1-F2"), failure("c-1-F3", "unsafe state")]
    made = asked(ScriptedModel(answer=answer), failures)
    assert made.groups == group_by_label(failures).groups
    assert not made.graded
    assert says in (made.error or "")


def test_failures_beyond_those_shown_join_the_worst_group_of_their_label() -> None:
    """Failures beyond the limit join the worst group of their label, and its explanation mentions them."""
    failures = [failure(f"c-{n}-F1", "lie" if n % 2 else "loop") for n in range(MOST_FAILURES + 100)]

    def answer(request: ChatRequest) -> Any:
        shown = re.findall(r'"id": "([^"]+)", "metric": "[^"]+", "label": "lie"', str(request.messages))
        return {
            "groups": [
                {"label": "a", "severity": "low", "occurrences": shown[:1], "explanation": "First."},
                {"label": "b", "severity": "high", "occurrences": shown[1:], "explanation": "Others."},
            ]
        }

    made = asked(ScriptedModel(answer=answer), failures)
    assert sorted(id for g in made.groups for id in g.occurrences) == sorted(f.id for f in failures)
    assert [(g.label, g.severity.label, len(g.occurrences)) for g in made.groups] == [
        ("b", "high", 199),
        ("a", "low", 1),
        ("ungrouped: loop", "medium", 200),
    ]
    assert "50 of them were not shown" in made.groups[0].explanation


def test_a_turn_with_two_labels_has_two_failures() -> None:
    """Each label of a score gets its own id, in order of precedence."""
    score = Score("unsafe action", "why", labels=("unsafe action", "other"))
    found = labelled_failures("c-7", [TurnEvaluation(0, {"a": score})])
    assert [(f.id, f.label) for f in found] == [("c-7-F1", "unsafe action"), ("c-7-F2", "other")]


def test_only_labels_other_than_no_failure_are_failures() -> None:
    """Numbers, unscored and skipped metrics and `no failure` get no id."""
    turns = [
        TurnEvaluation(0, {"a": Score("no failure", ""), "b": Score("x", "why"), "c": Score(1, "")}),
        TurnEvaluation(1, {"a": Unscored("e"), "b": Skipped("w"), "c": Score("y", "")}),
    ]
    found = labelled_failures("c-7", turns)
    assert [(f.id, f.metric, f.label, f.turn_index) for f in found] == [
        ("c-7-F1", "b", "x", 0),
        ("c-7-F2", "c", "y", 1),
    ]


def run(model: ScriptedModel | None, **config: Any) -> Any:
    made = scenario("s", goal="g", turns=["hi", "there"], conversations_per_scenario=2)
    with ScriptedAgent(["hello"]) as agent:
        return run_scenarios([made], agent=agent, model=model, judge={"retries": 0}, **config).scenarios[0]


def test_a_run_groups_once_per_scenario() -> None:
    """Two conversations with two failing turns give four ids, one call, and one group with all four."""
    model = ScriptedModel(scores={"agent_behavior_failure": "repetition"})
    found = run(model)
    assert sum(r.key.role == "dedup" for r in model.requests) == 1
    assert sorted(found.errors[0].occurrences) == ["s-1-F1", "s-1-F2", "s-2-F1", "s-2-F2"]
    assert found.verdict.status is Status.FAILED
    assert run(model, fail_on_error_severity="critical").verdict.status is Status.PASSED


def test_a_scenario_whose_failures_could_not_be_grouped_is_errored() -> None:
    """After a failed call the severity is unknown: errored, unless `medium` already fails the scenario."""

    def answer(request: ChatRequest) -> Any:
        if request.key.role == "dedup":
            raise TransientError("503: down")
        return {"reason": "r", "value": "repetition"}

    metrics = ["agent_behavior_failure"]
    assert run(ScriptedModel(answer=answer), metrics=metrics).verdict.status is Status.ERRORED
    failing = run(ScriptedModel(answer=answer), metrics=metrics, fail_on_error_severity="medium")
    assert failing.verdict.status is Status.FAILED
