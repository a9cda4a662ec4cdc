"""Navigation between views, as a user with a failed run would do it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import axe
import builders
import page_at
import pytest
import sample_run
from playwright.sync_api import expect
from project import Project, free_port

from agentest.domain.events import RunFinished
from agentest.plugins.page.report import HtmlReporter

# Texts of which a part is not shown.
CUT = """[...document.querySelectorAll('.reason, .causes h3, .causes p')].filter(
    (each) => each.scrollHeight > each.clientHeight + 1).map((each) => each.textContent)"""
SCREENS = ((1440, 900), (1024, 768), (390, 844))


def test_from_a_run_to_what_follows(page: Any, tmp_path: Path) -> None:
    """A run leads to its comparison, and to what ran again; a conversation leads to the new one."""
    run = sample_run.sample_run()
    made, latest = page_at.keep_runs(tmp_path, [run, run])
    asked: list[Any] = []

    def take(route: Any) -> None:
        if route.request.method != "POST":
            return route.fallback()
        asked.append(json.loads(route.request.post_data))
        return route.fulfill(status=201, json={"id": "1", "title": "", "state": "waiting"})

    page.route("**/api/jobs", take)
    page.route("**/api/jobs/1", lambda route: route.fulfill(json={"id": "1", "state": "ended", "run": made}))
    with page_at.served(tmp_path) as first:
        page.goto(f"{first}#/run?of={latest}")
        page.get_by_role("button", name="Run again what failed").click()
        expect(page).to_have_url(re.compile(f"#/run.*of={made}"))
        page.goto(f"{first}#/run?of={latest}")
        page.get_by_role("link", name="Compare with the run before").click()
        expect(page.get_by_role("heading", name="Scenarios", exact=True)).to_be_visible()
        expect(page).to_have_url(re.compile(f"compare.*new={latest}"))
        name = sample_run.wrong_calls().name
        page.goto(f"{first}#/conversation?of={latest}&scenario={name}&agent=booking")
        page.get_by_role("button", name="Run it again").click()
        expect(page).to_have_url(re.compile(f"#/conversation.*of={made}"))
        expect(page.locator(".turn").first).to_be_visible()
        page.close()  # before its server ends, for which it would ask again and again
    assert asked == [{"kind": "rerun", "run": latest}, {"kind": "run", "names": [name]}]


def test_navigation_shows_at_once_where_one_is(page: Any, tmp_path: Path) -> None:
    """While the server is slow, the new view has its heading and its link is marked; the old one is gone."""
    page_at.keep_runs(tmp_path, [sample_run.sample_run()])
    held: list[Any] = []
    for path in ("scenarios", "talks", "cases"):
        page.route(f"**/api/{path}", lambda route: held.append(route))
    with page_at.served(tmp_path) as first:
        page.goto(first)
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        for view in ("Start", "Talk", "Cases"):
            page.get_by_role("link", name=view, exact=True).click()
            expect(page.get_by_role("heading", name=view, level=1)).to_be_visible()
            expect(page.get_by_role("link", name=view, exact=True)).to_have_attribute("aria-current", "page")
            expect(page.get_by_role("heading", name="Runs")).to_be_hidden()
        page.close()
        page.noise.problems.clear()  # the browser reports requests that were not answered


def test_a_choice_is_shown_as_its_command_and_an_early_end_with_its_reason(page: Any, tmp_path: Path) -> None:
    """Scenarios can be selected by name, file or tag. A run without its agent shows the reason at its job."""
    project = Project(tmp_path)
    project.write("agentest.config.yaml", f"agent: {{endpoint: 'http://127.0.0.1:{free_port()}'}}\n")
    project.scenario(
        "for name, tags in (('greets', ['short']), ('asks', ['short']), ('books', [])):\n"
        "    scenario(name, turns=['Hello.'], tags=tags)\n",
        name="talk.sim.py",
    )
    with page_at.served(tmp_path) as first:
        page.goto(f"{first}#/start")
        command = page.locator(".command code")
        expect(command).to_have_text("agentest run")
        page.get_by_label("books").check()
        expect(command).to_have_text("agentest run talk.sim.py::books")
        page.get_by_label("Conversations").fill("2")
        page.get_by_label("short", exact=True).check()
        expect(command).to_have_text("agentest run --conversations=2 talk.sim.py")
        axe.no_finding(page)
        page.get_by_label("talk.sim.py").uncheck()
        page.get_by_label("greets").check()
        page.get_by_role("button", name="Start", exact=True).click()
        printed = page.get_by_label("What it printed")
        expect(printed).to_contain_text("$ agentest run --conversations=2 talk.sim.py::greets")
        expect(printed).to_contain_text("cannot be reached")
        page.close()


def test_a_run_and_a_conversation_are_printed_on_white_without_controls(page: Any, tmp_path: Path) -> None:
    """Also in the dark theme: no navigation, no buttons, heads of columns, reasons in full, within A4."""
    HtmlReporter(tmp_path / "report.html").on_event(RunFinished(sample_run.sample_run()))
    name = sample_run.wrong_calls().name
    page.set_viewport_size({"width": 718, "height": 1000})
    page.emulate_media(media="print", color_scheme="dark")
    for place, heading in (("run", "failed"), (f"conversation?scenario={quote(name)}&agent=booking", name)):
        page.goto(f"{(tmp_path / 'report.html').as_uri()}#/{place}")
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        expect(page.locator("body > header")).to_be_hidden()
        expect(page.locator("main button:visible:not(.more, th button)")).to_have_count(0)
    page.goto(f"{(tmp_path / 'report.html').as_uri()}#/run")
    expect(page.locator(".windowed thead button:visible").first).to_be_visible()
    assert page.evaluate(CUT) == []


@pytest.mark.parametrize("size", SCREENS, ids=lambda size: "x".join(map(str, size)))
def test_a_red_job_leads_to_the_broken_turn_and_its_reason(
    page: Any, tmp_path: Path, size: tuple[int, int]
) -> None:
    """One click from the file of a red job, without scrolling: the verdict with its reason, and the turn."""
    page.set_viewport_size({"width": size[0], "height": size[1]})
    path = tmp_path / "report.html"
    HtmlReporter(path).on_event(
        RunFinished(builders.run_result(sample_run.late_failure(), sample_run.refused()))
    )
    for link, reason, seen in (
        ("Open the first failure", "create_booking: time", "create_booking(time='09:00')"),
        (
            "create_booking: time expected",
            "create_booking: time: expected '10:30', got '09:00'",
            "create_booking(time='09:00')",
        ),
        (
            "the agent answered 500",
            'status 500: {"error": "KeyError: session"}',
            "Status 500 (see its log) from",
        ),
    ):
        page.goto(path.as_uri())
        named = page.get_by_role("link", name=link).first
        expect(named).to_be_in_viewport(ratio=1)
        named.click()
        expect(page.locator(".turn:focus")).to_be_in_viewport()
        line = page.locator(".verdict-line")
        expect(line).to_be_in_viewport(ratio=1)
        expect(line).to_contain_text(reason)
        broken = page.locator(".turn:focus").get_by_text(seen).first
        expect(broken).to_be_in_viewport(ratio=1)
        below = line.bounding_box()
        assert page.locator(".turn:focus h3").bounding_box()["y"] >= below["y"] + below["height"] - 1
