"""`repeat`: conversations run until the verdict is decided, and no longer."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest
from builders import (
    conversation,
    conversation_result,
    failing_conversation,
    failure,
    run_result,
    scored,
    turn_evaluation,
)
from builders import scenario_result as result_of
from project import Project
from stored import to_json

from agentest import scenario
from agentest.domain.events import ConversationFinished, Event, Noted, RunStarted, ScenarioStarted
from agentest.domain.repeat_setting import Repeat, parse_repeat
from agentest.domain.results import ConversationResult, RunResult, ScenarioResult, Status
from agentest.domain.transcript import Blame
from agentest.models.port import ChatRequest
from agentest.report.content import decided
from agentest.runner.repetition import Schedule, undecidable
from agentest.runner.session import Stop
from agentest.scenarios.model import Scenario
from agentest.store.reader import read_results
from agentest.support.errors import ConfigError, ScenarioError
from agentest.testing import Options, ScriptedAgent, ScriptedModel, arun_scenarios

YES = [{"user_message": "hi", "expect": {"contains": "yes"}}]
RATE = {"pass_rate": 0.8}


class Planted:
    """An agent whose conversations pass (p) or fail (f) as planned; the last letter repeats.

    It records how many conversations of a scenario ran concurrently.
    """

    def __init__(self, **plans: str) -> None:
        self._plans = plans
        self._now = 0
        self.most = 0
        self.order: list[int] = []

    async def __call__(self, messages: list[dict[str, Any]], ctx: Any) -> str:
        number = int(ctx.conversation_id.rpartition("-")[2])
        plan = self._plans[ctx.scenario]
        self.order.append(number)
        self._now += 1
        self.most = max(self.most, self._now)
        for _ in range(99):
            await anyio.lowlevel.checkpoint()
        self._now -= 1
        return "yes" if plan[min(number, len(plan)) - 1] == "p" else "no"


def run(scenarios: list[Scenario], agent: Any, **keys: Any) -> RunResult:
    async def go() -> RunResult:
        with anyio.fail_after(30):
            return await arun_scenarios(scenarios, agent=agent, strict=False, **keys)

    return anyio.run(go)


def held(plan: str, repeat: Any = "3..20", thresholds: Any = RATE, **more: Any) -> ScenarioResult:
    made = scenario("s", turns=YES, repeat=repeat, thresholds=thresholds, **more)
    return run([made], Planted(s=plan)).scenarios[0]


@pytest.mark.parametrize(
    ("plan", "thresholds", "status", "count", "words"),
    [
        ("f", RATE, Status.FAILED, 3, "decided after 3 of at most 20"),
        ("p", RATE, Status.PASSED, 15, "decided after 15 of at most 20"),
        ("ppfppppf" + "p" * 12, RATE, Status.PASSED, 18, "not decided after 18 of at most 20: the others"),
        ("pfpfpfppfpfp", RATE, Status.FAILED, 17, "not decided after 17 of at most 20: the others"),
        ("fpppp" * 4, RATE, Status.PASSED, 20, "not decided after 20 of at most 20"),
        ("p", {}, Status.PASSED, 20, "none failed in 20 of at most 20"),
        ("ppppf", {}, Status.FAILED, 5, "decided after 5 of at most 20"),
        ("p", {"pass_rate": 0.0}, Status.PASSED, 3, "decided after 3 of at most 20"),
        ("ppf", {"pass_rate": 1.0}, Status.FAILED, 3, "decided after 3 of at most 20"),
    ],
)
def test_it_runs_until_the_verdict_is_decided(
    plan: str, thresholds: dict[str, float], status: Status, count: int, words: str
) -> None:
    """If the test does not decide, the share decides as usual, and the text says so."""
    result = held(plan, thresholds=thresholds)
    assert (result.verdict.status, result.totals.conversations) == (status, count)
    assert decided(result).startswith(words)
    assert result.decided_after == (count if words.startswith("decided") else None)
    assert result.planned == count


@pytest.mark.parametrize("parallel", [True, False])
def test_no_unnecessary_conversation_starts(parallel: bool) -> None:
    """A batch has only as many as are certainly needed; sequential conversations give the same count."""
    agent = Planted(s="ppf")
    made = scenario("s", turns=YES, repeat="2..20", thresholds=RATE, parallel=parallel)
    result = run([made], agent, concurrency=8)
    assert sorted(agent.order) == list(range(1, len(agent.order) + 1))
    assert len(agent.order) == result.scenarios[0].totals.conversations == 6
    assert agent.most == (4 if parallel else 1)


def test_sequential_conversations_wait_for_judges() -> None:
    """The next conversation starts only when judging shows that it is needed."""
    agent = Planted(s="p")
    made = scenario("s", turns=YES, goal="g", repeat="1..4", thresholds={"helpfulness": 5.0}, parallel=False)

    class Judge:
        name = "judge"

        async def complete(self, request: ChatRequest) -> Any:
            low = request.key.conversation == 2
            return await ScriptedModel(scores={"helpfulness": 3 if low else 5}).complete(request)

    result = run([made], agent, model=Judge(), metrics=["helpfulness"]).scenarios[0]
    assert (result.verdict.status, result.decided_after, agent.order) == (Status.FAILED, 2, [1, 2])


def test_averages_are_decided_too() -> None:
    """A threshold on a score is decided by the conversations' averages, from 1 to 5."""

    def decided_by(scores: dict[str, int], **thresholds: float) -> tuple[Status, int | None]:
        made = scenario("s", turns=["hi", "bye"], goal="g", repeat="3..20", thresholds=thresholds)
        model = ScriptedModel(scores=scores)
        result = run([made], Planted(s="p"), model=model, metrics=list(scores)).scenarios[0]
        return result.verdict.status, result.decided_after

    assert decided_by({"helpfulness": 5}, helpfulness=3.5) == (Status.PASSED, 9)
    assert decided_by({"helpfulness": 2}, helpfulness=4.0) == (Status.FAILED, 4)
    assert decided_by({"helpfulness": 4}, helpfulness=4.0) == (Status.PASSED, None)
    assert decided_by({"helpfulness": 5, "coherence": 1}, helpfulness=2, coherence=4) == (Status.FAILED, 4)
    assert decided_by({"goal_completion": 1}, goal_completion=0.5) == (Status.PASSED, 6)


def test_errored_conversations_count_toward_the_maximum() -> None:
    """If all are errored, so is the scenario."""
    unknown = Schedule(repeat=Repeat(min=2, max=4), thresholds=RATE)
    assert [unknown.more(told("?" * n)) for n in (2, 3, 4)] == [2, 1, 0]
    result = result_of(conversations=told("?" * 4), thresholds=RATE, repeat=Repeat(min=2, max=4))
    assert result.verdict.status is Status.ERRORED
    assert unknown.decided_after(result.conversations, result.verdict) is None
    assert decided(result) == "4 of at most 4 held"


def told(*kinds: str) -> list[ConversationResult]:
    """Conversations that passed (p), failed (f) or are errored (?)."""
    broken = conversation(failure=failure(Blame.MODEL, "the model is down"))
    made = {"p": conversation_result(), "f": failing_conversation(), "?": conversation_result(held=broken)}
    return [made[kind] for kind in "".join(kinds)]


@pytest.mark.parametrize(
    ("kinds", "more"),
    [
        ("ppp", 5),
        ("ppp?", 5),
        ("fff", 0),
        ("ff?", 1),
        ("p" * 15, 0),
        ("?" * 20, 0),
        ("ppf", 3),
        ("?" * 19, 1),
    ],
)
def test_the_size_of_a_batch(kinds: str, more: int) -> None:
    """It is the fewest that can decide, up to the number left."""
    assert Schedule(repeat=Repeat(), thresholds=RATE).more(told(kinds)) == more


def test_a_stop_keeps_what_had_finished() -> None:
    """A run stopped in a repeated scenario leaves it undecided and reports the maximum."""

    async def go() -> RunResult:
        stop = Stop()

        def on_event(event: Event) -> None:
            if isinstance(event, ConversationFinished) and event.number == 4:
                stop.interrupt()

        made = scenario("s", turns=YES, repeat="3..20", thresholds=RATE)
        return await arun_scenarios([made], agent=Planted(s="p"), on_event=on_event, stop=stop, concurrency=1)

    result = anyio.run(go).scenarios[0]
    assert result.verdict.status is Status.ERRORED
    assert result.verdict.reasons[-1].message == "interrupted: after 4 of at most 20 conversations"
    assert (result.planned, result.decided_after, decided(result)) == (20, None, "")


def test_precedence() -> None:
    """The command line comes before the scenario, then the configuration; a script repeats only by one of the
    first two."""
    scripted, own = scenario("script", turns=YES), scenario("own", turns=YES, repeat="2..3")
    fixed, free = scenario("fixed", goal="g", conversations_per_scenario=2), scenario("free", goal="g")
    made, agent = [scripted, own, fixed, free], Planted(script="p", own="p", fixed="p", free="p")

    def counts(**keys: Any) -> list[int]:
        result = run(made, agent, max_turns=1, metrics=[], **keys)
        return [s.totals.conversations for s in result.scenarios]

    assert counts(repeat={"max": 4}) == [1, 3, 2, 4]
    assert counts(repeat="1..4", options=Options(repeat=Repeat(max=5))) == [5, 5, 5, 5]
    assert counts(repeat="1..4", options=Options(conversations=1)) == [1, 1, 1, 1]


def test_undecidable_thresholds_are_noted() -> None:
    """A note names each threshold that the maximum cannot decide as met, and a sufficient number."""
    events: list[Event] = []
    made = [scenario(n, turns=YES, repeat="3..20", thresholds={"pass_rate": 0.9}) for n in ("a", "b")]
    run(made, Planted(a="f", b="f"), on_event=events.append)
    start = next(e for e in events if isinstance(e, RunStarted))
    assert (start.conversations, start.at_most) == (40, True)
    assert [e.conversations for e in events if isinstance(e, ScenarioStarted)] == [20, 20]
    notes = [e.text for e in events if isinstance(e, Noted)]
    assert len(notes) == 1
    assert notes[0].startswith(
        "'a' and 1 more scenario: at most 20 conversations cannot prove that pass_rate "
    )
    assert "29 can, so raise max" in notes[0]
    hopeless = [("a", Repeat(), {"pass_rate": 1.0, "helpfulness": 4.5, "own": 1.0, "coherence": 3.0})]
    texts = list(undecidable(hopeless))
    assert ["no number" in text for text in texts] == [True, False, True]
    assert not list(undecidable([("a", None, {"pass_rate": 0.9}), ("b", Repeat(max=29), {"pass_rate": 0.9})]))


def test_the_least_that_the_note_names_is_enough() -> None:
    """That many passing conversations decide the verdict; one fewer does not."""
    for most, after in ((29, 29), (28, None)):
        repeat = {"min": 3, "max": most}
        assert held("p", repeat=repeat, thresholds={"pass_rate": 0.9}).decided_after == after


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", "expected MIN..MAX, like 3..20, found '3'"),
        ("20..3", "min is 20, but max is 3"),
        ({"mx": 3}, "unknown key `mx`; did you mean `max`"),
        ({"max": True}, "max: expected a whole number from 1 to 1000, found True"),
        ({"min": 0}, "min: expected a whole number from 1 to 1000, found 0"),
        ({"max": 1001}, "max: expected a whole number from 1 to 1000"),
        ({"confidence": 95}, "confidence: expected a number from 0.5 to below 1, like 0.95, found 95"),
        (7, 'expected {"min": 3, "max": 20} or "3..20", found 7'),
    ],
)
def test_invalid_values_are_refused(value: Any, message: str) -> None:
    """Scenario and configuration errors both say what was expected."""
    with pytest.raises(ScenarioError, match=r"test_repeat.py:\d+: scenario 's': repeat: ") as in_scenario:
        scenario("s", goal="g", repeat=value)
    with pytest.raises(ConfigError) as in_configuration:
        run([scenario("s", goal="g")], Planted(s="p"), repeat=value)
    assert message in str(in_scenario.value)
    assert message in str(in_configuration.value)


def test_a_fixed_number_with_repeat_is_refused() -> None:
    """One place may set only one of them."""
    with pytest.raises(ScenarioError, match="repeat: excludes `conversations_per_scenario`"):
        scenario("s", goal="g", repeat="3..5", conversationsPerScenario=3)
    with pytest.raises(ConfigError, match="repeat: excludes `conversations_per_scenario`"):
        run([scenario("s", goal="g")], Planted(s="p"), repeat="3..5", conversationsPerScenario=3)


def test_forms_of_repeat() -> None:
    """A range, a mapping with some keys, or a Repeat; None is unset."""
    assert parse_repeat("2..9") == parse_repeat({"min": 2, "max": 9}) == Repeat(min=2, max=9, confidence=0.95)
    assert parse_repeat({"confidence": 0.9}) == Repeat(confidence=0.9)
    assert parse_repeat(Repeat(max=4)) == Repeat(max=4)
    assert parse_repeat(None) is None
    assert str(Repeat()) == "3..20"


def test_a_missing_score_is_not_a_value() -> None:
    """A conversation without a score is not part of that metric's test."""
    results = [conversation_result(turns=[turn_evaluation(metrics={"helpfulness": scored(1)})])] * 2
    schedule = Schedule(repeat=Repeat(min=1), thresholds={"helpfulness": 4.0})
    bare = conversation_result(turns=[turn_evaluation(metrics={})])
    assert schedule.more(results * 2) == 0
    assert schedule.more([*results, bare, bare]) == 1


def test_results_have_repeat() -> None:
    """results.json has `repeat` and `decidedAfter` only for scenarios with `repeat`."""
    plain, open_one = result_of(), result_of(repeat=Repeat(), decided_after=None)
    entry = to_json_of(open_one)
    assert entry["repeat"] == {"min": 3, "max": 20, "confidence": 0.95}
    assert entry["decidedAfter"] is None
    assert to_json_of(result_of(repeat=Repeat(), decided_after=7))["decidedAfter"] == 7
    assert not {"repeat", "decidedAfter"} & to_json_of(plain).keys()


def test_results_are_read_back(tmp_path: Any) -> None:
    """The fields are read back, and older results have neither."""
    made = [
        result_of("a", repeat=Repeat(max=9), decided_after=4),
        result_of("b", repeat=Repeat(), decided_after=None),
        result_of("c"),
    ]
    file = tmp_path / "results.json"
    file.write_text(json.dumps(to_json(run_result(*made))))
    read = read_results(file).scenarios
    assert [(each.repeat, each.decided_after) for each in read] == [
        (Repeat(max=9), 4),
        (Repeat(), None),
        (None, None),
    ]


def to_json_of(result: ScenarioResult) -> dict[str, Any]:
    found: dict[str, Any] = to_json(run_result(result))["scenarios"][0]
    return found


def test_from_the_command_line(tmp_path: Any) -> None:
    """With two workers and planned results: conversations, console, stored results, and judging again."""
    project = Project(tmp_path)
    project.scenario(
        "for name in ('good', 'bad'):\n"
        "    scenario(name, turns=[{'user_message': name, 'expect': {'contains': 'yes'}}],"
        " thresholds={'pass_rate': 0.7})"
    )
    with ScriptedAgent(lambda body: "yes" if body["messages"][0]["content"] == "good" else "no") as agent:
        project.config(agent.endpoint)
        done = project.run(
            "--repeat", "4..20", "--workers", "2", "--reporter", "console", "--reporter", "json"
        )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "at most 40 conversations" in done.stdout
    assert " · decided after 10 of at most 20" in done.stdout
    assert " · decided after 4 of at most 20" in done.stdout
    kept = {each["name"]: each for each in project.results["scenarios"]}
    assert [kept[name]["decidedAfter"] for name in ("good", "bad")] == [10, 4]
    assert [kept[name]["plannedConversations"] for name in ("good", "bad")] == [10, 4]
    again = project.agentest("judge", ".agentest/results.json", "--scenario", "good")
    assert again.returncode == 0, again.stdout + again.stderr
    journal = [json.loads(line) for line in (tmp_path / ".agentest/journal.jsonl").read_text().splitlines()]
    assert [each["conversations"] for each in journal[0]["planned"]] == [20, 20]
    refused = project.run("--repeat", "4..20", "--conversations", "3")
    assert refused.returncode == 2
    assert "--repeat and --conversations exclude each other" in refused.stderr


def graded(severe: str, severity: str = "high", **options: Any) -> tuple[ScenarioResult, int]:
    """A scenario repeated up to 20 times in which the judge finds a failure (s) or none (-), as planned.

    Returns the result and how often the failures were grouped.
    """

    def answer(request: ChatRequest) -> Any:
        if request.key.role == "dedup":
            ids = sorted(set(re.findall(r"s-\d+-F\d+", request.messages[-1]["content"])))
            return {"groups": [{"label": "l", "explanation": "e", "severity": severity, "occurrences": ids}]}
        failed = severe[min(request.key.conversation, len(severe)) - 1] == "s"
        return {"reason": "r", "value": "repetition" if failed else "no failure"}

    judge = ScriptedModel(answer=answer)
    made = scenario("s", turns=["hi"], goal="g", repeat="4..20", thresholds=RATE, **options)
    result = run([made], Planted(s="p"), model=judge, metrics=["agent_behavior_failure"]).scenarios[0]
    return result, sum(request.key.role == "dedup" for request in judge.requests)


@pytest.mark.parametrize("parallel", [True, False])
def test_severe_failures_count_against_the_rate_and_ask_for_more(parallel: bool) -> None:
    """The rate looks decided until the failures are grouped; then more conversations are run."""
    harmless, once = graded("ss------------------", "low", parallel=parallel)
    assert (harmless.verdict.status, harmless.totals.passed, once) == (Status.PASSED, harmless.planned, 1)
    severe, calls = graded("ss------------------", parallel=parallel)
    assert severe.planned > harmless.planned
    assert severe.totals.passed == severe.planned - 2
    assert 1 < calls <= 4


def test_missed_goals_count_in_repeated_scenarios() -> None:
    """Six missed goals of six are not a pass rate of 100%."""
    made = scenario("s", turns=["hi"], goal="g", repeat="4..6", thresholds={"pass_rate": 0.9})
    model = ScriptedModel(scores={"goal_completion": "not reached"})
    result = run([made], Planted(s="p"), model=model).scenarios[0]
    assert result.verdict.status is Status.FAILED
    assert (result.totals.passed, result.pass_rate and result.pass_rate.value) == (0, 0.0)
    assert result.decided_after == result.planned
