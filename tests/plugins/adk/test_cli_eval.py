"""`agentest eval` and `agentest migrate` from outside: real agents over HTTP, exit status, results."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evalset_documents import case, criteria, eval_set, invocation, response, simulated, text, use
from jsonschema import validate
from model_server import ModelServer, Received, completion
from project import DEADLINE_S, Project, interrupt

from agentest.plugins.adk.formats.eval_set import EVAL_SET
from agentest.testing import Raw, ScriptedAgent, tool_call

SCHEMA = json.loads((Path(__file__).parents[3] / "agentest" / "schemas" / "results.schema.json").read_text())
LOOKUP = use("lookup_order", order_id="A1")
SHIPPED = response("lookup_order", status="shipped")
ORDER = case("order", invocation("Where is A1?", "Order A1 is on its way.", [LOOKUP], [SHIPPED]))
PRICE = case("price", invocation("How much is it?", "It is ten euros."))


def shop(body: dict[str, Any]) -> Any:
    """Looks orders up, knows one price, breaks down at `Break.`, and repeats everything else."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        shipped = "shipped" in last["content"]
        return "Order A1 is on its way." if shipped else f"I was told: {last['content']}"
    said = last["content"]
    if said == "Break.":
        return Raw(b"it broke", status=500)
    calls = {"Where is A1?": "A1", "Where is B2?": "B2"}
    if said in calls:
        return tool_call("lookup_order", order_id=calls[said])
    return {"How much is it?": "It is ten euros."}.get(said, said)


def evaluate(project: Project, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return project.agentest("eval", *arguments, env=environment or None)


def written(project: Project, *cases: dict[str, Any], name: str = "orders.test.json") -> str:
    project.write(name, text(eval_set("orders", *cases)))
    return name


def statuses(project: Project) -> dict[str, str]:
    return {s["name"]: s["finalEvalStatus"] for s in project.results["scenarios"]}


def model_options(model: ModelServer) -> dict[str, Any]:
    options = {"base_url": model.base_url, "api_key": "sk-secret-of-the-test"}
    return {"provider": "openai-compatible", "model": "m", "provider_options": options}


def judging(score: Callable[[str], float]) -> Callable[[Received], Any]:
    """A model that plays a user who soon ends the conversation, and judges the shown transcript."""

    def answer(received: Received) -> Any:
        form = received.body["response_format"]["json_schema"]["schema"]["properties"]
        if "message" in form:
            said = sum(m["role"] == "assistant" for m in received.body["messages"])
            return completion({"message": "Thanks." if said < 2 else "</finished>"})
        shown = json.dumps(received.body["messages"])
        return completion({"reason": "scripted", "value": score(shown)})

    return answer


def test_a_passing_set_ends_with_0_and_valid_results(project: Project) -> None:
    """Cases that meet their criteria exit with 0; results.json fits its schema and has ADK's own results."""
    written(project, ORDER, PRICE)
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        done = evaluate(project, "orders.test.json")
    assert done.returncode == 0, done.stdout + done.stderr
    validate(project.results, SCHEMA)
    found = project.scenario_result("order")
    assert (found["evalSetId"], found["evalId"], found["finalEvalStatus"]) == ("orders", "order", "PASSED")
    assert found["overallEvalMetricResults"] == [
        {"metricName": name, "threshold": least, "score": 1.0, "evalStatus": "PASSED"}
        for name, least in (("tool_trajectory_avg_score", 1.0), ("response_match_score", 0.8))
    ]
    (per_invocation,) = found["conversations"][0]["evalMetricResultPerInvocation"]
    assert per_invocation["actualInvocation"]["intermediateData"]["toolUses"] == [
        {"id": "call-0", "name": "lookup_order", "args": {"order_id": "A1"}}
    ]
    expected = per_invocation["expectedInvocation"]
    assert expected["finalResponse"]["parts"] == [{"text": "Order A1 is on its way."}]
    assert [m["score"] for m in per_invocation["evalMetricResults"]] == [1.0, 1.0]
    project.scenario('scenario("s", turns=["x"])')
    again = project.agentest("judge", ".agentest/results.json")
    assert again.returncode == 2
    assert "it has cases of evaluation sets, which `agentest eval` runs and grades" in again.stderr


def test_a_failing_case_ends_with_1_and_says_what_was_expected(project: Project) -> None:
    """A case below a threshold exits with 1; console and annotations have place and reason."""
    written(
        project,
        PRICE,
        case("wrong", invocation("Where is B2?", "Order B2 is here.", [LOOKUP], [SHIPPED])),
        case("words", invocation("Tell me a joke.", "Why did the chicken cross the road?")),
    )
    project.write("mocks.py", 'tools = {"lookup_order": {"status": "unknown"}}\n')
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        reporters = ("--reporter", "console", "--reporter", "github-actions", "--reporter", "json")
        done = evaluate(project, "orders.test.json", "-v", "--mocks", "mocks.py", *reporters)
    assert done.returncode == 1
    assert statuses(project) == {"price": "PASSED", "wrong": "FAILED", "words": "FAILED"}
    assert "expected lookup_order(order_id='A1'); called lookup_order(order_id='B2')" in done.stdout
    assert "expected  Why did the chicken cross the road?" in done.stdout
    assert "replied   Tell me a joke." in done.stdout
    lines = (project.root / "orders.test.json").read_text().splitlines()
    at = next(n for n, line in enumerate(lines, start=1) if '"eval_id": "wrong"' in line)
    assert f"orders.test.json:{at}" in done.stdout
    assert f"::error file=orders.test.json,line={at},title=wrong failed::" in done.stdout


def test_scores_of_all_runs_are_pooled(project: Project) -> None:
    """Two invocations that score 1 and 0, in three runs, average 0.5 over six scores."""
    written(
        project,
        case("half", invocation("Where is A1?", None, [LOOKUP], [SHIPPED]), invocation("x", None, [LOOKUP])),
    )
    project.write("test_config.json", text(criteria(tool_trajectory_avg_score=0.5)))
    with ScriptedAgent(shop) as agent:
        done = evaluate(
            project, "orders.test.json", "--agent", agent.endpoint, "--num-runs", "3", "--reporter", "json"
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found = project.scenario_result("half")
    assert found["averages"] == {"tool_trajectory_avg_score": 0.5}
    scores = [
        i["evalMetricResults"][0]["score"]
        for c in found["conversations"]
        for i in c["evalMetricResultPerInvocation"]
    ]
    assert scores == [1.0, 0.0] * 3


def test_an_agent_that_fails_in_one_of_several_runs_fails_the_case(project: Project) -> None:
    """Two good runs do not offset one in which the agent failed without any score."""
    replies = iter(["It is ten euros."] * 2 + ["No.", Raw(b"oops", status=500)] + ["It is ten euros."] * 2)
    written(project, case("price", *PRICE["conversation"] * 2))
    with ScriptedAgent(lambda _: next(replies)) as agent:
        project.write("agentest.config.yaml", f"agent: {{endpoint: '{agent.endpoint}', retries: 0}}\n")
        one_by_one = ("--num-runs", "3", "--concurrency", "1")
        done = evaluate(project, "orders.test.json", *one_by_one, "--reporter", "json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = project.scenario_result("price")
    assert found["finalEvalStatus"] == "FAILED"
    assert found["averages"] == {"response_match_score": 1.0}
    assert "answered 500" in found["failures"][0]


def test_cases_that_cannot_be_evaluated_end_with_2(project: Project) -> None:
    """Without criteria, judge, reference or comparison for a simulated user, no case passes."""
    bare = case("bare", invocation("Hello."))
    project.write("none/a.test.json", text(eval_set("none", PRICE | {"eval_id": "no_criteria"})))
    project.write("none/test_config.json", text(criteria()))
    project.write("judged/a.test.json", text(eval_set("judged", PRICE | {"eval_id": "no_judge"})))
    project.write("judged/test_config.json", text(criteria(safety_v1=1.0)))
    project.write("bare/a.test.json", text(eval_set("bare", bare | {"eval_id": "no_reference"})))
    project.write("bare/test_config.json", text(criteria(response_match_score=0.5)))
    project.write(
        "plain/a.test.json", text(eval_set("plain", bare | {"eval_id": "nothing"}, simulated("plan")))
    )
    with ScriptedAgent(shop) as agent:
        done = evaluate(
            project, ".", "--agent", agent.endpoint, "--reporter", "json", "--reporter", "console"
        )
        assert len(agent.requests) == 2  # no_judge and no_reference
    assert done.returncode == 2, done.stdout + done.stderr
    assert set(statuses(project).values()) == {"NOT_EVALUATED"}
    why = {s["name"]: s["failures"][0] for s in project.results["scenarios"]}
    assert why["no_criteria"] == "not evaluated: the criteria name no metric"
    assert "no model configured" in why["no_judge"]
    assert "no invocation of the case has a final_response" in why["no_reference"]
    assert "the case has neither" in why["nothing"]
    assert "the case has neither" in why["plan"]
    validate(project.results, SCHEMA)


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"a.test.json": text(eval_set("a", PRICE))}, ["a.test.json:prise"], "did you mean `price`?"),
        ({"a.test.json": text(eval_set("a", PRICE))}, ["a.test.json:"], "no case after the colon"),
        ({"sub/b.txt": ""}, ["sub"], "no evaluation sets in it"),
        ({"sub/b.test.json": text(eval_set("b", PRICE))}, ["sub:price"], "sub is a folder"),
        ({}, ["a.test.json"], "a.test.json: does not exist"),
        ({"a.test.json": '{"eval_set_id": "a",\n'}, ["a.test.json"], "a.test.json:2: is not JSON"),
        (
            {"a.test.json": text(eval_set("a", case("c", invocation("x", reply="y"))))},
            ["a.test.json"],
            "case `c`, invocation 1: `reply` is not a known key",
        ),
        (
            {
                "a.test.json": text(eval_set("a", PRICE)),
                "test_config.json": text(criteria(respons_match_score=1)),
            },
            ["a.test.json"],
            "criteria: there is no metric `respons_match_score`; did you mean `response_match_score`?",
        ),
        (
            {
                "a.test.json": text(eval_set("a", PRICE)),
                "c.json": text(criteria(tool_trajectory_avg_score={"threshold": 1, "match_type": "SOME"})),
            },
            ["a.test.json", "--config-file-path", "c.json"],
            "tool_trajectory_avg_score.match_type: must be EXACT or 0, IN_ORDER or 1, ANY_ORDER or 2",
        ),
        (
            {"a.test.json": text(eval_set("a", PRICE))},
            ["a.test.json", "--config_file_path", "no.json"],
            "no.json",
        ),
        (
            {"a.test.json": text(eval_set("a", PRICE))},
            ["a.test.json", "--agent", "ftp://x"],
            "must start with http",
        ),
        (
            {"a.test.json": text(eval_set("a", PRICE))},
            ["a.test.json", "--agent", "shop"],
            "no configuration found",
        ),
        ({"a.test.json": text(eval_set("a", PRICE))}, ["a.test.json", "--mocks", "no.py"], "does not exist"),
        (
            {"a.test.json": text(eval_set("a", PRICE)), "s.json": '{"tier": "gold"}'},
            ["a.test.json", "--initial-session-file", "s.json"],
            "go under `state`",
        ),
        ({"a.test.json": text(eval_set("a", PRICE))}, ["a.test.json", "--reporter", "xml"], "reporter"),
        ({"a.test.json": text(eval_set("a", PRICE))}, ["a.test.json", "--num-runs", "0"], "--num-runs"),
        ({}, [], "FILE_OR_DIR"),
    ],
)
def test_invalid_input_is_refused(
    project: Project, files: dict[str, str], arguments: list[str], message: str
) -> None:
    """One message has place and problem, the exit status is 2, and nothing runs."""
    for name, content in files.items():
        project.write(name, content)
    agent = [] if "--agent" in arguments else ["--agent", "http://127.0.0.1:9/never-asked"]
    done = evaluate(project, *arguments, *agent)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("import nothing_like_it", "No module named 'nothing_like_it'"),
        ("x = {\n", "mocks.py:1"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("mocks = {}", "has no `tools`"),
        ("tools = ['lookup_order']", "tools"),
        ("tools = {'lookup_order': object()}", "lookup_order"),
    ],
)
def test_mocks_that_cannot_be_used_are_refused(project: Project, module: str, message: str) -> None:
    """The error names the module of mocks, before anything runs."""
    written(project, PRICE)
    project.write("mocks.py", module)
    done = evaluate(project, "orders.test.json", "--mocks", "mocks.py", "--agent", "http://127.0.0.1:9/")
    assert done.returncode == 2
    assert "mocks.py" in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_each_file_has_the_criteria_of_its_folder(project: Project) -> None:
    """test_config.json applies to the sets of its folder; --config-file-path applies to all."""
    low = case("low", invocation("one two three four", "one two three"))
    project.write("strict/a.test.json", text(eval_set("strict", low)))
    project.write("strict/test_config.json", text(criteria(response_match_score=0.95)))
    project.write("loose/deep/b.evalset.json", text(eval_set("loose", low)))
    project.write("loose/test_config.json", text(criteria(response_match_score=0.99)))  # not beside it
    project.write("all.json", text({"response_match_score": 0.5}))
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        assert evaluate(project, "strict", "loose", "--all").returncode == 1
        assert statuses(project) == {"strict/low": "FAILED", "loose/low": "PASSED"}
        assert evaluate(project, "strict", "loose", "--all", "--config_file_path", "all.json").returncode == 0


def test_a_set_is_strict_only_if_that_is_written(project: Project) -> None:
    """By ADK's rules a questioned case passes; `--strict` or the key `strict` makes it errored."""
    written(project, case("broken", invocation("Error: no slot", "Error: no slot")))
    with ScriptedAgent(shop) as agent:
        settings = f"agent: {{endpoint: '{agent.endpoint}'}}\nreporters: [json]\n"
        project.write("agentest.config.yaml", settings)
        assert evaluate(project, "orders.test.json").returncode == 0
        assert [each["code"] for each in project.results["summary"]["warnings"]] == ["error-reply"]
        assert evaluate(project, "orders.test.json", "--strict").returncode == 2
        project.write("agentest.config.yaml", f"{settings}strict: true\n")
        assert evaluate(project, "orders.test.json").returncode == 2
        assert evaluate(project, "orders.test.json", "--no-strict").returncode == 0


def test_cases_of_the_same_name_are_distinguished(project: Project) -> None:
    """Cases are named by id, with set or file if another case has the same id."""
    for name in ("one/a.test.json", "two/a.test.json"):
        project.write(name, text(eval_set("same", PRICE)))
    project.write(
        "three.test.json", text(eval_set("other", PRICE, ORDER, case("other/price", invocation("x", "x"))))
    )
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        done = evaluate(project, ".")
    assert done.returncode == 0, done.stdout + done.stderr
    names = [s["name"] for s in project.results["scenarios"]]
    assert names == [
        "one/a.test.json/price",
        "three.test.json/price",
        "order",
        "other/other/price",
        "two/a.test.json/price",
    ]


def test_chosen_cases_of_one_file_add_up(project: Project) -> None:
    """Cases named in several arguments run once each, and all run if the file is named."""
    name = written(project, ORDER, PRICE, case("echo", invocation("x", "x")))
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        assert evaluate(project, f"{name}:echo,", f"./{name}:order").returncode == 0
        assert list(statuses(project)) == ["order", "echo"]
        assert evaluate(project, f"{name}:echo", ".").returncode == 0
        assert list(statuses(project)) == ["order", "price", "echo"]


def test_recorded_responses_answer_the_agents_calls(project: Project) -> None:
    """A call gets what was recorded for its arguments, in order; another one may be an error."""
    twice = [response("lookup_order", status="packed"), response("lookup_order", status="shipped")]

    def again(body: dict[str, Any]) -> Any:
        told = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        return tool_call("lookup_order", order_id="A1") if len(told) < 3 else " ".join(told)

    written(project, case("twice", invocation("x", "packed shipped shipped", [LOOKUP, LOOKUP], twice)))
    project.write("test_config.json", text(criteria(response_match_score=0.1)))
    with ScriptedAgent(again) as agent:
        done = evaluate(project, "orders.test.json", "--agent", agent.endpoint, "--reporter", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    (turn,) = project.scenario_result("twice")["conversations"][0]["turns"]
    assert [c["result"]["status"] for c in turn["toolCalls"]] == ["packed", "shipped", "shipped"]

    written(project, case("other", invocation("Where is B2?", "Here.", [LOOKUP], [SHIPPED])))
    with ScriptedAgent(shop) as agent:
        done = evaluate(project, "orders.test.json", "--agent", agent.endpoint, "--unmocked-tools", "error")
    assert done.returncode == 1
    assert "✗ lookup_order has no mock" in done.stdout
    assert "--mocks FILE" in done.stdout


def test_mocks_come_before_recorded_responses(project: Project) -> None:
    """A tool of --mocks answers, whatever the set recorded; the others are answered as recorded."""
    ask = case("ask", invocation("Where is A1?", "I was told: lost", [LOOKUP], [SHIPPED]))
    written(
        project,
        ask,
        case("say", invocation("Where is B2?", "I was told: lost", [use("lookup_order", order_id="B2")])),
    )
    project.write(
        "mocks.py", 'def look(order_id: str) -> str:\n    return "lost"\n\ntools = {"lookup_order": look}\n'
    )
    with ScriptedAgent(shop) as agent:
        done = evaluate(project, "orders.test.json", "--agent", agent.endpoint, "--mocks", "mocks.py")
    assert done.returncode == 0, done.stdout


def test_details_show_every_invocation(project: Project) -> None:
    """--print-detailed-results shows texts, calls, scores, thresholds and statuses of every invocation."""
    written(project, ORDER, case("bad", invocation("Guess.", "Forty two."), invocation("Again.")))
    with ScriptedAgent(shop) as agent:
        done = evaluate(project, "orders.test.json", "--agent", agent.endpoint, "--print_detailed_results")
    assert done.returncode == 1
    for shown in (
        "order-1, turn 1",
        "Where is A1?",
        "lookup_order(order_id='A1')",
        "tool_trajectory_avg_score",
        "✓ passed",
        "bad-1, turn 1",
        "Forty two.",
        "✗ failed",
        "bad-1, turn 2",
        "! not evaluated",
    ):
        assert shown in done.stdout, shown


def test_the_agent_may_be_a_name_or_a_url(project: Project) -> None:
    """A URL is tested in place of the configured agents; a name is one of them."""
    written(project, PRICE)
    with ScriptedAgent(["It is ten euros."]) as good, ScriptedAgent(["No."]) as bad:
        project.config(
            bad.endpoint,
            agents={"other": {"endpoint": good.endpoint}},
            compare=[{"name": "c", "endpoint": bad.endpoint}],
        )
        assert evaluate(project, "orders.test.json", "--agent", good.endpoint).returncode == 0
        assert list(project.results["agents"]) == ["agent"]
        assert evaluate(project, "orders.test.json", "--agent", "other").returncode == 0
        assert list(project.results["agents"]) == ["other"]
        assert evaluate(project, "orders.test.json", "--agent", "agent").returncode == 1
        assert "did you mean `other`?" in evaluate(project, "orders.test.json", "--agent", "othr").stderr


def test_several_agents_are_compared(project: Project) -> None:
    """With `compare` every case runs with every agent, and each has its own verdict."""
    written(project, PRICE)
    with ScriptedAgent(["It is ten euros."]) as good, ScriptedAgent(["No."]) as bad:
        project.config(good.endpoint, compare=[{"name": "worse", "endpoint": bad.endpoint}])
        done = evaluate(project, "orders.test.json")
    assert done.returncode == 1
    validate(project.results, SCHEMA)
    (scenario,) = project.results["scenarios"]
    assert [(a["agent"], a["finalEvalStatus"]) for a in scenario["agents"]] == [
        ("agent", "PASSED"),
        ("worse", "FAILED"),
    ]


def test_the_session_reaches_an_agent_that_wants_it(project: Project) -> None:
    """`send_session_state` sends the case's state, or that of --initial-session-file if it has none."""
    own = PRICE | {"session_input": {"app_name": "shop", "user_id": "u", "state": {"tier": "gold"}}}
    written(project, own, PRICE | {"eval_id": "other"})
    project.write("session.json", '{"app_name": "shop", "user_id": "u", "state": {"tier": "basic"}}')
    with ScriptedAgent(shop) as agent:
        project.write(
            "agentest.config.yaml", f"agent: {{endpoint: '{agent.endpoint}', send_session_state: true}}\n"
        )
        done = evaluate(project, "orders.test.json", "--initial_session_file", "session.json")
        sent = sorted(request["metadata"]["session_state"]["tier"] for request in agent.requests)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sent == ["basic", "gold"]


def test_judged_metrics_use_the_configured_model(project: Project) -> None:
    """It replaces a judge without a key, with a note. Batch settings of built-in metrics do not apply: each
    criterion has its own calls, even if a case has failed."""
    written(project, PRICE, case("rude", invocation("Insult me.", "No.")))
    named = {"threshold": 1.0, "judge_model_options": {"judge_model": "gemini-x", "num_samples": 3}}
    held = criteria(final_response_match_v2=named, response_match_score=1.0)
    project.write("test_config.json", text(held))
    with (
        ScriptedAgent(shop) as agent,
        ModelServer(script=judging(lambda shown: float("Insult" not in shown))) as model,
    ):
        asking = {"batch": "conversation", "skip_decided": True}
        project.config(agent.endpoint, judge=asking, **model_options(model))
        counted = evaluate(project, "orders.test.json", "--dry-run", "--num-runs", "1")
        total = next(row for row in counted.stdout.splitlines() if "in all, at most" in row)
        assert total.split()[:4] == ["0", "6", "0", "6"], counted.stdout
        assert not model.received
        done = evaluate(project, "orders.test.json")
        assert len(model.received) == 6
    assert done.returncode == 1, done.stdout + done.stderr
    assert statuses(project) == {"price": "PASSED", "rude": "FAILED"}
    assert "names the judge gemini-x, which needs GEMINI_API_KEY or GOOGLE_API_KEY" in done.stderr
    assert "the configured model m is used instead" in done.stderr
    assert project.results["summary"]["llmCalls"] == 6


def test_judged_metrics_are_recorded_and_replayed(project: Project) -> None:
    """A recorded evaluation is replayed without a model; a number of calls is never exceeded."""
    written(project, PRICE)
    project.write(
        "test_config.json",
        text(criteria(safety_v1={"threshold": 1, "judge_model_options": {"num_samples": 4}})),
    )
    with ScriptedAgent(shop) as agent:
        with ModelServer(script=judging(lambda _: 1)) as model:
            project.config(agent.endpoint, **model_options(model))
            done = evaluate(project, "orders.test.json", "--max-llm-calls", "2")
            assert done.returncode == 2
            assert "--max-llm-calls" in done.stderr
            assert len(model.received) <= 2
            assert evaluate(project, "orders.test.json", "--record").returncode == 0
        project.config(agent.endpoint)
        done = evaluate(project, "orders.test.json", "--replay")
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.scenario_result("price")["averages"] == {"safety_v1": 1.0}


def test_a_simulated_user_follows_its_plan(project: Project) -> None:
    """A scenario begins with its starting prompt and ends on the stop signal, which is not sent."""
    written(project, simulated("plan", starts="Hi there."))
    project.write("test_config.json", text(criteria(safety_v1=1.0)))
    with ScriptedAgent(shop) as agent, ModelServer(script=judging(lambda _: 1)) as model:
        project.config(agent.endpoint, **model_options(model))
        done = evaluate(project, "orders.test.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (conversation,) = project.scenario_result("plan")["conversations"]
    assert [turn["userMessage"] for turn in conversation["turns"]] == ["Hi there.", "Thanks."]
    assert conversation["evalMetricResultPerInvocation"][0]["expectedInvocation"] is None
    validate(project.results, SCHEMA)


def test_fail_fast_stops_at_the_first_failure(project: Project) -> None:
    """--fail-fast skips what had not finished when a case failed."""
    written(project, case("bad", invocation("x", "y")), *(PRICE | {"eval_id": f"p{n}"} for n in range(5)))
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        done = evaluate(project, "orders.test.json", "--fail-fast", "--concurrency", "1")
        assert len(agent.requests) < 6
    assert done.returncode == 1
    assert "stopped by --fail-fast" in project.results["stopped"]


def test_an_interrupted_evaluation_keeps_what_had_finished(project: Project) -> None:
    """Ctrl-C exits with 130; the finished case keeps its status, the other was not evaluated."""
    hanging, leave = threading.Event(), threading.Event()

    def slow(body: dict[str, Any]) -> Any:
        if body["messages"][-1]["content"] == "wait":
            hanging.set()
            leave.wait(DEADLINE_S)
        return "It is ten euros."

    written(project, PRICE, case("slow", invocation("wait", "x")))
    with ScriptedAgent(slow) as agent:
        project.config(agent.endpoint)
        process = project.start("orders.test.json", command="eval")
        assert hanging.wait(DEADLINE_S)
        assert process.stdout is not None
        while "price" not in process.stdout.readline():
            pass  # its line is printed when it has finished
        code, _, err = interrupt(process)
        leave.set()
    assert code == 130
    assert "Traceback" not in err
    assert statuses(project) == {"price": "PASSED", "slow": "NOT_EVALUATED"}
    validate(project.results, SCHEMA)


@pytest.mark.slow
def test_hundreds_of_cases_at_once(project: Project) -> None:
    """Two hundred cases whose names differ in signs alone have conversation ids of their own."""
    ids = [f"Fall «{n}»" for n in range(100)] + ["!" * n for n in range(1, 101)]
    written(project, *(case(name, invocation(f"echo {n}", f"echo {n}", [])) for n, name in enumerate(ids)))
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        done = evaluate(project, "orders.test.json", "--concurrency", "50")
    assert done.returncode == 0, done.stdout[-2000:]
    held = [c["conversationId"] for s in project.results["scenarios"] for c in s["conversations"]]
    assert len(set(held)) == 200
    assert [s["evalId"] for s in project.results["scenarios"]] == ids


LEGACY_TURN = {
    "query": "Where is A1?",
    "expected_tool_use": [{"tool_name": "lookup_order", "tool_input": {"order_id": "A1"}}],
    "expected_intermediate_agent_responses": [],
    "reference": "Order A1 is on its way.",
}
TS_TURN = LEGACY_TURN | {"expected_tool_use": [{"name": "lookup_order", "args": {"order_id": "A1"}}]}
DATA = {
    "name": "orders",
    "description": "Questions about orders.",
    "data": [
        {
            "name": "where",
            "query": "Where is A1?",
            "expected_tool_calls": ["lookup_order"],
            "expected_tool_args": {"lookup_order": {"order_id": "A1"}},
            "reference_answer": "on its way",
        },
        {
            "name": "any_args",
            "query": "Where is B2?",
            "expected_tool_calls": ["lookup_order"],
            "reference_answer": "A1",
        },
        {
            "name": "no_tool",
            "query": "How much is it?",
            "expected_tool_calls": [],
            "reference_answer": "ten EUROS",
        },
    ],
}


@pytest.mark.parametrize(
    ("document", "warned", "names"),
    [
        (
            [
                {
                    "name": "a",
                    "data": [LEGACY_TURN],
                    "initial_session": {"app_name": "x", "user_id": "u", "state": {}},
                }
            ],
            True,
            ["a"],
        ),
        ([LEGACY_TURN], True, ["old"]),
        ([TS_TURN], True, ["old"]),
        (DATA, False, ["where", "any_args", "no_tool"]),
    ],
    ids=["legacy", "legacy-bare", "legacy-bare-ts", "data"],
)
def test_older_forms_are_run_and_migrated(
    project: Project, document: Any, warned: bool, names: list[str]
) -> None:
    """Older forms are run as they are, with one warning a file, and pass as well once they are migrated."""
    project.write("old.test.json", text(document))
    project.write("mocks.py", 'tools = {"lookup_order": {"status": "shipped"}}\n')
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        done = evaluate(project, "old.test.json", "--mocks", "mocks.py")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr.count("`agentest migrate OLD NEW`") == int(warned)
        assert [s["evalId"] for s in project.results["scenarios"]] == names
        migrated = project.agentest("migrate", "old.test.json", "new.test.json", "--camel_case")
        assert migrated.returncode == 0, migrated.stderr
        found = EVAL_SET.validate_json((project.root / "new.test.json").read_bytes())
        assert [c.eval_id for c in found.eval_cases] == names
        done = evaluate(project, "new.test.json", "--mocks", "mocks.py")
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_file_of_scenarios_is_run(project: Project) -> None:
    """A scenarios file is a set of simulated conversations."""
    project.write(
        "returns.test.json",
        text(
            {
                "scenarios": [
                    {
                        "starting_prompt": "I return a lamp.",
                        "conversation_plan": "Say the number.",
                        "user_persona": "NOVICE",
                    }
                ]
            }
        ),
    )
    project.write("test_config.json", text(criteria(safety_v1=1.0)))
    with ScriptedAgent(shop) as agent, ModelServer(script=judging(lambda _: 1)) as model:
        project.config(agent.endpoint, **model_options(model))
        done = evaluate(project, "returns.test.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (scenario,) = project.results["scenarios"]
    assert scenario["conversations"][0]["turns"][0]["userMessage"] == "I return a lamp."


def test_migrate_refuses_what_it_cannot_write(project: Project) -> None:
    """A missing file, the file itself and a folder are refused with exit status 2."""
    project.write("old.test.json", text([LEGACY_TURN]))
    (project.root / "folder").mkdir()
    for arguments in (
        ["no.json", "new.json"],
        ["old.test.json", "old.test.json"],
        ["old.test.json", "folder"],
    ):
        done = project.agentest("migrate", *arguments)
        assert done.returncode == 2, arguments
        assert done.stderr.startswith("agentest: ")


WEATHER = {
    "evalSetId": "forecasts",
    "name": "Forecast agent",
    "creationTimestamp": 0,
    "evalCases": [
        {
            "evalId": "full",
            "conversation": [
                {
                    "creationTimestamp": 0,
                    "userContent": {"role": "user", "parts": [{"text": "Rain in Oslo?"}]},
                    "finalResponse": {"role": "model", "parts": [{"text": "It rains in Oslo, 9°C."}]},
                    "intermediateData": {
                        "toolUses": [{"name": "forecast", "args": {"city": "Oslo"}}],
                        "intermediateResponses": [],
                    },
                },
                {
                    "creationTimestamp": 0,
                    "userContent": {"role": "user", "parts": [{"text": "Rain in Rome?"}]},
                    "finalResponse": {"role": "model", "parts": [{"text": "It rains in Rome, 9°C."}]},
                    "intermediateData": {
                        "toolUses": [{"name": "forecast", "args": {"city": "Rome"}}],
                        "intermediateResponses": [],
                    },
                },
            ],
        },
        {
            "evalId": "answer_only",
            "conversation": [
                {
                    "creationTimestamp": 0,
                    "userContent": {"role": "user", "parts": [{"text": "Good morning!"}]},
                    "finalResponse": {"role": "model", "parts": [{"text": "Good morning! Which city?"}]},
                }
            ],
            "sessionInput": {"appName": "weather", "userId": "u1", "state": {"unit": "C", "calls": 3}},
        },
        {
            "evalId": "tools_only",
            "conversation": [
                {
                    "creationTimestamp": 0,
                    "userContent": {"role": "user", "parts": [{"text": "Rain in Bern?"}]},
                    "intermediateData": {
                        "toolUses": [{"name": "forecast", "args": {"city": "Bern"}}],
                        "intermediateResponses": [],
                    },
                }
            ],
        },
    ],
}


def forecaster(body: dict[str, Any]) -> Any:
    last = body["messages"][-1]
    asked = [m["content"] for m in body["messages"] if m["role"] == "user"][-1]
    if "Rain" not in asked:
        return "Good morning! Which city?"
    city = asked.removeprefix("Rain in ").rstrip("?")
    return f"It rains in {city}, 9°C." if last["role"] == "tool" else tool_call("forecast", city=city)


def test_sets_in_the_spelling_of_adk_ts_run_without_criteria(project: Project) -> None:
    """Full, answer-only and tools-only cases pass by default criteria for their content."""
    project.write("weather.test.json", text(WEATHER))
    project.write("mocks.py", 'tools = {"forecast": {"rain": True}}\n')
    with ScriptedAgent(forecaster) as agent:
        project.write(
            "agentest.config.yaml", f"agent: {{endpoint: '{agent.endpoint}', send_session_state: true}}\n"
        )
        done = evaluate(project, ".", "--mocks", "mocks.py", "--reporter", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    thresholds = {s["name"]: sorted(s["thresholds"]) for s in project.results["scenarios"]}
    assert thresholds == {
        "full": ["response_match_score", "tool_trajectory_avg_score"],
        "answer_only": ["response_match_score"],
        "tools_only": ["tool_trajectory_avg_score"],
    }


def test_an_evaluator_of_the_users_own_is_found_by_its_path(project: Project) -> None:
    """`custom_metrics` names a class, or a function of ADK's four arguments, plain or async."""
    project.write(
        "my_evaluators.py",
        """
from agentest.adk import EvaluationResult, Evaluator, PerInvocationResult

class Polite(Evaluator):
    def evaluate_invocations(self, actual, expected):
        said = [i.final_response.parts[0].text for i in actual]
        return EvaluationResult(per_invocation_results=[
            PerInvocationResult(i, score=float("euros" in s)) for i, s in zip(actual, said)])

async def long(eval_metric, actual, expected, scenario):
    return EvaluationResult(overall_score=eval_metric.criterion.threshold + eval_metric.criterion.bonus)
""",
    )
    project.write(
        "test_config.json",
        text(
            criteria(polite=1.0, long={"threshold": 3, "bonus": 1})
            | {
                "custom_metrics": {
                    "polite": {"code_config": {"name": "my_evaluators.Polite"}},
                    "long": {"code_config": {"name": "my_evaluators.long"}},
                }
            }
        ),
    )
    written(project, PRICE, case("echo", invocation("x")))
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        done = evaluate(project, "orders.test.json")
        assert done.returncode == 1, done.stdout + done.stderr
        assert project.scenario_result("price")["averages"] == {"polite": 1.0, "long": 4.0}
        assert statuses(project) == {"price": "PASSED", "echo": "FAILED"}
        validate(project.results, SCHEMA)
        broken = (
            (project.root / "test_config.json")
            .read_text()
            .replace("my_evaluators.long", "my_evaluators.lang")
        )
        project.write("test_config.json", broken)
        done = evaluate(project, "orders.test.json")
    assert done.returncode == 2
    assert "custom_metrics.long: module 'my_evaluators' has no 'lang'" in done.stderr


def test_metrics_that_are_not_listed_fail_no_case(project: Project) -> None:
    """In ADK-TypeScript's format only `metrics` decide: other metrics with data are for information, judged
    or not, with a note; a rubric of several parts is judged by part."""
    data = {
        "metrics": ["response_match_score", "token_usage_v1", "rubric_based_final_response_quality_v1"],
        "thresholds": {"response_match_score": 0.5, "rubric_based_final_response_quality_v1": 0.6},
        "rubric": "The answer must: (1) name a price, (2) be short. Deduct if: it is rude.",
        "data": [
            {
                "name": "price",
                "query": "How much is it?",
                "expected_tool_calls": ["look_up"],
                "reference_answer": "It is ten euros.",
            }
        ],
    }

    def answer(received: Received) -> Any:
        verdicts = [{"property": n, "reason": "so", "value": "no" if n == 2 else "yes"} for n in (1, 2, 3)]
        return completion({"answers": verdicts})

    project.write("shop.test.json", text(data))
    with ScriptedAgent(shop) as agent, ModelServer(script=answer) as model:
        project.config(agent.endpoint, **model_options(model))
        done = evaluate(project, "shop.test.json", "--verbose", "--reporter", "console", "--reporter", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    validate(project.results, SCHEMA)
    assert "shop.test.json: `metrics` does not list `tool_trajectory_avg_score`: scored for" in done.stderr
    assert "tool_trajectory_avg_score 0.00 [0.00, 0.79] (n 1, for information)" in done.stdout
    found = project.scenario_result("price")
    assert found["information"] == ["token_usage_v1", "tool_trajectory_avg_score"]
    assert found["averages"]["rubric_based_final_response_quality_v1"] == pytest.approx(2 / 3)
    [turn] = found["conversations"][0]["evalMetricResultPerInvocation"]
    statuses = {m["metricName"]: m["evalStatus"] for m in turn["evalMetricResults"]}
    assert statuses["tool_trajectory_avg_score"] == "INFORMATIONAL"
    asked = model.received[0].body["messages"][-1]["content"]
    assert "This must not happen: it is rude" in asked


def test_replies_are_judged_by_a_policy(project: Project) -> None:
    """The judge, not the agent, gets the agent's instructions after the criterion's policy; a missing policy
    file stops the run with file and key."""
    written(project, PRICE)
    project.write("house/rules.md", "Say no prices.\n")
    broken = {"reason": "it says ten euros", "violated": ["policy"], "value": 0}
    with ScriptedAgent(shop) as agent, ModelServer(script=lambda _: completion(broken)) as model:
        told = {"endpoint": agent.endpoint, "instructions_file": "house/rules.md"}
        project.config(agent.endpoint, agent=told, **model_options(model))
        project.write("test_config.json", text(criteria(safety_v1=1.0)))
        done = evaluate(project, "orders.test.json", "--reporter", "console", "--reporter", "json")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "violated: policy: it says ten euros" in done.stdout
        assert "Say no prices." in model.received[-1].body["messages"][-1]["content"]
        assert "Say no prices." not in json.dumps(agent.requests)
        assert "Say no prices." not in json.dumps(project.results)
        safety = {"threshold": 1.0, "policyFile": "house/missing.md"}
        project.write("test_config.json", text(criteria(safety_v1=safety)))
        done = evaluate(project, "orders.test.json")
    assert done.returncode == 2
    assert "test_config.json: criteria.safety_v1.policy_file: " in done.stderr
    assert "house/missing.md does not exist" in done.stderr
