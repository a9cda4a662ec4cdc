"""A small agent to try Agentest on: it books tables at a restaurant. Written by `agentest init --demo`.

It needs nothing but Python: no key, no packages, no network. It speaks OpenAI's chat completions, and works
its answer out of the whole conversation, which every request carries. It asks the caller to run its two
tools, as such agents do: in a test Agentest is the caller, and the scenario's mocks answer.
"""

from __future__ import annotations

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GREETING = "Hello! I can tell you our opening hours, and book a table."
ASK = {
    "day": "Which day would you like to come?",
    "time": "At what time would you like to come?",
    "people": "For how many people?",
}
REFUSAL = {"message": "Missing required parameter: 'messages'.", "type": "invalid", "param": "messages"}
DAY = re.compile(r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b")
TIME = re.compile(r"\b([01]?\d|2[0-3]):([0-5]\d)\b")
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
NUMBER = rf"(\d+|{'|'.join(NUMBERS)})"
PEOPLE = re.compile(rf"\bfor {NUMBER}\b|\b{NUMBER} (?:people|of us)\b")


def reply(messages: list[dict[str, Any]]) -> str | tuple[str, dict[str, Any]]:
    """What to say, or the tool to call with its arguments."""
    if messages and messages[-1].get("role") == "tool":
        return after_tool(result_of(messages[-1]))
    texts = [str(m.get("content") or "").lower() for m in messages if m.get("role") == "user"]
    last = texts[-1] if texts else ""
    if re.search(r"\b(?:open|hours|close)\b", last):
        day = DAY.search(last)
        return ("opening_hours", {"day": day[0]}) if day else ASK["day"]
    if any("book" in text or "table" in text for text in texts) and "thank" not in last:
        return book(" ".join(texts))
    return "You are welcome." if "thank" in last else GREETING


def book(text: str) -> str | tuple[str, dict[str, Any]]:
    """Book, or ask for what is missing."""
    day, time, people = DAY.findall(text), TIME.findall(text), PEOPLE.findall(text)
    details = {"day": day, "time": time, "people": people}
    missing = next((name for name, values in details.items() if not values), None)
    if missing:
        return ASK[missing]
    number = "".join(people[-1])
    wanted = {"day": day[-1], "time": ":".join(time[-1]), "people": NUMBERS.get(number) or int(number)}
    return "book_table", wanted


def after_tool(result: dict[str, Any]) -> str:
    """What to say of a tool's result. A booking that was not made is never confirmed."""
    if "opens" in result:
        return f"We are open from {result['opens']} to {result['closes']}."
    if "reference" in result:
        return f"Your table is booked. Your reference is {result['reference']}."
    return "I am sorry, our system does not answer. Please try again later."


def result_of(message: dict[str, Any]) -> dict[str, Any]:
    """What a tool answered; nothing where that is not an object."""
    try:
        result = json.loads(message.get("content") or "")
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}


def message_of(answer: str | tuple[str, dict[str, Any]], number: int) -> dict[str, Any]:
    """An answer as chat completions have it."""
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    name, arguments = answer
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call-{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class Handler(BaseHTTPRequestHandler):
    """POST /v1/chat/completions, and GET /health for who waits until the agent is up."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        up = self.path == "/health"
        self.send(200 if up else 404, {"status": "ok" if up else "not found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            messages = json.loads(body)["messages"]
            message = message_of(reply(messages), len(messages))
        except (ValueError, KeyError, TypeError, AttributeError):
            return self.send(400, {"error": REFUSAL})
        self.send(200, {"object": "chat.completion", "choices": [{"index": 0, "message": message}]})

    def send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing: a run makes many requests."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    ThreadingHTTPServer.request_queue_size = 128  # many conversations begin at once
    ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()
