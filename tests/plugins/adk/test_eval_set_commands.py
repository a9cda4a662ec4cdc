"""`agentest eval_set create` and `add_eval_case`: sets as google-adk makes and reads them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from evalset_documents import case, eval_set, invocation, text
from project import Project
from timeless import timeless

from agentest.plugins.adk.command import evaluation_run
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.adk.plan import EvalRequest
from agentest.plugins.adk.set_commands import SetLocation, add_cases, create_set
from agentest.runner.plan import Options
from agentest.runner.prepare import RunRequest
from agentest.support.errors import UsageError
from agentest.testing import ScriptedAgent

ADK = os.environ.get("AGENTEST_ADK_PYTHON", "")
RETURN = {
    "starting_prompt": "I need to return a product.",
    "conversation_plan": "Provide order number ORD-999. Confirm.",
}
BEHAVIOR = {"name": "n", "description": "e", "behavior_instructions": ["a"], "violation_rubrics": ["v"]}
OWN = {"id": "me", "description": "d", "behaviors": [BEHAVIOR]}
SCENARIOS = [
    RETURN,
    {"starting_prompt": "p", "conversation_plan": "q", "user_persona": OWN},
    {"startingPrompt": "Café", "conversationPlan": "Say “hi”.", "userPersona": "EXPERT"},
]
IDS_OF_ADK = ["bc6e365c", "3796bbd4"]
"""What google-adk 2.13 calls the first two."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path)
    project.write("my_agent/agent.py", "root_agent = None\n")
    project.write("scenarios.json", text({"scenarios": SCENARIOS}))
    project.write("session.json", text({"user_id": "u", "state": {"tier": 1}}))
    return project


def test_a_set_is_made_filled_and_run(project: Project) -> None:
    """Both commands write the agent's folder, in either spelling; `eval` takes the set by its id."""
    made = project.agentest("eval_set", "create", "my_agent", "returns")
    assert made.returncode == 0, made.stderr
    assert "my_agent/returns.evalset.json: evaluation set 'returns' created" in made.stdout
    command = ("add_eval_case", "my_agent", "returns", "--scenarios_file", "scenarios.json")
    added = project.agentest("eval_set", *command, "--session_input_file", "session.json")
    assert added.stdout.count(" added\n") == 3
    again = project.agentest("eval-set", "add-eval-case", *command[1:3], "--scenarios-file", "scenarios.json")
    assert (again.returncode, again.stdout.count("exists already, left out\n")) == (0, 3)
    cases = json.loads((project.root / "my_agent/returns.evalset.json").read_text())["eval_cases"]
    assert [one["eval_id"] for one in cases][:2] == IDS_OF_ADK
    assert cases[2]["conversation_scenario"]["user_persona"] == "EXPERT"
    session = {"app_name": "my_agent", "user_id": "u", "state": {"tier": 1}}
    assert [one["session_input"] for one in cases] == [session] * 3
    with ScriptedAgent(["Done."]) as agent:
        project.config(agent.endpoint)
        run = project.agentest("eval", "agent", "my_agent/returns.evalset.json:bc6e365c")
    assert "not evaluated" in run.stdout
    assert project.agentest("eval_set", "create", "my_agent", "returns").returncode == 2


def test_a_set_keeps_its_content(project: Project) -> None:
    """A set keeps its content, spelling and indentation; the same scenario is added once."""
    kept = {"evalSetId": "mine", "evalCases": [case("one", invocation("x", "y"))], "_comment": "by hand"}
    file = project.write("mine.evalset.json", json.dumps(kept, indent=4))
    project.write("twice.json", text({"scenarios": [RETURN, RETURN]}))
    place = SetLocation("http://localhost:8000", "mine")
    assert add_cases(place, Path("twice.json"), None, 7.0) == [
        (IDS_OF_ADK[0], True),
        (IDS_OF_ADK[0], False),
    ]
    new = {"eval_id": IDS_OF_ADK[0], "conversation_scenario": RETURN, "creation_timestamp": 7.0}
    assert file.read_text() == json.dumps({**kept, "evalCases": [*kept["evalCases"], new]}, indent=4)
    assert len(read_eval_set(file).eval_set.eval_cases) == 2


@pytest.mark.parametrize(
    ("agent", "set_id", "told"),
    [
        ("my_agent", "return-flow", "such as return_flow"),
        ("my_agent", "../x", "such as x"),
        ("./no_agent", "returns", "./no_agent: the agent's folder does not exist"),
        ("", "returns", "'' is not an agent; name its folder"),
        (__file__, "returns", "is not an agent; name its folder"),
        ("my_agent", "x" * 250, "has 250 letters, too many for a file"),
    ],
)
@pytest.mark.usefixtures("project")
def test_places_that_are_none_are_refused(agent: str, set_id: str, told: str) -> None:
    """An id that google-adk refuses, and a folder that is not there, are refused."""
    with pytest.raises(UsageError, match=told):
        create_set(SetLocation(agent, set_id), 0.0)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no set": (
        {},
        "does not exist; agentest eval_set create my_agent returns makes it",
    ),
    "no cases": ({"my_agent/returns.evalset.json": []}, "in another form than an EvalSet"),
    "a bad case": (
        {"my_agent/returns.evalset.json": eval_set("a", {"eval_id": "x"})},
        "exactly one of conversation",
    ),
    "no scenarios": (
        {"scenarios.json": eval_set("a", case("b", invocation("c")))},
        "expected conversation",
    ),
    "a bad scenario": ({"scenarios.json": {"scenarios": [{"starting_prompt": "a"}]}}, "conversation_plan"),
    "no session": ({"session.json": []}, "expected an object"),
    "no state": ({"session.json": {"tier": 1}}, "values of the session go under `state`"),
}


@pytest.mark.parametrize("bad", BAD)
def test_files_that_are_wrong_are_refused(project: Project, bad: str) -> None:
    """The error about a set, scenarios or session names the file, and the set is unchanged."""
    files, told = BAD[bad]
    file = project.root / "my_agent/returns.evalset.json"
    if bad != "no set":
        create_set(SetLocation("my_agent", "returns"), 0.0)
    for name, document in files.items():
        project.write(name, text(document))
    before = file.read_bytes() if file.exists() else None
    with pytest.raises(UsageError, match=told):
        add_cases(SetLocation("my_agent", "returns"), Path("scenarios.json"), Path("session.json"), 0.0)
    assert (file.read_bytes() if file.exists() else None) == before


@pytest.mark.adk
@pytest.mark.skipif(not ADK, reason="AGENTEST_ADK_PYTHON names no environment with google-adk")
def test_google_adk_reads_what_we_wrote(project: Project) -> None:
    """google-adk reads a set that was made here, and has the same ids for the same scenarios."""
    place = SetLocation("my_agent", "returns")
    create_set(place, 0.0)
    add_cases(place, Path("scenarios.json"), Path("session.json"), 0.0)
    command = "-m google.adk.cli eval_set add_eval_case my_agent returns --scenarios_file scenarios.json"
    session = project.write("own.json", text({"app_name": "my_agent", "user_id": "u"}))
    done = subprocess.run(
        [ADK, *command.split(), "--session_input_file", session], capture_output=True, text=True, check=True
    )
    assert [f"'{one}' already exists" in done.stdout for one in IDS_OF_ADK] == [True, True]
    assert len(read_eval_set(place.file).eval_set.eval_cases) == 4


def test_the_command_that_resumes_evaluation_sets() -> None:
    """It has the sets, the agent and the number of runs, which are stored nowhere else."""
    words = ("my sets", "a.test.json:x")
    evaluation = EvalRequest(RunRequest(Path(), options=Options(agent="b")), words, num_runs=5)
    kind = evaluation_run(evaluation, words)
    assert kind.resumed_by == "agentest eval 'my sets' a.test.json:x --agent=b --num-runs=5 --resume"
    plain = evaluation_run(EvalRequest(RunRequest(Path()), ("sets",)), ("sets",))
    assert plain.resumed_by == "agentest eval sets --resume"


LOCAL = "agentest: --engine local uses only this process: remove --workers 4\n"
NOT_RAY = "agentest: --ray-address names a cluster for --engine ray: add --engine ray\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [("--engine local --workers 4", LOCAL), ("--ray-address auto --workers 2", NOT_RAY)],
)
def test_conflicting_engine_options_are_refused(project: Project, options: str, message: str) -> None:
    """As by `run`: nothing is evaluated."""
    project.config("http://127.0.0.1:9/")
    done = project.agentest("eval", "set.test.json", *options.split())
    assert (done.returncode, done.stderr) == (2, message)
    assert not (project.root / ".agentest").exists()


def test_evaluation_sets_are_spread_over_workers(project: Project) -> None:
    """`agentest eval --workers` gives the results of one process."""
    cases = [case(f"c{n}", invocation(f"say {n}", f"say {n}")) for n in range(4)]
    project.write("orders.test.json", text(eval_set("orders", *cases)))
    with ScriptedAgent(lambda body: body["messages"][-1]["content"]) as agent:
        project.config(agent.endpoint)
        found = []
        for count in ("1", "3"):
            done = project.agentest("eval", "orders.test.json", "--workers", count, "--num-runs", "2")
            assert done.returncode == 0, done.stdout + done.stderr
            found.append(timeless(project.results))
    assert found[0] == found[1]
