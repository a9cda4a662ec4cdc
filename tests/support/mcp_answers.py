"""Answers of the real MCP servers of tests. Uses only the standard library, for a fast start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BOOKING = {
    "name": "create_booking",
    "inputSchema": {"type": "object", "properties": {"date": {"type": "string"}}, "required": ["date"]},
}
SLOTS = {"name": "slots", "inputSchema": {"type": "object"}}
ANSWERS = {
    "slots": {"content": [{"type": "text", "text": '["r9"]'}], "structuredContent": {"result": ["r9"]}},
    "create_booking": {"content": [{"type": "text", "text": '{"id": 1}'}]},
    "photo": {"content": [{"type": "image", "data": "AA", "mimeType": "image/png"}]},
    "fail": {"content": [{"type": "text", "text": "no way"}], "isError": True},
}


def result_of(message: dict[str, Any], pages: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a server's answer, with its tools in these pages; an unknown tool gives an error."""
    head, params = {"jsonrpc": "2.0", "id": message["id"]}, message["params"]
    match message["method"]:
        case "initialize":
            return {**head, "result": {"protocolVersion": "2025-03-26", "capabilities": {}, "serverInfo": {}}}
        case "tools/list":
            number = int(params.get("cursor", 0))
            following = {"nextCursor": str(number + 1)} if number + 1 < len(pages) else {}
            return {**head, "result": {"tools": pages[number], **following}}
        case "tools/call" if params["name"] in ANSWERS:
            return {**head, "result": ANSWERS[params["name"]]}
    return {**head, "error": {"code": -32602, "message": "no such tool"}}
