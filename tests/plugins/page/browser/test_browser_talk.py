"""The Talk view in a real browser, with `agentest ui` in its own process."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import axe
from project import DEADLINE_S, Project

from agentest.testing import ScriptedAgent, tool_call

SCENARIO = (
    'scenario("books", profile="A guest.", goal="Book a table.",'
    ' tools={"find": sequence({"n": 1}, {"n": 2})})'
)
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202egnp.\u202c \x1b[31mred" + "w" * 50_000


@contextmanager
def served(page: Any, project: Project) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`agentest ui`, and its first address. The page is closed before the server ends."""
    process = project.start("--port", "0", command="ui")
    try:
        assert process.stdout
        found = (re.search(r"http://\S+", line) for line in process.stdout)
        yield next(each[0] for each in found if each), process
        page.close()  # else it asks for the server again and again, and the browser reports that
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)


def begin(page: Any, address: str, scenario: str = "books") -> None:
    page.goto(f"{address}#/talk")
    page.get_by_label("Scenario").select_option(label=scenario)
    page.get_by_role("button", name="Begin").click()
    page.get_by_text("Your turn.").wait_for()


def test_a_talk_by_keyboard_alone(page: Any, project: Project) -> None:
    """A person starts, writes, changes an answer and saves a scenario by keyboard; text of agents and tools
    stays text; reloading shows the same."""
    script = [tool_call("find", day=HOSTILE[:60]), HOSTILE, "Done."]
    with ScriptedAgent(script) as agent:
        project.config(agent.endpoint)
        project.scenario(SCENARIO)
        with served(page, project) as (address, _):
            page.goto(f"{address}#/talk")
            page.get_by_label("Scenario").focus()
            page.keyboard.type("books")
            page.get_by_role("button", name="Begin").focus()
            page.keyboard.press("Enter")
            page.get_by_text("Your turn.").wait_for()
            assert page.evaluate("document.activeElement.ariaLabel") == "Your message"
            page.get_by_label("Hold tool calls").focus()
            page.keyboard.press("Space")
            page.get_by_label("Your message").focus()
            page.keyboard.type("one")
            page.keyboard.press("Shift+Enter")
            page.keyboard.type("two")
            page.keyboard.press("Enter")
            answer = page.get_by_label("Answer of find")
            answer.wait_for()
            assert answer.input_value() == '{\n  "n": 1\n}'
            page.locator(".call textarea:focus").wait_for()
            page.keyboard.press("Control+A")
            page.keyboard.type("{n: 7}")
            page.keyboard.press("Control+Enter")
            page.get_by_text("the answer is not JSON").wait_for()
            page.keyboard.press("Control+A")
            page.keyboard.type('{"n": 7}')
            page.keyboard.press("Control+Enter")
            page.get_by_text("Your turn.").wait_for()
            page.get_by_text("answered by hand").wait_for()
            assert agent.requests[-1]["messages"][-1]["content"] == '{"n": 7}'
            assert "one\ntwo" in agent.requests[0]["messages"][-1]["content"]
            assert page.locator("main img, main script").count() == 0
            refused = [each for each in page.noise.problems if "status of 400" in each]
            assert page.noise.problems == refused[:1]  # the browser reports what was no JSON
            page.noise.problems.clear()
            axe.no_finding(page)
            page.reload()
            page.get_by_text("answered by hand").wait_for()
            page.get_by_text("Your turn.").wait_for()  # the last of what the page is told again
            assert page.get_by_label("Hold tool calls").is_checked()
            page.get_by_role("button", name="Save…").focus()
            page.keyboard.press("Enter")
            page.get_by_label("A scripted scenario").check()
            page.get_by_text("A new file").wait_for()
            page.get_by_label("Name").focus()
            page.keyboard.press("Control+A")
            page.keyboard.type("by keys")
            page.locator("dialog pre", has_text="by keys").wait_for()
            page.keyboard.press("Enter")
            page.get_by_text("agentest run by_keys.sim.py").wait_for()
            page.keyboard.press("Enter")
            page.locator("dialog").wait_for(state="detached")
    saved = (project.root / "by_keys.sim.py").read_text()
    assert '"find": {"n": 7}' in saved
    assert "turns=" in saved


def test_two_tabs_and_a_server_that_is_killed(page: Any, project: Project) -> None:
    """Both pages of one talk agree; Stop ends a hanging turn at once; the page reports a dead server."""
    project.write(
        "agentest.config.py",
        "import asyncio\n"
        "async def handler(messages, ctx):\n"
        "    await asyncio.sleep(0 if messages[-1]['content'] == 'hello' else 60)\n"
        "    return 'Hi.'\n"
        "config = {'agent': {'type': 'custom', 'handler': handler}}\n",
    )
    project.scenario(SCENARIO)
    with served(page, project) as (address, process):
        begin(page, address)
        other = page.context.new_page()
        other.goto(page.url)
        other.get_by_text("Your turn.").wait_for()
        page.get_by_label("Your message").fill("hello")
        page.get_by_label("Your message").press("Enter")
        for tab in (page, other):  # so that what stands there of a turn is of the next one
            tab.get_by_text("Hi.", exact=True).wait_for()
            tab.get_by_text("Your turn.").wait_for()
        other.get_by_label("Your message").fill("hang")
        other.get_by_role("button", name="Send").click()
        page.get_by_text("the agent is at work").wait_for()
        page.get_by_role("button", name="Stop").click()
        for tab in (page, other):
            tab.get_by_text("was stopped in the middle of a turn").wait_for()
            assert not tab.get_by_label("Your message").is_visible()
        begin(page, address)
        process.send_signal(signal.SIGINT)
        page.get_by_text(re.compile("It has ended|does not answer")).first.wait_for()
    page.noise.problems.clear()  # requests to a server that is gone


def test_saving_shows_what_is_written(page: Any, project: Project) -> None:
    """The dialog previews the file, refuses invalid input, and adds a case to a set; a scenario that cannot
    start shows why."""
    with ScriptedAgent([tool_call("any"), "Hi."]) as agent:
        project.config(agent.endpoint)
        project.scenario(SCENARIO)
        project.write("b.sim.py", "from agentest import scenario\nscenario(\n")
        with served(page, project) as (address, _):
            page.goto(f"{address}#/talk")
            page.get_by_text("b.sim.py:2: ").wait_for()
            page.get_by_role("button", name="Begin").click()
            page.get_by_text("Your turn.").wait_for()
            page.get_by_label("Your message").fill("hello")
            page.get_by_label("Your message").press("Enter")
            page.get_by_text("Nothing mocks this tool").wait_for()
            page.get_by_label("The tool").first.select_option("error")
            page.get_by_label("Answer of any").fill("shut")
            page.get_by_role("button", name="Send this answer").click()
            page.get_by_text("Hi.", exact=True).wait_for()
            page.get_by_role("button", name="Save…").click()
            page.get_by_label("File").fill("../out.evalset.json")
            page.get_by_text("is outside of the project").wait_for()
            assert page.get_by_role("button", name="Save", exact=True).is_disabled()
            page.get_by_label("File").fill("set.evalset.json")
            page.locator("dialog pre", has_text="eval_id").wait_for()
            page.get_by_role("button", name="Save", exact=True).click()
            page.get_by_text("agentest eval set.evalset.json").wait_for()
    assert (project.root / "set.evalset.json").exists()
    page.noise.problems.clear()  # the browser reports the requests that were refused
