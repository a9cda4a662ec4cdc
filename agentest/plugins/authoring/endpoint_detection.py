"""Detect the protocol of an endpoint with the probes of all protocols, and describe it as a configuration.

An API of its own is inferred from requests that it accepts, or that the user has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any
from urllib.parse import urljoin, urlsplit

import anyio
from pydantic import ValidationError

from agentest.agents.configuration_advice import detect_within_limit, first_model, is_at, login_advice
from agentest.agents.core_probes import likely_path
from agentest.agents.error_hints import ProbeResponse, hint, is_page, readable
from agentest.agents.factory import make_agents
from agentest.agents.http_sender import NO_HEADERS, speaks_tls
from agentest.agents.protocol_probe import (
    OPENAPI_PATH,
    DetectedProtocol,
    EndpointProbe,
    all_probes,
    detect_type,
    first_message,
    is_absent,
    is_missing_model_error,
    missing_fields,
    missing_headers,
    probe_of,
    settings_line,
)
from agentest.config.agent_types import DEFAULT_TYPE
from agentest.config.agents.base import types_with
from agentest.config.config import Config
from agentest.config.fields import check_url
from agentest.config.file import interpolated
from agentest.plugins.authoring.answer_reading import NotProved, find_known_api, try_at_once
from agentest.plugins.authoring.api_inference import REQUESTS_ADVICE, ApiInference, DetectedAgent
from agentest.plugins.authoring.request_examples import (
    ANY_MODEL,
    HELLO,
    USUAL_PATHS,
    RequestExample,
    accepted_messages,
    asked_fields,
    escaped,
    example_of,
    hidden,
)
from agentest.plugins.page.talk.talk import lone_resources, short_talk
from agentest.support.errors import AgentError, AgentestError, UsageError
from agentest.support.http.address_guard import AddressGuard, RefusedAddress
from agentest.support.http.client import Client, Headers, open_client
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.interrupts import run_event_loop
from agentest.support.redaction import Redactor, url_secrets
from agentest.support.templates import Template
from agentest.support.text import shortened

_ANSWERED = re.compile(r": \d{3}$")  # the end of a request that was tried, if it got a response
_CONNECT_S = 5.0
_LIMIT_S = 120.0  # for all probes together: agents may take seconds for each message
_SHOWN_REPLY_CHARS = 80
_MOST_GUESSES = 3
_OTHER = "What can you do for me?"


def detect_agent(
    url: str | None, headers: Mapping[str, str] = NO_HEADERS, examples: Sequence[RequestExample] = ()
) -> DetectedAgent:
    """Detect the agent at a URL, or the one that answers requests that work.

    Raises UsageError for an invalid URL, if nothing answers, and for requests of which nothing can be proved.

    Args:
        headers: of every request to the URL, with `$NAME` for variables of the environment.
    """
    for address in [url] if url else [each.request["origin"] for each in examples]:
        _check_address("--endpoint" if url else "--curl", address)
    variables: dict[str, str] = {}
    hide = partial(hidden, variables=variables, inherited={each.variable for each in examples})
    own = hide({name.lower(): value for name, value in headers.items()})
    safe = [replace(each, request=hide(each.request)) for each in examples]

    async def detect() -> DetectedAgent:
        async with open_client(AddressGuard()) as client:
            if url:
                return await _Detection(url, client, own, variables).run()
            return await _proved(safe, client, variables)

    agent, redact = run_event_loop(detect), Redactor(list(variables.values()))
    used = {n: value for n, value in variables.items() if f"${{{n}}}" in json.dumps(agent.settings)}
    remarks, tried = tuple(map(redact, agent.remarks)), tuple(map(redact, agent.tried))
    return replace(agent, remarks=remarks, tried=tried, variables=used)


async def _proved(
    examples: Sequence[RequestExample], client: Client, variables: Mapping[str, str]
) -> DetectedAgent:
    await _check_listening(examples[-1].request["origin"], client)
    inference = ApiInference(client, variables)
    try:
        return await inference.infer(examples)
    except NotProved as error:
        lines = (f"not recognized: {error}. Nothing was written.", *inference.exchange())
        advice = _to_fill_in(error.settings) if error.settings else (REQUESTS_ADVICE,)
        shown = "\n".join(("\n  ".join(lines), *advice))
        raise UsageError(Redactor(list(variables.values()))(shown)) from None


def _check_address(option: str, url: str) -> None:
    try:
        check_url(_as_http_url(url))
    except ValueError as error:
        raise UsageError(f"{option} {error}. Expected an address like http://localhost:8000") from None
    if url_secrets(url):
        raise UsageError(
            f"{option} contains a credential, which would be written to a file. Leave it out; "
            "in the configuration, write ${VARIABLE} for it, or send it with `headers`"
        )


def _as_http_url(url: str) -> str:
    return re.sub(r"^ws(?=s?://)", "http", url)


class _Detection:
    """Looks for the agent at a URL.

    Args:
        headers: of every request, in lower case, with `${NAME}` for variables.
    """

    def __init__(self, url: str, client: Client, headers: Mapping[str, str], variables: Mapping[str, str]):
        self._url = url
        self._client = client
        self._headers = headers
        self._own_headers = {name.title(): value for name, value in headers.items()}
        self._variables = variables
        sent = list(interpolated(headers, variables, {}).items())
        self._probe = EndpointProbe(url=_as_http_url(url), client=client, headers=sent)
        self._path = urlsplit(url).path.strip("/")

    async def run(self) -> DetectedAgent:
        """Return what is there. Raises UsageError if nothing answers."""
        url, client, tried = self._url, self._client, self._probe.tried
        await _check_listening(url, client)
        if problem := await tls_problem(self._probe.url, client):
            raise UsageError(f"--endpoint {url}: {problem}. Nothing was written")
        agent = await self._agent()
        if not any(map(_ANSWERED.search, tried)) and await speaks_tls(self._probe.url, client):
            secure = re.sub("^(http|ws)(?=:)", r"\1s", url)
            raise UsageError(
                f"{url} speaks TLS. Nothing was written. Write https: agentest init --endpoint {secure}"
            )
        await _check_listening(url, client, tried)
        return replace(agent, tried=tuple(_joined(tried)))

    async def _agent(self) -> DetectedAgent:
        probe = self._probe
        if guess := await find_known_api(probe):
            return _guessed(guess)
        detected = await detect_within_limit(probe, limit_s=_LIMIT_S)
        chosen = next((each for each in detected if is_at(each, probe.url)), None)
        may_post = self._path or await probe.openapi() is None
        response = await probe.post_message() if may_post else None
        elsewhere = next(iter(detected), None)
        if chosen is None and elsewhere is not None:
            # The path may have another agent than the one found at a different path of its server.
            kind = str(elsewhere.settings["type"])
            is_of_server = not self._path or probe_of(kind).at_root or is_absent(response)
            if is_of_server or (response and detect_type(response) == kind):
                chosen = elsewhere
        if chosen is not None:
            return await self._known(chosen, response)
        own = None if elsewhere else await self._own_api()
        if isinstance(own, DetectedAgent):
            return own
        is_free = not self._path and (response is not None or not may_post) and is_absent(response)
        if is_free and (guess := await find_known_api(probe, elsewhere=True)):
            return _guessed(guess)
        if is_absent(response) and _is_json_rpc(mcp := await probe.get("/mcp")):
            response = mcp
        if guess := next(filter(None, (each.guess(probe) for each in all_probes())), None):
            return _guessed(guess, (await self._try_out(guess.settings))[1])
        if not (self._path or elsewhere) and (path := likely_path(await probe.openapi())):
            there = _Detection(urljoin(self._url, path), self._client, self._headers, self._variables)
            agent = await there._agent()
            probe.tried += there._probe.tried
            return replace(agent, remarks=(f"Its {OPENAPI_PATH} lists POST {path}.", *agent.remarks))
        return self._unknown(response, elsewhere, own)

    async def _known(self, finding: DetectedProtocol, response: ProbeResponse | None) -> DetectedAgent:
        settings, remarks = escaped(dict(finding.settings), ()), [f"Found: {shortened(finding.because)}."]
        if headers := {**self._own_headers, **settings.get("headers", {})}:
            settings["headers"] = headers
        is_here = is_at(finding, self._probe.url)
        if self._path and not is_here:
            remarks.append(f"It is at {settings['endpoint']}; nothing was found at /{self._path}.")
        problem, protocol = "", probe_of(settings["type"])
        if protocol.names_model:
            is_here, response = True, await self._probe.post_message(settings["endpoint"]) or response
            remarks += await self._add_model(settings, response)
        if settings["type"] == "http":
            body = Template(finding.settings["body"]).filled({"message": HELLO, "session_id": "agentest-1"})
            headers = {name.lower(): value for name, value in settings.get("headers", {}).items()}
            inference = ApiInference(self._client, self._variables)
            try:
                found = await inference.infer([example_of("POST", settings["endpoint"], headers, body)])
                return replace(found, remarks=(*remarks, *found.remarks))
            except NotProved as error:
                # The name in a document is evidence, too; a text at a guessed place is none.
                problem = "" if "reply" in settings else f"Not recognized: {error}."
        missing = list(missing_settings(response, settings["type"], settings.get("body"))) if is_here else []
        if missing:
            remarks += missing
        elif problem:
            remarks += [problem, *_to_fill_in(settings)]
        elif protocol.forms:
            forms = [{**settings, **form} for form in protocol.forms]
            outcomes = await try_at_once([partial(self._try_out, each) for each in forms])
            (text, problem), settings = min(zip(outcomes, forms, strict=True), key=lambda it: bool(it[0][1]))
            remarks.append(text)
        return DetectedAgent(settings=settings, remarks=tuple(remarks), is_complete=not (missing or problem))

    async def _add_model(self, settings: dict[str, Any], at_it: ProbeResponse | None) -> list[str]:
        endpoint, listed = settings["endpoint"], await self._probe.get("/v1/models")
        if model := first_model(listed.json if listed is not None else None):
            settings["body"] = {"model": model}
            return ["The model is the first of those that its /v1/models lists."]
        if at_it and (is_missing_model_error(at_it) or "model" in missing_fields(at_it.json)):
            accepted = await self._probe.post(endpoint, first_message(endpoint, ANY_MODEL))
            if accepted is not None and accepted.is_success:
                settings["body"] = {"model": ANY_MODEL}
                return [f"It asks for a model and accepts any name, such as {ANY_MODEL!r}."]
        return []

    async def _try_out(self, settings: Mapping[str, Any]) -> tuple[str, str]:
        """Send a message, and another if its form is a guess. Return what came, and the problem, if any."""
        try:
            agent = Config.model_validate({"agent": interpolated(settings, self._variables, {})}).agent
        except ValidationError as error:
            return f"The settings are incomplete: {error.errors()[0]['msg']}.", "incomplete"
        assert agent is not None
        try:
            async with AsyncExitStack() as stack:
                agents = await make_agents({"agent": agent}, lone_resources(self._client, stack))
                talk = await stack.enter_async_context(short_talk(agents["agent"]))
                reply = await talk.say(HELLO)
                if len(probe_of(settings["type"]).forms) > 1 and (await talk.say(_OTHER)).text == reply.text:
                    raise AgentError(f"every message gets the reply {shortened(reply.text or '', 80)!r}")
        except AgentestError as error:
            return f"The trial with {HELLO!r} failed: {shortened(str(error), 400)}.", str(error)
        text = shortened(" ".join((reply.text or "").split()), _SHOWN_REPLY_CHARS)
        said = f"{text!r}" if text else f"a call of {reply.tool_requests[0].name}"
        return f"It answered {HELLO!r} with {said}.", ""

    async def _own_api(self) -> DetectedAgent | NotProved | None:
        """Find an API that answers a message in its own form, at the endpoint or at the usual paths."""
        probe, unproved = self._probe, None
        async for path in probe.places(*USUAL_PATHS):
            response = await probe.post_message(path)
            if response is None or is_absent(response) or is_page(response.body) or _is_json_rpc(response):
                continue
            endpoint, wrong = urljoin(probe.url, path) if path else probe.url, 0
            async for kind, body, is_asked in accepted_messages(probe, endpoint, response):
                headers = {**self._headers, **({"content-type": kind} if kind else {})}
                inference = ApiInference(self._client, self._variables, named=is_asked)
                try:
                    return await inference.infer([example_of("POST", endpoint, headers, body)])
                except NotProved as error:
                    unproved, wrong = unproved or error, wrong + 1
                    if wrong == _MOST_GUESSES:
                        break
        return unproved

    def _unknown(
        self,
        response: ProbeResponse | None,
        elsewhere: DetectedProtocol | None,
        unproved: NotProved | None,
    ) -> DetectedAgent:
        kind = next(iter(types_with(urlsplit(self._url).scheme)), DEFAULT_TYPE)
        own = {"headers": self._own_headers} if self._own_headers else {}
        settings = {"type": kind, "endpoint": self._url, **own, **(unproved.settings if unproved else {})}
        body = settings.get("body") or dict.fromkeys(asked_fields(response), "…")
        problem = f"{unproved}." if unproved else _response_text(response, self._probe.tried)
        remarks = (
            f"The protocol at this address was not recognized: {problem}",
            *([f"At another path of this server: {settings_line(elsewhere.settings)}."] if elsewhere else []),
            *_to_fill_in({**settings, "body": body}),
        )
        return DetectedAgent(settings=settings, remarks=remarks, is_known=False)


def _guessed(finding: DetectedProtocol, *more: str) -> DetectedAgent:
    return DetectedAgent(settings=finding.settings, remarks=(finding.because, *more), is_known=False)


async def _check_listening(url: str, client: Client, tried: Sequence[str] = ()) -> None:
    """Raise UsageError if nobody listens. `tried`: what was tried while somebody did."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
    try:
        with anyio.fail_after(_CONNECT_S):
            return await client.check_listening(parts.hostname or "", port)
    except RefusedAddress as error:
        raise UsageError(f"--endpoint {url}: {error}") from None
    except (OSError, TimeoutError, UnicodeError) as error:
        problem = "no answer" if isinstance(error, TimeoutError) else describe(error)
    if alive := [each for each in tried if "connection refused" not in each]:
        raise UsageError(
            f"the agent at {url} stopped while its protocol was detected ({alive[-1]}). Nothing was written. "
            "Start it again, and name the path of its chat: agentest init --endpoint URL/PATH"
        )
    raise UsageError(
        f"nobody answers at {url}: {problem}. Nothing was written. Start the agent and run this again; or "
        "leave --endpoint out, and write its address into the configuration yourself"
    )


def missing_settings(response: ProbeResponse | None, kind: str, body: Any) -> Iterator[str]:
    """Yield what an agent asks for that its settings do not have, with what to write."""
    if response is None:
        return
    if response.status in (401, 403):
        yield f"It answered {response.status}: send credentials with `headers`."
    for name in missing_headers(response.json):
        yield f"It asks for the header `{name}`: write it under `headers`."
    names_model = probe_of(kind).has_own_form or "model" in (body or {})
    if is_missing_model_error(response) and not names_model:
        yield "It asks for the name of a model: write it as `body: {model: …}`."


def _is_json_rpc(response: ProbeResponse | None) -> bool:
    return response is not None and isinstance(response.json, Mapping) and "jsonrpc" in response.json


def _to_fill_in(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to write by hand, with what is known of the requests, and the command to run instead."""
    known = {**settings, "type": "http"}
    if not known.get("body") and "params" not in known:
        known["body"] = {"message": "{{message}}"}
    notes = {"body": " # what the route expects", "params": " # what the route expects"}
    lines = [f"  {settings_line({key: value})}{notes.get(key, '')}" for key, value in known.items()]
    lines += [line for key, line in _MISSING_SETTINGS.items() if key not in known]
    yield "\n".join(
        ("For an HTTP API of its own, complete these lines (agentest docs http):", "agent:", *lines)
    )
    yield REQUESTS_ADVICE


_MISSING_SETTINGS = {
    "reply": "  reply: reply # the path to the reply's text in the answer",
    "session": "  # session: conversation_id # the path to the id in answers; send {{session_id}} back",
    "setup": "  # setup: [{endpoint: /sessions, save: {chat: id}}] # before the first message",
    "poll": '  # poll: {endpoint: "/jobs/{{job}}", until: "status == \'done\'"} # with save: {job: id}',
}


def _response_text(response: ProbeResponse | None, tried: Sequence[str]) -> str:
    if response is None:
        messages = [each for each in tried if each.startswith("POST")]
        return f"no answer came ({messages[-1]})." if messages else "no path is known that takes a message."
    if advice := login_advice(response):
        return f"{advice}."
    if _is_json_rpc(response):
        return "it answers in JSON-RPC, as MCP servers do: these have tools for agents and are none."
    shown = shortened(" ".join(readable(response.body).split()), 2 * _SHOWN_REPLY_CHARS).rstrip(".")
    said = "a web page" if is_page(response.body) else shown
    advice = hint(response.status, "is the path right? If it takes GET, write `method` and `params`")
    return f"it answered a message with {response.status}{said and f': {said}'}{advice and f'; {advice}'}."


def _joined(tried: Sequence[str]) -> Iterator[str]:
    asked = [(*each.partition(": ")[0].split(" ", 1), each.partition(": ")[2]) for each in tried]
    for (method, outcome), group in groupby(asked, lambda each: (each[0], each[2])):
        yield f"{method} {', '.join(dict.fromkeys(path for _, path, _ in group))}: {outcome}"


async def tls_problem(url: str, client: Client, headers: Headers = ()) -> str:
    """Return why HTTPS requests to a URL fail; "" if they succeed, or for another scheme."""
    if not url.startswith("https://"):
        return ""
    try:
        with anyio.move_on_after(_CONNECT_S):
            response = await client.send_direct("GET", url, headers, None)
            await response.aclose()
    except CONNECTION_ERRORS as error:
        return describe(error)
    return ""
