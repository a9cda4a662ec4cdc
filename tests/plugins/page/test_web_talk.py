"""Talks over HTTP, with the routes that the page uses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import anyio
import pytest
from page_at import serve_at_port
from project import Project, free_port

from agentest.plugins.adk.formats.eval_set import tool_responses
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.page.server.json_routes import WebProject as Served
from agentest.plugins.page.server.talk import MOST_KEPT, MOST_UNDER_WAY, PageTalk, Talks
from agentest.plugins.page.talk.talk import ActionNotPossible, TalkChoice, choices, prepare_talk
from agentest.runner.prepare import RunRequest
from agentest.testing import Raw, ScriptedAgent, tool_call

BOOKS = {"file": "a.sim.py", "scenario": "books"}
SCENARIO = (
    'scenario("books", profile="A guest.", goal="Book a table.", knowledge=["We are four."],'
    ' session={"state": {"city": "Bonn"}}, tools={"find": sequence({"n": 1}, {"n": 2})})'
)


class Page:
    """Asks the server as the page does."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, path: str, body: Any = None, *, method: str | None = None) -> tuple[int, Any]:
        method = method or ("GET" if body is None else "POST")
        async with self._session.request(method, path, json=body) as response:
            return response.status, await response.json()

    async def done(self, path: str, body: Any) -> Any:
        status, answer = await self.ask(path, body)
        assert status < 300, answer
        return answer

    async def begun(self, **choice: Any) -> str:
        found: str = (await self.done("/api/talks", choice or BOOKS))["id"]
        return f"/api/talks/{found}"

    async def events(self, talk: str) -> AsyncIterator[dict[str, Any]]:
        async with self._session.get(f"{talk}/events") as response:
            async for line in response.content:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    async def until(
        self, talk: str, condition: Callable[[list[dict[str, Any]]], bool]
    ) -> list[dict[str, Any]]:
        """All events from the first up to the one with which it is so."""
        seen: list[dict[str, Any]] = []
        async for event in self.events(talk):
            seen.append(event)
            if condition(seen):
                return seen
        raise AssertionError(f"it ended before: {seen}")

    async def listening(self, talk: str, times: int = 1) -> list[dict[str, Any]]:
        return await self.until(talk, lambda seen: kinds(seen).count("listening") == times)

    async def turn(self, talk: str, text: str, number: int) -> list[dict[str, Any]]:
        """Say something as the turn of this number, from 1, and wait for the next one."""
        await self.listening(talk, number)
        await self.done(f"{talk}/say", {"text": text})
        return await self.listening(talk, number + 1)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


@asynccontextmanager
async def page(root: Path) -> AsyncIterator[Page]:
    async with serve_at_port(Served(root=root, config=None, output_dir=root / ".agentest"), 0) as served:
        parts = urlsplit(served)
        headers = {"Authorization": f"Bearer {parse_qs(parts.query)['token'][0]}"}
        base = f"http://{parts.netloc}"
        async with aiohttp.ClientSession(base, headers=headers) as session:
            yield Page(session)


def on_page(root: Path, visit: Callable[[Page], Awaitable[None]]) -> None:
    async def go() -> None:
        with anyio.fail_after(40):
            async with page(root) as shown:
                await visit(shown)

    anyio.run(go)


def set_up(project: Project, endpoint: str) -> None:
    project.config(endpoint, agent={"endpoint": endpoint, "send_session_state": True})
    project.scenario(SCENARIO)


def test_a_talk_from_choosing_to_saving(project: Project) -> None:
    """A person chooses, speaks, changes an answer by hand, and saves it three times: the files can be run
    and read, and have the answer that was given by hand."""

    async def visit(shown: Page) -> None:
        _, choices = await shown.ask("/api/talks")
        assert [each["name"] for each in choices["scenarios"]] == ["books"]
        talk = await shown.begun()
        await shown.listening(talk)
        await shown.done(f"{talk}/hold", {"tools": True})
        await shown.done(f"{talk}/say", {"text": "A table on <friday>"})
        seen = await shown.until(talk, lambda seen: seen[-1].get("waiting", False))
        assert json.loads(seen[-1]["proposed"]["resultText"]) == {"n": 1}
        await shown.done(f"{talk}/answer", {"call": 0, "resultText": '{"n": 12345678901234567890}'})
        seen = await shown.listening(talk, 2)
        assert kinds(seen)[:3] == ["ready", "listening", "hold"]
        assert seen[0]["tools"] == ["find"]
        turn = next(each["turn"] for each in seen if each["type"] == "turn")
        assert turn["agentMessage"] == "Booked."
        assert turn["toolCalls"][0]["result"] == {"n": 12345678901234567890}

        case = {"as": "case", "path": "t.evalset.json", "name": "friday"}
        wishes = [
            {"as": "script", "path": "script.sim.py", "name": "a script"},
            {"as": "scenario", "path": "new/sim.sim.py", "name": "a beginning"},
            case,
        ]
        for wish in wishes:
            planned = await shown.done(f"{talk}/save", wish)
            assert not planned["written"]
            assert not (project.root / wish["path"]).exists()
            saved = await shown.done(f"{talk}/save", {**wish, "write": True, "version": planned["version"]})
            assert (project.root / saved["path"]).read_text() == planned["text"]
        again = {**case, "name": "again"}
        planned = await shown.done(f"{talk}/save", again)
        assert "eval_id" in json.loads(planned["text"])
        with (project.root / "t.evalset.json").open("a") as file:
            file.write("\n")
        status, answer = await shown.ask(
            f"{talk}/save", {**again, "write": True, "version": planned["version"]}
        )
        assert (status, "has changed on disk" in answer["error"]) == (409, True)
        planned = await shown.done(f"{talk}/save", again)
        await shown.done(f"{talk}/save", {**again, "write": True, "version": planned["version"]})

    with ScriptedAgent([tool_call("find", day="friday"), "Booked."]) as agent:
        set_up(project, agent.endpoint)
        on_page(project.root, visit)
        found = choices(RunRequest(project.root))
        assert ({each.name for each in found.scenarios}, found.broken) == (
            {"books", "a script", "a beginning"},
            (),
        )
        done = project.run("script.sim.py")
        assert done.returncode == 0, done.stdout
        assert agent.requests[-1]["messages"][-1]["content"] == '{"n": 12345678901234567890}'
    cases = read_eval_set(project.root / "t.evalset.json").eval_set.eval_cases
    assert [case.eval_id for case in cases] == ["friday", "again"]
    assert tool_responses(cases[0].conversation[0].intermediate_data)[0].response == {
        "n": 12345678901234567890
    }
    assert cases[0].session_input.state == {"city": "Bonn"}
    beginning = (project.root / "new" / "sim.sim.py").read_text()
    assert 'goal="Book a table."' in beginning
    assert "# The user began with: " in beginning


REFUSED = {
    "outside": ({"as": "script", "path": "../x.sim.py", "name": "n"}, "outside of the project"),
    "absolute": ({"as": "case", "path": "/tmp/x.test.json", "name": "n"}, "outside of the project"),
    "link": ({"as": "script", "path": "link/x.sim.py", "name": "n"}, "outside of the project"),
    "ending": ({"as": "script", "path": "x.py", "name": "n"}, "must end in .sim.py"),
    "ending alone": ({"as": "case", "path": "a/.test.json", "name": "n"}, "must end in"),
    "there": ({"as": "script", "path": "a.sim.py", "name": "n"}, "is not overwritten"),
    "taken": ({"as": "scenario", "path": "b.sim.py", "name": "books"}, "already (a.sim.py:2)"),
    "not found": ({"as": "script", "path": "venv/b.sim.py", "name": "n"}, "would not find it"),
    "no name": ({"as": "case", "path": "b.test.json", "name": " "}, "give the case an id"),
    "no path": ({"as": "case", "path": "", "name": "n"}, "name the file"),
    "broken set": ({"as": "case", "path": "broken.test.json", "name": "n"}, "broken.test.json"),
    "kind": ({"as": "poem", "path": "b.test.json", "name": "n"}, "script, case, scenario"),
}


def test_invalid_places_to_save(project: Project) -> None:
    """Nothing is written outside of the project, over existing files, or where no run finds it."""
    project.write("broken.test.json", '{"eval_cases": [{"eval_id": 1}]}')
    (project.root / "link").symlink_to("/tmp")

    async def visit(shown: Page) -> None:
        talk = await shown.begun()
        await shown.listening(talk)
        status, answer = await shown.ask(f"{talk}/save", REFUSED["there"][0])
        assert (status, answer["error"][:20]) == (400, "there is no turn to ")
        await shown.turn(talk, "Hello", 1)
        for name, (wish, why) in REFUSED.items():
            status, answer = await shown.ask(f"{talk}/save", {**wish, "write": True})
            assert (status, why in answer["error"]) == (400, True), (name, answer)

    with ScriptedAgent(["Hi."]) as agent:
        set_up(project, agent.endpoint)
        before = sorted(project.root.iterdir())
        on_page(project.root, visit)
    assert sorted(each for each in project.root.iterdir() if each.name != "__pycache__") == before


def test_invalid_requests(project: Project) -> None:
    """Errors are described; an action that is impossible now is a conflict, so that the second page to answer
    a call learns of the first."""

    async def visit(shown: Page) -> None:
        for body, why in (
            ({"file": "a.sim.py", "scenario": "none"}, "none"),
            ({"file": "b.sim.py", "scenario": "b"}, "b.sim.py:1"),
            ({"file": 1}, "`file`"),
            ([], "JSON object"),
        ):
            status, answer = await shown.ask("/api/talks", body)
            assert (status, why in answer["error"]) == (400, True), answer
        assert (await shown.ask("/api/talks/none/say", {"text": "x"}))[0] == 404
        talk = await shown.begun()
        await shown.listening(talk)
        await shown.done(f"{talk}/hold", {"tools": True})
        await shown.done(f"{talk}/say", {"text": "Hello"})
        for path, body, status in (
            ("say", {"text": " "}, 400),
            ("say", {"text": "again"}, 409),
            ("answer", {"call": "0"}, 400),
            ("answer", {"call": 7}, 409),
            ("answer", {"call": 0, "resultText": "{'n'}"}, 400),
            ("answer", {"call": 0, "error": " "}, 400),
            ("answer", {"call": 0, "resultText": "NaN"}, 400),
        ):
            assert (await shown.ask(f"{talk}/{path}", body))[0] == status, (path, body)
        await shown.until(talk, lambda seen: seen[-1].get("waiting", False))
        first = await shown.ask(f"{talk}/answer", {"call": 0, "error": "shut"})
        second = await shown.ask(f"{talk}/answer", {"call": 0, "resultText": "1"})
        assert (first[0], second[0]) == (200, 409)
        await shown.listening(talk, 2)
        await shown.done(f"{talk}/end", {})
        assert (await shown.until(talk, lambda seen: seen[-1]["type"] == "ended"))[-1]["error"] is None

    with ScriptedAgent([tool_call("find"), "Hi."]) as agent:
        set_up(project, agent.endpoint)
        project.write("b.sim.py", "broken(")
        on_page(project.root, visit)


def test_agents_that_fail(project: Project) -> None:
    """The page always learns how a talk ended, and its completed turns can be saved."""

    async def visit(shown: Page) -> None:
        talk = await shown.begun()
        await shown.turn(talk, "Hello", 1)
        await shown.done(f"{talk}/say", {"text": "again"})
        ended = (await shown.until(talk, lambda seen: seen[-1]["type"] == "ended"))[-1]
        assert "not" in ended["error"]
        assert len(ended["turns"]) == 1
        assert ended["unfinishedTurn"]["userMessage"] == "again"
        wish = {"as": "script", "path": "s.sim.py", "name": "s", "write": True}
        assert '"Hello"' in (await shown.done(f"{talk}/save", wish))["text"]
        assert (await shown.ask(f"{talk}/say", {"text": "x"}))[0] == 409

    with ScriptedAgent(["Hi.", Raw(b"\xff<script>", content_type="text/html")]) as agent:
        set_up(project, agent.endpoint)
        on_page(project.root, visit)

    async def unreachable(shown: Page) -> None:
        talk = await shown.begun()
        ended = (await shown.until(talk, lambda seen: seen[-1]["type"] == "ended"))[-1]
        assert ended["error"]
        assert ended["turns"] == []

    set_up(project, f"http://127.0.0.1:{free_port()}/")
    on_page(project.root, unreachable)


def test_the_server_ends_and_leaves_nothing(project: Project) -> None:
    """With the server end its talks, in the middle of a turn too, and the programs that they started."""
    log = project.root / "log"
    project.write(
        "serve.py",
        "import os, sys, http.server, json, time\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "    def do_POST(self): time.sleep(60)\n"
        "    def log_message(self, *a): pass\n"
        "s = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H)\n"
        "open('log', 'a').write(f'{os.getpid()}\\n')\n"
        "s.serve_forever()\n",
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    server = {"command": f"exec python serve.py {port}", "ready": url}
    project.write(
        "agentest.config.yaml",
        json.dumps({"agent": {"endpoint": url, "server": server, "send_session_state": True}}),
    )
    project.scenario(SCENARIO)

    async def visit(shown: Page) -> None:
        talk = await shown.begun()
        await shown.listening(talk)
        status, answer = await shown.ask("/api/talks", BOOKS)
        assert (status, "End that one first" in answer["error"]) == (409, True)
        await shown.done(f"{talk}/say", {"text": "Hello"})
        await shown.until(talk, lambda seen: seen[-1]["type"] == "user")

    on_page(project.root, visit)
    pid = log.read_text().split()[0]
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def chosen(project: Project) -> Any:
    return prepare_talk(RunRequest(project.root), TalkChoice(file="a.sim.py", scenario="books"))


def test_a_few_talks_at_once(project: Project) -> None:
    """More than a few are refused; those that have ended are forgotten, the oldest first."""

    async def go() -> None:
        talks = Talks()
        for _ in range(MOST_UNDER_WAY):
            talks.begin(chosen(project))
        with pytest.raises(ActionNotPossible, match="under way already"):
            talks.begin(chosen(project))
        await talks.close()
        for _ in range(MOST_KEPT + 3):
            last = talks.begin(chosen(project))
            await talks.close()
        assert len(list(talks)) == MOST_KEPT
        assert talks[last.id].ended

    with ScriptedAgent(["Hi."]) as agent:
        set_up(project, agent.endpoint)
        anyio.run(go)


def test_a_talk_without_a_page_ends(project: Project) -> None:
    """It ends on its own, with the reason."""

    async def go() -> None:
        talk = PageTalk(chosen(project), alone_s=0)
        with anyio.fail_after(30):
            events = [event async for event in talk.follow(60)]
        assert "nobody looked" in next(each["text"] for each in events if each and each["type"] == "note")
        watched = PageTalk(chosen(project), alone_s=0)
        with watched.watched():
            async for event in watched.follow(60):
                if event and event["type"] == "listening":
                    break
            assert not watched.ended
        await asyncio.wait([watched._task])

    with ScriptedAgent(["Hi."]) as agent:
        set_up(project, agent.endpoint)
        anyio.run(go)
