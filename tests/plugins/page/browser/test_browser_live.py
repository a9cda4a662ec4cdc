"""Runs that go on while the page looks, in a real browser, and a server that goes away."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from project import Project, free_port

AGENT = "def answer(messages, ctx):\n    return 'Hi.'\n"


def served(project: Project, port: int) -> tuple[subprocess.Popen[str], str]:
    process = project.start("--port", str(port), command="ui")
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://\S+", line):
            return process, found[0]
    raise AssertionError(process.communicate()[1])


def test_a_run_is_started_and_watched_and_the_server_comes_back(page: Any, tmp_path: Path) -> None:
    """A start becomes a run; a terminal's run appears; a new server address is used."""
    project, port = Project(tmp_path), free_port()
    project.write("agent.py", AGENT)
    agent = 'agent: {type: custom, handler: "agent:answer"}'
    project.write("agentest.config.yaml", f"{agent}\nreporters: [json]\nstrict: false\n")
    project.scenario('scenario("greets", turns=["Hello."])\n')
    project.write("half.evalset.json", '{"eval_set_id"')
    process, address = served(project, port)
    try:
        page.goto(address)
        page.get_by_role("link", name="Start one").click()
        page.get_by_text("half.evalset.json:1: is not JSON").wait_for()
        page.get_by_label("greets").check()
        page.get_by_role("button", name="Start", exact=True).click()
        page.get_by_text("passed greets", exact=False).or_(page.get_by_text("✓ passed")).first.wait_for()
        page.get_by_role("link", name="Runs").click()
        rows = page.locator("tbody tr")
        rows.first.wait_for()
        project.run()
        page.wait_for_selector("tbody tr:nth-of-type(2)")
    finally:
        process.kill()
        process.communicate()
    page.get_by_role("status").get_by_text("does not answer").wait_for()
    process, address = served(project, port)
    try:
        page.get_by_label("The server was started anew").fill(address)
        page.get_by_role("button", name="Open", exact=True).click()
        page.wait_for_selector("tbody tr:nth-of-type(2)")
        page.get_by_label("The server was started anew").wait_for(state="detached")
        page.close()
        page.noise.problems.clear()  # the browser reports requests that a server did not answer
    finally:
        process.kill()
        process.communicate()
