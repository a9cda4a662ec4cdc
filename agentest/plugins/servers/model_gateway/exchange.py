"""One request of an agent to its model, in as many rounds as its mocked calls need."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from time import monotonic
from typing import Protocol

from aiohttp import web
from anyio.lowlevel import checkpoint
from multidict import CIMultiDict

from agentest.agents.listener import CONNECTION_HEADERS
from agentest.plugins.protocols.model_messages import Json, repeats_key
from agentest.plugins.servers.model_gateway import wire_form as wire
from agentest.plugins.servers.model_gateway.conversation import CallsEnded, GatewayConversation, Rounds
from agentest.plugins.servers.model_gateway.request_log import RequestRecord
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import described
from agentest.support.http.bodies import BadBody
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.http.sse import AT_ONCE, Event, EventParser
from agentest.support.json_text import encoded, json_or, leaves
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import shortened

MOST_ROUNDS = 25
NOT_PASSED_ON = CONNECTION_HEADERS | {"accept-encoding", "content-encoding"}  # bodies are unpacked
_FINAL = {"x-should-retry": "false"}
"""Tells the clients of OpenAI and Anthropic that a repetition gets the same answer."""
_PATIENCE = 0.9


class ModelResponse(Protocol):
    """A response of a model's API, live or recorded."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def is_success(self) -> bool: ...
    async def read(self) -> bytes: ...
    def pieces(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class ModelApi(Protocol):
    """The model's own API."""

    async def send(self, body: Json) -> ModelResponse:
        """Send a request. The caller closes the response. Raises GatewayError if there is none."""


class Reply:
    """The agent's side of one request."""

    def __init__(self, request: web.Request, form: wire.WireForm | None) -> None:
        self._request = request
        self._form = form
        self.response: web.StreamResponse
        self.like: ModelResponse  # its status and headers are those of an answer in pieces
        self.begun = False

    @property
    def is_awaited(self) -> bool:
        """False if the agent's client has given up."""
        transport = self._request.transport
        return transport is not None and not transport.is_closing()

    async def write(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            headers = CIMultiDict(_response_headers(self.like))
            self.response = web.StreamResponse(status=self.like.status_code, headers=headers)
            await self.response.prepare(self._request)
        await self.response.write(data)

    def whole(self, response: ModelResponse, body: bytes) -> None:
        self.response = _WholeResponse(response.status_code, _response_headers(response), body)

    def refuse(self, status: int, message: str) -> None:
        if not self.begun:
            self.response = json_error(status, message, self._form)
        elif self._request.transport is not None:
            self._request.transport.abort()  # so that the agent does not take a part for the whole


class _WholeResponse(web.StreamResponse):
    """A response to POST that is written in one piece, which costs a third of aiohttp's."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        super().__init__(status=status)
        self._lines = [f"{name}: {value}" for name, value in headers]
        self._whole = body

    async def prepare(self, request: web.BaseRequest) -> None:
        if (transport := request.transport) is None or transport.is_closing():
            raise ConnectionResetError
        if self._keep_alive is None:
            self._keep_alive = request.keep_alive
        lines = [
            f"HTTP/1.1 {self._status} {self._reason}",
            *self._lines,
            f"Content-Length: {len(self._whole)}",
            f"Connection: {'keep-alive' if self._keep_alive else 'close'}",
        ]
        head = "\r\n".join(lines)
        if not len(lines) - 1 == head.count("\r") == head.count("\n"):
            raise ValueError("a header of the model's answer has a line break, which HTTP does not allow")
        transport.write(b"%b\r\n\r\n%b" % (head.encode(), self._whole))
        self._eof_sent = True


def _response_headers(response: ModelResponse) -> list[tuple[str, str]]:
    return [(name, value) for name, value in response.headers.items() if name.lower() not in NOT_PASSED_ON]


def json_error(status: int, message: str, form: wire.WireForm | None) -> web.Response:
    body = form.error(status, message) if form else {"error": {"message": message}}
    return web.json_response(body, status=status, headers=_FINAL)


class GatewayError(Exception):
    """The gateway cannot answer. `status` is that of the response to the agent."""

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


class GatewayRefusal(GatewayError):
    """The gateway does not take a request, or does not pass an answer on, and the run reports that."""


_HIDDEN = "the gateway blocked a model response with tool calls that it cannot mock: {}"
_CALL = re.compile(
    rb'"(?:[tT]ool|[fF]unction)_?(?:[cC]all|[uU]se)s?"\s*+:\s*+(?:\[\s*+)?\{|'
    rb'"type"\s*+:\s*+"(?:(?:function|custom_tool|computer|(?:local_)?shell|apply_patch)_call|'
    rb'(?:agent\.custom_)?tool_use)"'
)

_OF_CALLS = (b"ool", b"unction", b"_call", b"\\u00", b"\0")
"""One of these is in all that `_CALL` finds in `_plain` data, which takes longer."""
_DISGUISE = re.compile(rb"\\u00([4-7][0-9a-fA-F])|\0|\s+(?:data:\s*)?")
"""What may stand in JSON between or in place of its letters: escapes, the halves of UTF-16, blanks."""


_PAIRS = r'(?:\s*,\s*"[^"]*+"\s*:\s*(?:"[^"]*+"|[\w.+-]++)){{0,5}}?\s*,\s*'
_NAMED = r'"(?:name|action|(?:tool|function)(?:_name)?|recipient_name)"\s*:\s*"{0}"'
_GIVEN = r'"(?:arg|param|(?:action_|tool_)?input)(?![^":]*schema)[^":]*+"\s*:'
_NO_SCHEMA = r'(?!\s*\{{[^{{}}]*"(?:type"\s*:\s*"object"|properties"))'
_VALUE = r'\s*(?:"(?:[^"\\]++|\\.)*+"|\{{(?:[^{{}}]++|\{{[^{{}}]*+\}})*+\}})'
_MARK = r"(?:tool[_▁](?:calls?|sep|code)|TOOL_CALLS|python_tag)(?:[_▁]begin)?[|｜]?[>\]\n]"
_WRITTEN = (
    f"{_NAMED}{_PAIRS}{_GIVEN}{_NO_SCHEMA}|{_GIVEN}{_NO_SCHEMA}{_VALUE}{_PAIRS}{_NAMED}"
    rf"|{_MARK}\s*(?:functions?\.)?{{0}}\b"
    r"|to=functions\.{0}\b|\[{0}\(\w+=(?![^\[\]]*\)\s*for\s[\w, ]+\sin\b)"
    r"|Action:\s*{0}(?:\[|\b.{{0,99}}\n+Action Input)|<(?:function=|invoke name=\"){0}\b"
)
"""How models write calls of a tool, `{0}`: as JSON with its name and arguments, or with marks."""
_OTHERWISE = (b"\\u", b"\0")  # one is in JSON whose letters may be written in other ways


def written_in(answer: Json, names: Collection[str], sent: bytes | None) -> str | None:
    """Return the tool whose call an answer has where only some agents look for it; None if it has none.

    Such places are texts, thoughts, and keys of no API. What an answer repeats of its request is none.
    `sent` is the answer as it is sent; None for a stream, whose texts may be in pieces.
    """
    if sent is not None and not any(map(sent.__contains__, _OTHERWISE)):
        plain = sent.replace(b"\\", b"")
        if not any(name.replace("\\", "").encode() in plain for name in names):  # as in most answers
            return None
    own = {key: value for key, value in answer.items() if key not in wire.COPIES}
    texts = defaultdict[str, str](str)
    for path, leaf in leaves(own):
        texts[path.rpartition(".")[2]] += leaf if isinstance(leaf, str) else ""
    named = [name for name in names if any(name in text for text in texts.values())]
    # Without backslashes, JSON in a text is like that around it.
    whole = (json.dumps(own, ensure_ascii=False).replace("\\", ""), *texts.values()) if named else ()
    found = [(name, text) for name in named for text in whole if name in text]
    return next((name for name, text in found if re.search(_WRITTEN.format(re.escape(name)), text)), None)


def check_no_call(data: bytes) -> bytes:
    """Raise GatewayRefusal if a part of JSON of any API may have a call. Returns the end, which may go on."""
    if found := _CALL.search(data := _plain(data)):
        raise GatewayRefusal(_HIDDEN.format(found[0].decode()))
    return data[-100:]


def _plain(data: bytes) -> bytes:
    return _DISGUISE.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else b"", data)


@dataclass(slots=True)
class ModelExchange:
    """One request of an agent in a conversation."""

    form: wire.WireForm
    request: wire.WireRequest
    conversation: GatewayConversation
    upstream: ModelApi
    reply: Reply
    address: str = ""
    shows: int = -1  # the turn whose calls the answer shows; -1 if none

    async def run(self) -> None:
        if self.conversation.ended_by:  # an agent, or its caller, that tries again
            self.reply.refuse(409, self.conversation.ended_by)
            return
        self.conversation.log.note_briefing(self.request, self.conversation.plain_name)
        await self.conversation.read_results(self.request)
        if (rounds := self.conversation.resumed(self.request)) is None:
            answers = self.conversation.remembered(self.request)
            rounds = Rounds(body=self.form.completed(self.request, answers))
            self.conversation.note_completed(self.request, answers, rounds.body)
        outputs = self.conversation.output_tools(self.request)
        stream = self.form.stream(self.request) if self.request.streams else None
        try:
            await self._rounds(rounds, stream, outputs)
        except CallsEnded as error:
            await self._fail(409, str(error), stream)
        except GatewayError as error:
            await self._fault(str(error), stream, error.status)
        except wire.CutStream as error:
            if stream is not None and not stream.told:  # the model told the agent of no error
                await self._fault(f"{error} ({self.address})", stream)
        except (*CONNECTION_ERRORS, BadBody) as error:
            await self._fault(f"the model's answer cannot be read: {describe(error)}", stream)
        except Exception as error:  # noqa: BLE001 - what cannot be read never passes by
            await self._fault(f"the gateway cannot read the model's answer: {described(error)}", stream)
        finally:
            if not rounds.done and (rounds.number or rounds.calls) and not self.conversation.over:
                self.conversation.unfinished.append((self.request, rounds))

    async def _fault(self, message: str, stream: wire.AnswerStream | None, status: int = 502) -> None:
        self.conversation.note_fault(message)
        await self._fail(status, message, stream)

    async def _fail(self, status: int, message: str, stream: wire.AnswerStream | None) -> None:
        if stream is not None and self.reply.begun:
            await self.reply.write(stream.error(message))
        else:
            self.reply.refuse(status, message)

    async def _rounds(
        self, rounds: Rounds, stream: wire.AnswerStream | None, outputs: Collection[str]
    ) -> None:
        while rounds.number <= MOST_ROUNDS:
            body = rounds.body
            with self.conversation.log.under_way(body, rounds.number, self.request) as record:
                answered = await self._answered(body, stream, record)
            if answered is None:  # an error of the model, which was passed on
                return
            response, data, answer = answered
            await self.conversation.note_made(answer.made)
            results = await self._results(answer, rounds, outputs)
            rounds.output_tokens += answer.usage.completion_tokens
            hidden = [each for each in results if each is not None]
            if hidden:
                record.note_calls(answer.calls, [each is not None for each in results])
            if hidden and len(hidden) == len(answer.calls):
                lift = not outputs and self._lifts(answer.calls, rounds)
                rounds.body, new = self.form.next_round(body, answer, hidden, lift=lift)
                rounds.new += new
                rounds.number += 1
                rounds.calls.clear()
                continue
            if hidden or rounds.new or body is not self.request.body:
                data = None
            rounds.done = True
            await self._finish(response, data, answer, results, rounds, stream, outputs)
            return
        raise GatewayError(
            f"the model called mocked tools more than {MOST_ROUNDS} times in a row and never answered the "
            "agent: check the results of the mocks"
        )

    async def _answered(
        self, body: Json, stream: wire.AnswerStream | None, record: RequestRecord
    ) -> tuple[ModelResponse, bytes | None, wire.WireAnswer] | None:
        since = monotonic()
        self.conversation.asked[since] = self.address
        try:
            with TimeLimit(self.conversation.timeout_s * _PATIENCE) as limit:
                return await self._round(body, stream, record)
        except BaseException as error:
            if not isinstance(error, TimeoutError) or not limit.expired:
                self.conversation.note_hanging()
                raise
        finally:
            self.conversation.asked.pop(since, None)
        raise GatewayError(f"the model at {self.address} has not answered within {limit.seconds:g} s", 504)

    async def _results(
        self, answer: wire.WireAnswer, rounds: Rounds, outputs: Collection[str]
    ) -> list[wire.CallResult | None]:
        earlier, results = list(rounds.calls), list[wire.CallResult | None]()
        for call in answer.calls:
            if call.name in outputs:
                results.append(None)
                continue
            same = (
                each for each in earlier if (each[0].name, each[0].arguments) == (call.name, call.arguments)
            )
            known = next(same, None)
            if known is None:
                forced = self.request.forced == wire.ANY_TOOL
                offered = self.request.tools
                answering = self.conversation.answer(call, offered, cut=answer.is_cut, forced=forced)
                known = call, asyncio.ensure_future(answering)
                known[1].add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                rounds.calls.append(known)
            else:
                earlier.remove(known)
                self.conversation.renew(known[0], call)
            result = await asyncio.shield(known[1])
            results.append(result and replace(result, call_id=call.call_id))
        return results

    async def _round(
        self, body: Json, stream: wire.AnswerStream | None, record: RequestRecord
    ) -> tuple[ModelResponse, bytes | None, wire.WireAnswer] | None:
        data = None
        response = await self.upstream.send(body)
        record.responded(response.status_code)
        try:
            streams = stream is not None and response.is_success
            if stream is None or not streams:
                data = await response.read()
                if not response.is_success:
                    record.failed(data.decode(errors="replace"))
                    await self._pass_error_on(response, data, stream)
                    return None
                answer = self.form.answer(_object(data, self.address))
            else:
                if not self.reply.begun:
                    self.reply.like = response
                parser = EventParser()
                async for piece in response.pieces():
                    await self._feed(stream, parser.feed(piece))
                await self._feed(stream, parser.rest())
                answer = self.form.answer(stream.round())
                if stream.called and not answer.names:
                    raise GatewayRefusal(_HIDDEN.format("they are at places of no API"))
                stream.called = False
        finally:
            await response.aclose()
        record.answered(answer)
        return response, data, answer

    async def _feed(self, stream: wire.AnswerStream, events: Sequence[Event]) -> None:
        for start in range(0, len(events), AT_ONCE):
            if shown := b"".join(map(stream.feed, events[start : start + AT_ONCE])):
                _check_calls(shown, (), streams=True)
                await self.reply.write(shown)
            if start:
                await checkpoint()  # a piece may contain thousands

    async def _pass_error_on(
        self, response: ModelResponse, data: bytes, stream: wire.AnswerStream | None
    ) -> None:
        for is_stream in (False, True):
            _check_calls(data, (), streams=is_stream)
        text = data.decode(errors="replace")
        self.conversation.note_error(response.status_code, self.address, text)
        if stream is None or not self.reply.begun:
            self.reply.whole(response, data)
        else:
            await self.reply.write(stream.error(f"the model answered {response.status_code}: {text[:2000]}"))

    def _lifts(self, calls: Sequence[wire.ModelCall], rounds: Rounds) -> bool:
        """Return True if the model may answer with text from now on, because what was forced has happened."""
        forced = self.request.forced
        if forced is None:
            return False
        mock_name = self.conversation.mock_name
        made = [f"{call.name} {json.dumps(call.arguments, sort_keys=True, default=str)}" for call in calls]
        again = not rounds.seen_calls.isdisjoint(made)
        rounds.seen_calls.update(made)
        if forced != wire.ANY_TOOL:
            return mock_name(forced) is not None
        return again or all(mock_name(name) for name in self.request.tools)

    async def _finish(
        self,
        response: ModelResponse,
        data: bytes | None,
        answer: wire.WireAnswer,
        results: Sequence[wire.CallResult | None],
        rounds: Rounds,
        stream: wire.AnswerStream | None,
        outputs: Collection[str],
    ) -> None:
        conversation = self.conversation
        hidden = tuple(call for call, result in zip(answer.calls, results, strict=True) if result is not None)
        owed = self.form.owed([result for result in results if result is not None])
        if stream is None and data is not None:
            shown, leaves = answer, data
        else:
            body = self.form.shown(self.request, answer, hidden, rounds.output_tokens)
            shown = self.form.answer(body) if hidden else answer
            leaves = encoded(body) if stream is None else stream.end(body, hidden)
        _check_calls(leaves, shown.names, streams=stream is not None)
        if stream is None:
            self.reply.whole(response, leaves)
        else:
            shown = replace(shown, text=stream.text or shown.text, ids=(*stream.ids, *shown.ids))
            await self.reply.write(leaves)
        if answers := [call.arguments for call in shown.calls if call.name in outputs]:
            # A framework may write the arguments into its history as the model's text.
            text = shown.text or json.dumps(answers[0], ensure_ascii=False)
            calls = tuple(call for call in shown.calls if call.name not in outputs)
            shown = replace(shown, text=text, calls=calls)
        watched = {*conversation.mocked, *conversation.recorded, *conversation.named}
        if (
            watched
            and not answer.names
            and (name := written_in(answer.body, watched, leaves if stream is None else None))
        ):
            conversation.note_written(name)
        conversation.recovered = True
        conversation.seen_in = max(conversation.seen_in, self.shows)
        conversation.passed(
            wire.PassedAnswer(
                before=rounds.new,
                message=answer.message,
                owed=owed,
                hidden_calls=hidden,
                shown=shown,
                user_text=self.request.user_texts[-1] if self.request.user_texts else "",
                tools=self.request.tools,
                turn=conversation.turn,
                answer_id=answer.body.get("id"),
            )
        )


def _check_calls(data: bytes, recorded: Sequence[str], *, streams: bool) -> None:
    if not recorded and not (any(map(data.__contains__, _OF_CALLS)) and _CALL.search(_plain(data))):
        return
    texts = [event.data.encode() for event in EventParser().feed(data)] if streams else [data]
    values = [json_or(text) for text in texts]
    unread = (text for text, value in zip(texts, values, strict=True) if value is None)
    if any(map(repeats_key, texts)) or any(_CALL.search(_plain(text)) for text in unread):
        raise GatewayRefusal(_HIDDEN.format("an object has a key twice, or is not JSON"))
    names = [name for name in wire.called_in(values) if name or not (streams and recorded)]
    if set(names) != set(recorded) or (not streams and len(names) != len(recorded)):
        raise GatewayRefusal(_HIDDEN.format(", ".join(names)))


def _object(data: bytes, address: str) -> Json:
    value = json_or(data)
    if isinstance(value, dict):
        return value
    shown = repr(shortened(data.decode(errors="replace"), 100)) if data else "it is empty"
    raise GatewayError(f"the answer of the model at {address} is not a JSON object: {shown}")
