"""An HTTP agent that calls the tool `stock` at our MCP server for each word of a message."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.request import Request, urlopen

from project import Project


class StockAgent:
    """The agent, until the block ends. Special words: `hang` never answers, `stray` makes a call without a
    conversation."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True
        self.hangs = False
        self.ended = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def configure(self, project: Project, *, nameless: bool = False, **keys: Any) -> None:
        """Write a configuration. `nameless`: its calls do not name their conversation."""
        told = {"message": "{{message}}", "session": "{{session_id}}", "mcp": "{{mcp_url}}"}
        agent = {
            "type": "http",
            "endpoint": f"http://127.0.0.1:{self.port}/",
            "body": {**told, "nameless": nameless},
            "reply": "reply",
            "mcp_mock": True,
            **keys,
        }
        project.config("", agent=agent)

    def reply(self, body: dict[str, Any], baggage: str) -> str:
        """Return the reply to a message."""
        if "hang" in body["message"]:
            self.hangs = True
            self.ended.wait()
            return ""
        # What all conversations share: the address of one alone would name it.
        url = body["mcp"].rpartition("/")[0]
        return " ".join(_answer(url, word, baggage, body["nameless"]) for word in body["message"].split())


def _answer(url: str, word: str, baggage: str, nameless: bool) -> str:
    names = {} if nameless else {"baggage": baggage}
    if word == "stray":
        names = {"x-agentest-conversation": "nobody"}
    params = {"name": "stock", "arguments": {"item": word}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **names}
    with urlopen(Request(url, json.dumps(message).encode(), headers)) as answer:
        return str(json.load(answer)["result"]["content"][0]["text"])


def _handler_for(agent: StockAgent) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            reply = json.dumps({"reply": agent.reply(body, self.headers["baggage"])}).encode()
            if agent.ended.is_set():
                return
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
