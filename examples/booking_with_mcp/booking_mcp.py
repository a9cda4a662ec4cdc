"""The salon's MCP server: real tools, which book real appointments. It stands for one of your own."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = {"type": "string"}
TOOLS = [
    {
        "name": "check_availability",
        "description": "The free slots of a day.",
        "inputSchema": {
            "type": "object",
            "properties": {"service": TEXT, "day": TEXT},
            "required": ["service", "day"],
        },
    },
    {
        "name": "create_booking",
        "description": "Books a slot.",
        "inputSchema": {
            "type": "object",
            "properties": {"service": TEXT, "day": TEXT, "time": TEXT, "note": TEXT},
            "required": ["service", "day", "time"],
        },
    },
]
SLOTS = {"tuesday": ["09:00", "10:30"], "friday": ["16:00"]}


def check_availability(service: str, day: str) -> dict[str, Any]:
    del service
    return {"day": day, "slots": SLOTS.get(day, [])}


def create_booking(service: str, day: str, time: str, note: str = "") -> dict[str, Any]:
    if time not in SLOTS.get(day, []):
        raise ValueError(f"{time} is taken on {day}")
    print(f"BOOKED {service} {day} {time} {note}".rstrip(), flush=True)
    return {"booking_id": "BK-4711", "service": service, "day": day, "time": time}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    functions = {"check_availability": check_availability, "create_booking": create_booking}
    try:
        text, failed = json.dumps(functions[name](**arguments)), False
    except (KeyError, TypeError, ValueError) as error:
        text, failed = str(error), True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "salon", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    return call(params["name"], params.get("arguments") or {})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            return self._send(202, b"")
        result = answer(message["method"], message.get("params") or {})
        body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return self._send(200, json.dumps(body).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The log is what was booked."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
