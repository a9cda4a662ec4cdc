"""A run with all kinds of results for the page: passes, failures, flaws, costs and attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import builders

from agentest.domain.end_reason import Ending
from agentest.domain.results import (
    CaseId,
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    ErrorExample,
    Evidence,
    GoalOutcome,
    Reference,
    ReferenceCall,
    RunResult,
    ScenarioResult,
    Score,
    Severity,
    Skipped,
    TrajectoryResult,
    TurnEvaluation,
    Unscored,
)
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import (
    AttachedFile,
    Blame,
    Conversation,
    ModelRequest,
    ModelToolCall,
    PromptMessage,
    Remark,
    ServerOutput,
    ToolCall,
    Turn,
    Usage,
)
from agentest.scenarios.trajectory_parser import parse_trajectory
from agentest.store.adk_results import turn_invocation
from agentest.trajectory.matcher import TrajectoryMatcher

FILE = "scenarios/booking.sim.py"
HOSTILE_NAME = "<script>window.stolen = 1</script> \u202egnp.exe"
HOSTILE_TEXTS = (
    "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 2'><style>*{display:none}</style>",
    "javascript:window.stolen=3 [click](javascript:window.stolen=4) <a href=javascript:stolen()>",
    "W" * 1_000_000,
    "left \u202eRIGHT-TO-LEFT\u202c \u2066isolated \u061c \u200f end",
    "\x1b[31mred\x1b[2J\x1b[H \x00 NUL \x07 bell \x9b31m C1",
    "zero\u200bwidth\u200djoined\ufeffmark\u2060word \U000e0041 tag",
    "H" + "\u0301\u0316\u0489" * 67 + " combined",
    "lone \ud800 surrogate \udfff",
    "</script><!-- --><p hidden>",
)
"""What agents, tools and users may send; nothing of it may run, or change what is outside its place."""


def sample_run() -> RunResult:
    """A run with one agent and every kind of result."""
    return builders.run_result(
        passing(),
        wrong_calls(),
        judged_low(),
        criteria_and_state(),
        flaky(),
        unfinished(),
        errored(),
        hostile(),
        case_of_a_set(),
        builders.broken_file(),
        builders.skipped_scenario(),
    )


def compared_run() -> RunResult:
    """Two agents with the same scenarios; the second is worse at one of them."""
    make = (passing, wrong_calls, flaky)
    found = [replace(each(), agent=agent) for each in make for agent in ("booking", "candidate")]
    worse = replace(judged_low(), agent="candidate")
    better = replace(passing(worse.name), agent="booking")
    return builders.run_result(*found, better, worse, agents=("booking", "candidate"), comparison=True)


# --- scenarios


def passing(name: str = "user books a morning slot") -> ScenarioResult:
    """Everything as expected, in two turns."""
    turns = (
        _turn(0, "Is Tuesday free?", "Yes, at 9:00 and at 10:30.", _check("Tuesday")),
        _turn(
            1,
            "Book 9:00 for Ada.",
            "Booked: Tuesday at 9:00.",
            _book("Tuesday", "9:00"),
            remarks=(Remark("booking_agent", "One moment, I write it down.", 0),),
            author="booking_agent",
            started_at="2026-01-02T03:04:07+00:00",
            first_token_ms=90.0,
            model_calls=2,
        ),
    )
    expected = {"match_mode": "contains", "expected": ["check_availability", "create_booking"]}
    return _scenario(name, 7, _result("c1", turns, trajectory=_trajectory(expected, turns)))


def wrong_calls() -> ScenarioResult:
    """Failed trajectories: missing, extra, different, misplaced and forbidden calls."""
    turns = (
        _turn(0, "Is Tuesday free?", "I have cancelled Monday.", _cancel("b-7"), _check("Monday")),
        _turn(1, "I said Tuesday!", "Booked.", _book("Tuesday", "9:30"), _check("Tuesday"), _mail()),
        _turn(2, "Thank you.", "You are welcome."),
    )
    strict = {
        "match_mode": "strict",
        "expected": [
            {"name": "check_availability", "args": {"date": "Tuesday"}},
            {"name": "create_booking", "args": {"date": "Tuesday", "time": "9:00"}},
            {"name": "send_confirmation"},
        ],
        "forbidden": ["cancel_booking"],
    }
    each_turn = {1: {"match_mode": "in_order", "expected": ["check_availability", "create_booking"]}}
    held = _result("c1", turns, trajectory=_trajectory(strict, turns), each_turn=each_turn)
    return _scenario("books what was asked for", 31, held, tags=("booking", "calls"))


def judged_low() -> ScenarioResult:
    """Low scores with reasons, samples and labels; failed checks; root causes."""
    turns = (
        _turn(0, "When are you open on Saturday?", "We are open from 8:00 to 20:00."),
        _turn(1, "And on Sunday?", "Of course, always!", latency_ms=2750.0, retries=1, requests=2),
    )
    low = {
        "helpfulness": Score(2, "The hours are made up.", samples=(2, 3, 1)),
        "faithfulness": Score(1, "The price list says 9 to 17.", evidence=Evidence.CONTRADICTED),
        "agent_behavior_failure": Score(
            "false information", "It is closed on Sundays.", labels=("false information", "empty promise")
        ),
        "tone": Unscored("the judge's answer was no JSON: 'Well, I think…'"),
    }
    checks = (
        CheckResult(check="contains", passed=False, summary="expected 'closed'", reply="Of course, always!"),
        CheckResult(check="max_words", passed=True, summary="at most 20 words; it has 3"),
    )
    evaluations = (
        TurnEvaluation(
            0, {"helpfulness": Score(4, "Clear."), "faithfulness": Skipped("no model configured")}
        ),
        TurnEvaluation(1, low, checks=checks),
    )
    missed = Score(0, "The user learnt nothing true.", outcome=GoalOutcome.NOT_REACHED)
    held = _result(
        "c1", turns, evaluations, metrics={"goal_completion": missed, "brevity": Score(5, "Short.")}
    )
    failure = builders.labelled_failure(
        "c1-F1", turn_index=1, metric="agent_behavior_failure", reason="It is closed on Sundays."
    )
    cause = builders.error_group("wrong hours", Severity.CRITICAL, ("c1-F1",))
    example = ErrorExample(
        conversation_id="c1", turn_index=1, user_message="And on Sunday?", agent_message="Of course, always!"
    )
    return _scenario(
        "asks for opening hours",
        52,
        replace(held, failures=(failure,)),
        errors=[replace(cause, examples=(example,))],
        thresholds={"helpfulness": 4.0, "faithfulness": 4.0, "goal_completion": 0.8},
        tags=("hours", "judged"),
    )


def criteria_and_state() -> ScenarioResult:
    """Criteria, one violated and one undecided, and a session whose state changes."""
    turns = (
        _turn(0, "A table for two.", "For when?", state_after={"cart": {"people": 2}, "user": "Ada"}),
        _turn(
            1,
            "Friday, here is my voucher.\n[attached: voucher.pdf, application/pdf, 12,345 bytes]",
            "Done, I used your neighbour's voucher.",
            _book("Friday", "19:00"),
            state_after={"cart": {"people": 2, "date": "Friday"}, "voucher": "V-1"},
            attachments=(AttachedFile("application/pdf", "voucher.pdf", 12345),),
        ),
        _turn(2, "What?", "", _check("Friday"), state_error="the agent's server answered with status 500"),
    )
    criteria = (
        _criterion("asks before it books", True, CriterionOutcome.MET, 0, "It asks when."),
        _criterion("uses nobody else's voucher", True, CriterionOutcome.VIOLATED, 1, "It says so itself."),
        _criterion("stays polite", False, CriterionOutcome.CANNOT_TELL, None, "It fell silent."),
    )
    held = _result("c1", turns, initial_state={"cart": {}, "user": "Ada"}, ending=Ending.GAVE_UP)
    return _scenario("uses a voucher", 80, replace(held, criteria=criteria), tags=("criteria",))


def flaky() -> ScenarioResult:
    """Five conversations, two of which fail, one only in its third turn."""
    found = []
    for number in range(1, 6):
        turns = tuple(_turn(i, f"Question {i}", f"Answer {i}", latency_ms=100.0 * number) for i in range(3))
        late = {2: {"expected": ["check_availability"], "match_mode": "contains"}}
        failed = number in (2, 4)
        found.append(_result(f"c{number}", turns, each_turn=late if failed else None))
    return _scenario("answers three questions", 101, *found, planned=5, tags=("flaky",))


def unfinished() -> ScenarioResult:
    """A turn without a reply, and the output of the agent's server."""
    output = ServerOutput(
        server="booking",
        lines=("Traceback (most recent call last):", "  File 'agent.py', line 3", "KeyError: 'date'"),
        lines_before=40,
        exit_status=-9,
    )
    left = builders.unfinished_turn(1, "Book it.", _book("Tuesday", "9:00", turn_index=1))
    held = builders.conversation(
        "c1",
        (_turn(0, "Is Tuesday free?", "Yes."),),
        builders.failure(),
        replace(left, server_output=(output,)),
    )
    return _scenario("survives a crash", 120, builders.conversation_result("c1", (), {}, held=held))


def errored() -> ScenarioResult:
    """Conversations that do not count: a mock failed, a model failed, a user broke its role."""
    found = [
        builders.conversation_result(
            "c1", (), {}, held=_broken("c1", Blame.MOCK, "mock 'pay' raised KeyError")
        ),
        builders.conversation_result(
            "c2", (), {}, held=_broken("c2", Blame.MODEL, "the model is overloaded")
        ),
        replace(
            _result("c3", (_turn(0, "I can help you!", "Thank you?"),)), invalid="the user spoke as the agent"
        ),
    ]
    return _scenario("pays by card", 140, *found, planned=3)


def hostile() -> ScenarioResult:
    """Texts that try to run, reverse or cover the page, or end their script."""
    turns = tuple(
        _turn(
            i,
            text,
            text,
            _call(text[:200], {text[:200]: text[:5000]}, {"said": text[:5000]}, error=text[:300]),
            model_ms=9.0,
            model_requests=(_model_request(text),),
        )
        for i, text in enumerate(HOSTILE_TEXTS)
    )
    scores = tuple(
        TurnEvaluation(i, {text[:100]: Score(text[:100], text)}) for i, text in enumerate(HOSTILE_TEXTS)
    )
    shown = _trajectory({"expected": [{"name": HOSTILE_TEXTS[0], "args": {"x": HOSTILE_TEXTS[3]}}]}, turns)
    held = _result("c1", turns, scores, trajectory=shown, initial_state={HOSTILE_TEXTS[0]: HOSTILE_TEXTS[3]})
    return _scenario(HOSTILE_NAME, 160, held, tags=(HOSTILE_TEXTS[0], "\u202etag"))


def _model_request(text: str) -> ModelRequest:
    """A request with this text everywhere."""
    return ModelRequest(
        begin_ms=1.0,
        latency_ms=9.0,
        model=text[:200],
        error=text[:2000],
        prompt=(PromptMessage(text[:200], text[:2000]),),
        answer=text[:2000],
        calls=(ModelToolCall(text[:200], text[:2000]),),
    )


def model_requests() -> tuple[ModelRequest, ...]:
    """A mocked call that the gateway answered, the answer after it, and one that was refused."""
    asked = (PromptMessage("system", "Be brief."), PromptMessage("user", "Book 9:00 for Ada."))
    made = ModelToolCall("create_booking", '{"time": "9:00"}', answered_inside=True)
    return (
        ModelRequest(
            begin_ms=10.0,
            latency_ms=400.0,
            model="gpt-4o",
            status=200,
            usage=Usage(120, 15, 100),
            prompt=asked,
            prompt_more=2,
            calls=(made, ModelToolCall("log", "{}")),
        ),
        ModelRequest(
            begin_ms=410.0,
            latency_ms=200.0,
            model="gpt-4o",
            round=1,
            status=200,
            usage=Usage(140, 10),
            prompt=(PromptMessage("tool", "true"),),
            answer="Booked: <b>Tuesday</b> at 9:00.",
        ),
        ModelRequest(begin_ms=700.0, latency_ms=100.0, status=429, error="slow down"),
    )


def case_of_a_set() -> ScenarioResult:
    """A case of an evaluation set whose expected and actual invocations differ."""
    turns = (_turn(0, "Book Tuesday at 9:00.", "Booked for Monday.", _book("Monday", "9:00")),)
    wanted = _turn(0, "Book Tuesday at 9:00.", "Booked for Tuesday at 9:00.", _book("Tuesday", "9:00"))
    reference = Reference(
        wanted.agent_message,
        (ReferenceCall("create_booking", {"date": "Tuesday", "time": "9:00"}),),
        turn_invocation(wanted, "inv-1"),
    )
    scores = {
        "tool_trajectory_avg_score": Score(0.0, "create_booking differs"),
        "response_match_score": Score(0.6, ""),
    }
    held = _result("c1", turns, (TurnEvaluation(0, scores, reference=reference),), metrics={})
    return _scenario(
        "booking_set/tuesday",
        1,
        held,
        file="evals/booking.evalset.json",
        case=CaseId("booking_set", "tuesday"),
        thresholds={"tool_trajectory_avg_score": 1.0, "response_match_score": 0.8},
        tags=(),
    )


def long_conversation(turns: int = 500, calls: int = 4) -> ScenarioResult:
    """One conversation with very many turns and calls."""
    found = tuple(
        _turn(
            i, f"Question {i}", f"Answer {i}", *(_check(f"day {i}-{n}", turn_index=i) for n in range(calls))
        )
        for i in range(turns)
    )
    return _scenario("talks for hours", 200, _result("c1", found))


def late_failure() -> ScenarioResult:
    """A conversation of twelve turns whose last call has a wrong time."""
    asked = [builders.turn(n, f"Question {n}. " * 20, "An answer. " * 60) for n in range(11)]
    call = builders.tool_call("create_booking", {"time": "09:00"}, turn_index=11)
    turns = [*asked, builders.turn(11, "Book 10:30.", "Booked.", tool_calls=(call,))]
    expected = {"match_mode": "contains", "expected": [{"name": "create_booking", "args": {"time": "10:30"}}]}
    return _scenario("books late", 9, _result("c1", turns, trajectory=_trajectory(expected, turns)))


def refused() -> ScenarioResult:
    """A conversation that the agent's server ended with an error at the second turn."""
    message = 'http://127.0.0.1:8000/chat answered 500 (see its log): {"error": "KeyError: session"}'
    held = builders.conversation(
        "c1", [builders.turn()], builders.failure(message=message), builders.unfinished_turn(1)
    )
    return builders.scenario_result("asks twice", [builders.conversation_result("c1", (), {}, held=held)])


# --- pieces


def _turn(index: int, user: str, agent: str, *calls: ToolCall, **more: Any) -> Turn:
    made = tuple(replace(call, turn_index=index) for call in calls)
    return builders.turn(index, user, agent, tool_calls=made, **{"user_ms": 310.0, "tools_ms": 2.5, **more})


def _call(name: str, args: Any, result: Any, **more: Any) -> ToolCall:
    return builders.tool_call(name, args, result, **{"duration_ms": 1.25, **more})


def _check(date: str, **more: Any) -> ToolCall:
    return _call("check_availability", {"date": date}, {"free": ["9:00", "10:30"]}, **more)


def _book(date: str, time: str, **more: Any) -> ToolCall:
    return _call("create_booking", {"date": date, "time": time, "name": "Ada"}, {"id": "b-1"}, **more)


def _cancel(id: str) -> ToolCall:
    return _call("cancel_booking", {"id": id}, None, error="KeyError: 'b-7'")


def _mail() -> ToolCall:
    """A call with invalid arguments, reported only by the agent."""
    return builders.tool_call(
        "send_mail",
        '{"to": "ada@',
        None,
        mocked=False,
        invalid_arguments="not JSON: the text ends too early",
        seen_by=SeenBy.AGENT,
        also_seen_by=(SeenBy.SPANS,),
    )


def conversation_of(turns: Sequence[Turn], expected: dict[str, Any]) -> ConversationResult:
    """A conversation of these turns with these expected calls."""
    return _result("c1", turns, trajectory=_trajectory(expected, turns))


def _trajectory(spec: dict[str, Any], turns: Sequence[Turn]) -> TrajectoryResult | None:
    calls = [call for turn in turns for call in turn.tool_calls]
    return TrajectoryMatcher(parse_trajectory(spec)).match(calls, len(turns))


def _result(
    id: str,
    turns: Sequence[Turn],
    evaluations: Sequence[TurnEvaluation] | None = None,
    *,
    metrics: Any = None,
    trajectory: TrajectoryResult | None = None,
    each_turn: dict[int, dict[str, Any]] | None = None,
    initial_state: dict[str, Any] | None = None,
    ending: Ending = Ending.SATISFIED,
) -> ConversationResult:
    if evaluations is None:
        evaluations = [builders.turn_evaluation(turn.turn_index) for turn in turns]
    specs = each_turn or {}
    judged = [
        replace(each, judged_ms=450.0)
        if each.turn_index not in specs
        else replace(each, trajectory=_trajectory(specs[each.turn_index], turns[each.turn_index :][:1]))
        for each in evaluations
    ]
    held = Conversation(id, tuple(turns), ending, initial_state=initial_state)
    return builders.conversation_result(id, judged, metrics, held=held, trajectory=trajectory)


def _broken(id: str, blame: Blame, message: str) -> Conversation:
    left = builders.unfinished_turn(0, "Pay by card.", _call("pay", {"amount": 5}, None, error="KeyError: 5"))
    return builders.conversation(id, (), builders.failure(blame, message), left)


def _criterion(
    text: str, required: bool, result: CriterionOutcome, turn: int | None, reason: str
) -> CriterionResult:
    return CriterionResult(text=text, required=required, result=result, turn_index=turn, reason=reason)


def _scenario(name: str, line: int, *found: ConversationResult, **more: Any) -> ScenarioResult:
    wish = {
        "goal": "Book a slot in the morning, and be done in two minutes.",
        "profile": "In a hurry; terse.",
    }
    return builders.scenario_result(name, found, **{"line": line, "planned": len(found), **wish, **more})
