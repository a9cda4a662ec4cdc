"""Detect the protocol of an endpoint with the probes of all protocols, and describe it as a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

import anyio
from pydantic import ValidationError

from agentest.agents.advice import detect_within_limit, first_model, is_at
from agentest.agents.error_hints import ProbeResponse, is_page, leads_to_login, readable
from agentest.agents.http_sender import speaks_tls
from agentest.agents.protocol_probe import (
    DetectedProtocol,
    EndpointProbe,
    all_probes,
    body_of_fields,
    detect_type,
    first_message,
    is_absent,
    is_login_page,
    is_missing_model_error,
    missing_fields,
    missing_headers,
    probe_of,
    probe_of_path,
    settings_line,
)
from agentest.config.agent_types import DEFAULT_TYPE
from agentest.config.agents.base import types_with
from agentest.config.config import Config
from agentest.config.fields import check_url
from agentest.plugins.authoring.custom_api import HELLO, detect_custom_api, filled, reply_settings
from agentest.plugins.page.talk.talk import first_reply
from agentest.support.errors import AgentestError, UsageError
from agentest.support.http.address_guard import AddressGuard, RefusedAddress
from agentest.support.http.client import Client, Headers, open_client
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.interrupts import run_event_loop
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import url_secrets
from agentest.support.text import shortened

_ANSWERED = re.compile(r": \d{3}$")
"""The end of a request that was tried, if it got a response."""
_CONNECT_S = 5.0
_PATH = "is the path right?"
_LIMIT_S = 120.0
"""For all probes together: agents may take seconds for each message."""
_SHOWN_REPLY_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedAgent:
    """A detected agent."""

    settings: Mapping[str, Any]
    """The settings under `agent`."""
    remarks: tuple[str, ...]
    """Remarks, one sentence each."""
    tried: tuple[str, ...] = ()
    """The requests that were sent and what came back, in order."""
    is_known: bool
    """True if one of the protocols was recognized."""
    is_complete: bool
    """True if the configuration is complete, so that a run can follow."""


def detect_agent(url: str) -> DetectedAgent:
    """Detect the agent at a URL. Raises UsageError for an invalid URL, and if nothing answers."""
    try:
        check_url(_as_http_url(url))
    except ValueError as error:
        raise UsageError(f"--endpoint {error}. Expected an address like http://localhost:8000") from None
    if url_secrets(url):
        raise UsageError(
            "--endpoint contains a credential, which would be written to a file. Leave it out; "
            "in the configuration, write ${VARIABLE} for it, or send it with `headers`"
        )
    return run_event_loop(_detect, url)


def _as_http_url(url: str) -> str:
    return re.sub(r"^ws(?=s?://)", "http", url)


async def _detect(url: str) -> DetectedAgent:
    async with open_client(AddressGuard()) as client:
        await _check_listening(url, client)
        probe = EndpointProbe(url=_as_http_url(url), client=client)
        if problem := await tls_problem(probe.url, client):
            raise UsageError(f"--endpoint {url}: {problem}. Nothing was written")
        agent = await _detect_with(url, probe, client)
        if not any(_ANSWERED.search(each) for each in probe.tried) and await speaks_tls(probe.url, client):
            secure = re.sub("^(http|ws)(?=:)", r"\1s", url)
            raise UsageError(
                f"{url} speaks TLS. Nothing was written. Write https: agentest init --endpoint {secure}"
            )
        await _check_still_listening(url, probe, client)
        return replace(agent, tried=tuple(_joined(probe.tried)))


async def _detect_with(url: str, probe: EndpointProbe, client: Client) -> DetectedAgent:
    detected = await detect_within_limit(probe, limit_s=_LIMIT_S)
    at_endpoint = next((each for each in detected if is_at(each, probe.url)), None)
    response = await probe.post_message() if _may_post_here(probe, await probe.openapi()) else None
    at_other_path = next(iter(detected), None)
    chosen = at_endpoint
    if at_endpoint is None and at_other_path is not None:
        # The path may have another agent than the one found at a different path of its server.
        kind = str(at_other_path.settings["type"])
        at_root = urlsplit(probe.url).path in ("", "/") or probe_of(kind).at_root
        nothing = is_absent(response)
        if at_root or nothing or (response and detect_type(response) == kind):
            chosen = at_other_path
    if chosen is not None:
        return await _describe_known(chosen, probe, response, client)
    custom = None if at_other_path else await detect_custom_api(probe)
    if custom is not None:
        return await _describe_known(custom, probe, None, client)
    if is_absent(response) and _is_json_rpc(mcp := await probe.get("/mcp")):
        response = mcp
    if guess := next(filter(None, (each.guess(probe) for each in all_probes())), None):
        return DetectedAgent(
            settings=guess.settings, remarks=(guess.because,), is_known=False, is_complete=False
        )
    return _describe_unknown(url, response, at_other_path)


def _may_post_here(probe: EndpointProbe, document: object) -> bool:
    """Return True unless the endpoint is the root of a server whose document lists its paths."""
    return urlsplit(probe.url).path not in ("", "/") or document is None


async def _check_still_listening(url: str, probe: EndpointProbe, client: Client) -> None:
    try:
        await _check_listening(url, client)
    except UsageError:
        alive = [each for each in probe.tried if "connection refused" not in each]
        tried = alive[-1] if alive else "before the first request"
        raise UsageError(
            f"the agent at {url} stopped while its protocol was detected ({tried}). Nothing was written. "
            "Start it again, and name the path of its chat: agentest init --endpoint URL/PATH"
        ) from None


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


async def _describe_known(
    finding: DetectedProtocol, probe: EndpointProbe, response: ProbeResponse | None, client: Client
) -> DetectedAgent:
    settings, remarks = dict(finding.settings), [f"Found: {shortened(finding.because)}."]
    requested_path = urlsplit(probe.url).path
    if requested_path not in ("", "/") and not is_at(finding, probe.url):
        remarks.append(f"It is at {settings['endpoint']}; nothing was found at {requested_path}.")
    protocol = probe_of(settings["type"])
    at_it = await probe.post_message(settings["endpoint"]) if protocol.names_model else None
    if protocol.names_model:
        listed = await probe.get("/v1/models")
        if model := first_model(listed.json if listed is not None else None):
            settings["body"] = {"model": model}
            remarks.append("The model is the first of those that its /v1/models lists.")
        elif at_it is not None and _wants_model(at_it):
            accepted = await probe.post(settings["endpoint"], first_message(settings["endpoint"], _ANY_MODEL))
            if accepted is not None and accepted.is_success:
                settings["body"] = {"model": _ANY_MODEL}
                remarks.append(f"It asks for a model and accepts any name, such as {_ANY_MODEL!r}.")
    if settings["type"] == "http":
        settings |= await _reply_setting(settings, probe)
    if protocol.remark:
        remarks.append(protocol.remark)
    missing = (
        tuple(_missing_settings(at_it or response, settings)) if at_it or is_at(finding, probe.url) else ()
    )
    problem = ""
    if not missing and protocol.can_be_tried:
        text, problem = await _try_out(settings, probe, client)
        remarks.append(text)
    return DetectedAgent(
        settings=settings,
        remarks=(*remarks, *missing),
        is_known=True,
        is_complete=not missing and not problem,
    )


_ANY_MODEL = "agent"


def _wants_model(response: ProbeResponse) -> bool:
    return is_missing_model_error(response) or "model" in missing_fields(response.json)


async def _reply_setting(settings: Mapping[str, Any], probe: EndpointProbe) -> Mapping[str, Any]:
    """Return where the reply is in the answers of a custom API, if its document does not say so."""
    is_form = "headers" in settings
    if is_form or settings.keys() & {"reply", "delta"}:
        return {}
    response = await probe.post(settings["endpoint"], filled(settings["body"]))
    return reply_settings(response) if response is not None and response.is_success else {}


async def _try_out(settings: Mapping[str, Any], probe: EndpointProbe, client: Client) -> tuple[str, str]:
    """Send a message as a run would. Returns a remark about the outcome, and the problem or ""."""
    try:
        agent = Config.model_validate({"agent": dict(settings)}).agent
    except ValidationError as error:
        return f"The settings are incomplete: {error.errors()[0]['msg']}.", "incomplete"
    assert agent is not None
    reply = await first_reply(agent, client, HELLO)
    where = urlsplit(settings["endpoint"]).path or "/"
    if isinstance(reply, AgentestError):
        probe.tried.append(f"message to {where}, as {settings['type']}: {shortened(str(reply), 200)}")
        return f"It did not answer {HELLO!r}: {shortened(str(reply), 400)}.", str(reply)
    text = shortened(" ".join((reply.text or "").split()), _SHOWN_REPLY_CHARS)
    said = f"{text!r}" if text else f"a call of {reply.tool_requests[0].name}"
    probe.tried.append(f"message to {where}, as {settings['type']}: {said}")
    return f"It answered {HELLO!r} with {said}.", ""


def _missing_settings(response: ProbeResponse | None, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield what requests to an endpoint still lack, one sentence each."""
    if response is None:
        return
    if response.status in (401, 403):
        yield f"It answered {response.status}: send credentials with `headers`."
    for name in missing_headers(response.json):
        yield f"It asks for the header `{name}`: write it under `headers`."
    names_model = probe_of(settings["type"]).names_model
    if is_missing_model_error(response) and names_model and "body" not in settings:
        yield "It asks for the name of a model: write it as `body: {model: …}`."


def _describe_unknown(
    url: str, response: ProbeResponse | None, at_other_path: DetectedProtocol | None
) -> DetectedAgent:
    named = probe_of_path(url)
    missing = missing_fields(response.json) if response else ()
    body = body_of_fields(missing) if missing else {}
    settings: dict[str, Any] = {"type": DEFAULT_TYPE, "endpoint": url}
    remark = ""
    if response is not None and named and named.names_model and is_missing_model_error(response):
        settings["type"], remark = named.kind, f"Taken for {named.about}, by its path."
    elif response is not None and response.status in _REFUSED and b"messages" in response.body:
        remark = "Taken for chat completions: it asks for `messages`."
    elif body and all(body.values()):
        settings |= {"type": "http", "body": body}
        remark = f"A custom API: it requires {', '.join(body)}."
    if remark:
        lacking = tuple(_missing_settings(response, settings))
        return DetectedAgent(
            settings=settings, remarks=(remark, *lacking), is_known=True, is_complete=not lacking
        )
    settings["type"] = next(iter(types_with(urlsplit(url).scheme)), DEFAULT_TYPE)
    other = (
        f"At another path of this server: {settings_line(at_other_path.settings)}." if at_other_path else ""
    )
    remarks = (
        f"The protocol at this address was not recognized: {_response_text(response)}",
        other,
        "For your own HTTP API, write `type: http` with `body` and `reply`: agentest docs http. Other types: "
        "agentest docs agents.",
    )
    return DetectedAgent(
        settings=settings, remarks=tuple(filter(None, remarks)), is_known=False, is_complete=False
    )


def _is_json_rpc(response: ProbeResponse | None) -> bool:
    """Return True if a response is one of JSON-RPC."""
    return response is not None and isinstance(response.json, Mapping) and "jsonrpc" in response.json


def _response_text(response: ProbeResponse | None) -> str:
    if response is None:
        return "it did not answer a message in time, or not in HTTP."
    if is_login(response):
        return f"{LOGIN}."
    if response.status in (401, 403):
        return (
            f"it answered {response.status}. Write its credentials into `headers`, and run agentest doctor, "
            "which detects its protocol."
        )
    if response.status in (405, 501):
        refused = f"it does not accept POST ({response.status})"
        return f"{refused}. Is the path right? If it takes GET, write `method` and `params`."
    if is_page(response.body):
        return "it answers with a web page. Name the path of the agent's chat, such as /api/chat."
    if _is_json_rpc(response):
        return "it answers in JSON-RPC, as MCP servers do: these have tools for agents and are none."
    if response.status == 404:
        return _PATH
    said = shortened(" ".join(readable(response.body).split()), 2 * _SHOWN_REPLY_CHARS).rstrip(".")
    advice = " If this begins a session or a job, write `setup` or `poll`." if response.is_success else ""
    return f"it answered a message with {response.status}{f': {said}' if said else ''}.{advice}"


def _joined(tried: Sequence[str]) -> Iterator[str]:
    """Join consecutive requests with the same outcome on one line: `POST /chat, /ask: 404`."""
    for (method, outcome), group in groupby(tried, _method_and_outcome):
        paths = ", ".join(each.partition(" ")[2].rpartition(f": {outcome}")[0] for each in group)
        yield f"{method} {paths}: {outcome}"


def _method_and_outcome(tried: str) -> tuple[str, str]:
    request, _, outcome = tried.partition(": ")
    return request.partition(" ")[0], outcome


_PATIENCE_S = 5.0


async def tls_problem(url: str, client: Client, headers: Headers = ()) -> str:
    """Return why HTTPS requests to a URL fail; "" if they succeed, or for another scheme."""
    if not url.startswith("https://"):
        return ""
    try:
        with anyio.move_on_after(_PATIENCE_S):
            response = await client.send_direct("GET", url, headers, None)
            await response.aclose()
    except CONNECTION_ERRORS as error:
        return describe(error)
    return ""


LOGIN = (
    "it looks like a login: send the credentials with `headers`, or log in by a `setup` request (type: http)"
)
_REFUSED = (400, 422)


def is_login(response: ProbeResponse) -> bool:
    """Return True if a response redirects to a login page."""
    return leads_to_login(response) or is_login_page(response.body)
