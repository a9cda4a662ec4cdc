"""Root causes of a run: grouping, titles, and completeness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest import call
from agentest.domain.results import (
    AlignedRow,
    ArgumentDifference,
    CauseJoin,
    CauseKind,
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    ErrorExample,
    Reason,
    ReasonKind,
    RootCause,
    RowStatus,
    ScenarioResult,
    Severity,
    Status,
    TrajectoryResult,
    UniqueError,
    Unscored,
    Verdict,
)
from agentest.domain.root_causes import error_title, judged_causes, root_causes_of, scenario_causes, template
from agentest.domain.transcript import NO_MOCK, NO_RECORDED_ANSWER, Blame, ToolCall
from agentest.trajectory.matcher import TrajectoryMatcher


def differs(
    path: str = "time", expected: str | None = "'10:30'", actual: str | None = "'09:00'", kind: str = "text"
) -> ArgumentDifference:
    return ArgumentDifference(
        path=path, expected=expected, actual=actual, expected_kind="text", actual_kind=kind
    )


def wrong_call(*differences: ArgumentDifference, text: str = "") -> TrajectoryResult:
    """A call of the right tool with other arguments."""
    tool = "create_booking"
    row = AlignedRow(
        expected=f"{tool}(time='10:30', …)",
        call=0,
        status=RowStatus.DIFFERENT,
        difference=text,
        differences=differences if differences or text else (differs(),),
        tool=tool,
    )
    return TrajectoryResult(
        matched=False,
        summary=f"expected calls are missing: {tool}",
        missing_calls=(tool,),
        extra_calls=(tool,),
        alignment=(row,),
    )


def scenario(name: str, *held: ConversationResult, **more: Any) -> ScenarioResult:
    return builders.scenario_result(name, held, **more)


def wrong(name: str, *differences: ArgumentDifference) -> ScenarioResult:
    return scenario(name, builders.conversation_result(f"{name}-1", trajectory=wrong_call(*differences)))


def titles(*scenarios: ScenarioResult) -> list[str]:
    return [cause.title for cause in root_causes_of(scenarios)]


def unmocked(name: str, tool: str = "send_sms") -> ScenarioResult:
    call = builders.tool_call(tool, mocked=False, error=NO_MOCK)
    ended = builders.failure(message=f"the agent called tool {tool!r}, which has no mock (scenario {name!r})")
    held = builders.conversation(f"{name}-1", (), ended, builders.unfinished_turn(1, "Text me.", call))
    return scenario(name, builders.conversation_result(f"{name}-1", held=held))


def test_a_title_is_exact_if_all_values_agree() -> None:
    """The title has the wrong value if it is always the same, else only the argument."""
    assert titles(wrong("a"), wrong("b")) == ["create_booking: time expected '10:30', got '09:00'"]
    assert titles(wrong("a"), wrong("b", differs(expected="'8:00'", actual="'9:15'"))) == [
        "create_booking: time differs"
    ]


def test_a_title_is_exact_if_one_scenario_agrees() -> None:
    """Conversations of one scenario are compared like those of several."""
    held = [
        builders.conversation_result(f"a-{n}", trajectory=wrong_call(differs(actual=f"'09:0{n}'")))
        for n in (1, 2)
    ]
    assert titles(scenario("a", *held)) == ["create_booking: time differs"]
    assert titles(scenario("a", held[0])) == ["create_booking: time expected '10:30', got '09:01'"]


def test_the_example_is_the_turn_of_the_wrong_call() -> None:
    """A whole-conversation trajectory has no turn, so the example is that of the wrong call."""
    turns = [builders.turn(0), builders.turn(1, tool_calls=(builders.tool_call(turn_index=1),))]
    held = builders.conversation("a-1", turns)
    (cause,) = root_causes_of(
        [scenario("a", builders.conversation_result("a-1", held=held, trajectory=wrong_call()))]
    )
    assert (cause.example.conversation_id, cause.example.turn_index) == ("a-1", 1)


def refused(name: str, message: str) -> ScenarioResult:
    reason = Reason(Status.ERRORED, ReasonKind.FILE, message)
    return scenario(name, verdict=Verdict(Status.ERRORED, (reason,)))


def test_refused_scenarios_are_grouped_by_their_error() -> None:
    """Location and name of the scenario are not part of the cause."""
    one = refused("it's a", """/home/me/a b.sim.py:3: scenario "it's a": expect: is empty""")
    other = refused("b", "/home/me/c.sim.py:41: scenario 'b': expect: is empty")
    taken = refused("c", "c.sim.py:9: the name 'c' is taken: c.sim.py:3 defines it")
    broken = refused("d.sim.py", "importing the file failed\n  at d.sim.py:2: x\nNameError: 12:30: y")
    assert titles(one, other, taken, broken) == [
        "expect: is empty",
        "NameError: 12:30: y",
        "the name 'c' is taken: c.sim.py:3 defines it",
    ]


@pytest.mark.parametrize(
    ("one", "other", "title"),
    [
        ([differs(actual="9", kind="a number")], [differs(actual="8", kind="a number")],
         "create_booking: time expected text, got a number"),
        ([differs(kind="")], [differs(actual="x", kind="")], "create_booking: time differs"),
        ([differs(actual=None)], [differs(expected="'8:00'", actual=None)], "create_booking: time not given"),
        ([differs(expected=None)], [differs(expected=None, actual="1")], "create_booking: time not expected"),
        ([differs("day"), differs()], [differs("day", "'a; b'"), differs()],
         "create_booking: day differs, time differs"),
    ],
)  # fmt: skip
def test_causes_differ_by_argument_and_type(
    one: list[ArgumentDifference], other: list[ArgumentDifference], title: str
) -> None:
    """A different argument or type is a different cause."""
    assert titles(wrong("a", *one), wrong("b", *other)) == [title]
    assert len(titles(wrong("a", *one), wrong("b", *other), wrong("c", differs("n")))) == 2


def test_an_argument_that_reads_like_a_difference_is_not_one() -> None:
    """Only the arguments that differ are blamed, whatever their text says."""
    mail = ToolCall("send_mail", {"text": "Hi; to: expected today, got nothing", "to": "eve"}, None, True, 0)
    spec = {"expected": [call("send_mail", text="Hi", to="eve")]}
    result = TrajectoryMatcher.of(spec).match([mail])
    (title,) = titles(scenario("a", builders.conversation_result(trajectory=result)))
    assert title == "send_mail: text expected 'Hi', got 'Hi; to: expected today, got nothing'"
    other = TrajectoryMatcher.of(spec).match([replace(mail, args={"text": "no", "to": "eve"})])
    both = [scenario(each.reason, builders.conversation_result(trajectory=each)) for each in (result, other)]
    assert titles(*both) == ["send_mail: text differs"]


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("the agent answered with status 503: overloaded", "the agent answered with status 503: overloaded"),
        ("no answer within 30 s (tried 5 times)", "no answer within … s (tried … times)"),
        ("mock of pay raised KeyError: 'id' (a/b/c.sim.py:12)", "mock of pay raised KeyError: … (…:…)"),
        (
            "the agent's server at http://127.0.0.1:8717/v1 didn't answer",
            "the agent's server at … didn't answer",
        ),
        ("order BK-0012 of 2026-01-02T10:30 is unknown\nsecond line", "order … of … is unknown"),
        ("", ""),
    ],
)
def test_a_message_loses_its_values(message: str, pattern: str) -> None:
    """Numbers, ids, quoted values, URLs and paths do not distinguish causes."""
    assert template(message) == pattern


def test_an_unmocked_tool_is_named() -> None:
    """A tool without a mock is one cause in all scenarios, conversations and turns."""
    (cause,) = root_causes_of([unmocked("a"), unmocked("b")])
    assert (cause.title, cause.kind, cause.scenarios) == ("send_sms has no mock", CauseKind.UNMOCKED_TOOL, 2)
    assert (cause.example.conversation_id, cause.example.turn_index) == ("a-1", 1)
    assert len(root_causes_of([unmocked("a"), unmocked("b", "send_fax")])) == 2


def test_calls_missing_after_an_agent_error_are_not_a_cause() -> None:
    """The error explains missing calls, but not a forbidden call."""
    trajectory = replace(builders.MISSED, forbidden_calls=("delete_all",))
    held = builders.conversation("a-1", failure=builders.failure())
    found = titles(scenario("a", builders.conversation_result("a-1", held=held, trajectory=trajectory)))
    assert sorted(found) == [
        "delete_all called although it is forbidden",
        "the agent answered with status 500",
    ]


def test_an_agent_error_explains_failed_checks_of_the_conversation() -> None:
    """A reply that was wrong before the error is a separate cause."""
    ended = Reason(Status.FAILED, ReasonKind.CONVERSATION, "status 500", conversation_id="a-1")
    check = CheckResult(check="says", passed=False, summary="'BK' was never said")
    whole = Reason(Status.FAILED, ReasonKind.CHECK, "says", conversation_id="a-1", check=check)
    assert titles(decided("a", ended, whole)) == ["status 500"]
    assert sorted(titles(decided("a", ended, replace(whole, turn_index=0)))) == [
        "says: 'BK' was never said",
        "status 500",
    ]


def test_other_parts_of_a_trajectory_have_titles_of_their_own() -> None:
    """Missing, extra and misplaced calls and exceeded limits."""
    found = TrajectoryResult(
        matched=False,
        summary="",
        missing_calls=("pay",),
        extra_calls=("refund",),
        ordering_issues=("look came after book",),
        broken=("max_calls: 3 calls, at most 2",),
    )
    assert sorted(titles(scenario("a", builders.conversation_result(trajectory=found)))) == [
        "max_calls: 3 calls, at most 2",
        "pay not called as expected",
        "refund called although it is not expected",
        "wrong order: look came after book",
    ]


def test_a_threshold_is_a_cause_only_without_others() -> None:
    """An average only summarizes the failures of conversations, if there are any."""
    low = (builders.turn_evaluation(metrics={"helpfulness": builders.scored(2)}),)
    alone = scenario("a", builders.conversation_result("a-1", low), thresholds={"helpfulness": 4})
    assert titles(alone) == ["helpfulness below its threshold of 4"]
    slow = scenario("a", builders.conversation_result("a-1"), thresholds={"latency_p95_ms": 0.5})
    assert titles(slow) == ["latency_p95_ms above its limit of 0.5"]
    beside = builders.conversation_result("b-1", low, trajectory=wrong_call())
    both = scenario("b", beside, thresholds={"helpfulness": 4})
    assert titles(both) == ["create_booking: time expected '10:30', got '09:00'"]
    group = builders.error_group(severity=Severity.CRITICAL)
    judged = scenario(
        "c", builders.conversation_result("c1", low), errors=[group], thresholds={"helpfulness": 4}
    )
    assert titles(judged) == ["wrong hours"]


def test_a_pass_rate_is_explained_by_its_conversations() -> None:
    """The cause is why the conversations failed."""
    failed = scenario("a", builders.failing_conversation("a-1"), thresholds={"pass_rate": 0.9})
    assert titles(failed) == ["create_booking not called as expected"]


def test_missed_goals_are_one_cause() -> None:
    """The reasons of judges are ignored; another failure in the conversation takes precedence."""
    goal = {"kind": ReasonKind.CONVERSATION, "metric": "goal_completion"}
    missed = Reason(Status.FAILED, message="goal not reached: no slot", conversation_id="a-1", **goal)
    other = Reason(Status.FAILED, message="goal not reached: no price", conversation_id="a-2", **goal)
    check = CheckResult(check="contains", passed=False, summary="expected 'BK-' in the reply")
    why = Reason(Status.FAILED, ReasonKind.CHECK, "contains", conversation_id="a-2", check=check)
    assert titles(decided("a", missed, replace(other, conversation_id="a-2"))) == ["goal not reached"]
    found = root_causes_of([decided("a", missed, other, why)])
    assert {cause.title: cause.conversations for cause in found} == {
        "goal not reached": 1,
        "contains: expected 'BK-' in the reply": 1,
    }


def test_a_failure_that_judges_graded_explains_the_missed_goal() -> None:
    """If a conversation has a failing graded failure, its missed goal is not a separate cause."""
    missed = [
        Reason(Status.FAILED, ReasonKind.GOAL, "goal", conversation_id=id, metric="goal_completion")
        for id in ("a-1", "a-2")
    ]
    leak = group("leak", Severity.CRITICAL, "a-1-F1")
    failed = Reason(Status.FAILED, ReasonKind.ERROR, "leak", group=leak)
    found = root_causes_of([replace(decided("a", *missed, failed), errors=(leak,))])
    assert {cause.title: cause.conversations for cause in found} == {"leak": 1, "goal not reached": 1}
    found = root_causes_of([replace(decided("a", missed[0], failed), errors=(leak,))])
    assert [cause.title for cause in found] == ["leak"]


def test_an_outage_does_not_explain_a_threshold() -> None:
    """A low average and an outage are two causes."""
    low = Reason(Status.FAILED, ReasonKind.THRESHOLD, "low", metric="helpfulness", expected=4, actual=2)
    down = Reason(Status.ERRORED, ReasonKind.UNSCORED, "coherence could not be scored: status 503")
    assert titles(decided("a", low, down)) == [
        "helpfulness below its threshold of 4",
        "coherence could not be scored: status 503",
    ]


def decided(name: str, *reasons: Reason) -> ScenarioResult:
    status = Status.FAILED if any(r.status is Status.FAILED for r in reasons) else Status.ERRORED
    return builders.scenario_result(name, (), verdict=Verdict(status, reasons))


def test_an_outage_is_one_cause_for_all_metrics() -> None:
    """The number and names of unscored metrics do not matter, and the kind is errored."""
    down = Unscored("model m: status 503 (tried 5 times)")
    turn = builders.turn_evaluation(metrics={"helpfulness": down, "coherence": down})
    (cause,) = root_causes_of([scenario(name, builders.conversation_result(turns=(turn,))) for name in "ab"])
    assert cause.kind is CauseKind.ERRORED
    assert cause.title == "model m: status 503 (tried 5 times)"
    assert cause.scenarios == 2


URL = "http://127.0.0.1:8080/v1"
BODY = '{"error": {"type": "x", "message": "query failed: relation \\"stock\\" does not exist"}}'


@pytest.mark.parametrize(
    ("kind", "message", "title"),
    [
        (ReasonKind.CONVERSATION, f"{URL} answered 500: {BODY}",
         'the agent answered 500: query failed: relation "stock" does not exist'),
        (ReasonKind.CONVERSATION, f"{URL} answered 500: {BODY[:-2]}, \"trace\": \"cut he",
         'the agent answered 500: query failed: relation "stock" does not exist'),
        (ReasonKind.CONVERSATION, f"POST {URL} answered 404 (is the path (v1) right?): Not Found",
         "the agent answered 404: Not Found"),
        (ReasonKind.CONVERSATION, f"{URL} answered 502: <html><title> 502 Bad Gateway </title>",
         "the agent answered 502: 502 Bad Gateway"),
        (ReasonKind.CONVERSATION, f'{URL} answered 500: {{"error": "the model gpt-5: overloaded"}}',
         "the agent answered 500: the model gpt-5: overloaded"),
        (ReasonKind.CONVERSATION, f"{URL} answered 500: data model User: KeyError: id",
         "the agent answered 500: data model User: KeyError: id"),
        (ReasonKind.UNSCORED, f"{URL} answered 401: no model User: sign in",
         "the agent answered 401: no model User: sign in"),
        (ReasonKind.MODEL, "the data model User: KeyError: id", "the data model User: KeyError: id"),
        (ReasonKind.CONVERSATION, f'{URL} answered 422: {{"ok": false}}. The request had this body: {{}}',
         "the agent answered 422"),
        (ReasonKind.CONVERSATION, f'{URL} answered 422: {{"msg": "no a"}}. The request had this body: {{}}',
         "the agent answered 422: no a"),
        (ReasonKind.CONVERSATION, '`reply: a` finds nothing in the answer; found text at `b`: {"b": 1}',
         "`reply: a` finds nothing in the answer"),
        (ReasonKind.CONVERSATION, f"the agent sent no text in its reply. {'Look at its log. ' * 20}",
         "the agent sent no text in its reply"),
        (ReasonKind.CONVERSATION, f"{URL}: the answer was cut", "the agent: the answer was cut"),
        (ReasonKind.CONVERSATION, f"no connection to {URL}: refused", "no connection to the agent: refused"),
        (ReasonKind.MODEL, f"model a/b is down: {URL}: refused", "model a/b: refused"),
        (ReasonKind.CONVERSATION, f"{'long ' * 40}but the end names the cause", "cause"),
        (ReasonKind.MODEL, f"judging: model a/b is down: {URL} answered 503: busy (no answer for 3 s); not",
         "model a/b answered 503: busy"),
        (ReasonKind.UNSCORED, f"x could not be scored: model a/b: no answer within 3 s: {URL} answered 503: "
         "busy; raise `deadline_ms` to wait longer", "model a/b answered 503: busy"),
    ],
)  # fmt: skip
def test_an_error_is_titled_by_its_reason(kind: ReasonKind, message: str, title: str) -> None:
    """A title has no address, advice or JSON, and a long one keeps its end."""
    status = Status.FAILED if kind is ReasonKind.CONVERSATION else Status.ERRORED
    (found,) = titles(decided("a", Reason(status, kind, message)))
    assert found == title or (title == "cause" and found.endswith("names the cause") and len(found) == 160)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ('`reply: a` finds nothing in the answer; found text at `b`: {"b": 1}',
         'found text at `b`: {"b": 1}'),
        (f'{URL} answered 422: {{"detail": "no a"}}. The request had this body: {{"b": 1}}',
         f'{URL} answered 422. The request had this body: {{"b": 1}}'),
        (f'{URL} answered 422: {{"ok": false}}', f'{URL} answered 422: {{"ok": false}}'),
    ],
)  # fmt: skip
def test_the_details_of_an_error_do_not_repeat_its_title(message: str, text: str) -> None:
    (cause,) = root_causes_of([decided("a", Reason(Status.FAILED, ReasonKind.CONVERSATION, message))])
    assert cause.example.text == text


def test_one_outage_is_one_cause_whatever_it_kept_from_judging() -> None:
    """Criteria, thresholds, metrics and users of one model that is down have the same cause."""
    why = f"model m is down: {URL} answered 503: busy (no answer for 3 s); not called again for 30 s"
    reasons = [
        Reason(Status.ERRORED, kind, f"{what}{why}")
        for kind, what in (
            (ReasonKind.CRITERION, "criterion 'is polite' could not be judged: judging batch: "),
            (ReasonKind.THRESHOLD, "helpfulness has a threshold of 3 but could not be scored: "),
            (ReasonKind.UNSCORED, "coherence could not be scored 2 of 2 times: "),
            (ReasonKind.MODEL, ""),
        )
    ]
    assert titles(decided("a", *reasons)) == ["model m answered 503: busy"]


def test_a_replay_misses_answers_for_one_cause_in_many_scenarios() -> None:
    def missing(name: str, before: str, now: str, path: str = "messages[0].content") -> ScenarioResult:
        differs = (
            f'{path} is "{now}…, and in the nearest request in x/{name}.jsonl it is "{before}…. Record again'
        )
        message = f"scenario {name!r}, conversation 1, turn 0: {NO_RECORDED_ANSWER}: {differs}"
        return decided(name, Reason(Status.ERRORED, ReasonKind.CONVERSATION, message))

    one, other = missing("a", "You help.", "You sell shoes"), missing("b", "Be kind to the", "It is the 2nd")
    assert titles(one, other) == [f"{NO_RECORDED_ANSWER}: messages[0].content differs"]
    assert len(titles(one, missing("c", "a", "b", path="tools[1].name"))) == 2


def test_files_that_did_not_load_are_grouped_by_their_error() -> None:
    """The title is the last line of the traceback."""
    traceback = (
        "Traceback (most recent call last):\n  File x, line {}\nModuleNotFoundError: No module named 'salon'"
    )
    broken = [builders.broken_file(f"{n}.sim.py", traceback.format(n)) for n in range(3)]
    (cause,) = root_causes_of(broken)
    assert (cause.title, cause.scenarios) == ("ModuleNotFoundError: No module named 'salon'", 3)
    assert (cause.conversations, cause.example.conversation_id) == (0, None)


def test_the_early_end_of_a_run_is_not_a_cause() -> None:
    """Scenarios that did not run have no cause."""
    assert not titles(decided("a", Reason(Status.ERRORED, ReasonKind.INTERRUPTED, "interrupted")))


def group(label: str, severity: Severity, *ids: str) -> UniqueError:
    return UniqueError(label, severity, ids, f"why of {label}")


def judged(name: str, *groups: UniqueError) -> ScenarioResult:
    return scenario(name, errors=groups)


def test_judged_groups_are_joined_by_their_labels() -> None:
    """Case and punctuation are ignored; the worst severity counts, and each conversation counts once."""
    (cause,) = root_causes_of(
        [
            judged("a", group("Wrong hours.", Severity.LOW, "a-1-F1", "a-1-F2", "a-2-F1")),
            judged("b", group("wrong  HOURS", Severity.CRITICAL, "b-1-F1")),
        ]
    )
    assert (cause.kind, cause.severity) == (CauseKind.JUDGED, Severity.CRITICAL)
    assert (cause.scenarios, cause.conversations, cause.title) == (2, 3, "Wrong hours.")
    assert cause.example.text == "why of Wrong hours."


def test_the_example_of_a_judged_group_is_one_of_its_turns() -> None:
    """The first turn that the group shows."""
    shown = ErrorExample(conversation_id="a-2", turn_index=3, user_message="Where?", agent_message="Here.")
    held = replace(group("rude", Severity.LOW, "a-1-F1", "a-2-F1"), examples=(shown,))
    (cause,) = root_causes_of([judged("a", held)])
    assert (cause.example.conversation_id, cause.example.turn_index) == ("a-2", 3)
    (cause,) = root_causes_of([judged("a", replace(held, examples=()))])
    assert (cause.example.conversation_id, cause.example.turn_index) == ("a-1", None)


def test_an_error_that_names_its_conversation_has_a_title_without_it() -> None:
    """The example names it."""
    ended = Reason(Status.FAILED, ReasonKind.CONVERSATION, "session of a-1 is gone", conversation_id="a-1")
    assert titles(decided("a", ended)) == ["session of … is gone"]


def test_stored_causes_need_no_conversations() -> None:
    """Large runs store the causes of a scenario and drop its conversations."""
    whole = wrong("a")
    kept = replace(whole, causes=scenario_causes(whole), conversations=(), verdict=Verdict(Status.FAILED))
    assert root_causes_of([kept]) == root_causes_of([whole])


def test_joins_of_two_runs_that_share_a_label_are_one() -> None:
    """Joins of several shards that share a label become one cause."""
    scenarios = [judged(name, group(name, Severity.LOW, f"{name}-1-F1")) for name in "abcd"]
    joins = [
        CauseJoin(title="first", labels=("a", "b")),
        CauseJoin(title="third", labels=("c", "x")),
        CauseJoin(title="second", labels=("b", "c")),
    ]
    found = root_causes_of(scenarios, joins)
    assert [(cause.title, cause.scenarios) for cause in found] == [("first", 3), ("d", 1)]
    assert set(found[0].labels) == {"a", "b", "c", "x"}
    again = [CauseJoin(title="other words", labels=("x", "c", "b", "a"))]
    assert root_causes_of(scenarios[::-1], again)[0].id == found[0].id


def test_the_worst_and_most_frequent_groups_are_compared_first() -> None:
    """If there are too many to compare, the least important are left out."""
    scenarios = [
        judged("a", group("late", Severity.LOW, "a-1-F1"), group("rude", Severity.HIGH, "a-1-F2")),
        judged("b", group("leak", Severity.CRITICAL, "b-1-F1"), group("vague", Severity.HIGH, "b-1-F2")),
        judged("c", group("vague", Severity.HIGH, "c-1-F1")),
    ]
    assert [cause.label for cause in judged_causes(scenarios)] == ["leak", "vague", "rude", "late"]


def test_the_worst_and_most_frequent_come_first() -> None:
    """Order: severity, failures before errors, then the number of scenarios."""
    found = root_causes_of(
        [
            builders.broken_file(),
            *(wrong(f"w{n}") for n in range(2)),
            *(unmocked(f"u{n}") for n in range(3)),
            judged("low", group("late", Severity.LOW, "low-1-F1")),
            judged("bad", group("leak", Severity.CRITICAL, "bad-1-F1")),
        ]
    )
    assert [cause.kind for cause in found] == [
        CauseKind.JUDGED,
        CauseKind.UNMOCKED_TOOL,
        CauseKind.TRAJECTORY,
        CauseKind.ERRORED,
        CauseKind.JUDGED,
    ]


def test_of_one_severity_those_in_the_most_scenarios_come_first() -> None:
    """Within a severity: failures before errors, then scenarios, then conversations."""
    often = scenario("often", *(builders.failing_conversation(f"often-{n}") for n in range(5)))
    spread = [unmocked("u0"), unmocked("u1")]
    broken = [builders.broken_file(f"{n}.sim.py") for n in range(3)]
    assert titles(often, *broken, *spread) == [
        "send_sms has no mock",
        "create_booking not called as expected",
        "SyntaxError",
    ]
    seldom = scenario("seldom", builders.failing_conversation("seldom-1"))
    other = scenario("x", *(wrong(f"x{n}").conversations[0] for n in range(2)))
    assert titles(seldom, other)[0] == "create_booking: time expected '10:30', got '09:00'"


def test_an_id_stays_the_same_in_the_next_run() -> None:
    """The id depends only on the problem, not on how often or where it occurs."""
    (one,) = root_causes_of([unmocked("a")])
    (other,) = root_causes_of([unmocked("b"), unmocked("c")])
    assert one.id == other.id
    assert root_causes_of([unmocked("a", "send_fax")])[0].id != one.id


def test_a_cause_names_forty_places_and_counts_all() -> None:
    """This limits the size of large results."""
    (cause,) = root_causes_of([unmocked(f"s{n}") for n in range(50)])
    assert (len(cause.places), cause.scenarios, cause.conversations) == (40, 50, 50)


def test_agents_that_are_compared_are_named() -> None:
    """A scenario that fails with two agents counts once and lists a place for each agent."""
    found = [replace(wrong("a"), agent=agent) for agent in ("one", "two")]
    (cause,) = root_causes_of(found)
    assert (cause.scenarios, cause.conversations, cause.agents) == (1, 2, ("one", "two"))
    assert [place.agent for place in cause.places] == ["one", "two"]


texts = st.text(max_size=40) | st.sampled_from(["it's 5 o'clock", "'", '"a', "…", "\ud800", "\n", "a://"])


def _conversation(id: str, kind: int, text: str) -> ConversationResult:
    row = AlignedRow(expected=text, call=None, status=RowStatus.MISSING)
    missing = TrajectoryResult(matched=False, summary=text, missing_calls=("t",), alignment=(row,))
    unknown = TrajectoryResult(matched=False, summary=text, error=text or "x")
    check = CheckResult(check="contains", passed=False, summary=text)
    criterion = CriterionResult(
        text=text, required=True, result=CriterionOutcome.VIOLATED, turn_index=None, reason=text
    )
    failed = builders.failure(Blame.AGENT if kind else Blame.MODEL, text)
    plain = builders.conversation_result(id)
    return [
        replace(plain, conversation=builders.conversation(id, failure=failed)),
        replace(plain, conversation=builders.conversation(id, failure=failed), trajectory=missing),
        replace(plain, trajectory=wrong_call(text=text)),
        replace(plain, trajectory=missing),
        replace(plain, trajectory=unknown),
        replace(plain, checks=(check,)),
        replace(plain, criteria=(criterion,)),
        replace(plain, metrics={"goal_completion": Unscored(text)}),
    ][kind]


@given(st.lists(st.tuples(st.integers(0, 7), texts), min_size=1, max_size=8))
def test_every_failure_has_a_cause(plan: Sequence[tuple[int, str]]) -> None:
    """Each conversation that counts against its scenario is part of a cause."""
    held = [_conversation(f"c-{n}", kind, text) for n, (kind, text) in enumerate(plan)]
    result = scenario("a", *held)
    causes: tuple[RootCause, ...] = root_causes_of([result])
    assert result.verdict.status is not Status.PASSED
    assert causes
    counted = sum(cause.conversations for cause in scenario_causes(result))
    assert counted >= len({r.conversation_id for r in result.verdict.reasons if r.conversation_id})
    assert all(len(cause.title) <= 160 and "\n" not in cause.title for cause in causes)


def test_a_long_title_ends_with_its_clause() -> None:
    """The headline is the problem; what to do stands below it."""
    problem = "unknown-tool: trajectory.forbidden names tool 'delete_all', which no mock and no schema knows"
    advice = "check the spelling, mock the tool, or write under `agent`: tools: [delete_all]"
    assert error_title(f"{problem}: {advice}") == problem
    assert error_title(f"{problem}; {advice}") == problem
    seen = "calls of agent 'a' cannot be seen (tool_visibility: partial; see docs)" + " of a server" * 2
    assert error_title(f"{seen}: {advice}") == seen
