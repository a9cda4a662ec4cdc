"""A scripted agent that serves real HTTP on loopback, and a model that answers from a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from agentest.domain.metrics import BUILTIN, GOAL, NO_FAILURE, Kind
from agentest.domain.transcript import Usage
from agentest.models.port import Answer, CallKey, ChatReply, ChatRequest, Ledger, Message
from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Raw:
    """A raw HTTP response. With `close`, the connection is cut after `body`."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    content_length: int | None = None  # value of the header Content-Length; default: the actual length
    close: bool = False


AgentAnswer = str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Raw
"""A text, one or several tool calls (see `tool_call`), a whole message, or Raw."""


def tool_call(name: str, /, **args: Any) -> dict[str, Any]:
    """Return a tool call for the script of a ScriptedAgent. The agent adds the id when it sends the call."""
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(args)}}


class ScriptedAgent:
    """A chat-completions agent on loopback that answers from a script.

    Args:
        script: responses in order, or a function that maps a request's JSON body to a response. The position
            in a list is the number of assistant messages in the request, so conversations can run
            concurrently. After the end of the list, the last response is repeated.

    `requests` contains the received bodies in order.
    """

    def __init__(
        self, script: Sequence[AgentAnswer] | Callable[[dict[str, Any]], AgentAnswer], name: str = "agent"
    ) -> None:
        self.name = name
        self.requests: list[dict[str, Any]] = []
        self._script = script
        self._server = _AgentServer(("127.0.0.1", 0), _handler_for(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def endpoint(self) -> str:
        """The agent's URL, for the configuration key `endpoint`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/chat/completions"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body: dict[str, Any]) -> AgentAnswer:
        """Return the response to a request."""
        self.requests.append(body)
        if callable(self._script):
            return self._script(body)
        replies = sum(1 for message in body.get("messages", []) if message.get("role") == "assistant")
        return self._script[min(replies, len(self._script) - 1)]


class _AgentServer(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: in many tests, clients close the connection on purpose."""


def _handler_for(agent: ScriptedAgent) -> type[BaseHTTPRequestHandler]:
    class TurnHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # send headers and body in one write

        def do_GET(self) -> None:
            self._send(Raw(b'{"status": "ok"}'))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
            answer = agent.answer(request)
            self._send(answer if isinstance(answer, Raw) else _completion(answer, request))

        def _send(self, raw: Raw) -> None:
            self.send_response(raw.status)
            self.send_header("content-type", raw.content_type)
            length = len(raw.body) if raw.content_length is None else raw.content_length
            self.send_header("content-length", str(length))
            for name, value in raw.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw.body)
            self.wfile.flush()
            self.close_connection = self.close_connection or raw.close

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, to keep the test's own output readable."""

    return TurnHandler


def _completion(answer: AgentAnswer, request: Mapping[str, Any]) -> Raw:
    calls: Any = [answer] if isinstance(answer, Mapping) and "function" in answer else answer
    if isinstance(calls, str):
        message: Mapping[str, Any] = {"role": "assistant", "content": calls}
    elif isinstance(calls, Mapping):
        message = calls
    else:
        number = len(request.get("messages", []))
        numbered = [{"id": f"call_{number}_{i}", **call} for i, call in enumerate(calls)]
        message = {"role": "assistant", "content": None, "tool_calls": numbered}
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }
    return Raw(json.dumps(body).encode())


KEPT_ITS_ROLE = "kept its role"
"""Answer of the judge of `user.check` for a simulated user that followed its role."""
STOP = "[[STOP]]"  # a line in the script of a ScriptedModel's user that ends the conversation


class ScriptedModel:
    """A model that plays the user and the judges from a script.

    Args:
        user: the simulated user's lines by turn; STOP, or the end of the lines, ends the conversation.
        scores: maps a metric, or `criterion 1` and so on, to a value or to a function that takes the
            ChatRequest and returns a value. A dict as a value is sent with a reason. Everything else gets the
            best value. If a call contains several questions, the key of the request passed to the function
            has the turn and metric of each question.
        groups: groups of failures to return; default: one group with severity `high`.
        answer: a function that takes the ChatRequest and returns the whole response: a text, or a dict to
            send as JSON. It replaces all other arguments and can raise the errors of a ChatModel.

    `requests` contains the received ChatRequests in order.
    """

    def __init__(
        self,
        user: Sequence[str] = ("Hello, please help me.",),
        scores: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
        answer: Callable[[ChatRequest], str | Mapping[str, Any]] | None = None,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self.requests: list[ChatRequest] = []
        self._user = tuple(user)
        self._scores = dict(scores or {})
        self._groups = groups
        self._answer = answer

    async def ask(self, messages: Sequence[Message], answer: type[Answer], key: CallKey) -> Answer:
        """Answer with a given shape, as a model that a SimulatedUser or a metric calls."""
        from agentest.models.caller import RetryPolicy
        from agentest.models.factory import scripted

        return await scripted(self, Ledger(), RetryPolicy()).ask(messages, answer, key)

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Return the scripted response, with a usage of 100 input and 20 output tokens."""
        self.requests.append(request)
        answer = (self._answer or self._by_role)(request)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return ChatReply(text, Usage(100, 20), self.name)

    def _by_role(self, request: ChatRequest) -> dict[str, Any]:
        if request.key.role == "user":
            return self._line(request.key.turn or 0)
        if request.schema_name == "Causes":  # groups of different scenarios; each stays a separate cause
            return {"causes": [{"title": id, "groups": [id]} for id in _ids(request)]}
        if request.key.role == "dedup":
            group = {"label": "scripted group", "severity": "high", "explanation": "scripted"}
            one_group = [{**group, "occurrences": _ids(request)}]
            return {"groups": one_group if self._groups is None else self._groups}
        if request.key.metric == "batch":
            return self._answer_batch(request.schema, request)
        return self._answer_question(request.key.metric or "", request)

    def _answer_batch(self, form: Mapping[str, Any], request: ChatRequest) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for name, inner in form["properties"].items():
            if name.startswith("turn_"):
                turn_request = replace(
                    request, key=replace(request.key, turn=int(name.removeprefix("turn_")) - 1)
                )
                if "$ref" in inner:
                    inner = request.schema["$defs"][inner["$ref"].rpartition("/")[2]]
                answer[name] = self._answer_batch(inner, turn_request)
            else:
                metric = name.replace("criterion_", "criterion ")
                answer[name] = self._answer_question(
                    metric, replace(request, key=replace(request.key, metric=metric))
                )
        return answer

    def _answer_question(self, metric: str, request: ChatRequest) -> dict[str, Any]:
        value = self._scores.get(metric, _best(metric))
        value = value(request) if callable(value) else value
        if isinstance(value, Mapping):
            return {"reason": "scripted", **value}
        if metric in BUILTIN and BUILTIN[metric].kind is Kind.LABEL:
            return {"reason": "scripted", "labels": [] if value == NO_FAILURE else [value]}
        key = "outcome" if metric == GOAL and isinstance(value, str) else "value"
        return {"reason": "scripted", "result" if metric.startswith("criterion ") else key: value}

    def _line(self, turn: int) -> dict[str, Any]:
        line = self._user[turn] if turn < len(self._user) else STOP
        return {"message": line.replace(STOP, ""), "should_stop": STOP in line}


def _best(metric: str) -> Any:
    if metric == "user":
        return KEPT_ITS_ROLE
    if metric.startswith("criterion "):
        return "met"
    if metric == "attack_score":
        return {"refused": False, "score": 0}
    if metric == "attack_success":
        return "no"
    kind = BUILTIN[metric].kind if metric in BUILTIN else Kind.SCALE
    return {Kind.LABEL: NO_FAILURE, Kind.BINARY: 1}.get(kind, 5)


def _ids(request: ChatRequest) -> list[str]:
    lines = request.messages[-1]["content"].split("\n")
    return [json.loads(line)["id"] for line in lines if line.startswith('{"id"')]
