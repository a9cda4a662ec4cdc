"""If tools may run on either side, one conversation shows where before others start, over real HTTP."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest
from project import Project

HELLO = [
    {"type": "text-start", "id": "t"},
    {"type": "text-delta", "id": "t", "delta": "Done."},
    {"type": "text-end", "id": "t"},
]
REFUND = {"type": "tool-input-available", "toolCallId": "c1", "toolName": "refund", "input": {"id": 1}}


class Backend:
    """An AI SDK backend. A message with `refund` refunds: by its own tool, or by handing the call over."""

    def __init__(self, *, own: bool, fails: bool = False, text: bool = False) -> None:
        """`fails`: whether it ends with an error after its own tool ran. `text`: whether it streams text."""
        self.own = own
        self.fails = fails
        self.text = text
        self.refunds = 0
        self.most = 0
        """How many of its chats were under way at once before the first call was handed over."""
        self.handed_over = False
        self._chats: set[str] = set()
        self._open: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/api/chat"

    @property
    def chats(self) -> int:
        """How many conversations it saw."""
        return len(self._chats)

    def answer(self, body: dict[str, Any]) -> list[Any]:
        """The chunks of a reply."""
        self._chats.add(body["id"])
        last = body["messages"][-1]
        asked = last["role"] == "user" and "refund" in json.dumps(last)
        if not asked:
            return HELLO
        if self.own:
            self.refunds += 1
            end = [{"type": "error", "errorText": "out of credit"}] if self.fails else HELLO
            return [REFUND, {"type": "tool-output-available", "toolCallId": "c1", "output": {}}, *end]
        if not self.handed_over:
            self.most = len(self._chats)
        self.handed_over = True
        return [REFUND]


def _handler_for(backend: Backend) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if backend.text:
                backend.answer(body)
                self._send(b"Done.", "text/plain")
                return
            chunks = [{"type": "start", "messageId": "m"}, *backend.answer(body)]
            chunks.append({"type": "finish", "finishReason": "stop"})
            text = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
            self._send(text.encode(), "text/event-stream")

        def _send(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def configure(project: Project, backend: Backend, **keys: Any) -> None:
    project.config("", agent={"type": "ai_sdk", "endpoint": backend.endpoint}, concurrency=8, **keys)


def suite(*turns: str, more: str = "") -> str:
    return "\n".join(
        f'scenario("s{n}", turns=["{turn}"], tools={{"refund": {{"ok": True}}}}{more})'
        for n, turn in enumerate(turns)
    )


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["here", "workers"])
@pytest.mark.parametrize("ban", ["", ', trajectory={"forbidden": ["refund"]}'], ids=["plain", "banned"])
def test_the_first_real_tool_stops_the_run(project: Project, arguments: tuple[str, ...], ban: str) -> None:
    """One real refund, not twenty: the run names the tool and exits with status 2."""
    project.scenario(suite(*["refund"] * 8, more=f", conversations_per_scenario=3{ban}"))
    with Backend(own=True) as backend:
        configure(project, backend)
        ran = project.run(*arguments)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert backend.refunds == 1
    assert "agent 'agent' ran tool 'refund' itself, which scenario 's0' mocks" in ran.stdout
    assert "tool calls: not seen yet" in ran.stdout
    assert all(each["status"] != "passed" for each in project.results["scenarios"])


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["here", "workers"])
def test_others_begin_once_a_call_was_handed_over(project: Project, arguments: tuple[str, ...]) -> None:
    """Conversations that call nothing go one by one; the first call that is handed over lets all begin."""
    turns = ["hello", "refund", *["refund"] * 4]
    project.scenario(suite(*turns, more=", conversations_per_scenario=2"))
    with Backend(own=False) as backend:
        configure(project, backend)
        ran = project.run(*arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert backend.most == 3, "two of the first scenario, and one of the second"
    assert backend.chats == 12


def test_a_suite_that_calls_nothing_is_not_sequential_for_ever(project: Project) -> None:
    """After five sequential conversations the others start, and each runs once."""
    project.scenario(suite(*["hello"] * 9, more=", parallel=False, conversations_per_scenario=2"))
    with Backend(own=False) as backend:
        configure(project, backend)
        ran = project.run()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert backend.chats == 18


@pytest.mark.parametrize("keys", [{"exclusive": True}, {}], ids=["exclusive", "shared"])
def test_real_tools_behind_other_orders(project: Project, keys: dict[str, Any]) -> None:
    """With an exclusive agent, with `repeat` and with scenarios without mocks before, one real tool runs."""
    plain = 'scenario("plain", turns=["hello"], conversations_per_scenario=3)\n'
    project.scenario(plain + suite("hello", "refund", "refund", more=", repeat={'min': 2, 'max': 4}"))
    with Backend(own=True) as backend:
        agent = {"type": "ai_sdk", "endpoint": backend.endpoint, **keys}
        project.config("", agent=agent, concurrency=8)
        ran = project.run()
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert backend.refunds == 1


def test_a_real_tool_of_a_reply_that_failed(project: Project) -> None:
    """An agent that ran a mocked tool and then failed has run the real tool: the run stops."""
    project.scenario(suite(*["refund"] * 4, more=", conversations_per_scenario=3"))
    with Backend(own=True, fails=True) as backend:
        configure(project, backend)
        ran = project.run()
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert backend.refunds == 1
    assert "no mock was called, and the real tool ran  1 scenario" in ran.stdout
    assert "If it may run, remove its mock" in ran.stdout
    assert "out of credit" in ran.stdout


@pytest.mark.parametrize("keys", [{}, {"exclusive": True}], ids=["shared", "exclusive"])
@pytest.mark.parametrize("several", ["compare", "agents"])
def test_several_agents_go_first_one_after_another(
    project: Project, several: str, keys: dict[str, Any]
) -> None:
    """Agents with one backend have one real tool: it runs once, whatever their number."""
    with Backend(own=True) as backend:
        agent = {"type": "ai_sdk", "endpoint": backend.endpoint}
        # Other addresses, so that exclusive agents do not wait for each other as agents.
        others = [{**agent, **keys, "endpoint": f"{backend.endpoint}?{n}", "name": f"b{n}"} for n in range(3)]
        if several == "compare":
            project.scenario(suite(*["refund"] * 3))
            project.config("", agent={**agent, **keys}, compare=others, concurrency=8)
        else:
            project.scenario(
                "\n".join(suite("refund", more=f', agent="b{n}"').replace('"s0"', f'"{n}"') for n in range(3))
            )
            project.config("", agent=agent, agents={each["name"]: each for each in others}, concurrency=8)
        ran = project.run()
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert backend.refunds == 1


def test_text_streams_hand_over_no_call(project: Project) -> None:
    """A backend that streams text hides its calls: the real tool runs once, as no mock can answer it."""
    project.scenario(suite(*["refund"] * 4, more=", conversations_per_scenario=3"))
    with Backend(own=True, text=True) as backend:
        configure(project, backend)
        ran = project.run()
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert backend.refunds == 1
    assert "answered with a text stream, which hands over no call" in ran.stdout
