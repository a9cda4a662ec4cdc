"""Functions of users that block forever: the run ends, and says which function and what its limit was."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from project import Project, clean_environment

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
