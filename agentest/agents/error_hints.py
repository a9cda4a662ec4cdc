"""Hints for HTTP errors of an agent: what to check, and a readable form of the error's body."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from agentest.support.json_text import json_or
from agentest.support.lazy_dataclasses import dataclass

_CREDENTIALS = 'are the credentials right? In `agent`, write headers: {Authorization: "Bearer ${TOKEN}"}'
_LOGIN = {"login", "log-in", "signin", "sign-in", "sign_in", "auth", "sso", "oauth", "saml"}
_WANTS_TLS = re.compile(rb"HTTP request (was sent )?to (an )?HTTPS (server|port)", re.I)


_LOCKED = re.compile(r"database (table )?is locked", re.I)
_OVERLOADED = re.compile(
    r"answered 429\b|concurren(t|cy)\b.{0,40}\b(limit|exceeded|reached)"
    r"|(exceeded|reached)\b.{0,40}\bconcurren"
    r"|too many (concurrent |pending |open )?(requests|connections|runs)|maximum pending requests"
    r"|queue is full|server (is )?(busy|overloaded)|QueuePool limit|no available instance|rate exceeded",
    re.I,
)
"""What servers and frameworks write if they take no more requests at once."""


def load_hint(texts: Iterable[str]) -> str:
    """Return what to change if an error or a server's output shows too many conversations at once, or ""."""
    found = list(texts)
    if any(map(_LOCKED.search, found)):
        return (
            "SQLite lets one conversation write at a time: keep sessions in memory (`adk api_server "
            "--session_service_uri memory://`), or set `concurrency: 1`"
        )
    if any(map(_OVERLOADED.search, found)):
        return "Fewer conversations at once may help: lower `concurrency`, or raise the server's own limit"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResponse:
    """One response, with the part of the body that was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def json(self) -> Any:
        """The body's JSON value, or None."""
        return json_or(self.body)

    @property
    def first_object(self) -> Mapping[str, Any]:
        """The first JSON object of the body, of a list in it, or of its events; empty if there is none."""
        text = self.body.decode("utf-8", errors="replace").lstrip("\ufeff \r\n\t")
        is_whole = text.startswith(("{", "["))
        texts = [text] if is_whole else [line[5:] for line in text.splitlines() if line.startswith("data:")]
        for each in texts:
            with suppress(ValueError, RecursionError):
                if (value := json.loads(each)) is not None:
                    first = value[0] if isinstance(value, list) and value else value
                    return first if isinstance(first, Mapping) else {}
        return {}


def hint(status: int, location: str) -> str:
    """Return what to check after this HTTP status, or "". `location` hints at such agents' usual address."""
    hints = {
        401: _CREDENTIALS,
        403: _CREDENTIALS,
        404: location,
        405: f"no POST is taken there; {location}",
        422: "the agent takes another form of request; see its documentation for the fields it needs",
    }
    return hints.get(status, "")


def leads_to_login(response: ProbeResponse) -> bool:
    """Return True if a response redirects to a login."""
    return 300 <= response.status < 400 and is_login(response.headers.get("location", ""))


def is_login(url: str) -> bool:
    """Return True if a URL looks like a login page."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    words = {part for segment in parts.path.lower().split("/") for part in (segment, *segment.split("."))}
    return bool(words & _LOGIN) or (parts.hostname or "").startswith(("login.", "auth.", "sso."))


def is_page(body: bytes) -> bool:
    """Return True if a body is HTML or XML."""
    return body.lstrip().startswith(b"<")


def wants_tls(body: bytes) -> bool:
    """Return True if an error's body says that the server expects TLS."""
    return _WANTS_TLS.search(body) is not None


def readable(body: bytes) -> str:
    """Return an error's body on one line. The errors of FastAPI and pydantic become `field: message`."""
    text = " ".join(body.decode("utf-8", errors="replace").split())
    data = json_or(body, text)
    detail = data.get("detail") if isinstance(data, Mapping) else data
    if isinstance(detail, str):
        return detail
    complaints: list[str] = []
    for item in detail if isinstance(detail, list) else ():
        match item:
            case {"msg": str(message)} if isinstance(item.get("loc", []), list):
                where = ".".join(map(str, item.get("loc", [])))
                complaints.append(f"{where}: {message}" if where else message)
            case _:
                return text
    return "; ".join(complaints) or text
