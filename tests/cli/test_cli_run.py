"""`agentest run` with a real agent over HTTP: exit status, results.json, annotations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import validate
from project import Project

from agentest.testing import Raw, ScriptedAgent, tool_call

SCHEMA = Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json"

PASSING = """
scenario("books", turns=["Book Friday at nine."], tools={"book": {"id": "B1"}},
         trajectory={"match_mode": "strict", "expected": [call("book", day="friday")]})
"""
SCRIPT = [tool_call("book", day="friday"), "Booked as B1."]


def test_a_passing_run_ends_with_0_and_valid_results(project: Project) -> None:
    """A passing run exits with 0 and writes a results.json that matches its schema."""
    project.scenario(PASSING)
    with ScriptedAgent(SCRIPT) as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert done.returncode == 0, done.stderr
    validate(project.results, json.loads(SCHEMA.read_text()))
    summary = project.results["summary"]
    assert (summary["passed"], summary["passedScenarios"], summary["agentCalls"]) == (True, 1, 2)
    (turn,) = project.scenario_result("books")["conversations"][0]["turns"]
    assert turn["agentMessage"] == "Booked as B1."
    assert turn["toolCalls"][0]["result"] == {"id": "B1"}


def test_a_failing_run_ends_with_1_and_says_where(project: Project) -> None:
    """A failure shows expected and actual, and the scenario's file and line."""
    project.scenario(PASSING)
    with ScriptedAgent([tool_call("book", day="monday"), "Booked."]) as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert done.returncode == 1
    assert "a.sim.py:3" in done.stdout
    assert "day='friday'" in done.stdout
    assert "day='monday'" in done.stdout


def test_an_errored_file_ends_with_2_and_the_others_run(project: Project) -> None:
    """A file that raises at import is one errored entry; the other files run."""
    project.scenario(PASSING)
    project.write("b.sim.py", "import does_not_exist_anywhere\n")
    with ScriptedAgent(SCRIPT) as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert done.returncode == 2
    statuses = {s["name"]: s["status"] for s in project.results["scenarios"]}
    assert statuses == {"books": "passed", "b.sim.py": "errored"}
    assert "does_not_exist_anywhere" in done.stdout


def test_a_failure_outweighs_an_error(project: Project) -> None:
    """With a failed and an errored scenario the exit status is 1."""
    project.scenario('scenario("fails", turns=[{"user_message": "x", "expect": {"contains": "never"}}])')
    project.write("b.sim.py", "raise RuntimeError('broken')\n")
    with ScriptedAgent(["reply"]) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 1


def test_an_offline_run_skips_judged_metrics_and_says_why(project: Project) -> None:
    """Without a model, LLM metrics are skipped and no model is called, whatever keys exist."""
    project.scenario('scenario("talks", goal="Get help.", knowledge=["My name is Ada."])')
    with ScriptedAgent(["What is your name?", "Thanks."]) as agent:
        project.config(agent.endpoint, conversations_per_scenario=1)
        done = project.run(env={"OPENAI_API_KEY": "sk-should-not-be-used"})
    assert done.returncode == 0
    scenario = project.scenario_result("talks")
    messages = [t["userMessage"] for t in scenario["conversations"][0]["turns"]]
    assert messages == ["Get help.", "My name is Ada."]
    assert scenario["skippedMetrics"]["helpfulness"] == "no model configured"
    assert project.results["summary"]["llmCalls"] == 0


def test_a_threshold_on_a_skipped_metric_errors(project: Project) -> None:
    """A threshold that an offline run cannot check makes the scenario errored."""
    project.scenario('scenario("talks", goal="Get help.", thresholds={"helpfulness": 4})')
    with ScriptedAgent(["ok"]) as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert done.returncode == 2
    assert "no model configured" in project.scenario_result("talks")["failures"][0]


def test_github_annotations_point_at_the_scenario(project: Project, tmp_path: Path) -> None:
    """A failed scenario is an error at its `scenario(` call, by its path in the repository."""
    (tmp_path / ".git").mkdir()
    inner = Project(tmp_path / "packages" / "bot")
    inner.write(
        "tests/a.sim.py", "from agentest import scenario\n\n\nscenario(\n    'x',\n    turns=['hi'],\n)\n"
    )
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    with ScriptedAgent([Raw(b"oops", status=500)]) as agent:
        inner.config(agent.endpoint)
        done = inner.run("--reporter", "github-actions", env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert done.returncode == 1
    assert "::error file=packages/bot/tests/a.sim.py,line=4,title=" in done.stdout
    assert summary.read_text().startswith("before\n")
    assert "oops" in summary.read_text()


def test_a_refused_scenario_is_located_once(project: Project) -> None:
    """No message about it has the path of this machine, and no line has the location twice."""
    project.scenario('scenario("wrong", turns=["hi"], trajectory={"expected": "a"})')
    project.config("http://127.0.0.1:9/v1")
    listed = project.run("--list").stderr
    problem = "scenario 'wrong': trajectory.expected: expected a list of tool calls, found a str"
    [line] = [each for each in listed.splitlines() if problem in each]
    assert line.count(".sim.py:") == 1
    annotated = project.run("--reporter", "github-actions").stdout
    assert problem in annotated
    assert str(project.root.resolve()) not in listed + annotated


def test_filters_select_by_substring_whatever_the_case(project: Project) -> None:
    """--scenario, --file and --tag select; --list shows the selection without running it."""
    project.scenario('scenario("Books a table", turns=["x"], tags=["smoke"])\nscenario("Pays", turns=["x"])')
    project.scenario('scenario("Asks", turns=["x"])', name="more/b.sim.py")
    project.config("http://127.0.0.1:9/never-asked")
    assert "Books a table" in project.run("--list").stdout
    assert project.run("--list", "--scenario", "BOOKS").stdout.count("\n") == 1
    assert "Asks" in project.run("--list", "--file", "MORE").stdout
    assert project.run("--list", "--tag", "smoke").stdout.count("\n") == 1
    nothing = project.run("--list", "--tag", "nosuch")
    assert (nothing.returncode, nothing.stdout) == (2, "")


def test_conversations_and_concurrency_can_be_set(project: Project) -> None:
    """--conversations also applies to scripts, whose conversations have different ids."""
    project.scenario('scenario("hello", turns=["hi"])')
    with ScriptedAgent(["hello"]) as agent:
        project.config(agent.endpoint)
        project.run("--conversations", "4", "--concurrency", "2")
    ids = [c["conversationId"] for c in project.scenario_result("hello")["conversations"]]
    assert len(set(ids)) == 4


def test_fail_fast_stops_at_the_first_failure(project: Project) -> None:
    """After a failure nothing else starts, and what did not run is not passed."""
    many = "\n".join(f'scenario("s{i}", turns=["x"])' for i in range(30))
    project.scenario(many)
    with ScriptedAgent([Raw(b"{}", status=500)]) as agent:
        project.config(agent.endpoint)
        done = project.run("--fail-fast", "--concurrency", "1")
    assert done.returncode == 1
    assert len(agent.requests) < 5
    assert project.results["summary"]["passedScenarios"] == 0
    assert project.results["summary"]["skippedScenarios"] > 20


def test_compared_agents_run_side_by_side(project: Project) -> None:
    """`compare` runs every scenario with each agent; sequences are not shared."""
    project.scenario(
        'scenario("s", turns=["x"], tools={"t": sequence("first", "second")},'
        ' trajectory={"match_mode": "strict", "expected": ["t"]})'
    )

    def answer(body: dict) -> object:
        return tool_call("t") if body["messages"][-1]["role"] == "user" else f"done by {body['variant']}"

    with ScriptedAgent(answer) as agent:
        project.write(
            "agentest.config.yaml",
            f"agent: {{name: base, endpoint: '{agent.endpoint}', body: {{variant: a, x: 1}}}}\n"
            "compare: [{name: other, body: {variant: b}}]\nreporters: [json, console]\n",
        )
        done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    results = project.results
    validate(results, json.loads(SCHEMA.read_text()))
    assert results["mode"] == "comparison"
    (scenario,) = results["scenarios"]
    replies = {
        a["agent"]: (
            a["conversations"][0]["turns"][0]["agentMessage"],
            a["conversations"][0]["turns"][0]["toolCalls"][0]["result"],
        )
        for a in scenario["agents"]
    }
    assert replies == {"base": ("done by a", "first"), "other": ("done by b", "first")}
    assert {body["x"] for body in agent.requests} == {1}


def test_a_named_agent_can_be_chosen(project: Project) -> None:
    """`agent="name"` in a scenario and --agent on the command line select from `agents`."""
    project.scenario('scenario("mine", turns=["x"], agent="second")\nscenario("default", turns=["x"])')
    with ScriptedAgent(["one"]) as first, ScriptedAgent(["two"]) as second:
        project.config(first.endpoint, agents={"second": {"endpoint": second.endpoint}})
        project.run()
        assert (len(first.requests), len(second.requests)) == (1, 1)
        project.run("--agent", "second")
        assert (len(first.requests), len(second.requests)) == (1, 3)


def test_a_python_configuration_can_hold_a_handler(project: Project) -> None:
    """A custom agent replies in Python and uses the scenario's mocks."""
    project.write(
        "agentest.config.py",
        "async def handler(messages, ctx):\n"
        "    found = await ctx.resolve_tool('look', {'q': messages[-1]['content']})\n"
        "    return f\"I found {found['n']}.\"\n"
        "config = {'agent': {'type': 'custom', 'handler': handler}, 'reporters': ['json']}\n",
    )
    project.scenario(
        'scenario("s", turns=[{"user_message": "x", "expect": {"contains": "I found 3."}}],'
        ' tools={"look": {"n": 3}}, trajectory={"match_mode": "strict", "expected": [call("look", q="x")]})'
    )
    assert project.run().returncode == 0


def test_transcripts_are_shown_on_request(project: Project) -> None:
    """--verbose prints the messages."""
    project.scenario('scenario("s", turns=["a question nobody else asks"])')
    with ScriptedAgent(["an answer nobody else gives"]) as agent:
        project.config(agent.endpoint)
        assert "an answer nobody else gives" not in project.run().stdout
        assert "an answer nobody else gives" in project.run("--verbose").stdout


def test_another_working_directory(project: Project, tmp_path: Path) -> None:
    """--cwd runs as if started there; python -m agentest is the same program."""
    inner = Project(tmp_path / "inner")
    inner.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["y"]) as agent:
        inner.config(agent.endpoint)
        assert project.run("--cwd", "inner").returncode == 0
    assert inner.results["summary"]["passed"] is True


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"]])
def test_help_and_version(project: Project, arguments: list[str]) -> None:
    """Help and version work without a project."""
    done = project.agentest(*arguments)
    assert done.returncode == 0
    assert "agentest" in done.stdout


def test_a_run_that_cannot_begin_replaces_nothing(project: Project) -> None:
    """It keeps the latest results and leaves no folder; output_dir is checked beforehand."""
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["y"]) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
    assert project.run().returncode == 2  # nobody listens any more
    assert (project.root / ".agentest" / "results.json").exists()
    assert len(list((project.root / ".agentest" / "runs").iterdir())) == 1
    project.write("file", "")
    with ScriptedAgent(["y"]) as agent:
        project.config(agent.endpoint, output_dir="file/inside")
        done = project.run()
        assert (done.returncode, len(agent.requests)) == (2, 0)
    assert "output_dir" in done.stderr


def test_files_without_scenarios_and_reused_servers_are_mentioned(project: Project) -> None:
    """Notes report an empty scenario file and a reused server; names cannot forge lines."""
    project.scenario('scenario("a\\n::error::forged", turns=["x"], expect={"says": "y"})')
    project.write("empty.sim.py", "x = 1\n")
    with ScriptedAgent(["y"]) as agent:
        project.write(
            "agentest.config.yaml",
            f"agent:\n  endpoint: {agent.endpoint}\n"
            f"  server: {{command: 'exit 3', ready: '{agent.endpoint}'}}\n",
        )
        done = project.run()
        listed = project.run("--list").stdout
    assert done.returncode == 0
    assert "empty.sim.py defines no scenario" in done.stderr
    assert "was running already" in done.stderr
    assert not any(line.startswith("::") for line in (done.stdout + listed).splitlines())


def test_a_dry_run_needs_no_key(project: Project) -> None:
    """--dry-run and --list work without the model's key."""
    project.scenario('scenario("s", goal="g")')
    project.config("http://127.0.0.1:9/", model="openai/gpt-5-mini")
    assert project.run("--dry-run").returncode == 0
    assert project.run("--list").returncode == 0
    assert "OPENAI_API_KEY" in project.run().stderr


def test_scenario_files_with_names_that_are_not_utf8(project: Project) -> None:
    """They run and are listed, reported and annotated like others."""
    folder = project.root / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    text = 'from agentest import scenario\nscenario("s", turns=["x"], trajectory={"expected": ["t"]})\n'
    (folder / os.fsdecode(b"na\xefve.sim.py")).write_text(text)
    (folder / os.fsdecode(b"broken \xff.sim.py")).write_text("1 / 0\n")
    (folder / os.fsdecode(b"empty \xff.sim.py")).write_text("")
    with ScriptedAgent(["y"]) as agent:
        project.config(agent.endpoint, reporters=["console", "json", "github-actions"])
        done = project.run(env={"GITHUB_STEP_SUMMARY": str(project.root / "summary.md")})
        listed = project.run("--list")
        told = project.agentest("judge", ".agentest/results.json")
    assert done.returncode == told.returncode == 1, done.stdout + done.stderr + told.stderr
    assert "Traceback" not in done.stderr + listed.stderr + told.stderr
    shown = "caf\\xe9/na\\xefve.sim.py"
    assert f"{shown}:2" in listed.stdout
    assert f"{shown}:2" in done.stdout
    assert f"::error file={shown},line=2" in done.stdout
    assert project.scenario_result("s")["file"] == shown
    assert "caf\\xe9/empty \\xff.sim.py defines no scenario" in done.stderr
    assert "caf\\xe9/broken \\xff.sim.py" in listed.stderr


def test_a_nested_configuration_is_another_run(project: Project) -> None:
    """A folder with its own configuration is skipped with a note, and runs from inside."""
    project.scenario('scenario("outer", turns=["x"])')
    project.scenario('scenario("inner", turns=["x"])', name="nested/b.sim.py")
    with ScriptedAgent(["y"]) as agent:
        config = project.config(agent.endpoint)
        (project.root / "nested" / config.name).write_bytes(config.read_bytes())
        done = project.run()
        assert [s["name"] for s in project.results["scenarios"]] == ["outer"]
        assert "left out, as there is another configuration: nested; agentest run --cwd nested" in done.stderr
        inside = project.run("--cwd", "nested", "--list")
    assert "inner" in inside.stdout
    assert "left out" not in inside.stderr
