"""Functions of users that block forever: the run ends, and says which function and what its limit was."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from project import Project, clean_environment

import agentest

SHORT = """
import agentest.support.deadlines as deadlines
deadlines.FUNCTION_S = 2.0
from agentest.cli.main import main
main()
"""
CONFIG = """
custom_metrics: ["kinds:Plain", "kinds:Async", "kinds:Whole"]
agent: {type: custom, handler: "kinds:handler"}
agents:
  plain: {type: custom, handler: "kinds:blocks"}
  async: {type: custom, handler: "kinds:blocks_the_loop"}
request_timeout_ms: 2000
reporters: [json]
strict: false
"""
KINDS = """
import time
from agentest import ConversationMetric, QuantitativeMetric

def blocks(*values, **named):
    time.sleep(1e6)  # plain
    return "x"

async def blocks_the_loop(*values, **named):
    time.sleep(1e6)  # async
    return "x"

async def handler(messages, ctx):
    if messages[-1]["content"].startswith("use "):
        await ctx.resolve_tool(messages[-1]["content"].removeprefix("use "), {"q": 1})
    return "done"

class Plain(QuantitativeMetric):
    def score(self, input): return blocks() if input.user_message == "Plain" else 1

class Async(QuantitativeMetric):
    async def score(self, input): return await blocks_the_loop() if input.user_message == "Async" else 1

class Whole(ConversationMetric):
    def score(self, input): return blocks() if input.turns[0].user_message == "Whole" else 1
"""
SCENARIOS = """
from agentest import call, one_of, scenario
from kinds import blocks, blocks_the_loop

used = {"turns": ["use a"], "tools": {"a": 1}}
said = {"turns": ["hello"]}
expected = {
    "where": [call("a", where=blocks)],
    "argument": [call("a", q=blocks)],
    "inner matcher": [call("a", q=one_of(2, blocks))],
    "result": [call("a", result=blocks)],
}
for name, calls in expected.items():
    scenario(name, **used, trajectory={"expected": calls})
scenario("forbidden", **used, trajectory={"forbidden": [call("a", where=blocks)]})
scenario("mock", **{**used, "tools": {"a": blocks}})
scenario("async mock", **{**used, "tools": {"a": blocks_the_loop}})
scenario("check", **said, check=blocks)
scenario("async check", **said, check=blocks_the_loop)
scenario("never", **said, never=[blocks])
scenario("says", **said, expect={"says": blocks})
scenario("final state", **used, state={"x": 1}, final_state={"x": blocks})
for name in ("Plain", "Async", "Whole"):
    scenario(name, turns=[name], thresholds={name.lower(): 1})
scenario("handler", turns=["hello"], agent="plain")
scenario("async handler", turns=["hello"], agent="async")
"""


FUNCTIONS = {
    *("CustomAgent.handler", "CustomAgent.context", "HttpAgent.app", "AsgiAgent.app"),
    *("Scenario.check", "Scenario.never_checks", "Never.checks", "ExpectedCall.where"),
    "BoundFunction.function",
}
"""Fields of configurations, scenarios and mocks with functions of users, which the tests here block."""


def test_every_field_with_a_function_is_tested_here() -> None:
    """Matchers, metrics, expectations and final states take functions among other values."""
    package, found = Path(agentest.__file__).parent, set[str]()
    for path in (
        path for folder in ("config", "scenarios", "mocks") for path in (package / folder).rglob("*")
    ):
        tree = ast.parse(path.read_text(encoding="utf-8") if path.suffix == ".py" else "")
        for made in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for field in (each for each in made.body if isinstance(each, ast.AnnAssign)):
                words = {*re.findall(r"\w+", ast.unparse(field.annotation))}
                if words & {"Callable", "Check", "AsgiApp"} and not made.name.startswith("_"):
                    found.add(f"{made.name}.{ast.unparse(field.target)}")
    assert found == FUNCTIONS


def run_to_end(project: Project) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SHORT, "run"],
        cwd=project.root,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_no_kind_of_function_blocks_the_run(project: Project) -> None:
    """The scenario of each has a verdict that is not a pass, with the line that blocks and the limit."""
    project.write("agentest.config.yaml", CONFIG)
    kinds = project.write("kinds.py", KINDS).read_text(encoding="utf-8").splitlines()
    project.write("a.sim.py", SCENARIOS)

    ended = run_to_end(project)

    assert ended.returncode in (1, 2), ended.stderr
    texts = {each["name"]: (each["status"], str(each)) for each in project.results["scenarios"]}
    assert len(texts) == SCENARIOS.count("\nscenario(") + 4 + 3
    lines = {f"kinds.py:{n}" for n, line in enumerate(kinds, 1) if line.endswith(("# plain", "# async"))}
    for name, (status, text) in texts.items():
        assert status == ("failed" if name in ("handler", "async handler") else "errored"), (name, text)
        assert re.search(r"within \d+ s|blocked the event loop", text), (name, text)
        assert any(line in text for line in lines), (name, text)


PUPPETS = """
from agentest.agents.port import AgentReply
from agentest.plugin import Plugin
from agentest.plugins.frameworks.client import Framework

plugin = Plugin("puppets")
plugin.agent_object("Puppets", "puppets:open_puppet", classes="puppets:Puppet", help="a Puppet")
plugin.reporter("slow", "puppets:Slow", help="Block.")

class Puppet:
    async def turn(self, messages, gate): return AgentReply("done")

class Slow:
    name = "slow"
    def __init__(self, *_): ...
    def on_event(self, event): blocks()

open_puppet = Framework("Puppets", lambda puppet: lambda context, key: puppet).open
"""
OPENED = """
from puppets import Puppet
agent = Puppet()
def make(): return blocks() and agent
async def make_async(): return await asyncio.sleep(1e6)
async def make_blocked(): return await blocks_the_loop()
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
    blocks()
import asyncio
"""


def opened(project: Project, agent: str, reporters: str = "json") -> subprocess.CompletedProcess[str]:
    settings = f"agent: {{{agent}}}\nplugins: [puppets]\nreporters: [{reporters}]\nrequest_timeout_ms: 4000\n"
    project.write("agentest.config.yaml", settings)
    project.write("kinds.py", KINDS + OPENED)
    project.write("puppets.py", PUPPETS.replace("blocks()", "__import__('kinds').blocks()"))
    project.write(
        "a.sim.py", "from agentest import scenario\nscenario('a', turns=['hello'], expect={'says': 'done'})\n"
    )
    return run_to_end(project)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (
            "type: custom, handler: 'kinds:make'",
            "handler: make() raised EventLoopBlocked: it blocked the event loop for a minute at ",
        ),
        (
            "type: custom, handler: 'kinds:make_async'",
            "handler: make_async() raised FunctionTimeout: gave no answer within 2 s",
        ),
        (
            "type: custom, handler: 'kinds:make_blocked'",
            "handler: make_blocked() raised EventLoopBlocked: it blocked the event loop for a minute at ",
        ),
        ("type: http, app: 'kinds:app', body: {a: '{{message}}'}, reply: a", "it blocked the event loop for"),
    ],
)
def test_an_agent_that_is_never_made_ends_the_run(project: Project, agent: str, text: str) -> None:
    """By a factory, or the startup of an application; the message names the line that blocks."""
    ended = opened(project, agent)
    assert ended.returncode == 2
    assert text in ended.stderr, ended.stderr
    assert re.search(r"within 2 s|kinds\.py:\d+", ended.stderr), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("context", ["blocks", "blocks_the_loop", "make_async"])
def test_a_context_that_is_never_made_fails_its_conversation(project: Project, context: str) -> None:
    """As the agent's own code."""
    ended = opened(project, f"type: custom, handler: 'kinds:agent', context: 'kinds:{context}'")
    assert ended.returncode in (1, 2), ended.stderr
    (each,) = project.results["scenarios"]
    assert each["status"] == "failed"
    late = r"`context` names raised EventLoopBlocked: .* for a minute at kinds\.py:\d+|not answer within 4 s"
    assert re.search(late, str(each)), each


@pytest.mark.slow
def test_a_reporter_that_blocks_costs_nothing_but_its_report(project: Project) -> None:
    """The other reports are complete, and the run says which reporter failed, and where."""
    ended = opened(project, "type: custom, handler: 'kinds:handler'", "slow, json")
    assert [each["status"] for each in project.results["scenarios"]] == ["passed"], ended.stderr
    assert re.search(
        r"reporter slow failed: EventLoopBlocked: it blocked the event loop for a minute at \S*kinds\.py:\d+",
        ended.stderr,
    )
    assert ended.returncode == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no timer of processor time")
def test_a_function_that_never_returns_the_lock_of_python(project: Project) -> None:
    """No thread can end it, so the process ends, and a shell says where it stands."""
    project.write("agentest.config.yaml", CONFIG)
    project.write("kinds.py", KINDS)
    project.write(
        "a.sim.py",
        "import re\n"
        "from agentest import scenario\n"
        "def endless(conversation):\n"
        "    assert re.match(r'(a+)+$', 'a' * 60 + '!')\n"
        "scenario('a', turns=['hello'], check=endless)\n",
    )

    ended = run_to_end(project)

    assert ended.returncode == -signal.SIGPROF
    assert "a function held Python's lock for 4 s of processor time" in ended.stderr
    assert f'File "{project.root}/a.sim.py", line 4 in endless' in ended.stderr
    assert "agentest run --resume" in ended.stderr
