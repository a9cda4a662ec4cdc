"""Client for agents that speak OpenAI's Assistants API, as the threads of Azure AI Foundry do.

A conversation is a thread. Each user message starts a run, which is polled or streamed until it ends or
requires the results of tools, which mocks answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import anyio

from agentest.agents.http_sender import EventStream, cancelled_on_server, read_body
from agentest.agents.json_reader import (
    arguments_text,
    error_text,
    excerpt,
    mapping_at,
    objects_at,
    read_arguments,
    read_count,
    read_object,
    text_at,
    truncated_stream_error,
)
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AGENT_ANSWERED, AgentReply, NoReply, Resources, TurnContext
from agentest.domain.messages import Message, ToolRequest, last_user_message
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import Remark, ToolCall, Usage
from agentest.plugins.protocols.approvals import MOST_APPROVALS, TOO_MANY_QUESTIONS, Approver
from agentest.plugins.protocols.assistants.settings import AssistantsAgent
from agentest.plugins.protocols.dialogue import last_results
from agentest.plugins.protocols.protocol_client import (
    ProtocolClient,
    ProtocolEndpoint,
    ReplyTotals,
    agent_call,
    json_events,
    with_header,
)
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse

_PLACE = "does `endpoint` end before /threads, and is `assistant_id` right?"
_HANDED_OVER = "make it a function of the assistant, so that its runs require its result"
_BETA = ("openai-beta", "assistants=v2")
_RUNNING = ("queued", "in_progress", "cancelling")
_REQUIRES_ACTION = "requires_action"
_NO_STEPS = (404, 405)
_BETWEEN = "\n\n"

Object = Mapping[str, Any]
"""A run, a message or a step, as received."""


def open_agent(_: str, config: AssistantsAgent, resources: Resources) -> ProtocolClient:
    """Create the client of an agent that speaks the Assistants API."""
    endpoint = _Threads(config, resources)
    client = ProtocolClient(config.name, lambda: _ThreadConversation(endpoint))
    client.takes_attachments = False
    return client


class _Threads(ProtocolEndpoint):
    def __init__(self, config: AssistantsAgent, resources: Resources) -> None:
        super().__init__(with_header(config, *_BETA), resources, _PLACE, handed_over=_HANDED_OVER)
        self.assistant_id = config.assistant_id
        self.streaming = config.streaming
        self.timeout_s = resources.timeout_s
        self.pause_s = config.poll_ms / 1000
        self._endpoint = urlsplit(config.endpoint)
        self._version = {} if config.api_version is None else {"api-version": config.api_version}

    def url(self, *path: str, **query: str) -> str:
        base = self._endpoint
        parts = [base.query, urlencode({**query, **self._version})]
        joined = "/".join((base.path.rstrip("/"), *(quote(part, "") for part in path)))
        return base._replace(path=joined, query="&".join(filter(None, parts))).geturl()

    async def create(
        self, path: Sequence[str], payload: Object, values: TurnValues, total: ReplyTotals
    ) -> Object:
        """POST an object and return the one that was created. Raises NoReply, CannotSend."""
        return total.add(await self.sender.post(self.url(*path), payload, _read_object, values=values))

    async def listed(self, path: Sequence[str], values: TurnValues, **query: str) -> list[Object] | None:
        """GET a list, oldest first. Returns None if the server has no such list."""

        async def read(response: DirectResponse) -> list[Object] | None:
            if response.status_code in _NO_STEPS:
                return None
            return objects_at(await _read_object(response), "data")

        url = self.url(*path, order="asc", limit="100", **query)
        return (await self.sender.get(url, read, _NO_STEPS, values=values)).value


class _ThreadConversation:
    """One conversation, which is a thread on the server."""

    def __init__(self, threads: _Threads) -> None:
        self.name = threads.name
        self._threads = threads
        self._thread: list[str] = []
        """The path of the thread."""
        self._run: Object = {}
        """The last run, as far as it is known."""
        self._messages: dict[str, Object] = {}
        """The messages of the run that were streamed, by id."""
        self._decided: dict[str, Approval] = {}
        """Id of a call that needed approval → the decision."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to a user message or to tool results. Raises NoReply, CannotSend, MockBypassed."""
        values, total, threads = TurnValues(messages, ctx), ReplyTotals(), self._threads
        approver = Approver(ctx.approve)
        try:
            if results := last_results(messages):
                outputs = [{"tool_call_id": result.request_id, "output": result.text} for result in results]
                await self._submit({"tool_outputs": outputs}, values, total)
            else:
                await self._start(last_user_message(messages).text, ctx, values, total)
            for _ in range(MOST_APPROVALS):
                await self._wait(values, total)
                if not (waiting := _action(self._run, "submit_tool_approval")):
                    break
                await self._submit(self._approvals(waiting, approver, ctx, total), values, total)
            else:
                raise AgentError(TOO_MANY_QUESTIONS)
            total.approvals = approver.answered
            if self._run.get("status") == _REQUIRES_ACTION:
                return total.reply(None, tool_requests=_requests(self._run))
            return await self._finished(ctx, values, total)
        except AgentError as error:
            where = "" if isinstance(error, NoReply) else f"{threads.url(*self._thread)}: "
            raise total.no_reply(f"{where}{error}" if where else error) from None

    async def _start(self, text: str, ctx: TurnContext, values: TurnValues, total: ReplyTotals) -> None:
        """Add a user message to the thread and start a run."""
        is_first = not self._thread
        if is_first:
            self._threads.own_tools.check_before(ctx)
            created = await self._threads.create(["threads"], {}, values, total)
            self._thread = ["threads", _id_of(created, "thread")]
        message = {"role": "user", "content": text}
        await self._threads.create([*self._thread, "messages"], message, values, total)
        if is_first:
            AGENT_ANSWERED.set(False)  # only the server has: the assistant may not exist
        body = self._threads.body.filled(values)
        self._run, self._messages, self._decided = {}, {}, {}
        await self._post(["runs"], {**body, "assistant_id": self._threads.assistant_id}, values, total)

    async def _submit(self, payload: Object, values: TurnValues, total: ReplyTotals) -> None:
        await self._post([*self._run_path, "submit_tool_outputs"], payload, values, total)

    @property
    def _run_path(self) -> list[str]:
        return ["runs", _id_of(self._run, "run")]

    async def _post(
        self, path: Sequence[str], payload: Object, values: TurnValues, total: ReplyTotals
    ) -> None:
        """Start or continue a run, and read its events if it streams."""
        threads = self._threads

        async def read(response: DirectResponse) -> None:
            def take(body: bytes) -> None:
                self._run = read_object(body, _PLACE)

            await read_body(response, threads.streaming, take, self._read_events)

        payload = {**payload, "stream": True} if threads.streaming else payload
        total.add(await threads.sender.post(threads.url(*self._thread, *path), payload, read, values=values))

    async def _read_events(self, stream: EventStream) -> None:
        received = False
        async for kind, content in json_events(stream, ends_at_done=True):
            received = True
            if kind == "error" or "error" in content or {"code", "message"} <= content.keys():
                raise AgentError(f"the agent's stream reports an error: {excerpt(content)}")
            match content.get("object"):
                case "thread.run":
                    self._run = content
                case "thread.message":
                    self._messages[str(content.get("id"))] = content
                case "thread.message.delta":
                    stream.note_first_token()
        if self._run.get("status", "queued") in _RUNNING:
            raise truncated_stream_error("a run that has ended or requires action", received)

    async def _wait(self, values: TurnValues, total: ReplyTotals) -> None:
        """Poll the run until it ends or requires action. Raises NoReply, AgentError."""
        if self._run.get("status") not in _RUNNING:
            return
        threads, path = self._threads, [*self._thread, *self._run_path]
        limit = TimeLimit(max(0.0, threads.timeout_s - total.latency_ms / 1000))

        async def cancel() -> None:
            await threads.create([*path, "cancel"], {}, values, ReplyTotals())

        try:
            async with cancelled_on_server(cancel):
                with limit:
                    while self._run.get("status") in _RUNNING:
                        await anyio.sleep(threads.pause_s)
                        answer = await threads.sender.get(threads.url(*path), _read_object, values=values)
                        self._run = answer.value
        except TimeoutError:
            raise AgentError(
                f"the run is still {self._run.get('status')!r} after {threads.timeout_s:g} s "
                "(request_timeout_ms)"
            ) from None
        total.latency_ms += limit.elapsed * 1000

    def _approvals(
        self, waiting: Sequence[Object], approver: Approver, ctx: TurnContext, total: ReplyTotals
    ) -> Object:
        """Return the answer to a request for approval. Raises AgentError if the scenario has none."""
        names = [text_at(call, "name") for call in waiting]
        decision = approver.decision(names)
        if decision is None:
            raise AgentError(
                f"the run waits for approval of {names[0]!r}, and the scenario has no answer: write "
                f"approve={{{names[0]!r}: True}}"
            )
        answers = []
        for name, call in zip(names, waiting, strict=True):
            is_granted, call_id = decision.about(name).approved, _id_of(call, "call")
            answers.append({"tool_call_id": call_id, "approve": is_granted})
            self._decided[call_id] = Approval.GRANTED if is_granted else Approval.DENIED
            if not is_granted:
                total.observed += (_call_of_server(call, name, ctx.turn_index, Approval.DENIED),)
        return {"tool_approvals": answers}

    async def _finished(self, ctx: TurnContext, values: TurnValues, total: ReplyTotals) -> AgentReply:
        """Return the reply of a run that has ended. Raises NoReply, AgentError."""
        usage = mapping_at(self._run, "usage")
        total.usage += Usage(read_count(usage, "prompt_tokens"), read_count(usage, "completion_tokens"))
        hidden = await self._add_own_calls(ctx, values, total)
        self._threads.own_tools.check_after(total.observed, ctx)
        if self._run.get("status") != "completed":
            raise AgentError(_problem(self._run))
        texts = [text for each in await self._replies(values) if (text := self._text(each))]
        *before, last = texts or [""]
        total.remarks = tuple(Remark(self.name, text) for text in before)
        return total.reply(last, calls_hidden=hidden)

    async def _replies(self, values: TurnValues) -> list[Object]:
        """Return the assistant's messages of the run."""
        found: Sequence[Object] = list(self._messages.values())
        run_id = _id_of(self._run, "run")
        if not found:
            found = await self._threads.listed([*self._thread, "messages"], values, run_id=run_id) or ()
        return [each for each in found if each.get("role") != "user" and each.get("run_id") in (None, run_id)]

    def _text(self, message: Object) -> str:
        texts: list[str] = []
        for part in objects_at(message, "content"):
            text = mapping_at(part, "text").get("value", part.get("refusal"))
            if isinstance(text, str):
                texts.append(text)
            else:
                self._threads.ignored.note("part of a message", part.get("type"))
        return _BETWEEN.join(texts)

    async def _add_own_calls(self, ctx: TurnContext, values: TurnValues, total: ReplyTotals) -> str | None:
        """Add the calls that the server has made itself. Returns why they cannot be known, if so."""
        path = [*self._thread, *self._run_path, "steps"]
        steps = await self._threads.listed(path, values)
        for step in steps or ():
            for call in objects_at(mapping_at(step, "step_details"), "tool_calls"):
                kind = text_at(call, "type")
                approval = self._decided.get(text_at(call, "id"))
                if kind == "function" or approval is Approval.DENIED:
                    continue
                own = _call_of_server(call, text_at(call, "name") or kind, ctx.turn_index, approval)
                total.observed += (own,)
        return "the server lists no steps of its runs" if steps is None else None


def _call_of_server(call: Object, name: str, turn_index: int, approval: Approval | None) -> ToolCall:
    details = mapping_at(call, text_at(call, "type")) or call
    given = details.get("arguments", details.get("input"))
    args, problem = (
        read_arguments(given) if "arguments" in details else ({"input": given} if given else {}, None)
    )
    return agent_call(
        name=name,
        args=args,
        turn_index=turn_index,
        result=details.get("output", details.get("outputs", details.get("results"))),
        invalid_arguments=problem,
        error="the call was denied" if approval is Approval.DENIED else None,
        call_id=text_at(call, "id") or None,
        approval=approval,
    )


def _action(run: Object, kind: str) -> list[Object]:
    if run.get("status") != _REQUIRES_ACTION:
        return []
    return objects_at(mapping_at(mapping_at(run, "required_action"), kind), "tool_calls")


def _requests(run: Object) -> tuple[ToolRequest, ...]:
    """Return the calls whose results a run requires. Raises AgentError if there are none."""
    calls = [(call, mapping_at(call, "function")) for call in _action(run, "submit_tool_outputs")]
    if not calls or not all(text_at(function, "name") for _, function in calls):
        action = excerpt(run.get("required_action"))
        raise AgentError(f"the run requires an action that is not a result of functions: {action}")
    return tuple(
        ToolRequest(
            _id_of(call, "call"), text_at(function, "name"), arguments_text(function.get("arguments"))
        )
        for call, function in calls
    )


def _problem(run: Object) -> str:
    status = run.get("status")
    if status == "incomplete":
        reason = mapping_at(run, "incomplete_details").get("reason")
        return f"the run is incomplete ({reason}): its reply was cut before its end"
    why = error_text(run.get("last_error"), "code") if run.get("last_error") else ""
    if status == "expired":
        return f"the run expired{why and f': {why}'} (it waited too long for the results of tools)"
    return f"the run ended as {status!r}{why and f': {why}'}"


def _id_of(value: Object, what: str) -> str:
    if found := text_at(value, "id"):
        return found
    raise AgentError(f"the agent sent a {what} without an `id`: {excerpt(value)}")


async def _read_object(response: DirectResponse) -> Object:
    return read_object(await response.read(), _PLACE)
