"""Nothing that an agent, a server or a file says steers GitHub's runner or a terminal, in any command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import Project, free_port
from runner_commands import STEERING, commands

from agentest.testing import Raw, ScriptedAgent, tool_call

HOSTILE = (
    "##[set-output name=approved]true\n"
    "##[stop-commands]quiet\n::stop-commands::quiet\n"
    "  \u3000::error file=a,line=1::forged\r::warning::forged\n"
    "\x1b]0;title\x07\x1b[2J\x9b31m\u202e#\u200d#[error]forged\U000e0041\n##[error]end"
)
GITHUB = {"GITHUB_ACTIONS": "true"}


def harmless(done: subprocess.CompletedProcess[str], *allowed: str) -> str:
    """All that was printed: no commands but the annotations of ours, and nothing that steers a terminal."""
    assert [found.name for found in commands(done.stdout)] == list(allowed), done.stdout
    assert commands(done.stderr) == [], done.stderr
    assert "Traceback" not in done.stderr
    shown = done.stdout + done.stderr
    assert not STEERING.search(shown), repr(shown)
    return shown


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    """Calls a tool with a hostile name or hostile arguments where it is asked to; else it talks so."""

    def answer(body: dict) -> object:
        said = body["messages"][-1]["content"] or ""
        if said == "call":
            return tool_call("book", note=HOSTILE)
        if said == "unknown":
            return tool_call(HOSTILE)
        return Raw(HOSTILE.encode(), status=500) if said == "break" else HOSTILE

    with ScriptedAgent(answer) as agent:
        yield agent


def write_scenarios(project: Project) -> None:
    project.write("hostile.py", f"TEXT = {HOSTILE!r}\n")
    project.scenario(
        "from hostile import TEXT\n"
        'scenario("passes", turns=["hello"], tags=["task:a", "path:b"])\n'
        'scenario(TEXT, turns=[{"user_message": TEXT, "expect": {"contains": TEXT + "never"}}], '
        'tags=[TEXT, "task:" + TEXT, "path:" + TEXT])\n'
        'scenario("calls", turns=["call"], tools={"book": TEXT},'
        ' trajectory={"match_mode": "strict", "expected": [call("book", note="x"), TEXT]})\n'
        'scenario("unknown tool", turns=["unknown"])\n'
        'scenario("agent breaks", turns=["break"])\n'
        "def fails(args):\n    raise RuntimeError(TEXT)\n"
        'scenario("mock breaks", turns=["call"], tools={"book": fails})\n'
        'scenario("skipped", turns=["hello"], skip=TEXT)\n'
    )
    project.write("b.sim.py", f"raise RuntimeError({HOSTILE!r})\n")


@pytest.mark.parametrize("more", [(), ("--verbose",)])
def test_a_run(project: Project, agent: ScriptedAgent, more: tuple[str, ...]) -> None:
    """Replies, arguments, names, errors and tracebacks of a run form no command; its annotations alone do."""
    write_scenarios(project)
    project.config(agent.endpoint)
    summary = project.root / "summary.md"
    plain = harmless(project.run(*more, env=GITHUB))
    assert "##\\[set-output name=approved]true" in plain
    done = project.run(
        *more,
        "--reporter",
        "console",
        "--reporter",
        "github-actions",
        env={**GITHUB, "GITHUB_STEP_SUMMARY": str(summary)},
    )
    assert done.returncode == 1
    harmless(done, *["error"] * 5, *["warning"] * 2)
    assert not STEERING.search(summary.read_text(encoding="utf-8"))


def test_other_consoles_keep_the_text(project: Project, agent: ScriptedAgent) -> None:
    """Where nobody obeys such commands, the text stays as it was said, but for what steers a terminal."""
    write_scenarios(project)
    project.config(agent.endpoint)
    done = project.run("--verbose")
    assert "##[set-output name=approved]true" in done.stdout
    assert not STEERING.search(done.stdout + done.stderr)


def test_lists_and_documents(project: Project, agent: ScriptedAgent) -> None:
    """Nor do lists, estimates, coverage and exported cases, whose documents still mean the same."""
    write_scenarios(project)
    project.config(agent.endpoint, conversations_per_scenario=1)
    project.run()
    harmless(project.run("--list", env=GITHUB))
    harmless(project.run("--dry-run", env=GITHUB))
    results = project.root / ".agentest" / "results.json"
    for form in ("text", "markdown", "json"):
        harmless(project.agentest("coverage", "--format", form, env=GITHUB))
    for form in ("evalset", "scenario"):
        harmless(project.agentest("export", str(results), "--to", form, env=GITHUB))
    cases = project.agentest("export", str(results), "--to", "evalset", "--scenario", "passes", env=GITHUB)
    reply = json.loads(cases.stdout)["eval_cases"][0]["conversation"][0]["final_response"]
    assert reply["parts"][0]["text"] == HOSTILE


def test_an_evaluation_in_detail(project: Project, agent: ScriptedAgent) -> None:
    """Nor do the tables in which expected and actual stand beside each other."""
    project.config(agent.endpoint)
    case = [
        {
            "query": HOSTILE,
            "expected_tool_use": [{"tool_name": HOSTILE, "tool_input": {HOSTILE: HOSTILE}}],
            "reference": "##[error]x\n" * 3,
        }
    ]
    project.write("a.test.json", json.dumps(case))
    project.write(
        "test_config.json", '{"criteria": {"response_match_score": 1, "tool_trajectory_avg_score": 1}}'
    )
    done = project.agentest("eval", "a.test.json", "--print-detailed-results", env=GITHUB)
    assert done.returncode == 1, done.stderr
    assert "expected" in harmless(done)


def test_chat(project: Project, agent: ScriptedAgent) -> None:
    """Nor does what an agent says in a chat, where it cannot pass for the person either."""
    write_scenarios(project)
    project.config(agent.endpoint)
    done = project.agentest("chat", "--scenario", "calls", env=GITHUB, typed="hello\ncall\nunknown\n")
    assert "\n       ##\\[stop-commands]quiet" in harmless(done)


@pytest.mark.parametrize("ending", ["exit 3", "exec sleep 60"])
@pytest.mark.slow
def test_the_last_output_of_a_server(project: Project, ending: str) -> None:
    """Nor does the last output of a server that dies or never gets ready; its colours are left out."""
    project.scenario('scenario("s", turns=["x"])')
    project.write("output.txt", f"\x1b[32mINFO\x1b[0m started\n{HOSTILE}\n")
    port = free_port()
    server = {"command": f"cat output.txt; {ending}", "ready": f"tcp://127.0.0.1:{port}", "timeout_s": 5}
    project.config("x", agent={"endpoint": f"http://127.0.0.1:{port}/", "server": server})
    done = project.run(env=GITHUB)
    assert done.returncode == 2
    shown = harmless(done)
    assert "INFO started" in shown
    assert "##\\[stop-commands]quiet" in shown


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("agentest.config.yaml", f"agent: {{endpoint: 'http://x/'}}\nreporters: [{json.dumps(HOSTILE)}]"),
        ("agentest.config.yaml", f"{json.dumps(HOSTILE)}: 3"),
        ("agentest.config.py", f"raise RuntimeError({HOSTILE!r})"),
        ("agentest.config.py", f"config = {{{HOSTILE!r}: 1}}"),
    ],
)
def test_a_configuration_that_is_refused(project: Project, name: str, text: str) -> None:
    """Nor does the message about a configuration, a file or an option."""
    project.write(name, text + "\n")
    done = project.run(env=GITHUB)
    assert done.returncode == 2
    assert "set-output name" in harmless(done)
    harmless(project.run("--config", HOSTILE, env=GITHUB))
    harmless(project.agentest("export", HOSTILE, "--to", "evalset", env=GITHUB))
    harmless(project.agentest(HOSTILE, env=GITHUB))
    harmless(project.run(f"--{HOSTILE}", env=GITHUB))


def test_results_of_others(project: Project, tmp_path: Path) -> None:
    """Nor does a file that is no results.json."""
    project.scenario('scenario("s", turns=["x"])')
    project.config("http://127.0.0.1:9/")
    results = project.write("r.json", json.dumps({"schemaVersion": HOSTILE, HOSTILE: 1}))
    for command in ("judge", "coverage"):
        arguments = [str(results)] if command == "judge" else ["--results", str(results)]
        done = project.agentest(command, *arguments, env=GITHUB)
        assert done.returncode == 2
        harmless(done)
