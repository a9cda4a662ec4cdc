"""The gateway's HTTP server, which agents use as the address of their model."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
from collections.abc import Collection, Mapping
from functools import lru_cache, partial
from typing import NoReturn
from urllib.parse import unquote

from aiohttp import web
from yarl import URL

from agentest.agents.call_source_addresses import model_variables
from agentest.agents.listener import listen
from agentest.config.agents.companion_servers import ModelGateway, Override, Provider
from agentest.plugins.protocols.model_messages import KEYS, Json, MessageHistory, ReadRequest, RequestReader
from agentest.plugins.servers.active_conversations import ServerInputs
from agentest.plugins.servers.gateway_check import WITHOUT_TOKEN, BypassWatch, gateway_token
from agentest.plugins.servers.model_gateway.anthropic_messages import AnthropicMessages
from agentest.plugins.servers.model_gateway.chat_completions import ChatCompletions
from agentest.plugins.servers.model_gateway.conversation import GatewayConversation
from agentest.plugins.servers.model_gateway.exchange import (
    NOT_PASSED_ON,
    GatewayError,
    GatewayRefusal,
    ModelApi,
    ModelExchange,
    ModelResponse,
    Reply,
    check_no_call,
    json_error,
)
from agentest.plugins.servers.model_gateway.gateway_conversations import GatewayTraffic
from agentest.plugins.servers.model_gateway.gemini import Gemini
from agentest.plugins.servers.model_gateway.placement import Unplaced, place
from agentest.plugins.servers.model_gateway.recording import MAX_BODY_BYTES, LiveApi, RecordedApi, keys_in
from agentest.plugins.servers.model_gateway.responses import Responses
from agentest.plugins.servers.model_gateway.wire_form import WireForm, WireRequest
from agentest.support.errors import described
from agentest.support.http.bodies import BadBody, BodyRefused, read_body
from agentest.support.http.client import Client
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.json_text import json_or, leaves
from agentest.support.lazy_dataclasses import dataclass, replace

_REMEMBERED_TARGETS = 1000
_RESPONSE_ID = re.compile(r"(?<=/responses/)[^/?]+")
_DEFAULT_UPSTREAMS: dict[Provider, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
}
PROVIDERS: tuple[Provider, ...] = (*_DEFAULT_UPSTREAMS, "azure")
_VERSIONS = ("v1", "v1beta", "v1alpha")
_FORMS: tuple[tuple[re.Pattern[str], WireForm], ...] = (
    (re.compile(r"(.*/)?chat/completions"), ChatCompletions()),
    (re.compile(r"(.*/)?responses"), Responses()),
    (re.compile(r"(?!threads/)(.*/)?messages"), AnthropicMessages()),  # threads are OpenAI's assistants
    (re.compile(r"(.*/)?[^/]+:(stream)?[gG]enerateContent"), Gemini()),
)

_CALLS_NOTHING = re.compile(
    r".*(count_?tokens|/input_tokens|/compact|conversations/[^/]+/items)|cachedContents", re.IGNORECASE
)
"""Requests that may offer tools although no model answers them."""
_STORED = re.compile(r"/([^?]*/)?(conversations|responses|chat/completions)([/?]|$)")
"""What a GET only shows again. Runs of threads and batches hand their calls over by GET."""
_BATCH = re.compile(r"/batches/?(\?|$)|:(async)?[bB]atchGenerateContent")
_OFFERED = re.compile(r"(?:^|\.)(?:tools|functions)\b.*\.name$", re.DOTALL)  # the path of a tool's name


async def open_model_gateway(
    settings: ModelGateway,
    overrides: Mapping[str, Override],
    opening: ServerInputs,
    lanes: int = 1,
    names_conversations: bool = False,
) -> str:
    """Serve the gateway until the run ends. Returns its address, with its token. Raises ConfigError.

    Args:
        overrides: agent → its override. The agents of a comparison may share a gateway.
        lanes: number of copies of the agent's server.
    """
    traffic = GatewayTraffic(
        agent=opening.group.agents[0],
        on_request=lambda: opening.registry.reach(opening.group, "model_gateway", ()),
        mocks=settings.mocks,
        allows_real=opening.passthrough or not settings.mocks,
        on_note=opening.on_note,
        replays=opening.replays,
        redact=opening.redact,
        overrides=overrides,
        lanes=lanes,
        names_conversations=names_conversations,
    )
    token = gateway_token(opening.outputs, os.environ)
    opening.redact.learn([token])
    handler = GatewayHandler(settings, traffic, opening.client, token).handle
    key, on_fault = opening.key_location("model_gateway"), opening.report_fault
    origin = await listen(handler, settings, key, opening.stack, opening.on_note, on_fault=on_fault)
    traffic.state.origin = origin
    opening.group.model_traffic = traffic
    apis = map(URL, (*_DEFAULT_UPSTREAMS.values(), *settings.upstream.values()))
    if watched := {api.origin() for api in apis if api.host_subcomponent not in settings.direct_hosts}:
        # Agents of other gateways have the same token.
        watch = BypassWatch(f":{URL(origin).port}/{token}", watched, alone=opening.alone)
        opening.stack.callback(asyncio.create_task(traffic.watch(watch)).cancel)
    return f"{origin}/{token}"


class GatewayHandler:
    """Handles the requests of agents whose path begins with the token, and answers no others."""

    def __init__(self, settings: ModelGateway, traffic: GatewayTraffic, client: Client, token: str) -> None:
        self._token = token.encode()
        self._settings = settings
        self._traffic = traffic
        traffic.state.memory, traffic.state.output_tools = settings.memory, settings.output_tools
        self._client = client
        self._readers = {form.name: RequestReader(form.text_of) for _, form in _FORMS}
        self._target_of = lru_cache(_REMEMBERED_TARGETS)(partial(target_of, upstreams=settings.upstream))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        token, _, rest = path[1:].partition("/")
        known = hmac.compare_digest(token.encode(), self._token)
        try:
            target = self._target_of(f"/{rest}" if known else path, request.rel_url.raw_query_string)
        except ValueError as error:
            if known:
                self._traffic.note_refused(str(error), *_addressee(f"/{rest}")[:2])
            return json_error(404 if known else 403, str(error) if known else WITHOUT_TOKEN, None)
        if not known:
            return self._without_token(request, target)
        reply, problem = Reply(request, target.form), None
        try:
            await self._pass(request, target, reply)
        except GatewayRefusal as error:
            reply.refuse(error.status, problem := str(error))
        except GatewayError as error:
            reply.refuse(error.status, str(error))
        except BodyRefused as error:
            reply.refuse(error.status, problem := f"the body {error}")
        except Exception as error:  # noqa: BLE001 - what cannot be read never passes by
            reply.refuse(502, problem := f"the gateway cannot read it or its answer: {described(error)}")
        if problem:
            self._traffic.note_refused(problem, target.conversation, target.lane)
        return reply.response

    async def _pass(self, request: web.Request, target: Target, reply: Reply) -> None:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            raise GatewayRefusal(
                "it opens a WebSocket, which the gateway cannot answer or pass on: have the agent call its "
                "model by plain HTTP requests",
                400,
            )
        if (
            request.method == "POST"
            and _BATCH.search(target.url)
            and any(c.mocked for c in self._traffic.active)
        ):
            raise GatewayRefusal(
                "it sends a batch, whose tool calls mocks cannot answer: have the agent send single "
                "requests, or leave the mocks out",
                400,
            )
        data, url = await read_body(request, MAX_BODY_BYTES), target.url
        if "/responses/" in url:
            url = _RESPONSE_ID.sub(lambda known: self._traffic.last_id(known[0]), url)
        headers = tuple([each for each in request.headers.items() if each[0].lower() not in NOT_PASSED_ON])
        upstream = LiveApi(self._client, request.method, url, headers)
        if target.form is None or request.method != "POST":
            await self._other_request(target, data, upstream, reply)
        else:
            await self._model_request(target, target.form, data, upstream, reply)

    def _without_token(self, request: web.Request, target: Target) -> web.Response:
        variables = model_variables(f"{request.scheme}://{request.host}/<token>")
        provider = request.path.removeprefix("/").partition("/")[0]  # the path may be `*`, or empty
        fits = (name for name, url in variables.items() if url.split("/")[4:5] == [provider])
        name = next(fits, next(iter(variables)))
        problem = (
            f"{WITHOUT_TOKEN}: set {name}={variables[name]}, as `server` does and `agentest doctor` prints it"
        )
        if target.form is not None and request.method == "POST":
            self._traffic.note_refused(problem, None, None)
        return json_error(403, problem, target.form)

    async def _model_request(
        self, target: Target, form: WireForm, data: bytes, upstream: LiveApi, reply: Reply
    ) -> None:
        self._traffic.state.reached = True
        self._traffic.on_request()
        body, read_before = self._read(form, data, upstream)
        read = form.request(body, target.url, read_before)
        if target.conversation and self._traffic.named(target.conversation) is None:
            raise GatewayError("the conversation that this address names has ended", 409)
        placed = self._placed(read, target)
        if isinstance(placed, Unplaced):
            placed = await self._of_nobody(placed, read, target.lane)
        if read.chained and read.stored_tools and not read.tools:
            before = (each.tools for each in placed.answers if read.ids[0] in each.shown.ids)
            read = replace(read, tools=next(before, {}))
        if read.unmockable and read.may_call and placed.guards_any:
            problem = f"mocks cannot answer the calls of this request: {read.unmockable}"
            placed.note_fault(problem)
            raise GatewayError(problem, 400)
        if override := self._traffic.override_of(placed.who.agent):
            if given_name := override.model:
                upstream.url = re.sub(r"(?<=models/)[^/:]+(?=:)", lambda _: given_name, upstream.url)
            read = replace(read, body=form.overridden(body, override), model=override.model or read.model)
        else:
            upstream.given = body, data
        model: ModelApi = self._api(placed, target, upstream)
        if placed.faults:
            from agentest.plugins.servers.model_gateway.faulty_model import FaultyModel

            model = FaultyModel(form, read, placed, placed.faults, model, reply)
        shows = placed.begin_request(read)
        try:
            if read.unmockable:
                await self._unread_request(read, placed, model, reply)
                return
            await ModelExchange(form, read, placed, model, reply, target.url.partition("?")[0], shows).run()
        finally:
            placed.open_requests -= 1

    def _read(self, form: WireForm, data: bytes, upstream: LiveApi) -> tuple[Json, ReadRequest]:
        body, read_before = self._readers[form.name].read(data)
        if not isinstance(body, dict):
            raise GatewayError("the request is not a JSON object", 400)
        known = read_before[1]
        if KEYS not in known:
            known[KEYS] = dict.fromkeys(keys_in(data, body, form.history_key))
        self._traffic.learn((*upstream.keys, *known[KEYS]))
        return body, read_before

    async def _of_nobody(
        self, unplaced: Unplaced, request: WireRequest, lane: int | None
    ) -> GatewayConversation:
        await self._traffic.note_unplaced(unplaced, offers_tools=request.may_call)
        if unplaced.tool:
            problem = f"{unplaced.why}, and it offers the tool {unplaced.tool!r}, which must not run"
            self._refuse_unplaced(unplaced, problem, lane)
        self._check_live(unplaced, lane)
        return self._traffic.nobody(unplaced.why)

    async def _unread_request(
        self, request: WireRequest, conversation: GatewayConversation, model: ModelApi, reply: Reply
    ) -> None:
        """Pass a request on whose answer cannot be read, so that its calls remain unknown."""
        if request.may_call:
            await conversation.serving.refused(
                f"the calls of a request to the model cannot be seen: {request.unmockable}"
            )
        try:
            with conversation.log.under_way(request.body, 0, request) as record:
                response = await model.send(request.body)
                record.responded(response.status_code)
                await _pass_on(response, reply, calls=not conversation.guards_any)
        except GatewayError as error:
            conversation.note_fault(str(error))
            raise
        conversation.recovered = response.is_success

    async def _other_request(self, target: Target, data: bytes, upstream: LiveApi, reply: Reply) -> None:
        """Pass a request on, such as for embeddings. Raises GatewayError if it may ask a model for calls."""
        self._traffic.learn((*upstream.keys, *keys_in(data, json_or(data))))
        self._traffic.state.replied.clear()  # the agent knows the gateway's address
        if target.may_call and (tools := _tools_in(data)):
            await self._check_unknown(target, tools)
        api: LiveApi | RecordedApi = upstream
        if self._traffic.replays or any(each.tape for each in self._traffic.active):
            texts = tuple(re.findall(r'"((?:[^"\\]|\\.)*)"', data.decode(errors="replace")))
            read = WireRequest(body={}, streams=False, history=MessageHistory(user_texts=texts))
            placed = self._placed(read, target)
            if isinstance(placed, Unplaced):
                self._check_live(placed, target.lane)
            else:
                api = self._api(placed, target, upstream)
        stored = upstream.method == "GET" and _STORED.match(target.url, len(target.base))
        guarded = target.may_call and not stored and any(each.guards_any for each in self._traffic.active)
        first = await _pass_on(await api.send_bytes(data or None), reply, calls=not guarded)
        self._traffic.learn(keys_in(first, json_or(first)))  # such as those of a session

    async def _check_unknown(self, target: Target, tools: Collection[str]) -> None:
        path = target.url[len(target.base) :].partition("?")[0]
        remedy = "use an API that `agentest docs model-gateway` names, or write model_gateway.mocks: false"
        for each in list(self._traffic.active):
            if guarded := next(filter(each.guards, tools), None):
                why = f"the gateway does not know the API at {path}, so it cannot stop the tool {guarded!r}"
                raise GatewayRefusal(f"{why}: {remedy}", 400)
            await each.serving.refused(f"a request to the unknown API at {path} offers tools")

    def _placed(self, request: WireRequest, target: Target) -> GatewayConversation | Unplaced:
        known, owners = self._traffic, self._traffic.state.owners
        return known.named(target.conversation) or place(
            request, known.active, known.ended, owners, target.lane
        )

    def _api(
        self, conversation: GatewayConversation, target: Target, upstream: LiveApi
    ) -> LiveApi | RecordedApi:
        if conversation.tape is None:
            if self._traffic.replays:
                raise GatewayError("`model_gateway.mode` is replay, and only agentest run replays", 409)
            return upstream
        return RecordedApi(
            live=upstream,
            tape=conversation.tape,
            path=upstream.url[len(target.base) :].lstrip("/"),
            ignored=self._settings.ignore,
            session_id=conversation.who.session_id,
            keys=self._traffic.state.keys,
            on_problem=conversation.fail,
        )

    def _check_live(self, unplaced: Unplaced, lane: int | None) -> None:
        if self._traffic.replays:
            problem = f"no answer is replayed, because the request belongs to no conversation: {unplaced.why}"
            self._refuse_unplaced(unplaced, problem, lane)

    def _refuse_unplaced(self, unplaced: Unplaced, problem: str, lane: int | None) -> NoReturn:
        problem = f"Agentest did not pass a request to the model: {problem}"
        for each in self._traffic.active if not unplaced.late else ():
            if each.waiting and lane in (None, each.lane):
                each.note_fault(problem)
        raise GatewayError(problem, 409)


async def _pass_on(response: ModelResponse, reply: Reply, *, calls: bool) -> bytes:
    """Send a response as it comes. Returns its first piece. Raises GatewayRefusal if it may have no call."""
    read, first = b"", b""
    try:
        reply.like = response
        async for piece in response.pieces():
            first = first or piece
            if not calls:
                read = check_no_call(read + piece)
            await reply.write(piece)
        await reply.write(b"")
    except (*CONNECTION_ERRORS, BadBody) as error:
        raise GatewayError(f"the model's answer cannot be read: {describe(error)}") from None
    finally:
        await response.aclose()
    return first


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The destination of a request to the gateway."""

    conversation: str | None  # the key of the conversation that the address names
    lane: int | None  # the copy of the agent's server that the address names
    url: str
    base: str  # the beginning of `url`: the API's address with its version
    form: WireForm | None  # None: the gateway passes the request on as it is
    may_call: bool  # True if tools that it offers may be called


def _addressee(path: str) -> tuple[str | None, int | None, list[str]]:
    """Return the conversation and the lane that a path names, and its further parts."""
    parts = [part for part in path.split("/") if part] or [""]
    if len(parts) > 2 and parts[0] == "c" and not unquote(parts[1]).startswith("."):
        return parts[1], None, parts[2:]
    if len(parts) > 2 and parts[0] == "lane" and parts[1].isdecimal():
        return None, int(parts[1]), parts[2:]
    return None, None, parts


def target_of(path: str, query: str, upstreams: Mapping[Provider, str]) -> Target:
    """Return where a request leads. Raises ValueError for an address that names no model API.

    Args:
        path: as it came, with its escapes. So it passes on.
        upstreams: provider → base URL. After one that ends with a slash, no version is missing.
    """
    if not {".", ".."}.isdisjoint(unquote(path).split("/")):
        raise ValueError(f"the path {path:.200} has a segment `.` or `..`: send it without")
    conversation, lane, parts = _addressee(path)
    provider = next((name for name in PROVIDERS if name == parts[0]), None)
    if provider:
        parts.pop(0)
    else:
        provider = _provider_of(unquote("/".join(parts)))
    given = upstreams.get(provider) or _DEFAULT_UPSTREAMS.get(provider, "")
    base = given.rstrip("/")
    if not base:
        raise ValueError(f"no address of {provider} is known: write model_gateway.upstream.{provider}")
    version = None
    while parts and parts[0] in _VERSIONS:  # clients may add one to an address that has one
        version = parts.pop(0)
    rest, read = "/".join(parts), unquote("/".join(parts))
    form = next((form for pattern, form in _FORMS if pattern.fullmatch(read)), None)
    if form is None and (whole := re.search(rf"(?<![^/])(?:[^/]++/*+){{{len(parts)}}}$", path)):
        rest = whole[0]  # with its slashes
    if not (given.endswith("/") or base.rsplit("/", 1)[-1] in _VERSIONS or provider == "azure"):
        base = f"{base}/{version or ('v1beta' if provider == 'google' else 'v1')}"
    url = f"{base}/{rest}" if rest else base
    url = f"{url}?{query}" if query else url
    return Target(
        conversation=conversation,
        lane=lane,
        url=url,
        base=base,
        form=form,
        may_call=_CALLS_NOTHING.fullmatch(read) is None,
    )


def _tools_in(data: bytes) -> set[str]:
    """Return the names of the tools that a request in an unknown form offers."""
    if b'"tools"' not in data and b'"functions"' not in data:
        return set()
    return {str(name) for path, name in leaves(json_or(data)) if _OFFERED.search(path)}


def _provider_of(path: str) -> Provider:
    if path.endswith("messages") or "/messages/" in path:
        return "anthropic"
    return "google" if re.search(r"[^/]:\w+$", path) else "openai"
