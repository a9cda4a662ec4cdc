"""A hostile page in the same browser: it reads nothing of the page of `agentest ui`, and starts nothing."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agentest.web.app import serving
from agentest.web.project import Project

ATTACK = """<!doctype html><title>hostile</title><body><script>
const at = ADDRESS;
const tries = {
  read: () => fetch(`${at}/api/runs`).then((answer) => answer.text()),
  page: () => fetch(`${at}/`, { credentials: "include" }).then((answer) => answer.text()),
  start: () =>
    fetch(`${at}/api/jobs`, { method: "POST", mode: "no-cors", credentials: "include",
    headers: { "Content-Type": "text/plain" }, body: '{"kind": "run"}' })
    .then((answer) => answer.type === "opaque" ? "" : "read"),
  preflight: () => fetch(`${at}/api/jobs`, { method: "POST", headers: { "Content-Type": "application/json",
    Authorization: "Bearer x" }, body: '{"kind": "run"}' }).then((answer) => answer.text()),
  script: () => new Promise((done, failed) => {
    const tag = document.createElement("script"); tag.onload = () => done("loaded"); tag.onerror = failed;
    tag.src = `${at}/api/runs`; document.body.append(tag); }),
  events: () => new Promise((done, failed) => {
    const source = new EventSource(`${at}/api/events`);
    source.onmessage = done; source.onerror = () => { source.close(); failed(); }; }),
  socket: () => new Promise((done, failed) => {
    const socket = new WebSocket(at.replace("http", "ws") + "/api/events");
    socket.onopen = () => done("open"); socket.onerror = failed; }),
  frame: () => new Promise((done, failed) => {
    const frame = document.createElement("iframe"); frame.src = `${at}/`;
    frame.onload = () => { try { done(frame.contentDocument.body.innerText || ""); } catch { failed(); } };
    document.body.append(frame); }),
  window: () => new Promise((done, failed) => {
    const opened = window.open(`${at}/`); setTimeout(() => {
    try { done(opened.document.body.innerText); } catch { failed(); } }, 300); }),
};
(async () => {
  const got = {};
  for (const [name, attempt] of Object.entries(tries)) got[name] = await attempt().catch(() => "");
  window.got = got;
})();
</script>"""


@contextmanager
def served(root: Path) -> Iterator[str]:
    """The address of the page, with its token."""
    known, ended, address = threading.Event(), threading.Event(), list[str]()

    async def serve() -> None:
        project = Project(root=root, config=None, output_dir=root / ".agentest")
        async with serving(project, 0) as page:
            address.append(page.address)
            known.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert known.wait(30)
    try:
        yield address[0]
    finally:
        ended.set()
        thread.join(30)


@contextmanager
def hostile(folder: Path) -> Iterator[str]:
    """A page on another port of this machine, which is another origin of the same site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hostile.html"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_hostile_page_reads_and_starts_nothing(page: Any, tmp_path: Path) -> None:
    """Whatever a page of another origin tries while ours is open in the same browser, it gets nothing."""
    (tmp_path / "secret").mkdir()
    with served(tmp_path) as address:
        origin, _, token = address.partition("/?token=")
        page.goto(address)
        page.get_by_text("No run is kept yet").wait_for()
        assert token not in page.url
        assert token not in page.content()
        for host in ("127.0.0.1", "localhost"):
            attack = ATTACK.replace("ADDRESS", repr(origin.replace("127.0.0.1", host)))
            (tmp_path / "secret" / "hostile.html").write_text(attack)
            with hostile(tmp_path / "secret") as evil:
                other = page.context.new_page()
                other.goto(evil)
                got = other.wait_for_function("window.got").json_value()
                other.close()
            assert {name for name, text in got.items() if text} == set(), got
        asked = f"fetch('/api/jobs', {{headers: {{Authorization: 'Bearer {token}'}}}}).then((a) => a.json())"
        assert page.evaluate(asked)["jobs"] == []
        assert page.evaluate("navigator.serviceWorker.register('/x.js').catch((e) => e.name)") != ""
        page.close()  # before its server ends, for which it would ask again and again
        page.noise.problems.clear()  # of the last line: the page's policy has refused it
