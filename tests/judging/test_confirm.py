"""Judgements that would fail a scenario are confirmed by a second model (`judge.confirm`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from model_server import Answer, ModelServer, Received, completion, error

from agentest import Criterion, scenario
from agentest.config import Config
from agentest.domain.results import (
    ConversationResult,
    CriterionOutcome,
    RunResult,
    Score,
    Severity,
    Status,
    Unscored,
)
from agentest.judging.judge import ConfirmedJudge, Judge, confirmed_judge
from agentest.models.providers import ModelSpec, resolve_confirming
from agentest.support.errors import ConfigError
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios

MODES = (False, "turn", "conversation")
FAULTS: Mapping[str, Any] = {
    "goal_completion": "not reached",
    "agent_behavior_failure": "repetition",
    "helpfulness": 1,
    "criterion_1": "violated",
}


def questions(form: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """The questions in the schema of an answer; those about turns are named like `turn_1.helpfulness`."""
    found = []
    for name, inner in form["properties"].items():
        inner = schema["$defs"][inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
        turn = name.startswith("turn_")
        found += [f"{name}.{each}" for each in questions(inner, schema)] if turn else [name]
    return found


class Models:
    """Two models on one server: `first` judges, `second` confirms. Each has scripted answers."""

    def __init__(self, first: Mapping[str, Any], second: Mapping[str, Any] | int) -> None:
        self.answers: dict[str, Mapping[str, Any] | int] = {"first": first, "second": second}
        self.asked: list[tuple[str, list[str]]] = []
        """Model and questions of each call."""
        self.prompts: dict[str, list[Any]] = {"first": [], "second": []}

    def of(self, model: str) -> list[list[str]]:
        return [asked for name, asked in self.asked if name == model]

    def __call__(self, received: Received) -> Answer:
        name, schema = received.body["model"], received.body["response_format"]["json_schema"]["schema"]
        if "groups" in schema["properties"]:
            return completion({"groups": []})
        script = self.answers[name]
        self.prompts[name].append(received.body["messages"])
        if "reason" in schema["properties"]:  # one question: its words tell which
            question = received.body["messages"][-1]["content"]
            asked = [_asked_alone(schema["properties"], question)]
        else:
            asked = questions(schema, schema)
        self.asked.append((name, asked))
        if isinstance(script, int):
            return error(script)
        answers = {each: _answer(each.rpartition(".")[2], script) for each in asked}
        if "reason" in schema["properties"]:
            return completion(next(iter(answers.values())))
        nested: dict[str, Any] = {}
        for each, answer in answers.items():
            turn, _, question = each.rpartition(".")
            (nested.setdefault(turn, {}) if turn else nested)[question] = answer
        return completion(nested)


def _asked_alone(form: Mapping[str, Any], question: str) -> str:
    if "outcome" in form:
        return "goal_completion"
    if "result" in form:
        return "criterion_1"
    return "agent_behavior_failure" if "labels" in form else "helpfulness"


def _answer(question: str, script: Mapping[str, Any]) -> dict[str, Any]:
    best = {"goal_completion": "reached", "agent_behavior_failure": "no failure", "criterion_1": "met"}
    value = script.get(question, best.get(question, 5))
    keys = {"goal_completion": "outcome", "criterion_1": "result", "criterion_2": "result"}
    key = keys.get(question, "value")
    labels = {"labels": []} if question == "agent_behavior_failure" else {}
    if labels and value != "no failure":
        labels["severity"] = script.get("severity")
    return {"reason": script.get("reason", f"why {value}"), **labels, key: value}


def run(models: Models, *, judge: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
    settings = {"metrics": ["helpfulness", "goal_completion", "agent_behavior_failure"]}
    configured = ("metrics", "fail_on_error_severity")
    settings |= {key: options.pop(key) for key in configured if key in options}
    given = {"goal": "Book a haircut.", "criteria": ["Is polite"], "thresholds": {"helpfulness": 3}}
    made = scenario("s", **{"turns": ["A slot?", "Thanks."], **given, **options})
    with ScriptedAgent(["There is one."]) as agent, ModelServer(script=models) as server:
        return run_scenarios(
            [made],
            agent=agent,
            provider="openai-compatible",
            provider_options={"base_url": server.base_url},
            model="first",
            judge={"confirm": "second", "retries": 0, **(judge or {})},
            **settings,
        )


def held(result: RunResult) -> ConversationResult:
    [found] = result.scenarios[0].conversations
    return found


def differing(first: str, second: str) -> Unscored:
    return Unscored(
        f"not confirmed: first answered {first!r} (why {first}); second answered {second!r} (why {second})"
    )


@pytest.mark.parametrize("batch", MODES)
def test_passing_scenarios_are_not_confirmed(batch: Any) -> None:
    """A scenario that passes makes no call to the confirming model."""
    models = Models({}, FAULTS)
    result = run(models, judge={"batch": batch})
    assert result.scenarios[0].verdict.status is Status.PASSED
    assert models.of("second") == []


@pytest.mark.parametrize("batch", MODES)
def test_if_both_agree_the_first_answer_counts(batch: Any) -> None:
    """Values and reasons are the judge's, even if the second model chose another failing value."""
    second = {**FAULTS, "agent_behavior_failure": "false information", "helpfulness": 2}
    result = run(Models(FAULTS, second), judge={"batch": batch})
    found = held(result)
    assert result.scenarios[0].verdict.status is Status.FAILED
    for turn in found.turns:
        assert turn.metrics["helpfulness"] == Score(1, "why 1")
        label = turn.metrics["agent_behavior_failure"]
        assert isinstance(label, Score)
        assert label.value == "repetition"
    goal = found.metrics["goal_completion"]
    assert isinstance(goal, Score)
    assert goal.value == 0
    assert [criterion.result for criterion in found.criteria] == [CriterionOutcome.VIOLATED]


@pytest.mark.parametrize("batch", MODES)
def test_if_they_differ_the_scenario_is_errored(batch: Any) -> None:
    """Metrics are unscored and criteria `cannot tell`, with both answers; the scenario is errored."""
    result = run(Models(FAULTS, {}), judge={"batch": batch})
    found = held(result)
    assert result.scenarios[0].verdict.status is Status.ERRORED
    for turn in found.turns:
        assert turn.metrics == {
            "helpfulness": differing("1", "5"),
            "agent_behavior_failure": differing("repetition", "no failure"),
        }
    assert found.metrics["goal_completion"] == differing("not reached", "reached")
    [criterion] = found.criteria
    assert criterion.result is CriterionOutcome.CANNOT_TELL
    assert criterion.reason == differing("violated", "met").error
    assert found.failures == ()


@pytest.mark.parametrize("batch", MODES)
@pytest.mark.slow
def test_a_second_model_that_does_not_answer_confirms_nothing(batch: Any) -> None:
    """An unconfirmed failure is errored: neither failed nor passed."""
    result = run(Models(FAULTS, 400), judge={"batch": batch})
    goal = held(result).metrics["goal_completion"]
    assert isinstance(goal, Unscored)
    assert goal.error.startswith("not confirmed: first answered 'not reached' (why not reached); second gave")
    assert result.scenarios[0].verdict.status is Status.ERRORED


def test_only_failures_are_confirmed_in_one_call_per_turn() -> None:
    """The second model gets only the questions that failed, per turn and for the whole conversation."""
    models = Models(FAULTS, FAULTS)
    run(models)
    assert sorted(models.of("second")) == [
        ["goal_completion", "criterion_1"],
        ["helpfulness", "agent_behavior_failure"],
        ["helpfulness", "agent_behavior_failure"],
    ]
    models = Models({"goal_completion": "not reached"}, {})
    run(models, judge={"batch": "conversation"})
    assert models.of("second") == [["goal_completion"]]


def test_a_single_question_has_the_same_prompt() -> None:
    """With one call per question, the confirming prompt is identical to the judge's."""
    models = Models({"goal_completion": "not reached"}, {"goal_completion": "not reached"})
    run(models, judge={"batch": False})
    [second] = models.prompts["second"]
    assert second in models.prompts["first"]


def test_answers_that_cannot_fail_are_not_confirmed() -> None:
    """Scores without a threshold, scores that meet theirs, and optional criteria are not confirmed."""
    models = Models({"helpfulness": 1, "criterion_1": "violated"}, {})
    result = run(models, thresholds={}, criteria=[Criterion("Is polite", required=False)])
    assert models.of("second") == []
    assert result.scenarios[0].verdict.status is Status.PASSED
    models = Models({"helpfulness": 3}, {})
    run(models)
    assert models.of("second") == []


@pytest.mark.parametrize("batch", MODES)
def test_a_failure_below_the_failing_severity_is_not_confirmed(batch: Any) -> None:
    """Only failures at or above the failing severity, or of unknown severity, are confirmed."""
    only = {"metrics": ["agent_behavior_failure"], "criteria": [], "thresholds": {}, "turns": ["A slot?"]}
    for severity, asked in (("medium", 0), ("high", 1), (None, 1)):
        models = Models({"agent_behavior_failure": "repetition", "severity": severity}, {})
        result = run(models, judge={"batch": batch}, **only)
        assert len(models.of("second")) == asked
        assert result.scenarios[0].verdict.status is (Status.ERRORED if asked else Status.PASSED)
    models = Models({"agent_behavior_failure": "repetition", "severity": "low"}, {})
    result = run(models, judge={"batch": batch}, fail_on_error_severity="low", **only)
    assert len(models.of("second")) == 1
    assert result.scenarios[0].verdict.status is Status.ERRORED


def test_a_second_model_that_grades_the_failure_too_low_confirms_nothing() -> None:
    """Both models must agree that the scenario fails, so a lower severity is a disagreement."""
    first = {"agent_behavior_failure": "unsafe action", "severity": "critical"}
    only = {"metrics": ["agent_behavior_failure"], "criteria": [], "thresholds": {}, "turns": ["A slot?"]}
    result = run(Models(first, {"agent_behavior_failure": "repetition", "severity": "low"}), **only)
    assert result.scenarios[0].verdict.status is Status.ERRORED
    [turn] = held(result).turns
    problem = turn.metrics["agent_behavior_failure"]
    assert isinstance(problem, Unscored)
    assert "first answered 'unsafe action, critical'" in problem.error
    assert "second answered 'repetition, low'" in problem.error
    result = run(Models(first, {**first, "severity": "high"}), **only)
    assert result.scenarios[0].verdict.status is Status.FAILED


def test_a_missing_answer_is_not_confirmed() -> None:
    """A question the judge could not answer is unscored, with the judge's error."""
    models = Models({}, {})
    models.answers["first"] = 400
    result = run(models, metrics=["goal_completion"], criteria=[], thresholds={})
    assert models.of("second") == []
    goal = held(result).metrics["goal_completion"]
    assert isinstance(goal, Unscored)
    assert goal.error.startswith("judging goal_completion: model first: ")


def test_long_reasons_are_quoted_in_part() -> None:
    """A report shows both answers, not two essays."""
    result = run(Models({"goal_completion": "not reached", "reason": "so " * 3000}, {}))
    goal = held(result).metrics["goal_completion"]
    assert isinstance(goal, Unscored)
    assert "second answered 'reached'" in goal.error
    assert len(goal.error) < 1000


def test_samples_of_both_models_have_numbers_of_their_own() -> None:
    """Sample numbers differ between the models, so that recordings can tell their answers apart."""
    judge = Judge(ScriptedModel(), samples=3)  # type: ignore[arg-type]
    found = confirmed_judge(judge, ScriptedModel(), (), {}, Severity.HIGH)  # type: ignore[arg-type]
    assert isinstance(found, ConfirmedJudge)
    assert (found.first_sample, found.samples) == (0, 3)
    assert (found.second.first_sample, found.second.samples) == (3, 1)


def test_a_criterion_that_the_second_model_cannot_tell() -> None:
    """`cannot tell` does not confirm a violation."""
    result = run(Models({"criterion_1": "violated"}, {"criterion_1": "cannot tell"}))
    [criterion] = held(result).criteria
    assert criterion.result is CriterionOutcome.CANNOT_TELL
    assert "second answered 'cannot tell'" in criterion.reason


def test_the_majority_of_several_answers_is_confirmed_once() -> None:
    """With `judge.samples` the second model answers once, and the score lists only the judge's samples."""
    models = Models({"goal_completion": "not reached"}, {"goal_completion": "not reached"})
    result = run(models, judge={"samples": 3})
    assert len(models.of("second")) == 1
    goal = held(result).metrics["goal_completion"]
    assert isinstance(goal, Score)
    assert goal.samples == (0, 0, 0)


def test_a_configured_threshold_counts_too() -> None:
    """A score below a threshold of the scenario is confirmed, for that metric only."""
    models = Models({"helpfulness": 4}, {})
    run(models, thresholds={"helpfulness": 4.5}, criteria=[])
    assert models.of("second") == [["helpfulness"]] * 2


def spec(judge: Any, environ: Mapping[str, str] | None = None, **keys: Any) -> ModelSpec:
    config = Config.model_validate({"agent": {"endpoint": "http://127.0.0.1:1"}, "judge": judge, **keys})
    found = resolve_confirming(config, environ or {})
    assert found
    return found


def test_the_confirming_model_falls_back_to_the_judge() -> None:
    """It inherits the connection of the judge or of the top level, whichever has the same provider."""
    own = {"base_url": "http://127.0.0.1:9/v1", "api_key": "K"}
    local = {"provider": "openai-compatible", "model": "a", "provider_options": own}
    found = spec({**local, "confirm": "b"})
    assert (found.name, found.base_url, found.api_key) == ("b", own["base_url"], "K")
    found = spec({"model": "groq/x", "provider_options": {"api_key": "G"}, "confirm": {"model": "groq/y"}})
    assert (found.name, found.api_key) == ("groq/y", "G")
    top = {"model": "openai/a", "provider_options": {"api_key": "T"}}
    found = spec({"model": "groq/x", "provider_options": {"api_key": "G"}, "confirm": "openai/b"}, **top)
    assert (found.name, found.api_key) == ("openai/b", "T")


def test_a_key_of_the_judge_is_for_its_provider_alone() -> None:
    """The judge's API key is not sent to another provider."""
    judge = {"model": "openai/a", "provider_options": {"api_key": "secret"}}
    with pytest.raises(ConfigError, match="model groq/b needs a key"):
        spec({**judge, "confirm": "groq/b"})


def test_the_confirming_model_has_settings_of_its_own() -> None:
    """Settings it leaves out get a judge's defaults, not the judge model's values."""
    judge = {"model": "openai/a", "temperature": 1, "max_tokens": 7, "requests_per_minute": 3}
    environ = {"OPENAI_API_KEY": "k"}
    plain = spec({**judge, "confirm": "openai/b"}, environ)
    assert (plain.max_tokens, plain.requests_per_minute) == (None, None)
    assert plain.temperature != 1
    found = spec({**judge, "confirm": {"model": "openai/b", "temperature": 0.5, "maxTokens": 9}}, environ)
    assert (found.temperature, found.max_tokens) == (0.5, 9)


@pytest.mark.parametrize(
    ("confirm", "message"),
    [
        ("", "judge.confirm.model"),
        (True, "judge.confirm"),
        (3, "judge.confirm"),
        ([], "judge.confirm"),
        ({}, "names no model"),
        ({"temperature": 0}, "names no model"),
        ({"modle": "x"}, "did you mean `model`"),
        ({"model": "x", "samples": 3}, "samples"),
        ({"model": "x", "temperature": "hot"}, "judge.confirm.temperature"),
    ],
)
def test_a_wrong_value_is_refused(confirm: Any, message: str) -> None:
    """The error names the key and what was expected."""
    with pytest.raises(ConfigError, match=message):
        run_scenarios(
            [scenario("s", turns=["Hi"])],
            agent={"endpoint": "http://127.0.0.1:1"},
            judge={"model": "openai/a", "confirm": confirm},
        )
