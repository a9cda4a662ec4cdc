"""A trace form: what Acme's assistants write about their conversations."""

from collections.abc import Mapping
from typing import Any

from agentest.plugins.authoring.trace_messages import Item
from agentest.plugins.authoring.trace_sessions import ReadTraces


def is_record(record: Mapping[str, Any]) -> bool:
    """Return True for a record of an assistant of Acme."""
    return "acme_session" in record


def read_record(record: Mapping[str, Any], found: ReadTraces) -> bool:
    """Add a record to the sessions."""
    session = found.session(record["acme_session"])
    answered = [Item("assistant", record["reply"])]
    for number, call in enumerate(record.get("tools", ())):
        id = f"{found.here}.{number}"
        answered.insert(-1, Item("call", call["tool"], call["args"], id))
        answered.insert(-1, Item("result", call["tool"], call["result"], id))
    session.add([Item("user", record["message"])], answered)
    found.forms["acme"] += 1
    return True
