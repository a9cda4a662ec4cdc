"""What an address speaks, as a configuration: asked of the probes of all protocols."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio

from agentest.agents.advice import first_model
from agentest.agents.hints import hint
from agentest.agents.identifying import is_at, look_around
from agentest.agents.own_form import body_of_fields
from agentest.agents.probing import Finding, Look, Seen
from agentest.agents.recognising import missing_fields
from agentest.config.agent_types import DEFAULT_TYPE
from agentest.config.fields import check_url
from agentest.errors import UsageError
from agentest.http.client import Client, open_client
from agentest.http.guard import AddressGuard, RefusedAddress
from agentest.http.retries import describe
from agentest.starting.weak_signs import LOGIN, is_login, misses
from agentest.support.redact import url_secrets
from agentest.support.text import shortened

_CONNECT_S = 5.0
_PATH = "is the path right?"
_NAMED_MODEL = ("chat_completions", "responses", "anthropic_messages")
"""Types whose requests name a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An agent at an address, as it was found."""

    settings: Mapping[str, Any]
    """What stands under `agent`."""
    remarks: tuple[str, ...]
    """What is to be known of it, each in a sentence."""
    is_known: bool
    """Whether one of the protocols was recognised."""


def described(url: str) -> Described:
    """What answers at an address. Raises UsageError for a bad one, and where nobody answers."""
    _check(url)
    return anyio.run(_look_at, url)


def _check(url: str) -> None:
    try:
        check_url(_over_http(url))
    except ValueError as error:
        raise UsageError(f"--endpoint {error}. Expected an address like http://localhost:8000") from None
    if url_secrets(url):
        raise UsageError(
            "--endpoint holds a credential, which would stand in a file that others read. Leave it out; in "
            "the configuration, write ${VARIABLE} for it, or send it with `headers`"
        )


def _over_http(url: str) -> str:
    return re.sub(r"^ws(?=s?://)", "http", url)


async def _look_at(url: str) -> Described:
    async with open_client(AddressGuard()) as client:
        await _check_listening(url, client)
        look = Look(url=_over_http(url), client=client)
        found = await look_around(look)
        chosen = next((one for one in found if is_at(one, look.url)), None) or next(iter(found), None)
        if chosen is None:
            return _unknown(url, await look.post_nothing())  # asked already: the answer is known
        return await _known(chosen, look)


async def _check_listening(url: str, client: Client) -> None:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
    try:
        with anyio.fail_after(_CONNECT_S):
            return await client.check_listening(parts.hostname or "", port)
    except RefusedAddress as error:
        raise UsageError(f"--endpoint {url}: {error}") from None
    except (OSError, TimeoutError, UnicodeError) as error:
        problem = "no answer" if isinstance(error, TimeoutError) else describe(error)
    raise UsageError(
        f"nobody answers at {url}: {problem}. Nothing was written. Start the agent and run this again; or "
        "leave --endpoint out, and write its address into the configuration yourself"
    )


async def _known(finding: Finding, look: Look) -> Described:
    settings, remarks = dict(finding.settings), [f"Found: {shortened(finding.because)}."]
    if settings["type"] in _NAMED_MODEL:
        seen = await look.get("/v1/models")
        if model := first_model(seen.json if seen is not None else None):
            settings["body"] = {"model": model}
            remarks.append("The model is the first of those that its /v1/models lists.")
    return Described(settings=settings, remarks=tuple(remarks), is_known=True)


def _unknown(url: str, seen: Seen | None) -> Described:
    """Something answers, in no form that is known for certain."""
    if misses(seen, DEFAULT_TYPE):
        remark = "Taken for chat completions: it missed the `messages` in an empty request."
        settings = {"type": DEFAULT_TYPE, "endpoint": url}
        return Described(settings=settings, remarks=(remark,), is_known=True)
    missing = missing_fields(seen.json) if seen else ()
    body = body_of_fields(missing) if missing else {}
    if body and all(body.values()):
        remark = f"An API of its own: it missed {', '.join(body)} in an empty request."
        settings_of_form = {"type": "http", "endpoint": url, "body": body}
        return Described(settings=settings_of_form, remarks=(remark,), is_known=True)
    remarks = (
        f"What this address speaks was not recognised: {_said(seen)}",
        "An API of its own is `type: http`, with `body` and `reply`; docs/agents.md has all types.",
    )
    kind = "websocket" if url.startswith("ws") else DEFAULT_TYPE
    return Described(settings={"type": kind, "endpoint": url}, remarks=remarks, is_known=False)


def _said(seen: Seen | None) -> str:
    """What came of an empty request, as the end of a sentence."""
    if seen is None:
        return "it did not answer an empty request in time, or not in HTTP."
    if is_login(seen):
        return f"{LOGIN}."
    advice = hint(seen.status, "is the path right?")
    return (
        advice if advice.endswith("?") else f"{advice or f'it answered an empty request with {seen.status}'}."
    )
