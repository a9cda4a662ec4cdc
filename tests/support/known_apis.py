"""Stand-ins for servers with a public API, with their protocols and conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from aiohttp import web
from http_agents import Routes

Json = dict[str, Any]


class Memory:
    """The conversations of a server. A reply repeats the message, with its number in the conversation."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}
        self._ids: Iterator[int] = count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}_{next(self._ids)}"

    def hear(self, conversation: str, text: str) -> str:
        said = self.said.setdefault(conversation, [])
        said.append(text)
        return f"{len(said)}. {text}"


async def events(request: web.Request, items: list[tuple[str | None, Any]]) -> web.StreamResponse:
    """Answer with server-sent events: name and data."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for name, data in items:
        head = f"event: {name}\n" if name else ""
        await response.write(f"{head}data: {json.dumps(data)}\n\n".encode())
    return response


def chatkit() -> Routes:
    """A self-hosted ChatKit server. Asked to pay, it calls a client tool."""
    memory = Memory()

    async def serve(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert set(body) <= {"type", "params", "metadata"}
        text = "".join(part["text"] for part in body["params"]["input"]["content"])
        if body["type"] == "threads.create":
            assert set(body["params"]) == {"input"}
            thread = memory.new("thr")
            began = [{"type": "thread.created", "thread": {"id": thread, "items": {"data": []}}}]
        else:
            assert body["type"] == "threads.add_user_message"
            thread, began = body["params"]["thread_id"], []
            assert thread in memory.said
        answer = memory.hear(thread, text)
        user = {"type": "user_message", "id": memory.new("msg"), "thread_id": thread, "content": []}
        item = {"type": "assistant_message", "id": memory.new("msg"), "thread_id": thread}
        part = {"type": "output_text", "text": answer, "annotations": []}
        sent: list[Json] = [
            *began,
            {"type": "thread.item.done", "item": user},
            {"type": "stream_options", "stream_options": {"allow_cancel": True}},
            {"type": "progress_update", "icon": None, "text": "Looking…"},
            {"type": "thread.item.added", "item": {**item, "content": []}},
            *(
                {
                    "type": "thread.item.updated",
                    "item_id": item["id"],
                    "update": {
                        "type": "assistant_message.content_part.text_delta",
                        "content_index": 0,
                        "delta": letter,
                    },
                }
                for letter in answer
            ),
            {"type": "thread.item.done", "item": {**item, "content": [part]}},
        ]
        if "pay" in text:
            call = {"call_id": "call_1", "name": "pay", "arguments": {"amount": 5}, "status": "pending"}
            sent.append({"type": "thread.item.done", "item": {"type": "client_tool_call", **call}})
        if "fail" in text:
            sent = [*began, {"type": "error", "code": "custom", "message": "no model", "allow_retry": True}]
        return await events(request, [(None, event) for event in sent])

    return {"POST /chatkit": serve}


def gradio() -> Routes:
    """A `gr.ChatInterface`: a call, then the stream of its result."""
    memory, results = Memory(), dict[str, str]()

    async def call(request: web.Request) -> web.Response:
        body = await request.json()
        [text], event = body["data"], memory.new("event")
        results[event] = memory.hear(body["session_hash"], text)
        return web.json_response({"event_id": event})

    async def result(request: web.Request) -> web.StreamResponse:
        answer = results.pop(request.match_info["event"], None)
        if answer is None:
            return web.json_response({"detail": "Event not found"}, status=404)
        if "fail" in answer:
            return await events(request, [("error", None)])
        parts = [("generating", [answer[:length]]) for length in range(1, len(answer))]
        return await events(request, [("heartbeat", None), *parts, ("complete", [answer])])

    return {"POST /gradio_api/call/chat": call, "GET /gradio_api/call/chat/{event}": result}


def direct_line() -> Routes:
    """Direct Line 3.0. The bot answers in two messages, each seen only by a later poll."""
    memory = Memory()
    kept: dict[str, list[Json]] = {}
    pending: dict[str, list[Json]] = {}

    async def start(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer none"
        assert not await request.text()
        name = memory.new("conv")
        kept[name], pending[name] = [], []
        return web.json_response({"conversationId": name, "token": "t", "expires_in": 1800}, status=201)

    def add(name: str, activity: Json) -> str:
        identity = f"{name}|{len(kept[name]):07}"
        kept[name].append({**activity, "id": identity, "conversation": {"id": name}})
        return identity

    async def post(request: web.Request) -> web.Response:
        name, activity = request.match_info["name"], await request.json()
        identity = add(name, activity)
        answer = memory.hear(name, activity["text"])
        bot = {"type": "message", "from": {"id": "bot", "role": "bot"}, "replyToId": identity}
        pending[name] += [{**bot, "text": f"{answer}."}, {**bot, "text": "Anything else?"}]
        return web.json_response({"id": identity})

    async def get(request: web.Request) -> web.Response:
        name, since = request.match_info["name"], int(request.query.get("watermark", "0"))
        found = {"activities": kept[name][since:], "watermark": str(len(kept[name]))}
        if pending[name]:
            add(name, pending[name].pop(0))
        return web.json_response(found)

    place = "/v3/directline/conversations"
    return {
        f"POST {place}": start,
        f"POST {place}/{{name}}/activities": post,
        f"GET {place}/{{name}}/activities": get,
    }


def accepted_jobs() -> Routes:
    """202 with a relative address in `Location`, then 202 without a body, then the result."""
    memory, jobs, polls = Memory(), dict[str, str](), dict[str, int]()

    async def start(request: web.Request) -> web.Response:
        body, job = await request.json(), memory.new("job")
        jobs[job], polls[job] = memory.hear(body["session"], body["question"]), 0
        return web.Response(status=202, headers={"Location": f"/jobs/{job}?part=all"})

    async def poll(request: web.Request) -> web.Response:
        assert request.query["part"] == "all"
        job = request.match_info["job"]
        polls[job] += 1
        if polls[job] < 3:
            return web.Response(status=202, headers={"Retry-After": "1"})
        return web.json_response({"answer": jobs[job]})

    return {"POST /answers": start, "GET /jobs/{job}": poll}


def threads_and_runs() -> Routes:
    """Threads, messages and runs, as in the OpenAI Assistants API."""
    memory, messages, runs = Memory(), dict[str, list[Json]](), dict[str, list[str]]()

    def message(thread: str, role: str, text: str) -> Json:
        value = {"type": "text", "text": {"value": text, "annotations": []}}
        made = {"id": memory.new("msg"), "object": "thread.message", "role": role, "content": [value]}
        messages[thread].append(made)
        return made

    async def create(request: web.Request) -> web.Response:
        thread = memory.new("thread")
        messages[thread] = []
        return web.json_response({"id": thread, "object": "thread"})

    async def add(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response(message(request.match_info["thread"], body["role"], body["content"]))

    async def run(request: web.Request) -> web.Response:
        assert (await request.json())["assistant_id"] == "asst_1"
        name = memory.new("run")
        runs[name] = ["queued", "in_progress", "completed"]
        return web.json_response({"id": name, "status": "queued", "last_error": None})

    async def status(request: web.Request) -> web.Response:
        thread, left = request.match_info["thread"], runs[request.match_info["run"]]
        if not left:  # on a busy machine the answer may get lost, and the client asks again
            return web.json_response({"status": "completed", "last_error": None})
        if len(left) == 1:
            said = messages[thread][-1]["content"][0]["text"]["value"]
            if said == "fail":
                failed = {"code": "server_error", "message": "no model"}
                return web.json_response({"status": "failed", "last_error": failed})
            message(thread, "assistant", memory.hear(thread, said))
        return web.json_response({"status": left.pop(0), "last_error": None})

    async def read(request: web.Request) -> web.Response:
        assert request.query["order"] == "asc"
        found = messages[request.match_info["thread"]]
        ids = [each["id"] for each in found]
        return web.json_response({"data": found[ids.index(request.query["after"]) + 1 :]})

    place = "/v1/threads"
    return {
        f"POST {place}": create,
        f"POST {place}/{{thread}}/messages": add,
        f"GET {place}/{{thread}}/messages": read,
        f"POST {place}/{{thread}}/runs": run,
        f"GET {place}/{{thread}}/runs/{{run}}": status,
    }


def realtime() -> Routes:
    """OpenAI Realtime in text mode. Asked to pay, the model calls the function `pay` twice at once."""

    async def serve(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer none"
        assert request.query["model"] == "gpt-realtime"
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        memory, items = Memory(), list[Json]()
        active, is_text, number = False, False, count(1)

        async def send(kind: str, **fields: Any) -> None:
            await socket.send_json({"type": kind, "event_id": f"event_{next(number)}", **fields})

        async def refuse(code: str, message: str) -> None:
            problem = {"type": "invalid_request_error", "code": code, "message": message}
            await send("error", error=problem)

        async def finish(output: list[Json], status: str = "completed", details: Json | None = None) -> None:
            response = {"id": "resp", "status": status, "status_details": details, "output": output}
            await send("response.done", response=response)

        async def respond() -> None:
            await send("response.created", response={"id": "resp", "status": "in_progress", "output": []})
            last = items[-1]
            if last["type"] == "function_call_output":
                answer = f"Paid: {[json.loads(each['output'])['paid'] for each in items[-2:]]}"
            else:
                said = last["content"][0]["text"]
                answer = memory.hear("here", said)
                if said == "fail":
                    return await finish([], "failed", {"error": {"message": "no model"}})
                if said.startswith("pay"):
                    calls = [
                        {"type": "function_call", "call_id": f"call_{each}", "name": "pay", "arguments": args}
                        for each, args in enumerate(('{"amount": 1}', '{"amount": 2}'))
                    ]
                    for each in calls:
                        await send("response.output_item.done", item=each)
                    return await finish(calls)
            assert is_text
            for letter in answer:
                await send("response.output_text.delta", item_id="item", content_index=0, delta=letter)
            await send("response.output_text.done", item_id="item", content_index=0, text=answer)
            content = [{"type": "output_text", "text": answer}]
            await finish([{"type": "message", "role": "assistant", "content": content}])

        await send("session.created", session={"type": "realtime", "output_modalities": ["audio"]})
        async for message in socket:
            event = json.loads(message.data)
            if event["type"] == "session.update":
                is_text = event["session"]["output_modalities"] == ["text"]
                await send("session.updated", session=event["session"])
            elif event["type"] == "conversation.item.create":
                items.append(event["item"])
                assert isinstance(event["item"].get("output", ""), str)
                await send("conversation.item.added", item=event["item"])
                await send("conversation.item.done", item=event["item"])
            elif event["type"] == "response.create":
                if active:
                    await refuse("conversation_already_has_active_response", "A response is in progress.")
                await respond()
            else:
                await refuse("invalid_value", f"Invalid value: {event['type']!r}")
        return socket

    return {"GET /v1/realtime": serve}


def graphql() -> Routes:
    """A subscription over graphql-transport-ws. Before each answer, the server waits for a pong."""
    memory = Memory()

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("graphql-transport-ws",))
        await socket.prepare(request)
        assert socket.ws_protocol == "graphql-transport-ws"
        ids: set[str] = set()

        async def received(*kinds: str) -> Json:
            event: Json = await socket.receive_json()
            if event["type"] not in kinds:
                await socket.close(code=4401, message=b"Unauthorized")
                raise ConnectionError
            return event

        await received("connection_init")
        await socket.send_json({"type": "connection_ack"})
        while not socket.closed:
            try:
                event = await received("subscribe")
            except (ConnectionError, TypeError):
                break
            if event["id"] in ids:
                await socket.close(code=4409, message=b"Subscriber already exists")
                break
            ids.add(event["id"])
            await socket.send_json({"type": "ping"})
            await received("pong")
            variables = event["payload"]["variables"]
            if variables["text"] == "fail":
                await socket.send_json(
                    {"id": event["id"], "type": "error", "payload": [{"message": "no model"}]}
                )
                continue
            answer = memory.hear(variables["session"], variables["text"])
            for letter in answer:
                data = {"data": {"chat": {"delta": letter}}}
                await socket.send_json({"id": event["id"], "type": "next", "payload": data})
            await socket.send_json({"id": event["id"], "type": "complete"})
        return socket

    return {"GET /graphql": serve}
