"""The client of a graph behind a LangGraph server: runs of the graph, its threads, and its conversations.

The graph runs its own tools. Calls are observed in its messages; mocks do not apply. Runs are always
streamed, even without token streaming, because the final state lacks messages that a graph has removed and
messages of subgraphs, such as the agents of a supervisor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

import anyio

from agentest.agents.chat_completions import to_wire
from agentest.agents.error_hints import ProbeResponse
from agentest.agents.http_sender import (
    HttpAnswer,
    OutgoingRequest,
    cancelled_on_server,
    probe_response_of,
    read_body,
)
from agentest.agents.json_reader import excerpt, objects_in, text_at
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, ConversationalAgent, NoReply, Resources, TurnContext
from agentest.agents.reply_detection import empty_path_message, text_of, where_text_is
from agentest.domain.messages import Message, last_user_message
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ToolCall, waiting
from agentest.plugins.protocols.approvals import Approver, approvals_of, asked_tools, question_text, resume
from agentest.plugins.protocols.langgraph import messages as wire
from agentest.plugins.protocols.langgraph.settings import LangGraphAgent
from agentest.plugins.protocols.protocol_client import ProtocolEndpoint, ProtocolTurn, read_json_body
from agentest.support.errors import AgentError, CannotSend, ProgramDelayed, SessionMismatch, errors_as
from agentest.support.http.client import DirectResponse
from agentest.support.jmespath_expressions import JsonPath
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template, Values

_TIMEOUT_HINT = (
    "`langgraph dev` takes one run at a time unless it was started with --n-jobs-per-worker 20; otherwise "
    "lower `concurrency`"
)
_RUN_ID = re.compile(r"/runs/([^/?#]+)")
_REFUSAL_STATUSES = (404, 405, 422)  # statuses of servers that have no such graph or no such address
_MAX_ASSISTANTS = 100
_MESSAGE_PLACEHOLDERS = {"message", "messages"}


def open_agent(_: str, config: LangGraphAgent, resources: Resources) -> ConversationalAgent:
    """Create the client of a graph behind a LangGraph server."""
    graph = Graph(config, resources)
    return ConversationalAgent(
        config.name, lambda: GraphConversation(graph), takes_history=graph.requests.adds_message
    )


@dataclass(frozen=True, slots=True)
class _RefusedRun:
    status: int
    problem: str
    seen: ProbeResponse


class Graph(ProtocolEndpoint):
    """One graph of a LangGraph server."""

    def __init__(self, config: LangGraphAgent, resources: Resources) -> None:
        super().__init__(config, resources, wire.PLACE, timeout_hint=_TIMEOUT_HINT)
        self.path = JsonPath(config.reply) if config.reply else None
        self.approvals = config.approvals
        self.requests = RunBodies(config)
        self._assistant = config.assistant_id
        self._root = config.endpoint.rstrip("/")
        self._streams: bool | None = None  # True if the server streams runs; None while that is unknown
        self._search_lock = anyio.Lock()

    async def assistant(self, values: Values) -> str:
        """Return the assistant to run: the configured one, or the server's only graph.

        Raises NoReply, and CannotSend if none is configured and there is not exactly one graph.
        """
        if not self._assistant:
            async with self._search_lock:
                if not self._assistant:
                    graphs = await self._search_graphs(values)
                    if len(graphs) != 1:
                        raise CannotSend(self._missing_assistant_text(graphs))
                    self._assistant = graphs[0]
        return self._assistant

    def _missing_assistant_text(self, graphs: list[str]) -> str:
        offered = f"the server has {', '.join(graphs)}" if graphs else "the server reports none"
        return (
            f"agent {self.name!r} has no assistant_id: set it in the agent's configuration to one of the "
            f"graphs of {self._root} ({offered})"
        )

    async def run(self, thread: str, body: dict[str, object], values: Values) -> HttpAnswer[wire.GraphRun]:
        """Run the graph once and return the result. Raises NoReply, and CannotSend for an unknown graph."""
        answer = await self._send(thread, "wait" if self._streams is False else "stream", body, values)
        result = answer.value
        if isinstance(result, _RefusedRun) and result.status != 422 and self._streams is None:
            answer = await self._send(thread, "wait", body, values)
            result = answer.value
            if isinstance(result, wire.GraphRun):
                self._streams = False
                self.notes.add(
                    "streaming",
                    "its server has no /runs/stream, so only calls that its final state shows are seen, and "
                    "none of graphs inside",
                )
        if isinstance(result, _RefusedRun):
            raise await self._refusal(result, answer.retries, body["assistant_id"], values)
        self._streams = self._streams is not False
        return HttpAnswer(result, answer.latency_ms, answer.retries, answer.first_token_ms)

    async def _send(
        self, thread: str, kind: str, body: dict[str, object], values: Values
    ) -> HttpAnswer[wire.GraphRun | _RefusedRun]:
        runs = f"{self._root}/threads/{thread}/runs"
        accept = {"accept": "text/event-stream"} if kind == "stream" else {}
        sent = {k: v for k, v in body.items() if accept or not k.startswith("stream_")}
        run_ids: list[str] = []

        async def read(response: DirectResponse) -> wire.GraphRun | _RefusedRun:
            run_ids.extend(_RUN_ID.findall(response.headers.get("content-location", "")))
            if response.status_code in _REFUSAL_STATUSES:
                problem = await self.sender.problem(response)
                return _RefusedRun(response.status_code, problem, probe_response_of(response))
            return await read_body(
                response,
                True,
                wire.read_answer,
                lambda events: wire.read_stream(events, run_ids.append, self.ignored.note),
            )

        async def cancel() -> None:
            if run_ids:
                # Without `wait`, because nothing depends on the run's end.
                await self.sender.post(f"{runs}/{run_ids[-1]}/cancel", {}, _ignore, values=values)

        async with cancelled_on_server(cancel):
            return await self.sender.post(
                f"{runs}/{kind}", sent, read, _REFUSAL_STATUSES, values=values, headers=accept
            )

    async def _refusal(self, refused: _RefusedRun, retries: int, graph: object, values: Values) -> Exception:
        try:
            graphs = await self._search_graphs(values)
        except (NoReply, CannotSend, ProgramDelayed):
            graphs = []
        if not graphs or graph in graphs or _is_uuid(graph):
            return NoReply(await self.sender.advised(refused.problem, refused.seen), retries)
        return CannotSend(
            f"the LangGraph server has no graph {graph!r}: set assistant_id of agent {self.name!r} to one of "
            f"{', '.join(graphs)} ({refused.problem})"
        )

    async def _search_graphs(self, values: Values) -> list[str]:
        url = f"{self._root}/assistants/search"
        found = (await self.sender.post(url, {"limit": _MAX_ASSISTANTS}, _read_json, values=values)).value
        names = [text_at(assistant, "graph_id") for assistant in objects_in(found)]
        return list(dict.fromkeys(filter(None, names)))

    async def read_state(self, thread: str, run: wire.GraphRun, values: Values) -> None:
        """Read the thread's state after a run. A failure is noted, because it is not the agent's failure."""
        request = OutgoingRequest(url=f"{self._root}/threads/{thread}/state", method="GET")
        try:
            state = (await self.sender.send(request, _read_json, values=values)).value
        except (NoReply, CannotSend, ProgramDelayed) as error:
            problem = str(error).replace(thread, "<thread>")
            run.state_error = f"the thread's state could not be read: {problem}"
            return
        if isinstance(state, Mapping) and "values" in state:
            run.values, following = state["values"], state.get("next")
            run.following = tuple(map(str, following)) if isinstance(following, list) else ()
        else:
            run.state_error = f"{self._root} answered no state of a thread, but: {excerpt(state)}"


async def _ignore(_: DirectResponse) -> None:
    pass


async def _read_json(response: DirectResponse) -> Any:
    if_stream = "the LangGraph server answered with a stream where JSON was expected"
    return await read_json_body(response, wire.PLACE, if_stream)


def _is_uuid(value: object) -> bool:
    try:
        return bool(UUID(str(value)))
    except ValueError:
        return False


def thread_of(session_id: str) -> str:
    """Return the thread id for a session: a UUID, because LangGraph's servers accept no other ids."""
    if _is_uuid(session_id):
        return str(UUID(session_id))
    return str(uuid5(NAMESPACE_URL, f"agentest:{session_id}"))


class RunBodies:
    """Makes the bodies of run requests from the configuration."""

    def __init__(self, config: LangGraphAgent) -> None:
        body = dict(config.body)
        self._input = Template(body.pop("input", {}))
        self._resume = Template(body.pop("command", None))
        self._body = Template(body)
        modes = ["updates", "messages-tuple"] if config.streaming else ["updates"]
        self._streamed = {"stream_mode": modes, "stream_subgraphs": True}
        self._placeholders = Template([config.body, config.sent_headers]).names
        self.adds_message = not (
            "messages" in config.body.get("input", {}) or self._input.names & _MESSAGE_PLACEHOLDERS
        )

    def state_keys(self, state: Mapping[str, Any]) -> list[str]:
        """Return the keys of a session's state that are sent as input.

        Keys that the settings `body` and `headers` use are sent there instead.
        """
        if "state" in self._placeholders:
            return []
        placed = {name.split(".")[1] for name in self._placeholders if name.startswith("state.")}
        return [key for key in state if key not in placed]

    def run(
        self,
        assistant: str,
        new: Sequence[Message],
        sent: wire.SentMessage,
        state: Mapping[str, Any],
        values: Values,
    ) -> dict[str, Any]:
        """Return the body of a run with the new messages, and the session's state as input."""
        run_input = {key: state[key] for key in self.state_keys(state)} | self._input.filled(values)
        if self.adds_message:
            *earlier, message = to_wire(new)
            run_input = {"messages": [*earlier, {**message, "id": sent.id}], **run_input}
        return {**self._common(assistant, values), "if_not_exists": "create", "input": run_input}

    def answer(self, assistant: str, resume: Any, values: Values) -> dict[str, Any]:
        """Return the body of a run that answers interrupts."""
        return {**self._common(assistant, values), "command": {"resume": resume}}

    def configured_resume(self, values: Values) -> Any:
        """Return the configured answer to interrupts (`body.command.resume`); None if there is none."""
        command = self._resume.filled(values)
        return None if command is None else command["resume"]

    def _common(self, assistant: str, values: Values) -> dict[str, Any]:
        return {**self._body.filled(values), **self._streamed, "assistant_id": assistant}


@dataclass(slots=True, kw_only=True)
class _TurnRuns(ProtocolTurn):
    thread: str
    sent: wire.SentMessage | None  # the user's message; None if it answers the graph's interrupts
    run: wire.GraphRun = field(default_factory=wire.GraphRun)
    updates: list[wire.Wire] = field(default_factory=list)
    decided: dict[str, Approval] = field(default_factory=dict)


class GraphConversation:
    """One conversation with a graph."""

    def __init__(self, graph: Graph) -> None:
        self.name = graph.name
        self._graph = graph
        self._known: set[str] = set()  # ids of messages of earlier turns
        self._interrupts: tuple[wire.Wire, ...] = ()  # interrupts that the user's next message answers
        self._waiting: dict[str, ToolCall] = {}
        """Calls that wait for the user's decision, by id. They belong to the turn of the decision."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message. Raises NoReply, SessionMismatch, CannotSend."""
        values, user_message = TurnValues(messages, ctx), last_user_message(messages)
        assistant = await self._graph.assistant(values)
        state = dict(ctx.session.state) if ctx.session and ctx.turn_index == 0 else {}
        sent = None if self._interrupts else wire.SentMessage(id=str(uuid4()), text=user_message.text)
        turn = _TurnRuns(ctx=ctx, values=values, thread=thread_of(ctx.session_id), sent=sent)
        requests = self._graph.requests
        approver = Approver(ctx.approve, self._graph.approvals)
        if sent is None:
            answer = requests.configured_resume(values)
            if answer is None:
                decision = approver.decision(asked_tools(self._interrupts), user_message.text)
                assert decision is not None, "the user's message decides"
                answer = resume(self._interrupts, decision)
                turn.decided = approvals_of(self._interrupts, decision)
            body = requests.answer(assistant, answer, values)
        else:
            new = messages if ctx.turn_index == 0 else [user_message]
            body = requests.run(assistant, new, sent, state, values)
        await self._run(turn, body)
        await self._answer_interrupts(turn, assistant, approver)
        turn.approvals = approver.answered
        self._check_state(turn, requests.state_keys(state))
        return self._finish(turn)

    async def _answer_interrupts(self, turn: _TurnRuns, assistant: str, approver: Approver) -> None:
        """Answer the graph's interrupts unless the user has to decide. Raises NoReply."""
        while turn.run.interrupts:
            with errors_as(partial(self._no_reply, turn), "", AgentError):
                decision = approver.decision(asked_tools(turn.run.interrupts))
            if decision is None:
                return
            answer = resume(turn.run.interrupts, decision)
            turn.decided |= approvals_of(turn.run.interrupts, decision)
            await self._run(turn, self._graph.requests.answer(assistant, answer, turn.values))

    async def _run(self, turn: _TurnRuns, body: dict[str, Any]) -> None:
        turn.run = turn.add(await self._graph.run(turn.thread, body, turn.values))
        turn.updates += wire.after_user(turn.run.messages, turn.sent)
        if turn.run.problem is not None:
            raise self._no_reply(turn, turn.run.problem)
        if turn.run.values is None:
            await self._graph.read_state(turn.thread, turn.run, turn.values)
        # A stream may be cut between two events, so check that the run has ended.
        run, rest = turn.run, turn.run.following
        if run.interrupts or (run.ended and not rest):
            return
        if run.stopped:
            raise self._no_reply(
                turn,
                f"the graph stopped at a breakpoint before {', '.join(rest) or 'a node'}, without a question "
                "(expected: its end, or an `interrupt()` that `approvals` answers)",
            )
        if rest:
            raise self._no_reply(
                turn, f"the agent's stream was cut: the graph goes on with {', '.join(rest)}"
            )
        if run.state_error is not None and not self._looks_finished(turn):
            raise self._no_reply(
                turn,
                "the agent's stream was cut: it ended without `event: end` and without a last message of "
                f"the model, and {run.state_error}",
            )

    def _no_reply(self, turn: _TurnRuns, problem: str) -> NoReply:
        try:
            calls = self._calls(turn)
        except AgentError:
            calls = ()
        return turn.no_reply(problem, calls)

    def _looks_finished(self, turn: _TurnRuns) -> bool:
        messages = self._turn_messages(turn)
        return bool(messages) and wire.kind_of(messages[-1]) == wire.AI and not messages[-1].get("tool_calls")

    def _check_state(self, turn: _TurnRuns, wanted: Sequence[str]) -> None:
        """Raise SessionMismatch if the graph's state lacks keys of the scenario's session state."""
        state = turn.run.values
        missing = [key for key in wanted if isinstance(state, Mapping) and key not in state]
        if missing:
            raise SessionMismatch(
                f"the state of the scenario's `session` has {missing[0]!r}, and that of the graph has no "
                f"such key (it has {', '.join(state)}); take it out of the scenario, or place it by "
                f"{{{{state.{missing[0]}}}}} in the agent's `body`"
            )

    def _state_messages(self, turn: _TurnRuns) -> list[wire.Wire] | None:
        in_state = wire.state_messages(turn.run.values)
        return None if in_state is None else wire.new_in_state(in_state, self._known, turn.sent)

    def _turn_messages(self, turn: _TurnRuns) -> list[wire.Wire]:
        updates = wire.new_in_updates(turn.updates, self._earlier_ids(turn))
        return wire.merged(updates, self._state_messages(turn) or ())

    def _earlier_ids(self, turn: _TurnRuns) -> set[str]:
        in_state = wire.state_messages(turn.run.values)
        earlier = in_state[: len(in_state) - len(wire.after_user(in_state, turn.sent))] if in_state else []
        if earlier or (in_state is None and turn.sent):
            return {m["id"] for m in earlier if m.get("id")}
        return self._known

    def _calls(self, turn: _TurnRuns) -> tuple[ToolCall, ...]:
        calls = wire.calls_of(self._turn_messages(turn), turn.ctx.turn_index, self._waiting)
        by_user = turn.sent is None
        return tuple(
            replace(call, approval=turn.decided.get(call.name))
            if not by_user or call.call_id in self._waiting
            else call
            for call in calls
        )

    def _finish(self, turn: _TurnRuns) -> AgentReply:
        values = turn.run.values
        with errors_as(partial(self._no_reply, turn), "", AgentError):
            messages, calls = self._turn_messages(turn), self._calls(turn)
            text, distinct_messages = self._text(turn, messages), wire.distinct(messages)
        self._interrupts = tuple(turn.run.interrupts)
        self._waiting = {c.call_id: c for c in calls if self._interrupts and c.call_id and _is_waiting(c)}
        self._known |= {m["id"] for m in (*messages, *(wire.state_messages(values) or ())) if m.get("id")}
        turn.usage = wire.usage_of(distinct_messages)
        turn.observed = tuple(waiting(call) if call.call_id in self._waiting else call for call in calls)
        turn.remarks = wire.remarks_of(distinct_messages, text, self.name)
        return turn.reply(
            text,
            model_calls=sum(wire.kind_of(m) == wire.AI for m in distinct_messages) or None,
            state={k: v for k, v in values.items() if k != wire.MESSAGES}
            if isinstance(values, Mapping)
            else None,
            state_before=_state_before(turn.ctx),
            state_error=turn.run.state_error,
            tells_calls=bool(messages) or wire.state_messages(values) is not None,
        )

    def _text(self, turn: _TurnRuns, messages: Sequence[wire.Wire]) -> str | None:
        values, path = turn.run.values, self._graph.path
        if turn.run.interrupts:
            return question_text(turn.run.interrupts)
        if path is not None:
            found = text_of(path.find(values))
            if found is None:
                raise AgentError(turn.run.state_error or empty_path_message("reply", path, values))
            return found
        in_state = self._state_messages(turn)
        if in_state is None and not messages:
            raise AgentError(
                turn.run.state_error
                or "the graph's state has no `messages`: set `reply` to the path of the reply in it; "
                f"{where_text_is(values)}: {excerpt(values)}"
            )
        return wire.reply_of(messages if in_state is None else in_state, self._graph.ignored.note)


def _is_waiting(call: ToolCall) -> bool:
    return call.result is None and not call.error and not call.invalid_arguments


def _state_before(ctx: TurnContext) -> Mapping[str, Any] | None:
    if ctx.turn_index or (ctx.session and ctx.session.session_id):
        return None
    return dict(ctx.session.state) if ctx.session else {}
