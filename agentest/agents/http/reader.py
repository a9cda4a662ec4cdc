"""Read a response as JSON, server-sent events, JSON lines or text."""

from __future__ import annotations

import asyncio
import json
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Iterable
from email.message import Message
from typing import Any

from agentest.agents.error_hints import is_page
from agentest.agents.http.extraction import AnswerPaths, ResponseExtraction, ResponsePiece
from agentest.agents.http_sender import again, first_piece
from agentest.agents.json_reader import truncated_stream_error
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.http.sse import AT_ONCE, EventParser, events

_SSE_FIELDS = (b"data:", b"event:", b"id:", b"retry:")
_JSON_LINES_TYPES = ("ndjson", "jsonl", "json-lines", "jsonlines", "json-seq", "stream+json", "json-stream")
_PADDING = b"\x1e \t\r\n"
"""Characters to strip from a line. A JSON text sequence starts each text with the record separator."""
_ACCEPTED = 202
_LOGIN_WORDS = (b'type="password"', b"type='password'", b"sign in", b"log in", b"login")


class AnswerReader:
    """Reads the responses of one agent."""

    def __init__(self, paths: AnswerPaths) -> None:
        self._paths = paths

    async def read(self, response: DirectResponse, gathering: ResponseExtraction) -> None:
        """Read a response into `gathering`. Raises AgentError, BadBody and CONNECTION_ERRORS."""
        gathering.note_headers(response.headers)
        gathering.is_pending = response.status_code == _ACCEPTED
        pieces = response.pieces()
        beginning = await first_piece(pieces)
        body = again(beginning, pieces)
        is_text = self._paths.are_texts
        match _body_form(response.headers.get("content-type", "").lower(), beginning):
            case "events":
                stream = (ResponsePiece.of_event(event, is_text=is_text) async for event in events(body))
            case "lines":
                stream = (ResponsePiece.of_line(line, is_text=is_text) async for line in _lines(body))
            case _:
                return await self._read_whole(body, response, gathering)
        async for piece in stream:
            if gathering.take_event(piece):
                response.note_first_token()
            if gathering.is_done:
                return None
        return self._check_complete(gathering)

    def _check_complete(self, gathering: ResponseExtraction) -> None:
        if self._paths.done and not gathering.is_done:
            last = f"the event that is the last one (`done: {self._paths.done.text}`)"
            raise truncated_stream_error(f"{last}; what came: {gathering.shown}")

    async def _read_whole(
        self, pieces: AsyncIterator[bytes], response: DirectResponse, gathering: ResponseExtraction
    ) -> None:
        is_text = "json" not in response.headers.get("content-type", "").lower()
        body: list[bytes] = []
        async for piece in pieces:
            body.append(piece)
            if is_text and self._paths.delta:
                response.note_first_token()
        await self._read_text(_decode(b"".join(body), response), is_text, gathering)

    async def _read_text(self, text: str, is_text: bool, gathering: ResponseExtraction) -> None:
        if not text.strip():
            if gathering.is_partial:
                gathering.is_pending = True
                return
            raise AgentError("the agent's answer is empty")
        gathering.note_text(text)
        are_texts = is_text and self._paths.are_texts
        stream = _events_in_text(text, are_texts)
        if stream is not None:
            for number, piece in enumerate(stream):
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)
                gathering.take_event(piece)
                if gathering.is_done:
                    return
            return self._check_complete(gathering)
        value = self._value(text, is_text, takes_xml=gathering.is_partial)
        gathering.take_answer(ResponsePiece(value, text if are_texts else value))

    def _value(self, text: str, is_text: bool, *, takes_xml: bool) -> Any:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            is_markup = is_page(text.encode()) and not (takes_xml and "<html" not in text.lower())
            if is_markup and not (self._paths.reply and self._paths.reply.is_all):
                raise AgentError(_web_page_message(text)) from None
            if not is_text:
                raise AgentError(f"the agent's answer is not JSON: {text!r}") from None
            return text
        return text if is_text and not isinstance(value, dict | list) else value


def _body_form(content_type: str, beginning: bytes) -> str:
    head = beginning.removeprefix(BOM_UTF8).lstrip(_PADDING)
    is_events = "event-stream" in content_type and not head.startswith((b"{", b"[", b"<"))
    if head and (is_events or head.startswith(_SSE_FIELDS)):
        return "events"
    is_lines = any(name in content_type for name in _JSON_LINES_TYPES) and head.startswith(b"{")
    return "lines" if is_lines else "whole"


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    begun: list[bytes] = []
    """The pieces of the current line, joined only once because repeated concatenation would be slow."""
    mark = BOM_UTF8
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        begun.append(first)
        whole: list[bytes] = []
        if others:
            whole, begun = [b"".join(begun), *others[:-1]], [others[-1]]
        for number, line in enumerate(whole):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            if line.strip():
                yield _decode_line(line.removeprefix(mark))
                mark = b""
    if (rest := b"".join(begun)).strip():
        yield _decode_line(rest.removeprefix(mark))


def _decode_line(line: bytes) -> str:
    return line.strip(_PADDING).decode("utf-8", errors="replace")


def _events_in_text(text: str, are_texts: bool) -> Iterable[ResponsePiece] | None:
    head = text.lstrip()
    if head.encode()[:10].startswith(_SSE_FIELDS):
        parser = EventParser()
        found = [*parser.feed(text.encode()), *parser.rest()]
        return [ResponsePiece.of_event(event, is_text=are_texts) for event in found]
    if are_texts:
        return None
    # Not splitlines(): JSON strings may contain other line separators.
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < 2 or not head.startswith("{"):
        return None
    try:
        values = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        return None
    return [ResponsePiece(value, line) for value, line in zip(values, lines, strict=True)]


def _decode(body: bytes, response: DirectResponse) -> str:
    header = Message()
    header["content-type"] = response.headers.get("content-type", "")
    try:
        return body.removeprefix(BOM_UTF8).decode(header.get_content_charset("utf-8"), errors="replace")
    except LookupError:
        return body.removeprefix(BOM_UTF8).decode(errors="replace")


def _web_page_message(text: str) -> str:
    looks_like_login = any(word in text.encode().lower() for word in _LOGIN_WORDS)
    advice = (
        "it looks like the one where users log in: log in with `setup: {per: run, endpoint: …, body: …}`"
        if looks_like_login
        else "is `endpoint` right? For an agent that answers with markup write reply: '@'"
    )
    return f"the agent's answer is a web page ({advice}): {text!r}"
