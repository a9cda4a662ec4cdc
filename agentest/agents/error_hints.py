"""The likely cause of an agent's refusal, what to try, and what its error says in readable words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

CHAT_PLACE = "is the path right? chat-completions endpoints usually end with /v1/chat/completions"
ADK_PLACE = "is this the address of `adk api_server`, and app_name one of those that its /list-apps tells?"
_CREDENTIALS = "are the credentials right? `headers` of the agent are sent with every request"
_FORM = "the agent takes another form of request; see its documentation for the fields it needs"


def hint(status: int, place: str) -> str:
    """What to look at after an answer of this status; "" where the answer itself has to do.

    `place` says where such agents usually are.
    """
    hints = {
        401: _CREDENTIALS,
        403: _CREDENTIALS,
        404: place,
        405: f"no POST is taken there; {place}",
        422: _FORM,
    }
    return hints.get(status, "")


def is_page(body: bytes) -> bool:
    """Whether a body is markup: HTML for a browser, or XML."""
    return body.lstrip().startswith(b"<")


def readable(body: bytes) -> str:
    """An error's body in one row; FastAPI's `detail`, or pydantic's list, as `field: message` each."""
    text = " ".join(body.decode("utf-8", errors="replace").split())
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return text
    detail = data.get("detail") if isinstance(data, Mapping) else data
    if isinstance(detail, str):
        return detail
    if isinstance(detail, list) and detail and all(map(_is_complaint, detail)):
        return "; ".join(map(_complaint, detail))
    return text


def _is_complaint(item: Any) -> bool:
    return (
        isinstance(item, Mapping)
        and isinstance(item.get("msg"), str)
        and isinstance(item.get("loc", []), list)
    )


def _complaint(item: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in item.get("loc", []))
    return f"{where}: {item['msg']}" if where else str(item["msg"])
