"""`agentest doctor` on the command line: a healthy project, and every problem."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_server import Answer, ModelServer, Received, completion, error
from project import DEADLINE_S, Project, free_port, wait_until
from wire import closed_port

from agentest.plugin import Plugin, PluginRegistry
from agentest.plugins.authoring.doctor import Check, Examination, good, run_checks
from agentest.runner.prepare import RunRequest
from agentest.support.interrupts import run_event_loop
from agentest.testing import ScriptedAgent

KEY = "sk-a-key-of-the-test-0123456789"


def examined(
    project: Project, *arguments: str, status: int, env: dict[str, str] | None = None
) -> tuple[dict[str, str], str]:
    """The mark of each check by its name, and all that was printed in one row, which no key is a part of."""
    done: subprocess.CompletedProcess[str] = project.agentest("doctor", *arguments, env=env)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr
    marks = {name: mark for mark, name in re.findall(r"^([✓✗–]) ([^:]+):", done.stdout, re.M)}
    return marks, " ".join(done.stdout.split())


def agent(received: Any) -> Answer:
    """Chat completions that check their input."""
    if "messages" not in received.body:
        return error(400, "Missing required parameter: 'messages'.", param="messages")
    return completion("Hello.")


def greeting(project: Project, **more: str) -> None:
    options = "".join(f", {name}={value}" for name, value in more.items())
    project.scenario(f'scenario("greets", turns=["hello"]{options})\n')


def test_a_healthy_project_has_no_problems(project: Project) -> None:
    """Every line is good, the agent's server is started and stopped, and nothing is left behind."""
    assert project.agentest("init", "--demo").returncode == 0
    config = project.root / "agentest.config.yaml"
    text = config.read_text(encoding="utf-8")
    port = re.findall(r":(\d+)/health", text)[0]
    config.write_text(text.replace(port, str(free_port())), encoding="utf-8")
    before = sorted(project.root.rglob("*"))
    marks, said = examined(project, status=0)
    bad = [name for name, mark in marks.items() if mark == "✗"]
    assert not bad
    assert marks["agent demo"] == marks["protocol demo"] == "✓"
    assert marks["tool calls demo"] == "–", "no call was handed over yet"
    assert marks["model"] == "–"
    assert "2 scenarios in 1 file" in said
    assert "its `server` was started" in said
    assert said.endswith("Ready: agentest run")
    assert [path for path in sorted(project.root.rglob("*")) if "__pycache__" not in str(path)] == before


def test_models_answer_in_the_form_that_they_know(project: Project) -> None:
    """One small question checks key, format and cost, also of separate judge models."""

    def model(received: Any) -> Answer:
        if received.form == "json_schema":
            return error(400, "response_format json_schema is not supported")
        return completion({"reachable": True})

    with ModelServer(script=agent) as chat, ModelServer(script=model) as served:
        project.config(f"{chat.base_url}/chat/completions", judge={"model": "groq/other"})
        greeting(project)
        env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": served.base_url}
        marks, said = examined(project, "--model", "openai/gpt-4o-mini", status=2, env=env)
        assert "OPENAI_API_KEY is set" in said
        assert "openai/gpt-4o-mini (user) answers in JSON mode" in said
        assert "(2 calls, 15 tokens, 0.00000 USD)" in said
        assert "model groq/other needs a key: set the environment variable GROQ_API_KEY" in said
        asked = len(served.received)
        marks, said = examined(project, "--model", "openai/gpt-4o-mini", "--offline", status=0, env=env)
        assert marks["model"] == "–"
        assert len(served.received) == asked


def test_a_rough_price_where_all_models_answer(project: Project) -> None:
    """The calls that there can be at most, and what they would cost."""
    with (
        ModelServer(script=agent) as chat,
        ModelServer(completion({"reachable": True})) as served,
    ):
        project.config(f"{chat.base_url}/chat/completions", model="openai/gpt-4o-mini", strict=True)
        project.scenario('scenario("talks", goal="Book.")\n')
        env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": served.base_url}
        marks, said = examined(project, status=0, env=env)
        project.run("--reporter", "json", env=env)
        _, later = examined(project, status=0, env=env)
    # As long as the machine took, and yesterday where midnight has passed.
    expected = r"✓ price: about \d+ s.*, by the run of (to|yester)day.* At most 24 calls of the user's"
    assert re.search(expected, later)
    assert "OPENAI_API_KEY is set" in said
    assert "openai/gpt-4o-mini (user and judge) answers with a JSON Schema" in said
    assert marks["price"] == "✓"
    assert re.search(r"at most 24 calls of the user's model and 31 of the judge's: about 0\.\d\d USD", said)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (completion("I would rather not say."), "gave no usable answer"),
        (error(401, "this key is unknown"), "this key is unknown"),
        (Answer(b"<html>", 200), "not a chat completion"),
    ],
    ids=["nonsense", "refused", "page"],
)
@pytest.mark.slow
def test_a_model_without_a_valid_answer_is_a_problem(project: Project, answer: Answer, said: str) -> None:
    """The model's actual response is printed."""
    with ModelServer(script=agent) as chat, ModelServer(answer) as served:
        options = {"base_url": served.base_url, "api_key": KEY}
        keys = {"model": "small", "provider": "openai-compatible", "provider_options": options}
        project.config(f"{chat.base_url}/chat/completions", **keys)
        greeting(project)
        marks, told = examined(project, status=2)
    assert marks["model"] == "✗"
    assert said in told
    assert "provider_options.api_key is set" in told


def test_an_agent_of_another_type(project: Project) -> None:
    """Doctor detects the endpoint's protocol, says what to write, and reports unreachable mocks."""
    with ModelServer(script=agent) as chat:
        url = f"{chat.base_url}/chat/completions"
        project.write(
            "agentest.config.yaml",
            f"agent: {{type: ag_ui, endpoint: {url}}}\nagents:\n"
            f"  shop: {{type: http, endpoint: {chat.origin}/ask, body: {{q: '{{{{message}}}}'}}}}\n",
        )
        project.scenario('scenario("books", agent="shop", turns=["hi"], tools={"book": 1})\n')
        marks, said = examined(project, status=2)
    assert marks["protocol"] == "✗"
    assert f"Write: agent: {{type: chat_completions, endpoint: {url}}}" in " ".join(re.split(r"\s+", said))
    assert marks["tool calls shop"] == "✗"
    assert "the mocks of scenario 'books'" in said


@pytest.mark.parametrize(
    ("status", "said"),
    [(404, "Is the path of `endpoint` right?"), (401, "are the credentials right?")],
)
def test_an_endpoint_that_refuses_requests_is_a_problem(project: Project, status: int, said: str) -> None:
    """A path that does not exist, and rejected credentials, are problems."""
    with ModelServer(Answer(b"{}", status)) as served:
        project.config(f"{served.base_url}/chat/completions")
        greeting(project)
        marks, told = examined(project, status=2)
    assert (marks["agent"], marks["protocol"]) == ("✓", "✗")
    assert said in told


@pytest.mark.slow
def test_agents_in_this_process_and_programs(project: Project) -> None:
    """Missing modules and programs are reported per agent; `--agent` checks one."""
    project.write(
        "agentest.config.py",
        "async def bot(messages, ctx):\n    return 'hi'\n\n"
        "config = {'agent': {'type': 'custom', 'handler': bot}, 'agents': {\n"
        "    'lost': {'type': 'custom', 'handler': 'nowhere.module:bot'},\n"
        "    'gone': {'type': 'command', 'command': ['no-such-program']},\n"
        "}}\n",
    )
    greeting(project)
    marks, said = examined(project, status=2)
    assert (marks["agent"], marks["agent lost"], marks["agent gone"]) == ("✓", "✗", "✗")
    assert said.count("✗") == 2
    assert marks["tool calls gone"] == "–"
    assert "No module named 'nowhere'" in said
    assert "found no program 'no-such-program'" in said
    project.write("b.sim.py", 'from agentest import scenario\nscenario("b", turns=["a"])\n')
    _, said = examined(project, "--agent", "agent", status=0, env={"PYTHONIOENCODING": "ascii"})
    assert said.startswith("ok configuration: agentest.config.py")


def test_all_problems_are_reported_together(project: Project) -> None:
    """A dead agent, a dying server, a broken file, an output folder that is a file: one line each."""
    port = closed_port()
    project.write("reports", "a file")
    project.write("broken.sim.py", "import nowhere_to_be_found\n")
    greeting(project)
    project.config(
        f"http://127.0.0.1:{port}/chat",
        output_dir="reports",
        agents={
            "dying": {
                "endpoint": f"http://127.0.0.1:{port}/x",
                "server": {
                    "command": f"{sys.executable} -c \"print('token={KEY}'); raise SystemExit(3)\"",
                    "ready": f"http://127.0.0.1:{port}/health",
                },
            }
        },
    )
    marks, said = examined(project, status=2, env={"BOT_TOKEN": KEY})
    assert {name for name, mark in marks.items() if mark == "✗"} == {"output", "agent", "agent dying"}
    assert "✗ scenarios: broken.sim.py:1: importing the file failed" in said
    assert "No module named 'nowhere_to_be_found'" in said
    assert "reports cannot be written to" in said
    assert "connection refused" in said
    assert "exited with status 3 before it was ready" in said
    assert "4 problems" in said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "Write one: agentest init"),
        ("agent: {endpoint: http://localhost, tpye: a2a}\n", "tpye"),
        ("agent: [\n", "does not parse"),
    ],
    ids=["none", "unknown-key", "no-yaml"],
)
def test_an_invalid_configuration_stops_the_checks(project: Project, config: str | None, said: str) -> None:
    """The error is printed, and that nothing else was checked."""
    if config:
        project.write("agentest.config.yaml", config)
    marks, told = examined(project, status=2)
    assert marks == {"configuration": "✗", "the rest": "–"}
    assert said in told


def test_ctrl_c_ends_what_was_started(project: Project) -> None:
    """Interrupted while a server does not get ready, it ends the server, and itself with 130."""
    mark = project.root / "started"
    program = (
        f"import pathlib, os, time; pathlib.Path({str(mark)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    server = project.write("server.py", program)
    ready = f"http://127.0.0.1:{closed_port()}/health"
    command = {"command": f"{sys.executable} {server}", "ready": ready}
    project.write(
        "agentest.config.yaml", f"agent: {{endpoint: {ready}, server: {command}}}\n".replace("'", '"')
    )
    greeting(project)
    process = project.start(command="doctor")
    wait_until(lambda: mark.exists() and bool(mark.read_text()))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    wait_until(lambda: not _runs(int(mark.read_text())))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


plugin = Plugin("tests")
plugin.check("moon", f"{__name__}:check_moon")
plugin.check("mars", f"{__name__}:check_mars")


async def check_moon(run: Examination) -> None:
    run.tell(good("moon", f"{run.loaded.config.max_turns} turns"))


def check_mars(run: Examination) -> None:
    raise OSError("too far")


def test_plugins_add_checks(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails is a problem that names plug-in and line, and the others are made."""
    project.config(f"http://127.0.0.1:{closed_port()}")
    registry = PluginRegistry([lambda: iter([(__name__, "a test")])])
    monkeypatch.setattr("agentest.plugins.authoring.doctor.PLUGINS", registry)
    found: list[Check] = []
    assert run_event_loop(run_checks, RunRequest(project.root), found.append, {}) == 1
    made = {check.name: check for check in found}
    assert made["moon"] == good("moon", "8 turns")
    where = rf"\({re.escape(__file__)}:\d+\)"
    problem = rf"check 'mars' of plug-in 'tests' {where} failed: OSError: too far {where}"
    assert re.fullmatch(problem, made["mars"].text)


def test_doctor_checks_the_confirming_model(project: Project) -> None:
    """It is called separately, and its calls are counted."""

    def reachable(received: Received) -> Answer:
        return completion({"reachable": True})

    with ScriptedAgent(["Done."]) as agent, ModelServer(script=reachable) as model:
        options = {"base_url": model.base_url, "api_key": "sk-of-the-test"}
        named = {"provider": "openai-compatible", "model": "first", "provider_options": options}
        judge = {"confirm": "second", "retries": 0}
        project.config(agent.endpoint, **named, judge=judge, metrics=["goal_completion"])
        project.scenario('scenario("s", turns=["x"], goal="g", conversations_per_scenario=2)')
        done = project.agentest("doctor")
        assert "second (judge.confirm) answers" in done.stdout
        said = " ".join(done.stdout.split())
        assert "2 of the judge's, and 2 of the model that confirms it" in said
