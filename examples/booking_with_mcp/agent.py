"""An agent that runs its own tools, which are behind MCP: where, the variable SALON_MCP_URL says.

It stands for an agent of any framework: it has a model's part (`think`), and a client of MCP.
"""

from __future__ import annotations

import json
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

TOOLS_AT = os.environ.get("SALON_MCP_URL", "http://127.0.0.1:9100/mcp")


def call_tool(name: str, arguments: dict[str, Any]) -> Any:
    params = {"name": name, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    with urlopen(Request(TOOLS_AT, json.dumps(message).encode(), headers)) as answered:
        result = json.load(answered)["result"]
    text = result["content"][0]["text"]
    return {"error": text} if result.get("isError") else json.loads(text)


def think(message: str) -> str:
    day = re.search(r"monday|tuesday|friday", message.lower())
    time = re.search(r"\d\d:\d\d", message)
    if not day:
        return "Which day would suit you?"
    if not time:
        slots = call_tool("check_availability", {"service": "haircut", "day": day[0]})["slots"]
        return f"On {day[0]} there is {' and '.join(slots)}." if slots else f"{day[0]} is full."
    booking = call_tool("create_booking", {"service": "haircut", "day": day[0], "time": time[0]})
    if "error" in booking:
        return f"That did not work: {booking['error']}."
    return f"Booked for {booking['day']} at {booking['time']}: {booking['booking_id']}."


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps({"reply": think(asked["message"])}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
