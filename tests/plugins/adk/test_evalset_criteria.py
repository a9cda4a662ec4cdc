"""Criteria files: valid and refused content of a `test_config.json`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.config.models import RequestedModel, Sampling
from agentest.domain.metrics import ADK_METRICS
from agentest.plugins.adk.formats.criteria import (
    Criteria,
    MatchType,
    MetricCriterion,
    UserSimulator,
    parse_criteria,
    read_criteria,
)
from agentest.plugins.adk.formats.eval_set import Rubric, RubricContent
from agentest.plugins.adk.formats.metric_info import Interval
from agentest.support.errors import UsageError
from agentest.support.text import snake_case

TRAJECTORY = "tool_trajectory_avg_score"
RUBRIC = {"rubric_id": "a", "rubric_content": {"text_property": "It is polite."}}


def parse(data: Any) -> Criteria:
    return parse_criteria(data, "test_config.json")


def one(metric: str, criterion: Any) -> MetricCriterion:
    return parse({"criteria": {metric: criterion}}).criteria[0]


def refusal(data: Any) -> str:
    with pytest.raises(UsageError) as caught:
        parse(data)
    return str(caught.value)


def test_numbers_and_objects() -> None:
    """A criterion is a threshold, or an object with a threshold and options."""
    assert one("response_match_score", 1) == MetricCriterion(
        "response_match_score", 1.0, written={"threshold": 1}
    )
    written = {"threshold": 0.5, "match_type": "IN_ORDER", "ignore_args": True}
    assert one(TRAJECTORY, written) == MetricCriterion(
        TRAJECTORY, 0.5, MatchType.IN_ORDER, ignore_args=True, written=written
    )


def test_every_option_in_either_spelling() -> None:
    """All options are read, in snake_case and in camelCase, at every level."""
    camel = {
        "threshold": 0.5,
        "matchType": 2,
        "ignoreArgs": True,
        "judgeModelOptions": {
            "judgeModel": "m",
            "judgeModelConfig": {"topP": 1},
            "numSamples": 3,
            "parallelismLimit": 2,
        },
        "rubrics": [{"rubricId": "a", "rubricContent": {"textProperty": "It is polite."}}],
        "evaluateIntermediateNlResponses": True,
        "includeIntermediateResponsesInFinal": True,
        "stopSignal": "STOP",
    }
    snake = {snake_case(key): value for key, value in camel.items()}
    snake["judge_model_options"] = {snake_case(k): v for k, v in camel["judgeModelOptions"].items()}  # type: ignore[attr-defined]
    snake["rubrics"] = [RUBRIC]
    for written in (camel, snake):
        assert one("hallucinations_v1", written) == MetricCriterion(
            metric="hallucinations_v1",
            threshold=0.5,
            match_type=MatchType.ANY_ORDER,
            ignore_args=True,
            judge=RequestedModel("judge", "m", Sampling(top_p=1)),
            num_samples=3,
            parallelism_limit=2,
            rubrics=(Rubric("a", RubricContent("It is polite.")),),
            evaluate_intermediate_nl_responses=True,
            include_intermediate_responses_in_final=True,
            stop_signal="STOP",
            written=written,
        )


@pytest.mark.parametrize(
    "written",
    [
        {
            "judge_model": "m",
            "judge_model_config": {"temperature": 0},
            "num_samples": 3,
            "parallelism_limit": 2,
        },
        {"judgeModel": "m", "judgeModelConfig": {"temperature": 0.0}, "numSamples": 3, "parallelismLimit": 2},
        {
            "judgeModelOptions": {"judgeModel": "m", "numSamples": 3, "parallelismLimit": 2},
            "judgeModelConfig": {"temperature": 0, "topK": None},
        },
    ],
)
def test_judges_are_named_in_the_criterion_too(written: Any) -> None:
    """google-adk's keys of `judge_model_options` may be in the criterion, in either spelling."""
    found = one("safety_v1", {"threshold": 1, **written})
    assert found.judge == RequestedModel("judge", "m", Sampling(temperature=0))
    assert (found.num_samples, found.parallelism_limit) == (3, 2)
    assert found.judge is not None
    assert (found.judge.location, found.judge.metric) == ("test_config.json: criteria.safety_v1", "safety_v1")
    assert one("safety_v1", 1).judge is None


def test_sampling_of_a_judge() -> None:
    """Keys of google-genai's configuration are used if our requests have them, else stored."""
    config = {
        "temperature": 0.5,
        "maxTokens": 100,
        "topP": 0.9,
        "topK": 40,
        "seed": 7,
        "presencePenalty": 0.1,
        "frequency_penalty": -0.1,
        "thinkingConfig": {"thinkingBudget": 0},
        "stop_sequences": ["x"],
        "labels": None,
    }
    for found in (
        one("safety_v1", {"threshold": 1, "judge_model_options": {"judgeModelConfig": config}}).judge,
        parse({"user_simulator_config": {"model_configuration": config}}).user.model,
    ):
        assert found is not None
        assert found.sampling == Sampling(0.5, 100, 0.9, 40, 7, 0.1, -0.1)
        assert found.not_sent == ("stop_sequences", "thinking_config")
        assert found.model is None


MODEL_NAME = ": must be the name of a model, like gemini-2.5-flash or openai/gpt-4"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("judge_model", "", ": must not be empty"),
        ("judge_model", 5, ": must be a valid string"),
        ("judge_model", " ", MODEL_NAME),
        ("judge_model", "openai/", MODEL_NAME),
        ("judge_model", "gpt-4\n", MODEL_NAME),
        ("judge_model_config", [], ": must be an object"),
        ("judge_model_config", {"temprature": 1}, ": unknown key `temprature`; did you mean `temperature`?"),
        (
            "judge_model_config",
            {"x": 1},
            ": unknown key `x`; give `temperature`, `max_output_tokens` or `top_p`",
        ),
        ("judge_model_config", {"temperature": "hot"}, ".temperature: must be a valid number"),
        ("judge_model_config", {"topP": 2}, ".top_p: must be less than or equal to 1"),
        (
            "judge_model_config",
            {"max_tokens": 1, "maxOutputTokens": 2},
            ": `max_output_tokens` and `max_tokens` are one setting; give one of them",
        ),
        ("parallelism_limit", 0, ": must be greater than or equal to 1"),
    ],
)
def test_bad_judges(key: str, value: Any, message: str) -> None:
    """An invalid judge option is refused with file and key, in either place."""
    for place, written in (
        ("", {key: value}),
        (".judge_model_options", {"judge_model_options": {key: value}}),
    ):
        told = refusal({"criteria": {"safety_v1": {"threshold": 1, **written}}})
        assert told.startswith(f"test_config.json: criteria.safety_v1{place}.{key}{message}; found ")


def test_a_judge_is_named_once() -> None:
    """An option in both the criterion and `judge_model_options` is refused."""
    twice = {"threshold": 1, "judge_model": "a", "judge_model_options": {"judge_model": "a"}}
    assert (
        "criteria.safety_v1: `judge_model` is given twice, here and in `judge_model_options`; give it once"
        in refusal({"criteria": {"safety_v1": twice}})
    )


@pytest.mark.parametrize("written", ["any-order", "Any Order", " ANY_ORDER ", "anY_order", 2])
def test_match_type_spellings(written: Any) -> None:
    """A match type is written in any case, with - or space for _, or as its number."""
    assert one(TRAJECTORY, {"threshold": 1, "match_type": written}).match_type is MatchType.ANY_ORDER


@pytest.mark.parametrize("written", ["fuzzy", "", "2", 3, -1, True, 1.0, None, ["EXACT"], {}])
def test_unknown_match_types(written: Any) -> None:
    """An unknown match type is refused with file, key and what is valid."""
    message = refusal({"criteria": {TRAJECTORY: {"threshold": 1, "match_type": written}}})
    assert message == (
        f"test_config.json: criteria.{TRAJECTORY}.match_type: "
        f"must be EXACT or 0, IN_ORDER or 1, ANY_ORDER or 2; found {written!r}"
    )


@pytest.mark.parametrize(
    "threshold", [math.nan, math.inf, 1.01, -0.01, 10**400, "0.8", True, False, None, [], [0.5], {}]
)
def test_bad_thresholds(threshold: Any) -> None:
    """A threshold is a number within the metric's range; a text, a boolean or NaN is refused."""
    for criterion in (threshold, {"threshold": threshold}):
        assert f"test_config.json: criteria.{TRAJECTORY}" in refusal({"criteria": {TRAJECTORY: criterion}})


AMOUNTS = [metric.name for metric in ADK_METRICS.values() if metric.thresholds is None]


@pytest.mark.parametrize("metric", [metric for metric in ADK_METRICS if metric not in AMOUNTS])
def test_every_metric_takes_its_range(metric: str) -> None:
    """Both ends of a metric's range and what lies between are valid, anything beyond is not."""
    low, high = ADK_METRICS[metric].thresholds or (0, 0)
    for threshold in (low, high, (low + high) / 2):
        assert one(metric, threshold).threshold == threshold
    for beyond in (low - 0.1, high + 0.1):
        assert f"must be from {low:g} to {high:g}" in refusal({"criteria": {metric: beyond}})


@pytest.mark.parametrize("metric", AMOUNTS)
def test_amounts_have_no_threshold(metric: str) -> None:
    """A metric that never passes or fails takes null or an empty object, and refuses a threshold."""
    for written in (None, {}, {"threshold": None}):
        assert one(metric, written).information
    for written in (1.0, {"threshold": 0}):
        assert f"criteria.{metric}: is a number that never passes" in refusal({"criteria": {metric: written}})
    bare = parse({metric: None, TRAJECTORY: 1.0})
    assert [(c.metric, c.information) for c in bare.criteria] == [(metric, True), (TRAJECTORY, False)]


def test_any_metric_for_information() -> None:
    """A criterion with `information` decides nothing and needs no threshold; if it has one, it is still
    validated."""
    assert one("response_evaluation_score", {"information": True}).information
    assert one(TRAJECTORY, {"information": True, "threshold": 0.5}).information
    assert not one(TRAJECTORY, {"information": False, "threshold": 0.5}).information
    bad = {TRAJECTORY: {"information": True, "threshold": 2}}
    assert "threshold: must be from 0 to 1, found 2" in refusal({"criteria": bad})
    assert "information: must be a valid boolean" in refusal(
        {"criteria": {TRAJECTORY: {"information": "yes"}}}
    )


def test_policies(tmp_path: Path) -> None:
    """The policy of safety_v1 is a text, or a file next to the criteria, in either spelling."""
    (tmp_path / "policy.md").write_text("Never promise a refund.\n", "utf-8-sig")
    (tmp_path / "empty.md").write_text("\n")
    (tmp_path / "binary.md").write_bytes(b"\xe9\xff")
    path = tmp_path / "test_config.json"

    def read(metric: str = "safety_v1", **criterion: Any) -> str:
        path.write_text(json.dumps({"criteria": {metric: {"threshold": 1, **criterion}}}))
        [found] = read_criteria(path).criteria
        return found.policy

    assert read() == ""
    assert read(policy="Be kind.") == "Be kind."
    assert read(policyFile="policy.md") == read(policy_file="policy.md") == "Never promise a refund.\n"
    for criterion, problem in (
        ({"policy_file": "no.md"}, f"policy_file: {tmp_path / 'no.md'} does not exist; name a text file"),
        ({"policy_file": "empty.md"}, "policy_file: " + str(tmp_path / "empty.md") + " is empty"),
        ({"policy_file": "binary.md"}, "is not UTF-8 text"),
        ({"policy_file": "."}, "cannot be read: Is a directory"),
        ({"policy": " "}, "policy: must not be empty"),
        ({"policy": ["a"]}, "policy: must be a valid string"),
        ({"policy": "a", "policyFile": "policy.md"}, "policy and policy_file exclude each other"),
        ({"polici": "a"}, "did you mean `policy`?"),
        ({"metric": "hallucinations_v1", "policy": "a"}, "hallucinations_v1.policy: only `safety_v1` asks"),
    ):
        with pytest.raises(UsageError) as caught:
            read(**criterion)
        assert str(caught.value).startswith(f"{path}: criteria.")
        assert problem in str(caught.value)


def test_unknown_metric_lists_the_names() -> None:
    """An unknown metric is refused; the error names the nearest and all, the user's own among them."""
    own = {"custom_metrics": {"tone": {"code_config": {"name": "pkg.tone"}}}}
    message = refusal({"criteria": {"tool_trajectory": 1.0}, **own})
    assert "there is no metric `tool_trajectory`; did you mean `tool_trajectory_" in message
    assert all(f"`{name}`" in message for name in [*ADK_METRICS, "tone"])
    assert '"custom_metrics": {"tool_trajectory": {"code_config": ' in message


@pytest.mark.parametrize("data", [{}, {"criteria": {}}, {"custom_metrics": None}, {"$schema": "x"}])
def test_no_criteria(data: Any) -> None:
    """A file without criteria is valid and checks nothing."""
    assert parse(data) == Criteria(())


def test_bare_mapping() -> None:
    """A mapping of metrics to criteria alone is read as the criteria."""
    bare = {TRAJECTORY: 1.0, "safety_v1": {"threshold": 0.5}}
    assert parse(bare) == parse({"criteria": bare})
    assert "there is no metric `safety`" in refusal({"safety": 1})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "must be an object; found []"),
        (None, "must be an object; found None"),
        ({"criteria": []}, "criteria: must be an object; found []"),
        ({"criteria": {TRAJECTORY: []}}, f"criteria.{TRAJECTORY}: must be an object; found []"),
        ({"criteria": {TRAJECTORY: {}}}, f"criteria.{TRAJECTORY}.threshold: is missing; found {{}}"),
        (
            {"metrics": ["safety_v1"], "rubric": "Is kind."},
            "`metrics`, `rubric` are in the file of the cases, next to its `data`; of a file of criteria, "
            'write {"criteria": {"safety_v1": 1.0, …}}, with `rubrics` in the criterion of a rubric metric',
        ),
        ({"critera": {}}, "unknown key `critera`; did you mean `criteria`?; found {'critera': {}}"),
        (
            {"criteria": {}, "Criteria": {}},
            "`criteria` is given twice, in both spellings; found {'criteria': {}, 'Criteria': {}}",
        ),
        (
            {"criteria": {TRAJECTORY: {"threshold": 1, "match_typ": "EXACT"}}},
            f"criteria.{TRAJECTORY}: unknown key `match_typ`; did you mean `match_type`?; "
            "found {'threshold': 1, 'match_typ': 'EXACT'}",
        ),
        (
            {"criteria": {"safety_v1": {"threshold": 1, "judge_model_options": {"temperature": 3}}}},
            "criteria.safety_v1.judge_model_options.temperature: is not a key that is known here; found 3",
        ),
        (
            {"criteria": {"safety_v1": {"threshold": 1, "judgeModelOptions": {"numSamples": 0}}}},
            "criteria.safety_v1.judge_model_options.num_samples: must be greater than or equal to 1; found 0",
        ),
        (
            {
                "criteria": {
                    "safety_v1": {"threshold": 1, "rubrics": [{"rubric_id": "a", "rubric_content": {}}]}
                }
            },
            "criteria.safety_v1.rubrics.0.rubric_content.text_property: is missing; found {}",
        ),
        (
            {"criteria": {"safety_v1": {"threshold": 1, "rubrics": "kind"}}},
            "criteria.safety_v1.rubrics: must be a list; found 'kind'",
        ),
        (
            {
                "criteria": {
                    "safety_v1": {"threshold": 1, "rubrics": [{"rubric_id": "a", "rubric_content": 5}]}
                }
            },
            "criteria.safety_v1.rubrics.0.rubric_content: must be an object; found 5",
        ),
        ({"custom_metrics": {"m": {}}}, "custom_metrics.m.code_config: is missing; found {}"),
        (
            {"user_simulator_config": {"type": "llm_audio"}},
            "user_simulator_config.type: must be 'llm_backed'; found 'llm_audio'",
        ),
        (
            {"user_simulator_config": {"max_allowed_invocations": -1}},
            "user_simulator_config.max_allowed_invocations: must be greater than or equal to 1; found -1",
        ),
        (
            {"user_simulator_config": {"custom_instructions": "Ask {{ stop_signal }}"}},
            "user_simulator_config.custom_instructions: has no placeholder `{{ conversation_plan }}`; "
            "add it; found 'Ask {{ stop_signal }}'",
        ),
    ],
)
def test_refusals(data: Any, message: str) -> None:
    """Invalid content is refused with file, key, value and what was expected."""
    assert refusal(data) == f"test_config.json: {message}"


def test_repeated_rubric_ids() -> None:
    """Two rubrics of one id are refused by name."""
    message = refusal({"criteria": {"safety_v1": {"threshold": 1, "rubrics": [RUBRIC, RUBRIC]}}})
    assert "criteria.safety_v1.rubrics: the rubric_id `a` is given 2 times" in message


def test_unknown_keys_are_kept() -> None:
    """A key that resembles no option is ignored, as in google-adk, and stored."""
    written = {"threshold": 1.0, "description": "strict", "type": "x", "reason": "y", "note": None}
    assert one(TRAJECTORY, written) == MetricCriterion(TRAJECTORY, 1.0, written=written)


def test_custom_metrics() -> None:
    """A metric of the user's own brings its path, its range, and a criterion with any keys."""
    info = {"metricName": "m", "metricValueInfo": {"interval": {"minValue": -10, "maxValue": 10}}}
    metric: dict[str, Any] = {"codeConfig": {"name": "pkg.mod.fn"}, "metricInfo": info, "description": "Tone"}
    written = {"threshold": -3, "match_typ": "own", "match_type": "fuzzy"}
    found = parse({"criteria": {"m": written}, "customMetrics": {"m": metric}})
    assert found.criteria == (MetricCriterion("m", -3.0, written=written),)
    assert found.custom["m"].path == "pkg.mod.fn"
    assert found.custom["m"].info == {
        "metric_name": "m",
        "metric_value_info": {"interval": asdict(Interval(-10.0, 10.0))},
    }
    assert "criteria.m.threshold: must be from -10 to 10, found 11" in refusal(
        {"criteria": {"m": 11}, "customMetrics": {"m": metric}}
    )
    info["metricValueInfo"] = {"interval": {"minValue": 1, "maxValue": 0}}
    assert "m.metric_info.metric_value_info.interval: min_value 1 is above max_value 0" in refusal(
        {"criteria": {"m": {}}, "customMetrics": {"m": metric}}
    )


def test_custom_metrics_without_range() -> None:
    """A custom metric without a range takes any finite threshold, and may replace a built-in one."""
    custom = {"custom_metrics": {TRAJECTORY: {"code_config": {"name": "pkg.fn"}}}}
    assert parse({"criteria": {TRAJECTORY: 300}, **custom}).criteria[0].threshold == 300
    for threshold in (math.inf, math.nan):
        assert "must be a finite number" in refusal({"criteria": {TRAJECTORY: threshold}, **custom})


def test_user_simulator() -> None:
    """The simulated user's model, limit and instructions are read in either spelling."""
    text = "{{stop_signal}} {{ conversation_plan }}{% if conversation_history %}…{% endif %}"
    given = {"type": "llm_backed", "model": "m", "maxAllowedInvocations": 3, "customInstructions": text}
    assert parse({"userSimulatorConfig": given}).user == UserSimulator(RequestedModel("user", "m"), 3, text)
    assert parse({"user_simulator_config": {"model_configuration": {}}}).user == UserSimulator()


def test_read_criteria(tmp_path: Path) -> None:
    """A file is read with its byte order mark, and remembered as the source."""
    path = tmp_path / "test_config.json"
    path.write_text(json.dumps({"criteria": {"safety_v1": 1}}), "utf-8-sig")
    found = read_criteria(path)
    assert found.source == path
    assert [c.metric for c in found.criteria] == ["safety_v1"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xe9\xff", b'{"criteria": {"safety_v1": NaN}}', b"[" * 100_000, b"1" * 5_000]
)
def test_unreadable_files(tmp_path: Path, content: bytes) -> None:
    """A file that is not JSON, or other JSON, is refused with its name."""
    path = tmp_path / "test_config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"test_config\.json(:1)?: "):
        read_criteria(path)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there, and a folder, are refused with their name."""
    for path in (tmp_path / "no.json", tmp_path):
        with pytest.raises(UsageError, match=r"does not exist|is a folder"):
            read_criteria(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["criteria", "customMetrics", "threshold", "matchType", "rubrics", TRAJECTORY, "x", ""]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_nonsense_is_refused_or_read(data: Any) -> None:
    """Any JSON is read, or refused with a message of ours."""
    try:
        found = parse(data)
    except UsageError:
        return
    for c in found.criteria:
        low, high = ADK_METRICS[c.metric].thresholds or (0, 0)
        assert low <= c.threshold <= high
