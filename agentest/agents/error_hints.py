"""Hints for HTTP errors of an agent: what to check, and a readable form of the error's body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentest.support.lazy_dataclasses import dataclass

CHAT_PLACE = "is the path right? chat-completions endpoints usually end with /v1/chat/completions"
ADK_PLACE = "is this the address of `adk api_server`, and app_name one of those that its /list-apps tells?"
_CREDENTIALS = "are the credentials right? `headers` of the agent are sent with every request"
_FORM = "the agent takes another form of request; see its documentation for the fields it needs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResponse:
    """One response, with the part of the body that was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body's JSON value, or None."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def hint(status: int, location: str) -> str:
    """Return what to check after a response with this status, or "".

    Args:
        status: the HTTP status.
        place: a hint about the usual address of such agents.
    """
    hints = {
        401: _CREDENTIALS,
        403: _CREDENTIALS,
        404: location,
        405: f"no POST is taken there; {location}",
        422: _FORM,
    }
    return hints.get(status, "")


def is_page(body: bytes) -> bool:
    """Return True if a body is HTML or XML."""
    return body.lstrip().startswith(b"<")


def readable(body: bytes) -> str:
    """Return an error's body on one line. The errors of FastAPI and pydantic become `field: message`."""
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
