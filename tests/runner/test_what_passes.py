"""No scenario passes while one of its conversations does not, whatever judges answer.

The oracle defines passing independently; it shares no code with `agentest.domain.verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentest import scenario
from agentest.domain.results import ScenarioResult, Status
from agentest.models.port import ChatRequest, TransientError
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios

SEVERITIES = ("low", "medium", "high", "critical")
GOALS = ("reached", "rightly not reached", "reached wrongly", "not reached")
MISSED = ("reached wrongly", "not reached")
NONSENSE = (None, [], "", {"reason": "r"}, {"reason": "r", "value": "great"}, {"groups": 7}, "**yes**", {})
METRICS = ["agent_behavior_failure", "goal_completion"]


@dataclass(frozen=True)
class Talk:
    """The events of one conversation, and the judges' answers about it."""

    reply: str
    goal: str | None
    """None: nonsense, whatever is asked."""
    fails: bool | None
    """Whether the judge finds a failure; None: nonsense."""
    criterion: str | None


@dataclass(frozen=True)
class Plan:
    talks: tuple[Talk, ...]
    severity: str
    grouping: str
    """`right`, `unknown ids`, `no groups`, `leaves out`, `down`."""
    fail_on: str
    pass_rate: float | None
    goal_threshold: float | None
    required: bool
    nonsense: Any
    batch: str | bool = False


talks = st.builds(
    Talk,
    reply=st.sampled_from(["fine", "rude"]),
    goal=st.sampled_from([*GOALS, "reached", None]),
    fails=st.sampled_from([True, False, False, None]),
    criterion=st.sampled_from(["met", "met", "violated", "cannot tell", None]),
)
plans = st.builds(
    Plan,
    talks=st.lists(talks, min_size=1, max_size=4).map(tuple),
    severity=st.sampled_from(SEVERITIES),
    grouping=st.sampled_from(["right", "right", "unknown ids", "no groups", "leaves out", "down"]),
    fail_on=st.sampled_from(SEVERITIES),
    pass_rate=st.sampled_from([None, None, 0.0, 0.5, 1.0]),
    goal_threshold=st.sampled_from([None, None, 0.0, 0.5, 1.0]),
    required=st.booleans(),
    nonsense=st.sampled_from(NONSENSE),
    batch=st.sampled_from([False, "turn", "conversation"]),
)


def judge(plan: Plan) -> Any:
    """Answer one request of the plan's judge."""

    def answer(request: ChatRequest) -> Any:
        key = request.key
        if key.role == "dedup":
            return grouped(request, plan)
        said = answers(plan, plan.talks[key.conversation - 1])
        if key.metric == "batch":
            return {**said, "turn_1": said}
        return said[key.metric.replace(" ", "_")]

    return answer


def answers(plan: Plan, talk: Talk) -> dict[str, Any]:
    """The answer to each question about one conversation."""
    labels = ["repetition"] if talk.fails else []
    known = {"reason": "r", "value": (labels or ["no failure"])[0], "labels": labels}
    return {
        "goal_completion": plan.nonsense if talk.goal is None else {"reason": "r", "outcome": talk.goal},
        "agent_behavior_failure": plan.nonsense if talk.fails is None else known,
        "criterion_1": plan.nonsense if talk.criterion is None else {"reason": "r", "result": talk.criterion},
    }


def grouped(request: ChatRequest, plan: Plan) -> Any:
    if plan.grouping == "down":
        raise TransientError("503: down")
    failing = [n for n, talk in enumerate(plan.talks, start=1) if talk.fails]
    ids = [f"s-{n}-F1" for n in failing]
    named = {
        "right": ids,
        "unknown ids": [id.removeprefix("s-") for id in ids],
        "leaves out": ids[1:],
        "no groups": [],
    }[plan.grouping]
    if not named:
        return {"groups": []}
    return {"groups": [{"label": "l", "explanation": "e", "severity": plan.severity, "occurrences": named}]}


def severity_of(plan: Plan) -> dict[int, str | None]:
    """Map conversation numbers to the severity of their failure, None if unknown."""
    failing = [n for n, talk in enumerate(plan.talks, start=1) if talk.fails]
    if plan.grouping == "right":
        return dict.fromkeys(failing, plan.severity)
    if plan.grouping == "leaves out" and len(failing) > 1:
        return {**dict.fromkeys(failing, plan.severity), failing[0]: "medium"}
    # The call failed: all are `medium` at least.
    return dict.fromkeys(failing, "medium" if at_least("medium", plan.fail_on) else None)


def at_least(severity: str, limit: str) -> bool:
    return SEVERITIES.index(severity) >= SEVERITIES.index(limit)


def facts(plan: Plan, number: int, *, with_goal: bool = True) -> set[bool | None]:
    """Facts about one conversation: False for each failure, None for each unknown."""
    talk, severity = plan.talks[number - 1], severity_of(plan)
    found: set[bool | None] = {talk.reply == "fine"}
    if with_goal or talk.goal is None:
        found.add(None if talk.goal is None else talk.goal not in MISSED)
    found.add(None if talk.fails is None else True)
    if number in severity:
        said = severity[number]
        found.add(None if said is None else not at_least(said, plan.fail_on))
    if plan.required:
        found.add({"met": True, "violated": False}.get(talk.criterion or ""))
    return found


def outcome(plan: Plan, number: int, *, with_goal: bool = True) -> bool | None:
    """Return whether one conversation passes, or None if unknown."""
    found = facts(plan, number, with_goal=with_goal)
    return False if False in found else None if None in found else True


def expected(plan: Plan) -> Status:
    """The verdict on the scenario."""
    numbers = range(1, len(plan.talks) + 1)
    fails = unknown = False
    goals = [talk.goal not in MISSED for talk in plan.talks if talk.goal is not None]
    if plan.goal_threshold is not None:
        fails = bool(goals) and sum(goals) / len(goals) < plan.goal_threshold
        unknown = len(goals) < len(plan.talks)
    if plan.pass_rate is None:
        by_itself = [outcome(plan, n, with_goal=plan.goal_threshold is None) for n in numbers]
        fails = fails or False in by_itself
    else:
        failed = [outcome(plan, n) for n in numbers].count(False)
        fails = fails or 1 - failed / len(plan.talks) < plan.pass_rate
    # What a judge could not say is unknown in whichever conversation it was asked.
    unknown = unknown or any(talk.goal is None or talk.fails is None for talk in plan.talks)
    unknown = unknown or None in severity_of(plan).values() or grouping_failed(plan)
    for n in numbers:
        forgiven = plan.pass_rate is not None and outcome(plan, n) is False
        unknown = unknown or (outcome(plan, n, with_goal=False) is None and not forgiven)
    return Status.FAILED if fails else Status.ERRORED if unknown else Status.PASSED


def grouping_failed(plan: Plan) -> bool:
    failing = [talk for talk in plan.talks if talk.fails]
    bad = ("unknown ids", "no groups", "down", *(["leaves out"] if len(failing) == 1 else []))
    return bool(failing) and plan.grouping in bad


def ran(plan: Plan) -> ScenarioResult:
    thresholds = {"pass_rate": plan.pass_rate, "goal_completion": plan.goal_threshold}
    made = scenario(
        "s",
        goal="g",
        turns=[{"user_message": "hi", "expect": {"not_contains": "rude"}}],
        criteria=[{"text": "Is kind", "required": plan.required}],
        conversations_per_scenario=len(plan.talks),
        metrics=METRICS,
        thresholds={name: least for name, least in thresholds.items() if least is not None},
    )
    replies = iter([talk.reply for talk in plan.talks])
    model = ScriptedModel(answer=judge(plan))
    with ScriptedAgent(lambda _: next(replies)) as agent:
        return run_scenarios(
            [made],
            agent=agent,
            model=model,
            judge={"retries": 0, "batch": plan.batch},
            concurrency=1,
            fail_on_error_severity=plan.fail_on,
            strict=False,  # the oracle knows no warnings
        ).scenarios[0]


@settings(max_examples=60, deadline=None)
@given(plans)
def test_the_verdict_is_the_one_of_the_oracle(plan: Plan) -> None:
    """Random plans, outcomes and judge answers, some invalid; rates follow the same rule."""
    found = ran(plan)
    assert found.verdict.status is expected(plan), found.verdict.reasons
    passes = [outcome(plan, n) for n in range(1, len(plan.talks) + 1)]
    assert found.totals.passed == passes.count(True)
    known = [each for each in passes if each is not None]
    rate = found.pass_rate.value if found.pass_rate else None
    assert rate == (known.count(True) / len(known) if known else None)
    if found.verdict.status is Status.PASSED and plan.pass_rate is None and plan.goal_threshold is None:
        assert all(passes)


def test_a_failure_of_unknown_severity_is_not_passed() -> None:
    """If grouping fails, the scenario is errored, and no conversation with a failure counts."""
    fine = Talk("fine", "reached", fails=False, criterion="met")
    plan = Plan(
        talks=(fine, replace(fine, fails=True)),
        severity="low",
        grouping="down",
        fail_on="high",
        pass_rate=None,
        goal_threshold=None,
        required=True,
        nonsense="",
    )
    found = ran(plan)
    assert found.verdict.status is Status.ERRORED
    assert (found.totals.passed, found.pass_rate and found.pass_rate.n) == (1, 1)
