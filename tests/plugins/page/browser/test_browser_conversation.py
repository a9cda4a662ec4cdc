"""The Conversation view in a real browser, over a source whose every answer the tests choose."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import builders
import pytest
import sample_run
from axe import no_finding
from playwright.sync_api import expect
from stored import to_json

from agentest.domain.events import RunFinished
from agentest.domain.results import RunResult
from agentest.plugins.page.report import HtmlReporter
from agentest.plugins.page.viewer.overview import ConversationNumbers, brief, overview, scenario_row
from agentest.plugins.page.viewer.page import PageVariant, page_text
from agentest.plugins.page.viewer.page import page as document
from agentest.store.codec import CODECS

HOST = "http://127.0.0.1:9"
"""Nobody is asked there: every request is answered by the test."""
WRONG, JUDGED, VOUCHER = "books what was asked for", "asks for opening hours", "uses a voucher"
CRASHED, FLAKY, PAYS = "survives a crash", "answers three questions", "pays by card"
EVIDENCE = ".pane.evidence"
CASE, FINE = "booking_set/tuesday", "user books a morning slot"


class Source:
    """Answers the page as the server of `agentest ui` does. Conversations in `lost` have no transcript."""

    def __init__(self, page: Any, result: RunResult, **more: Any) -> None:
        self.page = page
        self.found = {(each["name"], each["agent"]): each for each in to_json(result)["scenarios"]}
        self.rows = {key: [brief(c) for c in each["conversations"]] for key, each in self.found.items()}
        self.more = {"script": "", "spans": [], "command": "", "lost": (), **more}
        page.route("**/*", self._answer)

    def _answer(self, route: Any) -> None:
        asked = urlsplit(route.request.url)
        query = {key: values[0] for key, values in parse_qs(asked.query).items()}
        if not asked.path.startswith("/api/"):
            return route.fulfill(
                content_type="text/html", body=page_text(document(PageVariant.SERVED, "agentest"))
            )
        if asked.path.endswith("/conversation") and query["id"] in self.more["lost"]:
            return route.fulfill(status=404, json={"error": "it is not kept"})
        return route.fulfill(content_type="application/json", body=json.dumps(self._json(asked.path, query)))

    def _json(self, path: str, query: dict[str, str]) -> Any:
        if not path.endswith(("/scenario", "/conversation")):
            return self._overview()
        key = query["name"], query.get("agent", "")
        scenario = dict(self.found[key])
        conversations = scenario.pop("conversations")
        if path.endswith("/scenario"):
            command = self.more["command"]
            rows = self.rows[key]
            return {
                "scenario": scenario,
                "conversations": rows,
                "command": command,
                "show": "agentest show r1",
            }
        one = next(each for each in conversations if each["conversationId"] == query["id"])
        return {"conversation": one, "script": self.more["script"], "spans": self.more["spans"]}

    def _overview(self) -> Any:
        rows = []
        for each in self.found.values():
            numbers = ConversationNumbers()
            for conversation in each["conversations"]:
                numbers.add(conversation)
            rows.append(scenario_row(each, numbers))
        root: list[Any] = []
        return overview(run={"id": "r1", "state": "failed"}, head=None, scenarios=rows, root_causes=root)

    def open(self, scenario: str, **params: Any) -> Any:
        """The view of a conversation, once it is there."""
        where = urlencode({"scenario": scenario, "agent": "booking", **params})
        if self.page.url == "about:blank":
            self.page.goto(f"{HOST}/?token=t#/conversation?{where}")
        else:
            self.page.evaluate("(hash) => { location.hash = hash; }", f"#/conversation?{where}")
        self.page.locator("h1").get_by_text(scenario).wait_for()
        return self.page


@pytest.fixture(scope="module")
def sample() -> RunResult:
    return sample_run.sample_run()


def whole(page: Any) -> None:
    """Open the evidence of the conversation as a whole."""
    page.get_by_role("tab", name="Conversation").click()


def focused(page: Any, id: str) -> None:
    page.locator(f"#{id}:focus").wait_for()


def text_of(page: Any, locator: str) -> str:
    return re.sub(r"\s+", " ", page.locator(locator).first.inner_text())


SHOWN = {
    "judged low": (
        (JUDGED, "1"),
        ("✗ helpfulness 2", "below 4", "The hours are made up.", "Answers of the judge: 2, 3, 1."),
        ("Known facts: contradicted", "All labels: false information, empty promise", "✗ tone no score"),
        (
            "✗ contains does not hold",
            "✓ max_words holds",
            "2 requests · 1 retry",
            "false information · helpfulness 2, below 4 and 2 more",
        ),
    ),
    "not scored": ((JUDGED, "0"), ("Not evaluated: faithfulness (no model configured)",)),
    "criterion and state": (
        (VOUCHER, "1"),
        (
            "✗ violated: uses nobody else's voucher. It says so itself.",
            "voucher.pdf, application/pdf, 12,345",
        ),
        ("2 added, 1 removed", '+ added cart.date = "Friday"', '− removed user was "Ada"'),
    ),
    "no text, no state": ((VOUCHER, "2"), ("(no text; the agent called tools only)", "could not be read")),
    "unfinished": (
        (CRASHED, "1"),
        (
            "(unfinished)",
            "the agent answered with status 500",
            "No reply after 1 request, 0 retries.",
            "ended with status -9",
            "… 40 lines before",
        ),
        ("KeyError: 'date'", "✗ The agent's error"),
    ),
    "calls": (
        (WRONG, "0"),
        (
            "cancel_booking(id='b-7') ✗ forbidden",
            "cancel_booking mocked",
            "✗ its answer was an error: KeyError: 'b-7'",
            "✗ forbidden",
        ),
        ("check_availability(date='Monday')", "+ not expected", '{"free":["9:00","10:30"]}'),
    ),
    "odd call": (
        (WRONG, "1"),
        ("send_mail(invalid arguments:", "not mocked the agent reported it", "✗ invalid arguments: not JSON"),
        ("Expected and actual calls of this turn: ✗ differ", "↕ out of order", "· allowed"),
    ),
    "case of a set": (
        (CASE, "0"),
        ("Expected and actual invocation", "Booked for Tuesday at 9:00.", "≠ differs"),
        ("date='Tuesday'", "date='Monday'", "✗ response_match_score 0.6"),
    ),
    "said on the way": (
        (FINE, "1"),
        ("booking_agent on the way: One moment, I write it down.", "Agent booking_agent", "2 model calls"),
        ("first text after 90 ms",),
    ),
}


def test_each_turn_shows_what_happened_in_it(page: Any, sample: RunResult) -> None:
    """Calls, scores, checks, criteria, state and server output are in their turn."""
    source = Source(page, sample)
    for name, ((scenario, turn), *texts) in SHOWN.items():
        source.open(scenario, turn=turn)
        focused(page, f"turn-{turn}")
        shown = text_of(page, f"#turn-{turn}") + text_of(page, EVIDENCE)
        for text in (each for group in texts for each in group):
            assert text in shown, (name, text, shown)


def test_a_failed_conversation_opens_at_the_turn_that_broke(page: Any, sample: RunResult) -> None:
    """The head has the reason and the blame, the failed turn has the focus, the address names it."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    source = Source(page, sample)
    sent = {"method": "POST", "url": "http://127.0.0.1:8000/chat", "status": 500}
    bodies = {"request": '{"message":"<b>Hi</b>"}', "response": "Internal Server Error"}
    source.found[CRASHED, "booking"]["conversations"][0]["unfinishedTurn"]["exchanges"] = [sent | bodies]
    source.open(CRASHED)
    focused(page, "turn-1")
    page.get_by_text("POST http://127.0.0.1:8000/chat").click()
    expect(page.locator(EVIDENCE)).to_contain_text("Internal Server Error")
    expect(page.locator(EVIDENCE)).to_contain_text('"message": "<b>Hi</b>"')
    page.get_by_role("button", name="Copy request").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == bodies["request"]
    assert "Why it broke ✗ The agent's error: the agent answered with status 500" in text_of(page, EVIDENCE)
    whole(page)
    assert (
        text_of(page, ".why-box")
        == "Why it did not pass Turn 2: The agent's error: the agent answered with status 500"
    )
    page.wait_for_url(re.compile(r"id=c1&turn=1$"))
    source.open(PAYS)
    focused(page, "turn-0")
    whole(page)
    assert "A mock failed, not the agent: mock 'pay' raised KeyError" in text_of(page, ".why-box")
    source.open(PAYS, id="c3")
    page.locator(".why-box").get_by_text("Invalid, so this says nothing of the agent").wait_for()
    source.open(JUDGED)
    focused(page, "turn-1")
    whole(page)
    assert "Root cause: wrong hours (critical)" in text_of(page, ".why-box")
    page.get_by_text("Of the scenario as a whole").click()
    page.get_by_text("helpfulness: average 3.00 is below the threshold 4").wait_for()
    source.open(WRONG)  # the first call that its trajectory forbids, not the later turn with one of its own
    focused(page, "turn-0")
    assert "Turn 1 ✗ Tool calls" in text_of(page, "#turn-0")
    source.open(FINE)
    assert page.locator(".why-box").count() == 0
    source.open("scenarios/broken.sim.py", agent="")
    page.get_by_text("No conversation of this scenario was held.").wait_for()
    page.get_by_text("SyntaxError").wait_for()


def test_expected_and_actual_calls_are_side_by_side(page: Any, sample: RunResult) -> None:
    """Each row describes the difference and links to the call; without rows both sides are text."""
    source = Source(page, sample)
    page = source.open(WRONG)
    focused(page, "turn-0")
    whole(page)
    rows = page.locator("#main .aligned").first.locator("tbody tr")
    said = [re.sub(r"\s+", " ", row.inner_text()) for row in rows.all()]
    assert said[0].startswith("✗ forbidden nothing cancel_booking(id='b-7')")
    assert any(
        row.startswith("≠ differs create_booking(date='Tuesday'")
        and "time: expected '9:00', got '9:30'" in row
        for row in said
    )
    assert any(row == "− missing send_confirmation not made" for row in said)
    rows.nth(0).get_by_role("link").click()
    focused(page, "call-0")
    (held,) = source.found[WRONG, "booking"]["conversations"]
    del held["trajectory"]["alignment"]
    source.open(WRONG, turn=2)
    focused(page, "turn-2")
    whole(page)
    assert "Expected (exactly these) check_availability" in text_of(page, EVIDENCE)


def test_keys_lead_through_turns_conversations_and_scenarios(page: Any, sample: RunResult) -> None:
    """f finds the next problem, j and k turns, n and p conversations and scenarios, u the run."""
    source = Source(page, sample)
    source.open(WRONG, turn=0)
    focused(page, "turn-0")
    page.keyboard.press("f")
    focused(page, "turn-1")
    page.keyboard.press("j")
    focused(page, "turn-2")
    page.keyboard.press("k")
    focused(page, "turn-1")
    page.wait_for_url(re.compile(r"turn=1\b"))
    source.open(FLAKY)
    focused(page, "turn-2")
    assert "Conversation 2 of 5" in text_of(page, "#main nav")
    for key, shown in (("n", "3 of 5"), ("p", "2 of 5"), ("p", "1 of 5"), ("p", "1 of 1")):
        page.keyboard.press(key)
        page.locator("#main nav").get_by_text(f"Conversation {shown}").wait_for()
    page.locator("h1").get_by_text(VOUCHER).wait_for()
    page.keyboard.press("u")
    page.wait_for_url("**#/run")


SPAN = {"traceId": "t", "parentSpanId": None, "about": None, "durationMs": 5.0, "status": "OK", "error": None}
SPANS = [
    {**SPAN, "turnIndex": 0, "spanId": "a", "name": "agent run", "startedAt": "2026-01-02T03:04:05+00:00"},
    {**SPAN, "turnIndex": 0, "spanId": "b", "parentSpanId": "a", "name": "ask model", "about": "model"},
    {
        **SPAN,
        "turnIndex": 0,
        "spanId": "c",
        "parentSpanId": "b",
        "name": "pay",
        "about": "tool",
        "error": "no money",
    },
    {
        **SPAN,
        "turnIndex": 0,
        "spanId": "x",
        "parentSpanId": "y",
        "name": "round",
        "attributes": {"k": "<b>v</b>"},
    },
    {**SPAN, "turnIndex": 0, "spanId": "y", "parentSpanId": "x", "name": "and round"},
    {"turnIndex": 0, "cut": True},
]


def test_requests_to_the_model_are_a_waterfall(page: Any, sample: RunResult) -> None:
    """Each request has a bar, its prompt and answer; what the gateway answered is marked."""
    source = Source(page, sample)
    turn = source.found[FINE, "booking"]["conversations"][0]["turns"][1]
    requests = [CODECS.write(each) for each in sample_run.model_requests()]
    turn |= {"modelMs": 700.0, "modelRequests": requests}
    source.open(FINE, turn=1)
    page.get_by_text("Model: 3 requests, 700 ms, 1 answered inside, ✗ 1 failed").click()
    page.locator(".spans").wait_for()
    rows = page.locator(".spans > li > details > summary").all()
    assert [re.sub(r"\s+", " ", each.inner_text()) for each in rows] == [
        "→ create_booking → log gpt-4o · 400 ms · 120 (100 cached) → 15 tokens answered inside",
        "Booked: <b>Tuesday</b> at 9:00. gpt-4o · 200 ms · 140 → 10 tokens round 1",
        "✗ slow down 100 ms",
    ]
    styles = "all => all.map(e => [e.style.marginLeft, e.style.width].map(parseFloat).map(Math.round))"
    assert page.locator(".spans .bar > span").evaluate_all(styles) == [[0, 51], [51, 25], [87, 13]]
    rows[0].click()
    page.get_by_text("2 new messages before these").wait_for()
    opened = page.locator(".spans > li").nth(0)
    opened.get_by_text("Book 9:00 for Ada.").wait_for()
    opened.locator("dd li").filter(has_text='create_booking {"time": "9:00"} answered inside').wait_for()
    rows[2].click()
    page.locator(".spans > li").nth(2).get_by_text("429").wait_for()
    no_finding(page)
    whole(page)
    assert "(model 700 ms)" in text_of(page, ".timeline")


def test_spans_are_a_tree_and_what_can_be_taken_along_is_there(page: Any, sample: RunResult) -> None:
    """Spans are indented, none is lost in a cycle; command, script, link and record can be copied."""
    more = {"spans": SPANS, "command": "agentest run 'a b.sim.py:7'", "script": "scenario('x')\n"}
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    source = Source(page, sample, **more)
    source.open(FINE, turn=0)
    page.get_by_text("Spans: 5 spans, ✗ 1 failed").click()
    page.locator(".spans").wait_for()  # they are made when the browser says that it is open
    spans = [
        re.sub(r"\s+", " ", each.inner_text())
        for each in page.locator(".spans > li > details > summary").all()
    ]
    assert spans == [
        "level 1: agent run 5 ms",
        "level 2: ask model model · 5 ms",
        "level 3: ✗ pay tool · 5 ms no money",
        "level 1: round 5 ms",
        "level 2: and round 5 ms",
    ]
    page.get_by_text("more spans than are kept").wait_for()
    page.locator(".spans").get_by_text("round").first.click()
    page.get_by_text('"k": "<b>v</b>"').wait_for()
    for label, text in (
        (
            "Copy the link to Turn 1",
            f"{HOST}/#/conversation?scenario=user+books+a+morning+slot&agent=booking&turn=0&id=c1",
        ),
        ("Copy command", "agentest run 'a b.sim.py:7'"),
        ("Copy as scripted scenario", "scenario('x')\n"),
    ):
        page.get_by_role("button", name=label).click()
        page.locator("#announcements").get_by_text("Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == text
        page.evaluate("document.getElementById('announcements').textContent = ''")
        whole(page)
    page.get_by_role("button", name="Copy as JSON").click()
    page.locator("#announcements").get_by_text("Copied").wait_for()
    record = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert record == source.found[FINE, "booking"]["conversations"][0]
    source.more["lost"] = ("c1",)
    page.noise.problems.clear()
    source.open(FLAKY, id="c1")
    page.get_by_text("This prints it where the run is kept: agentest show r1").wait_for()
    page.noise.problems[:] = [each for each in page.noise.problems if "404" not in each]


def test_known_times_are_drawn(page: Any, sample: RunResult) -> None:
    """Each turn has a bar and figures; an unknown time is a question mark outside the bar."""
    source = Source(page, sample)
    held = source.found[CRASHED, "booking"]["conversations"][0]
    held["turns"][0].update(userMs=300.0, latencyMs=600.0)
    held["turns"][0].pop("toolsMs", None)
    source.open(CRASHED)
    focused(page, "turn-1")
    whole(page)
    rows = page.locator(".timeline tbody tr")
    assert re.sub(r"\s+", " ", rows.nth(0).inner_text()).strip() == "Turn 1 300 ms 600 ms ? ? 900 ms"
    pieces = page.locator(".axis .turn-bar").first.locator("span")
    assert pieces.evaluate_all("all => all.map(e => [e.className, e.style.flexGrow])") == [
        ["user", "300"],
        ["agent", "600"],
    ]
    assert text_of(page, ".timeline tfoot").endswith("78 ms 1.0 s")


def test_a_user_with_tools(page: Any) -> None:
    """The user's calls are above its message of that turn, or below the last turn if it then ended the
    conversation; they are not the agent's calls."""
    calls = tuple(
        builders.tool_call(name, {}, result, turn_index=at)
        for name, result, at in (("look", "dark", 1), ("unlock", "done", 1), ("look_again", "<b>lit</b>", 2))
    )
    turns = [builders.turn(0, "It is dark."), builders.turn(1, "I unlocked it.")]
    held = replace(builders.conversation(turns=turns), user_calls=calls)
    made = builders.scenario_result("phone", [builders.conversation_result(held=held)])
    Source(page, builders.run_result(made)).open("phone", turn=1)
    told = text_of(page, "#turn-1")
    places = [
        told.index(part) for part in ("with their own tools", "look()", "unlock()", "I unlocked", "Agent")
    ]
    assert places == sorted(places)
    assert "own tools" not in text_of(page, "#turn-0")
    assert '"<b>lit</b>"' in text_of(page, ".chat ~ .own, div:has(> .chat) ~ .own")
    assert "before it ended" in text_of(page, "main")
    assert page.locator("[id^=call-]").count() == 0
    no_finding(page)


def test_five_hundred_turns_stay_usable(page: Any) -> None:
    """Only some of very many turns are on the page, first that of the address; calls load on opening."""
    source = Source(page, builders.run_result(sample_run.long_conversation()))
    source.open("talks for hours", turn=450)
    focused(page, "turn-450")
    # It is shown again when what is above has its height.
    expect(page.locator("#turn-450 h3")).to_be_in_viewport()
    assert page.locator(".turn").count() == 100
    assert page.locator(".call dd").count() == 0
    page.get_by_role("button", name="earlier turns").click()
    focused(page, "turn-300")
    assert page.locator(".turn").count() == 200
    page.locator("#turn-450").click()
    page.locator(EVIDENCE).get_by_text("check_availability").first.click()
    page.locator(EVIDENCE).get_by_text("day 450-0").wait_for()
    source.open("talks for hours", turn=3)
    focused(page, "turn-3")


YOUNG = {
    "scenario": ("reasons", "goal", "profile", "evalId", "evalSetId", "plannedConversations"),
    "conversation": ("criteria", "evalMetricResultPerInvocation", "initialState", "invalid", "time"),
    "turn": (
        "attachments",
        "author",
        "remarks",
        "stateAfter",
        "stateError",
        "toolsMs",
        "userMs",
        "serverOutput",
    ),
    "call": ("seenBy", "alsoSeenBy", "durationMs"),
    "trajectory": ("alignment", "mode", "expected", "forbidden", "actual"),
}
"""Keys that results of older versions do not have."""


def _without(kind: str, stored: dict[str, Any]) -> None:
    for key in YOUNG[kind]:
        stored.pop(key, None)


def _aged(scenario: dict[str, Any]) -> None:
    """Take from a stored scenario what its first versions did not have."""
    _without("scenario", scenario)
    for each in scenario["conversations"]:
        _without("conversation", each)
        for trajectory in filter(None, [each["trajectory"], *each["perTurnTrajectory"]]):
            _without("trajectory", trajectory)
        for turn in filter(None, [*each["turns"], each["unfinishedTurn"]]):
            _without("turn", turn)
            for call in turn["toolCalls"]:
                _without("call", call)


def test_results_of_older_versions_are_shown(page: Any, sample: RunResult) -> None:
    """Missing facts are left out, without an error or a stray `undefined`."""
    source = Source(page, sample)
    for (name, agent), scenario in source.found.items():
        _aged(scenario)
        if scenario["conversations"] and name != sample_run.HOSTILE_NAME:
            source.open(name, agent=agent)
            page.locator(".turn").first.wait_for()
            assert not re.search(r"undefined|NaN|\[object", page.locator("main").inner_text()), name


def test_a_hostile_transcript_changes_nothing_but_its_own_place(page: Any, tmp_path: Path) -> None:
    """Nothing of it runs, becomes an element, steers text, or gets out of its place, at any width."""
    path = tmp_path / "report.html"
    HtmlReporter(path).on_event(RunFinished(builders.run_result(sample_run.hostile())))
    where = urlencode({"scenario": sample_run.HOSTILE_NAME, "agent": "booking", "turn": 0})
    page.goto(f"{path.as_uri()}#/conversation?{where}")
    focused(page, "turn-0")
    for _ in range(3):  # what is opened has something to open in it
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    for button in page.get_by_role("button", name="show all").all()[:2]:
        button.click()
    assert page.evaluate("window.stolen") is None
    assert page.locator("main :is(script, style, img, iframe, [hidden]:not(button), [onerror])").count() == 0
    assert page.locator('a[href^="javascript"]').count() == 0
    steering = re.compile(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
    )
    assert not steering.search(page.locator("main").inner_text())
    assert "left \\u202eRIGHT-TO-LEFT\\u202c" in text_of(page, "#turn-3 .message.user")
    assert "\\x1b[31mred\\x1b[2J" in text_of(page, "#turn-4 .message.user")
    for width in (1280, 375):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert [each.inner_text() for each in page.locator(".turn h3").all()] == [
            f"Turn {i + 1}" for i in range(9)
        ]
    assert set(page.noise.asked) == {page.noise.asked[0]}


@pytest.mark.parametrize("scenario", [WRONG, JUDGED])
def test_it_can_be_used_without_eyes_and_hands(page: Any, sample: RunResult, scenario: str) -> None:
    """axe finds nothing serious in either theme, all opened; a phone shows it without moving sideways."""
    source = Source(page, sample, spans=SPANS)
    source.open(scenario)
    page.locator("#turn-1").wait_for()
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    no_finding(page)
    page.set_viewport_size({"width": 375, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_on_paper_everything_is_open(page: Any, sample: RunResult) -> None:
    """Everything that can be opened is open for printing, and closed again after."""
    Source(page, sample).open(FINE)
    before = page.locator("details[open]:visible").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open]):not(.no-print)").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]:visible").count() == before
