"""report.html in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import builders
import pytest

from agentest.domain.events import RunFinished
from agentest.domain.results import RunResult
from agentest.plugins.page.report import HtmlReporter
from agentest.plugins.page.viewer.page import ASSETS

HOSTILE = (
    "</script><script>window.stolen = 1</script><!-- <img src=x onerror='window.stolen = 2'>"
    " \u2028 \u202egnp.exe \ud800 \x00 javascript:stolen() " + "W" * 1_000_000
)
CUT = "This file is cut"


def written(path: Path, result: RunResult, **more: Any) -> str:
    """The report as text."""
    HtmlReporter(path, **more).on_event(RunFinished(result))
    return path.read_text(encoding="utf-8")


def said(id: str, text: str) -> Any:
    """A conversation with this agent message."""
    return builders.conversation_result(id, held=builders.conversation(id, [builders.turn(agent=text)]))


def test_a_report_opens_from_the_disk_and_asks_nobody(page: Any, tmp_path: Path) -> None:
    """The file shows the run and what is opened, without one request; hostile text is text."""
    path = tmp_path / "report.html"
    scenarios = [
        builders.scenario_result("hostile", [said("c1", HOSTILE)], agent=HOSTILE[:90]),
        builders.scenario_result(HOSTILE[:120], tags=(HOSTILE[:60],), agent=HOSTILE[:90]),
    ]
    written(path, builders.run_result(*scenarios))
    page.goto(path.as_uri())
    page.get_by_role("link", name="hostile").first.click()
    page.get_by_text("window.stolen = 2").first.wait_for()
    assert page.evaluate("() => window.stolen") is None
    assert page.locator("img").count() == 0
    assert page.noise.asked == [path.as_uri()]


@contextmanager
def served(first: str, rest: str) -> Iterator[tuple[str, threading.Event]]:
    """A page that arrives in two parts: its address, and what is set for the second to be sent."""
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(first.encode())
            self.wfile.flush()
            released.wait()
            self.wfile.write(rest.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", released
        finally:
            released.set()
            server.shutdown()
            thread.join()


def test_a_report_is_shown_while_it_arrives(page: Any, tmp_path: Path) -> None:
    """Rows appear before transcripts, an incomplete element is not parsed, and missing parts are awaited, not
    reported."""
    text = written(
        tmp_path / "r.html", builders.run_result(builders.scenario_result("s", [said("c", "Hi.")]))
    )
    at = text.index('id="chunk-0">') + 60
    with served(text[:at], text[at:]) as (address, released):
        page.goto(address, wait_until="commit")
        page.get_by_role("link", name="s", exact=True).click()
        page.get_by_role("link", name="s", exact=True).wait_for()
        assert page.get_by_text("Hi.").count() == 0
        assert page.get_by_role("alert").count() == 0
        released.set()
        page.get_by_text("Hi.").wait_for()
    assert page.get_by_text(CUT).count() == 0


@pytest.mark.parametrize("where", ["overview", "chunk-0", "end"])
def test_a_cut_file_says_so(where: str, page: Any, tmp_path: Path) -> None:
    """A truncated file says so, and shows its content."""
    path = tmp_path / "r.html"
    text = written(path, builders.run_result(builders.scenario_result("scenario", [said("c", "Hi.")])))
    path.write_text(text[: text.index(f'id="{where}"') + 60 * (where != "end")], encoding="utf-8")
    page.goto(path.as_uri())
    page.get_by_text(CUT).first.wait_for()
    if where != "overview":
        page.get_by_role("link", name="scenario").first.click()
        page.get_by_text(CUT if where == "chunk-0" else "Hi.").last.wait_for()


def test_transcripts_are_searched(page: Any, tmp_path: Path) -> None:
    """Text in messages and calls is found in any case, with its turn; further hits are counted, and a
    cancelled search ends."""
    call = builders.tool_call(args={"name": 'Zoë "Q" \\'})
    held = [
        said("c1", "Nothing."),
        builders.conversation_result(
            "c2", held=builders.conversation("c2", [builders.turn(), builders.turn(1, tool_calls=(call,))])
        ),
        *(said(f"d{n}", "A DRAGON came.") for n in range(250)),
    ]
    text = written(tmp_path / "r.html", builders.run_result(builders.scenario_result("s", held)))
    data = text[text.index('<script type="application/octet') : text.index("</body>")]
    start = 'import { fileSource } from "./file_source.js"; window.source = fileSource();'
    document = f'<!doctype html><body><script type="module">{start}</script>{data}'

    def answered(route: Any) -> None:
        name = route.request.url.rpartition("/")[2]
        if name.endswith(".js"):
            route.fulfill(content_type="text/javascript", body=(ASSETS / name).read_text())
        else:
            route.fulfill(content_type="text/html", body=document)

    page.route("**/*", answered)
    page.goto("http://report.test/")
    page.wait_for_function("() => window.source")

    def found(wanted: str) -> Any:
        return page.evaluate(
            "async (wanted) => { const hits = await source.search(wanted); "
            "return {hits: [...hits], more: !!hits.more, leftOut: hits.leftOut}; }",
            wanted,
        )

    hit = {"name": "s", "agent": "booking", "conversationId": "c2", "turn": 1, "excerpt": 'Zoë "Q" \\'}
    assert found('zOË "q" \\') == {"hits": [hit], "more": False, "leftOut": 0}
    many = found("dragon")
    assert (len(many["hits"]), many["more"]) == (200, True)
    assert found("unicorn")["hits"] == []
    told = page.evaluate(
        """async () => {
            const told = [], end = new AbortController();
            await source.search("unicorn", null, (at, of) => told.push([at, of]));
            end.abort();
            return [told.at(-1), (await source.search("dragon", end.signal)).length];
        }"""
    )
    assert told[0][0] == told[0][1] >= 1
    assert told[1] == 0


def test_what_had_no_room_is_not_here(page: Any, tmp_path: Path) -> None:
    """A conversation without a transcript is shown as one that is not in the file."""
    path = tmp_path / "r.html"
    written(path, builders.run_result(builders.scenario_result("scenario", [said("c", "Hi.")])), most=10)
    page.goto(path.as_uri())
    page.get_by_role("link", name="scenario").first.click()
    page.get_by_text("not here").first.wait_for()


def test_without_scripts_the_file_says_how_the_run_ended(chromium: Any, tmp_path: Path) -> None:
    """Without scripts the file has the verdict, and the command that prints the run."""
    path = tmp_path / "r.html"
    written(path, builders.run_result(builders.scenario_result("s")), run_id="20260102-030405")
    context = chromium.new_context(java_script_enabled=False)
    shown = context.new_page()
    shown.goto(path.as_uri())
    text = shown.locator("body").inner_text()
    context.close()
    assert "Run 20260102-030405: passed. 1 of 1 scenario passed." in text
    assert "agentest show 20260102-030405 --verbose" in text
