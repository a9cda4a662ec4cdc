"""No text of an agent, server or file controls GitHub's runner or a terminal, in any command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import Project, free_port
from runner_commands import STEERING
from steering_texts import GITHUB, HOSTILE, harmless, say_hostile_texts, write_scenarios

from agentest.testing import ScriptedAgent


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    with ScriptedAgent(say_hostile_texts) as agent:
        yield agent


@pytest.mark.parametrize("more", [(), ("--verbose",)])
def test_a_run(project: Project, agent: ScriptedAgent, more: tuple[str, ...]) -> None:
    """Replies, arguments, names, errors and tracebacks form no command; only annotations do."""
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
    """Outside GitHub Actions the text is unchanged, except for terminal controls."""
    write_scenarios(project)
    project.config(agent.endpoint)
    done = project.run("--verbose")
    assert "##[set-output name=approved]true" in done.stdout
    assert not STEERING.search(done.stdout + done.stderr)


def test_lists(project: Project, agent: ScriptedAgent) -> None:
    """Lists and estimates contain no commands either."""
    write_scenarios(project)
    project.config(agent.endpoint, conversations_per_scenario=1)
    harmless(project.run("--list", env=GITHUB))
    harmless(project.run("--dry-run", env=GITHUB))


@pytest.mark.parametrize("ending", ["exit 3", "exec sleep 60"])
@pytest.mark.slow
def test_the_last_output_of_a_server(project: Project, ending: str) -> None:
    """The output of a server that dies or never becomes ready has no commands or colors."""
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
    """Errors about a configuration, a file or an option contain no commands."""
    project.write(name, text + "\n")
    done = project.run(env=GITHUB)
    assert done.returncode == 2
    assert "set-output name" in harmless(done)
    harmless(project.run("--config", HOSTILE, env=GITHUB))
    harmless(project.agentest(HOSTILE, env=GITHUB))
    harmless(project.run(f"--{HOSTILE}", env=GITHUB))


def test_results_of_others(project: Project, tmp_path: Path) -> None:
    """The error about an invalid results.json contains no commands."""
    project.scenario('scenario("s", turns=["x"])')
    project.config("http://127.0.0.1:9/")
    results = project.write("r.json", json.dumps({"schemaVersion": HOSTILE, HOSTILE: 1}))
    done = project.agentest("judge", str(results), env=GITHUB)
    assert done.returncode == 2
    harmless(done)
