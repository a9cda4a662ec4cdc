"""A hostile page in the same browser: it reads nothing of the page of `agentest ui`, and starts nothing."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from page_at import serve_at_port
from three_servers import Servers, three_servers

from agentest.plugins.page.server.json_routes import WebProject

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
        project = WebProject(root=root, config=None, output_dir=root / ".agentest")
        async with serve_at_port(project, 0) as page:
            address.append(page)
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


ATTACK_ON_TOOLS = """<!doctype html><title>hostile</title><body><script>
const targets = TARGETS;
const form = (to, type) => new Promise((done) => {
  const frame = document.createElement("iframe"); frame.name = "f" + Math.random();
  const made = Object.assign(document.createElement("form"), { method: "POST", action: to, enctype: type });
  made.target = frame.name;
  made.innerHTML = '<input name=\\'{"item":"tea","x":"\\' value=\\'"}\\'>';
  document.body.append(frame, made); frame.onload = () => setTimeout(done, 100); made.submit(); });
const image = (from) => new Promise((done) => {
  const made = new Image(); made.onload = made.onerror = done; made.src = from; });
const socket = (to) => new Promise((done) => {
  const made = new WebSocket(to.replace("http", "ws"));
  made.onopen = () => done("open"); made.onerror = () => done(""); });
const body = '{"item": "tea"}';
(async () => {
  const got = [];
  for (const to of targets) {
    await form(to, "text/plain"); await form(to, "application/x-www-form-urlencoded");
    await form(to, "multipart/form-data"); await image(to);
    const sent = [
      () => fetch(to), () => fetch(to, { method: "POST", body }),
      () => fetch(to, { method: "POST", body, mode: "no-cors" }),
      () => fetch(to, { method: "DELETE" }),
      () => fetch(to, { method: "POST", body, headers: { "Content-Type": "application/json" } }),
    ];
    for (const send of sent) got.push(await send().then((answer) => answer.text()).catch(() => ""));
    navigator.sendBeacon(to, body);
    got.push(await socket(to));
  }
  window.got = got;
})();
</script>"""


@contextmanager
def tools_served(root: Path) -> Iterator[Servers]:
    """The servers of an agent, in a thread."""
    known, ended, found = threading.Event(), threading.Event(), list[Servers]()

    async def serve() -> None:
        async with three_servers(root) as servers:
            found.append(servers)
            known.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert known.wait(30)
    try:
        yield found[0]
    finally:
        ended.set()
        thread.join(30)


def test_a_hostile_page_calls_no_tool(page: Any, tmp_path: Path) -> None:
    """Forms, images, beacons, sockets and scripts of another site: no call, and nothing for the real API."""
    (tmp_path / "secret").mkdir()
    with tools_served(tmp_path) as servers:
        rest, mcp, otlp = (servers.ports[name] for name in ("rest", "mcp", "otlp"))
        targets = [
            f"http://{host}:{at}"
            for host in ("127.0.0.1", "localhost", "evil.localhost")
            for at in (f"{rest}/orders", f"{rest}/orders/1", f"{mcp}/mcp", f"{otlp}/v1/traces")
        ]
        (tmp_path / "secret" / "hostile.html").write_text(
            ATTACK_ON_TOOLS.replace("TARGETS", json.dumps(targets))
        )
        with hostile(tmp_path / "secret") as evil:
            page.goto(evil.replace("127.0.0.1", "evil.localhost"))
            got = page.wait_for_function("window.got").json_value()
            assert set(got) == {""}
        # A name that leads here: the page would be of the server's own origin.
        answer = page.goto(f"http://evil.localhost:{rest}/orders/1")
        assert (answer.status, servers.calls, servers.real) == (403, [], [])
        assert not servers.group.reached
        # An agent in a page of this machine.
        script = f"fetch('http://127.0.0.1:{rest}/orders/1').then((answer) => answer.json())"
        (tmp_path / "secret" / "hostile.html").write_text("<!doctype html><title>agent</title>")
        with hostile(tmp_path / "secret") as agent:
            page.goto(agent.replace("127.0.0.1", "localhost"))
            assert page.evaluate(script) == {"real": True}
        assert [call.name for call in servers.calls] == ["get_order"]
        page.noise.problems.clear()  # the browser reports each request that was refused


def test_a_hostile_page_reads_and_starts_nothing(page: Any, tmp_path: Path) -> None:
    """A page of another origin in the same browser can neither read nor start anything."""
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
