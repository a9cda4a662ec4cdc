"""Agents and models that do as they are told, to test scenarios, metrics and Agentest itself.

    with ScriptedAgent([tool_call("check_availability", date="friday"), "Friday at 9 is free."]) as agent:
        result = run_scenarios([my_scenario], agent=agent, model=ScriptedModel(scores={"helpfulness": 4}))
    assert result.scenarios[0].verdict.passed

Nothing here asks a real model or leaves the machine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio

from agentest.config import Config
from agentest.discovery import Discovered
from agentest.events import Event
from agentest.holding import LiveHolder
from agentest.http import AddressGuard, open_client
from agentest.llm.live import Patience
from agentest.llm.open import Models, scripted
from agentest.llm.port import ChatModel, ChatReply, ChatRequest, Ledger
from agentest.metric_names import BUILTIN, LABELS, Kind
from agentest.plan import Options, make_plan
from agentest.results import NO_FAILURE, RunResult
from agentest.runner import Ports, Settings, Stop, run
from agentest.scenarios import Scenario
from agentest.seeing import check_mocks
from agentest.simulate.open import make_agents
from agentest.transcript import Usage

STOP = "[[STOP]]"
"""As a line of a ScriptedModel's user: the user ends the conversation."""


@dataclass(frozen=True, slots=True)
class Raw:
    """An HTTP answer, byte for byte. With `close` the connection is cut after `body`."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    content_length: int | None = None
    """What the header claims; default: the truth."""
    close: bool = False


AgentAnswer = str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Raw
"""A text; a tool call (`tool_call(…)`) or several; a whole message; or Raw."""


def tool_call(name: str, /, **args: Any) -> dict[str, Any]:
    """A tool call as a ScriptedAgent makes it. Its id is given when it is sent."""
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(args)}}


class ScriptedAgent:
    """A chat-completions agent on loopback that answers from a script.

    Args:
        script: answers in order, or a function from the request's JSON body to an answer. The place in a list
            is the number of assistant messages in the request, so any number of conversations can go on at
            once; after its end the last answer is repeated.

    `requests` are the bodies received, in order.
    """

    def __init__(
        self, script: Sequence[AgentAnswer] | Callable[[dict[str, Any]], AgentAnswer], name: str = "agent"
    ) -> None:
        self.name = name
        self.requests: list[dict[str, Any]] = []
        self._script = script
        self._server = _Server(("127.0.0.1", 0), _handler_for(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def endpoint(self) -> str:
        """The URL to configure as the agent's endpoint."""
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
        """The answer to a request."""
        self.requests.append(body)
        if callable(self._script):
            return self._script(body)
        said = sum(1 for message in body.get("messages", []) if message.get("role") == "assistant")
        return self._script[min(said, len(self._script) - 1)]


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that go away in the middle are what many tests are about."""


def _handler_for(agent: ScriptedAgent) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # headers and body leave in one piece

        def do_GET(self) -> None:
            self._send(Raw(b'{"status": "ok"}'))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = json.loads(body)
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
            """Say nothing: the test's own output is what counts."""

    return Handler


def _completion(answer: AgentAnswer, request: Mapping[str, Any]) -> Raw:
    message = _message(answer, request.get("messages", []))
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }
    return Raw(json.dumps(body).encode())


def _message(answer: Any, messages: Sequence[Any]) -> Mapping[str, Any]:
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    calls = [answer] if isinstance(answer, Mapping) and "function" in answer else answer
    if isinstance(calls, Mapping):
        return calls
    numbered = [{"id": f"call_{len(messages)}_{i}", **call} for i, call in enumerate(calls)]
    return {"role": "assistant", "content": None, "tool_calls": numbered}


class ScriptedModel:
    """A model that plays the user from a script and judges as it is told.

    Args:
        user: the simulated user's lines by turn; STOP, or the end of the lines, ends the conversation.
        scores: metric → value, or a function from the ChatRequest to a value. Metrics that are not named get
            the best value.
        groups: what deduplication answers: a list of groups; default: one group for all, severity `high`.
        answer: a function from the ChatRequest to the whole answer (a text, or a dict that is sent as JSON),
            in place of all the others. It may raise what a ChatModel raises.

    `requests` are the ChatRequests received, in order.
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

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The scripted answer, with a usage of 100 and 20 tokens."""
        self.requests.append(request)
        answer = (self._answer or self._by_role)(request)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return ChatReply(text, Usage(100, 20), self.name)

    def _by_role(self, request: ChatRequest) -> dict[str, Any]:
        if request.key.role == "user":
            return self._line(request.key.turn or 0)
        if request.key.role == "dedup":
            return {"groups": self._groups if self._groups is not None else [_one_group(request)]}
        if request.key.metric == "batch":
            return {metric: self._judged(metric, request) for metric in request.schema["properties"]}
        return self._judged(request.key.metric or "", request)

    def _judged(self, metric: str, request: ChatRequest) -> dict[str, Any]:
        value = self._scores.get(metric, _best(metric))
        return {"reason": "scripted", "value": value(request) if callable(value) else value}

    def _line(self, turn: int) -> dict[str, Any]:
        line = self._user[turn] if turn < len(self._user) else STOP
        return {"message": line.replace(STOP, ""), "should_stop": STOP in line}


def _best(metric: str) -> Any:
    if metric in LABELS:
        return NO_FAILURE
    return 1 if BUILTIN.get(metric) is Kind.BINARY else 5


def _one_group(request: ChatRequest) -> dict[str, Any]:
    ids = [
        json.loads(block)["id"]
        for block in request.messages[-1]["content"].split("\n")
        if block.startswith('{"id"')
    ]
    return {"label": "scripted group", "severity": "high", "occurrences": ids, "explanation": "scripted"}


AgentLike = ScriptedAgent | str | Callable[..., Any] | Mapping[str, Any]


def _ignore(_: Event) -> None:
    """Nobody listens."""


def run_scenarios(
    scenarios: Iterable[Scenario],
    *,
    agent: AgentLike | None = None,
    model: ChatModel | None = None,
    options: Options | None = None,
    on_event: Callable[[Event], object] = _ignore,
    **config: Any,
) -> RunResult:
    """Run scenarios in this process and return what was found out; see `arun_scenarios`."""

    async def go() -> RunResult:
        return await arun_scenarios(
            scenarios, agent=agent, model=model, options=options, on_event=on_event, **config
        )

    return anyio.run(go)


async def arun_scenarios(
    scenarios: Iterable[Scenario],
    *,
    agent: AgentLike | None = None,
    model: ChatModel | None = None,
    options: Options | None = None,
    on_event: Callable[[Event], object] = _ignore,
    stop: Stop | None = None,
    **config: Any,
) -> RunResult:
    """Run scenarios and return what was found out.

    Args:
        agent: a ScriptedAgent, an endpoint, a handler function, or what a configuration says of an agent.
        model: plays the user and judges; None runs offline.
        on_event: is told of every event of the run.
        stop: calling it stops the run.
        config: further keys of the configuration.

    Raises ConfigError or pydantic's ValidationError for a wrong configuration.
    """
    checked = Config.model_validate({**({"agent": _agent_config(agent)} if agent else {}), **config})
    options = options or Options()
    plan = make_plan(checked, Discovered(tuple(scenarios)), options, Path.cwd())
    check_mocks(plan)
    concurrency = options.concurrency or checked.concurrency
    ledger = Ledger()
    async with open_client(AddressGuard()) as client:
        clients = make_agents(plan.agents, client, checked.request_timeout_ms / 1000, concurrency, Path.cwd())
        models = Models()
        if model is not None:
            asked = scripted(model, ledger, Patience(retries=checked.judge.retries))
            models = Models(asked, asked)
        settings = Settings(
            concurrency=concurrency,
            debounce_s=checked.debounce_ms / 1000,
            fail_on=checked.severity,
            samples=checked.judge.samples,
            batch=checked.judge.batch,
            fail_fast=options.fail_fast,
        )
        holder = LiveHolder(clients, models.user, checked.unmocked_tools, checked.request_timeout_ms / 1000)
        return await run(plan, settings, Ports(holder, models, ledger), on_event, stop)


def _agent_config(agent: AgentLike) -> Mapping[str, Any]:
    if isinstance(agent, Mapping):
        return agent
    if isinstance(agent, ScriptedAgent):
        return {"name": agent.name, "endpoint": agent.endpoint}
    if isinstance(agent, str):
        return {"endpoint": agent}
    return {"type": "custom", "handler": agent}
