"""`pytest --agentest`: scenarios as pytest items."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
from project import clean_environment, free_port, interrupt, wait_until

from agentest.agents import chat_completions
from agentest.pytest_plugin import scenario_run, session
from agentest.report import json as json_report
from agentest.store.runs.folder import list_stored_runs
from agentest.store.runs.past_runs import latest_verdicts
from agentest.testing import ScriptedAgent

pytest_plugins = ["pytester"]
LOADED = (scenario_run, chat_completions, json_report, session)
"""A pytester forgets whatever its run has imported: what all of them use is imported before."""

SCENARIOS = """
from agentest import scenario

def says(text):
    return [{"user_message": "Hi", "expect": {"contains": text}}]

scenario("greets", turns=says("Hello"), tags=["quick", "happy path"])
scenario("fails", turns=says("Goodbye"), tags=["quick"])
scenario("errs", turns=says("Hello"), goal="Be greeted.", thresholds={"helpfulness": 4})
scenario("skips", turns=says("Hello"), skip="not yet", tags=["skip"])
scenario("odd::one [a/b]\\n(c)", turns=says("Hello"))
"""
FLAGS = ("--agentest", "--strict-markers", "-p", "no:hypothesispytest")


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    """An agent that sends a greeting."""
    with ScriptedAgent(["Hello."], name="salon") as agent:
        yield agent


@pytest.fixture
def project(
    pytester: pytest.Pytester, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A project with that agent and scenarios of every outcome."""
    for name in ("AGENTEST_MODEL", "CI", "GITHUB_ACTIONS", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    configure(pytester, agent)
    write(pytester, "all.sim.py", SCENARIOS)
    return pytester


def configure(pytester: pytest.Pytester, agent: ScriptedAgent, **keys: Any) -> None:
    config = {"agent": {"endpoint": agent.endpoint, "name": agent.name}, **keys}
    write(pytester, "agentest.config.yaml", json.dumps(config))


def write(pytester: pytest.Pytester, name: str, text: str) -> None:
    path = pytester.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def serve(pytester: pytest.Pytester, port: int) -> None:
    """Let the project start its agent on this port."""
    write(pytester, "server.py", SERVER)
    command = f"{sys.executable} server.py {port}"
    server = {"command": command, "ready": f"http://127.0.0.1:{port}/"}
    config = {"agent": {"endpoint": f"http://127.0.0.1:{port}/v1", "name": "salon", "server": server}}
    write(pytester, "agentest.config.yaml", json.dumps(config))


def test_scenarios_are_items(project: pytest.Pytester, agent: ScriptedAgent) -> None:
    """A scenario has a pytest outcome and the console's text; JUnit has time, reason and figures."""
    result = project.runpytest(*FLAGS, "-v", "-rsfE", "--junitxml=junit.xml")
    result.assert_outcomes(passed=2, failed=1, errors=1, skipped=1)
    assert len(agent.requests) == 4
    text = result.stdout.str()
    for expected in (
        "all.sim.py::greets[salon] PASSED",
        "all.sim.py::fails[salon] FAILED",
        "all.sim.py::errs[salon] ERROR",
        "all.sim.py::skips[salon] SKIPPED (not yet)",
        "agentest: agentest.config.yaml, offline: no model is called",
        "✗ failed   fails  all.sim.py:8  0/1 conversation passed",
        "    ✗ contains: expected 'Goodbye' in the reply\n      turn 1  user ",
        "! errored  errs  all.sim.py:9",
        "FAILED all.sim.py::fails[salon] - contains: expected 'Goodbye'",
        "SKIPPED [1] all.sim.py:10: not yet",
    ):
        assert expected in text
    assert "Traceback" not in text
    cases = {case.get("name"): case for case in ET.parse(project.path / "junit.xml").iter("testcase")}
    assert set(cases) >= {"greets[salon]", "fails[salon]", "errs[salon]", "skips[salon]"}
    failure, error = cases["fails[salon]"].find("failure"), cases["errs[salon]"].find("error")
    assert failure is not None
    assert str(failure.get("message")).startswith("contains: expected 'Goodbye'")
    assert error is not None
    assert "helpfulness" in str(error.get("message"))
    assert cases["skips[salon]"].find("skipped") is not None
    assert float(str(cases["fails[salon]"].get("time"))) > 0
    properties = {each.get("name"): each.get("value") for each in cases["fails[salon]"].iter("property")}
    assert properties == {"conversations": "1", "passed_conversations": "0"}


def test_a_run_is_stored(project: pytest.Pytester, agent: ScriptedAgent) -> None:
    """It has the configured reports, without the console's on the terminal; `--last-failed` counts it, and a
    run of a selection is marked as one."""
    names = ["console", "console=said.txt", "junit", "github-actions"]
    configure(project, agent, reporters=names)
    text = project.runpytest(*FLAGS).stdout.str()
    assert "::error file=all.sim.py,line=8,title=fails failed::" in text.partition("short test summary")[0]
    assert (
        "✗ contains: expected 'Goodbye' in the reply  1 scenario" in (project.path / "said.txt").read_text()
    )
    folder = project.path / ".agentest"
    (whole,) = list_stored_runs(folder)
    files = {"journal.jsonl", "results.json", "junit.xml", "run.json"}
    assert {file.name for file in whole.path.iterdir()} == files
    assert (folder / "junit.xml").read_bytes() == (whole.path / "junit.xml").read_bytes()
    results = json.loads((whole.path / "results.json").read_text())
    assert [each["name"] for each in results["scenarios"]][:4] == ["greets", "fails", "errs", "skips"]
    assert (whole.record.kind, whole.record.partial) == ("run", False)  # type: ignore[union-attr]
    project.runpytest(*FLAGS, "-k", "greets or fails")
    part = list_stored_runs(folder)[-1].record
    assert part
    assert part.ended
    assert (part.partial, part.ended.passed, part.ended.failed) == (True, 1, 1)
    failed = [each.name for each in latest_verdicts(folder).failed]
    assert sorted(failed) == ["errs", "fails"]


def test_a_run_that_cannot_be_stored_is_noted(project: pytest.Pytester, agent: ScriptedAgent) -> None:
    """Without a writable folder a note says so; with a configured report, the run does not start."""
    write(project, ".agentest", "a file in the way of the folder")
    result = project.runpytest(*FLAGS, "-k", "greets")
    result.assert_outcomes(passed=1, deselected=4)
    assert "finished conversations are not stored" in result.stdout.str()
    configure(project, agent, reporters=["json"])
    result = project.runpytest(*FLAGS, "-k", "greets")
    result.assert_outcomes(errors=1, deselected=4)
    assert "set another `output_dir`" in result.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        pytest.param(["-k", "greets"], 1, id="k"),
        pytest.param(["-m", "quick and not happy_path"], 1, id="m"),
        pytest.param(["-m", "tag_skip"], 0, id="a tag that means something to pytest"),
        pytest.param(["all.sim.py::greets"], 1, id="name"),
        pytest.param(["all.sim.py::errs[salon]"], 1, id="name and agent"),
        pytest.param(["all.sim.py::odd: :one [a/b]\\n(c)[salon]"], 1, id="odd name"),
        pytest.param(["--deselect", "all.sim.py::fails[salon]"], 3, id="deselect"),
        pytest.param(["--co", "-q"], 0, id="collect only"),
    ],
)
def test_only_selected_scenarios_run(
    project: pytest.Pytester, agent: ScriptedAgent, arguments: list[str], asked: int
) -> None:
    result = project.runpytest(*FLAGS, *arguments)
    assert result.ret in (0, 1)
    assert len(agent.requests) == asked


def test_a_marker_skips_before_the_conversation(project: pytest.Pytester, agent: ScriptedAgent) -> None:
    """Items marked as skipped in a conftest make no calls, and xfail items do not fail."""
    project.makeconftest(
        """
        import pytest
        MARKS = {
            "fails": pytest.mark.xfail,
            "greets": pytest.mark.skipif("1 + 1 == 2", reason="no key"),
            "errs": pytest.mark.xfail(run=False),
        }
        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(MARKS.get(item.name.partition("[")[0], pytest.mark.skip))
        """
    )
    project.runpytest(*FLAGS).assert_outcomes(skipped=3, xfailed=2)
    assert len(agent.requests) == 1


def test_without_a_terminal_scenarios_run(project: pytest.Pytester, agent: ScriptedAgent) -> None:
    """Without pytest's terminal plug-in the exit status is right; --setup-plan runs nothing."""
    assert project.runpytest(*FLAGS, "--setup-plan").ret == 0
    assert agent.requests == []
    assert project.runpytest(*FLAGS, "-p", "no:terminal", "-k", "greets or fails").ret == 1
    assert len(agent.requests) == 2


def test_last_failed_runs_what_failed_or_erred(project: pytest.Pytester, agent: ScriptedAgent) -> None:
    """--lf runs only what did not pass, and --ff runs it first."""
    project.runpytest(*FLAGS)
    agent.requests.clear()
    project.runpytest(*FLAGS, "--lf").assert_outcomes(failed=1, errors=1)
    assert len(agent.requests) == 2
    first = project.runpytest(*FLAGS, "--ff", "--co", "-q").outlines[:2]
    assert first == ["all.sim.py::fails[salon]", "all.sim.py::errs[salon]"]


AGAIN = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runtestprotocol(item, nextitem=nextitem, log=False)
    runtestprotocol(item, nextitem=nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""


def test_a_plugin_may_run_items_again(project: pytest.Pytester, agent: ScriptedAgent) -> None:
    """An item repeated by a plug-in like pytest-rerunfailures runs again; no result is lost."""
    project.makeconftest(AGAIN)
    result = project.runpytest(*FLAGS, "-v")
    result.assert_outcomes(passed=2, failed=1, errors=1, skipped=1)
    assert len(agent.requests) == 8


def test_x_stops_the_run(project: pytest.Pytester) -> None:
    """-x stops running conversations, starts no others, and runs no later test."""
    released, asked = threading.Event(), []

    def answer(body: dict[str, Any]) -> str:
        asked.append(body)
        assert len(asked) == 1 or released.wait(60)
        return "Hello."

    with ScriptedAgent(answer, name="salon") as agent:
        configure(project, agent, concurrency=1)
        write(project, "zz/test_behind.py", "def test_behind(): pass\n")
        turns = [{"user_message": "Hi", "expect": {"contains": "Goodbye"}}]
        many = "\n".join(f'scenario("number {n}", turns={turns!r})' for n in range(5))
        write(project, "all.sim.py", "from agentest import scenario\n" + many)
        project.runpytest(*FLAGS, "-x").assert_outcomes(failed=1)
        released.set()
    assert len(asked) <= 2


def test_scenarios_run_concurrently(project: pytest.Pytester) -> None:
    """Selected scenarios of all files are one run: conversations that wait for each other all end."""
    together = threading.Barrier(3, timeout=30)

    def answer(body: dict[str, Any]) -> str:
        together.wait()
        return "Hello."

    with ScriptedAgent(answer, name="salon") as meeting:
        configure(project, meeting)
        write(project, "all.sim.py", "")
        for name in ("a", "b", "c"):
            made = f"scenario('{name}', turns=['Hi'], expect={{'says': 'Hello'}})\n"
            write(project, f"{name}/{name}.sim.py", f"from agentest import scenario\n{made}")
            write(project, f"{name}/test_{name}.py", "def test_it(): pass\n")
        result = project.runpytest(*FLAGS, "-W", "default")
    result.assert_outcomes(passed=6, warnings=1)
    result.stdout.fnmatch_lines(["*all.sim.py defines no scenario: it never calls scenario(*"])


SHARED = """
import pytest

@pytest.fixture(scope="session")
def shared():
    yield
    print("closed")
"""
OWN = """
import pytest

@pytest.fixture(scope="module")
def own():
    return []

def test_one(shared, own): pass
def test_two(shared, own): pass
"""


def test_fixtures_of_other_tests_are_unaffected(project: pytest.Pytester) -> None:
    """Scenarios between tests close no session fixture, and leave none of a folder open."""
    write(project, "conftest.py", SHARED)
    write(project, "a/test_a.py", OWN)
    write(
        project,
        "b/b.sim.py",
        "from agentest import scenario\nscenario('b', turns=['Hi'], expect={'says': 'Hello'})\n",
    )
    write(project, "c/test_c.py", "def test_c(shared): pass\n")
    write(
        project,
        "d/d.sim.py",
        "from agentest import scenario\nscenario('d', turns=['Hi'], expect={'says': 'Hello'})\n",
    )
    write(project, "d/e/test_e.py", "def test_e(shared): pass\n")
    result = project.runpytest(*FLAGS, "-s", "--deselect", "all.sim.py")
    result.assert_outcomes(passed=6, deselected=5)
    assert result.stdout.str().count("closed") == 1


@pytest.fixture
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Arguments for a separate pytest process that load no other plug-ins, which take seconds to import."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return "-p", "agentest"


def test_scenarios_run_without_pytest_xdist(
    project: pytest.Pytester, few_plugins: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest-xdist is not required to collect and run scenarios."""
    write(project, "absent/xdist.py", "raise ModuleNotFoundError(\"No module named 'xdist'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(project.path / "absent"), prepend=os.pathsep)
    result = project.runpytest_subprocess("--agentest", *few_plugins, "-k", "greets")
    assert result.ret == 0, result.stderr.str()
    result.assert_outcomes(passed=1, deselected=4)


@pytest.mark.slow
def test_xdist_runs_all_scenarios_in_one_worker(
    project: pytest.Pytester, few_plugins: tuple[str, ...]
) -> None:
    """With -n the scenarios of all files are one stored run, with one server."""
    serve(project, free_port())
    write(
        project,
        "more.sim.py",
        "from agentest import scenario\nscenario('more', turns=['Hi'], expect={'says': 'Hello'})\n",
    )
    write(project, "test_other.py", "def test_other(): pass\n")
    flags = ("--agentest", "--strict-markers", *few_plugins, "-p", "xdist", "-n", "2", "--dist", "loadfile")
    result = project.runpytest(*flags, "-v")
    result.assert_outcomes(passed=4, failed=1, errors=1, skipped=1)
    assert (project.path / "started").read_text() == "started\n"
    text = result.stdout.str()
    rows = [row for row in text.splitlines() if row.startswith("[gw") and ".sim.py" in row]
    assert len({row.partition("]")[0] for row in rows}) == 1
    (kept,) = list_stored_runs(project.path / ".agentest")
    assert kept.record
    assert kept.record.scenarios == 6
    assert "    ✗ contains: expected 'Goodbye' in the reply\n      turn 1  user   Hi\n" in text


SERVER = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Agent(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send(b"{}")
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if b"wait" in body:
            open("waiting", "w").close()
            threading.Event().wait()
        self.send(json.dumps({"choices": [{"message": {"role": "assistant", "content": "Hello."}}]}).encode())
    def send(self, body):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *ignored):
        pass

open("started", "a").write("started\\n")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
"""


@pytest.mark.parametrize(
    ("config", "status", "said"),
    [
        pytest.param(
            "agent: {endpoint: 'http://x/', colour: red}", 4, "unknown key `colour`", id="wrong key"
        ),
        pytest.param(
            "{agent: {endpoint: 'http://x/'}, model: openai/gpt-5-mini}", 4, "--agentest-offline", id="no key"
        ),
        pytest.param("agent: {endpoint: 'http://127.0.0.1:9/'}", 1, "127.0.0.1:9", id="nobody answers"),
        pytest.param(None, 4, "no configuration found", id="no configuration"),
    ],
)
def test_a_run_that_cannot_start_is_explained(
    project: pytest.Pytester, config: str | None, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong configuration ends pytest with one message; an unreachable agent is an error."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (project.path / "agentest.config.yaml").unlink()
    if config:
        write(project, "agentest.config.yaml", config)
    result = project.runpytest(*FLAGS)
    text = result.stdout.str() + result.stderr.str()
    assert result.ret == status
    assert said in text
    assert "Traceback" not in text


def test_a_broken_file_is_an_error_of_collection(project: pytest.Pytester) -> None:
    """A file that cannot be imported or is of another project is an error, as is a duplicate name."""
    write(project, "broken.sim.py", "import nothing_of_this_name\n")
    write(project, "other/agentest.config.yaml", "agent: {endpoint: 'http://x/'}")
    write(project, "other/other.sim.py", "")
    write(project, "twice.sim.py", "from agentest import scenario\nscenario('greets', turns=['Hi'])\n")
    result = project.runpytest(*FLAGS, "broken.sim.py", "other/other.sim.py")
    result.assert_outcomes(errors=2)
    text = result.stdout.str()
    assert "importing the file failed" in text
    assert "No module named 'nothing_of_this_name'" in text
    assert "is not a scenario file of" in text
    result = project.runpytest(*FLAGS, "all.sim.py", "twice.sim.py", "-k", "greets")
    result.assert_outcomes(passed=1, errors=1, deselected=4)
    assert "the name 'greets' is taken" in result.stdout.str()


def test_a_refused_scenario_is_an_item_that_errs(project: pytest.Pytester) -> None:
    """Each refused scenario of a file is an item with its own error; the others run."""
    fine = "scenario('fine', turns=['Hi'], expect={'says': 'Hello'})"
    text = f"from agentest import scenario\n{fine}\nscenario('a')\nscenario('b')\n"
    write(project, "some.sim.py", text)
    result = project.runpytest(*FLAGS, "some.sim.py")
    result.assert_outcomes(passed=1, errors=2)
    shown = result.stdout.str()
    assert "some.sim.py:3: scenario 'a': has neither" in shown
    assert "ERROR at setup of b ______________________________\nas in some.sim.py::a\n" in shown


def test_a_scenario_file_needs_the_option(project: pytest.Pytester) -> None:
    """Without --agentest, naming a scenario file is an error that says so; others are ignored."""
    result = project.runpytest("all.sim.py")
    result.assert_outcomes(errors=1)
    assert "all.sim.py is a scenario file: pytest --agentest runs it" in result.stdout.str()
    assert "Traceback" not in result.stdout.str()
    assert project.runpytest().ret == pytest.ExitCode.NO_TESTS_COLLECTED


CHATTY = """
def handler(messages, ctx):
    for _ in range(100):
        print("<a line of an agent>")
    return "Hello."
"""
PRINTING = """
from agentest import scenario

for number in range(40):
    scenario(f"s{number}", turns=[{"user_message": "Hi", "expect": {"contains": "Goodbye"}}])
"""


def test_output_of_scenarios_is_printed_at_the_end(project: pytest.Pytester) -> None:
    """Nothing appears between pytest's lines; after a failure, the output follows below."""
    write(project, "agent.py", "def handler(messages, ctx):\n    print('I was asked')\n    return 'Hello.'\n")
    write(project, "agentest.config.yaml", "agent: {type: custom, name: salon, handler: 'agent:handler'}")
    result = project.runpytest(*FLAGS, "-v")
    result.assert_outcomes(passed=2, failed=1, errors=1, skipped=1)
    before, _, after = result.stdout.str().partition("captured output of scenarios")
    assert "I was asked" not in before
    assert after.count("I was asked") == 4
    passing = project.runpytest(*FLAGS, "-k", "greets")
    assert "I was asked" not in passing.stdout.str()


@pytest.mark.parametrize("method", ["fd", "sys"])
def test_no_output_of_scenarios_is_lost(project: pytest.Pytester, method: str) -> None:
    """Scenarios print while pytest reports others and empties its captured output."""
    write(project, "agent.py", CHATTY)
    write(project, "agentest.config.yaml", "agent: {type: custom, name: salon, handler: 'agent:handler'}")
    write(project, "scenarios/salon.sim.py", PRINTING)
    result = project.runpytest(*FLAGS, f"--capture={method}", "scenarios")
    result.assert_outcomes(failed=40)
    said = "<a line of an agent>"
    before, _, after = result.stdout.str().partition("captured output of scenarios")
    assert (said in before, after.count(said)) == (False, 40 * 100)


TESTS = """
import pytest
from agentest import scenario

def says(text):
    return scenario("own", turns=[{"user_message": "Hi", "expect": {"contains": text}}])

def test_passes(agentest):
    agentest.run(says("Hello")).check()

def test_fails(agentest):
    agentest.run(says("Goodbye")).check()

def test_is_skipped(agentest):
    agentest.run(scenario("own", turns=["Hi"], skip="not yet")).check()

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_awaits(agentest):
    (await agentest.run_async(says("Hello"))).check()
"""


def test_the_fixture_has_the_projects_agent(project: pytest.Pytester, agent: ScriptedAgent) -> None:
    """An error of the fixture ends with the reason, at the line of the test."""
    write(project, "tests/test_own.py", TESTS)
    result = project.runpytest("-p", "no:hypothesispytest", "tests")
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    assert len(agent.requests) == 3
    result.stdout.fnmatch_lines(
        [
            '>       agentest.run(says("Goodbye")).check()',
            "E       1 of 1 scenarios did not pass",
            "E           ✗ contains: expected 'Goodbye' in the reply",
            "tests/test_own.py:*: ScenarioFailed",
            "FAILED tests/test_own.py::test_fails - own: contains: expected 'Goodbye' in *",
        ]
    )
    assert "in check" not in result.stdout.str()


def test_pytest_without_scenarios_imports_nothing_of_ours(
    project: pytest.Pytester, few_plugins: tuple[str, ...]
) -> None:
    """Only the plug-in's small module is loaded, and with `-p no:agentest` not even that."""
    project.makeconftest(
        """
        import sys
        def pytest_unconfigure():
            print("ours:", sorted(name for name in sys.modules if name.startswith("agentest")))
        """
    )
    write(project, "test_it.py", "def test_it(): pass\n")
    loaded = project.runpytest_subprocess("-q", *few_plugins).stdout.str()
    ours = "['agentest', 'agentest.pytest_plugin', 'agentest.pytest_plugin.plugin', 'agentest.version']"
    assert f"ours: {ours}" in loaded
    without = project.runpytest("-p", "no:agentest", "--agentest")
    assert "unrecognized arguments: --agentest" in without.stderr.str()


@pytest.mark.slow
def test_ctrl_c_ends_the_run_and_the_server(project: pytest.Pytester, few_plugins: tuple[str, ...]) -> None:
    """After Ctrl-C pytest reports finished scenarios, and the agent's server is gone."""
    port = free_port()
    serve(project, port)
    both = "scenario('greets', turns=['Hi'], expect={'says': 'Hello'})\nscenario('waits', turns=['wait'])\n"
    write(project, "all.sim.py", f"from agentest import scenario\n{both}")
    command = [sys.executable, "-m", "pytest", "--agentest", *few_plugins, "-v"]
    shown = project.path / "shown"
    with shown.open("w") as out:
        process = subprocess.Popen(command, cwd=project.path, env=clean_environment(), text=True, stdout=out)
    wait_until(lambda: "PASSED" in shown.read_text() and (project.path / "waiting").exists())
    status, _, _ = interrupt(process)
    assert status == pytest.ExitCode.INTERRUPTED
    assert "1 passed" in shown.read_text()
    (kept,) = list_stored_runs(project.path / ".agentest")
    assert kept.record
    assert kept.record.ended
    assert (kept.record.ended.interrupted, kept.record.ended.passed) == (True, 1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.slow
def test_strict_scenarios_that_the_end_of_the_run_questions(project: pytest.Pytester) -> None:
    """A pass that only the whole run questions is reported as an error, never first as a pass."""
    write(
        project,
        "all.sim.py",
        """
from agentest import scenario

for n in range(3):
    scenario(f"bans {n}", turns=["Hi"], trajectory={"forbidden": ["wipe_disk"]})
scenario("greets", turns=[{"user_message": "Hi", "expect": {"contains": "Hello"}}])
""",
    )
    lenient = project.runpytest(*FLAGS, "--agentest-no-strict")
    lenient.assert_outcomes(passed=4)
    assert "warning: unknown-tool (3 scenarios)" in lenient.stdout.str()
    strict = project.runpytest(*FLAGS)
    strict.assert_outcomes(passed=1, errors=3)
    assert "unknown-tool: trajectory.forbidden names tool 'wipe_disk'" in strict.stdout.str()
    configured = json.loads((project.path / "agentest.config.yaml").read_text()) | {"strict": False}
    write(project, "agentest.config.yaml", json.dumps(configured))
    project.runpytest(*FLAGS).assert_outcomes(passed=4)
    project.runpytest(*FLAGS, "--agentest-strict").assert_outcomes(passed=1, errors=3)


@pytest.mark.slow
def test_a_selection_that_leaves_out_scenarios_is_not_questioned(project: pytest.Pytester) -> None:
    """Others may show the agent's calls. A rerun of what failed leaves out nothing in this sense."""
    greets = 'turns=["Hi"], tools={"look": 1}, expect={"says": "Hello"}'
    write(project, "all.sim.py", f'from agentest import scenario\nscenario("greets", {greets})\n')
    write(project, "b.sim.py", f'from agentest import scenario\nscenario("other", {greets})\n')
    write(project, "test_plain.py", "def test_plain(): pass\n")
    project.runpytest(*FLAGS).assert_outcomes(passed=1, errors=2)
    project.runpytest(*FLAGS, "--lf").assert_outcomes(errors=2)
    project.runpytest(*FLAGS, "--lf", "all.sim.py").assert_outcomes(errors=1)
    project.runpytest(*FLAGS, "-k", "sim").assert_outcomes(errors=2)
    project.runpytest(*FLAGS, "-k", "greets").assert_outcomes(passed=1)
    project.runpytest(*FLAGS, "all.sim.py").assert_outcomes(passed=1)
