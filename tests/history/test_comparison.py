"""Comparing two runs: regressions, noise and unknowns."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from io import StringIO
from random import Random
from typing import Any

import builders
import pytest
from jsonschema import Draft202012Validator

from agentest.domain.end_reason import Ending
from agentest.domain.reasons import MeasuredConversation
from agentest.domain.results import Reason, ReasonKind, ScenarioResult, Status, Verdict
from agentest.history.compared_runs import (
    MeasuredRun,
    MeasuredScenario,
    measure_run,
    measure_scenario,
    part_of_agent,
)
from agentest.history.comparison import (
    BETTER,
    LEVEL,
    TESTED,
    WORSE,
    Change,
    ComparedFigure,
    Comparison,
    compare_measured_runs,
)
from agentest.history.comparison_report import as_json, as_markdown, conclusion, print_text, resource_lines
from agentest.report.console.printer import open_console
from agentest.support.errors import UsageError

SCHEMA = json.loads((files("agentest") / "schemas" / "comparison.schema.json").read_text("utf-8"))


def held(passed: bool | None = True, **averages: float) -> MeasuredConversation:
    return MeasuredConversation(passed=passed, sums={k: (4.0 * v, 4) for k, v in averages.items()})


def a_scenario(
    name: str,
    conversations: Sequence[MeasuredConversation],
    status: Status | None = None,
    agent: str = "shop",
    file: str = "a.sim.py",
    **more: Any,
) -> MeasuredScenario:
    decided = Status.PASSED if all(each.passed for each in conversations) else Status.FAILED
    result = ScenarioResult(name=name, agent=agent, file=file, line=3, verdict=Verdict(status or decided))
    return replace(measure_scenario(result, conversations), **more)


def times(n: int, passed: int, name: str = "books", **more: Any) -> MeasuredScenario:
    """A scenario of which `passed` of `n` conversations passed."""
    return a_scenario(name, [held(i < passed) for i in range(n)], **more)


def a_run(*scenarios: MeasuredScenario, **more: Any) -> MeasuredRun:
    values: dict[str, Any] = {"label": "r", "started_at": "", "version": "1", "agents": ("shop",), **more}
    return MeasuredRun(scenarios=scenarios, **values)


def changes(base: MeasuredRun, new: MeasuredRun) -> dict[str, Change]:
    return {each.pair.latest.name: each.change for each in compare_measured_runs(base, new).scenarios}


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        pytest.param(times(1, 1, scripted=True), times(1, 0, scripted=True), Change.BROKE, id="script"),
        pytest.param(times(1, 0, scripted=True), times(1, 1), Change.FIXED, id="script-mended"),
        pytest.param(times(3, 3, scripted=True), times(3, 2, scripted=True), Change.WITHIN_NOISE, id="flaky"),
        pytest.param(times(1, 1), times(1, 0), Change.WITHIN_NOISE, id="one-conversation"),
        pytest.param(times(3, 3), times(3, 0), Change.BROKE, id="all-to-none"),
        pytest.param(times(3, 0), times(9, 9), Change.FIXED, id="none-to-all"),
        pytest.param(times(9, 9), times(1, 0), Change.WITHIN_NOISE, id="too-few-to-break"),
        pytest.param(times(3, 3), times(3, 1), Change.WITHIN_NOISE, id="three-to-one"),
        pytest.param(times(20, 18), times(20, 8), Change.REGRESSED, id="rate"),
        pytest.param(times(20, 8), times(20, 18), Change.IMPROVED, id="rate-better"),
        pytest.param(times(3, 2), times(3, 2), Change.UNCHANGED, id="same"),
        pytest.param(times(3, 3), times(3, 0, status=Status.ERRORED), Change.NOT_COMPARED, id="errored"),
        pytest.param(times(3, 0, status=Status.SKIPPED), times(3, 0), Change.NOT_COMPARED, id="skipped"),
    ],
)
def test_a_scenario(base: MeasuredScenario, new: MeasuredScenario, expected: Change) -> None:
    """What always passed and now never does broke; for anything else, noise must be ruled out."""
    assert changes(a_run(base), a_run(new)) == {"books": expected}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (5, 1, "Worse overall: the pass rate fell from 100% to 20% (95 % interval"),
        (5, 5, "The pass rate is the same in both runs, 100%"),
        (5, 4, "Overall, the pass rate fell from 100% to 80%, within noise (95 % interval"),
        (5, 0, "Worse overall: the pass rate fell from 100% to 0%"),
    ],
)
def test_a_comparison_ends_with_one_answer(before: int, now: int, expected: str) -> None:
    """One sentence reports better, worse or unclear, with at most one p-value."""
    base, new = (a_run(*(times(5, n, f"s{i}") for i in range(4))) for n in (before, now))
    answer = conclusion(compare_measured_runs(base, new))
    assert answer.startswith(expected)
    assert answer.count(", p ") == (1 if answer.startswith("Worse") and now else 0)


def test_a_wide_interval_names_the_few_scenarios() -> None:
    """With two scenarios the conclusion explains its uncertainty."""
    answer = conclusion(
        compare_measured_runs(
            a_run(times(3, 3, "a"), times(3, 0, "b")), a_run(times(3, 2, "a"), times(3, 2, "b"))
        )
    )
    assert "as only 2 scenarios were compared" in answer


def test_what_breaks_is_found_among_many() -> None:
    """Among forty scenarios, a drop from 3 of 3 to none gates and leads the report, and one from 2 of 2 is
    noise: the text reports how many conversations are enough."""
    names = [f"s{i}" for i in range(40)]
    for n, expected in ((3, Change.BROKE), (2, Change.WITHIN_NOISE)):
        same = [times(n, n, name) for name in names[1:]]
        found = compare_measured_runs(a_run(times(n, n, "s0"), *same), a_run(times(n, 0, "s0"), *same))
        assert [each.change for each in found.scenarios[:2]] == [expected, Change.UNCHANGED]
        assert found.regressed is conclusion(found).startswith(
            "Worse in 1 scenario; overall, the pass rate fell"
        )
        assert found.regressed is (n == 3)
        assert ("`--conversations 3`" in text(found)) is (n == 2)
        assert ("always passed before, never passes now (3 of 3 → 0 of 3)" in text(found)) is (n == 3)


def test_a_script_played_once() -> None:
    """One result of each run decides, and the text says that an agent whose answers vary may differ by
    chance. No interval and no p-value stand beside it."""
    once = compare_measured_runs(a_run(times(1, 0, scripted=True)), a_run(times(1, 1, scripted=True)))
    assert "never passed before, always passes now (0 of 1 → 1 of 1)" in text(once)
    assert "1 script that changed was played once in each run" in text(once)
    [row] = once.scenarios[0].rows
    assert (row.change, row.low, row.high, row.p, row.adjusted) == (Change.FIXED, None, None, None, None)
    twice = compare_measured_runs(a_run(times(2, 2, scripted=True)), a_run(times(2, 0, scripted=True)))
    assert twice.scenarios[0].change is Change.BROKE
    assert "played once" not in text(twice)


def random_run(random: Random, rates: Sequence[float], n: int, fall: float, spread: float) -> MeasuredRun:
    def one(rate: float) -> MeasuredConversation:
        return held(random.random() < rate * (1 - fall), helpfulness=random.gauss(4 - fall, spread))

    return a_run(
        *(a_scenario(f"s{i}", [one(rate) for _ in range(n)], scripted=i == 5) for i, rate in enumerate(rates))
    )


def check_figure(row: ComparedFigure) -> None:
    """Class, sign of the interval, and p-value of a figure say the same."""
    if row.p is None:
        assert row.change in (Change.BROKE, Change.FIXED)
        assert row.adjusted is None
    else:
        assert row.adjusted is not None
        assert (row.change in TESTED) is (row.adjusted <= LEVEL)
    if row.low is None or row.high is None:
        return
    assert row.low <= row.value <= row.high
    if row.change in (*WORSE, *BETTER):
        assert row.high < 0 if row.change in WORSE else row.low > 0
    else:
        assert row.low <= 0 <= row.high


def test_everything_that_is_said_comes_from_one_decision() -> None:
    """Over random pairs of runs, classes, intervals, p-values, rows and the sentence never disagree."""
    random, seen = Random(8), set[Change]()
    for _ in range(100):
        rates = [random.choice((0.0, 1.0, random.random())) for _ in range(random.randint(1, 9))]
        n, fall, spread = random.randint(1, 10), random.choice((0.0, 0.3, 1.0)), random.choice((0.0, 0.5))
        sides = [random_run(random, rates, n, each, spread) for each in (0.0, fall)]
        found = compare_measured_runs(*random.sample(sides, 2))
        for each in found.scenarios:
            worst = min((row.change for row in each.rows), key=list(Change).index)
            base, new = each.pair.both
            assert each.change is worst or (worst is Change.UNCHANGED and base.status is not new.status)
            seen.add(each.change)
        for row in (*found.overall, *(row for each in found.scenarios for row in each.rows)):
            check_figure(row)
        check_sentence(found)
    assert seen >= {*Change} - {Change.NEW, Change.GONE, Change.NOT_COMPARED}


def check_sentence(found: Comparison) -> None:
    """The sentence says what the scenarios and the figures over all say, with the figures of its row."""
    sentence = conclusion(found)
    assert found.regressed is sentence.startswith("Worse")
    better = not found.changes.isdisjoint(BETTER)
    assert sentence.startswith("Better") is (better and not found.regressed)
    rate = found.overall[0]
    if "the pass rate fell" in sentence or "the pass rate rose" in sentence:
        assert ("fell" in sentence) is (rate.value < 0)
        assert ("noise" in sentence) is (rate.change is Change.WITHIN_NOISE)
        shown = re.search(r"95 % interval (\S+) to (\S+) points", sentence)
        if shown and "noise" in sentence:
            assert float(shown[1]) <= 0 <= float(shown[2])
        elif shown:
            assert float(shown[1]) * float(shown[2]) > 0
    assert all(f"{row.change}" in text(found) for row in found.overall if row.change in TESTED)


def test_repeat_counts_less() -> None:
    """Runs that stop once decided stop at extremes, so p-values double and a note says so."""
    base, new = times(20, 18), times(20, 12)
    assert changes(a_run(base), a_run(new)) == {"books": Change.REGRESSED}
    found = compare_measured_runs(a_run(base), a_run(replace(new, repeated=True)))
    assert found.scenarios[0].change is Change.WITHIN_NOISE
    once = compare_measured_runs(a_run(base), a_run(new)).scenarios[0].rows[0]
    assert found.scenarios[0].rows[0].adjusted == pytest.approx(2 * (once.adjusted or 0.0))
    assert found.notes[0].startswith("repeat: 1 scenario ended when decided")


def test_not_finished() -> None:
    """A scenario that the end of the run left undecided is reported as unfinished, not errored."""
    reason = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, "ended")
    left = builders.scenario_result("books", [], verdict=Verdict(Status.ERRORED, (reason,)))
    found = compare_measured_runs(
        a_run(times(1, 1)), a_run(replace(measure_scenario(left), agent="shop"), stopped="Ctrl-C")
    )
    assert [each.why for each in found.scenarios] == ["not finished in the new run"]


def test_scores() -> None:
    """A lower score is a regression even if all verdicts are the same; labels count their failures."""
    random = Random(1)

    def runs(level: float, failures: float) -> MeasuredRun:
        return a_run(
            *(
                a_scenario(
                    f"s{i}",
                    [
                        held(helpfulness=level + random.uniform(-0.3, 0.3), agent_behavior_failure=failures)
                        for _ in range(3)
                    ],
                )
                for i in range(12)
            )
        )

    found = compare_measured_runs(runs(4.2, 0.5), runs(3.4, 0.0))
    rows = {row.name: row for row in found.overall}
    assert rows["helpfulness"].change is Change.REGRESSED
    assert rows["agent_behavior_failure"].change is Change.IMPROVED
    assert rows["pass rate"].change is Change.UNCHANGED
    assert conclusion(found).startswith("Worse overall: helpfulness fell from 4.1")
    assert conclusion(found).endswith("; agent_behavior_failure improved")
    low, high = rows["helpfulness"].low, rows["helpfulness"].high
    assert low is not None
    assert high is not None
    assert low < rows["helpfulness"].value < high < 0


def test_chance_is_rarely_a_regression_and_what_broke_is_always_found() -> None:
    """Of pairs of runs of one agent, whatever its pass rates, at most one in twenty is worse. A scenario of
    three or more conversations that breaks is found in all of them."""
    random, pairs, false = Random(5), 80, 0
    for i in range(pairs):
        rates, n = [random.random() for _ in range(random.randint(1, 40))], random.randint(1, 10)
        k, m = random.randint(3, 10), random.randint(3, 10)
        base, new = (
            [times(n, sum(random.random() < p for _ in range(n)), f"s{i}") for i, p in enumerate(rates)]
            for _ in range(2)
        )
        false += compare_measured_runs(a_run(*base), a_run(*new)).regressed
        if i % 5 == 0:
            broken = compare_measured_runs(a_run(times(k, k), *base), a_run(times(m, 0), *new))
            assert broken.scenarios[0].change is Change.BROKE
            assert broken.regressed
    assert false <= 0.05 * pairs


def test_new_gone_and_not_run() -> None:
    """A scenario in only one run is new or gone, or not compared if the other ended early or broke."""
    both, old, added = times(1, 1, "both"), times(1, 1, "old", file="b.sim.py"), times(1, 1, "added")
    assert changes(a_run(both, old), a_run(both, added)) == {
        "both": Change.UNCHANGED,
        "added": Change.NEW,
        "old": Change.GONE,
    }
    assert changes(a_run(both, old), a_run(both, stopped="interrupted"))["old"] is Change.NOT_COMPARED
    assert changes(a_run(both, stopped="killed"), a_run(both, added))["added"] is Change.NOT_COMPARED
    broken = a_scenario("b.sim.py", [], Status.ERRORED, file="b.sim.py")
    found = compare_measured_runs(a_run(both, old), a_run(both, broken))
    assert [each.why for each in found.of(Change.NOT_COMPARED)] == ["its file did not load in the new run"]
    assert not found.regressed
    assert "1 not compared" in text(found)


def test_unselected_scenarios_are_left_out() -> None:
    """Scenarios not selected in a partial run are neither new nor gone, but counted in a note."""
    whole, part = a_run(times(1, 1, "one"), times(1, 1, "two")), a_run(times(1, 1, "one"), partial=True)
    for base, new in ((whole, part), (part, whole)):
        found = compare_measured_runs(base, new)
        assert [each.pair.latest.name for each in found.scenarios] == ["one"]
        assert found.notes == ("1 scenario not selected in both runs: left out",)


def test_no_conversations() -> None:
    """A verdict without conversations is not compared."""
    found = compare_measured_runs(a_run(times(0, 0)), a_run(times(1, 1)))
    assert [each.why for each in found.scenarios] == ["no conversation in the base run"]


def test_pairs() -> None:
    """Scenarios pair by name and agent; a single agent may be renamed, and duplicate names pair by file."""
    one = compare_measured_runs(a_run(times(1, 1)), a_run(times(1, 1, agent="v2"), agents=("v2",)))
    assert [each.change for each in one.scenarios] == [Change.UNCHANGED]
    assert one.notes == ("agents: shop, now v2",)
    twice = a_run(times(1, 1, scripted=True), times(1, 0, file="b.sim.py", scripted=True))
    worse = a_run(times(1, 0, file="b.sim.py", scripted=True), times(1, 0, scripted=True))
    found = {each.pair.latest.file: each.change for each in compare_measured_runs(twice, worse).scenarios}
    assert found == {"a.sim.py": Change.BROKE, "b.sim.py": Change.UNCHANGED}
    several = a_run(times(1, 1, scripted=True), times(1, 0, agent="v2", scripted=True), agents=("shop", "v2"))
    between = compare_measured_runs(part_of_agent(several, "shop"), part_of_agent(several, "v2"))
    assert between.regressed
    assert between.base.label == "shop"


def test_nothing_in_common() -> None:
    """If the runs share no scenario, the error names scenarios of both."""
    with pytest.raises(UsageError, match="no scenario is in both runs; r has 'books', r has 'pays'"):
        compare_measured_runs(a_run(times(1, 1)), a_run(times(1, 1, "pays")))


def test_notes_on_different_conditions() -> None:
    """Notes list different versions, models, agents and conversation counts, and an early end."""
    base = a_run(times(3, 3), models={"judge": "a/old"})
    new = a_run(times(4, 4), version="2", models={"judge": "a/new"}, stopped="--fail-fast")
    assert compare_measured_runs(base, new).notes == (
        "the new run ended early (--fail-fast): what had finished is compared",
        "Agentest: 1, now 2; judges may have had other prompts",
        "model of the judge: a/old, now a/new",
        "conversations: other numbers in 1 scenario, 3 and now 4 in 'books'",
    )


def test_measuring_a_scenario() -> None:
    """An errored conversation neither passes nor fails; the end reason identifies a script."""
    conversations = [
        builders.conversation_result(
            held=replace(builders.conversation("c1", [builders.turn()]), ending=Ending.SCRIPT)
        ),
        builders.failing_conversation("c2"),
        replace(builders.conversation_result(held=builders.conversation("c3")), invalid="rude"),
    ]
    found = measure_scenario(builders.scenario_result("books", conversations))
    assert (list(found.outcomes), found.conversations) == ([(1.0, 1), (0.0, 1)], 3)
    assert (found.passed, found.known, found.scripted) == (1, 2, True)
    run = builders.run_result(builders.scenario_result("books", conversations))
    assert measure_run(run, "r", [found]).scenarios == (found,)


def text(comparison: Comparison) -> str:
    out = StringIO()
    print_text(comparison, open_console({"NO_COLOR": "1"}, out))
    return out.getvalue()


def test_output_formats() -> None:
    """Text ends with regressions and counts, Markdown starts with them, escaped; JSON has everything."""
    hostile = "| <b> `x`\n::error::"
    base = a_run(times(1, 1, hostile, scripted=True), times(1, 1, "same"), times(1, 1, "old"))
    found = compare_measured_runs(base, a_run(times(1, 0, hostile, scripted=True), times(1, 1, "same")))
    shown = text(found).splitlines()
    assert shown[-1] == "1 broke, 1 gone, 1 unchanged"
    assert shown.index("Gone") < shown.index("Broke")
    markdown = as_markdown(found)
    assert markdown.startswith("## ❌ Agentest, compared: 1 broke, 1 gone, 1 unchanged\n")
    assert markdown.index("broke |") < markdown.index("gone |")
    assert "<b>" not in markdown
    document = json.loads(as_json(found))
    assert [each["change"] for each in document["scenarios"]] == ["broke", "unchanged", "gone"]
    assert document["counts"]["notCompared"] == 0
    assert document["scenarios"][2]["new"] is None
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(document)


def timed(name: str, ms: float, cost: float | None = None) -> MeasuredScenario:
    """Eight conversations of two turns with slightly different latency and cost."""
    return a_scenario(
        name,
        [replace(held(), latency=(2 * (ms + i), 2), cost=cost and cost * (1 + i / 100)) for i in range(8)],
    )


def test_latency_and_cost_are_shown_as_noise() -> None:
    """One run on each side does not show how much runs of an agent vary, however large the difference is."""
    base, new = (
        a_run(*(timed(f"s{i}", ms + i * ms / 50, cost) for i in range(8)))
        for ms, cost in ((100, 0.01), (332, 0.02))
    )
    compared = compare_measured_runs(base, new)
    assert not compared.regressed
    assert {(row.change, row.low, row.high, row.p) for row in compared.resources} == {
        (Change.WITHIN_NOISE, None, None, None)
    }
    latency, cost = resource_lines(compared)
    assert latency.startswith("latency 110 ms → 359 ms per turn (not tested: one run per side")
    assert cost.startswith("cost 0.01035 USD → 0.0207 USD per conversation (not tested")
    assert list(resource_lines(compare_measured_runs(base, base))) == []
    without = [replace(held(), latency=(0.0, 2)) for _ in range(8)]  # as in traces
    recorded = a_run(*(a_scenario(f"s{i}", without) for i in range(8)))
    assert list(resource_lines(compare_measured_runs(base, recorded))) == []
    Draft202012Validator(SCHEMA).validate(json.loads(as_json(compared)))
