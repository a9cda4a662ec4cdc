"""A simulated user with its own tools on the command line: runs, recordings, reports and endings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonschema import validate
from model_server import Answer, ModelServer, Received, completion, model_keys
from project import Project, interrupt, wait_until

from agentest.testing import ScriptedAgent, tool_call

SCHEMA = Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json"
PHONE = '''
def look(ctx):
    """Look at the phone's screen."""
    return {"roaming": ctx.state.get("roaming", "off")}

def bill():
    raise RuntimeError("no access with sk-secret-of-the-test")

def switch(on: bool, ctx):
    """Switch roaming on or off."""
    ctx.state["roaming"] = "on" if on else "off"
    return "done"

def diagnose(ctx):
    return {"network": "up" if ctx.state.get("roaming") == "on" else "down"}

scenario("abroad", goal="Get the phone to work abroad.", metrics=[], tools={"diagnose": diagnose},
         user_tools={"look": look, "switch": switch, "bill": bill},
         trajectory={"expected": ["diagnose", "diagnose"]})
'''


def acts(**calls: str) -> dict[str, Any]:
    """An answer that uses tools: name → arguments."""
    return {"tool_calls": [{"name": name, "arguments": args} for name, args in calls.items()]}


STEPS = [
    {"message": "No network here.", "should_stop": False},
    acts(look="{}", swich="{}"),
    acts(switch='{"on": true}', bill="{}"),
    {"message": "I switched it on.", "should_stop": False},
    acts(look=""),
    {"message": "", "should_stop": True, "ended_by": "satisfied"},
]


def plays(received: Received) -> Answer:
    """The user's next step, counted by its earlier answers."""
    return completion(STEPS[sum(m["role"] == "assistant" for m in received.body["messages"])])


def agent_of(script: Callable[[dict[str, Any]], Any] | None = None) -> ScriptedAgent:
    """An agent that checks the phone's network in every turn."""

    def answer(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        return tool_call("diagnose") if last["role"] == "user" else f"I see: {last['content']}"

    return ScriptedAgent(script or answer)


def user_calls(project: Project) -> list[tuple[str, Any, int]]:
    (conversation,) = project.scenario_result("abroad")["conversations"]
    return [(each["name"], each["result"], each["turnIndex"]) for each in conversation["userToolCalls"]]


def test_a_run_with_user_tools(project: Project) -> None:
    """Results list the user's calls separately and without secrets, and the transcript shows them before the
    user's message; a recording replays them, with workers, too."""
    project.scenario(PHONE)
    with agent_of() as agent, ModelServer(script=plays) as model:
        project.config(agent.endpoint, conversations_per_scenario=1, **model_keys(model))
        done = project.run("--verbose", "--record")
        asked = len(model.received)
        first = user_calls(project)
        results = project.results
        replayed = project.run("--replay", "--workers", "2")
        assert len(model.received) == asked == len(STEPS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    validate(results, json.loads(SCHEMA.read_text()))
    assert [(name, turn) for name, _, turn in first] == [
        ("look", 1),
        ("swich", 1),
        ("switch", 1),
        ("bill", 1),
        ("look", 2),
    ]
    assert first[-1][1]["roaming"] == "on"
    assert "sk-secret-of-the-test" not in json.dumps(results) + done.stdout
    assert user_calls(project) == first
    (conversation,) = results["scenarios"][0]["conversations"]
    assert [[call["name"] for call in turn["toolCalls"]] for turn in conversation["turns"]] == [
        ["diagnose"]
    ] * 2
    assert [turn["toolCalls"][0]["result"]["network"] for turn in conversation["turns"]] == ["down", "up"]
    rows = [row.strip() for row in done.stdout.splitlines()]
    assert rows.index("user's look()") < rows.index("user   I switched it on.")
    assert rows.index("after the last turn") > rows.index("user   I switched it on.")
    assert not any("look" in json.dumps(request) for request in agent.requests)


def test_without_a_model(project: Project) -> None:
    """Offline the user makes no calls, and a warning lists its tools."""
    project.scenario(PHONE.replace('trajectory={"expected": ["diagnose", "diagnose"]}', ""))
    with agent_of() as agent:
        project.config(agent.endpoint, conversations_per_scenario=1)
        done = project.run("--offline")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the simulated user used none of its tools (look, switch, bill): offline" in done.stdout
    assert "userToolCalls" not in project.scenario_result("abroad")["conversations"][0]
    assert project.run("--list").returncode == 0


def test_effects_missing_without_a_model(project: Project) -> None:
    """Offline, expected effects of the user's calls are errored and do not blame the agent."""
    final = 'final_state={"roaming": "on"}, expect={"never_says": "sorry"}'
    project.scenario(PHONE.replace('trajectory={"expected": ["diagnose", "diagnose"]}', final))
    with agent_of() as agent:
        project.config(agent.endpoint, conversations_per_scenario=1)
        done = project.run("--offline")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "which cannot be judged: the simulated user used none of its tools" in " ".join(
        done.stdout.split()
    )
    assert project.scenario_result("abroad")["status"] == "errored"


def test_the_estimate_of_model_calls(project: Project) -> None:
    """The estimate has eleven calls per message of such a user: ten rounds and the message."""
    project.scenario(PHONE)
    project.config("http://127.0.0.1:1/v1", conversations_per_scenario=2, max_turns=3, model="openai/m")
    done = project.run("--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "66" in done.stdout


def test_ctrl_c_while_a_tool_hangs(project: Project) -> None:
    """Ctrl-C ends a run whose user waits for a tool."""
    project.scenario(
        'import anyio, pathlib\nasync def hangs():\n    pathlib.Path("begun").write_text("")\n'
        "    await anyio.sleep_forever()\n"
        'scenario("abroad", goal="g", metrics=[], user_tools={"look": hangs})'
    )
    use = completion(acts(look="{}"))
    with agent_of() as agent, ModelServer(use) as model:
        project.config(agent.endpoint, conversations_per_scenario=1, **model_keys(model))
        process = project.start()
        wait_until((project.root / "begun").exists)
        status, out, err = interrupt(process)
    assert status == 130, out + err
    assert "Traceback" not in out + err


def test_a_scripted_user_has_no_tools(project: Project) -> None:
    """User tools for a script are an error with file, key and advice."""
    project.scenario('scenario("s", turns=["x"], user_tools={"look": 1})')
    project.config("http://127.0.0.1:1/v1")
    done = project.run()
    assert done.returncode == 2
    assert "a.sim.py" in done.stdout + done.stderr
    assert "user_tools: is for a simulated user" in done.stdout + done.stderr
