"""A scripted model behind four model APIs, which refuses invalid histories as providers do.

`Provider` serves the APIs over HTTP. `Conversation` is an agent that keeps its history in one of the forms.
What the model answers depends on the user's last text alone:

- `look X`: it calls find(q=X), then says `Done.`
- `both X`: it says `Let me see.` and calls find(q=X) and send(q=X), then find(q=X2), then says `Done.`
- `recall`: it says what all results were.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
from aiohttp import web
from stopping import stop

Json = dict[str, Any]
FORMS = ("chat", "responses", "stored responses", "anthropic", "gemini")
TOOLS = ("find", "send")
OUTPUT_TOOLS = ("final_answer", "final_result", "set_model_response", "json", "Answer")
WORDS = ("look", "both", "recall")
SNAKE = {
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "thought_signature": "thoughtSignature",
}
CREATED = 1_700_000_000
_NEXT = count(1)


@dataclass(frozen=True)
class Said:
    """One entry of a history: the user's, the model's with its calls (id, name, arguments), or a result."""

    role: str
    """`user`, `model`, `result`, or `observed` for results that a framework wrote as text of the user."""
    text: str = ""
    calls: tuple[tuple[str, str, Json], ...] = ()
    call: str = ""
    """The id of the call, of a result; with Gemini its name."""
    result: Any = None


class Refused(Exception):
    """The history is not valid."""


def reply_to(history: Sequence[Said]) -> tuple[str, list[tuple[str, Json]]]:
    """Return the model's text and its calls."""
    since = max(i for i, each in enumerate(history) if each.role == "user")
    text = history[since].text
    # Frameworks write words of their own before the user's.
    word, _, rest = text[max(map(text.rfind, WORDS), default=0) :].strip().partition(" ")
    made = [(name, arguments) for each in history[since:] for _, name, arguments in each.calls]
    if word in ("look", "both") and ("find", {"q": rest}) not in made:
        if word == "look":
            return "", [("find", {"q": rest})]
        return "Let me see.", [("find", {"q": rest}), ("send", {"q": rest})]
    if word == "both" and ("find", {"q": f"{rest}2"}) not in made:
        return "", [("find", {"q": f"{rest}2"})]
    if word == "recall":
        results = [str(each.result) for each in history if each.role in ("result", "observed")]
        return f"I recall {' '.join(results)}", []
    return "Done.", []


def check(history: Sequence[Said]) -> None:
    """Raise Refused unless each call is followed by its result, and each result follows its call."""
    owed: list[str] = []
    for each in history:
        if each.role == "result":
            if each.call not in owed:
                raise Refused(f"a result of no call: {each.call}")
            owed.remove(each.call)
        elif owed:
            raise Refused(f"calls without a result: {owed}")
        if each.role == "model":
            owed = [call_id for call_id, _, _ in each.calls]
    if owed:
        raise Refused(f"calls without a result: {owed}")


class Chat:
    """Chat completions."""

    path = "/v1/chat/completions"

    def history(self, body: Json) -> list[Said]:
        history = []
        for message in body["messages"]:
            match message["role"]:
                case "user":
                    observed, _, text = _text(message["content"]).rpartition("New task:")
                    if observed.startswith("Observation:") or text.startswith("Observation:"):
                        history.append(Said("observed", result=observed or text))
                    if not text.startswith("Observation:"):
                        history.append(Said("user", text))
                case "assistant":
                    calls = tuple(
                        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                        for call in message.get("tool_calls") or ()
                    )
                    history.append(Said("model", _text(message.get("content")), calls))
                case "tool":
                    history.append(
                        Said("result", call=message["tool_call_id"], result=_value(message["content"]))
                    )
        return history

    def answer(self, body: Json, text: str, calls: Sequence[tuple[str, Json]]) -> Json:
        message: Json = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{next(_NEXT)}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for name, arguments in calls
            ]
        return {
            "id": f"chatcmpl-{next(_NEXT)}",
            "object": "chat.completion",
            "created": CREATED,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }

    def events(self, answer: Json) -> list[tuple[str | None, Json | str]]:
        choice = answer["choices"][0]
        message = choice["message"]
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in _pieces(message["content"])]
        for index, call in enumerate(message.get("tool_calls", [])):
            function = call["function"]
            deltas.append(
                {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
            )
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
                for piece in _pieces(function["arguments"])
            ]
        head = {**answer, "object": "chat.completion.chunk"}
        del head["choices"], head["usage"]
        chunks: list[Json] = [
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
        ]
        chunks.append(
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
        )
        chunks.append({**head, "choices": [], "usage": answer["usage"]})
        return [*((None, chunk) for chunk in chunks), (None, "[DONE]")]

    def request(self, history: list[Json], *, stream: bool) -> Json:
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in TOOLS]
        return {"model": "m", "messages": history, "tools": tools, **({"stream": True} if stream else {})}

    def user(self, text: str) -> Json:
        return {"role": "user", "content": text}

    def received(self, answer: Json) -> list[Json]:
        return [answer["choices"][0]["message"]]

    def assembled(self, events: Sequence[Json]) -> Json:
        message: Json = {"role": "assistant", "content": "", "tool_calls": {}}
        reason = None
        for chunk in events:
            for choice in chunk["choices"]:
                reason = choice["finish_reason"] or reason
                message["content"] += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or ():
                    known = message["tool_calls"].setdefault(
                        call["index"],
                        {"id": call.get("id"), "type": "function", "function": {"name": "", "arguments": ""}},
                    )
                    for key, value in call["function"].items():
                        known["function"][key] += value
        message["tool_calls"] = [message["tool_calls"][index] for index in range(len(message["tool_calls"]))]
        if not message["tool_calls"]:
            del message["tool_calls"]
        return {"choices": [{"message": message, "finish_reason": reason}]}

    def text_and_calls(self, answer: Json) -> tuple[str, list[tuple[str, str, Json]]]:
        message = answer["choices"][0]["message"]
        assert (answer["choices"][0]["finish_reason"] == "tool_calls") == bool(message.get("tool_calls"))
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        return message["content"] or "", calls

    def results(self, results: Sequence[tuple[str, str, Any]]) -> list[Json]:
        return [
            {"role": "tool", "tool_call_id": call_id, "content": json.dumps(result)}
            for call_id, _, result in results
        ]


class Anthropic:
    """Anthropic's messages, which think before each answer."""

    path = "/v1/messages"

    def history(self, body: Json) -> list[Said]:
        history = []
        for message in body["messages"]:
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if message["role"] == "assistant":
                if (
                    blocks[0]["type"] != "thinking"
                    or blocks[0]["signature"] != f"sig:{blocks[0]['thinking']}"
                ):
                    raise Refused("an answer without its thoughts, or with changed ones")
                calls = tuple(
                    (b["id"], b["name"].split("__")[-1], b["input"])
                    for b in blocks
                    if b["type"] == "tool_use"
                )
                history.append(Said("model", "".join(b.get("text", "") for b in blocks), calls))
                continue
            kinds = [block["type"] for block in blocks]
            if kinds != sorted(kinds, key=lambda kind: kind != "tool_result"):
                raise Refused("results have to come first")
            for block in blocks:
                if block["type"] == "tool_result":
                    result = _value(block["content"])
                    history.append(Said("result", call=block["tool_use_id"], result=result))
                else:
                    history.append(Said("user", block["text"]))
        return history

    def answer(self, body: Json, text: str, calls: Sequence[tuple[str, Json]]) -> Json:
        thought = f"thought {next(_NEXT)}"
        content: list[Json] = [{"type": "thinking", "thinking": thought, "signature": f"sig:{thought}"}]
        content += [{"type": "text", "text": text}] if text else []
        content += [
            {"type": "tool_use", "id": f"toolu_{next(_NEXT)}", "name": name, "input": arguments}
            for name, arguments in calls
        ]
        return {
            "id": f"msg_{next(_NEXT)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }

    def events(self, answer: Json) -> list[tuple[str | None, Json | str]]:
        events: list[Json] = [
            {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
        ]
        for index, block in enumerate(answer["content"]):
            empty = {
                key: "" if key in ("text", "thinking", "signature") else value for key, value in block.items()
            }
            if block["type"] == "tool_use":
                empty["input"] = {}
            events.append({"type": "content_block_start", "index": index, "content_block": empty})
            deltas: list[Json] = []
            if block["type"] == "text":
                deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
            elif block["type"] == "thinking":
                deltas = [
                    {"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])
                ]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            else:
                pieces = _pieces(json.dumps(block["input"]))
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}})
        events.append({"type": "message_stop"})
        return [(event["type"], event) for event in events]

    def request(self, history: list[Json], *, stream: bool) -> Json:
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in TOOLS]
        body = {"model": "m", "max_tokens": 100, "messages": history, "tools": tools}
        return {**body, **({"stream": True} if stream else {})}

    def user(self, text: str) -> Json:
        return {"role": "user", "content": text}

    def received(self, answer: Json) -> list[Json]:
        return [{"role": "assistant", "content": answer["content"]}]

    def assembled(self, events: Sequence[Json]) -> Json:
        blocks: list[Json] = []
        texts: dict[int, str] = {}
        reason = None
        for event in events:
            match event["type"]:
                case "content_block_start":
                    assert event["index"] == len(blocks)
                    blocks.append(dict(event["content_block"]))
                case "content_block_delta":
                    block, delta = blocks[event["index"]], event["delta"]
                    if delta["type"] == "input_json_delta":
                        texts[event["index"]] = texts.get(event["index"], "") + delta["partial_json"]
                    else:
                        key = delta["type"].removesuffix("_delta")
                        block[key] = block.get(key, "") + delta[key]
                case "message_delta":
                    reason = event["delta"]["stop_reason"]
        for index, text in texts.items():
            blocks[index]["input"] = json.loads(text)
        assert events[-1]["type"] == "message_stop"
        return {"id": events[0]["message"].get("id"), "content": blocks, "stop_reason": reason}

    def text_and_calls(self, answer: Json) -> tuple[str, list[tuple[str, str, Json]]]:
        blocks = answer["content"]
        calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        assert (answer["stop_reason"] == "tool_use") == bool(calls)
        return "".join(block.get("text", "") for block in blocks), calls

    def results(self, results: Sequence[tuple[str, str, Any]]) -> list[Json]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": json.dumps(result)}
            for call_id, _, result in results
        ]
        return [{"role": "user", "content": blocks}]


class Gemini:
    """Gemini, whose calls have no ids and whose first call has a signature."""

    path = "/v1beta/models/m:generateContent"

    def history(self, body: Json) -> list[Said]:
        history: list[Said] = []
        for content in body["contents"]:
            # The API takes its keys in both spellings, and clients use both.
            parts = [{SNAKE.get(key, key): value for key, value in p.items()} for p in content["parts"]]
            if content["role"] == "model":
                made = [part for part in parts if "functionCall" in part]
                if made and not made[0].get("thoughtSignature"):
                    raise Refused("the first call of a round has no thoughtSignature")
                calls = tuple(
                    (p["functionCall"]["name"], p["functionCall"]["name"], p["functionCall"]["args"])
                    for p in made
                )
                history.append(Said("model", "".join(p.get("text", "") for p in parts), calls))
                continue
            for part in parts:
                if response := part.get("functionResponse"):
                    history.append(Said("result", call=response["name"], result=response["response"]))
                else:
                    history.append(Said("user", part["text"]))
        return history

    def answer(self, body: Json, text: str, calls: Sequence[tuple[str, Json]]) -> Json:
        parts: list[Json] = [{"text": text}] if text else []
        for place, (name, arguments) in enumerate(calls):
            part: Json = {"functionCall": {"name": name, "args": arguments}}
            if place == 0:
                part["thoughtSignature"] = b64encode(f"signature {next(_NEXT)}".encode()).decode()
            parts.append(part)
        return {
            "candidates": [
                {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
            ],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
            "responseId": f"response {next(_NEXT)}",
        }

    def events(self, answer: Json) -> list[tuple[str | None, Json | str]]:
        candidate = answer["candidates"][0]
        pieces: list[Json] = []
        for part in candidate["content"]["parts"]:
            pieces += [{"text": piece} for piece in _pieces(part["text"])] if "text" in part else [part]
        chunks: list[Json] = [
            {"candidates": [{"content": {"role": "model", "parts": [piece]}, "index": 0}]} for piece in pieces
        ]
        chunks[-1]["candidates"][0]["finishReason"] = "STOP"
        chunks[-1]["usageMetadata"] = answer["usageMetadata"]
        return [(None, {**chunk, "responseId": answer["responseId"]}) for chunk in chunks]

    def request(self, history: list[Json], *, stream: bool) -> Json:
        del stream
        return {"contents": history, "tools": [{"functionDeclarations": [{"name": name} for name in TOOLS]}]}

    def user(self, text: str) -> Json:
        return {"role": "user", "parts": [{"text": text}]}

    def received(self, answer: Json) -> list[Json]:
        return [answer["candidates"][0]["content"]]

    def assembled(self, events: Sequence[Json]) -> Json:
        parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
        reasons = [event["candidates"][0].get("finishReason") for event in events]
        assert set(reasons[:-1]) <= {None}
        assert reasons[-1] in ("STOP", "MAX_TOKENS")
        assert len({event.get("responseId") for event in events}) == 1
        return {"candidates": [{"content": {"role": "model", "parts": parts}}]}

    def text_and_calls(self, answer: Json) -> tuple[str, list[tuple[str, str, Json]]]:
        parts = answer["candidates"][0]["content"]["parts"]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        return "".join(part.get("text", "") for part in parts), [
            (c["name"], c["name"], c["args"]) for c in calls
        ]

    def results(self, results: Sequence[tuple[str, str, Any]]) -> list[Json]:
        parts = [{"functionResponse": {"name": name, "response": result}} for _, name, result in results]
        return [{"role": "user", "parts": parts}]


class Responses:
    """OpenAI's responses, with the history in the request. Each answer begins with encrypted reasoning."""

    path = "/v1/responses"

    def items(self, body: Json) -> list[Json]:
        given = body["input"]
        return [self.user(given)] if isinstance(given, str) else given

    def history(self, body: Json) -> list[Said]:
        history: list[Said] = []
        reasoned = False
        for item in self.items(body):
            match item.get("type"), item.get("role"):
                case "reasoning", _:
                    if reasoned:
                        raise Refused("reasoning without the item that follows it")
                    stored = body.get("store") is not False
                    if not stored and item.get("encrypted_content") != f"secret {item['id']}":
                        raise Refused(f"item {item['id']} is not stored")
                    reasoned = True
                case "function_call", _:
                    call = (item["call_id"], item["name"], json.loads(item["arguments"]))
                    if history and history[-1].role == "model" and not reasoned:
                        history[-1] = Said("model", history[-1].text, (*history[-1].calls, call))
                    elif not reasoned:
                        raise Refused("a call without its reasoning")
                    else:
                        history.append(Said("model", "", (call,)))
                    reasoned = False
                case "function_call_output", _:
                    history.append(Said("result", call=item["call_id"], result=_value(item["output"])))
                case _, "user":
                    history.append(Said("user", _text(item["content"])))
                case _, "assistant":
                    if not reasoned and "id" in item:
                        raise Refused("a message without its reasoning")
                    history.append(Said("model", _text(item["content"])))
                    reasoned = False
        return history

    def answer(self, body: Json, text: str, calls: Sequence[tuple[str, Json]]) -> Json:
        secret = f"rs_{next(_NEXT)}"
        reasoning: Json = {"type": "reasoning", "id": secret, "summary": []}
        if "reasoning.encrypted_content" in body.get("include", ()):
            reasoning["encrypted_content"] = f"secret {secret}"
        output = [reasoning]
        if text:
            content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
            output.append(
                {
                    "type": "message",
                    "id": f"msg_{next(_NEXT)}",
                    "role": "assistant",
                    "status": "completed",
                    "content": content,
                }
            )
        output += [
            {
                "type": "function_call",
                "id": f"fc_{next(_NEXT)}",
                "call_id": f"call_{next(_NEXT)}",
                "name": name,
                "arguments": json.dumps(arguments),
                "status": "completed",
            }
            for name, arguments in calls
        ]
        echoed = {key: body[key] for key in ("previous_response_id", "store", "instructions") if key in body}
        return {
            "id": f"resp_{next(_NEXT)}",
            "object": "response",
            "created_at": CREATED,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "metadata": {},
            **echoed,
            "model": body["model"],
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "usage": {
                "input_tokens": 10,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 15,
            },
        }

    def events(self, answer: Json) -> list[tuple[str | None, Json | str]]:
        begun = {**answer, "output": [], "status": "in_progress", "usage": None}
        events: list[Json] = [
            {"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")
        ]
        for index, item in enumerate(answer["output"]):
            place = {"output_index": index, "item_id": item["id"]}
            empty = {**item, **({"status": "in_progress"} if "status" in item else {})}
            within: list[Json] = []
            if item["type"] == "message":
                empty["content"] = []
                part = item["content"][0]
                place["content_index"] = 0
                within = [{"type": "content_part.added", "part": {**part, "text": ""}}]
                within += [
                    {"type": "output_text.delta", "delta": piece, "logprobs": []}
                    for piece in _pieces(part["text"])
                ]
                within += [
                    {"type": "output_text.done", "text": part["text"], "logprobs": []},
                    {"type": "content_part.done", "part": part},
                ]
            elif item["type"] == "function_call":
                empty["arguments"] = ""
                within = [
                    {"type": "function_call_arguments.delta", "delta": piece}
                    for piece in _pieces(item["arguments"])
                ]
                done = {"name": item["name"], "arguments": item["arguments"]}
                within.append({"type": "function_call_arguments.done", **done})
            events.append({"type": "response.output_item.added", "output_index": index, "item": empty})
            events += [{**place, **event, "type": f"response.{event['type']}"} for event in within]
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        events.append({"type": "response.completed", "response": answer})
        return [(event["type"], {**event, "sequence_number": i}) for i, event in enumerate(events)]

    def request(self, history: list[Json], *, stream: bool) -> Json:
        tools = [{"type": "function", "name": name, "parameters": {}} for name in TOOLS]
        kept = {"store": False, "include": ["reasoning.encrypted_content"]}
        body = {"model": "m", "input": history, "tools": tools, **kept}
        return {**body, **({"stream": True} if stream else {})}

    def user(self, text: str) -> Json:
        return {"role": "user", "content": text}

    def received(self, answer: Json) -> list[Json]:
        return list(answer["output"])

    def assembled(self, events: Sequence[Json]) -> Json:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        done = {e["output_index"]: e["item"] for e in events if e["type"] == "response.output_item.done"}
        final = events[-1]["response"]
        assert final["id"] == events[0]["response"]["id"]
        assert final["output"] == [done[index] for index in range(len(done))]
        return dict(final)

    def text_and_calls(self, answer: Json) -> tuple[str, list[tuple[str, str, Json]]]:
        items = answer["output"]
        texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
        calls = [item for item in items if item["type"] == "function_call"]
        return "".join(texts), [(c["call_id"], c["name"], json.loads(c["arguments"])) for c in calls]

    def results(self, results: Sequence[tuple[str, str, Any]]) -> list[Json]:
        return [
            {"type": "function_call_output", "call_id": call_id, "output": json.dumps(result)}
            for call_id, _, result in results
        ]


class StoredResponses(Responses):
    """OpenAI's responses with a stored history: requests name the previous response."""

    def request(self, history: list[Json], *, stream: bool) -> Json:
        last = max((i for i, item in enumerate(history) if "response" in item), default=-1)
        body = super().request(history[last + 1 :], stream=stream)
        del body["store"], body["include"]
        return {**body, **({"previous_response_id": history[last]["response"]} if last >= 0 else {})}

    def received(self, answer: Json) -> list[Json]:
        return [{"response": answer["id"]}]


class Threads(Anthropic):
    """Anthropic's messages with a stored history: requests name the previous message, and no tools again."""

    def request(self, history: list[Json], *, stream: bool) -> Json:
        last = max((i for i, item in enumerate(history) if "message" in item), default=-1)
        body = super().request(history[last + 1 :], stream=stream)
        if last < 0:
            return {**body, "thread": {"type": "create"}}
        del body["tools"]
        return {**body, "thread": {"type": "continue", "previous_message_id": history[last]["message"]}}

    def received(self, answer: Json) -> list[Json]:
        return [{"message": answer["id"]}]


Form = Chat | Responses | Anthropic | Gemini
FORM_OF: dict[str, Callable[[], Form]] = {
    **dict(zip(FORMS, (Chat, Responses, StoredResponses, Anthropic, Gemini), strict=True)),
    "anthropic threads": Threads,
}
ROOTS = dict(zip(FORM_OF, (*["openai"] * 3, "anthropic", "google", "anthropic"), strict=True))


def _text(content: Any) -> str:
    """Return the text of a content that is a text or a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _offered(body: Json, name: str) -> str:
    """Return the name under which a tool is offered, which may be that of its MCP server, too."""
    names = (each["name"] for each in body.get("tools") or () if "name" in each)
    return next((each for each in names if each.endswith(f"__{name}")), name)


def _output_tool(offered: Any) -> Json | None:
    """Return the tool by which an agent returns its answer, in any API's list of tools."""
    if isinstance(offered, dict) and offered.get("name") in OUTPUT_TOOLS:
        return offered
    within = offered.values() if isinstance(offered, dict) else offered if isinstance(offered, list) else ()
    return next((found for each in within if (found := _output_tool(each))), None)


def _value(content: Any) -> Any:
    """Return a result parsed as JSON, or else as text."""
    text = _text(content)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _pieces(text: str | None) -> list[str]:
    """Split a text into pieces of three characters."""
    text = text or ""
    return [text[i : i + 3] for i in range(0, len(text), 3)]


@dataclass
class Provider:
    """The APIs of a scripted model. It stores its requests."""

    reply: Callable[[Sequence[Said]], tuple[str, list[tuple[str, Json]]]] = reply_to
    histories: list[list[Said]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stored: dict[str, list[Json]] = field(default_factory=dict)
    """Id of a response → all items up to its end; of a message in a thread, all messages."""
    tools: dict[str, list[Json]] = field(default_factory=dict)
    """Id of a message in a thread → the tools of the thread."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request, *, write: bool = True) -> web.StreamResponse:
        """Answer a request. `write`: False to return a stream as one body."""
        form = next(make() for make in FORM_OF.values() if _is_of(make(), request.path))
        body = await request.json()
        if before := body.get("previous_response_id"):
            body["input"] = [*self.stored[before], *form.items(body)]
        if isinstance(form, Anthropic) and (before := body.get("thread", {}).get("previous_message_id")):
            if before not in self.stored or "tools" in body:
                self.refused.append(
                    f"no thread {before}" if before not in self.stored else "tools in a thread"
                )
                return web.json_response({"error": {"message": self.refused[-1]}}, status=400)
            body["messages"] = [*self.stored[before], *body["messages"]]
            body["tools"] = self.tools[before]
        if isinstance(form, Responses):
            items = {item["id"]: item for each in self.stored.values() for item in each if "id" in item}
            body["input"] = [
                items[item["id"]] if item.get("type") == "item_reference" else item
                for item in form.items(body)
            ]
        try:
            history = form.history(body)
            check(history)
        except Refused as error:
            self.refused.append(str(error))
            return web.json_response({"error": {"message": str(error)}}, status=400)
        self.histories.append(history)
        text, calls = self.reply(history)
        if not calls and (output := _output_tool(body.get("tools"))):
            text, calls = "", [(output["name"], {"answer": text})]
        answer = form.answer(body, text, [(_offered(body, name), arguments) for name, arguments in calls])
        if isinstance(form, Responses) and body.get("store") is not False:
            self.stored[answer["id"]] = [*form.items(body), *answer["output"]]
        if isinstance(form, Anthropic) and "thread" in body:
            self.stored[answer["id"]] = [*body["messages"], *form.received(answer)]
            self.tools[answer["id"]] = body["tools"]
        if not (body.get("stream") or "stream" in request.path):
            return web.json_response(answer, headers={"x-ratelimit-remaining": "7"})
        kind = {"Content-Type": "text/event-stream"}
        pieces = []
        events = form.events(answer)
        if "/deployments/" in request.path:  # Azure's filter comes before the first choice
            events.insert(
                0, (None, {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
            )
        for name, event in events:
            data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            pieces.append(f"{f'event: {name}{chr(10)}' if name else ''}data: {data}\n\n".encode())
        if not write:
            return web.Response(body=b"".join(pieces), headers=kind)
        response = web.StreamResponse(headers=kind)
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        return response


def _is_of(form: Form, path: str) -> bool:
    return path.endswith(form.path.rpartition("/")[2].rpartition(":")[2]) or (
        isinstance(form, Gemini) and path.endswith(":streamGenerateContent")
    )


@dataclass
class Conversation:
    """An agent's conversation with its model, in one of the forms.

    Args:
        base: the address of the model's API without version.
        ran: receives the calls that the agent itself ran.
    """

    form: Form
    base: str
    client: httpx.AsyncClient
    stream: bool = False
    history: list[Json] = field(default_factory=list)
    ran: list[tuple[str, Json]] = field(default_factory=list)

    async def say(self, text: str) -> str:
        """Send the user's text and run tools until the model answers with text alone."""
        self.history.append(self.form.user(text))
        while True:
            answer = await self._ask()
            self.history += self.form.received(answer)
            said, calls = self.form.text_and_calls(answer)
            if not calls:
                return said
            results = []
            for call_id, name, arguments in calls:
                self.ran.append((name, arguments))
                results.append((call_id, name, {"real": arguments["q"]}))
            self.history += self.form.results(results)

    async def _ask(self) -> Json:
        path = self.form.path
        if self.stream and isinstance(self.form, Gemini):
            path = path.replace("generateContent", "streamGenerateContent") + "?alt=sse"
        body = self.form.request(list(self.history), stream=self.stream)
        response = await self.client.post(self.base + path, json=body)
        if response.status_code != 200:
            raise Refused(response.text)
        if not self.stream:
            return dict(response.json())
        lines = [
            line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")
        ]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        if any("error" in event or event.get("type") == "error" for event in events):
            raise Refused(response.text)
        return self.form.assembled(events)


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    """Serve an application on loopback. Yields its origin."""
    runner = web.AppRunner(app, handler_cancellation=True, auto_decompress=False)  # as a run does
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await stop(runner)
