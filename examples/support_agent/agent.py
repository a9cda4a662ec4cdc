"""A customer-support agent without a model, behind the OpenAI chat-completions shape: rules and a few tools.

It finds orders, pays refunds and hands over to people. It keeps no state: every request carries the whole
conversation, and the answer is worked out from it. It only asks for tools; the caller runs them.

    python agent.py --port 8727
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ORDER = re.compile(r"\bORD-\d+\b", re.IGNORECASE)
REFUND = re.compile(r"\b(refund|money back|return)\b", re.IGNORECASE)
PERSON = re.compile(r"\b(human|person|manager|complain\w*|ridiculous)\b", re.IGNORECASE)
LOOKUP = re.compile(r"\b(order|parcel|package|delivery|where|status)\b", re.IGNORECASE)
ATTACK = re.compile(r"\b(ignore|disregard)\b.*\b(rules|instructions)\b|\bdeveloper mode\b", re.IGNORECASE)

ASK_ORDER = "Could you give me your order number? It looks like ORD-100."
CANNOT = "I'm sorry, I can't do that. I can look up orders, handle refunds and hand you over to a person."
HELLO = "Hello! I can look up orders, handle refunds and hand you over to a person."
DOWN = "I'm sorry, our systems are not answering right now. Shall I hand you over to a person?"

Message = dict[str, Any]
Result = dict[str, Any]


def answer(messages: list[Message]) -> str | tuple[str, dict[str, Any]]:
    """A reply, or the name and arguments of the tool that is needed next."""
    said = [str(m.get("content") or "") for m in messages if m["role"] == "user"]
    if any(map(ATTACK.search, said)):  # whoever tried it once gets nothing by asking again
        return CANNOT
    done = results_of_turn(messages)
    if any(result.get("error") for result in done.values()):
        return DOWN
    if PERSON.search(said[-1]):
        return escalate(said[-1], done)
    wants_refund = any(map(REFUND.search, said))
    if not (wants_refund or ORDER.search(said[-1]) or LOOKUP.search(said[-1])):
        return HELLO
    orders = [found for text in said for found in ORDER.findall(text)]
    if not orders:
        return ASK_ORDER
    order = orders[-1].upper()
    return refund(order, done) if wants_refund else look_up(order, done)


def look_up(order: str, done: dict[str, Result]) -> str | tuple[str, dict[str, Any]]:
    if "lookup_order" not in done:
        return "lookup_order", {"order_id": order}
    found = done["lookup_order"]
    if not found.get("status"):
        return f"I can't find {order}. Please check the number."
    return f"{order} is {found['status']}."


def refund(order: str, done: dict[str, Result]) -> str | tuple[str, dict[str, Any]]:
    if "lookup_order" not in done:
        return "lookup_order", {"order_id": order}
    if not done["lookup_order"].get("status"):
        return f"I can't find {order}. Please check the number."
    if "check_refund" not in done:
        return "check_refund", {"order_id": order}
    allowed = done["check_refund"]
    if not allowed.get("eligible"):
        return f"I'm sorry, {order} can't be refunded: {allowed.get('reason', 'it is not eligible')}."
    if "pay_refund" not in done:
        return "pay_refund", {"order_id": order, "amount": allowed["amount"]}
    return f"{allowed['amount']} euros are on their way. Your reference is {done['pay_refund']['refund_id']}."


def escalate(said: str, done: dict[str, Result]) -> str | tuple[str, dict[str, Any]]:
    if "create_ticket" not in done:
        return "create_ticket", {"summary": said}
    return f"I'm sorry. A person will write to you; your ticket is {done['create_ticket']['ticket_id']}."


def results_of_turn(messages: list[Message]) -> dict[str, Result]:
    """What tools have answered since the user spoke, by name."""
    start = max(i for i, m in enumerate(messages) if m["role"] == "user")
    names = {
        call["id"]: call["function"]["name"]
        for message in messages[start:]
        for call in message.get("tool_calls") or []
    }
    return {
        names[m["tool_call_id"]]: as_object(m["content"]) for m in messages[start:] if m["role"] == "tool"
    }


def as_object(text: str) -> Result:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def completion(messages: list[Message]) -> dict[str, Any]:
    """The answer in the shape of a chat completion."""
    said = answer(messages)
    message: Message = {"role": "assistant", "content": said if isinstance(said, str) else None}
    if not isinstance(said, str):
        name, arguments = said
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        message["tool_calls"] = [{"id": f"call_{len(messages)}", "type": "function", "function": function}]
    finish = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "object": "chat.completion",
        "model": "support-agent",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body leave together
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.send({"status": "ok"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send(completion(json.loads(body)["messages"]))

    def send(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet: the scenarios tell what happens."""


def main() -> None:
    parser = argparse.ArgumentParser(description="A rule-based customer-support agent.")
    parser.add_argument("--port", type=int, default=8727)
    port = parser.parse_args().port
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop_signal, lambda *_: sys.exit(0))
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
