"""Evaluation sets edited on the page, in a real browser."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import evalset_documents as documents
import page_at
import pytest
import sample_run
from page_at import serve_at_port

from agentest.plugins.page.server.json_routes import WebProject

NAME = "shop.evalset.json"
ODD = "two <img src=x onerror=alert(1)> \u202e"
GREET = documents.use("greet", who="me")
ONE = documents.case("one", documents.invocation("Hello.", "Hi.", [GREET]), owner="me")
TWO = documents.case(ODD, documents.invocation("Bye."))


class Site:
    """A server for a project in its own thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        project = WebProject(root=self.folder, config=None, output_dir=self.folder / ".agentest")
        async with serve_at_port(project, 0) as served:
            self.address = served
            self._ready.set()
            await self._end.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    def open(self, page: Any, place: str) -> None:
        """Show a place of the page, as `#/cases?…` of its address."""
        page.goto(f"{self.address}#/{place}")

    def text(self, name: str = NAME) -> str:
        return (self.folder / name).read_text()

    def cases(self, name: str = NAME) -> list[Any]:
        return list(json.loads(self.text(name))["eval_cases"])


@pytest.fixture
def site(page: Any, tmp_path: Path) -> Iterator[Site]:
    """A project with a set of two cases, and its page, which is closed before its server ends."""
    (tmp_path / NAME).write_text(documents.text(documents.eval_set("shop", ONE, TWO)) + "\n")
    (tmp_path / "agentest.config.yaml").write_text("agent: {endpoint: 'http://localhost:1'}\n")
    (tmp_path / "a.sim.py").write_text("from agentest import scenario\nscenario('ordering', turns=['Hi.'])\n")
    served = Site(tmp_path)
    yield served
    page.close()  # else it asks for the server again and again, and the browser reports that
    served.close()


def saved(page: Any) -> None:
    page.get_by_role("status").get_by_text("Saved", exact=True).wait_for()


def were_refused(page: Any) -> None:
    """Check that the browser reports only the errors of requests that the server refused."""
    assert all("status of 4" in said for said in page.noise.problems)
    page.noise.problems.clear()


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as expected

    return expected(locator)


def test_scenario_files_are_listed_on_request(page: Any, site: Site) -> None:
    """Scenarios have file and line, and a broken file its error."""
    (site.folder / "b.sim.py").write_text("raise ValueError('broken')\n")
    site.open(page, "cases")
    page.get_by_text("Scenario files", exact=True).click()
    page.get_by_text("ordering", exact=True).wait_for()
    page.get_by_text("a.sim.py:2").wait_for()
    page.get_by_text("b.sim.py:").click()
    page.get_by_text("ValueError: broken").wait_for()


def test_a_case_is_edited_with_the_keyboard_alone(page: Any, site: Site) -> None:
    """From the list to the saved message without a mouse; the file differs in that message alone."""
    before = site.text()
    site.open(page, "cases")
    page.get_by_role("link", name="one", exact=True).wait_for()
    for key in ("j", "j", "Enter"):
        page.keyboard.press(key)
    page.get_by_label("User says").wait_for()
    field = page.get_by_label("User says")
    while not field.evaluate("element => element === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("Good day.")
    page.keyboard.press("Control+s")
    saved(page)
    assert site.text() == before.replace("Hello.", "Good day.")


def test_everything_of_a_case_can_be_edited(page: Any, site: Site) -> None:
    """Turns, calls, replies, session, rubrics and tags are written as the reader wants them."""
    site.open(page, f"cases?file={NAME}&case=one")
    page.get_by_label("Id", exact=True).fill("first")
    page.get_by_role("button", name="Add a call").click()
    page.keyboard.type("book")
    page.get_by_label("Arguments").nth(1).fill('{"slot": [1, 2]}')
    page.get_by_role("button", name="Move up Call 2").click()
    page.get_by_role("button", name="Add a turn").click()
    page.keyboard.type("And now?")
    page.get_by_label("Expect tool calls").nth(1).check()
    page.get_by_label("Expected reply").nth(1).fill("Now.")
    page.get_by_text("Session and rubrics").click()
    page.get_by_label("A session of its own").check()
    page.get_by_label("State at the start").fill('{"cart": []}')
    page.get_by_role("button", name="Add a rubric").last.click()
    page.get_by_label("What must be true").fill("It is polite.")
    page.get_by_text("What must happen, in the words of scenario files").click()
    page.get_by_label("Tags").fill('["smoke", "slow"]')
    page.get_by_role("button", name="Save").click()
    page.get_by_role("heading", name="first").wait_for()
    first = site.cases()[0]
    uses = first["conversation"][0]["intermediate_data"]["tool_uses"]
    assert uses == [{"name": "book", "args": {"slot": [1, 2]}}, GREET]
    assert first["conversation"][1] == {
        "user_content": {"role": "user", "parts": [{"text": "And now?"}]},
        "intermediate_data": {"tool_uses": []},
        "final_response": {"role": "model", "parts": [{"text": "Now."}]},
    }
    assert first["session_input"] == {"app_name": "app", "user_id": "user", "state": {"cart": []}}
    assert first["rubrics"][0]["rubric_content"] == {"text_property": "It is polite."}
    assert (first["agentest"], first["owner"]) == ({"tags": ["smoke", "slow"]}, "me")


def test_expectations_are_written_as_in_scenario_files(page: Any, site: Site) -> None:
    """The parser's error appears next to the field; valid text is saved."""
    site.open(page, f"cases?file={NAME}&case=one")
    page.get_by_text("What must happen, in the words of scenario files").click()
    calls = page.get_by_label("Calls of the whole conversation")
    calls.fill('[{"name": "books", "expectd": ["book"]}]')
    page.get_by_role("button", name="Save").click()
    page.get_by_text("`agentest.trajectory[0]`: unknown key `expectd`; did you mean `expected`?").wait_for()
    were_refused(page)
    expect(calls).to_be_focused()
    wanted = [{"name": "books", "expected": ["book"], "maxCalls": 2}]
    calls.fill(json.dumps(wanted))
    page.get_by_label("State of the mocks at the end").fill('{"n": 1}')
    page.get_by_role("button", name="Save").click()
    saved(page)
    assert site.cases()[0]["agentest"] == {"trajectory": wanted, "final_state": {"n": 1}}


def test_cases_and_sets_are_made_copied_and_deleted(page: Any, site: Site) -> None:
    """A new set comes with its first case; a copy is there at once, and a case goes when that is meant."""
    site.open(page, "cases")
    page.get_by_text("New set", exact=True).click()
    page.get_by_label("Name", exact=True).fill("sets/new")
    page.get_by_label("Kind").select_option(".test.json")
    page.get_by_role("button", name="Go on", exact=True).click()
    page.get_by_label("User says").fill("Hi.")
    page.keyboard.press("Control+s")
    page.get_by_role("heading", name="case_1").wait_for()
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("heading", name="case_1_copy").wait_for()
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Delete").click()
    assert len(site.cases("sets/new.test.json")) == 2
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    page.get_by_text("1 case", exact=True).wait_for()
    assert [case["eval_id"] for case in site.cases("sets/new.test.json")] == ["case_1"]
    page.get_by_role("link", name="New case with a simulated user").click()
    page.get_by_label("First message").fill("Hello?")
    assert page.get_by_role("button", name="Add a turn").count() == 0
    page.get_by_label("Plan").fill("Ask.")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("heading", name="case_2").wait_for()
    cases = site.cases("sets/new.test.json")
    assert [case["eval_id"] for case in cases] == ["case_1", "case_2"]
    assert cases[1]["conversation_scenario"] == {"starting_prompt": "Hello?", "conversation_plan": "Ask."}


def test_texts_are_edited_and_checked(page: Any, site: Site) -> None:
    """A case, a set and criteria can be written as text; what cannot be read is refused and not written."""
    site.open(page, f"cases?file={NAME}&case=one&as=text")
    area = page.get_by_label("The case as JSON")
    area.fill(area.input_value().replace("Hello.", "Hello"))
    page.keyboard.press("Control+s")
    saved(page)
    assert site.cases()[0]["conversation"][0]["user_content"]["parts"] == [{"text": "Hello"}]
    site.open(page, f"cases?file={NAME}")
    page.get_by_role("link", name="Write criteria").click()
    area = page.get_by_label("The file as text")
    area.fill('{"criteria": {"safety_v1": 7}}')
    page.get_by_role("button", name="Save").click()
    page.get_by_text("safety_v1.threshold: must be from 0 to 1").wait_for()
    assert not (site.folder / "test_config.json").exists()
    area.fill('{"criteria": {"safety_v1": 1}}\n')
    page.get_by_role("button", name="Save").click()
    saved(page)
    assert site.text("test_config.json") == '{"criteria": {"safety_v1": 1}}\n'
    were_refused(page)


def test_what_is_wrong_stands_beside_its_field(page: Any, site: Site) -> None:
    """The reader's message belongs to the field while it is typed, for screen readers too."""
    before = site.text()
    site.open(page, f"cases?file={NAME}&case=one")
    arguments = page.get_by_label("Arguments")
    arguments.fill('{"who": ')
    expect(arguments).to_have_attribute("aria-invalid", "true")
    expect(arguments).to_have_accessible_description("JSON is not JSON: Unexpected end of JSON input")
    page.keyboard.press("Control+s")
    page.get_by_text("Not saved: a field holds no JSON.").wait_for()
    arguments.fill("{}")
    page.get_by_label("Id", exact=True).fill(ODD)
    described = "by which the case is run 2 cases have this id"
    expect(page.get_by_label("Id", exact=True)).to_have_accessible_description(described)
    page.keyboard.press("Control+s")
    page.get_by_text("Not saved: `agentest eval` would not read it.").wait_for()
    expect(page.get_by_label("Id", exact=True)).to_be_focused()
    assert site.text() == before
    were_refused(page)


def test_two_tabs_edit_one_file(page: Any, site: Site) -> None:
    """The second tab to save sees the first one's changes, and none is lost unseen."""
    site.open(page, f"cases?file={NAME}&case=one")
    page.get_by_label("User says").fill("From the first tab.")
    other = page.context.new_page()
    site.open(other, f"cases?file={NAME}&case=one")
    other.get_by_label("Expected reply").fill("From the other tab.")
    other.keyboard.press("Control+s")
    saved(other)
    page.bring_to_front()
    page.keyboard.press("Control+s")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("ins")).to_contain_text("From the other tab.")
    dialog.get_by_role("button", name="Go on editing").click()
    assert "From the first tab." not in site.text()
    page.keyboard.press("Control+s")
    dialog.get_by_role("button", name="Save mine over theirs").click()
    saved(page)
    assert "From the first tab." in site.text()
    other.bring_to_front()
    other.get_by_label("User says").fill("Once more.")
    other.keyboard.press("Control+s")
    other.get_by_role("button", name="Take theirs, drop mine").click()
    expect(other.get_by_label("User says")).to_have_value("From the first tab.")
    were_refused(page)


def test_a_file_that_changes_on_the_disk_is_kept(page: Any, site: Site) -> None:
    """Other changes to the file are kept; a deleted file is recreated only on request."""
    site.open(page, f"cases?file={NAME}&case=one")
    page.get_by_label("User says").fill("Mine.")
    (site.folder / NAME).write_text(site.text().replace("Bye.", "Theirs."))
    page.keyboard.press("Control+s")
    page.get_by_role("button", name="Save mine, keep the rest").click()
    saved(page)
    assert [part in site.text() for part in ("Mine.", "Theirs.")] == [True, True]
    page.get_by_label("User says").fill("Again.")
    (site.folder / NAME).unlink()
    page.keyboard.press("Control+s")
    page.get_by_role("dialog").get_by_text("does not exist any more").wait_for()
    page.get_by_role("button", name="Go on editing").click()
    assert not (site.folder / NAME).exists()
    were_refused(page)


def test_unsaved_changes_are_not_lost_and_hostile_names_do_nothing(page: Any, site: Site) -> None:
    """Leaving asks for confirmation; foreign ids and keys are text."""
    asked: list[str] = []
    answers = iter((False, True))

    def answer(dialog: Any) -> None:
        asked.append(dialog.message)
        dialog.accept() if next(answers) else dialog.dismiss()

    page.on("dialog", answer)
    site.open(page, f"cases?file={NAME}&case=one")
    page.get_by_label("User says").fill("Not saved.")
    with page.expect_event("dialog"):
        page.get_by_role("link", name="two <img").click()
    expect(page.get_by_label("User says")).to_have_value("Not saved.")
    page.get_by_role("link", name="two <img").click()
    expect(page.get_by_label("User says")).to_have_value("Bye.")
    assert asked == ["What you changed is not saved. Leave it?"] * 2
    assert page.locator("main img").count() == 0
    page.get_by_text("default criteria compare").wait_for()


def test_a_conversation_of_a_run_becomes_a_case(page: Any, site: Site) -> None:
    """Two clicks from a conversation that is looked at to a case in a set, which is shown before."""
    run = page_at.keep_runs(site.folder, [sample_run.sample_run()])[0]
    name = sample_run.wrong_calls().name
    site.open(page, f"conversation?of={run}&scenario={quote(name)}&agent=booking")
    page.get_by_role("button", name="Save as a case").click()
    assert page.locator("dialog option").get_attribute("value") == NAME
    page.get_by_role("dialog").get_by_label("File").fill(NAME)
    page.get_by_text(f"Behind the cases of {NAME}").wait_for()
    page.keyboard.press("Enter")
    page.get_by_text(f"agentest eval {NAME}").wait_for()
    assert [case["eval_id"] for case in site.cases()] == ["one", ODD, f"{name} by hand"]
