"""Detect the protocol of an endpoint with the probes of all protocols, and describe it as a configuration.

The format of an unknown API is detected from its answers to valid messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby
from os.path import expandvars
from typing import Any
from urllib.parse import urljoin, urlsplit

import anyio
from pydantic import ValidationError

from agentest.agents.configuration_advice import detect_within_limit, first_model, is_at
from agentest.agents.error_hints import ProbeResponse, is_page, leads_to_login, readable
from agentest.agents.http_sender import NO_HEADERS, speaks_tls
from agentest.agents.protocol_probe import (
    GREETERS,
    OPENAPI_PATH,
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
from agentest.agents.reply_detection import places_of_text
from agentest.config.agent_types import DEFAULT_TYPE, AgentConfig
from agentest.config.agents.base import types_with
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.config import Config
from agentest.config.fields import check_url
from agentest.plugins.authoring.answer_reading import (
    ACCEPTED,
    HELLO,
    OPAQUE,
    events_in,
    filled,
    reply_settings,
    says_something,
    stream_path,
)
from agentest.plugins.page.talk.talk import first_reply, lone_talk
from agentest.support.errors import AgentError, AgentestError, CannotSend, UsageError
from agentest.support.http.address_guard import AddressGuard, RefusedAddress
from agentest.support.http.client import Client, Headers, open_client
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.interrupts import run_event_loop
from agentest.support.jmespath_expressions import JsonPath
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import url_secrets
from agentest.support.text import shortened

_ANSWERED = re.compile(r": \d{3}$")  # the end of a request that was tried, if it got a response
_CONNECT_S = 5.0
_LIMIT_S = 120.0  # for all probes together: agents may take seconds for each message
_SHOWN_REPLY_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedAgent:
    """A detected agent."""

    settings: Mapping[str, Any]  # those under `agent`
    remarks: tuple[str, ...]  # one sentence each
    tried: tuple[str, ...] = ()  # the requests that were sent and what came back, in order
    is_known: bool  # True if one of the protocols was recognized
    is_complete: bool  # True if the configuration is complete, so that a run can follow


def detect_agent(url: str, headers: Mapping[str, str] = NO_HEADERS) -> DetectedAgent:
    """Detect the agent at a URL. Raises UsageError for an invalid URL, and if nothing answers.

    Args:
        headers: of every request, with `${NAME}` for variables of the environment.
    """
    try:
        check_url(_as_http_url(url))
    except ValueError as error:
        raise UsageError(f"--endpoint {error}. Expected an address like http://localhost:8000") from None
    if url_secrets(url):
        raise UsageError(
            "--endpoint contains a credential, which would be written to a file. Leave it out; "
            "in the configuration, write ${VARIABLE} for it, or send it with `headers`"
        )
    return run_event_loop(_detect, url, headers)


def _as_http_url(url: str) -> str:
    return re.sub(r"^ws(?=s?://)", "http", url)


def _agent_of(settings: Mapping[str, Any]) -> AgentConfig:
    headers = {name: expandvars(value) for name, value in settings.get("headers", {}).items()}
    agent = Config.model_validate({"agent": {**settings, **({"headers": headers} if headers else {})}}).agent
    assert agent is not None
    return agent


async def _detect(url: str, headers: Mapping[str, str]) -> DetectedAgent:
    async with open_client(AddressGuard()) as client:
        await _check_listening(url, client)
        sent = [(name.lower(), expandvars(value)) for name, value in headers.items()]
        probe = EndpointProbe(url=_as_http_url(url), client=client, headers=sent, templates=headers)
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
    may_post = await probe.openapi() is None or urlsplit(probe.url).path not in ("", "/")
    response = await probe.post_message() if may_post else None
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
    if probe.templates:
        settings["headers"] = {**probe.templates, **settings.get("headers", {})}
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
        elif at_it and (is_missing_model_error(at_it) or "model" in missing_fields(at_it.json)):
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
        more, problem = await _try_and_prove(settings, probe, client, OPENAPI_PATH in finding.because)
        remarks += more
    return DetectedAgent(
        settings=settings,
        remarks=(*remarks, *missing),
        is_known=True,
        is_complete=not missing and not problem,
    )


_ANY_MODEL = "agent"


async def _reply_setting(settings: Mapping[str, Any], probe: EndpointProbe) -> Mapping[str, Any]:
    is_form = "Content-Type" in settings.get("headers", {})
    if is_form or settings.keys() & {"reply", "delta"}:
        return {}
    response = await probe.post(settings["endpoint"], filled(settings["body"]))
    return reply_settings(response) if response is not None and response.is_success else {}


async def _try_out(settings: Mapping[str, Any], probe: EndpointProbe, client: Client) -> tuple[str, str]:
    try:
        agent = _agent_of(settings)
    except ValidationError as error:
        return f"The settings are incomplete: {error.errors()[0]['msg']}.", "incomplete"
    reply = await first_reply(agent, client, HELLO)
    where = urlsplit(settings["endpoint"]).path or "/"
    if isinstance(reply, AgentestError):
        probe.tried.append(f"message to {where}, as {settings['type']}: {shortened(str(reply), 200)}")
        return f"It did not answer {HELLO!r}: {shortened(str(reply), 400)}.", str(reply)
    text = shortened(" ".join((reply.text or "").split()), _SHOWN_REPLY_CHARS)
    said = f"{text!r}" if text else f"a call of {reply.tool_requests[0].name}"
    probe.tried.append(f"message to {where}, as {settings['type']}: {said}")
    return f"It answered {HELLO!r} with {said}.", ""


async def _try_and_prove(
    settings: dict[str, Any], probe: EndpointProbe, client: Client, is_documented: bool
) -> tuple[list[str], str]:
    """Return remarks and the problem, if any. Removes a guessed field that the agent does not need."""
    text, problem = await _try_out(settings, probe, client)
    if settings["type"] != "http" or problem:
        return [text], problem
    proof, problem = await _prove(settings, client, is_documented=is_documented)
    if proof in (UNKNOWN_CONVERSATION, _SHARED) and (
        kept := await _find_conversation(settings, probe, client)
    ):
        settings |= kept
        proof, problem = _REMEMBERED, ""
    if proof == UNKNOWN_CONVERSATION and "session_id" in settings["body"]:
        body = {name: value for name, value in settings["body"].items() if name != "session_id"}
        if is_documented or (await _try_out({**settings, "body": body}, probe, client))[1]:
            proof = "It takes `session_id`, but no reply showed that it remembers a conversation."
        else:
            settings["body"] = body
    if problem == _NO_REPLY:
        settings.pop("reply", settings.pop("delta", None))
    lines = _to_fill_in(settings["endpoint"], settings["body"]) if problem else ()
    return [*([proof] if proof else []), text, *lines], problem


async def _find_conversation(
    settings: Mapping[str, Any], probe: EndpointProbe, client: Client
) -> Mapping[str, Any] | None:
    """Return what keeps conversations: a field for an id that answers have, or one of the usual fields."""
    body = {name: value for name, value in settings["body"].items() if name != "session_id"}

    async def keeps(names: Sequence[str], **more: str) -> Mapping[str, Any] | None:
        way = {"body": {**body, **dict.fromkeys(names, "{{session_id}}")}, **more}
        proof, _ = await _prove({**settings, **way}, client, is_documented=True)
        return way if proof == _REMEMBERED else None

    is_form = "Content-Type" in settings.get("headers", {})
    answer = await (probe.post_form if is_form else probe.post)(settings["endpoint"], filled(body))
    said = (events_in(answer) or [answer.json]) if answer else []
    places = dict.fromkeys(place for each in said for place in places_of_text(each))
    for place in filter(_SESSION_NAME.search, places):
        name = "_".join(place.split(".")[-2 if place.endswith(".id") else -1 :])
        if way := await keeps([name], session=place):
            return way
    fields: Sequence[str] = _SESSION_FIELDS
    way = await keeps(fields)
    while way and len(fields) > 1:
        half = fields[: len(fields) // 2]
        fields = half if await keeps(half) else fields[len(half) :]
    return await keeps(fields) if way else None


async def _prove(settings: Mapping[str, Any], client: Client, *, is_documented: bool) -> tuple[str, str]:
    """Return a remark about the conversations of an API of its own, and why it is not recognized, or ""."""
    agent = _agent_of(settings)
    assert isinstance(agent, HttpTemplateAgent)
    try:
        async with AsyncExitStack() as stack:
            talks = [await stack.enter_async_context(lone_talk(agent, client, name)) for name in _NAMES]
            first = [await talk.say(f"My name is {name}.") for talk, name in zip(talks, _NAMES, strict=True)]
            second = [await talk.say("What is my name?") for talk in talks]
            known = [[re.search(rf"(?ai)\b{n}\b", reply.text or "") for n in _NAMES] for reply in second]
            other = await talks[0].say("Please list three things that you can do.")
    except (AgentError, CannotSend) as error:
        return f"Not recognized: a second message was refused: {error}.", str(error)
    texts = {(reply.text or "").strip() for reply in (*first, *second, other)}
    is_same = len({_ID_IN_TEXT.sub("", text) for text in texts}) == 1
    if all(map(OPAQUE.fullmatch, texts)) or (is_same and not is_documented):
        return _NO_REPLY, _NO_REPLY
    body = json.dumps(agent.body)
    if any(f'"{field}"' in body for text in texts for field in _QUOTED_MESSAGE.findall(text)):
        text = "Not recognized: its answers quote the whole JSON body, so it takes that for the user's text."
        return text, text
    if known[0][1] or known[1][0]:
        return _SHARED, _SHARED
    if known[0][0] and known[1][1]:
        return _REMEMBERED, ""
    has_history = "messages" in agent.sent_placeholders
    return "No reply showed that it reads earlier messages." if has_history else UNKNOWN_CONVERSATION, ""


def _missing_settings(response: ProbeResponse | None, settings: Mapping[str, Any]) -> Iterator[str]:
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
    if response is not None and named and named.names_model and is_missing_model_error(response):
        settings["type"], remark = named.kind, f"Taken for {named.about}, by its path."
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
        *_to_fill_in(url, body),
    )
    return DetectedAgent(
        settings=settings, remarks=tuple(filter(None, remarks)), is_known=False, is_complete=False
    )


def _to_fill_in(url: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to write by hand, with what is known of the requests."""
    fields = {name: value or "…" for name, value in body.items()} or {"message": "{{message}}"}
    lines = (
        "agent:",
        "  type: http",
        f"  endpoint: {url}",
        f"  body: {{{settings_line(fields)}}} # what the route expects",
        "  reply: reply # the path to the reply's text in the answer",
        "  # session: conversation_id # the path to the id in answers; send {{session_id}} back",
        '  # headers: {Authorization: "Bearer ${AGENT_TOKEN}"}',
        "  # setup: [{endpoint: /sessions, save: {chat: id}}] # before the first message",
        '  # poll: {endpoint: "/jobs/{{job}}", until: "status == \'done\'"} # with save: {job: id}',
    )
    yield "\n".join(("For an HTTP API of its own, complete these lines (agentest docs http):", *lines))


def _is_json_rpc(response: ProbeResponse | None) -> bool:
    return response is not None and isinstance(response.json, Mapping) and "jsonrpc" in response.json


def _response_text(response: ProbeResponse | None) -> str:
    if response is None:
        return "no answer to a message came, as the list below shows."
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
        return f"it answered a message with {response.status} and a web page. Is this the path of its chat?"
    if _is_json_rpc(response):
        return "it answers in JSON-RPC, as MCP servers do: these have tools for agents and are none."
    said = shortened(" ".join(readable(response.body).split()), 2 * _SHOWN_REPLY_CHARS).rstrip(".")
    advice = " If this begins a session or a job, write `setup` or `poll`." if response.is_success else ""
    advice = " Is the path right?" if response.status == 404 else advice
    return f"it answered a message with {response.status}{f': {said}' if said else ''}.{advice}"


def _joined(tried: Sequence[str]) -> Iterator[str]:
    asked = [(*each.partition(": ")[0].split(" ", 1), each.partition(": ")[2]) for each in tried]
    for (method, outcome), group in groupby(asked, lambda each: (each[0], each[2])):
        yield f"{method} {', '.join(dict.fromkeys(path for _, path, _ in group))}: {outcome}"


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


def is_login(response: ProbeResponse) -> bool:
    """Return True if a response redirects to a login page."""
    return leads_to_login(response) or is_login_page(response.body)


_NAMES = ("Zorvik", "Quelna")  # they are parts of no word
_REMEMBERED = "Each of two conversations at once remembered its own name, and not the other's."
_SHARED = "Two conversations at once share one: a reply has the name that only the other was told."
_SESSION_FIELDS = ("session_id", "sessionId", "conversation_id", "conversationId", "thread_id", "threadId",
                   "chat_id", "chatId", "session", "user_id", "userId", "uid")  # fmt: skip
_SESSION_NAME = re.compile(r"(session|conversation|thread|chat)s?([_.-]?(id|key|uuid))?$", re.I)
_NO_REPLY = "Not recognized: no text of its answers changes with the message, except ids."
_QUOTED_MESSAGE = re.compile(r'"(\w+)":\s*"(?:My name is \w+\.|What is my name\?|Please list three things)')
UNKNOWN_CONVERSATION = "Conversation field unknown: every message is a first message."
USUAL_PATHS = ("/chat", "/api/chat", "/ask", "/message", "/messages", "/invoke", "/query", "/agent", "/run")
"""Where agents with an API of their own usually are."""
_FORM = "application/x-www-form-urlencoded"
_REFUSED_JSON = (400, 415, 422, 500)  # statuses of a server that may expect a form in place of JSON
_NAMED_FIELD = re.compile(
    r"[\"'`](\w+)[\"'`]? (?:field )?is (?:required|missing)|(?:missing|required)[^\"'`\w]*"
    r"(?:(?:field|parameter|key|property)[^\"'`\w]*)?[\"'`](\w+)[\"'`]"
    r"|(?:missing|required) (?:field|parameter|key|property):? (\w+)\b(?! is\b)",
    re.I,
)
_ID_IN_TEXT = re.compile(r"(?<!\S)(?=\S{0,99}\d)\S{6,}")
_TEMPLATES = {"messages": "{{messages}}", "session_id": "{{session_id}}"}
_OTHERS = ("id", "trigger")  # fields of a first message that are for known protocols only


async def detect_custom_api(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find an API that answers a message in its own form, at the endpoint or at the usual paths."""
    async for path in probe.places(*USUAL_PATHS):
        response = await probe.post_message(path)
        if response is None or is_absent(response) or is_page(response.body):
            continue
        endpoint = urljoin(probe.url, path) if path else probe.url
        shown = urlsplit(endpoint).path or "/"
        detected = detect_type(response)
        if detected and (known := probe_of(detected)).usual_paths:
            settings = {"type": detected, "endpoint": endpoint}
            return DetectedProtocol(settings=settings, because=f"POST {shown} answers as {known.about} does")
        if settings := await _settings(probe, path, response):
            because = f"POST {shown} answers a message in a form of its own"
            return DetectedProtocol(
                settings={"type": "http", "endpoint": endpoint, **settings}, because=because
            )
    return None


async def _settings(probe: EndpointProbe, path: str, response: ProbeResponse) -> dict[str, Any]:
    if response.status == ACCEPTED and response.headers.get("location"):
        job = {"save": {"job": {"header": "Location"}}, "poll": {"endpoint": "{{job}}"}}
        return {"body": _fields_read(response), **job}
    if response.is_success:
        for name in GREETERS if says_something(response) else ():
            alone = {name: _TEMPLATES.get(name, "{{message}}"), "session_id": "{{session_id}}"}
            answer = await probe.post(path or probe.url, filled(alone))
            if answer is not None and answer.is_success and says_something(answer):
                return {"body": alone, **reply_settings(answer)}
        return {}
    if response.status not in _REFUSED_JSON:
        return {}
    text = response.body.decode("utf-8", errors="replace")[:2_000]
    named = tuple(dict.fromkeys(map("".join, _NAMED_FIELD.findall(text))))
    asked = missing_fields(response.json) or named
    sent = first_message("")
    body = body_of_fields(asked) if asked else {}
    if any(name not in sent for name in asked) and all(body.values()):
        accepted = await probe.post(path or probe.url, filled(body))
        if accepted is not None and accepted.is_success:
            return {"body": body, **reply_settings(accepted)}
    form = (
        filled(body)
        if body
        else {name: text for name, text in sent.items() if name not in ("messages", *_OTHERS)}
    )
    accepted = await probe.post_form(path, form)
    if accepted is None or not accepted.is_success or is_page(accepted.body):
        return {}
    read = body if all(body.values()) and body else _fields_read(accepted)
    read.pop("messages", None)
    return {"headers": {"Content-Type": _FORM}, "body": read, **reply_settings(accepted)}


def _fields_read(response: ProbeResponse) -> dict[str, Any]:
    text = "".join(_texts(response))
    repeated = [name for name, who in GREETERS.items() if re.search(rf"\b{who}\b", text)]
    chosen = repeated if len(repeated) == 1 else GREETERS
    return {**{name: _TEMPLATES.get(name, "{{message}}") for name in chosen}, "session_id": "{{session_id}}"}


def _texts(response: ProbeResponse) -> Iterator[str]:
    events = events_in(response)
    if not events:
        yield response.body.decode("utf-8", errors="replace")
        return
    path, _ = stream_path(events)
    found = JsonPath(path) if path else None
    for event in events:
        value = found.find(event) if found else event
        yield value if isinstance(value, str) else ""
