"""The streams of backends of the AI SDK, and the assistant's message that their chunks form.

UI message streams (AI SDK 5 to 7) are server-sent events. Text streams contain only the text of the reply.

The assembly of the message follows the AI SDK's client (`process-ui-message-stream.ts`), because servers get
the message back. It is more lenient: a delta without a start counts as a start.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from uuid import uuid4

from agentest.agents.error_hints import is_page
from agentest.agents.http_sender import EventStream, again
from agentest.agents.json_reader import excerpt, read_event, read_json, reported_usage, truncated_stream_error
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.http.sse import events

PLACE = "is the path right? such backends are usually at /api/chat"
_DATA_LINE = re.compile(rb"[0-9a-k]:[\[{\"]")
_UI_HEADER, _DATA_HEADER = "x-vercel-ai-ui-message-stream", "x-vercel-ai-data-stream"

Chunk = Mapping[str, Any]
Part = dict[str, Any]

_UNCHANGED_PARTS = ("source-url", "source-document", "file", "reasoning-file", "custom", "steering-message")
"""Types of chunks that become parts of the message without changes."""
_IGNORED_CHUNKS = ("finish-step", "ping")
STREAMING, ASKED, WAITS, DECIDED = (
    "input-streaming",
    "input-available",
    "approval-requested",
    "approval-responded",
)
DONE, FAILED, DENIED = "output-available", "output-error", "output-denied"
_FINAL_STATES = (DONE, FAILED, DENIED)


def new_id() -> str:
    """Return a unique id for a message."""
    return f"msg-{uuid4().hex}"


def is_tool(part: Part) -> bool:
    """Return whether a part is a tool call."""
    kind: str = part["type"]
    return kind.startswith("tool-") or kind == "dynamic-tool"


def tool_name(part: Part) -> str:
    """Return the name of the tool that a part calls."""
    name: str = part["toolName"] if part["type"] == "dynamic-tool" else part["type"].removeprefix("tool-")
    return name


class AssistantMessage:
    """A message of the agent, assembled from the chunks of one or several streams."""

    def __init__(self, on_unknown: Callable[[str, object], None]) -> None:
        self.id = new_id()
        self.metadata: Any = None
        self.parts: list[Part] = []
        self.steps = 0
        self._tools: dict[str, int] = {}  # call ids → the indexes of the last parts that have them
        self._done: dict[int, Part] = {}
        """Calls that were reported or answered by mocks, by the part's identity."""
        self._step = 0  # the index of the current step's first part
        self._texts: dict[tuple[str, str], Part] = {}
        self._inputs: dict[str, str] = {}
        self._on_unknown = on_unknown

    def wire(self) -> dict[str, Any]:
        """Return the message as JSON for requests."""
        metadata = {} if self.metadata is None else {"metadata": self.metadata}
        return {"id": self.id, "role": "assistant", **metadata, "parts": self.parts}

    def tool(self, call_id: str, since: int = 0) -> Part | None:
        """Return the last call with this id, from part `since` on. Some servers reuse ids in later steps."""
        at = self._tools.get(call_id)
        return None if at is None or at < since else self.parts[at]

    def is_done(self, part: Part) -> bool:
        """Return whether a call was reported or answered."""
        return id(part) in self._done

    def set_done(self, part: Part) -> None:
        """Mark a call as reported or answered."""
        self._done[id(part)] = part  # the reference prevents reuse of the object's id

    def begin_stream(self) -> None:
        """Start a new stream. Its texts are new parts, even if their ids repeat."""
        self._texts = {}

    def add(self, chunk: Chunk) -> bool:
        """Add a chunk and return whether it had text. Raises AgentError for an invalid chunk."""
        kind = chunk.get("type")
        if not isinstance(kind, str):
            raise AgentError(f"an event of the agent's stream has no `type`: {excerpt(chunk)}")
        family, _, step = kind.rpartition("-")
        if family in ("text", "reasoning") and step in ("start", "delta", "end"):
            return self._add_text(family, step, chunk)
        if kind == "tool-approval-response":
            for tool in filter(is_tool, self.parts):
                if tool.get("approval", {}).get("id") == chunk.get("approvalId"):
                    tool["state"] = DECIDED
                    _copy_fields(tool["approval"], chunk, "approved", "reason")
        elif kind.startswith("tool-"):
            self._add_tool(kind, chunk)
        elif kind in ("start", "finish", "message-metadata"):
            self._add_metadata(chunk)
        elif kind == "start-step":
            self.steps += 1
            self.parts.append({"type": "step-start"})
            self._step = len(self.parts)
        elif kind == "reset-step":
            del self.parts[self._step :]
            self._tools = {part["toolCallId"]: at for at, part in enumerate(self.parts) if is_tool(part)}
            self._texts, self._inputs = {}, {}
        elif kind.startswith("data-"):
            self._add_data(chunk)
        elif kind in _UNCHANGED_PARTS:
            self.parts.append(dict(chunk))
        elif kind not in _IGNORED_CHUNKS:
            self._on_unknown("event", kind)
        return False

    def _add_text(self, family: str, step: str, chunk: Chunk) -> bool:
        key = (family, str(chunk.get("id", "")))
        part = self._texts.get(key)
        if part is None and step == "end":
            return False
        if part is None or step == "start":
            part = self._texts[key] = {"type": family, "text": "", "state": "streaming"}
            self.parts.append(part)
        _copy_fields(part, chunk, "providerMetadata")
        if step == "end":
            part["state"] = "done"
            del self._texts[key]
        delta = chunk.get("delta", "")
        if step != "delta":
            return False
        if not isinstance(delta, str):
            raise AgentError(f"the `delta` of a text of the agent is not a text: {excerpt(chunk)}")
        part["text"] += delta
        return family == "text" and bool(delta)

    def _add_metadata(self, chunk: Chunk) -> None:
        if chunk["type"] == "start" and isinstance(chunk.get("messageId"), str):
            self.id = chunk["messageId"]
        metadata = chunk.get("messageMetadata")
        if isinstance(self.metadata, Mapping) and isinstance(metadata, Mapping):
            self.metadata = {**self.metadata, **metadata}
        elif metadata is not None:
            self.metadata = metadata

    def _add_data(self, chunk: Chunk) -> None:
        if chunk.get("transient"):
            return
        same = (p for p in self.parts if p["type"] == chunk["type"] and p.get("id") == chunk.get("id"))
        known = next(same, None) if chunk.get("id") is not None else None
        if known is None:
            self.parts.append(dict(chunk))
        else:
            known["data"] = chunk.get("data")

    def _add_tool(self, kind: str, chunk: Chunk) -> None:
        call_id = chunk.get("toolCallId")
        if not isinstance(call_id, str) or not call_id:
            raise AgentError(f"a `{kind}` of the agent has no `toolCallId`: {excerpt(chunk)}")
        if kind == "tool-input-start":
            self._add_input(chunk, STREAMING, None)
            self._inputs[call_id] = ""
        elif kind == "tool-input-delta":
            self._inputs[call_id] = self._inputs.get(call_id, "") + str(chunk.get("inputTextDelta", ""))
        elif kind == "tool-input-available":
            self._add_input(chunk, ASKED, chunk.get("input"))
        elif kind == "tool-input-error":
            part = self._add_input(chunk, FAILED, chunk.get("input"))
            part["errorText"] = str(chunk.get("errorText", ""))
        else:
            self._add_output(kind, chunk, call_id)

    def _add_input(self, chunk: Chunk, state: str, value: Any) -> Part:
        part = self.tool(chunk["toolCallId"], self._step)
        if part is None or self.is_done(part) or _is_another(part, chunk, state, value):
            part = self._new_tool(chunk)
        elif part["state"] in _FINAL_STATES:
            return part  # the server repeats a finished call
        part.update({"state": state, **({} if state == STREAMING else {"input": value})})
        _copy_fields(part, chunk, "toolMetadata", "providerExecuted", "title")
        _copy_fields(part, chunk, callProviderMetadata="providerMetadata")
        return part

    def _new_tool(self, chunk: Chunk) -> Part:
        name = chunk.get("toolName")
        if not isinstance(name, str) or not name:
            raise AgentError(f"a tool call of the agent has no `toolName`: {excerpt(chunk)}")
        kind = (
            {"type": "dynamic-tool", "toolName": name} if chunk.get("dynamic") else {"type": f"tool-{name}"}
        )
        part: Part = {**kind, "toolCallId": chunk["toolCallId"]}
        self._tools[chunk["toolCallId"]] = len(self.parts)
        self.parts.append(part)
        return part

    def _add_output(self, kind: str, chunk: Chunk, call_id: str) -> None:
        part = self.tool(call_id)
        if part is None:
            raise AgentError(
                f"a `{kind}` of the agent's stream belongs to no call: none has the toolCallId {call_id!r} "
                "(expected a `tool-input-available` before it)"
            )
        if kind == "tool-output-available":
            part.update(state=DONE, output=chunk.get("output"))
            part.pop("preliminary", None)
            _copy_fields(part, chunk, "preliminary", "providerExecuted", "toolMetadata")
        elif kind == "tool-output-error":
            part.update(state=FAILED, errorText=str(chunk.get("errorText", "")))
            _copy_fields(part, chunk, "providerExecuted", "toolMetadata")
        elif kind == "tool-output-denied":
            part["state"] = DENIED
        elif kind == "tool-approval-request":
            approval: Part = {"id": chunk.get("approvalId")}
            _copy_fields(approval, chunk, "isAutomatic", "signature", "inputSchemaInput")
            _copy_fields(approval, chunk, requestReason="reason", descriptor="approvalDescriptor")
            part.update(state=WAITS, approval=approval)
        else:
            self._on_unknown("event", kind)

    def unfinished_input(self, call_id: str) -> str:
        """Return the streamed text of a call's input, as far as it has arrived."""
        return self._inputs.get(call_id, "")


def _is_another(part: Part, chunk: Chunk, state: str, value: Any) -> bool:
    if chunk.get("toolName") not in (None, tool_name(part)):
        return True
    return part["state"] in _FINAL_STATES and state != STREAMING and value != part.get("input")


def _copy_fields(part: Part, chunk: Chunk, *keys: str, **renamed: str) -> None:
    sources = {key: key for key in keys} | renamed
    part.update({key: chunk[source] for key, source in sources.items() if chunk.get(source) is not None})


class StreamResult:
    """One stream: the message that it adds to, its end, its usage and its form."""

    def __init__(self, message: AssistantMessage) -> None:
        self.message = message
        self.finish: Chunk | None = None
        self.is_text = False
        self._before = message.steps
        self._metadata: dict[str, Any] = {}  # the message's metadata, as far as this stream has sent it

    @property
    def model_calls(self) -> int:
        """The number of model calls, one for each step of the stream."""
        return self.message.steps - self._before

    @property
    def usage(self) -> Usage:
        """The tokens in the stream's `finish` chunk or in the message's metadata."""
        for source in (self.finish or {}, self._metadata):
            for key in ("totalUsage", "usage"):
                if isinstance(reported := source.get(key), Mapping):
                    return reported_usage(reported) or Usage()
        return Usage()

    def take(self, chunk: Chunk) -> bool:
        """Take a chunk and return whether it had text. Raises AgentError for errors and aborts."""
        kind = chunk.get("type")
        if isinstance(chunk.get("messageMetadata"), Mapping):
            self._metadata.update(chunk["messageMetadata"])
        if kind == "error":
            error = chunk.get("errorText")
            where = " (the AI SDK's servers report the cause if `onError` does)"
            hint = where if error == "An error occurred." else ""
            raise AgentError(f"the agent's stream reports an error: {excerpt(error)}{hint}")
        if kind == "abort":
            reason = f": {excerpt(chunk['reason'])}" if chunk.get("reason") else ""
            raise AgentError(f"the agent aborted its reply{reason}")
        if kind == "finish":
            self.finish = chunk
            if chunk.get("finishReason") == "error":
                raise AgentError("the agent's stream reports an error: finishReason is `error`")
        return self.message.add(chunk)


async def read_ui_messages(events: EventStream, result: StreamResult) -> None:
    """Read a UI message stream, which ends with `finish`, `[DONE]` or both. Raises AgentError."""
    async for event in events:
        data = event.data.strip()
        if data == "[DONE]":
            return
        if data and result.take(read_event(data)):
            events.note_first_token()
    if result.finish is None:
        raise truncated_stream_error("`finish` and `[DONE]`")


async def read_stream(response: DirectResponse, result: StreamResult) -> None:
    """Read a stream of any form into `result`. Raises AgentError; `result` then has the earlier chunks."""
    pieces = response.pieces()
    beginning = b""
    async for piece in pieces:
        beginning += piece
        if len(beginning.lstrip()) > len("data:"):
            break  # enough to detect the form
    body, content_type = again(beginning, pieces), response.headers.get("content-type", "")
    result.message.begin_stream()
    is_ui = _UI_HEADER in response.headers or "event-stream" in content_type
    if is_ui or beginning.lstrip().startswith(b"data:"):
        await read_ui_messages(EventStream(events(body), response.note_first_token), result)
    elif _DATA_HEADER in response.headers or _DATA_LINE.match(beginning.lstrip()):
        raise AgentError(
            "the agent answers with a data stream of AI SDK 4; Agentest speaks versions 5 to 7: upgrade its "
            "package `ai`, or let it send a text stream"
        )
    elif "text/plain" in content_type and not is_page(beginning):
        await _read_text(body, result, response.note_first_token)
    else:
        raise AgentError(_no_stream_error(b"".join([piece async for piece in body])))


async def _read_text(pieces: AsyncIterator[bytes], result: StreamResult, on_text: Callable[[], None]) -> None:
    result.is_text = True
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    message: AssistantMessage = result.message
    async for piece in pieces:
        if message.add({"type": "text-delta", "id": "0", "delta": decoder.decode(piece)}):
            on_text()
    if not any(part["type"] == "text" and part["text"].strip() for part in message.parts):
        raise AgentError(
            "the agent's text stream is empty, as after a failure or when only tools were "
            "called; UI message streams (`toUIMessageStreamResponse`) report more"
        )


def _no_stream_error(body: bytes) -> str:
    data = read_json(body, PLACE)
    error = data.get("error") if isinstance(data, dict) else None
    if error:
        return f"the agent answered with an error: {excerpt(error)}"
    return (
        "the agent's answer is not a stream of the AI SDK (expected server-sent events or plain "
        f"text), but JSON: {excerpt(data)}"
    )
