"""Evaluators as ADK's pages write them, prebuilt ones used alone, and results that come as they are ready."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from evalset_documents import case, eval_set, invocation, text, use
from model_server import ModelServer, completion
from project import Project

from agentest.adk import (
    AgentEvaluator,
    EvalMetric,
    EvalStatus,
    EvaluationFailed,
    EvaluationResult,
    Evaluator,
    FinalResponseMatchV2Evaluator,
    Interval,
    LocalEvalService,
    MetricInfo,
    MetricValueInfo,
    PerInvocationResult,
    PrebuiltMetrics,
    RougeEvaluator,
    SafetyEvaluatorV1,
    TrajectoryEvaluator,
)
from agentest.domain.results import Status
from agentest.domain.verdict import metric_verdicts
from agentest.support.errors import ConfigError, UsageError
from agentest.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def in_the_project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give every test its own working directory and modules, and no model."""
    monkeypatch.chdir(project.root)
    for variable in ("AGENTEST_MODEL", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    before = [*sys.path]
    yield
    for name in [name for name in sys.modules if name.startswith("users_")]:
        del sys.modules[name]
    sys.path[:] = before


def echo(messages: list[dict[str, Any]], ctx: object) -> str:
    del ctx
    return str(messages[-1]["content"])


SEARCH = eval_set("s", case("one", invocation("please search it", "found")))


async def verdict_of(criteria: Any, evaluators: Any, document: Any = SEARCH) -> Any:
    """The only case's result of an evaluation, be it passed or not."""
    try:
        await AgentEvaluator.evaluate_eval_set(echo, document, criteria, 1, evaluators=evaluators)
    except EvaluationFailed as failed:
        (found,) = failed.result.scenarios
        return found
    return None


# The two evaluators of ADK-TS's page, translated word by word.


class CustomEvaluator(Evaluator):
    def __init__(self, threshold: float = 0.8):
        super().__init__(metric_name="custom_metric", threshold=threshold)

    async def evaluate_invocations(
        self, actual_invocations: list[Any], expected_invocations: list[Any]
    ) -> dict[str, Any]:
        per_invocation_results: list[dict[str, Any]] = []

        for i in range(len(actual_invocations)):
            actual = actual_invocations[i]
            expected = expected_invocations[i]

            score = self.calculate_score(actual, expected)
            passed = score >= self.metric.threshold

            per_invocation_results.append(
                {
                    "actual_invocation": actual,
                    "expected_invocation": expected,
                    "score": score,
                    "eval_status": EvalStatus.PASSED if passed else EvalStatus.FAILED,
                }
            )

        overall_score = sum((r["score"] or 0) for r in per_invocation_results) / len(per_invocation_results)

        return {
            "overall_score": overall_score,
            "overall_eval_status": EvalStatus.PASSED
            if overall_score >= self.metric.threshold
            else EvalStatus.FAILED,
            "per_invocation_results": per_invocation_results,
        }

    def calculate_score(self, actual: Any, expected: Any) -> float:
        del actual, expected
        return 0.85

    @staticmethod
    def get_metric_info() -> MetricInfo:
        return MetricInfo(
            metric_name="custom_metric",
            description="Evaluates custom business logic",
            default_threshold=0.8,
            experimental=False,
            metric_value_info=MetricValueInfo(
                interval=Interval(
                    min_value=0,
                    open_at_min=False,
                    max_value=1,
                    open_at_max=False,
                ),
            ),
        )


class IntentMatchEvaluator(Evaluator):
    def __init__(self, threshold: float = 1.0):
        super().__init__({"metricName": "intent_match", "threshold": threshold})

    async def evaluate_invocations(
        self, actual_invocations: list[Any], expected_invocations: list[Any]
    ) -> EvaluationResult:
        results: list[Any] = []

        for i in range(len(actual_invocations)):
            actual = actual_invocations[i]
            expected = expected_invocations[i]

            actual_intent = self._extract_intent(actual)
            expected_intent = self._extract_intent(expected)

            score = 1.0 if actual_intent == expected_intent else 0.0

            results.append(
                {
                    "actualInvocation": actual,
                    "expectedInvocation": expected,
                    "score": score,
                    "evalStatus": EvalStatus.PASSED if score >= self.metric.threshold else EvalStatus.FAILED,
                }
            )

        avg_score = sum(r["score"] for r in results) / len(results)

        return EvaluationResult(
            overall_score=avg_score,
            overall_eval_status=EvalStatus.PASSED
            if avg_score >= self.metric.threshold
            else EvalStatus.FAILED,
            per_invocation_results=results,
        )

    def _extract_intent(self, invocation: Any) -> str:
        text = invocation.user_content.parts[0].text or ""
        if "search" in text:
            return "search"
        if "book" in text:
            return "booking"
        return "unknown"

    @staticmethod
    def get_metric_info() -> dict[str, Any]:
        return {
            "metricName": "intent_match",
            "description": "Matches user intent against expected intent",
            "defaultThreshold": 1.0,
        }


async def test_the_evaluators_of_the_page_run_after_translation() -> None:
    """Their own thresholds are the default, and the criterion's take precedence."""
    both = [CustomEvaluator, IntentMatchEvaluator]
    await AgentEvaluator.evaluate_eval_set(
        echo, SEARCH, {"custom_metric": {}, "intent_match": None}, evaluators=both
    )
    found = await verdict_of({"custom_metric": 0.9, "intent_match": 1}, both)
    verdicts = metric_verdicts(found.averages, found.thresholds, exact=True)
    assert [verdict.status for verdict in verdicts] == [Status.FAILED, Status.PASSED]
    assert found.averages == {"custom_metric": 0.85, "intent_match": 1.0}


async def test_a_criteria_file_names_an_evaluator(project: Project) -> None:
    """It uses the import path; its `metric_info` takes precedence over the class's."""
    project.write("users_own.py", "from test_evaluators import CustomEvaluator")
    project.write("a.test.json", text(SEARCH))
    metric: dict[str, Any] = {"code_config": {"name": "users_own.CustomEvaluator"}}
    for info, reached in (({}, True), ({"metricInfo": {"defaultThreshold": 0.86}}, False)):
        own = {"criteria": {"custom_metric": {}}, "custom_metrics": {"custom_metric": {**metric, **info}}}
        project.write("test_config.json", text(own))
        if reached:
            await AgentEvaluator.evaluate(echo, "a.test.json", 1)
        else:
            with pytest.raises(EvaluationFailed, match=r"average 0\.85 is below the threshold 0\.86"):
                await AgentEvaluator.evaluate(echo, "a.test.json", 1)


class Fixed(Evaluator):
    """Returns the given result."""

    gives: Any = EvaluationResult(0.5)

    def evaluate_invocations(self, actual_invocations: Any, expected_invocations: Any) -> Any:
        del actual_invocations, expected_invocations
        return self.gives


def giving(gives: Any, **members: Any) -> Any:
    """A class of evaluators for the metric `own`."""
    return type("Own", (Fixed,), {"metric_name": "own", "gives": gives, **members})


@pytest.mark.parametrize(
    "given",
    [
        ((), {"metric_name": "m", "threshold": 0.25}),
        ((), {"metricName": "m", "threshold": 0.25}),
        (({"metric_name": "m", "threshold": 0.25},), {}),
        (({"metricName": "m", "threshold": 0.25},), {}),
        ((0.25,), {"metric_name": "m"}),
        ((EvalMetric("m", 0.25),), {}),
    ],
)
def test_name_and_threshold_are_given_in_many_ways(given: Any) -> None:
    """As keywords, as a mapping in either spelling, as a metric: `self.metric` has them."""
    evaluator = Fixed(*given[0], **given[1])
    assert (evaluator.metric.metric_name, evaluator.metric.threshold) == ("m", 0.25)
    assert (evaluator.metric_name, evaluator.threshold) == ("m", 0.25)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric_nam": "m"}, "did you mean `metric_name`?"),
        ({"metric_name": "m", "metricName": "m"}, "given twice"),
        ({"threshold": "high"}, "must be a number, found 'high'"),
        ({"threshold": True}, "must be a number"),
    ],
)
def test_wrong_names_and_thresholds_are_refused(given: Any, message: str) -> None:
    """An invalid name or threshold raises an error at once."""
    with pytest.raises((TypeError, ValueError), match=r"Fixed: ") as refused:
        Fixed(given)
    assert message in str(refused.value)


INFO = {"metricName": "own", "defaultThreshold": 0.5, "metricValueInfo": {"interval": None}}
AS_OBJECT = SimpleNamespace(
    metric_name="own",
    default_threshold=0.5,
    metric_value_info=SimpleNamespace(
        interval=SimpleNamespace(min_value=0.0, max_value=0.5, open_at_min=True)
    ),
)


@pytest.mark.parametrize("told", [INFO, AS_OBJECT, MetricInfo("own", default_threshold=0.5)])
@pytest.mark.parametrize("kind", [staticmethod, classmethod, None])
async def test_what_an_evaluator_says_of_itself(told: Any, kind: Any) -> None:
    """`get_metric_info` is a static, class or plain method, and gives an object or a mapping."""

    def info(*_: Any) -> Any:
        return told

    own = giving(EvaluationResult(0.5), get_metric_info=kind(info) if kind else info, metric_name="")
    for evaluators in ([own], [own()], {"own": own}):
        await AgentEvaluator.evaluate_eval_set(echo, SEARCH, {"own": {}}, 1, evaluators=evaluators)
    found = await verdict_of({"own": 0.5}, [type("Less", (own,), {"gives": EvaluationResult(0.4)})])
    assert found.verdict.status is Status.FAILED


class Chosen(Fixed):
    metric_name = "own"
    gives = EvaluationResult(0.0)

    def __init__(self, threshold: float = 0.3) -> None:
        super().__init__(threshold=threshold)


class ChosenTold(Chosen):
    @staticmethod
    def get_metric_info() -> dict[str, Any]:
        return {"metric_name": "own", "default_threshold": 0.6}


class FromMetric(Fixed):
    gives = EvaluationResult(0.0)

    def __init__(self, eval_metric: EvalMetric) -> None:
        super().__init__(eval_metric)


@pytest.mark.parametrize(
    ("evaluator", "criterion", "threshold"),
    [
        (Chosen, {}, 0.3),
        (Chosen(), {}, 0.3),
        (Chosen(0.7), {}, 0.7),
        (ChosenTold, {}, 0.6),
        (ChosenTold(), {"threshold": None}, 0.6),
        (ChosenTold(0.7), None, 0.7),
        (ChosenTold(0.7), 0.9, 0.9),
        (ChosenTold, {"threshold": 0.9, "note": "kept"}, 0.9),
        (giving(EvaluationResult(0.0)), {}, 1.0),
        (giving(EvaluationResult(0.0), threshold=0.2), {}, 0.2),
        (FromMetric, 0.9, 0.9),
    ],
)
async def test_the_threshold_of_a_criterion_without_one(
    evaluator: Any, criterion: Any, threshold: float
) -> None:
    """The criterion's; else what an instance was made with; else the metric's default; else the class's."""
    found = await verdict_of({"own": criterion}, {"own": evaluator})
    assert found.thresholds == {"own": threshold}


async def test_the_evaluator_has_its_criterion() -> None:
    """In a run, `self.metric` has the criterion's threshold and keys; an instance keeps its own."""
    seen: list[Any] = []

    class Sees(Fixed):
        def evaluate_invocations(self, actual_invocations: Any, expected_invocations: Any) -> Any:
            seen.append((self.threshold, vars(self.metric.criterion)))
            return super().evaluate_invocations(actual_invocations, expected_invocations)

    criterion = {"threshold": 0.4, "words": ["a"]}
    await AgentEvaluator.evaluate_eval_set(echo, SEARCH, {"own": criterion}, 1, evaluators={"own": Sees})
    await AgentEvaluator.evaluate_eval_set(echo, SEARCH, {"own": 0.4}, 1, evaluators={"own": Sees(0.2)})
    assert seen == [(0.4, criterion), (0.2, {"threshold": 0.2})]


HALF_OPEN = {"interval": {"minValue": 0, "maxValue": 1, "openAtMin": True}}


def ranged(score: float, info: Any = HALF_OPEN) -> Any:
    told = {"metricName": "own", "defaultThreshold": 0.5, "metricValueInfo": info}
    results = [{"actual_invocation": None, "score": score}]
    return giving({"per_invocation_results": results}, get_metric_info=staticmethod(lambda: told))


@pytest.mark.parametrize("score", [-0.1, 0, 1.01])
async def test_a_score_outside_of_its_range_is_refused(score: float) -> None:
    """`metric_value_info` sets the range of scores."""
    found = await verdict_of({"own": {}}, [ranged(score)])
    assert found.verdict.status is Status.ERRORED
    (reason,) = found.verdict.reasons
    assert f"gave the score {score:g}, but its range is above 0 and at most 1" in reason.message
    assert await verdict_of({"own": {}}, [ranged(1)]) is None


def _raises(*_: Any) -> Any:
    raise OSError("no licence")


def _exits(self: Any, *_: Any, **__: Any) -> Any:
    raise SystemExit(0)


@staticmethod
async def _async() -> None: ...


BEFORE_THE_RUN: dict[str, tuple[Any, Any, str]] = {
    "no method": (type("Empty", (Evaluator,), {}), {}, "Empty has no method `evaluate_invocations`"),
    "ADK-TS's spelling": (
        type("Camel", (Evaluator,), {"evaluateInvocations": _raises}),
        {},
        "(its `evaluateInvocations` is the spelling of ADK-TS)",
    ),
    "ADK-TS's spelling of what it tells": (
        giving({}, getMetricInfo=staticmethod(lambda: {"metricName": "own", "defaultThreshold": 0.1})),
        {},
        "Own.getMetricInfo is the spelling of ADK-TS; call it `get_metric_info`",
    ),
    "no evaluator": (type("Other", (), {}), {}, "Other is not an Evaluator; subclass"),
    "init needs": (
        giving({}, __init__=lambda self, client: None),
        {},
        "Own() needs client, which Agentest does not know",
    ),
    "init needs a threshold": (
        giving({}, __init__=lambda self, threshold: None),
        {},
        "Own has no threshold of its own; give one in the criterion",
    ),
    "init raises": (giving({}, __init__=_raises), {}, "Own() raised OSError: no licence"),
    "info raises": (giving({}, get_metric_info=_raises), {}, "get_metric_info() raised OSError: no licence"),
    "init exits": (giving({}, __init__=_exits), {}, "Own() raised SystemExit: 0"),
    "info exits": (giving({}, get_metric_info=_exits), {}, "get_metric_info() raised SystemExit: 0"),
    "info is async": (giving({}, get_metric_info=_async), {}, "is async; make it a plain method"),
    "info is none": (
        giving({}, get_metric_info=staticmethod(lambda: None)),
        {},
        "expected a MetricInfo or a mapping with its keys, found None",
    ),
    "info misspelled": (
        giving({}, get_metric_info=staticmethod(lambda: {"metricName": "own", "defaultThreshhold": 1})),
        {},
        "did you mean `defaultThreshold`?",
    ),
    "range is none": (ranged(1, {"interval": {"minValue": "low", "maxValue": 1}}), {}, "expected a number"),
    "range upside down": (
        ranged(1, {"interval": {"minValue": 2, "maxValue": 1}}),
        {},
        "min_value 2 is above",
    ),
    "threshold outside": (ranged(1), 0, "own.threshold: must be above 0 and at most 1, found 0"),
    "threshold misspelled": (ranged(1), {"treshold": 1}, "unknown key `treshold`; did you mean `threshold`?"),
    "threshold no number": (ranged(1), "high", "own.threshold: must be a valid number; found 'high'"),
    "a function has none": (lambda _: {}, {}, "own.threshold: is missing, and <lambda> has no default"),
    "ours": (SafetyEvaluatorV1, 1, "in a run, name the metric `safety_v1`"),
}


@pytest.mark.parametrize("given", BEFORE_THE_RUN.values(), ids=BEFORE_THE_RUN.keys())
async def test_an_evaluator_that_cannot_be_used_is_refused(given: tuple[Any, Any, str]) -> None:
    """One sentence that names the metric, before the agent is talked to."""
    evaluator, criterion, message = given
    with pytest.raises(UsageError) as refused:
        await AgentEvaluator.evaluate_eval_set(
            lambda *_: pytest.fail("talked to"), SEARCH, {"own": criterion}, evaluators={"own": evaluator}
        )
    assert message in str(refused.value)
    assert "own" in str(refused.value)


def test_a_refused_evaluator_is_exit_status_2(project: Project) -> None:
    """On the command line: the file, the metric, what is expected; and nothing is run."""
    project.write("users_own.py", "from agentest.adk import Evaluator\nclass Empty(Evaluator):\n    pass\n")
    project.write("a.test.json", text(SEARCH))
    metric = {"code_config": {"name": "users_own.Empty"}}
    project.write("test_config.json", text({"criteria": {"own": {}}, "custom_metrics": {"own": metric}}))
    done = project.agentest("eval", "a.test.json", "--agent", "http://127.0.0.1:9/")
    assert done.returncode == 2
    assert "test_config.json: custom_metrics.own: Empty has no method" in done.stderr + done.stdout


async def test_an_evaluator_that_raises_is_one_message() -> None:
    """It names the evaluator, the case, the exception with its text, and the line."""

    class Breaks(Fixed):
        def evaluate_invocations(self, actual_invocations: Any, expected_invocations: Any) -> Any:
            return actual_invocations[5]

    found = await verdict_of({"own": 0}, {"own": Breaks})
    assert found.verdict.status is Status.ERRORED
    (reason,) = found.verdict.reasons
    assert reason.message.startswith(
        "own has a threshold of 0 but could not be scored: the evaluator raised IndexError: "
        "list index out of range (Breaks, case 'one', test_evaluators.py:"
    )


@pytest.mark.parametrize(
    ("gives", "score"),
    [
        ({"overall_score": 0.5}, 0.5),
        ({"overallScore": 0.5, "overallEvalStatus": "PASSED"}, 0.5),
        ({"perInvocationResults": [{"score": 0.75, "evalStatus": 1}]}, 0.75),
        ({"per_invocation_results": [PerInvocationResult(None, score=0.75)]}, 0.75),  # type: ignore[arg-type]
        (EvaluationResult(per_invocation_results=[{"score": True}]), 1.0),  # type: ignore[list-item]
        (SimpleNamespace(overall_score=0.5), 0.5),
    ],
)
async def test_a_result_has_many_forms(gives: Any, score: float) -> None:
    """A value, a mapping in either spelling, another library's object; so have its items."""
    found = await verdict_of({"own": 1, "response_match_score": 1}, {"own": giving(gives, threshold=0.1)()})
    assert found.averages["own"] == score


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ({"per_invocation_results": 5}, "expected a list as per_invocation_results"),
        ({"per_invocation_results": [5]}, "expected a PerInvocationResult, but the evaluator gave 5"),
        ({"per_invocation_results": [{"scor": 1}]}, "unknown key 'scor'; did you mean `score`?"),
        ({"overall_score": 1, "overallScore": 1}, "given twice"),
        ({"overall_score": 1, "overall_eval_status": "GOOD"}, "expected PASSED, FAILED, NOT_EVALUATED"),
        ({"overall_score": None, "reason": "too short"}, "the evaluator gave no score: too short"),
        ({"overall_score": 0.9, "overall_eval_status": "passed"}, ""),
    ],
)
async def test_an_invalid_result_is_explained(gives: Any, message: str) -> None:
    """Results are validated strictly; an invalid one is neither a score nor a pass."""
    found = await verdict_of({"own": 0.5}, {"own": giving(gives)})
    if not message:
        assert found is None
        return
    assert found.verdict.status is Status.ERRORED
    assert message in found.verdict.reasons[0].message


async def test_reasons_go_with_scores() -> None:
    """An evaluator's `reason` belongs to its score, and mentions an overall score that is ignored."""
    service = LocalEvalService(echo)
    held = [one async for one in service.perform_inference({"eval_set": SEARCH})]
    for item, told in (({"score": 0.5, "reason": "half"}, "half"), ({"score": 0.5}, "overall score is 0.9")):
        own = giving({"overall_score": 0.9, "per_invocation_results": [item]})
        request = {"inference_results": held, "criteria": {"own": 0.1}, "evaluators": {"own": own}}
        (found,) = [one async for one in service.evaluate(request)]
        assert told in found.overall_eval_metric_results[0].reason
        (per_invocation,) = found.eval_metric_result_per_invocation
        assert told in per_invocation.eval_metric_results[0].reason


async def test_nothing_given_is_dropped_without_a_word() -> None:
    """Evaluators that no criterion names, and those that call themselves experimental, are warned of."""
    new = giving(EvaluationResult(1), get_metric_info=lambda _: {"metricName": "own", "experimental": True})
    with pytest.warns(UserWarning, match="`own` is experimental, says Own"):
        await AgentEvaluator.evaluate_eval_set(echo, SEARCH, {"own": {}}, 1, evaluators=[new])
    with pytest.warns(UserWarning, match="no criterion names `own`"):
        await AgentEvaluator.evaluate_eval_set(
            echo, SEARCH, {"tool_trajectory_avg_score": 1}, 1, evaluators=[giving({})]
        )
    with pytest.raises(UsageError, match="2 of them score the metric `own`"):
        await AgentEvaluator.evaluate_eval_set(echo, SEARCH, {"own": 1}, evaluators=[giving({}), giving({})])


# Prebuilt metrics and evaluators


async def test_constants_name_metrics() -> None:
    """PrebuiltMetrics are keys of criteria and names in requests, and texts in results."""
    assert isinstance(PrebuiltMetrics.SAFETY_V1, str)
    assert {metric.name.lower() for metric in PrebuiltMetrics} == {str(metric) for metric in PrebuiltMetrics}
    given = {PrebuiltMetrics.TOOL_TRAJECTORY_AVG_SCORE: 1.0, PrebuiltMetrics.RESPONSE_MATCH_SCORE: 0.75}
    found = await verdict_of(given, ())
    assert [type(name) for name in found.thresholds] == [str, str]
    assert "average 0.00 is below the threshold 0.75" in found.verdict.reasons[0].message
    service = LocalEvalService(echo)
    held = [one async for one in service.perform_inference({"evalSetId": "s", "evalCases": [SEARCH]})]
    metrics: list[Any] = [
        EvalMetric(PrebuiltMetrics.RESPONSE_MATCH_SCORE, 0.1),
        {"metricName": PrebuiltMetrics.SAFETY_V1, "threshold": 1.0},
    ]
    request = {"inferenceResults": held, "evaluateConfig": {"evalMetrics": metrics}}
    (result,) = [one async for one in service.evaluate(request)]
    match, safety = result.overall_eval_metric_results
    assert (match.metric_name, match.eval_status) == ("response_match_score", EvalStatus.FAILED)
    assert "words in common: 0 of 1 expected" in match.reason
    assert (safety.score, safety.eval_status) == (None, EvalStatus.NOT_EVALUATED)
    assert "no model configured" in safety.reason
    assert "no model configured" in result.reason
    twice = {"inferenceResults": held, "evaluateConfig": {"evalMetrics": [metrics[1], metrics[1]]}}
    with pytest.raises(UsageError, match="`safety_v1` is named twice"):
        await anext(service.evaluate(twice))


PAIRS = [
    ("The cat sat", "the cats sat", 1.0),
    ("running quickly", "run quick", 0.5),
    ("a a a", "a", 0.5),
    ("", "", 0.0),
]


async def test_rouge_alone() -> None:
    """The scores are google-adk's; each has its status, the whole the mean's."""
    actual = [invocation("u", said) for said, _, _ in PAIRS]
    expected = [invocation("u", wanted) for _, wanted, _ in PAIRS]
    result = await RougeEvaluator(0.5).evaluate_invocations(actual, expected)
    assert [item.score for item in result.per_invocation_results] == [score for *_, score in PAIRS]
    assert [item.eval_status.name[0] for item in result.per_invocation_results] == ["P", "P", "P", "F"]
    assert (result.overall_score, result.overall_eval_status) == (0.5, EvalStatus.PASSED)
    failed = await RougeEvaluator(0.51).evaluate_invocations(actual, expected)
    assert failed.overall_eval_status is EvalStatus.FAILED
    assert "average 0.50 is below the threshold 0.51" in failed.reason


class OfAdk:
    """An object as google-adk's: a pydantic model."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def model_dump(self, **_: Any) -> Any:
        return self._document


async def test_trajectories_alone() -> None:
    """Calls are compared as in a run, in any form of invocations, with the options of the criterion."""
    made = invocation("u", "x", [use("b"), use("a", n=1)], [{"name": "a", "response": {"result": 5}}])
    camel = {
        "userContent": {"parts": [{"text": "u"}]},
        "intermediateData": {"toolUses": [use("a", n=1), use("b")]},
    }
    for form in (camel, OfAdk(invocation("u", None, [use("a", n=1), use("b")]))):
        exact = await TrajectoryEvaluator(1.0).evaluate_invocations([made], [form])
        assert (exact.overall_score, exact.overall_eval_status) == (0.0, EvalStatus.FAILED)
        assert "expected a(n=1), then b(); called b(), then a(n=1)" in exact.per_invocation_results[0].reason
        loose = await TrajectoryEvaluator({"threshold": 1, "matchType": "ANY_ORDER"}).evaluate_invocations(
            actual_invocations=[made], expected_invocations=[form]
        )
        assert loose.overall_eval_status is EvalStatus.PASSED


@pytest.mark.parametrize("kind", [SafetyEvaluatorV1, FinalResponseMatchV2Evaluator])
async def test_judged_evaluators_alone(project: Project, kind: Callable[..., Any]) -> None:
    """A given model judges, else the one that is named, else the configured one; without any, none does."""
    turns = [invocation("u", "x"), invocation("v", "y")], [invocation("u", "x"), invocation("v", "y")]
    fake = ScriptedModel(
        answer=lambda asked: {"reason": "so", "value": int("x" in asked.messages[-1]["content"])}
    )
    told = await kind(0.75, {"numSamples": 3}, model=fake).evaluate_invocations(*turns)
    assert len(fake.requests) == 6
    assert len(told.per_invocation_results) == 2
    assert told.overall_score is not None
    alone = await kind(0.75).evaluate_invocations(*turns)
    assert (alone.overall_score, alone.overall_eval_status) == (None, EvalStatus.NOT_EVALUATED)
    assert "no model configured" in alone.reason
    assert all("no model" in item.reason for item in alone.per_invocation_results)
    with pytest.raises(ConfigError, match=r"gpt-4 needs OPENAI_API_KEY.*, and no other model is configured"):
        await kind(0.75, {"judge_model": "gpt-4"}).evaluate_invocations(*turns)
    with ModelServer(completion({"reason": "scripted", "value": 0})) as model:
        options = {"base_url": model.base_url, "api_key": "sk-secret-of-the-test"}
        project.config(
            "http://127.0.0.1:9/", provider="openai-compatible", model="m", provider_options=options
        )
        asked = kind(0.75, num_samples=1, judge_model_config={"temperature": 0.25})
        result = await asked.evaluate_invocations(*turns)
        assert (result.overall_score, result.overall_eval_status) == (0.0, EvalStatus.FAILED)
        assert [received.body["temperature"] for received in model.received] == [0.25] * 2
        with pytest.warns(UserWarning, match=r"needs OPENAI_API_KEY.*: the configured model m is used"):
            await kind(0.75, {"judge_model": "gpt-4", "num_samples": 1}).evaluate_invocations(*turns)
        assert len(model.received) == 4


async def test_safety_alone_knows_a_policy() -> None:
    """A policy is the judge's as in a run."""
    model = ScriptedModel(answer=lambda _: {"reason": "so", "value": 1})
    evaluator = SafetyEvaluatorV1(1, {"policy": "Never name a price."}, num_samples=1, model=model)
    result = await evaluator.evaluate_invocations([invocation("u", "x")])
    assert result.overall_eval_status is EvalStatus.PASSED
    assert "Never name a price." in model.requests[0].messages[-1]["content"]


async def test_a_judge_that_fails_gives_no_score() -> None:
    """The result has the reason."""
    broken = ScriptedModel(answer=lambda _: "I would rather not")
    result = await SafetyEvaluatorV1(1, num_samples=1, model=broken).evaluate_invocations(
        [invocation("u", "x")]
    )
    assert result.overall_eval_status is EvalStatus.NOT_EVALUATED
    assert "could not be scored" in result.reason


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (RougeEvaluator, {"num_samples": 3}, "RougeEvaluator: unknown key 'num_samples'"),
        (RougeEvaluator, {"threshold": 3}, "must be from 0 to 1, found 3"),
        (TrajectoryEvaluator, {"match_type": "fuzzy"}, "must be EXACT"),
        (TrajectoryEvaluator, {"metric_name": "safety_v1"}, "measures `tool_trajectory_avg_score`"),
        (SafetyEvaluatorV1, {"judge_mode": "x"}, "did you mean `judge_model`?"),
        (SafetyEvaluatorV1, {"num_samples": 0}, "num_samples: must be greater"),
    ],
)
def test_wrong_options_are_refused(kind: Any, given: dict[str, Any], message: str) -> None:
    """An unknown option or an invalid value is an error at once."""
    with pytest.raises(UsageError) as refused:
        kind(given)
    assert message in str(refused.value)
    assert kind.__name__ in str(refused.value)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        ([invocation("u")], None, "RougeEvaluator compares with expected invocations"),
        ([invocation("u")], [], "there are 0, but 1 actual invocations"),
        ([{"user_contents": {}}], [invocation("u")], "actual_invocations[0]: "),
        ({}, [], "actual_invocations: expected a list"),
        ([invocation("u")], [5], "expected_invocations[0]"),
    ],
)
async def test_invalid_invocations_are_refused(actual: Any, expected: Any, message: str) -> None:
    """The error has their place."""
    with pytest.raises(UsageError) as refused:
        await RougeEvaluator(0.8).evaluate_invocations(actual, expected)
    assert message in str(refused.value)


async def test_no_invocation_is_no_score() -> None:
    """Nothing to compare is not evaluated."""
    result = await TrajectoryEvaluator(1.0).evaluate_invocations([], [])
    assert (result.overall_score, result.overall_eval_status) == (None, EvalStatus.NOT_EVALUATED)
    assert "no turn of the conversation was finished" in result.reason


# LocalEvalService as it goes

TWO = eval_set("s", case("quick", invocation("quick")), case("slow", invocation("slow")))


async def first_of(results: AsyncIterator[Any]) -> Any:
    with anyio.fail_after(60):
        return await anext(results)


async def test_conversations_come_as_they_end() -> None:
    """A conversation that is over is given while another goes on; the rest when it ends."""
    may_end = anyio.Event()

    async def agent(messages: list[dict[str, Any]], ctx: object) -> str:
        del ctx
        if messages[-1]["content"] == "slow":
            await may_end.wait()
        return "done"

    held = LocalEvalService(agent).perform_inference({"eval_set": TWO})
    assert (await first_of(held)).eval_case_id == "quick"
    may_end.set()
    assert [one.eval_case_id async for one in held] == ["slow"]


async def test_leaving_the_loop_ends_the_rest() -> None:
    """Conversations that are under way are cancelled, and the loop is left at once."""
    cancelled = anyio.Event()

    async def agent(messages: list[dict[str, Any]], ctx: object) -> str:
        del ctx
        try:
            if messages[-1]["content"] == "slow":
                await anyio.sleep_forever()
        finally:
            if messages[-1]["content"] == "slow":
                cancelled.set()
        return "done"

    service = LocalEvalService(agent)
    with anyio.fail_after(60):
        async for _ in service.perform_inference({"eval_set": TWO}):
            break
        await cancelled.wait()
    cancelled = anyio.Event()
    async with aclosing(service.perform_inference({"eval_set": TWO})) as held:  # type: ignore[type-var]
        await first_of(held)
    assert cancelled.is_set()


async def test_evaluations_come_as_they_end() -> None:
    """A case that is evaluated is given while another is still being judged."""
    may_end = anyio.Event()

    async def patient(metric: Any, actual: list[Any]) -> Any:
        del metric
        if actual[0].user_content.parts[0].text == "slow":
            await may_end.wait()
        return {"overall_score": 1}

    service = LocalEvalService(echo)
    held = [one async for one in service.perform_inference({"eval_set": TWO})]
    request = {"inference_results": held, "criteria": {"own": 1}, "evaluators": {"own": patient}}
    results = service.evaluate(request)
    assert (await first_of(results)).eval_id == "quick"
    may_end.set()
    assert [one.eval_id async for one in results] == ["slow"]


@pytest.mark.parametrize(
    ("evaluator", "name", "threshold"),
    [
        (TrajectoryEvaluator, "tool_trajectory_avg_score", 1.0),
        (RougeEvaluator, "response_match_score", 0.8),
        (FinalResponseMatchV2Evaluator, "final_response_match_v2", 0.8),
        (SafetyEvaluatorV1, "safety_v1", 1.0),
    ],
)
def test_a_prebuilt_evaluator_tells_its_metric(evaluator: Any, name: str, threshold: float) -> None:
    info = evaluator.get_metric_info()
    assert (info.metric_name, info.default_threshold) == (name, threshold)
    assert info.interval == Interval(min_value=0, max_value=1)
    assert info.description


def test_an_evaluator_that_says_nothing_of_itself_tells_its_name_and_threshold() -> None:
    class Polite(Fixed):
        """Whether the agent says please."""

        metric_name = "polite"
        threshold = 0.7

    info = Polite.get_metric_info()
    assert (info.metric_name, info.default_threshold) == ("polite", 0.7)
    assert info.description == "Whether the agent says please."
