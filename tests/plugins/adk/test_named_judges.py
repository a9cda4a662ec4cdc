"""Judges and simulated users named in criteria files: models on loopback, each with its own questions."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from evalset_documents import case, criteria, eval_set, invocation, simulated, text
from jsonschema import validate
from model_server import Answer, ModelServer, Received, completion, model_keys
from project import Project
from test_cli_eval import SCHEMA

from agentest.adk import LocalEvalService
from agentest.testing import ScriptedAgent

PRICE = case("price", invocation("How much is it?", "It is ten euros."))
RUBRICS = [{"rubric_id": "kind", "rubric_content": {"text_property": "The answer is kind."}}]
QUALITY = "rubric_based_final_response_quality_v1"


def plays(received: Received) -> Answer:
    """Judge everything as right, and play a user who soon ends the conversation."""
    form = received.body["response_format"]["json_schema"]["schema"]["properties"]
    if "message" in form:
        said = sum(m["role"] == "assistant" for m in received.body["messages"])
        return completion({"message": "Thanks." if said < 2 else "</finished>"})
    if "answers" in form:
        return completion({"answers": [{"property": 1, "reason": "it is", "value": "yes"}]})
    return completion({"reason": "harmless", "value": 1})


def asked(model: ModelServer) -> Counter[tuple[Any, ...]]:
    """Count a model's questions by model name, answer format and key."""
    return Counter(
        (
            received.body["model"],
            received.body.get("temperature"),
            received.body.get("max_tokens"),
            received.body.get("top_p"),
            received.headers.get("authorization"),
        )
        for received in model.received
    )


def evaluate(project: Project, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return project.agentest("eval", "orders.test.json", *arguments, env=environment)


def named(project: Project, judges: Mapping[str, Any], *cases: dict[str, Any], **more: Any) -> None:
    """A set of cases, with criteria and their judges."""
    project.write("orders.test.json", text(eval_set("orders", *(cases or [PRICE]))))
    project.write("test_config.json", text({**criteria(**judges), **more}))


def test_each_metric_asks_its_own_judge(project: Project) -> None:
    """Two metrics ask two judges, each with its own key, sampling and samples, and a third plays the user.

    All of it counts in the budget, is recorded, and is replayed without any key.
    """
    judges = {
        "safety_v1": {
            "threshold": 1,
            "judgeModelOptions": {
                "judgeModel": "gpt-4",
                "judgeModelConfig": {"temperature": 0.0, "maxOutputTokens": 500},
                "numSamples": 3,
            },
        },
        QUALITY: {
            "threshold": 1,
            "rubrics": RUBRICS,
            "judge_model": "groq/llama",
            "judge_model_config": {"temperature": 0.5, "top_p": 0.9},
            "num_samples": 1,
        },
        "final_response_match_v2": {"threshold": 0, "judge_model_options": {"num_samples": 1}},
    }
    simulator = {"model": "deepseek/chat", "model_configuration": {"temperature": 0.7}}
    named(project, judges, PRICE, simulated("plan"), user_simulator_config=simulator)
    servers = [ModelServer(script=plays) for _ in range(4)]
    with ScriptedAgent(lambda _: "It is ten euros.") as agent:
        configured, openai, groq, deepseek = servers
        project.config(agent.endpoint, **model_keys(configured))
        keys = {
            "OPENAI_API_KEY": "sk-openai-key",
            "OPENAI_BASE_URL": openai.base_url,
            "GROQ_API_KEY": "sk-groq-key",
            "GROQ_API_BASE": groq.base_url,
            "DEEPSEEK_API_KEY": "sk-deepseek-key",
            "DEEPSEEK_API_BASE": deepseek.base_url,
        }
        with configured, openai, groq, deepseek:
            done = evaluate(project, "--record", "--max-llm-calls", "100", **keys)
            assert done.returncode == 2, done.stdout + done.stderr  # a simulated case has no reference
            assert asked(openai) == {("gpt-4", 0.0, 500, None, "Bearer sk-openai-key"): 9}
            assert asked(groq) == {("llama", 0.5, None, 0.9, "Bearer sk-groq-key"): 3}
            assert asked(deepseek) == {("chat", 0.7, None, None, "Bearer sk-deepseek-key"): 2}
            assert asked(configured) == {("m", 0.0, None, None, "Bearer sk-secret-of-the-test"): 1}
        recorded = project.results
        done = evaluate(project, "--replay")
    assert "in its place" not in done.stderr
    validate(recorded, SCHEMA)
    assert recorded["summary"]["llmCalls"] == 15
    assert recorded["models"] == {
        "user": "m",
        "judge": "m",
        "judge of safety_v1": "openai/gpt-4",
        f"judge of {QUALITY}": "groq/llama",
        "user of test_config.json": "deepseek/chat",
    }
    assert "sk-openai-key" not in json.dumps(recorded)
    replayed = project.results
    assert replayed["models"] == recorded["models"]
    assert replayed["summary"]["llmCalls"] == 15
    assert [s["averages"] for s in replayed["scenarios"]] == [s["averages"] for s in recorded["scenarios"]]


def test_the_budget_is_for_all_judges_together(project: Project) -> None:
    """`--max-llm-calls` counts calls of all judges; `--max-cost` needs the price of each."""
    one = {"threshold": 1, "judge_model_options": {"num_samples": 4}}
    other = {"threshold": 1, "judge_model_options": {"num_samples": 4, "judge_model": "gpt-4"}}
    named(project, {"safety_v1": one, "response_evaluation_score": other})
    with (
        ScriptedAgent(lambda _: "It is ten euros.") as agent,
        ModelServer(script=plays) as configured,
        ModelServer(script=plays) as openai,
    ):
        project.config(agent.endpoint, **model_keys(configured))
        keys = {"OPENAI_API_KEY": "sk-openai-key", "OPENAI_BASE_URL": openai.base_url}
        done = evaluate(project, "--max-llm-calls", "8", **keys)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (len(configured.received), len(openai.received)) == (4, 4)
        done = evaluate(project, "--max-llm-calls", "7", **keys)
        assert done.returncode == 2
        assert "--max-llm-calls" in done.stderr
        project.config(agent.endpoint, model="openai/gpt-4o-mini")
        other["judge_model_options"]["judge_model"] = "groq/of-no-known-price"  # type: ignore[index]
        named(project, {"safety_v1": one, "response_evaluation_score": other})
        done = evaluate(project, "--max-cost", "1", **keys, GROQ_API_KEY="sk-groq-key")
    assert done.returncode == 2
    assert "the price of groq/of-no-known-price is unknown" in done.stderr


def test_unavailable_judges_are_replaced(project: Project) -> None:
    """A model without its key, or of unknown provider, is replaced by the configured one.

    A note says so; the file's sampling stays. A metric without a judge has none replaced.
    """
    config = {"temperature": 0.2, "thinking_config": {"thinking_budget": 1024}}
    options = {"judge_model": "gemini-2.5-flash", "judge_model_config": config, "num_samples": 1}
    judges = {
        "safety_v1": {"threshold": 1, "judge_model_options": options},
        QUALITY: {"threshold": 1, "rubrics": RUBRICS, "judge_model": "house-judge", "num_samples": 1},
        "token_usage_v1": {"judge_model": "gemini-2.5-flash"},
    }
    named(project, judges, PRICE, simulated("plan"), user_simulator_config={"model": "gemini-2.5-flash"})
    with ScriptedAgent(lambda _: "Ten euros.") as agent, ModelServer(script=plays) as configured:
        project.config(agent.endpoint, **model_keys(configured))
        done = evaluate(project)
        found = asked(configured)
    assert done.returncode == 0, done.stdout + done.stderr
    key = "Bearer sk-secret-of-the-test"
    assert found == {
        ("m", 0.2, None, None, key): 3,
        ("m", None, None, None, key): 2,
        ("m", 0.0, None, None, key): 3,
    }
    missing = (
        "needs GEMINI_API_KEY or GOOGLE_API_KEY in the environment: the configured model m is used instead"
    )
    assert (
        f"test_config.json: criteria.safety_v1 names the judge gemini-2.5-flash, which {missing}"
        in done.stderr
    )
    assert f"user_simulator_config names the simulated user gemini-2.5-flash, which {missing}" in done.stderr
    assert f"criteria.{QUALITY} names the judge house-judge, which names no provider" in done.stderr
    assert "criteria.safety_v1: `thinking_config` of the model's configuration is not sent" in done.stderr
    assert (
        "criteria.token_usage_v1: names a judge or its settings, but this metric uses no judge" in done.stderr
    )
    assert "token_usage_v1 names the judge" not in done.stderr
    assert project.results["models"] == {"user": "m", "judge": "m"}


def test_a_run_without_a_model_makes_no_calls(project: Project) -> None:
    """A run without a model is offline whatever keys exist; a note says how to change that."""
    named(project, {"safety_v1": {"threshold": 1, "judge_model": "gpt-4"}})
    with ScriptedAgent(lambda _: "Ten euros.") as agent, ModelServer(script=plays) as model:
        project.config(agent.endpoint)
        keys = {"OPENAI_API_KEY": "sk-openai-key", "OPENAI_BASE_URL": model.base_url}
        done = evaluate(project, **keys)
        assert done.returncode == 2
        assert "names the judge gpt-4, but no model is configured" in done.stderr
        assert "set AGENTEST_MODEL=openai/gpt-4" in done.stderr
        assert "the criteria name gpt-4" in done.stdout
        assert not model.received


def test_a_dry_run_counts_named_judges(project: Project) -> None:
    """Calls of a named judge are counted if only the user's model is configured.

    If it is unavailable, a message says so, as before a run.
    """
    named(project, {"safety_v1": {"threshold": 1, "judge_model": "gpt-4", "num_samples": 3}})
    project.config("http://127.0.0.1:9/", user={"model": "ollama/llama3.2"})
    counted = evaluate(project, "--dry-run", OPENAI_API_KEY="sk-openai-key").stdout.splitlines()
    assert counted[1].split() == ["0", "3", "0", "3", "price"]
    without_key = evaluate(project, "--dry-run")
    assert without_key.stdout.splitlines()[1].split() == ["0", "0", "0", "0", "price"]
    assert "needs OPENAI_API_KEY in the environment: no judge is configured" in without_key.stderr


def test_the_service_asks_the_judge_that_a_metric_names(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`judgeModelOptions` of `LocalEvalService` reach the judge that they name, as ADK-TS writes them."""
    options = {"judgeModel": "gpt-4", "judgeModelConfig": {"temperature": 0.0}, "numSamples": 3}
    metric = {"metricName": "safety_v1", "threshold": 1.0, "judgeModelOptions": options}
    with ModelServer(script=plays) as configured, ModelServer(script=plays) as openai:
        project.config("http://127.0.0.1:9/", **model_keys(configured))
        monkeypatch.chdir(project.root)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-openai-key")
        monkeypatch.setenv("OPENAI_BASE_URL", openai.base_url)

        async def go() -> list[float | None]:
            service = LocalEvalService(lambda messages, ctx: "It is ten euros.")
            held = [one async for one in service.perform_inference({"eval_set": eval_set("orders", PRICE)})]
            request = {"inference_results": held, "evaluate_config": {"eval_metrics": [metric]}}
            return [one.overall_eval_metric_results[0].score async for one in service.evaluate(request)]

        scores = anyio.run(go)
    assert scores == [1.0]
    assert asked(openai) == {("gpt-4", 0.0, None, None, "Bearer sk-openai-key"): 3}
    assert not configured.received
