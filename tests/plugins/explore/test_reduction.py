"""Reducing a finding: what is left, when it is called minimal, and how often chance decides wrongly."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import anyio
import pytest
from builders import conversation, conversation_result, tool_call, turn
from explore_lab import unit_of
from hypothesis import given
from hypothesis import strategies as st

from agentest.config.config import ExploreSettings
from agentest.domain.changes import fault, injection
from agentest.domain.results import ConversationResult, Severity
from agentest.domain.results.exploration import ExploredPart, FindingStatus
from agentest.mocks.binding import BoundFunction, MockSequence, bind, steps_of
from agentest.plugins.explore import reduction_steps
from agentest.plugins.explore.exploration import ConversationBudget, Exploration
from agentest.plugins.explore.model import (
    Base,
    BudgetSpent,
    FindingKey,
    Observation,
    Reduced,
    Variation,
    Violation,
)
from agentest.plugins.explore.reduction import ReductionTrial
from agentest.plugins.explore.reduction_steps import REDUCTIONS, SeenConversations
from agentest.scenarios.definition import scenario
from agentest.scenarios.model import Scenario
from agentest.scenarios.variations import acted, as_base
from agentest.support.lazy_dataclasses import replace
from agentest.support.statistics.sequential import ErrorRates, RatioTest, SequentialDecision

KEY = FindingKey("no_claim", "pay")
VIOLATION = Violation(key=KEY, severity=Severity.HIGH, title="pay is claimed", text="It says that it paid.")
Fails = Callable[[Scenario], bool]


class Agent:
    """A stand-in for conversations: it fails with probability `rate` if `fails` says so of the scenario."""

    def __init__(self, fails: Fails, rate: float = 1.0, seed: int = 0, budget: int = 10_000) -> None:
        self.fails, self.rate, self.budget = fails, rate, budget
        self.random = random.Random(seed)
        self.names: list[tuple[str, int]] = []

    async def observe(self, tried: Scenario, name: str, number: int) -> ConversationResult:
        if len(self.names) >= self.budget:
            raise BudgetSpent
        self.names.append((name, number))
        failed = self.fails(tried) and (self.rate == 1 or self.random.random() < self.rate)
        calls = tuple(
            tool_call(name, {}, answer if not callable(answer) else answer.function())
            for name, answer in tried.tools.items()
        )
        texts = [each.user_message for each in tried.turns] or ["Pay it.", "And then?", "Thanks."]
        turns = [turn(n, text, agent="Paid." if failed else "Sorry.") for n, text in enumerate(texts)]
        turns[0] = turn(0, texts[0], agent=turns[0].agent_message, tool_calls=calls)
        return conversation_result(turns=(), held=conversation(turns=turns))

    def violation_in(self, _: Scenario, result: ConversationResult) -> Violation | None:
        return VIOLATION if result.conversation.turns[-1].agent_message == "Paid." else None

    def reduce(self, tried: Scenario, conversations: int = 60, *, shrink: bool = True) -> Reduced | None:
        settings = ExploreSettings.model_validate({"shrink": {"conversations": conversations}})
        reduce = partial(ReductionTrial, settings, settings.shrink.conversations if shrink else 0)

        async def run() -> Reduced | None:
            trial = reduce(tried, "try", self.observe, self.violation_in)
            if await trial.confirm() is None:
                return None
            await trial.shrink()
            return await trial.measure()

        return anyio.run(run)


def answer() -> dict[str, Any]:
    return {"paid": True}


def paying() -> Scenario:
    return scenario(
        "pays",
        profile="A hurried person.",
        knowledge=["The invoice has number 7.", "It is due on Monday."],
        turns=["Hello there.", "I have a question. Please pay invoice 7 now.", "Thank you very much for it."],
        tools={
            "search": {"results": [{"id": "a-1", "price": 120}, {"id": "a-2", "price": 80}], "more": 3},
            "pay": answer,
        },
        faults=[
            fault("rate_limit", tool="search", at=2),
            fault("timeout", tool="pay", at=3, times=2, delay=1.5),
        ],
    )


def pays_under_fault(tried: Scenario) -> bool:
    said = " ".join(each.user_message for each in tried.turns)
    return "pay" in said and any(each.tool == "pay" for each in tried.faults)


def test_a_failing_conversation_becomes_the_smallest_that_still_fails() -> None:
    agent = Agent(pays_under_fault)
    reduced = agent.reduce(paying())
    assert reduced
    left = reduced.scenario
    assert [each.user_message for each in left.turns] == ["Please pay invoice 7 now."]
    assert left.changes == (fault("error", tool="pay"),)
    assert left.tools == {"search": {"more": 1}, "pay": {"paid": True}}
    assert (left.profile, left.knowledge) == ("", ())
    assert reduced.minimal
    assert (reduced.rate.k, reduced.rate.n) == (20, 20)
    assert len(agent.names) == len(set(agent.names))


def test_a_simulated_user_becomes_a_script() -> None:
    tried = scenario("pays", goal="Pay.", profile="A person.", knowledge=["Invoice 7."], tools={"pay": 1})
    reduced = Agent(lambda each: True).reduce(tried)
    assert reduced
    assert [each.user_message for each in reduced.scenario.turns] in (["Pay it."], ["And then?"], ["Thanks."])
    assert (reduced.scenario.goal, reduced.scenario.knowledge) == ("", ())


def test_an_agent_that_fails_in_three_of_ten_is_reduced_all_the_same() -> None:
    """Wrong decisions are rare, though not impossible: 20 fixed seeds."""
    turns = ["Hello.", "Is it due?", "Well, pay it.", "Thanks.", "Bye."]
    tried = scenario("pays", turns=turns, tools={"pay": 1})
    found = []
    for seed in range(20):
        agent = Agent(lambda each: any("pay" in turn.user_message for turn in each.turns), 0.3, seed)
        found.append(agent.reduce(tried, 400))
    reduced = [each for each in found if each]  # five confirming conversations may all pass
    assert len(reduced) >= 14
    assert sum(each.rate.low < 0.3 < each.rate.high for each in reduced) >= len(reduced) - 2
    assert sum(len(each.scenario.turns) == 1 for each in reduced) >= len(reduced) - 2
    assert all(any("pay" in turn.user_message for turn in each.scenario.turns) for each in reduced)


def test_what_never_fails_again_is_no_finding() -> None:
    agent = Agent(lambda _: False)
    assert agent.reduce(paying()) is None
    assert agent.names == [("try · confirm", number) for number in range(1, 6)]


def test_a_spent_budget_leaves_it_reduced_but_not_minimal() -> None:
    agent = Agent(pays_under_fault)
    reduced = agent.reduce(paying(), 6)
    assert reduced
    assert not reduced.minimal
    assert len(reduced.scenario.changes) == 1
    assert len(agent.names) == 5 + 6 + 20


@pytest.mark.parametrize("budget", range(31))
def test_the_budget_of_the_exploration_may_end_at_any_moment(budget: int) -> None:
    agent = Agent(pays_under_fault, budget=budget)
    if budget == 0:
        with pytest.raises(BudgetSpent):
            agent.reduce(paying())
        return
    reduced = agent.reduce(paying())
    assert reduced
    assert reduced.rate.k == reduced.rate.n > 0
    assert len(agent.names) == budget


def test_without_shrinking_only_the_rate_is_measured() -> None:
    agent = Agent(pays_under_fault)
    reduced = agent.reduce(paying(), shrink=False)
    assert reduced
    assert reduced.scenario.turns == paying().turns
    assert not reduced.minimal
    assert len(agent.names) == 25


def test_one_conversation_decides_until_the_first_surprise() -> None:
    """An agent that looked deterministic, but fails seldom in a smaller form, is reduced by the test."""
    agent = Agent(lambda _: True)
    picky = random.Random(1)

    def fails(tried: Scenario) -> bool:
        return len(tried.turns) == 3 or picky.random() < 0.6

    agent.fails = fails
    tried = scenario("pays", turns=["One.", "Two.", "Three."], tools={"pay": 1})
    reduced = agent.reduce(tried, 200)
    assert reduced
    assert any("second rate" in name for name, _ in agent.names)
    assert any(number > 1 and "step" in name for name, number in agent.names)


def test_an_answer_that_an_agent_needs_when_all_goes_well_stays() -> None:
    """The control conversation, without the fault, calls other tools when the list is empty."""
    agent = Agent(pays_under_fault)
    plain_observe = agent.observe

    async def observe(tried: Scenario, name: str, number: int) -> ConversationResult:
        result = await plain_observe(tried, name, number)
        search = tried.tools["search"]
        if not tried.faults and "id" not in str(search):
            return conversation_result(turns=(), held=conversation(turns=[turn(agent="Sorry.")]))
        return result

    agent.observe = observe  # type: ignore[method-assign]
    reduced = agent.reduce(paying())
    assert reduced
    assert reduced.scenario.tools["search"] == {"results": [{"id": "a-1"}]}


RATE = {"high": 0.5, "low": 0.125}


@pytest.mark.parametrize(("values", "accepted"), [([1, 1, 1], True), ([0, 0, 0, 0, 0], False)])
def test_a_certain_failure_takes_three_conversations_and_a_lost_one_five(
    values: list[int], accepted: bool
) -> None:
    test = RatioTest(**RATE, last=40, errors=ErrorRates(missed=0.1, holds=0.05))
    for n in range(1, len(values)):
        assert test.is_open(n, sum(values[:n]))
    wanted = SequentialDecision.HOLDS if accepted else SequentialDecision.MISSED
    assert test.standing(len(values), sum(values)) is wanted


@pytest.mark.parametrize(
    ("rate", "high", "fewest", "most"),
    [(0.125, 0.5, 0.0, 0.05), (0.05, 0.2, 0.0, 0.05), (0.3, 0.2, 0.95, 1.0), (0.5, 0.5, 0.88, 1.0)],
)
def test_error_rates_are_as_promised(rate: float, high: float, fewest: float, most: float) -> None:
    test = RatioTest(high=high, low=high / 4, last=40, errors=ErrorRates(missed=0.1, holds=0.05))
    draw = random.Random(f"{rate} {high}")
    accepted = 0
    for _ in range(4_000):
        values = hits = 0
        while test.is_open(values, hits):
            values += 1
            hits += draw.random() < rate
        accepted += test.standing(values, hits) is SequentialDecision.HOLDS
    assert fewest <= accepted / 4_000 <= most


# Properties of the reductions

TEXTS = st.text("abc .!?7", min_size=1, max_size=30).filter(lambda text: bool(text.strip()))
LEAVES = st.none() | st.booleans() | st.integers(-9, 999) | st.floats(0, 9) | st.text(max_size=60)
ANSWERS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    turns = draw(st.lists(TEXTS, min_size=1, max_size=5))
    plain = Scenario(
        "s",
        "/s.sim.py",
        1,
        profile=draw(st.sampled_from(["", "A person."])),
        goal=draw(st.sampled_from(["", "Pay."])),
        knowledge=tuple(draw(st.lists(TEXTS, max_size=2))),
    )
    tools = {"search": draw(ANSWERS), "pay": bind(answer)}
    script = scenario("s", turns=turns, tools={"search": 1}).turns if draw(st.booleans()) else ()
    if script and draw(st.booleans()):
        plain = Scenario(**{**_fields(plain), "goal": ""})
    faults = draw(
        st.lists(
            st.builds(
                fault,
                st.sampled_from(["error", "timeout", "malformed"]),
                st.integers(1, 4),
                st.integers(1, 2),
                tool=st.sampled_from(["search", "pay"]),
                delay=st.sampled_from([0, 1.5]),
            ),
            max_size=2,
        )
    )
    at = st.sampled_from(["search.text", "user", "user[1]", "knowledge[0]"])
    planted = draw(st.lists(st.builds(injection, st.just("direct"), at=at), max_size=2))
    return Scenario(**{**_fields(plain), "turns": script, "tools": tools, "changes": (*faults, *planted)})


def _fields(each: Scenario) -> dict[str, Any]:
    return {field.name: getattr(each, field.name) for field in fields(each)}


def size(scenario: Scenario) -> tuple[int, ...]:
    """Return the size of a scenario, which each reduction makes smaller; compared from left to right."""
    mocks, faults = list(scenario.tools.values()), scenario.faults
    return (
        0 if scenario.scripted else 1,
        len(scenario.changes),
        len(scenario.turns),
        len(scenario.knowledge) + sum(bool(text) for text in reduction_steps._descriptions(scenario)),
        len(mocks),
        sum(isinstance(step, BoundFunction) for mock in mocks for step in steps_of(mock)),
        sum(len(turn.user_message) for turn in scenario.turns),
        sum(map(_mock_weight, mocks)),
        sum(reduction_steps._PLAINNESS.get(each.kind, 2) for each in faults),
        sum(each.at + each.times for each in faults),
        sum(
            getattr(each, name) != reduction_steps._DEFAULTS[name]
            for each in faults
            for name in reduction_steps._SETTINGS
        ),
    )


def _mock_weight(mock: Any) -> int:
    if isinstance(mock, MockSequence):
        return 1 + sum(map(_mock_weight, mock.steps))
    return _weight(mock) if reduction_steps._is_json(mock) else 1


def _weight(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + sum(1 + len(str(key)) + _weight(item) for key, item in value.items())
    if isinstance(value, list):
        return 1 + sum(map(_weight, value))
    if isinstance(value, str):
        return 1 + len(value)
    if type(value) in (int, float):
        return 1 if value in (0, 1) else 2 + len(str(value))
    return 1


@given(scenarios())
def test_each_candidate_is_a_smaller_scenario_of_the_same_tools_and_changes(tried: Scenario) -> None:
    talk = conversation(turns=[turn(0, "One."), turn(1, "Two.", tool_calls=(tool_call("pay", {}, 1),))])
    before = size(tried)
    for reduction in REDUCTIONS:
        for smaller in reduction(tried, SeenConversations(talk, 1, talk, talk)):
            assert size(smaller) < before, reduction.__name__
            assert (smaller.file, smaller.line, smaller.name) == (tried.file, tried.line, tried.name)
            assert smaller.tools.keys() <= tried.tools.keys()
            assert all(each.user_message.strip() for each in smaller.turns)
            assert smaller.turns or smaller.goal or smaller.profile or not tried.scripted
            assert len(smaller.changes) >= min(1, len(tried.changes))


@given(scenarios())
def test_changes_are_applied_once_and_leave_the_scenario_as_it_is(tried: Scenario) -> None:
    run = acted(tried)
    texts = [turn.user_message for turn in run.turns], run.knowledge
    planted = [each for each in tried.injections if each.place in ("user", "knowledge")]
    there = [each for each in planted if (tried.turns if each.place == "user" else tried.knowledge)]
    assert sum(text.count("a stranger sent me") for some in texts for text in some) == len(there)
    assert as_base(replace(tried, tools=run.tools, changes=())).changes == tuple(
        each for name in tried.tools for each in tried.changes if each.place == name
    )
    assert all(run.tools[each.place] != tried.tools[each.place] for each in tried.faults)


def test_a_rare_finding_is_confirmed_again_when_another_change_shows_it() -> None:
    """Seen once, then not in five conversations: the next change that shows it counts."""
    unit = unit_of(scenario("s", turns=["One."], tools={"pay": 1}))
    variations = [
        Variation(
            part=ExploredPart.FAULTS,
            name=str(n),
            group=str(n),
            scenario=unit.scenario,
            cells=((ExploredPart.FAULTS, "pay", str(n)),),
        )
        for n in range(6)
    ]

    confirmations: set[str] = set()

    def outcome(fails: bool) -> ConversationResult:
        return conversation_result(
            turns=(), held=conversation(turns=[turn(agent="Paid." if fails else "Sorry.")])
        )

    async def observe(_: Scenario, name: str, number: int) -> ConversationResult:
        confirmations.update([name] if "confirm" in name else [])
        return outcome("confirm" not in name or len(confirmations) == 2)

    def invariants(seen: Observation) -> list[Violation]:
        return [VIOLATION] if seen.result.conversation.replies == ("Paid.",) else []

    exploration = Exploration(
        parts={ExploredPart.FAULTS: lambda _: variations},
        invariants=invariants,
        reduce=partial(ReductionTrial, ExploreSettings(), ExploreSettings().shrink.conversations),
        save=None,
        budget=ConversationBudget(500),
        width=1,
    )
    anyio.run(exploration.run, [Base(unit, [outcome(fails=False)])], lambda _: observe)
    [finding] = exploration.explored().findings
    assert finding.status is FindingStatus.NEW
