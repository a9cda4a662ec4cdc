"""The client of an agent that speaks A2A, versions 1.0 and 0.3: its conversations, requests and responses.

The agent runs its own tools. Calls that its server reports are observed; mocks do not apply. Requests are
JSON-RPC or HTTP+JSON, and responses whole or server-sent events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import anyio

from agentest.agents.http_sender import (
    EventStream,
    HttpAnswer,
    OutgoingRequest,
    cancelled_on_server,
    read_body,
)
from agentest.agents.json_reader import excerpt, read_json, read_text, text_at, truncated_stream_error
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, ConversationalAgent, NoReply, Resources, TurnContext
from agentest.domain.messages import Attachment, Message, UserText, last_user_message
from agentest.domain.transcript import ToolCall
from agentest.plugins.protocols.a2a.discovery import RequestWay, WayFinder, WayRefused, langgraph_assistant
from agentest.plugins.protocols.a2a.reply import (
    check_ended_well,
    parts_of,
    read_calls,
    read_reply_text,
    read_usage,
    reports_all_calls,
    texts_by_artifact,
)
from agentest.plugins.protocols.a2a.settings import A2aAgent
from agentest.plugins.protocols.a2a.task import INPUT_REQUIRED, AgentWork, Json
from agentest.plugins.protocols.protocol_client import ProtocolEndpoint, ReplyTotals, read_json_body
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Values

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_PAUSE_GROWTH = 1.5
Pause = Callable[[float], Awaitable[Any]]
A2A_PLACE = "is this the address of an A2A agent: its server's root, its own address, or that of its card?"
_NOT_FOUND_STATUSES = (404, 405)
_CREDENTIALS_STATUSES = (401, 403)
_EXPLAINED_STATUSES = (400, *_CREDENTIALS_STATUSES, *_NOT_FOUND_STATUSES)
_NO_CARD_STATUSES = range(300, 600)  # statuses that mean only that there is no card at an address
_UNKNOWN_METHOD, _OTHER_VERSION = -32601, -32009
_OTHER_VERSION_TEXT = re.compile(r"-32009\b|-32601\b|VERSION_NOT_SUPPORTED")
LOST_TASK, UNSUPPORTED, _WRONG_TYPE, _WANTS_EXTENSION = -32001, -32004, -32005, -32008
_CODES_BY_REASON = {"TASK_NOT_FOUND": LOST_TASK, "UNSUPPORTED_OPERATION": UNSUPPORTED}
_ERROR_NAMES = {
    -32700: "the request is not JSON",
    -32600: "invalid request",
    _UNKNOWN_METHOD: "unknown method",
    -32602: "invalid parameters",
    -32603: "internal error",
    LOST_TASK: "unknown task",
    UNSUPPORTED: "unsupported operation",
    _WRONG_TYPE: "unsupported content type",
    -32006: "invalid answer of the agent",
    _WANTS_EXTENSION: "an extension is required: name it in `headers` as A2A-Extensions",
    _OTHER_VERSION: "unsupported version",
}


_METHODS = {
    "send": {"1.0": "SendMessage", "0.3": "message/send", "rest": "message:send"},
    "stream": {"1.0": "SendStreamingMessage", "0.3": "message/stream", "rest": "message:stream"},
    "get": {"1.0": "GetTask", "0.3": "tasks/get", "rest": "tasks/{id}"},
    "cancel": {"1.0": "CancelTask", "0.3": "tasks/cancel", "rest": "tasks/{id}:cancel"},
}


def open_agent(
    _: str, config: A2aAgent, resources: Resources, pause: Pause = anyio.sleep
) -> ConversationalAgent:
    """Create the client of an A2A agent. `pause` waits between two polls of a task, in seconds."""
    endpoint = _A2aEndpoint(config, resources, pause)
    return ConversationalAgent(config.name, lambda: A2aConversation(endpoint))


class _A2aEndpoint(ProtocolEndpoint):
    def __init__(self, config: A2aAgent, resources: Resources, pause: Pause) -> None:
        super().__init__(config, resources, A2A_PLACE)
        self.pause = pause
        self.timeout_s = resources.timeout_s
        self.contact = WayFinder(config, resources.timeout_s, self.notes)
        self._streaming = config.streaming

    def credentials(self) -> str:
        return self.contact.card.credentials if self.contact.card else ""

    def streams(self) -> bool:
        refused = self.contact.card is not None and not self.contact.card.streams
        if self._streaming and refused:
            self.notes.add(
                "streaming",
                "its card says that it does not stream (capabilities.streaming: false), so it "
                "must answer as a whole; leave `streaming` out",
            )
        return self._streaming and not refused

    async def call(
        self, operation: str, params: Json, exchange: _MessageExchange, *, only_place: bool = True
    ) -> HttpAnswer[AgentError | None]:
        """Send a request whose answer adds to the agent's work. Raises WayRefused and ReportedError."""
        work, method, streaming = exchange.work, method_of(exchange.way, operation), operation == "stream"

        async def read(response: DirectResponse) -> AgentError | None:
            async def read_events(stream: EventStream) -> None:
                await _take_events(stream, response, work, method)

            try:
                await self._check_status(response, only_place)
                await read_body(response, streaming, lambda body: _take(body, work, method), read_events)
            except (WayRefused, ReportedError) as error:
                return error  # the sender would replace a raised error with another
            return None

        request = _request(exchange.way, operation, params)
        answer = await self.sender.send(request, read, _EXPLAINED_STATUSES, values=exchange.values)
        if answer.value is not None:
            raise answer.value
        return answer

    async def fetch(self, url: str, values: Values) -> Any:
        try:
            request = OutgoingRequest(url=url, method="GET", headers={"accept": "application/json"})
            return (await self.sender.send(request, _read_card, _NO_CARD_STATUSES, values=values)).value
        except AgentError:
            return None

    async def _check_status(self, response: DirectResponse, only_place: bool) -> None:
        status = response.status_code
        if status < 300:
            return
        problem = await self.sender.problem(response)
        if _OTHER_VERSION_TEXT.search(problem):
            raise WayRefused(problem)
        if code := next((code for reason, code in _CODES_BY_REASON.items() if reason in problem), 0):
            raise ReportedError(problem, code)
        if status in _NOT_FOUND_STATUSES and not only_place:
            raise WayRefused(problem, nowhere=True)
        if status in _CREDENTIALS_STATUSES and self.credentials():
            problem = f"{problem}; its card asks for {self.credentials()}"
        raise AgentError(problem)


class A2aConversation:
    """One conversation: the context and task on the server, and what earlier turns have shown."""

    def __init__(self, endpoint: _A2aEndpoint) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._context_id: str | None = None
        self._task_id: str | None = None  # the task that waits for input from the user
        self._shown_artifacts: dict[str, str] = {}
        """Artifacts of that task → the text that earlier turns have shown."""
        self._known_messages: set[str] = set()
        self._known_calls: set[tuple[str, str | None]] = set()  # task and id of each reported call
        self._known_events: set[str] = set()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message.

        If the agent is still working on its task, poll the task until it ends. One time limit covers
        the request and all polls. Raises NoReply with the calls that were seen, CannotSend.
        """
        exchange = _MessageExchange(self._endpoint, messages, ctx, self._known_messages)
        try:
            async with cancelled_on_server(exchange.cancel):
                # Before the server has made a context, the scenario's session id names it.
                session_id = ctx.session.session_id if ctx.session else None
                await exchange.send(self._context_id or session_id or None, self._task_id)
                await exchange.finish()
            return self._read(exchange, ctx.turn_index)
        except RecursionError:
            raise exchange.total.no_reply("the agent's answer is nested too deeply to be read") from None
        except AgentError as error:
            retries = exchange.total.retries + getattr(error, "retries", 0)
            calls_so_far = self._calls_so_far(exchange.work, ctx.turn_index)
            raise NoReply(self._explain(error, exchange.way.url), retries, calls_so_far) from None

    def _read(self, exchange: _MessageExchange, turn_index: int) -> AgentReply:
        work = exchange.work
        if self._context_id and work.context_id and work.context_id != self._context_id:
            raise AgentError(
                f"the agent answered in another context (contextId {work.context_id}) than that of this "
                f"conversation ({self._context_id}): it has lost the conversation"
            )
        check_ended_well(work, self._endpoint.credentials())
        calls = self._new_calls(work, turn_index)
        reply = read_reply_text(work, self.name, self._shown_artifacts)
        _check_not_empty(reply, calls, work)
        self._context_id = self._context_id or work.context_id or None
        waits = work.state == INPUT_REQUIRED and work.message is None
        self._task_id = work.task_id or None if waits else None
        self._shown_artifacts = texts_by_artifact(work) if waits else {}
        card = self._endpoint.contact.card
        total = exchange.total
        total.usage, model_calls = read_usage(work, self._known_events)
        total.observed, total.remarks, total.first_token_ms = calls, reply.remarks, reply.first_token_ms
        return total.reply(
            reply.text,
            model_calls=model_calls,
            author=reply.author,
            tells_calls=reports_all_calls(work) or (card is not None and card.tells_calls),
        )

    def _new_calls(self, work: AgentWork, turn_index: int) -> tuple[ToolCall, ...]:
        reported = read_calls(parts_of(work), turn_index)
        new = [call for call in reported if (work.task_id, call.call_id) not in self._known_calls]
        self._known_calls.update((work.task_id, call.call_id) for call in new if call.call_id)
        return tuple(new)

    def _calls_so_far(self, work: AgentWork, turn_index: int) -> tuple[ToolCall, ...]:
        try:
            return self._new_calls(work, turn_index)
        except AgentError:  # the turn already fails with another error
            return ()

    def _explain(self, error: AgentError, url: str) -> str:
        if assistant := langgraph_assistant(url, str(error)):
            return f"{error}; of the graph's own assistant that is {assistant}"
        if isinstance(error, ReportedError) and self._task_id and error.code in (LOST_TASK, UNSUPPORTED):
            return f"{error}; the message answers what task {self._task_id} had asked: the agent has lost it"
        if isinstance(error, ReportedError) and error.code == LOST_TASK and self._context_id:
            return f"{error}; the agent has lost the conversation"
        if isinstance(error, ReportedError) and error.code == UNSUPPORTED and self._endpoint.streams():
            return f"{error}; if it does not stream, leave `streaming` out"
        return str(error)


class _MessageExchange:
    def __init__(
        self, endpoint: _A2aEndpoint, messages: Sequence[Message], ctx: TurnContext, known_messages: set[str]
    ) -> None:
        self._endpoint = endpoint
        self._user_text = last_user_message(messages)
        self._known_messages = known_messages
        self.values = TurnValues(messages, ctx)
        self.way = RequestWay(url="")
        self.work = self._new_work()
        self.total = ReplyTotals()

    def _new_work(self) -> AgentWork:
        return AgentWork(on_unknown=self._endpoint.ignored.note, known=self._known_messages)

    async def send(self, context_id: str | None, task_id: str | None) -> None:
        endpoint = self._endpoint
        body = endpoint.body.filled(self.values)

        async def say(way: RequestWay, only_place: bool) -> None:
            self.way, self.work, streams = way, self._new_work(), endpoint.streams()
            params = params_of(
                self._user_text, way, body=body, context_id=context_id, task_id=task_id, streaming=streams
            )
            operation = "stream" if streams else "send"
            self.total.add(await endpoint.call(operation, params, self, only_place=only_place))

        await endpoint.contact.use_first_way(lambda url: endpoint.fetch(url, self.values), say)

    async def cancel(self) -> None:
        if self.work.task_id and not self.work.ended:
            request = _request(self.way, "cancel", {"id": self.work.task_id})
            await self._endpoint.sender.send(request, _read_card, _EXPLAINED_STATUSES, values=self.values)

    async def finish(self) -> None:
        work, timeout_s = self.work, self._endpoint.timeout_s
        if work.ended:
            return
        if not work.task_id:
            outcome = (
                f"a task in the state {work.state}, without an id" if work.state else "no task or message"
            )
            raise AgentError(f"the agent answered with {outcome}: there is nothing to wait for")
        limit = TimeLimit(max(0.0, timeout_s - self.total.latency_ms / 1000))
        try:
            with limit:
                await self._poll_until_ended()
        except TimeoutError:
            raise AgentError(
                f"{self.way.url}: the agent's task is still in the state {work.state} after {timeout_s:g} s "
                "(request_timeout_ms)"
            ) from None
        finally:
            self.total.latency_ms += limit.elapsed * 1000

    async def _poll_until_ended(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self.work.ended:
            await self._endpoint.pause(pause)
            pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_S)
            answer = await self._endpoint.call("get", {"id": self.work.task_id}, self)
            self.total.retries += answer.retries


def _check_not_empty(reply: AgentReply, calls: Sequence[ToolCall], work: AgentWork) -> None:
    if reply.text or calls:
        return
    if work.message is not None:
        raise AgentError("the agent's reply is empty: its message has no text")
    if work.artifacts:
        raise AgentError(
            f"the agent's reply is empty: its task is {work.state}, and its artifacts have no text (its "
            "earlier messages are not the reply)"
        )
    raise AgentError(
        f"the agent's reply is empty: its task is {work.state}, and neither artifacts nor status nor history "
        "have a text"
    )


class ReportedError(AgentError):
    """An error that the agent reported, with its JSON-RPC code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _take(body: bytes, work: AgentWork, method: str) -> None:
    answer = read_json(body, A2A_PLACE)
    work.take(_result(answer, method))
    if "jsonrpc" not in answer and not (work.ended or work.state or work.task_id):
        raise AgentError(f"the agent answered with neither a task nor a message of A2A: {excerpt(answer)}")


async def _take_events(stream: EventStream, response: DirectResponse, work: AgentWork, method: str) -> None:
    """Read up to the last event. Raises AgentError, also if the stream was cut."""
    async for event in stream:
        if event.data.strip():  # some servers keep the connection alive with empty events
            waited, value = response.waited, read_text(event.data)
            if event.name == "error":
                value = value if isinstance(value, Mapping) and value.get("error") else {"error": value}
            work.take(_result(value, method), waited() * 1000 if waited else None)
        if work.closed:
            return
    if not work.ended:
        came = f"the last state was {work.state}" if work.state else "nothing of a task had come"
        ends = "a message and without a status that ends the task (completed, failed, input-required …)"
        raise truncated_stream_error(f"{ends}; {came}")


async def _read_card(response: DirectResponse) -> Any:
    """Read a card; None if there is none, because most servers have it at one of several addresses."""
    try:
        if_stream = "the agent answered the request for its card with a stream"
        return await read_json_body(response, A2A_PLACE, if_stream) if response.is_success else None
    except AgentError:
        return None


def _result(answer: Any, method: str) -> Any:
    if not isinstance(answer, Mapping):
        raise AgentError(f"the agent's answer is neither a task nor a message of A2A: {excerpt(answer)}")
    if answer.get("error"):
        raise _reported_error(answer["error"], method)
    if "result" in answer:
        return answer["result"]
    if "jsonrpc" in answer:
        raise AgentError(f"the agent's answer has neither a result nor an error: {excerpt(answer)}")
    return answer


def _reported_error(error: Any, method: str) -> AgentError:
    code = error.get("code") if isinstance(error, Mapping) else None
    if not isinstance(code, int) or isinstance(code, bool):
        return AgentError(f"the agent answered with an error: {excerpt(error)}")
    name = f", {_ERROR_NAMES[code]}" if code in _ERROR_NAMES else ""
    problem = (
        f"the agent answered {method} with error {code}{name}: {text_at(error, 'message') or excerpt(error)}"
    )
    if code in (_UNKNOWN_METHOD, _OTHER_VERSION):
        return WayRefused(problem)
    return ReportedError(f"{problem}{_details(error.get('data') or error.get('details'))}", code)


def _details(data: Any) -> str:
    items = data if isinstance(data, list) else [data] if data else []
    details = [item for item in items if not (isinstance(item, Mapping) and "reason" in item)]
    return f" ({excerpt(details[0] if len(details) == 1 else details)})" if details else ""


def method_of(way: RequestWay, operation: str) -> str:
    """Return the name of an operation's method, as messages name it."""
    name = _METHODS[operation]["rest" if way.rest else way.version]
    return f"GET /{name}" if way.rest and operation == "get" else name


def _request(way: RequestWay, operation: str, params: Json) -> OutgoingRequest:
    """Return the request of an operation.

    1.x servers take requests without the version header for 0.3, and refuse 0.3's methods with it.
    """
    method = _METHODS[operation]["rest" if way.rest else way.version]
    url, payload = way.url, {"jsonrpc": "2.0", "id": uuid4().hex, "method": method, "params": dict(params)}
    if way.rest:
        url = f"{way.url.rstrip('/')}/{method.format_map(params)}"
        payload = dict(params) if operation in ("send", "stream") else {}
    is_get = way.rest and operation == "get"
    accept = "text/event-stream" if operation == "stream" else "application/json"
    return OutgoingRequest(
        url=url,
        method="GET" if is_get else "POST",
        headers={"accept": accept, **({"A2A-Version": "1.0"} if way.version == "1.0" else {})},
        content=None if is_get else json.dumps(payload).encode(),
    )


def params_of(
    user_text: UserText,
    way: RequestWay,
    *,
    body: Mapping[str, Any],
    context_id: str | None,
    task_id: str | None,
    streaming: bool,
) -> dict[str, Any]:
    """Return the parameters of a request that sends a message, merged over those of `body`.

    `context_id` None lets the server make a context, and `task_id` None a task.
    """
    old = way.version == "0.3"
    message = {
        **body.get("message", {}),
        "messageId": uuid4().hex,
        "role": "user" if old else "ROLE_USER",
        "parts": _parts(user_text, old),
        **({"kind": "message"} if old else {}),
        **({} if context_id is None else {"contextId": context_id}),
        **({} if task_id is None else {"taskId": task_id}),
    }
    params = {**body, "message": message}
    if old:
        waits = {} if streaming else {"blocking": True}  # 0.3's servers differ in their defaults
        params["configuration"] = {"acceptedOutputModes": [], **waits, **body.get("configuration", {})}
    return params


def _parts(user_text: UserText, old: bool) -> list[dict[str, Any]]:
    text = [{"text": user_text.text}] if user_text.text or not user_text.attachments else []
    if old:
        return [*({"kind": "text", **part} for part in text), *map(_old_file, user_text.attachments)]
    return [*text, *map(_file, user_text.attachments)]


def _file(file: Attachment) -> dict[str, Any]:
    name = {"filename": file.name} if file.name else {}
    content = {"url": file.uri} if file.uri else {"raw": file.base64}
    return {**content, "mediaType": file.mime_type, **name}


def _old_file(file: Attachment) -> dict[str, Any]:
    name = {"name": file.name} if file.name else {}
    content = {"uri": file.uri} if file.uri else {"bytes": file.base64}
    return {"kind": "file", "file": {**content, "mimeType": file.mime_type, **name}}
