"""Invalid input of every kind: one clear message, exit status 2, no traceback, nothing lost."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import threading
from typing import Any

import pytest
from model_server import ModelServer, best, model_keys
from project import COMMAND, DEADLINE_S, Project, clean_environment

from agentest.testing import ScriptedAgent, tool_call

CONFIG = "agent: {endpoint: 'http://127.0.0.1:9/v1'}\n"

BAD_CONFIGS = {
    "does not parse": ("agent: [\n", ["agentest.config.yaml:2", "does not parse"]),
    "empty": ("", ["is empty", "`agent`"]),
    "no agent": ("concurrency: 3\n", ["agent: the key is missing"]),
    "unknown key": (CONFIG + "concurrencey: 3\n", [".yaml:2: concurrencey", "did you mean `concurrency`?"]),
    "unset variable": ("agent: {endpoint: 'http://${NO_SUCH_HOST}/'}\n", ["NO_SUCH_HOST", "agent.endpoint"]),
    "unknown reporter": (CONFIG + "reporters: [consol]\n", ["reporters", "did you mean `console`?"]),
    "unknown metric": (CONFIG + "metrics: [helpfulnes]\n", ["did you mean `helpfulness`?"]),
    "unknown mode": (CONFIG + "unmocked_tools: pass\n", ["unmocked_tools", "'pass'", "passthrough"]),
    "wrong type": (CONFIG + "concurrency: many\n", ["concurrency", "'many'", "a whole number"]),
    "threshold out of range": (
        CONFIG + "thresholds: {goal_completion: 3}\n",
        ["goal_completion", "between 0 and 1"],
    ),
    "metadata address": ("agent: {endpoint: 'http://169.254.169.254/x'}\n", ["169.254.169.254", "refused"]),
    "unreachable agent": (CONFIG, ["cannot be reached", "http://127.0.0.1:9/v1"]),
    "server that dies": (
        "agent:\n  endpoint: http://127.0.0.1:9/v1\n  server:\n"
        "    command: echo its last words; exit 3\n    ready: http://127.0.0.1:9/\n",
        ["exited with status 3", "its last words"],
    ),
    "a list for a text": (CONFIG + "model: [a]\n", [".yaml:2: model: found a list", "write model: openai/"]),
    "the agent's model": (
        "agent: {endpoint: 'http://h/v1', model: m}\n",
        ["write body: {model: …}", "top-level"],
    ),
    "keys for a list": (
        CONFIG + "include: {a: b}\n",
        ["include: found a dict; expected a list\n"],
    ),
    "a list for a body": ("agent: {endpoint: 'http://h/v1', body: [m]}\n", ["found a list", "body: {model:"]),
    "missing key of a model": (CONFIG + "model: openai/gpt-5-mini\n", ["OPENAI_API_KEY"]),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_wrong_configurations_are_explained(project: Project, name: str) -> None:
    """A wrong configuration is reported in one message with the value and what to do."""
    text, expected = BAD_CONFIGS[name]
    project.write("agentest.config.yaml", text)
    project.scenario('scenario("s", turns=["x"])')
    done = project.run()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout
    for part in expected:
        assert part in done.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "name: x\nturns: [hi]\n",
            "! the file: unknown key `name`; valid are: `defaults`, `scenarios`  1 scenario\n"
            "  a.sim.yaml:1  a.sim.yaml\n"
            "      # for example\n"
            "      scenarios:\n"
            "        - name: asks for an order\n"
            '          turns: ["Where is order 17?"]\n\n',
        ),
        (
            "scenarios:\n- name: x\n  turn: [hi]\n",
            "! unknown option `turn`; did you mean `turns`?  1 scenario\n"
            "  a.sim.yaml:2  x\n    a.sim.yaml:3\n\n",
        ),
        (
            "scenarios:\n- {name: x, turn: [hi]}\n",
            "! unknown option `turn`; did you mean `turns`?  1 scenario\n  a.sim.yaml:2  x\n\n",
        ),
    ],
)
def test_a_mistake_is_printed_once(project: Project, text: str, shown: str) -> None:
    """The title says what is wrong; below it are the place, the key's line if it differs, and an example."""
    project.config("http://127.0.0.1:9/v1")
    project.write("a.sim.yaml", text)
    done = project.run()
    assert done.returncode == 2
    assert shown in done.stdout


def test_the_mistake_of_a_mock_stands_below_the_failure(project: Project) -> None:
    """A mock that raised by mistake may be why the check failed."""
    project.scenario(
        'scenario("s", turns=["x"], expect={"says": "sent"}, tools={"look": lambda args, ctx: args["id"]})'
    )
    with ScriptedAgent([[tool_call("look")], "unknown"]) as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert (
        "    also: the mock of tool 'look' raised KeyError at a.sim.py:2: 'id'. Fix the mock" in done.stdout
    )


def test_no_configuration_and_no_scenario(project: Project) -> None:
    """Without a configuration or scenarios, the message says what to write."""
    missing = project.run()
    assert missing.returncode == 2
    assert "agentest.config.yaml" in missing.stderr
    project.write("agentest.config.yaml", CONFIG)
    empty = project.run()
    assert empty.returncode == 2
    assert "no scenario found" in empty.stderr


BAD_SCENARIOS = {
    "neither goal nor turns": ('scenario("s")', ["neither `goal` nor `turns`"]),
    "unknown option": ('scenario("s", goal="g", maxTurn=3)', ["`maxTurn`", "did you mean `max_turns`?"]),
    "mock that is not JSON": ('scenario("s", goal="g", tools={"t": object()})', ["tools['t']", "JSON"]),
    "unknown agent": ('scenario("s", goal="g", agent="nobody")', ["no agent 'nobody'"]),
    "unknown metric": ('scenario("s", goal="g", metrics=["helpfullness"])', ["did you mean `helpfulness`?"]),
    "unknown match mode": (
        'scenario("s", goal="g", trajectory={"match_mode": "exact", "expected": []})',
        ["trajectory.match_mode", "'exact'"],
    ),
    "duplicate name": ('scenario("ok", turns=["x"])', ["'ok' is taken", "a.sim.py"]),
    "raises": ("1 / 0", ["ZeroDivisionError", "1 / 0"]),
    "syntax": ("scenario(", ["SyntaxError", "never closed"]),
    "exits": ("import sys; sys.exit(7)", ["SystemExit"]),
}


@pytest.mark.parametrize("name", BAD_SCENARIOS)
def test_bad_scenarios(project: Project, name: str) -> None:
    """A broken scenario file is errored with file, line and reason, and the other file still runs."""
    text, expected = BAD_SCENARIOS[name]
    project.scenario('scenario("ok", turns=["x"])')
    project.scenario(text, name="b.sim.py")
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert done.returncode == 2, done.stdout
    assert "agentest/" not in done.stdout.replace(".agentest/", "")  # none of our own frames
    assert "b.sim.py:2" in done.stdout
    shown = " ".join(done.stdout.split())
    for part in expected:
        assert part in shown
    assert project.scenario_result("ok")["status"] == "passed"


def test_a_mock_result_that_is_not_json_is_an_error(project: Project) -> None:
    """A mock that returns something other than JSON is the scenario's fault, not the agent's."""
    from agentest.testing import tool_call

    project.scenario('scenario("s", turns=["x"], tools={"t": lambda args: b"x"})')
    with ScriptedAgent([tool_call("t"), "never"]) as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert done.returncode == 2
    assert "not JSON-serialisable" in project.scenario_result("s")["failures"][0]


def test_secrets_are_never_shown(project: Project) -> None:
    """A key repeated in an agent's error is redacted everywhere."""
    from agentest.testing import Raw

    project.scenario('scenario("s", turns=["x"])')
    secret = "zq-very-secret-value-91"
    with ScriptedAgent([Raw(f"bad key {secret}".encode(), status=401)]) as agent:
        project.write(
            "agentest.config.yaml",
            f"agent:\n  endpoint: {agent.endpoint}\n  headers: {{x-api-key: '${{BOT_API_KEY}}'}}\n"
            "reporters: [console, json, github-actions]\n",
        )
        done = project.run("--verbose", env={"BOT_API_KEY": secret})
    assert done.returncode == 2
    results = (project.root / ".agentest" / "results.json").read_text()
    assert secret not in done.stdout + done.stderr + results
    assert "bad key" in done.stdout


def test_secrets_of_scenarios_and_mocks_are_never_shown(project: Project) -> None:
    """Secrets in errors of files and mocks, or deep inside an answer, are redacted in full."""
    from agentest.testing import Raw, tool_call

    secret = "zq-very-secret-value-91"
    project.scenario(f'raise RuntimeError("{secret}")', name="broken.sim.py")
    project.scenario(
        'def fails(args):\n    raise RuntimeError("Bearer " + "abcdefghijklmnop" + " and ' + secret + '")\n'
        'scenario("mock", turns=["x"], tools={"t": fails})\nscenario("cut", turns=["cut"])'
    )

    def answer(body: dict) -> object:
        last = body["messages"][-1]
        if last["content"] == "cut":
            return Raw(b"z" * 190 + secret.encode())
        return tool_call("t") if last["role"] == "user" else "done"

    with ScriptedAgent(answer) as agent:
        project.write(
            "agentest.config.yaml",
            f"agent: {{endpoint: '{agent.endpoint}', headers: {{x-foo: '${{BOT_SECRET}}'}}}}\n"
            "reporters: [console, json, github-actions]\n",
        )
        done = project.run("--verbose", env={"BOT_SECRET": secret})
        assert any(secret in str(body) for body in agent.requests)  # the agent gets what the mock said
    shown = done.stdout + done.stderr + (project.root / ".agentest" / "results.json").read_text()
    assert "zq-very" not in shown
    assert "abcdefghijklmnop" not in shown


def limited(project: Project, descriptors: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `agentest run` with a limit on file descriptors."""
    command = shlex.join([*COMMAND, "run", *arguments])
    return subprocess.run(
        ["sh", "-c", f"ulimit {descriptors}; exec {command}"],
        cwd=project.root,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.slow
def test_more_conversations_than_file_descriptors(project: Project, workers: str) -> None:
    """If connections do not suffice for 200 conversations, fewer run at once, and a note says so."""
    project.scenario("for n in range(20):\n    scenario(f's{n}', turns=['x', 'y'])")
    asked, many = itertools.count(1), threading.Event()

    def answer(body: dict[str, Any]) -> str:
        if next(asked) >= 30:
            many.set()
        many.wait(DEADLINE_S)  # so that as many connections are open as the run will ever have
        return "fine"

    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint, agent={"endpoint": agent.endpoint, "retries": 0})
        done = limited(
            project, "-n 64", "--concurrency", "200", "--conversations", "10", "--workers", workers
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(len(scenario["conversations"]) for scenario in project.results["scenarios"]) == 200
    (note,) = done.stderr.strip().splitlines()
    assert "200 conversations at once need" in note
    assert "64 are allowed" in note
    assert "ulimit -n" in note


@pytest.mark.slow
def test_models_share_the_file_descriptors(project: Project) -> None:
    """Judge connections count, too: a judged run within a low limit passes."""
    project.scenario("for n in range(10):\n    scenario(f's{n}', goal='Get help.')")
    with ScriptedAgent(lambda body: "fine") as agent, ModelServer(script=best) as model:
        project.config(agent.endpoint, **model_keys(model), max_concurrency=500)
        done = limited(project, "-n 64", "--conversations", "5", "--concurrency", "50")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "with 500 model calls at once" in done.stderr


@pytest.mark.slow
def test_the_soft_file_limit_is_raised(project: Project) -> None:
    """A soft limit causes no note: the run raises it as far as the hard limit allows."""
    project.scenario("for n in range(10):\n    scenario(f's{n}', turns=['x'])")
    with ScriptedAgent(lambda body: "fine") as agent:
        project.config(agent.endpoint)
        done = limited(project, "-S -n 64", "--conversations", "10", "--concurrency", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


BOOKING = """
scenario("booking a slot", turns=["x"], tags=["happy-path"])
scenario("cancelling", turns=["x"], tags=["refund"])
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--scenario", "bokking"],
            "no scenario matches --scenario 'bokking'; the nearest is 'booking a slot'",
        ),
        (["--scenario", "Bookng a"], "the nearest is 'booking a slot'"),
        (["--scenario", "zzz"], "no scenario matches --scenario 'zzz'; agentest run --list shows all"),
        (["--tag", "happy-pat"], "no scenario matches --tag 'happy-pat'; the nearest is 'happy-path'"),
        (["--tag", "refnd", "--tag", "zz"], "matches --tag 'refnd' --tag 'zz'; the nearest is 'refund'"),
        (["--file", "salom"], "no scenario file matches --file 'salom'; the nearest is 'salon/a.sim.py'"),
        (["--scenario", "booking", "--tag", "refund"], "no scenario matches all of the filters"),
        (["--agent", "agnt"], "there is no agent 'agnt'; did you mean `agent`?"),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["run", "--list"]])
def test_a_filter_without_matches_gets_a_suggestion(
    project: Project, command: list[str], arguments: list[str], said: str
) -> None:
    """Each filter suggests the nearest match; nothing runs."""
    project.config("http://127.0.0.1:9/v1")
    project.scenario(BOOKING, name="salon/a.sim.py")
    done = project.agentest(*command, *arguments)
    assert done.returncode == 2
    assert said in done.stderr, done.stderr


def test_a_run_of_skipped_scenarios_is_not_a_pass(project: Project) -> None:
    """If every scenario is skipped, the run says that nothing ran."""
    project.scenario("for n in range(3):\n    scenario(f's{n}', turns=['x'], skip='later')")
    with ScriptedAgent(["y"]) as agent:
        project.config(agent.endpoint)
        done = project.run()
    assert done.returncode == 2
    assert "agentest: nothing ran: all 3 scenarios are skipped\n" in done.stderr


@pytest.mark.parametrize(
    ("scenarios", "arguments", "code", "said"),
    [
        ("fails, passes", [], 1, "agentest: failed: 1 passed, 1 failed; .agentest/results.json\n"),
        ("passes", [], 0, "agentest: passed: 1 passed; .agentest/results.json\n"),
        (
            "passes, skipped",
            ["--workers", "2"],
            0,
            "agentest: passed: 1 passed, 1 skipped; .agentest/results.json\n",
        ),
        ("passes", ["--reporter", "console"], 0, ""),
        ("passes", ["--reporter", "json", "--reporter", "github-actions"], 0, ""),
    ],
)
def test_a_run_without_a_console_reporter_prints_its_verdict(
    project: Project, scenarios: str, arguments: list[str], code: int, said: str
) -> None:
    """If no reporter writes to the terminal, one line has the verdict, counts and file."""
    kinds = {"fails": "trajectory={'expected': ['t']}", "passes": "tags=[]", "skipped": "skip='later'"}
    for name in scenarios.split(", "):
        project.scenario(f"scenario({name!r}, turns=['x'], {kinds[name]})", name=f"{name}.sim.py")
    with ScriptedAgent(["y"]) as agent:
        project.config(agent.endpoint, reporters=["json"])
        done = project.run(*arguments)
    assert (done.returncode, done.stderr) == (code, said)
