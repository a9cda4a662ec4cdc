"""Custom metrics (contract, section 6)."""

from __future__ import annotations

import asyncio
import math
import threading
from enum import StrEnum
from fractions import Fraction
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from agentest import ConversationMetric, QualitativeMetric, QuantitativeMetric, scenario
from agentest.domain.results import NO_MODEL, MetricResult, Score, Skipped, Status, Unscored
from agentest.judging.custom_metrics import ConversationInput, Metric, ScoreInput, evaluate_metric
from agentest.models.admission import LocalGate
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.circuit import Places
from agentest.models.port import CallKey, ChatRequest, Ledger, TransientError
from agentest.models.structured_output import StructuredModel
from agentest.support.errors import ConfigError, ModelError
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call

KEY = CallKey("judge", "s", 1, 0, "m")
TURN = ScoreInput("goal", "profile", ("fact",), "hi", "hello", (), (), 0)
TALK = ConversationInput("goal", "profile", ("fact",), ())


def evaluated(metric: Metric, model: ScriptedModel | None = None, given: Any = TURN) -> MetricResult:
    async def go() -> MetricResult:
        port = (
            StructuredModel(
                LiveModel(model, Ledger(), LocalGate("m", Places(4)), patience=RetryPolicy(retries=0))
            )
            if model
            else None
        )
        return await evaluate_metric(metric, given, port, KEY)

    return anyio.run(go)


def quantitative(found: Any) -> QuantitativeMetric:
    """A metric that returns the given value or raises the given exception."""

    class Given(QuantitativeMetric):
        def score(self, input: ScoreInput) -> Any:
            if isinstance(found, Exception):
                raise found
            return found

    return Given()


def qualitative(found: Any) -> QualitativeMetric:
    class Given(QualitativeMetric):
        def evaluate(self, input: ScoreInput) -> Any:
            return found

    return Given()


class Label(StrEnum):
    RUDE = "rude"


class Unprintable:
    def __repr__(self) -> str:
        return "<thing>"


@pytest.mark.parametrize(
    ("found", "score"),
    [
        (4, Score(4, "")),
        (0.5, Score(0.5, "")),
        (-3, Score(-3, "")),
        (True, Score(1, "")),
        (Fraction(1, 2), Score(0.5, "")),
        ((4, "why"), Score(4, "why")),
        ((4, None), Score(4, "")),
        ({"value": 4}, Score(4, "")),
        ({"value": 4, "reason": "why"}, Score(4, "why")),
        ({"value": 0, "reason": None}, Score(0, "")),
        (Score(4, "why"), Score(4, "why")),
        (Score(False, "why"), Score(0, "why")),
    ],
)
def test_every_form_of_a_number_is_a_score(found: Any, score: Score) -> None:
    """A plain number, a tuple with a reason, a dict and a Score all give the same Score."""
    result = evaluated(quantitative(found))
    assert result == score
    assert isinstance(result, Score)
    assert type(result.value) is type(score.value)


@pytest.mark.parametrize(
    ("found", "score"),
    [
        ("rude", Score("rude", "")),
        (Label.RUDE, Score("rude", "")),
        (("rude", "why"), Score("rude", "why")),
        ({"value": "rude", "reason": "why"}, Score("rude", "why")),
        (Score("rude", "why"), Score("rude", "why")),
    ],
)
def test_every_form_of_a_label_is_a_score(found: Any, score: Score) -> None:
    """A plain label, a tuple with a reason, a dict and a Score all give the same Score."""
    assert evaluated(qualitative(found)) == score


@pytest.mark.parametrize(
    "found",
    [None, "4", math.nan, math.inf, {}, {"score": 4}, (1, 2, 3), [4], 1j, Unprintable(), {"value": None}],
)
def test_a_value_that_is_not_a_number_is_unscored(found: Any) -> None:
    """If a quantitative metric returns no finite number, it is unscored and the error has the value."""
    result = evaluated(quantitative(found))
    assert isinstance(result, Unscored)
    assert "must give a number" in result.error


@pytest.mark.parametrize(
    "found", [None, "", "  ", 3, True, ["rude"], ("rude", "very", "rude"), {"label": "rude"}]
)
def test_a_value_that_is_not_a_label_is_unscored(found: Any) -> None:
    """If a qualitative metric returns no text, it is unscored and the error has the value."""
    result = evaluated(qualitative(found))
    assert isinstance(result, Unscored)
    assert "must give a label" in result.error


def test_a_metric_that_raises_is_unscored_with_its_error() -> None:
    """Any exception of a metric becomes the reason why it is unscored."""
    assert evaluated(quantitative(KeyError("slot"))) == Unscored("KeyError: 'slot'", own_code=True)
    assert evaluated(quantitative(10**400)) == Unscored(
        "OverflowError: int too large to convert to float", own_code=True
    )


def test_async_methods_are_awaited() -> None:
    """Async metrics of all three kinds give the same results and errors as plain ones."""

    class Slow(QuantitativeMetric):
        async def score(self, input: ScoreInput) -> tuple[int, str]:
            await anyio.lowlevel.checkpoint()
            return len(input.agent_message), input.user_message

    class Tone(QualitativeMetric):
        async def evaluate(self, input: ScoreInput) -> str:
            return "no failure"

    class Length(ConversationMetric):
        async def score(self, input: ConversationInput) -> int:
            raise LookupError(input.goal)

    assert evaluated(Slow()) == Score(5, "hi")
    assert evaluated(Tone()) == Score("no failure", "")
    assert evaluated(Length(), given=TALK) == Unscored("LookupError: goal", own_code=True)


def test_names_are_snake_case_unless_given() -> None:
    """A metric is named after its class, a subclass after its own, and `name` overrides both."""

    class PoliteTone(QuantitativeMetric):
        def score(self, input: ScoreInput) -> int:
            return 1

    class VeryPoliteTone(PoliteTone): ...

    class Named(PoliteTone):
        name = "tone"

    assert [m.name for m in (PoliteTone(), VeryPoliteTone(), Named())] == [
        "polite_tone",
        "very_polite_tone",
        "tone",
    ]


def test_a_metric_without_its_method_is_refused_at_once() -> None:
    """A class without `score` is a configuration error, not an error of every turn."""

    class Forgetful(QuantitativeMetric):
        def evaluate(self, input: ScoreInput) -> int:
            return 1

    with pytest.raises(ConfigError, match=r"custom_metrics\[0\].*score"), ScriptedAgent(["hello"]) as agent:
        run_scenarios([scenario("s", turns=["hi"])], agent=agent, custom_metrics=[Forgetful])


class Judged(QuantitativeMetric):
    """A metric that calls the judge model; with `hidden`, it wraps any exception."""

    def __init__(self, hidden: bool = False) -> None:
        self.hidden = hidden

    async def score(self, input: ScoreInput) -> Any:
        class Grade(BaseModel):
            points: int
            why: str

        try:
            grade = await self.llm.ask(f"Grade {input.agent_message}", Grade, system="Be strict.")
        except ModelError:
            if self.hidden:
                raise RuntimeError("my own error") from None
            raise
        return grade.points, grade.why


class Told(QualitativeMetric):
    async def evaluate(self, input: ScoreInput) -> str:
        return await self.llm.text("One word, please.")


class Grouped(QuantitativeMetric):
    async def score(self, input: ScoreInput) -> int:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.llm.text, "a")
            tasks.start_soon(self.llm.text, "b")
        return 1


def test_a_metric_may_call_the_judge_model() -> None:
    """`self.llm` returns structured answers or text, recorded under the metric's own key."""
    model = ScriptedModel(answer=lambda request: {"points": 3, "why": "so"})
    assert evaluated(Judged(), model) == Score(3, "so")
    [request] = model.requests
    assert [m["content"] for m in request.messages] == ["Be strict.", "Grade hello"]
    assert request.key == KEY
    assert evaluated(Told(), ScriptedModel(answer=lambda request: {"text": "fine"})) == Score("fine", "")


@pytest.mark.parametrize("metric", [Judged(), Judged(hidden=True), Told(), Grouped()])
def test_offline_a_metric_that_calls_a_model_is_skipped(metric: Metric) -> None:
    """Without a model, a metric that needs one is skipped, even if it wraps the exception."""
    assert evaluated(metric) == Skipped(NO_MODEL)


def test_offline_a_metric_may_do_without_a_model() -> None:
    """A metric that catches the exception and returns its own value is scored."""

    class Careful(QuantitativeMetric):
        async def score(self, input: ScoreInput) -> int:
            try:
                await self.llm.text("?")
            except ModelError:
                return 2
            return 3

    assert evaluated(Careful()) == Score(2, "")


def test_a_model_that_fails_leaves_the_metric_unscored() -> None:
    """When the model fails after its retries, the metric is unscored, not skipped."""

    def down(request: ChatRequest) -> str:
        raise TransientError("503: down")

    for metric in (Judged(), Told()):
        result = evaluated(metric, ScriptedModel(answer=down))
        assert isinstance(result, Unscored)
        assert "503: down" in result.error


def test_a_metric_that_cannot_be_copied_is_unscored() -> None:
    """An exception before the metric's method runs is reported like one from the method."""

    class Unique(QuantitativeMetric):
        def __copy__(self) -> Any:
            raise TypeError("there is only one")

        def score(self, input: ScoreInput) -> int:
            return 1

    assert evaluated(Unique()) == Unscored("TypeError: there is only one", own_code=True)


def test_nothing_set_on_a_metric_is_shared() -> None:
    """Each concurrent call sees only the attributes it set on `self`, and its own `llm`."""
    meeting = anyio.Event()

    class Remembering(QuantitativeMetric):
        seen: str = ""

        async def score(self, input: ScoreInput) -> Any:
            before, self.seen, llm = self.seen, input.agent_message, self.llm
            if input.turn_index == 2:
                meeting.set()
            await meeting.wait()
            assert self.llm is llm
            return float(before == "" and self.seen == input.agent_message)

    metric = Remembering()

    async def go() -> list[MetricResult]:
        results: list[MetricResult] = []

        async def one(n: int) -> None:
            turn = ScoreInput("", "", (), "", f"reply {n}", (), (), n)
            results.append(await evaluate_metric(metric, turn, None, KEY))

        async with anyio.create_task_group() as tasks:
            for n in range(3):
                tasks.start_soon(one, n)
        return results

    assert anyio.run(go) == [Score(1.0, "")] * 3
    assert not hasattr(metric, "llm")
    assert metric.seen == ""


class CallCount(QuantitativeMetric):
    def score(self, input: ScoreInput) -> Any:
        assert [turn.turn_index for turn in input.history] == list(range(input.turn_index))
        return len(input.tool_calls), input.user_message


class Tone(QualitativeMetric):
    def evaluate(self, input: ScoreInput) -> str:
        return "rude" if "no" in input.agent_message.split() else "no failure"


class Length(ConversationMetric):
    async def score(self, input: ConversationInput) -> int:
        return len(input.turns)


def run(custom: Any, model: ScriptedModel | None = None, **options: Any) -> Any:
    made = scenario("s", turns=["one", "two"], tools={"look": 1}, expect={"says": "yes"}, **options)
    with ScriptedAgent([tool_call("look"), "yes", "no thanks"]) as agent:
        return run_scenarios([made], agent=agent, model=model, custom_metrics=custom).scenarios[0]


def test_custom_metrics_of_a_run_offline() -> None:
    """Classes and instances are scored on turns and conversations and compared with thresholds offline."""
    found = run([CallCount, Tone(), Length], thresholds={"call_count": 0.5, "length": 2})
    assert found.averages == {"call_count": 0.5, "length": 2}
    assert [e.label for e in found.errors] == ["rude"]
    assert found.conversations[0].turns[0].metrics["call_count"] == Score(1, "one")
    assert found.verdict.status is Status.PASSED
    assert run([CallCount], thresholds={"call_count": 0.6}).verdict.status is Status.FAILED


def test_a_skipped_custom_metric_errs_only_under_a_threshold() -> None:
    """Offline, a metric that needs a model is skipped; only a threshold on it makes the run errored."""
    found = run([Judged])
    assert found.verdict.status is Status.PASSED
    assert dict(found.skipped_metrics) == {"judged": NO_MODEL}
    assert run([Judged], thresholds={"judged": 0}).verdict.status is Status.ERRORED


def test_a_raising_metric_is_a_warning_and_costs_no_other() -> None:
    """A metric without a threshold that raises is a warning; the other metrics keep their values."""

    class Broken(QuantitativeMetric):
        def score(self, input: ScoreInput) -> Any:
            return 1 / 0

    found = run([Broken, CallCount])
    assert found.verdict.status is Status.PASSED
    assert found.averages == {"call_count": 0.5}
    assert found.warnings[0].startswith("broken could not be scored 2 of 2 times: ZeroDivisionError")


def test_plain_metrics_have_threads() -> None:
    """Plain metrics may block: several run at once in threads while the run goes on."""
    meeting = threading.Barrier(4)

    class Waits(QuantitativeMetric):
        def score(self, input: ScoreInput) -> float:
            meeting.wait(60)  # all four, or none gets on
            return 3

    made = [scenario(f"s{n}", turns=["Hi"]) for n in range(4)]
    with ScriptedAgent(["Hello."]) as agent:
        result = run_scenarios(made, agent=agent, custom_metrics=[Waits()])
    assert [found.averages["waits"] for found in result.scenarios] == [3.0] * 4


def test_metrics_that_hang() -> None:
    """A plain metric that hangs is unscored after its time limit and does not block other metrics."""
    released = threading.Event()

    class Hangs(QuantitativeMetric):
        def score(self, input: ScoreInput) -> float:
            released.wait(600)
            return 1

    class Later(QuantitativeMetric):
        async def score(self, input: ScoreInput) -> float:
            await anyio.sleep_forever()
            return 1

    async def go() -> list[MetricResult]:
        hanging = [evaluate_metric(metric, TURN, None, KEY, 0.05) for metric in [Hangs()] * 40 + [Later()]]
        return [*await asyncio.gather(*hanging), await evaluate_metric(quantitative(4), TURN, None, KEY)]

    try:
        *hung, fine = anyio.run(go)
    finally:
        released.set()
    reasons = [each.error for each in hung if isinstance(each, Unscored) and each.own_code]
    late = "the metric gave no answer within 0.05 s"
    assert len(reasons) == 41
    assert all(each.startswith(f"{late} (test_custom_metrics.py:") for each in reasons[:40])
    assert reasons[40] == late
    assert fine == Score(4, "")


def test_a_metric_cannot_change_the_record() -> None:
    """A metric that changes its calls changes neither the record nor what other metrics see."""

    class Spoils(QuantitativeMetric):
        def score(self, input: ScoreInput) -> float:
            for made in (*input.tool_calls, *(c for turn in input.history for c in turn.tool_calls)):
                made.args.clear()
                made.result["list"].append(len(made.result["list"]))
            return len(input.tool_calls[0].result["list"])

    class SpoilsAll(ConversationMetric):
        def score(self, input: ConversationInput) -> float:
            for turn in input.turns:
                turn.tool_calls[0].args.clear()
            return 1

    made = scenario("s", turns=["Hi", "Ho"], tools={"find": {"list": []}})
    with ScriptedAgent([tool_call("find", q=1), "Hello.", tool_call("find", q=2), "Ho."]) as agent:
        result = run_scenarios([made], agent=agent, custom_metrics=[Spoils(), SpoilsAll()])
    held = result.scenarios[0].conversations[0].conversation
    assert [c.args for c in held.tool_calls] == [{"q": 1}, {"q": 2}]
    assert [c.result for c in held.tool_calls] == [{"list": []}] * 2
    assert result.scenarios[0].averages["spoils"] == 1
