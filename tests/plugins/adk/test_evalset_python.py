"""Evaluation from Python: AgentEvaluator, LocalEvalService, and evaluators of the user's own."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evalset_documents import case, criteria, eval_set, invocation, simulated, text, use
from model_server import ModelServer, completion
from project import Project

from agentest.adk import (
    AgentEvaluator,
    EvalCaseResult,
    EvalMetric,
    EvalSet,
    EvalSetResult,
    EvalStatus,
    EvaluateConfig,
    EvaluateRequest,
    EvaluationFailed,
    EvaluationResult,
    Evaluator,
    InferenceRequest,
    InferenceResult,
    JudgeModelOptions,
    LocalEvalService,
    PerInvocationResult,
    find_config_for_test_file,
)
from agentest.agents.port import TurnContext
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.agents.in_process import CustomAgent
from agentest.domain.results import Status
from agentest.plugins.adk.formats.eval_set import EVAL_SET, text_of
from agentest.pytest_plugin.fixture import Agentest
from agentest.support.errors import ConfigError, UsageError
from agentest.testing import Raw, ScenarioFailed, ScriptedAgent, tool_call

pytestmark = pytest.mark.anyio
WORDS = {"response_match_score": 1.0}
ECHO = eval_set("echoes", case("one", invocation("one", "one")), case("two", invocation("two", "two")))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def in_the_project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give every test its own working directory and modules."""
    monkeypatch.chdir(project.root)
    before = {*sys.modules}, [*sys.path]
    yield
    for name in {*sys.modules} - before[0]:
        if name.startswith("users_"):
            del sys.modules[name]
    sys.path[:] = before[1]


def echo(messages: list[dict[str, Any]], ctx: object) -> str:
    del ctx
    return str(messages[-1]["content"])


def parsed(document: Any) -> EvalSet:
    return EVAL_SET.validate_python(document)


async def all_of(results: AsyncIterator[Any]) -> list[Any]:
    """The results by the ids of their cases: they come as they end."""
    found = [result async for result in results]
    return sorted(found, key=lambda one: one.eval_case_id if hasattr(one, "eval_case_id") else one.eval_id)


# AgentEvaluator


async def test_a_set_that_passes_says_nothing(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    """A file that passes raises nothing, prints nothing, and is run twice by default."""
    project.write("a.test.json", text(ECHO))
    with ScriptedAgent(lambda body: body["messages"][-1]["content"]) as agent:
        await AgentEvaluator.evaluate(agent.endpoint, "a.test.json")
        assert len(agent.requests) == 4
    assert capfd.readouterr().out == ""


async def test_a_case_that_fails_is_an_assertion_that_says_why(project: Project) -> None:
    """EvaluationFailed is an AssertionError with the case, its place, the score, and both answers."""
    project.write(
        "sub/a.test.json", text(eval_set("a", *ECHO["eval_cases"], case("bad", invocation("x y", "y z"))))
    )
    with pytest.raises(AssertionError) as failed:
        await AgentEvaluator.evaluate(echo, "sub")
    assert isinstance(failed.value, EvaluationFailed)
    told = str(failed.value)
    assert told.startswith("1 of 3 cases did not pass")
    for part in (
        "bad",
        "sub/a.test.json:",
        "response_match_score: average 0.50",
        "in 2 of 2 runs",
        "y z",
        "x y",
    ):
        assert part in told, part
    assert [s.verdict.status for s in failed.value.result.scenarios].count(Status.FAILED) == 1


async def test_chosen_cases_criteria_mocks_and_session_are_files(project: Project) -> None:
    """Cases after the file's name, and the three files, mean what they mean on the command line."""
    looks = case("looks", invocation("look", "gold", [use("look")]))
    project.write("a.test.json", text(eval_set("a", looks, case("other", invocation("x", "y")))))
    project.write("c.json", text(criteria(response_match_score=1.0, tool_trajectory_avg_score=1.0)))
    project.write("m.py", 'tools = {"look": "gold"}')
    project.write("s.json", '{"app_name": "a", "user_id": "u", "state": {"tier": 1}}')

    def script(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        return last["content"] if last["role"] == "tool" else tool_call("look")

    with ScriptedAgent(script) as agent:
        config = ChatCompletionsAgent(endpoint=agent.endpoint, send_session_state=True)
        await AgentEvaluator.evaluate(
            config,
            "a.test.json:looks",
            1,
            initial_session_file="s.json",
            config_file_path=Path("c.json"),
            mocks="m.py",
        )
        assert {request["metadata"]["session_state"]["tier"] for request in agent.requests} == {1}


async def test_a_url_and_a_session_at_the_position_of_adk_ts(project: Project) -> None:
    """The fourth argument is the file of the session, whatever its name."""
    project.write("tests/a.test.json", text(eval_set("a", case("one", invocation("x", "fine")))))
    project.write("tests/test_config.json", text(criteria(response_match_score=1.0)))
    project.write("session", '{"app_name": "a", "user_id": "u", "state": {"tier": 1}}')
    with ScriptedAgent(["fine"]) as agent:
        await AgentEvaluator.evaluate(agent.endpoint, "./tests", 1, "session")
        assert [request["metadata"]["session_state"] for request in agent.requests] == [{"tier": 1}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "give either `agent` or `agent_module`"),
        ({"agent": echo, "agent_module": "m"}, "give either `agent` or `agent_module`"),
        ({"agent": echo, "agent_name": "m"}, "`agent_name` names a part of a google-adk agent"),
        ({"agent_module": " "}, "agent_module: names the module or the folder"),
        ({"agent": echo, "output_file": "x.csv"}, "output_file has no meaning here: results.json has every"),
        ({"agent": echo, "eval_dataset_file_path_or_dir": None}, "eval_dataset_file_path_or_dir is missing"),
        (
            {"agent": echo, "initial_session_file": {"state": {}}},
            "expected the path of a file, found {'state'",
        ),
        (
            {"agent": "nobody"},
            ("agent 'nobody' is not a URL, module or folder with a google-adk agent, and no"),
        ),
    ],
)
async def test_arguments_of_google_adks_method(arguments: dict[str, Any], said: str) -> None:
    """Arguments of google-adk's users are accepted, or refused with a message; none is ignored."""
    with pytest.raises(UsageError) as refused:
        await AgentEvaluator.evaluate(**{"eval_dataset_file_path_or_dir": "a.test.json", **arguments})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"eval_set": None}, "eval_set is missing"),
        ({"criteria": None}, "give either `criteria` or `eval_config`"),
        ({"eval_config": {}}, "give either `criteria` or `eval_config`"),
    ],
)
async def test_arguments_of_sets(arguments: dict[str, Any], said: str) -> None:
    """A set and one place of criteria are needed."""
    given = {"agent": echo, "eval_set": ECHO, "criteria": WORDS, **arguments}
    with pytest.raises(UsageError) as refused:
        await AgentEvaluator.evaluate_eval_set(**given)
    assert said in str(refused.value)


async def test_criteria_by_google_adks_name() -> None:
    """`eval_config` is the content of a test_config.json; an unknown argument is Python's error."""
    await AgentEvaluator.evaluate_eval_set(echo, ECHO, eval_config={"criteria": WORDS}, num_runs=1)
    with pytest.raises(TypeError, match="no argument 'colour'"):
        await AgentEvaluator.evaluate_eval_set(echo, ECHO, WORDS, colour=1)


async def test_details_are_printed_where_they_are_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    """`print_detailed_results` shows a table for every invocation."""
    await AgentEvaluator.evaluate_eval_set(echo, ECHO, WORDS, 1, print_detailed_results=True)
    shown = capfd.readouterr().out
    assert "one-1, turn 1" in shown
    assert "words in common: 1 of 1 expected and 1 answered" in shown


AGENTS: dict[str, Callable[[ScriptedAgent], Any]] = {
    "url": lambda agent: agent.endpoint,
    "scripted": lambda agent: agent,
    "chat": lambda agent: ChatCompletionsAgent(endpoint=agent.endpoint),
    "custom": lambda _: CustomAgent(type="custom", handler=echo),
    "function": lambda _: echo,
    "name": lambda _: "named",
}


@pytest.mark.parametrize("configured", [True, False])
@pytest.mark.parametrize("kind", AGENTS)
async def test_an_agent_is_given_in_many_ways(project: Project, kind: str, configured: bool) -> None:
    """A URL, an object with an endpoint, a configured agent, a function; a name needs a configuration."""
    with ScriptedAgent(lambda body: body["messages"][-1]["content"]) as agent, ScriptedAgent(["no"]) as other:
        if configured:
            project.config(
                other.endpoint,
                agents={"named": {"endpoint": agent.endpoint}},
                compare=[{"name": "c", "endpoint": other.endpoint}],
            )
        given = AGENTS[kind](agent)
        if kind == "name" and not configured:
            with pytest.raises(ConfigError, match="no configuration found"):
                await AgentEvaluator.evaluate_eval_set(given, ECHO, WORDS)
            return
        await AgentEvaluator.evaluate_eval_set(given, ECHO, WORDS)
        assert not other.requests


@pytest.mark.parametrize("given", [None, 5, {"endpoint": "http://x"}, "", "nobody", "ftp://x", b"http://x"])
async def test_invalid_agents_are_refused(project: Project, given: Any) -> None:
    """The error comes before anything runs."""
    project.config("http://127.0.0.1:9/")
    with pytest.raises(UsageError):
        await AgentEvaluator.evaluate_eval_set(given, ECHO, WORDS)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (eval_set("a"), "has no cases"),
        (eval_set("a", case("x", invocation("u")), case("x", invocation("u"))), "2 cases have the id `x`"),
        (
            eval_set("a", case("x", invocation("u", reply=1))),
            "case `x`, invocation 1: `reply` is not a known key",
        ),
        (eval_set("a", {"eval_id": "x"}), "exactly one of conversation"),
        ({"eval_cases": []}, "`eval_set_id` is missing"),
        ({}, "`eval_set_id` is missing"),
        (None, ""),
        ([], ""),
    ],
)
async def test_a_malformed_set_is_refused(document: Any, message: str) -> None:
    """The error has case, invocation and key."""
    with pytest.raises(UsageError) as refused:
        await AgentEvaluator.evaluate_eval_set(echo, document, WORDS)
    assert message in str(refused.value)


@pytest.mark.parametrize("num_runs", [0, -1, 1.5, "2", True, None])
async def test_a_number_of_runs_is_a_number(num_runs: Any) -> None:
    """`num_runs` is a whole number of at least 1."""
    with pytest.raises(UsageError, match="num_runs"):
        await AgentEvaluator.evaluate_eval_set(echo, ECHO, WORDS, num_runs)


@pytest.mark.slow
async def test_a_time_limit_errs_what_has_not_finished(project: Project) -> None:
    """A case whose agent never answers fails the evaluation with a reason, from files and values."""

    async def silent(messages: list[dict[str, Any]], ctx: object) -> str:
        del messages, ctx
        await asyncio.Event().wait()
        return "never"

    project.write("a.test.json", text(ECHO))
    for evaluation in (
        AgentEvaluator.evaluate(silent, "a.test.json", timeout_s=0.5),
        AgentEvaluator.evaluate_eval_set(silent, ECHO, {"response_match_score": 1.0}, timeout_s=0.5),
    ):
        with pytest.raises(EvaluationFailed, match=r"the time limit of 0\.5 s was reached") as failed:
            await evaluation
        statuses = {each.verdict.status for each in failed.value.result.scenarios}
        assert statuses == {Status.ERRORED}


@pytest.mark.parametrize("timeout_s", [0, -1, True, "60", math.inf, math.nan])
async def test_a_time_limit_is_a_number_of_seconds(timeout_s: Any) -> None:
    with pytest.raises(UsageError, match="timeout_s: expected a number of seconds above 0"):
        await AgentEvaluator.evaluate_eval_set(echo, ECHO, {"response_match_score": 1.0}, timeout_s=timeout_s)


async def test_a_live_model_config_is_ignored_with_a_warning(project: Project) -> None:
    """There is one warning for all sets of the folder, and none for null."""
    live = {"criteria": {"response_match_score": 0.5}, "live_model_config": {"model": "gemini-live"}}
    for name in ("a", "b"):
        project.write(f"sets/{name}.test.json", text({**ECHO, "eval_set_id": name}))
    project.write("sets/test_config.json", text(live))
    with pytest.warns(UserWarning, match="live_model_config is ignored") as told:
        await AgentEvaluator.evaluate(echo, "sets", 1)
    assert len([one for one in told if "live_model_config" in str(one.message)]) == 1
    project.write("sets/test_config.json", text({**live, "live_model_config": None}))
    await AgentEvaluator.evaluate(echo, "sets", 1)


async def test_criteria_have_the_forms_of_a_file() -> None:
    """Criteria are thresholds, criteria with options, or a whole test_config.json, in either spelling."""
    document = eval_set("a", case("x", invocation("u", "u", [use("t")])))
    for given in (
        {"response_match_score": 1},
        {"response_match_score": {"threshold": 1.0}},
        {"criteria": {"response_match_score": 1.0}},
        {"criteria": {"response_match_score": 1.0}, "customMetrics": {}},
    ):
        await AgentEvaluator.evaluate_eval_set(echo, document, given)
    with pytest.raises(EvaluationFailed, match=r"tool_trajectory_avg_score: average 0\.00"):
        await AgentEvaluator.evaluate_eval_set(
            echo, document, {"tool_trajectory_avg_score": {"threshold": 1, "matchType": "any order"}}
        )
    with pytest.raises(UsageError, match="did you mean `response_match_score`"):
        await AgentEvaluator.evaluate_eval_set(echo, document, {"response_match": 1})


async def test_no_criteria_are_no_pass() -> None:
    """An evaluation by no metric at all has evaluated nothing, and fails."""
    with pytest.raises(EvaluationFailed, match="the criteria name no metric"):
        await AgentEvaluator.evaluate_eval_set(echo, ECHO, {})


async def test_a_simulated_case_needs_a_metric_without_reference() -> None:
    """Without a model, and by metrics that compare with a reference, a simulated case does not pass."""
    document = eval_set("a", simulated("plan"))
    with pytest.raises(EvaluationFailed, match="could not be scored"):
        await AgentEvaluator.evaluate_eval_set(echo, document, WORDS)


async def test_judged_metrics_ask_the_configured_model(project: Project) -> None:
    """From Python, too, the model of the configuration judges, for evaluator and service alike."""
    with ModelServer(completion({"reason": "scripted", "value": 0})) as model:
        options = {"base_url": model.base_url, "api_key": "sk-secret-of-the-test"}
        project.config(
            "http://127.0.0.1:9/", provider="openai-compatible", model="m", provider_options=options
        )
        asked = {"safety_v1": {"threshold": 1.0, "judge_model_options": {"num_samples": 1}}}
        with pytest.raises(EvaluationFailed, match=r"safety_v1: average 0\.00"):
            await AgentEvaluator.evaluate_eval_set(echo, ECHO, asked, 1)
        service = LocalEvalService(echo)
        held = await all_of(service.perform_inference({"eval_set": ECHO}))
        assert len(model.received) == 2
        results = await all_of(service.evaluate({"inference_results": held, "criteria": asked}))
        assert [r.final_eval_status for r in results] == [EvalStatus.FAILED] * 2
        assert len(model.received) == 4


async def test_notes_become_warnings(project: Project) -> None:
    """A note of the command line is a warning here."""
    project.write("a.test.json", text([{"query": "one", "reference": "one"}]))
    with pytest.warns(UserWarning, match="is in the legacy form"):
        await AgentEvaluator.evaluate(echo, "a.test.json")


async def test_the_final_state_of_a_handler() -> None:
    """A recorded final state is compared if a criterion requires it, else a warning says so."""

    def remembers(messages: list[dict[str, Any]], ctx: TurnContext) -> str:
        assert ctx.session is not None
        ctx.record_state({**ctx.session.state, "said": [messages[-1]["content"]]})
        return "one"

    session = {"app_name": "a", "user_id": "u", "state": {"tier": "gold"}}
    final = {"said": ["one"], "tier": "gold"}
    document = eval_set(
        "states", case("a", invocation("one", "one"), session_input=session, final_session_state=final)
    )
    with pytest.warns(UserWarning, match="case a has a final_session_state, which no criterion compares"):
        await AgentEvaluator.evaluate_eval_set(remembers, document, WORDS, 1)
    service = LocalEvalService(remembers)
    held = await all_of(service.perform_inference({"eval_set": document}))
    asked: dict[str, Any] = {"inference_results": [*held, *held], "criteria": WORDS}
    with pytest.warns(UserWarning, match="^states: case a has a final_session_state") as told:
        await all_of(service.evaluate(asked))
    assert len(told) == 1
    asked["criteria"] = {"final_session_state_match": {}}
    results = await all_of(service.evaluate(asked))
    assert [result.final_eval_status for result in results] == [EvalStatus.PASSED] * 2
    document["eval_cases"][0]["final_session_state"] = {"tier": "silver"}
    with pytest.raises(EvaluationFailed, match="tier: expected 'silver', found 'gold'"):
        await AgentEvaluator.evaluate_eval_set(remembers, document, {"final_session_state_match": 1}, 1)


def test_the_fixture_of_pytest_evaluates_sets(project: Project) -> None:
    """`agentest.eval` reads sets from the working directory and runs their cases, checked alike."""
    greets, closed = (
        eval_set("salon", case(name, invocation("Hi", said)))
        for name, said in (("greets", "Hello."), ("closed", "We are closed on Sundays"))
    )
    project.write("cases.test.json", text(greets))
    project.write("other.test.json", text(closed))
    project.write("test_config.json", text(criteria(response_match_score=0.8)))
    with ScriptedAgent(["Hello."]) as agent:
        project.config(agent.endpoint)
        salon = Agentest(project.root / "agentest.config.yaml")
        result = salon.eval("cases.test.json")
        result.check()
        assert [each.name for each in result.scenarios] == ["greets"]
        with pytest.raises(ScenarioFailed, match="response_match_score"):
            salon.eval("cases.test.json", "other.test.json").check()
    with pytest.raises(UsageError, match="no file is named"):
        salon.eval()


def test_migrating_returns_notes(project: Project) -> None:
    """The old form is written as an EvalSet, with the session that is given; `await` changes nothing."""
    project.write("a.test.json", text([{"query": "one", "reference": "one"}]))
    project.write("s.json", '{"app_name": "a", "user_id": "u", "state": {"tier": 1}}')
    notes = AgentEvaluator.migrate_eval_data_to_new_schema("a.test.json", "b.test.json", "s.json")
    assert "b.test.json: 1 case from" in notes[0]

    async def waits() -> list[str]:
        return await notes

    assert asyncio.run(waits()) == notes
    (found,) = EVAL_SET.validate_json(Path("b.test.json").read_bytes()).eval_cases
    assert found.session_input is not None
    assert found.session_input.state == {"tier": 1}


# Evaluators of the user's own


class Long(Evaluator):
    """The number of words."""

    metric_name = "long"

    def evaluate_invocations(self, actual: Any, expected: Any) -> EvaluationResult:
        assert len(actual) == len(expected)
        scores = [float(len(text_of(one.final_response).split())) for one in actual]
        return EvaluationResult(
            per_invocation_results=[PerInvocationResult(actual[0], score=s) for s in scores]
        )


class LongAsync(Long):
    async def evaluate_invocations(self, actual: Any, expected: Any) -> EvaluationResult:  # type: ignore[override]
        return super().evaluate_invocations(actual, expected)


def long(metric: Any, actual: Any, expected: Any, scenario: Any) -> Any:
    """ADK's form: four arguments, and a result that has ADK's attributes."""
    assert (metric.metric_name, metric.threshold, scenario) == ("long", None, None)
    assert metric.criterion.threshold == 2
    found = Long().evaluate_invocations(actual, expected).per_invocation_results
    results = [SimpleNamespace(score=r.score, eval_status=None) for r in found]
    return SimpleNamespace(overall_score=0.0, overall_eval_status=None, per_invocation_results=results)


async def long_async(metric: Any, actual: Any, expected: Any) -> EvaluationResult:
    del metric
    return Long().evaluate_invocations(actual, expected)


PAIR = eval_set("pairs", case("pair", invocation("one two three", ""), invocation("one")))
EVALUATORS = {
    "class": [Long],
    "async class": [LongAsync],
    "instance": [Long()],
    "function": [long],
    "class by metric": {"long": Long},
    "function by metric": {"long": long},
    "async function by metric": {"long": long_async},
}


@pytest.mark.parametrize("evaluators", EVALUATORS.values(), ids=EVALUATORS.keys())
async def test_forms_of_evaluators(evaluators: Any) -> None:
    """A class, an instance or a function, plain or async, is called, and its scores are averaged."""
    await AgentEvaluator.evaluate_eval_set(echo, PAIR, {"long": 2}, evaluators=evaluators)
    for least in (2.01, 3):
        with pytest.raises(EvaluationFailed, match=r"long: average 2.00 is below"):
            await AgentEvaluator.evaluate_eval_set(echo, PAIR, {"long": least}, evaluators=[Long])


async def test_an_evaluator_has_a_thread_and_values_of_its_own() -> None:
    """A plain evaluator may block: two wait for each other; what one does to its values no other sees."""
    meeting, here = threading.Barrier(2), threading.get_ident()
    seen: list[Any] = []

    def spoils(metric: Any, actual: Any, expected: Any) -> EvaluationResult:
        meeting.wait(60)
        seen.append((threading.get_ident() == here, len(actual), text_of(expected[0].final_response)))
        object.__setattr__(expected[0].final_response.parts[0], "text", "spoilt")
        return EvaluationResult(1.0)

    given = {"a": 1, "b": 1}
    await AgentEvaluator.evaluate_eval_set(echo, PAIR, given, 1, evaluators={"a": spoils, "b": spoils})
    await AgentEvaluator.evaluate_eval_set(echo, PAIR, given, 1, evaluators={"a": spoils, "b": spoils})
    assert seen == [(False, 2, "")] * 4


async def test_an_evaluator_is_found_by_its_import_path(project: Project) -> None:
    """`custom_metrics` takes `pkg.module.name` and `pkg.module:name`; a given evaluator comes first."""
    project.write(
        "users_metrics.py",
        "from agentest.adk import EvaluationResult\ndef all(*_):\n    return EvaluationResult(4)\n",
    )
    for path in ("users_metrics.all", "users_metrics:all"):
        given = {"criteria": {"all": 4}, "custom_metrics": {"all": {"code_config": {"name": path}}}}
        await AgentEvaluator.evaluate_eval_set(echo, ECHO, given)
        with pytest.raises(EvaluationFailed, match=r"average 1\.00"):
            await AgentEvaluator.evaluate_eval_set(
                echo, ECHO, given, evaluators={"all": lambda _: EvaluationResult(1)}
            )


def _raises(*_: Any) -> Any:
    raise LookupError("no such thing")


def _results(*scores: Any) -> Callable[..., EvaluationResult]:
    def evaluate(metric: Any, actual: Any) -> EvaluationResult:
        del metric
        return EvaluationResult(
            per_invocation_results=[PerInvocationResult(actual[0], score=s) for s in scores]
        )

    return evaluate


@pytest.mark.parametrize(
    ("evaluator", "message"),
    [
        (_raises, "LookupError: no such thing"),
        (lambda *_: None, "expected an EvaluationResult, but the evaluator gave None"),
        (lambda *_: 1.0, "expected an EvaluationResult"),
        (lambda *_: {"overall_scor": 1.0}, "unknown key 'overall_scor'; did you mean `overall_score`?"),
        (lambda *_: {}, "expected an EvaluationResult"),
        (lambda *_: EvaluationResult(), "the evaluator gave no score"),
        (lambda *_: EvaluationResult(math.nan), "expected a finite number as score"),
        (lambda *_: EvaluationResult(math.inf), "expected a finite number as score"),
        (lambda *_: EvaluationResult("good"), "expected a finite number as score"),  # type: ignore[arg-type]
        (_results(1.0), "1 results for 2 invocations"),
        (_results(1.0, 1.0, 1.0), "3 results for 2 invocations"),
        (_results(1.0, math.nan), "expected a finite number as score"),
        (_results(1.0, "x"), "expected a finite number as score"),
        (_results(None, None), "the evaluator gave no score"),
        (lambda: EvaluationResult(1.0), ""),
        (SystemExit, "expected an EvaluationResult"),
    ],
)
async def test_an_evaluator_with_an_invalid_result_does_not_pass(evaluator: Any, message: str) -> None:
    """If an evaluator raises or returns an invalid value, the case is not evaluated, with a reason."""
    given = {"odd": 0.0, "tool_trajectory_avg_score": 0.0}
    if message == "":  # takes no argument, gives a score: that is an evaluator
        await AgentEvaluator.evaluate_eval_set(echo, PAIR, given, 1, evaluators={"odd": evaluator})
        return
    with pytest.raises((EvaluationFailed, ConfigError)) as failed:
        await AgentEvaluator.evaluate_eval_set(echo, PAIR, given, 1, evaluators={"odd": evaluator})
    if isinstance(failed.value, EvaluationFailed):
        (found,) = failed.value.result.scenarios
        assert found.verdict.status is Status.ERRORED
        assert "tool_trajectory_avg_score" in found.averages
        assert message in str(failed.value)


P, F, N = EvalStatus.PASSED, EvalStatus.FAILED, EvalStatus.NOT_EVALUATED


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ([(120.0, F), (90.0, P)], Status.ERRORED),
        ([(120.0, F), (110.0, N)], Status.ERRORED),
        ([(120.0, F), (110.0, P)], Status.PASSED),
        ([(100.0, F), (110.0, P)], Status.PASSED),
        ([(90.0, F), (80.0, F)], Status.FAILED),
        ([(120.0, N), (110.0, None)], Status.PASSED),
        ([(100.0, F), (100.0, F)], Status.PASSED),
        ([(120.0, F)], Status.ERRORED),
        ([(120.0, P)], Status.PASSED),
    ],
)
async def test_less_is_never_better(told: list[tuple[float, Any]], status: Status) -> None:
    """An evaluator whose statuses all contradict its scores is an error, and its metric does not pass."""

    def cost(metric: Any, actual: Any) -> EvaluationResult:
        del metric
        if len(told) == 1:
            return EvaluationResult(*told[0])
        results = [PerInvocationResult(actual[0], score=score, eval_status=said) for score, said in told]
        return EvaluationResult(per_invocation_results=results)

    given = {"criteria": {"cost": 100}, "custom_metrics": {"cost": {"code_config": {"name": "a.b"}}}}
    asked = AgentEvaluator.evaluate_eval_set(echo, PAIR, given, 1, evaluators={"cost": cost})
    if status is Status.PASSED:
        await asked
        return
    with pytest.raises(EvaluationFailed) as failed:
        await asked
    (found,) = failed.value.result.scenarios
    assert found.verdict.status is status
    assert ("a score passes from its threshold on" in str(failed.value)) is (status is Status.ERRORED)


async def test_an_invocation_without_a_score_does_not_count() -> None:
    """None for an invocation leaves it out of the average."""
    await AgentEvaluator.evaluate_eval_set(
        echo, PAIR, {"some": 1.0}, evaluators={"some": _results(None, 1.0)}
    )


@pytest.mark.parametrize("given", [int, 5, "users_metrics.all", object()])
async def test_invalid_evaluators_are_refused(given: Any) -> None:
    """The error has the metric's name, before anything runs."""
    with pytest.raises(ConfigError, match="odd"):
        await AgentEvaluator.evaluate_eval_set(echo, ECHO, {"odd": 1.0}, evaluators={"odd": given})


# LocalEvalService


async def test_conversations_are_held_once_and_evaluated_often() -> None:
    """`perform_inference` talks to the agent; `evaluate` never does, whatever the criteria."""
    with ScriptedAgent(lambda body: body["messages"][-1]["content"][:3]) as agent:
        service = LocalEvalService(agent.endpoint)
        document = parsed(
            eval_set("s", case("a", invocation("one", "one")), case("b", invocation("three", "three")))
        )
        held = await all_of(service.perform_inference(InferenceRequest(document)))
        assert [(r.eval_set_id, r.eval_case_id, r.error_message) for r in held] == [
            ("s", "a", None),
            ("s", "b", None),
        ]
        assert text_of(held[1].inferences[0].final_response) == "thr"
        asked = len(agent.requests)
    for least, statuses in ((1.0, [EvalStatus.PASSED, EvalStatus.FAILED]), (0.0, [EvalStatus.PASSED] * 2)):
        request = EvaluateRequest(held, {"response_match_score": least})
        results: list[EvalCaseResult] = await all_of(service.evaluate(request))
        assert [r.final_eval_status for r in results] == statuses
        assert [r.overall_eval_metric_results[0].score for r in results] == [1.0, 0.0]
        (per_invocation,) = results[1].eval_metric_result_per_invocation
        assert text_of(per_invocation.actual_invocation.final_response) == "thr"
        assert per_invocation.expected_invocation == document.eval_cases[1].conversation[0]  # type: ignore[index]
        assert per_invocation.eval_metric_results[0].score == 0.0
        assert results[0].session_id == held[0].session_id
    assert len(agent.requests) == asked


@pytest.mark.parametrize(
    "request_of",
    [
        lambda given: {"eval_set": given},
        lambda given: {"evalSet": parsed(given)},
        lambda given: {"evalSetId": "echoes", "evalCases": [given]},
        lambda given: {"evalSetId": "echoes", "evalCases": [parsed(given)]},
        lambda given: {"eval_set_id": "echoes", "eval_cases": given["eval_cases"]},
        lambda given: {"evalSetId": "echoes", "evalCases": list(parsed(given).eval_cases)},
        lambda given: {"appName": "x", "evalSet": given, "inferenceConfig": {"parallelism": 4}},
    ],
)
async def test_requests_may_be_mappings(request_of: Callable[[Any], Any]) -> None:
    """Requests are read in both spellings, and as ADK-TS makes them: whole sets as cases."""
    service = LocalEvalService(echo)
    held = await all_of(service.perform_inference(request_of(ECHO)))
    assert [(r.eval_set_id, r.eval_case_id) for r in held] == [("echoes", "one"), ("echoes", "two")]
    metric = {"metricName": "response_match_score", "threshold": 1, "judgeModelOptions": {"numSamples": 3}}
    for request in (
        {"inferenceResults": held, "evaluateConfig": {"evalMetrics": [metric]}},
        {
            "inference_results": held,
            "evaluate_config": {
                "eval_metrics": [{"metric_name": "response_match_score", "criterion": {"threshold": 1}}]
            },
        },
        {"inferenceResults": held, "criteria": WORDS},
    ):
        results = await all_of(service.evaluate(request))
        assert [r.final_eval_status for r in results] == [EvalStatus.PASSED] * 2


@pytest.mark.parametrize(
    ("request_given", "message"),
    [
        ({"evalSets": ECHO}, "did you mean `eval_set"),
        ({"eval_set": ECHO, "eval_case_ids": ["onne"]}, "did you mean `one`?"),
        ({"eval_set": ECHO, "evalSet": ECHO}, "given twice"),
        ({"eval_set": {"eval_set_id": "x"}}, "`eval_cases` is missing"),
        ({"eval_cases": [{"eval_id": 5}]}, "eval_id"),
        ({"eval_cases": [None]}, ""),
        ({"eval_cases": "abc"}, ""),
        ({"eval_set": ECHO, "eval_case_ids": "one"}, "eval_case_ids"),
        ({}, "no case"),
        (None, "request"),
        ([], "request"),
    ],
)
async def test_wrong_inference_requests_are_refused(request_given: Any, message: str) -> None:
    """The error describes the request, and nothing runs."""
    with pytest.raises(UsageError) as refused:
        await all_of(LocalEvalService(echo).perform_inference(request_given))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"criteria": {"respons_match_score": 1}}, "did you mean `response_match_score`?"),
        ({"evaluateConfig": {"evalMetrics": [{"threshold": 1}]}}, "metric_name"),
        ({"evaluateConfig": {"evalMetrics": [{"metricName": "response_match_score"}]}}, "threshold"),
        ({"evaluateConfig": {"evalMetrics": ["response_match_score"]}}, "eval_metrics"),
        ({"evaluateConfig": []}, "evaluate_config"),
        ({"evalConfig": {}}, "did you mean `evaluate_config`?"),
        ({"criteria": WORDS, "inferenceResults": [{"evalCaseId": "one"}]}, "inference_results"),
        ({"criteria": WORDS, "inferenceResults": None}, "inference_results"),
        ({}, "criteria"),
    ],
)
async def test_wrong_evaluate_requests_are_refused(changes: dict[str, Any], message: str) -> None:
    service = LocalEvalService(echo)
    held = await all_of(service.perform_inference({"eval_set": ECHO}))
    with pytest.raises(UsageError) as refused:
        await all_of(service.evaluate({"inferenceResults": held, **changes}))
    assert message in str(refused.value)


async def test_only_chosen_cases_run() -> None:
    """`eval_case_ids` selects; a case that runs twice is evaluated twice."""
    service = LocalEvalService(echo)
    held = await all_of(service.perform_inference({"eval_set": ECHO, "eval_case_ids": ["one"]}))
    held += await all_of(service.perform_inference({"eval_set": ECHO, "eval_case_ids": ["two"]}))
    assert [r.eval_case_id for r in held] == ["one", "two"]
    again = await all_of(service.perform_inference({"eval_set": ECHO, "evalCaseIds": ["two"]}))
    results = await all_of(service.evaluate({"inference_results": [*held, *again], "criteria": WORDS}))
    assert [(r.eval_id, r.final_eval_status) for r in results] == [
        ("one", EvalStatus.PASSED),
        ("two", EvalStatus.PASSED),
        ("two", EvalStatus.PASSED),
    ]


async def test_an_inference_that_failed_is_told_and_does_not_pass() -> None:
    """A failed agent has no inferences and a message; evaluated, its case fails and the others do not."""

    def script(body: dict[str, Any]) -> Any:
        said = body["messages"][-1]["content"]
        return Raw(b"broken", status=400) if said == "two" else said

    picture = {"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": ""}}]}
    document = eval_set("s", *ECHO["eval_cases"], case("picture", {"user_content": picture}))
    with ScriptedAgent(script) as agent:
        service = LocalEvalService(agent)
        held = await all_of(service.perform_inference({"eval_set": document}))
    one, none, two = held
    assert one.error_message is None
    assert two.inferences is None
    assert "400" in two.error_message
    assert none.inferences is None
    assert "user_content of invocation 1" in none.error_message
    results = await all_of(service.evaluate({"inference_results": held, "criteria": WORDS}))
    assert [r.final_eval_status for r in results] == [
        EvalStatus.PASSED,
        EvalStatus.NOT_EVALUATED,
        EvalStatus.FAILED,
    ]
    assert "user_content of invocation 1" in results[1].reason
    assert "400" in results[2].reason
    by_hand = [InferenceResult("s", one.eval_case_id, None, "x", one.case, "lost")]
    (result,) = await all_of(service.evaluate({"inference_results": by_hand, "criteria": WORDS}))
    assert result.final_eval_status is EvalStatus.NOT_EVALUATED
    assert "lost" in result.scenario.verdict.reasons[-1].message or "lost" in str(result.scenario.verdict)


async def test_nothing_is_evaluated_without_criteria_or_results() -> None:
    """Without metrics every case is NOT_EVALUATED; without inference results there are none."""
    service = LocalEvalService(echo)
    held = await all_of(service.perform_inference({"eval_set": ECHO}))
    results = await all_of(service.evaluate({"inference_results": held, "criteria": {}}))
    assert [r.final_eval_status for r in results] == [EvalStatus.NOT_EVALUATED] * 2
    assert await all_of(service.evaluate({"inference_results": [], "criteria": WORDS})) == []


async def test_tools_of_the_service_are_mocks() -> None:
    """Mocks that the service is given answer the agent's calls."""
    with ScriptedAgent([tool_call("look"), "done"]) as agent:
        service = LocalEvalService(agent, tools={"look": {"found": 1}})
        (held,) = await all_of(
            service.perform_inference({"eval_set": eval_set("s", case("a", invocation("x")))})
        )
    (call,) = held.conversation.turns[0].tool_calls
    assert call.result == {"found": 1}
    evaluated = await all_of(
        service.evaluate({"inference_results": [held], "criteria": {"long": 1}, "evaluators": [Long]})
    )
    assert evaluated[0].final_eval_status is EvalStatus.PASSED


def test_the_names_of_the_package_are_all_there() -> None:
    """Everything that the package offers can be imported; other names are refused as attributes are."""
    import agentest.adk as package

    for name in package.__all__:
        last = getattr(package, name).__name__.rpartition(".")[2]
        assert last == {"EvalResult": "EvalSetResult"}.get(name, name)
    assert package.agent_evaluator.AgentEvaluator is package.AgentEvaluator  # google-adk has the module, too
    with pytest.raises(AttributeError, match="Nothing"):
        _ = package.Nothing


async def test_conversations_are_evaluated_with_a_configuration_object() -> None:
    """`EvaluateConfig` names the metrics, as objects or mappings; case results make the result of a set."""
    service = LocalEvalService(echo)
    held = await all_of(service.perform_inference({"eval_set": ECHO}))
    metrics = [EvalMetric("response_match_score", 1.0), {"metricName": "tool_trajectory_avg_score"}]
    metrics[1]["threshold"] = 1.0  # type: ignore[index]
    request = EvaluateRequest(held, evaluate_config=EvaluateConfig(metrics, parallelism=2))
    results = EvalSetResult("first", "echoes", await all_of(service.evaluate(request)))
    assert [each.final_eval_status for each in results.eval_case_results] == [EvalStatus.PASSED] * 2
    assert {each.metric_name for each in results.eval_case_results[0].overall_eval_metric_results} == {
        "response_match_score",
        "tool_trajectory_avg_score",
    }
    with pytest.raises(UsageError, match="criteria or evaluate_config"):
        await all_of(service.evaluate(EvaluateRequest(held)))


@pytest.mark.parametrize("as_object", [True, False])
async def test_judge_options_are_a_value(as_object: bool) -> None:
    """A criterion may contain `JudgeModelOptions`, which validates its values when created."""
    options: Any = {"judge_model": "judge-x", "num_samples": 1}
    criterion = {
        "threshold": 1,
        "judge_model_options": JudgeModelOptions(**options) if as_object else options,
    }
    with pytest.warns(UserWarning, match="names the judge judge-x"), pytest.raises(EvaluationFailed):
        await AgentEvaluator.evaluate_eval_set(echo, ECHO, {"final_response_match_v2": criterion}, num_runs=1)
    with pytest.raises(ValueError, match="num_samples"):
        JudgeModelOptions(num_samples=0)


async def test_the_criteria_next_to_a_file(project: Project) -> None:
    """`find_config_for_test_file` returns the content of test_config.json, or the default criteria."""
    project.write("a/test_config.json", '{"criteria": {"response_match_score": 0.25}}')
    found = AgentEvaluator.find_config_for_test_file("a/x.test.json")
    assert found == find_config_for_test_file("a/x.test.json") == {"criteria": {"response_match_score": 0.25}}
    await AgentEvaluator.evaluate_eval_set(echo, ECHO, eval_config=found, num_runs=1)
    default = find_config_for_test_file("b/x.test.json")
    assert default == {"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.8}}
    project.write("a/test_config.json", '{"criteria": {"no_such": 1}}')
    with pytest.raises(UsageError, match="no_such"):
        find_config_for_test_file("a/x.test.json")


class Length(Evaluator):
    """The length of answers. It has no threshold."""

    metric_name = "length"

    def evaluate_invocations(self, actual: Any, expected: Any) -> EvaluationResult:
        sizes = [PerInvocationResult(one, score=float(len(str(one.final_response)))) for one in actual]
        return EvaluationResult(per_invocation_results=sizes)


async def test_scores_for_information() -> None:
    """A criterion for information has a score without a threshold, and ADK's status for it, built-in or
    custom; an unscored one has a reason and does not affect the case."""
    asked = {
        **WORDS,
        "tool_call_count_v1": None,
        "token_usage_v1": {},
        "safety_v1": {"information": True},
        "length": {"information": True},
    }
    service = LocalEvalService(echo)
    held = await all_of(service.perform_inference({"eval_set": ECHO}))
    request = {"inference_results": held, "criteria": asked, "evaluators": [Length]}
    for found in await all_of(service.evaluate(request)):
        assert found.final_eval_status is EvalStatus.PASSED
        overall = {one.metric_name: one for one in found.overall_eval_metric_results}
        [turn] = found.eval_metric_result_per_invocation
        of_turn = {one.metric_name: one for one in turn.eval_metric_results}
        assert overall.keys() == of_turn.keys() == asked.keys()
        for results in (overall, of_turn):
            decides = results.pop("response_match_score")
            assert decides.eval_status is EvalStatus.PASSED
            assert {one.eval_status for one in results.values()} == {EvalStatus.INFORMATIONAL}
            assert {one.threshold for one in results.values()} == {None}
            assert results["tool_call_count_v1"].score == 0.0
            assert results["length"].score is not None
            assert results["token_usage_v1"].score is results["safety_v1"].score is None
            assert results["token_usage_v1"].reason == "the agent reports no tokens"
            assert "no model configured" in results["safety_v1"].reason
