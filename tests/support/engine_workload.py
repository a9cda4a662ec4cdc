"""One workload on every engine: the same results, journal, reports and output, but for times and ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from model_server import ModelServer, best, model_keys
from project import Project
from timeless import timeless

CONFIG = """
import contextvars, os
from pathlib import Path
from metrics import Broken, Leaks, Length, Odd, Polite

HERE = os.getcwd()
OF_TURN = contextvars.ContextVar("of_turn", default=None)

async def handler(messages, ctx):
    assert OF_TURN.get() is None
    OF_TURN.set(ctx.conversation_id)
    said = messages[-1]["content"]
    word, _, rest = said.partition(" ")
    if word == "call":
        return f"result {await ctx.resolve_tool(rest, {'a': 1})}"
    if word == "raise":
        raise RuntimeError("the agent is broken")
    if word == "hang":
        await __import__("anyio").sleep_forever()
    if word == "where":
        return f"{os.getcwd() == HERE} {os.environ['OF_THE_TEST']} {Path('beside.txt').read_text()}"
    if word == "keep":
        ctx.record_state({**(ctx.session.state or {}), "messages": len(messages)})
        return f"{ctx.session.session_id}: {ctx.session.state}"
    return f"{said}, please" if word == "polite" else f"answer to {said}"

def plain(messages, ctx):
    return "plain: " + messages[-1]["content"]

config = {
    "agent": {"type": "custom", "name": "h", "handler": handler},
    "agents": {"plain": {"type": "custom", "handler": plain}},
    "reporters": ["console", "json", "junit", "github-actions"],
    "custom_metrics": [Polite(), Leaks(), Length(), Broken(), Odd()],
    "request_timeout_ms": 1500,
    "user": {"check": True},
    **MODEL,
}
"""
METRICS = """
from agentest import ConversationMetric, QualitativeMetric, QuantitativeMetric

class Polite(QuantitativeMetric):
    def score(self, input):
        return {"value": 5 if "please" in input.agent_message else 2, "reason": "by a word"}

class Leaks(QualitativeMetric):
    def evaluate(self, input):
        return "leaks" if "disk" in input.agent_message else "no failure"

class Length(ConversationMetric):
    async def score(self, input):
        return float(len(input.turns)), "turns"

class Broken(QuantitativeMetric):
    def score(self, input):
        if "polite" in input.user_message:
            raise ValueError(f"broken at {input.user_message}")
        return 3

class Odd(QuantitativeMetric):
    async def score(self, input):
        return "no number" if "where" in input.user_message else 4.5
"""
SCENARIOS = """
from agentest import AgentestError, Criterion, scenario, sequence

async def look(args, ctx):
    ctx.state["seen"] = ctx.state.get("seen", 0) + 1
    return {"i": ctx.call_index, "of": ctx.conversation_id, "turn": ctx.turn_index, "scenario": ctx.scenario}

def fails(args):
    raise OSError("the disk is full")

def typed(a: list):
    return 1

def never(args):
    raise AgentestError("never call me")

def twice(conversation, state):
    assert state.get("seen") == 2, f"seen {state}"

tools = {"look": look, "fails": fails, "typed": typed, "never": never, "value": {"a": 1},
    "row": sequence(1, TimeoutError("late"), 3)}
for tool in [*tools, "unknown"]:
    scenario(f"calls {tool}", turns=[f"call {tool}"] * 3, tools=tools, conversations_per_scenario=2,
        trajectory={"expected": [tool], "match_mode": "contains"}, tags=["tool"])
scenario("polite", turns=["polite", {"user_message": "again", "expect": {"contains": "nope"}}])
scenario("raises", turns=["raise", "more"])
scenario("hangs", turns=["hang"])
scenario("where", turns=["where"])
scenario("in a line", turns=["hello", "again"], parallel=False, conversations_per_scenario=4)
scenario("kept", turns=["keep", "keep"], session={"state": {"k": 1}, "session_id": "fixed"},
    final_session_state={"messages": 3, "k": 1})
scenario("plain", agent="plain", turns=["a", "b"], conversations_per_scenario=2)
scenario("final state", turns=["call look"], tools=tools, state={"a": 1}, final_state={"seen": 2})
scenario("checked", turns=["call look", "call look"], tools=tools, state={}, check=twice)
scenario("skipped", turns=["a"], skip="later")
scenario("simulated", goal="Get help.", knowledge=["I am late."], conversations_per_scenario=4)
scenario("judged", goal="Get help.", expected_outcome="Helped.", max_turns=2,
    criteria=["Is nice", Criterion("Is quick", required=False)], thresholds={"goal_completion": 1})
scenario("repeated", goal="Get help.", repeat="2..6", thresholds={"pass_rate": 0.5})
scenario("repeated script", turns=["polite"], repeat="2..5", thresholds={"pass_rate": 0.4, "polite": 4})
scenario("with a phone", goal="Get help.", user_tools={"phone": lambda args: {"n": 1}})
"""
SUMMARY = "summary.md"
ENVIRONMENT = {"OF_THE_TEST": "told", "GITHUB_STEP_SUMMARY": SUMMARY}


PRINTING = """
import sys

sys.stdout.reconfigure(write_through=True)  # as PYTHONUNBUFFERED=1 does it

async def handler(messages, ctx):
    for _ in range(200):
        print("printed", "x" * 500, "y" * 500, "z")
    return "done"

config = {"agent": {"type": "custom", "name": "h", "handler": handler}, "strict": False}
"""


def record_everything(project: Project) -> None:
    """Write a project with something of everything, and recordings of all that models say in it."""
    project.write("metrics.py", METRICS)
    project.write("beside.txt", "a file of the project")
    project.write("a.sim.py", SCENARIOS)
    project.write("b.sim.py", "1 / 0")
    project.write("c.sim.py", "from agentest import scenario\nscenario('x', nonsense=1)")
    with ModelServer(script=best) as model:
        project.write("agentest.config.py", f"MODEL = {model_keys(model)!r}\n{CONFIG}")
        assert project.run("--record", env=ENVIRONMENT).returncode == 1
    (project.root / SUMMARY).unlink()
    project.write("agentest.config.py", f"MODEL = {{}}\n{CONFIG}")


def told(project: Project, *arguments: str) -> dict[str, object]:
    """All that a run leaves and says, without times, ids and the order in which scenarios have ended."""
    folder = project.root / ".agentest"
    done = project.run(*arguments, env=ENVIRONMENT)
    journal = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert journal[-1].pop("start") > 0  # the places of lines depend on times and on their order
    assert journal[-1].pop("index")
    (summary := project.root / SUMMARY).rename(kept := folder / SUMMARY)
    assert not summary.exists()
    cassettes = {path.name: path.read_bytes() for path in (folder / "cassettes").iterdir()}
    return {
        "status": done.returncode,
        "notes": sorted(_lines(done.stderr)),
        "console": sorted(_lines(done.stdout)),
        "results": timeless(json.loads((folder / "results.json").read_text())),
        "journal": sorted(json.dumps(timeless(line)) for line in journal),
        "junit": sorted(_lines((folder / "junit.xml").read_text())),
        "summary": sorted(_lines(kept.read_text())),
        "cassettes": cassettes,
    }


def _lines(text: str) -> Iterator[str]:
    """The lines of a report, without times and the slowest turns, which depend on them."""
    for line in text.splitlines():
        if line.strip() and not re.match(
            r" *[\d,.]+ (ms|s|min)  turn \d|agentest: (waiting for|starting Ray)", line
        ):
            line = re.sub(r"session agentest-\S+", "session …", line)
            line = re.sub(r"runs/\d{8}-[\w-]+", "runs/…", line)
            line = re.sub(r" --(engine|workers|ray-address)=\S+", "", line)
            line = re.sub(r"a conversation: .*", "a conversation: …", line)
            line = re.sub(r'(timestamp|time)="[^"]*"', r'\1="…"', line)
            line = re.sub(r"\d+(\.\d+)? (ms|s|min)\b|\d\d:\d\d|\d{4}-\d\d-\d\d", "…", line)
            yield re.sub(r"[ ─]+", " ", line)


def check_the_same(project: Project, *engine: str) -> None:
    """Check that a run on an engine leaves what a run in this process does: all mocks, sessions, users,
    judges, repeats, metrics of one's own, what breaks, and what is skipped."""
    record_everything(project)
    alone = told(project, "--replay", "--verbose", "--engine", "local")
    assert alone["status"] == 1
    spread = told(project, "--replay", "--verbose", *engine)
    for what, expected in alone.items():
        assert spread[what] == expected, what
