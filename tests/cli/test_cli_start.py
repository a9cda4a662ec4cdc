"""The modules that a command imports before its work: counted, not timed."""

from __future__ import annotations

from pathlib import Path

from project import Project

import agentest
from agentest.testing import ScriptedAgent

MOST_OF_OURS = 138
"""Modules and packages of Agentest in a run of one scripted scenario. Lower it when a run imports fewer."""
UNUSED = (
    "aiohttp.web",
    "dotenv",
    "google",
    "httpx",
    "jmespath",
    "jsonschema",
    "litellm",
    "numpy",
    "openai",
    "opentelemetry",
    "pygments",
    "pytest",
    "ray",
    "rich",
    "watchfiles",
)
"""Libraries that a plain run whose output is not a terminal does not use."""
UNUSED_PARTS = [
    "adk",
    "agents.configuration_advice",
    "agents.asgi",
    "agents.error_hints",
    "agents.placeholders",
    "agents.python_agent",
    "agents.server_process",
    "cli.listing",
    "config.agents.http",
    "config.errors",
    "conversation.in_process_calls",
    "conversation.simulated_user",
    "conversation.user_prompts",
    "conversation.user_text",
    "domain.root_causes",
    "history",
    "judging.answers",
    "judging.custom_metrics",
    "judging.error_grouping",
    "judging.judge",
    "judging.questions",
    "judging.reply_checks",
    "judging.role_check",
    "mocks.answering",
    "models.caller",
    "models.cassette",
    "models.factory",
    "models.providers",
    "models.structured_output",
    "models.tape",
    "plugins",
    "report.alignments",
    "report.console.case",
    "report.console.printer",
    "report.console.transcript",
    "report.junit",
    "runner.run_budget",
    "runner.repetition",
    "runner.selection",
    "scenarios.contradictions",
    "scenarios.matchers.numbers",
    "scenarios.trajectory_parser",
    "store.adk_results",
    "store.reader",
    "store.spans",
    "scenarios.data_files",
    "scenarios.rows",
    "support.function_threads",
    "support.http.sse",
    "support.http.websockets",
    "support.jmespath_expressions",
    "support.json_schema",
    "support.process_groups",
    "support.statistics.sequential",
    "support.trace_context",
    "testing",
    "trajectory",
    "workers",
]
"""Parts of Agentest that a plain run does not use."""


def imported(project: Project, *arguments: str) -> set[str]:
    """Run a command and return the modules that it imported."""
    # The profile of import times lacks modules that are imported by name, as those of plug-ins are.
    done = project.agentest(*arguments, env={"PYTHONVERBOSE": "1"})
    assert done.returncode == 0, done.stderr
    return {line.split("'")[1] for line in done.stderr.splitlines() if line.startswith("import '")}


def inside(modules: set[str], *packages: str) -> set[str]:
    """Return the modules that are one of the packages or in one."""
    return {m for m in modules if any(m == name or m.startswith(f"{name}.") for name in packages)}


def is_package(name: str) -> bool:
    return Path(agentest.__file__).parent.parent.joinpath(*name.split(".")).is_dir()


def test_a_plain_run_imports_what_it_uses(project: Project) -> None:
    """A scripted scenario imports no judge, model or trajectory, and only its agent's protocol."""
    text = 'from agentest import scenario\n\nscenario("books", turns=["Book Friday at nine."])\n'
    project.write("a.sim.py", text)
    with ScriptedAgent(["Booked."]) as agent:
        project.config(agent.endpoint)
        modules = imported(project, "run")
    assert inside(modules, "agentest.runner.run")
    assert len(inside(modules, "agentest")) <= MOST_OF_OURS
    assert inside(modules, *UNUSED) == set()
    assert inside(modules, *(f"agentest.{part}" for part in UNUSED_PARTS)) == set()


def test_help_imports_only_click(project: Project) -> None:
    """`--help` is fast because it reads only plug-in registrations, and no command or library."""
    modules = imported(project, "--help")
    assert inside(modules, "click")
    assert inside(modules, *UNUSED, "aiohttp", "anyio", "ipaddress", "pathlib", "pydantic", "yaml") == set()
    handing_in = inside(modules, "agentest.plugins")
    assert {name for name in handing_in if not (name.endswith(".plugin") or is_package(name))} == set()
    assert inside(modules, "agentest") - handing_in == {
        "agentest",
        "agentest.cli",
        "agentest.cli.main",
        "agentest.core",
        "agentest.plugin",
        "agentest.support",
        "agentest.support.errors",
        "agentest.support.features",
        "agentest.support.interrupts",
        "agentest.support.terminal",
        "agentest.version",
    }


def test_a_plain_run_does_not_look_for_installed_plugins(project: Project) -> None:
    """A package that cannot be imported goes unnoticed, until a name is unknown or all are listed."""
    project.write("site/broken_plugin.py", "raise RuntimeError('was read')\n")
    project.write("site/broken-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    project.write("site/broken-1.0.dist-info/entry_points.txt", "[agentest.plugins]\nb = broken_plugin\n")
    project.scenario('scenario("books", turns=["Book Friday at nine."])\n')
    env = {"PYTHONPATH": str(project.root / "site")}
    with ScriptedAgent(["Booked."]) as agent:
        project.config(agent.endpoint)
        assert project.agentest("run", env=env).stderr == ""
        assert project.agentest("run", "--engine", "local", env=env).stderr == ""
    listed = project.agentest("--help", env=env)
    assert listed.returncode == 0
    assert "plug-in 'broken_plugin' (broken 1.0) cannot be loaded: RuntimeError: was read" in listed.stderr
