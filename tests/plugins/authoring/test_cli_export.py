"""`agentest export` and `agentest coverage` from outside, and the example that the guide explains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from model_server import Answer, ModelServer, Received, completion, model_keys
from project import Project, free_port

from agentest.plugins.adk.formats.criteria import read_criteria
from agentest.plugins.adk.formats.eval_set import EVAL_SET
from agentest.testing import ScriptedAgent, tool_call

EXAMPLE = Path(__file__).parents[3] / "examples" / "support_agent"
RESULTS = ".agentest/results.json"


def test_conversations_become_cases_and_scenarios(project: Project) -> None:
    """A run is exported in each format, and the exported scenario passes like the original."""
    project.scenario(
        'scenario("books", turns=["Friday"], tools={"book": sequence(OSError("down"), {"id": "B1"})})'
    )
    with ScriptedAgent(
        [tool_call("book", day="fri"), tool_call("book", day="fri"), "Booked as B1."]
    ) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
        done = project.agentest("export", RESULTS, "--to", "scenario", "--output", "exported.sim.py")
        assert (done.returncode, done.stdout) == (0, "exported.sim.py: 1 scenario\n"), done.stderr
        again = project.run()
    assert again.returncode == 0, again.stdout
    assert "2 passed" in again.stdout
    done = project.agentest("export", RESULTS, "--to", "evalset", "--scenario", "BOOKS (books-1)")
    (case,) = EVAL_SET.validate_json(done.stdout).eval_cases
    assert case.conversation is not None
    assert case.eval_id == "books-books-1-1"


ANSWERS = [
    "sunny",
    {"error": "none"},
    {"sequence": [1]},
    {"exactly": 1},
    '{"a": 1}',
    "",
    {"result": "ok"},
    {"result": {"deep": 1}},
    [1, "b"],
    7,
    None,
    {"a": 1},
]


@pytest.mark.parametrize("form", ["evalset", "scenario", "yaml"])
def test_what_tools_answered_is_replayed_to_the_letter(project: Project, form: str) -> None:
    """The agent of an exported case gets the very texts that it got in the run that was exported."""
    project.scenario(f'scenario("asks", turns=["x"], tools={{"t": sequence(*{ANSWERS!r})}})')
    told: list[list[str]] = []

    def asks(body: dict[str, Any]) -> Any:
        heard = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        if len(heard) < len(ANSWERS):
            return tool_call("t", n=len(heard))
        told.append(heard)
        return "done"

    outputs = {
        "evalset": "exported.evalset.json",
        "scenario": "exported.sim.py",
        "yaml": "exported.sim.yaml",
    }
    output = outputs[form]
    with ScriptedAgent(asks) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
        done = project.agentest("export", RESULTS, "--to", form, "--output", output)
        assert done.returncode == 0, done.stderr
        command = ["eval", output] if form == "evalset" else ["run", "--file", "exported"]
        again = project.agentest(*command)
    assert again.returncode == 0, again.stdout + again.stderr
    first, second = told
    assert first[0] == "sunny"
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json", "--to", "evalset"], "cannot be read"),
        (["a.sim.py", "--to", "evalset"], "is not JSON"),
        ([RESULTS, "--to", "evalset", "--conversation", "boks-1"], "did you mean `books-1`?"),
        ([RESULTS, "--to", "evalset", "--scenario", "xyz"], "has no scenario named 'xyz'"),
        ([RESULTS, "--to", "evalset", "--output", "a.sim.py"], "a.sim.py exists already"),
        ([RESULTS, "--to", "toml"], "'toml' is not one of"),
        ([RESULTS], "Missing option '--to'"),
    ],
)
def test_wrong_exports_are_refused(project: Project, arguments: list[str], message: str) -> None:
    """One message, exit status 2, and no file is touched."""
    text = 'scenario("books", turns=["Friday"])'
    source = project.scenario(text).read_text()
    with ScriptedAgent(["Fine."]) as agent:
        project.config(agent.endpoint)
        project.run()
    done = project.agentest("export", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert (project.root / "a.sim.py").read_text() == source


def test_coverage_fails_below_a_share(project: Project) -> None:
    """Before a run it counts cells, after it tools too; `--fail-under` decides the exit status."""
    project.scenario(
        'scenario("a", turns=["x"], tags=["task:t", "path:p"], tools={"book": 1, "cancel": 2})\n'
        'scenario("b", turns=["x"], skip="later", tags=["task:t", "path:q"])'
    )
    with ScriptedAgent([tool_call("book"), "Fine."]) as agent:
        project.config(agent.endpoint)
        before = project.agentest("coverage", "--fail-under", "100")
        assert before.returncode == 0, before.stderr
        assert "1 scenario skipped" in before.stdout
        project.run()
    after = project.agentest("coverage", RESULTS, "--fail-under", "51", "--format", "json")
    assert after.returncode == 1
    assert "tools called: 1 of 2 (50 %)" in after.stderr
    assert json.loads(after.stdout)["neverCalled"] == ["cancel"]
    assert project.agentest("coverage", "--fail-under", "50").returncode == 0


def test_coverage_of_what_cannot_be_loaded(project: Project) -> None:
    """A broken file, results of another form, filters that fit nothing: exit status 2, whatever the share."""
    project.scenario('scenario("a", turns=["x"], tags=["task:t", "path:p"])')
    project.config("http://127.0.0.1:9/")
    project.write("r.json", "{}")
    for arguments, message in (
        (["--results", "r.json"], "not a results.json"),
        (["--results", "none.json"], "cannot be read"),
        (["--scenario", "zzz"], "no scenario matches --scenario 'zzz'"),
        (["--fail-under", "101"], "101"),
    ):
        done = project.agentest("coverage", *arguments)
        assert done.returncode == 2, arguments
        assert message in done.stderr
    project.write("broken.sim.py", "import no_such_module")
    done = project.agentest("coverage", "--fail-under", "100")
    assert done.returncode == 2
    assert "no_such_module" in done.stderr
    assert "1 of 1 cell" in done.stdout


@pytest.fixture
def example(tmp_path: Path) -> Project:
    """A copy of the example whose agent has its own port."""
    root = tmp_path / "support_agent"
    shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns(".agentest", "__pycache__"))
    config = root / "agentest.config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("8727", str(free_port())), encoding="utf-8")
    return Project(root)


def test_the_example_of_the_guide(example: Project) -> None:
    """Its scenarios pass against its agent, all its tools are called, and its exported scenarios pass too."""
    done = example.run()
    assert done.returncode == 0, done.stdout + done.stderr
    measured = example.agentest("coverage", "--fail-under", "60", "--format", "json")
    assert measured.returncode == 0, measured.stderr
    found = json.loads(measured.stdout)
    assert found["untagged"] == []
    assert {s["status"] for cell in found["cells"] for s in cell["scenarios"]} == {"passed"}
    exported = example.agentest("export", RESULTS, "--to", "scenario", "--output", "exported.sim.py")
    assert exported.returncode == 0, exported.stderr
    again = example.run("--file", "exported")
    assert again.returncode == 0, again.stdout


def test_the_evaluation_set_of_the_guide(example: Project) -> None:
    """It passes without a model; with the rubrics, which need one, it is errored and not passed."""
    done = example.agentest("eval", "evals")
    assert done.returncode == 0, done.stdout + done.stderr
    rubrics = "evals/refund_rubrics.json"
    assert example.agentest("eval", "evals", "--config-file-path", rubrics).returncode == 2
    named = {c.metric for c in read_criteria(example.root / rubrics).criteria if c.rubrics}
    assert named == {"rubric_based_final_response_quality_v1", "rubric_based_tool_use_quality_v1"}


def test_the_guide_shows_the_file_that_is_there() -> None:
    """The criteria in the guide are the example's."""
    page = EXAMPLE.parent.parent / "docs" / "testing-an-adk-agent.md"
    shown = page.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    assert json.loads(shown) == json.loads((EXAMPLE / "evals" / "refund_rubrics.json").read_text("utf-8"))


def test_a_journal_serves_as_results(project: Project) -> None:
    """`export` and `coverage` take the journal of a run that left no results."""
    project.scenario('scenario("s", turns=["x"], tools={"t": 1}, tags=["task:a", "path:b"])')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
    (project.root / ".agentest" / "results.json").unlink(missing_ok=True)
    exported = project.agentest("export", ".agentest/journal.jsonl", "--to", "scenario")
    assert 'scenario(\n    "s' in exported.stdout, exported.stdout + exported.stderr
    covered = project.agentest("coverage", "--results", ".agentest/journal.jsonl")
    assert "1 conversation in .agentest/journal.jsonl" in covered.stdout, covered.stdout + covered.stderr


def test_calls_of_the_simulated_user_are_left_out(project: Project) -> None:
    """A script has no user tools."""
    steps = [
        {"message": "No network here.", "should_stop": False},
        {"tool_calls": [{"name": "look", "arguments": "{}"}]},
        {"message": "", "should_stop": True, "ended_by": "satisfied"},
    ]

    def plays(received: Received) -> Answer:
        return completion(steps[sum(m["role"] == "assistant" for m in received.body["messages"])])

    project.scenario('scenario("abroad", goal="g", metrics=[], user_tools={"look": lambda: "off"})')
    with ScriptedAgent(["I see."]) as agent, ModelServer(script=plays) as model:
        project.config(agent.endpoint, conversations_per_scenario=1, **model_keys(model))
        done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    exported = project.agentest("export", "latest", "--to", "scenario")
    assert exported.returncode == 0, exported.stderr
    assert "abroad: 1 call of the simulated user's own tools left out: a script has none" in exported.stderr
    assert "look" not in exported.stdout


def test_criteria_are_left_out(project: Project) -> None:
    project.scenario('scenario("s", goal="g", turns=["x"], criteria=["Never asks for the card number"])')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        project.run("--offline")
    exported = project.agentest("export", "latest", "--to", "scenario")
    assert "s: its 1 criterion and any expected outcome are left out" in exported.stderr
