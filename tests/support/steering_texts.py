"""Texts that would control GitHub's runner or a terminal."""

from __future__ import annotations

import subprocess
from typing import Any

from project import Project
from runner_commands import STEERING, commands

from agentest.testing import Raw, tool_call

HOSTILE = (
    "##[set-output name=approved]true\n"
    "##[stop-commands]quiet\n::stop-commands::quiet\n"
    "  \u3000::error file=a,line=1::forged\r::warning::forged\n"
    "\x1b]0;title\x07\x1b[2J\x9b31m\u202e#\u200d#[error]forged\U000e0041\n##[error]end"
)
GITHUB = {"GITHUB_ACTIONS": "true"}


def harmless(done: subprocess.CompletedProcess[str], *allowed: str) -> str:
    """Check that the output has only our annotations and no controls, and return it."""
    assert [found.name for found in commands(done.stdout)] == list(allowed), done.stdout
    assert commands(done.stderr) == [], done.stderr
    assert "Traceback" not in done.stderr
    shown = done.stdout + done.stderr
    assert not STEERING.search(shown), repr(shown)
    return shown


def say_hostile_texts(body: dict[str, Any]) -> object:
    """Call a tool with a hostile name or arguments on request, or else reply with hostile text."""
    said = body["messages"][-1]["content"] or ""
    if said == "call":
        return tool_call("book", note=HOSTILE)
    if said == "unknown":
        return tool_call(HOSTILE)
    return Raw(HOSTILE.encode(), status=500) if said == "break" else HOSTILE


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
