"""The whole runner in this process: order, isolation and outages."""

from __future__ import annotations

import threading
from typing import Any

import anyio

from agentest import QualitativeMetric, QuantitativeMetric, call, scenario, sequence
from agentest.domain.events import (
    ConversationFinished,
    Event,
    RunFinished,
    RunStarted,
    ScenarioFinished,
    TurnFinished,
)
from agentest.domain.results import Status, Unscored
from agentest.models.port import ChatRequest, TransientError
from agentest.runner.session import Stop
from agentest.support.errors import ModelUnavailable
from agentest.testing import Raw, ScriptedAgent, ScriptedModel, arun_scenarios, run_scenarios, tool_call


def test_conversations_see_nothing_of_each_other() -> None:
    """Two hundred concurrent conversations have separate histories, sequences and state."""

    def stateful(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        return {"n": ctx.state["n"], "conversation": ctx.conversation_id}

    def agent(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        if last["role"] == "user":
            return [tool_call("step"), tool_call("count")]
        return f"step {body['messages'][-2]['content']}, count {last['content']}"

    scenarios = [
        scenario(
            f"s{i}",
            turns=["one", "two", "three"],
            tools={"step": sequence("a", "b", "c"), "count": stateful},
            conversations_per_scenario=10,
        )
        for i in range(20)
    ]
    with ScriptedAgent(agent) as server:
        result = run_scenarios(scenarios, agent=server, concurrency=200)
    conversations = [c.conversation for s in result.scenarios for c in s.conversations]
    assert len({c.conversation_id for c in conversations}) == 200
    for conversation in conversations:
        steps = [turn.tool_calls[0].result for turn in conversation.turns]
        counts = [turn.tool_calls[1].result for turn in conversation.turns]
        assert steps == ["a", "b", "c"]
        assert counts == [{"n": n, "conversation": conversation.conversation_id} for n in (1, 2, 3)]


def test_concurrency_bounds_conversations_over_the_whole_run() -> None:
    """At most `concurrency` conversations run at once, over all scenarios."""
    lock, now, most = threading.Lock(), 0, 0
    gate = threading.Event()

    def agent(body: dict[str, Any]) -> str:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        gate.wait(0.01)
        with lock:
            now -= 1
        return "ok"

    with ScriptedAgent(agent) as server:
        run_scenarios(
            [scenario(f"s{i}", turns=["x"], conversations_per_scenario=3) for i in range(10)],
            agent=server,
            concurrency=4,
        )
    assert 1 <= most <= 4


class Gate:
    """A judge that answers only when released."""

    name = "gate"

    def __init__(self) -> None:
        self.open = anyio.Event()

    async def complete(self, request: ChatRequest) -> Any:
        if request.key.role == "judge":
            await self.open.wait()
        return await ScriptedModel().complete(request)


def test_judging_does_not_block_conversations() -> None:
    """With one place, all conversations run before any judge has answered."""
    talked = 0

    async def go() -> Any:
        nonlocal talked
        model = Gate()

        def on_event(event: Event) -> None:
            nonlocal talked
            if isinstance(event, TurnFinished):
                talked += 1
                if talked == 5:
                    model.open.set()

        with ScriptedAgent(["ok"]) as server:
            with anyio.fail_after(30):
                return await arun_scenarios(
                    [scenario("s", goal="g", conversations_per_scenario=5)],
                    agent=server,
                    model=model,
                    concurrency=1,
                    on_event=on_event,
                )

    result = anyio.run(go)
    assert talked == 5
    assert result.scenarios[0].verdict.passed


def test_conversations_wait_for_judges_that_are_far_behind() -> None:
    """At most ten conversations per place wait for judges, which limits memory."""
    asked = 0

    async def agent(messages: list[dict[str, Any]], ctx: Any) -> str:
        nonlocal asked
        asked += 1
        return "ok"

    async def go() -> Any:
        model, results = Gate(), []

        async def run() -> None:
            one = scenario("s", turns=["x"], goal="g", conversations_per_scenario=50)
            config = {"type": "custom", "handler": agent}
            results.append(await arun_scenarios([one], agent=config, model=model, concurrency=2))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                while asked < 22:
                    await anyio.wait_all_tasks_blocked()
                await anyio.wait_all_tasks_blocked()
                assert asked == 22
                model.open.set()
        return results[0]

    result = anyio.run(go)
    assert asked == 50
    assert result.scenarios[0].verdict.passed


def test_a_dead_judge_errors_but_never_fails() -> None:
    """If every judge call fails, nothing passes or fails, and all transcripts are kept."""

    def answer(request: ChatRequest) -> dict[str, Any]:
        if request.key.role == "user":
            return {"message": "hello", "should_stop": request.key.turn == 1}
        raise ModelUnavailable("the judge is down")

    with ScriptedAgent(["ok"]) as server:
        result = run_scenarios([scenario("s", goal="g")], agent=server, model=ScriptedModel(answer=answer))
    (found,) = result.scenarios
    assert found.verdict.status is Status.ERRORED
    assert len(found.conversations) == 3
    assert all(
        isinstance(r, Unscored) for c in found.conversations for t in c.turns for r in t.metrics.values()
    )
    assert found.averages == {}


def test_a_dead_user_errors_but_never_fails() -> None:
    """If the user's model is down, the scenario is errored; the trajectory does not count."""

    def answer(request: ChatRequest) -> dict[str, Any]:
        if request.key.role == "user" and request.key.turn:
            raise ModelUnavailable("the user is down")
        return {"message": "hello", "should_stop": False} if request.key.role == "user" else _best(request)

    with ScriptedAgent(["ok"]) as server:
        result = run_scenarios(
            [scenario("s", goal="g", trajectory={"match_mode": "strict", "expected": ["never"]})],
            agent=server,
            model=ScriptedModel(answer=answer),
        )
    assert result.scenarios[0].verdict.status is Status.ERRORED


def _best(request: ChatRequest) -> dict[str, Any]:
    metric = request.key.metric or ""
    return {"reason": "r", "value": "no failure" if "failure" in metric else 1 if "goal" in metric else 5}


def test_a_forbidden_call_counts_even_when_the_user_fails_later() -> None:
    """A later model failure does not hide what the agent did wrong."""

    def answer(request: ChatRequest) -> dict[str, Any]:
        if request.key.role == "user" and request.key.turn:
            raise ModelUnavailable("the user is down")
        return {"message": "hello", "should_stop": False} if request.key.role == "user" else _best(request)

    with ScriptedAgent([tool_call("drop"), "ok"]) as server:
        result = run_scenarios(
            [scenario("s", goal="g", tools={"drop": 1}, trajectory={"forbidden": ["drop"]})],
            agent=server,
            model=ScriptedModel(answer=answer),
        )
    assert result.scenarios[0].verdict.status is Status.FAILED


def test_one_bad_conversation_leaves_the_others_alone() -> None:
    """Any data from an agent ends only its own conversation, with a reason."""
    bad = [
        Raw(b""),
        Raw(b"[1, 2"),
        Raw(b'{"choices": "no"}'),
        Raw(b'{"choices": [{"message": {"content": 5}}]}'),
        Raw(b'{"choices": [{"message": {"content": ""}}]}'),
        Raw(b"x" * 100, status=404),
        Raw(b'{"choices": [{"mess', content_length=5000, close=True),
        Raw(b"y" * (10 * 1024 * 1024 + 1)),
    ]

    def agent(body: dict[str, Any]) -> Any:
        number = int(body["messages"][0]["content"])
        return bad[number] if number < len(bad) else "fine"

    checks = {"expect": {"says": "fine"}}
    scenarios = [scenario(f"s{i}", turns=[str(i)], **checks) for i in range(len(bad) + 2)]
    with ScriptedAgent(agent) as server:
        result = run_scenarios(scenarios, agent=server)
    statuses = [s.verdict.status for s in result.scenarios]
    assert statuses == [Status.FAILED] * len(bad) + [Status.PASSED] * 2
    for found in result.scenarios[: len(bad)]:
        failure = found.conversations[0].conversation.failure
        assert failure is not None
        assert 0 < len(failure.message) <= 500


def test_transient_faults_of_a_model_are_retried_and_counted() -> None:
    """Occasional model failures cost retries, not verdicts."""
    seen: set[Any] = set()

    def flaky(request: ChatRequest) -> dict[str, Any]:
        if request.key not in seen:
            seen.add(request.key)
            raise TransientError("overloaded", retry_after=0.0)
        if request.key.role == "user":
            return {"message": "hello", "should_stop": True}
        best: dict[str, Any] = ScriptedModel()._by_role(request)
        return best

    with ScriptedAgent(["ok"]) as server:
        result = run_scenarios([scenario("s", goal="g")], agent=server, model=ScriptedModel(answer=flaky))
    (found,) = result.scenarios
    assert found.verdict.passed
    assert found.usage["judge"].retries == 3 * 3  # a turn, the goal, the user
    assert found.usage["user"].calls == 6


def test_events_come_in_order() -> None:
    """The run starts, turns and conversations finish, then their scenario, then the run."""
    events: list[Event] = []
    with ScriptedAgent(["ok"]) as server:
        run_scenarios([scenario("s", turns=["a", "b"])], agent=server, on_event=events.append)
    kinds = [type(event) for event in events]
    assert kinds[0] is RunStarted
    assert kinds[-1] is RunFinished
    order = [kinds.index(kind) for kind in (TurnFinished, ConversationFinished, ScenarioFinished)]
    assert order == sorted(order)


class Crashing(QuantitativeMetric):
    """A metric with a bug."""

    def score(self, input: Any) -> float:
        raise ZeroDivisionError("a bug")


class CrashingLabel(QualitativeMetric):
    """A metric of labels with a bug."""

    def evaluate(self, input: Any) -> str:
        raise ZeroDivisionError("a bug")


class Asking(QuantitativeMetric):
    """A metric that calls the judge model, and wraps its exceptions."""

    async def score(self, input: Any) -> float:
        try:
            await self.llm.text("How good is it?")
        except Exception as error:
            raise ValueError("no score") from error
        return 1.0


def test_a_custom_metric_that_raises() -> None:
    """A bug in a custom metric makes the scenario errored if it has a threshold, else it is a warning."""
    with ScriptedAgent(["ok"]) as server:
        metrics = [Crashing, CrashingLabel]
        made = scenario("s", turns=["x"], expect={"says": "ok"})
        result = run_scenarios([made], agent=server, custom_metrics=metrics).scenarios[0]
        assert result.verdict.status is Status.PASSED
        said = "{} could not be scored 1 of 1 time: ZeroDivisionError: a bug; without a threshold it does not"
        assert [
            warning.startswith(said.format(name))
            for warning, name in zip(result.warnings, ("crashing", "crashing_label"), strict=True)
        ] == [True, True]
        made = scenario("s", turns=["x"], thresholds={"crashing": 1})
        result = run_scenarios([made], agent=server, custom_metrics=metrics).scenarios[0]
    assert result.verdict.status is Status.ERRORED
    assert "ZeroDivisionError" in result.verdict.reasons[0].message
    assert len(result.warnings) == 1


def test_a_custom_metric_whose_model_failed() -> None:
    """If its model fails, the scenario is errored, whatever the metric does with the exception."""

    def down(request: ChatRequest) -> str:
        raise TransientError("down", retry_after=0.0)

    model = ScriptedModel(answer=down)
    with ScriptedAgent(["ok"]) as server:
        made = scenario("s", turns=["x"])
        result = run_scenarios([made], agent=server, model=model, custom_metrics=[Asking]).scenarios[0]
    assert result.verdict.status is Status.ERRORED
    assert "asking could not be scored 1 of 1 time: ValueError: no score" in result.verdict.reasons[0].message


def test_failures_are_grouped_and_decide() -> None:
    """Failure labels are grouped once per scenario, and the group's severity decides."""
    model = ScriptedModel(
        scores={"agent_behavior_failure": "false information"},
        groups=[
            {"label": "wrong hours", "severity": "critical", "occurrences": ["s-1-F1"], "explanation": "e"}
        ],
    )
    with ScriptedAgent(["ok"]) as server:
        result = run_scenarios(
            [scenario("s", goal="g", conversations_per_scenario=2)], agent=server, model=model
        )
    (found,) = result.scenarios
    assert found.verdict.status is Status.FAILED
    assert (found.errors[0].label, found.errors[0].occurrences) == ("wrong hours", ("s-1-F1",))
    assert sum(len(g.occurrences) for g in found.errors) == 2
    assert found.usage["dedup"].calls == 1


def test_a_cancelled_run_keeps_what_had_finished() -> None:
    """Cancelling a run returns all finished conversations, marked as interrupted."""

    async def go() -> Any:
        stop = Stop()

        def on_event(event: Event) -> None:
            if isinstance(event, ConversationFinished) and event.name == "quick":
                stop.interrupt()

        async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
            if ctx.scenario == "slow":
                await anyio.sleep_forever()
            return "ok"

        return await arun_scenarios(
            [scenario("quick", turns=["x"], conversations_per_scenario=1), scenario("slow", turns=["x"])],
            agent=handler,
            on_event=on_event,
            stop=stop,
        )

    result = anyio.run(go)
    assert result.interrupted
    assert [len(s.conversations) for s in result.scenarios] == [1, 0]
    assert all(s.verdict.status is not Status.PASSED or len(s.conversations) == 1 for s in result.scenarios)


def test_argument_matchers_reach_the_verdict() -> None:
    """Expected arguments may be predicates; a mismatch fails the trajectory."""
    expected = call("pay", amount=lambda amount: amount < 10)
    with ScriptedAgent([tool_call("pay", amount=50), "paid"]) as server:
        result = run_scenarios(
            [
                scenario(
                    "s",
                    turns=["x"],
                    tools={"pay": 1},
                    trajectory={"match_mode": "contains", "expected": [expected]},
                )
            ],
            agent=server,
        )
    assert result.scenarios[0].verdict.status is Status.FAILED


class Exiting(QuantitativeMetric):
    """A metric that tries to exit the program."""

    def score(self, input: Any) -> float:
        raise SystemExit(0)


def test_user_code_cannot_end_the_run() -> None:
    """sys.exit() in a metric or KeyboardInterrupt in a predicate affects only that scenario."""

    def interrupts(value: Any) -> bool:
        raise KeyboardInterrupt

    with ScriptedAgent([tool_call("t", a=1), "ok"]) as server:
        result = run_scenarios(
            [
                scenario(
                    "predicate",
                    turns=["x"],
                    tools={"t": 1},
                    trajectory={"match_mode": "strict", "expected": [call("t", a=interrupts)]},
                )
            ],
            agent=server,
        )
        assert result.scenarios[0].verdict.status is Status.ERRORED
        result = run_scenarios(
            [scenario("s", turns=["x"], tools={"t": 1}, thresholds={"exiting": 1})],
            agent=server,
            custom_metrics=[Exiting],
        )
    assert result.scenarios[0].verdict.status is Status.ERRORED


def test_a_hanging_mock_is_not_held_against_a_handler() -> None:
    """A mock that never answers a handler's call is the scenario's fault, as over HTTP."""

    async def hangs(args: dict[str, Any]) -> None:
        await anyio.sleep_forever()

    async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
        return str(await ctx.resolve_tool("search", {}))

    result = run_scenarios(
        [scenario("s", turns=["x"], tools={"search": hangs})], agent=handler, request_timeout_ms=50
    )
    assert result.scenarios[0].verdict.status is Status.ERRORED
    assert "search" in result.scenarios[0].verdict.reasons[0].message
