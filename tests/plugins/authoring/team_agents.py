"""Agents as ordinary teams write them, each with an API of its own and a memory of the user's name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any
from uuid import uuid4

from stand_ins import NOT_FOUND, Asked, Given, StandIn


def reply(history: Sequence[str]) -> str:
    """What an agent that reads these messages of the user answers to the last."""
    names = [match[1] for text in history if (match := re.search(r"[Mm]y name is (\w+)", text))]
    words = [match[1] for text in history if (match := re.search(r"code word for me: ([\w-]+)", text))]
    if "Which code word" in history[-1]:
        return f"It is {words[-1]}." if words else "You gave me none."
    if "my name?" in history[-1]:
        return f"Your name is {names[-1]}." if names else "You have not told me your name."
    return f"Nice to meet you, {names[-1]}." if names else f"I looked into {history[-1]!r}."


class Chats:
    """The conversations of a server: id → messages of the user."""

    def __init__(self, name: Callable[[], str] = lambda: str(uuid4())) -> None:
        self.name = name
        self.known: dict[str, list[str]] = {}

    def begin(self) -> str:
        new = self.name()
        self.known[new] = []
        return new

    def say(self, chat: str, text: str, *, begins: bool = False) -> str:
        """Raises KeyError for an unknown conversation, unless it begins with the first message."""
        history = self.known.setdefault(chat, []) if begins else self.known[chat]
        history.append(text)
        return reply(history)


def error(text: str, status: int = 400) -> Given:
    return Given({"error": text}, status)


def session_first() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path == "/api/sessions":
            return Given({"session": {"id": chats.begin()}, "expires": 3600}, 201)
        if request.path != "/api/chat":
            return NOT_FOUND
        if request.json.get("session_id") not in chats.known:
            return error("unknown session", 404)
        text = chats.say(request.json["session_id"], request.json["message"])
        return Given({"data": {"turn": {"id": str(uuid4()), "text": text}}})

    return answer


def ids_in_path() -> StandIn:
    numbers = count(41)
    chats = Chats(lambda: str(next(numbers)))

    def answer(request: Asked) -> Given:
        if request.path == "/v1/conversations":
            return Given({"conversation": {"id": int(chats.begin()), "title": ""}}, 201)
        match = re.fullmatch(r"/v1/conversations/(\d+)/messages", request.path)
        if not match or match[1] not in chats.known:
            return NOT_FOUND
        text = chats.say(match[1], request.json["content"]["text"])
        return Given({"id": 7, "author": "bot", "content": {"text": text}})

    return answer


def cookies() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path != "/chat":
            return NOT_FOUND
        cookie = request.headers.get("cookie", "").partition("sid=")[2].partition(";")[0]
        headers = {}
        if cookie not in chats.known:
            cookie = chats.begin()
            headers = {"set-cookie": f"sid={cookie}; HttpOnly"}
        return Given({"answer": chats.say(cookie, request.json["question"])}, 200, headers)

    return answer


def form() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path != "/ask" or "json" in request.headers.get("content-type", ""):
            return NOT_FOUND if request.path != "/ask" else error("form expected", 415)
        fields = request.form
        if "q" not in fields:
            return error("q is required")
        said = chats.say(fields.get("cid", "none"), fields["q"], begins=True)
        return Given({"result": said, "cid": fields.get("cid")})

    return answer


def plain_text() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path != "/talk":
            return NOT_FOUND
        session = request.headers.get("x-session-id") or str(uuid4())
        text = chats.say(session, request.body.decode(), begins=True)
        return Given(text, 200, {"content-type": "text/plain", "X-Session-Id": session})

    return answer


def json_lines() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path != "/generate":
            return NOT_FOUND
        chat = request.json.get("conversation") or chats.begin()
        words = chats.say(chat, request.json["prompt"], begins=True).split(" ")
        lines: list[Any] = [{"kind": "start", "conversation": chat}, {"kind": "note", "text": "thinking"}]
        lines += [{"kind": "piece", "text": f"{' ' * bool(at)}{word}"} for at, word in enumerate(words)]
        body = "".join(f"{json.dumps(line)}\n" for line in [*lines, {"kind": "end", "took_ms": 12}])
        return Given(body, 200, {"content-type": "application/x-ndjson"})

    return answer


def own_events() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path != "/api/assistant/stream":
            return NOT_FOUND
        thread = request.json["threadId"]
        words = chats.say(thread, request.json["userInput"], begins=True).split(" ")
        events = [("thread", {"threadId": thread}), ("thought", {"content": "The user wants something."})]
        events += [("token", {"content": f"{' ' * bool(at)}{word}"}) for at, word in enumerate(words)]
        events += [("done", {})]
        body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
        return Given(body, 200, {"content-type": "text/event-stream"})

    return answer


def json_rpc() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path != "/rpc":
            return NOT_FOUND
        call = request.json
        head = {"jsonrpc": "2.0", "id": call.get("id")}
        if call.get("method") != "agent.say":
            return Given({**head, "error": {"code": -32601, "message": "Method not found"}})
        context = call["params"].get("contextId") or chats.begin()
        said = chats.say(context, call["params"]["utterance"], begins=True)
        spoken = [{"lang": "en", "speech": said}]
        return Given({**head, "result": {"contextId": context, "utterances": spoken}})

    return answer


def graphql() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path != "/graphql":
            return NOT_FOUND
        if "sendMessage" not in request.json.get("query", ""):
            text = f"Syntax Error: Unexpected Name {request.json.get('query', '')[:20]!r}."
            return Given({"errors": [{"message": text}]})
        given = request.json["variables"]
        chat = given.get("chatId") or chats.begin()
        said = chats.say(chat, given["text"], begins=True)
        return Given({"data": {"sendMessage": {"chatId": chat, "reply": {"markdown": said}}}})

    return answer


def job_queue() -> StandIn:
    chats, jobs = Chats(), dict[str, tuple[int, str]]()

    def answer(request: Asked) -> Given:
        if (request.method, request.path) == ("POST", "/api/jobs"):
            job = str(uuid4())
            jobs[job] = 0, chats.say(request.json.get("user", "x"), request.json["input"], begins=True)
            return Given({"id": job, "status": "queued", "message": "Your request was accepted."}, 202)
        job = request.path.removeprefix("/api/jobs/")
        if job not in jobs:
            return NOT_FOUND
        polls, said = jobs[job]
        jobs[job] = polls + 1, said
        output = {"text": said} if polls else None
        return Given({"id": job, "status": "succeeded" if polls else "running", "output": output})

    return answer


def bearer() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path != "/v2/reply":
            return NOT_FOUND
        if request.headers.get("authorization") != "Bearer t0p-s3cret-value":
            return error("Invalid token", 401)
        context = request.json["context"]
        said = chats.say(context["conversationId"], request.json["event"]["text"], begins=True)
        return Given({"ok": True, "actions": [{"type": "say", "payload": {"body": said}}]})

    return answer


def login_first() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        if request.path == "/login":
            right = request.json == {"user": "tester", "password": "geheim-1234"}
            return Given({"access_token": f"tok-{uuid4()}"}) if right else error("wrong", 401)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not token.startswith("tok-"):
            return error("log in", 401)
        if request.path == "/chats":
            return Given({"chat_id": f"c_{chats.begin()}"[:12]}, 201)
        match = re.fullmatch(r"/chats/(c_[^/]+)/turns", request.path)
        if not match:
            return NOT_FOUND
        said = chats.say(match[1], request.json["text"], begins=True)
        return Given({"reply": said, "suggestions": ["Bye"]})

    return answer


def own_history() -> StandIn:
    def answer(request: Asked) -> Given:
        if request.path != "/complete":
            return NOT_FOUND
        turns = request.json["turns"]
        said = reply([each["content"] for each in turns if each["role"] == "user"])
        return Given({"turns": [*turns, {"role": "assistant", "content": said}], "finish": "stop"})

    return answer


def strict_roles(agents_own: str = "assistant") -> StandIn:
    """An agent that refuses a history with other speakers, and answers later."""
    jobs: dict[str, str] = {}

    def answer(request: Asked) -> Given:
        if job := jobs.get(request.path):
            return Given({"task": {"state": "SUCCEEDED", "output": {"speech": job}}})
        if request.path != "/tasks":
            return NOT_FOUND
        lines = request.json.get("dialogue", [])
        if not lines or {each["speaker"] for each in lines} - {"customer", agents_own}:
            return error(f"dialogue: speaker is customer or {agents_own}")
        task = str(uuid4())
        said = [each["line"] for each in lines if each["speaker"] == "customer"]
        jobs[f"/tasks/{task}"] = reply(said)
        return Given({"task": {"id": task, "state": "QUEUED"}}, 202)

    return answer


def shared() -> StandIn:
    chats = Chats()

    def answer(request: Asked) -> Given:
        return Given({"reply": chats.say("all", request.json["message"], begins=True)})

    return answer


def forgetful() -> StandIn:
    return lambda request: Given({"reply": reply([request.json["message"]])})


def never_says() -> StandIn:
    def answer(request: Asked) -> Given:
        del request
        return Given({"id": str(uuid4()), "status": "queued", "message": "Your request was accepted."})

    return answer


UUID = "0f1e2d3c-aaaa-4bbb-8ccc-1234567890ab"
BROWSER = """\
curl '$URL/api/assistant/stream' \\
  -H 'accept: text/event-stream' \\
  -H 'accept-language: en-US,en;q=0.9' \\
  -H 'content-type: application/json' \\
  -b '_ga=GA1.1.1234; theme=dark' \\
  -H 'origin: $URL' \\
  -H 'sec-fetch-mode: cors' \\
  -H 'user-agent: Mozilla/5.0' \\
  --data-raw $'{"userInput":"Where\\'s order 17?","threadId":"th_8Hq2","locale":"en"}' \\
  --compressed"""
SESSION_FIRST = f"""\
# 1. begin a session
curl -X POST $URL/api/sessions
# 2. send a message to it
curl -X POST $URL/api/chat -H 'Content-Type: application/json' \\
     -d '{{"session_id": "{UUID}", "message": "Where is order 17?"}}'"""
IDS_IN_PATH = """\
ID=$(curl -s -X POST $URL/v1/conversations | jq -r .conversation.id)
curl "$URL/v1/conversations/$ID/messages" --json '{"content": {"type": "text", "text": "Where is it?"}}'"""
JSON_RPC = """\
curl $URL/rpc -H 'Content-Type: application/json' -d '{"jsonrpc": "2.0", "id": 1, "method": "agent.say",
  "params": {"utterance": "Where is order 17?"}}'"""
GRAPHQL = """\
curl $URL/graphql --json '{"query": "mutation Send($text: String!, $chatId: ID) { sendMessage(text: $text, \
chatId: $chatId) { chatId reply { markdown } } }", "variables": {"text": "Where is order 17?"}}'"""
BEARER = """\
curl $URL/v2/reply -H 'Authorization: Bearer t0p-s3cret-value' --json '{"event": {"type": "message",
  "text": "Where is order 17?"}, "context": {"conversationId": "conv-77", "channel": "web"}}'"""
LOGIN_FIRST = f"""\
curl $URL/login --json '{{"user": "tester", "password": "geheim-1234"}}'
curl -X POST $URL/chats -H 'Authorization: Bearer tok-{UUID}'
curl $URL/chats/c_0f1e2d3c/turns -H 'Authorization: Bearer tok-{UUID}' --json '{{"text": "Where is it?"}}'"""
STRICT_ROLES = """curl $URL/tasks --json '{"dialogue": [{"speaker": "customer", "line": "Where is it?"}]}'"""
AGENTS: Mapping[str, tuple[Callable[[], StandIn], str]] = {
    "session-first": (session_first, SESSION_FIRST),
    "ids-in-path": (ids_in_path, IDS_IN_PATH),
    "cookies": (cookies, """curl $URL/chat --json '{"question": "Where is order 17?"}'"""),
    "form": (form, "curl $URL/ask -d 'q=Where is order 17%3F&cid=abc123'"),
    "plain-text": (plain_text, "curl $URL/talk -H 'Content-Type: text/plain' --data 'Where is order 17?'"),
    "json-lines": (json_lines, """curl $URL/generate --json '{"prompt": "Where is order 17?"}'"""),
    "own-events": (own_events, BROWSER),
    "json-rpc": (json_rpc, JSON_RPC),
    "graphql": (graphql, GRAPHQL),
    "job-queue": (job_queue, """curl $URL/api/jobs --json '{"input": "Where is it?", "user": "u-1"}'"""),
    "bearer": (bearer, BEARER),
    "login-first": (login_first, LOGIN_FIRST),
    "own-history": (
        own_history,
        """curl $URL/complete --json '{"turns": [{"role": "user", "content": "Where is order 17?"}]}'""",
    ),
    "strict-roles": (strict_roles, STRICT_ROLES),
    "shared": (shared, """curl $URL/chat --json '{"message": "Where is order 17?"}'"""),
    "never-says": (never_says, """curl $URL/chat --json '{"message": "Where is order 17?"}'"""),
}
"""Name → agent, and the request that works, as a README or a browser has it."""
