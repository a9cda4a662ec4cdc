"""The API of a LangGraph server: runs of a graph, its threads and assistants, and the bodies of requests.

Runs are always streamed, even without token streaming, because the final state lacks messages that a graph
has removed and messages of subgraphs, such as the agents of a supervisor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import anyio

from agentest.agents.chat_completions import content_of
from agentest.agents.error_hints import ProbeResponse
from agentest.agents.http_sender import (
    HttpAnswer,
    HttpSender,
    cancelled_on_server,
    probe_response_of,
    read_body,
)
from agentest.agents.json_reader import excerpt, objects_in, text_at
from agentest.agents.langgraph.messages import PLACE, GraphRun, SentMessage, read_answer, read_stream
from agentest.agents.port import AgentNotes, IgnoredCounter, NoReply, Resources
from agentest.agents.protocol_client import read_json_body
from agentest.config.agents.langgraph import LangGraphAgent
from agentest.domain.messages import UserText
from agentest.support.errors import CannotSend, ProgramDelayed
from agentest.support.http.client import DirectResponse
from agentest.support.json_path import JsonPath
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template, Values

_TIMEOUT_HINT = (
    "`langgraph dev` takes one run at a time unless it was started with --n-jobs-per-worker 20; otherwise "
    "lower `concurrency`"
)
_RUN_ID = re.compile(r"/runs/([^/?#]+)")
_REFUSAL_STATUSES = (404, 405, 422)
"""Statuses of servers that have no such graph or no such address."""
_MAX_ASSISTANTS = 100
_TOKENS_MODE = "messages-tuple"
_MESSAGE_PLACEHOLDERS = {"message", "messages"}


@dataclass(frozen=True, slots=True)
class _RefusedRun:
    status: int
    problem: str
    seen: ProbeResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """The state of a thread after a run, or the error if it could not be read."""

    values: Any = None
    following: tuple[str, ...] = ()
    """The nodes that run next."""
    error: str | None = None


class Graph:
    """One graph of a LangGraph server. Stores nothing about conversations."""

    def __init__(self, config: LangGraphAgent, resources: Resources) -> None:
        self.name = config.name
        self.path = JsonPath(config.reply) if config.reply else None
        self.approvals = config.approvals
        self.requests = RunBodies(config)
        self.ignored = IgnoredCounter(config.name, resources)
        self._notes = AgentNotes(config.name, resources.on_note)
        self._assistant = config.assistant_id
        self._root = config.endpoint.rstrip("/")
        self._sender = HttpSender(config, resources.client, resources.timeout_s, PLACE, _TIMEOUT_HINT)
        self._streams: bool | None = None
        """True if the server streams runs; None while that is unknown."""
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
        offered = f"the server has {', '.join(graphs)}" if graphs else "the server tells of none"
        return (
            f"agent {self.name!r} has no assistant_id: set it in the agent's configuration to one of the "
            f"graphs of {self._root} ({offered})"
        )

    async def run(self, thread: str, body: dict[str, object], values: Values) -> HttpAnswer[GraphRun]:
        """Run the graph once and return the result. Raises NoReply, and CannotSend for an unknown graph."""
        answer = await self._send(thread, "wait" if self._streams is False else "stream", body, values)
        result = answer.value
        if isinstance(result, _RefusedRun) and result.status != 422 and self._streams is None:
            answer = await self._send(thread, "wait", body, values)
            result = answer.value
            if isinstance(result, GraphRun):
                self._streams = False
                self._notes.add(
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
    ) -> HttpAnswer[GraphRun | _RefusedRun]:
        runs = f"{self._root}/threads/{thread}/runs"
        accept = {"accept": "text/event-stream"} if kind == "stream" else {}
        sent = {k: v for k, v in body.items() if accept or not k.startswith("stream_")}
        run_ids: list[str] = []

        async def read(response: DirectResponse) -> GraphRun | _RefusedRun:
            run_ids.extend(_RUN_ID.findall(response.headers.get("content-location", "")))
            if response.status_code in _REFUSAL_STATUSES:
                problem = await self._sender.problem(response)
                return _RefusedRun(response.status_code, problem, probe_response_of(response))
            return await read_body(
                response,
                True,
                read_answer,
                lambda events: read_stream(events, run_ids.append, self.ignored.note),
            )

        async def cancel() -> None:
            if run_ids:
                # Without `wait`, because nothing depends on the run's end.
                await self._sender.post(f"{runs}/{run_ids[-1]}/cancel", {}, _ignore, values=values)

        async with cancelled_on_server(cancel):
            return await self._sender.post(
                f"{runs}/{kind}", sent, read, _REFUSAL_STATUSES, values=values, headers=accept
            )

    async def _refusal(self, refused: _RefusedRun, retries: int, graph: object, values: Values) -> Exception:
        try:
            graphs = await self._search_graphs(values)
        except (NoReply, CannotSend, ProgramDelayed):
            graphs = []
        if not graphs or graph in graphs or _is_uuid(graph):
            return NoReply(await self._sender.advised(refused.problem, refused.seen), retries)
        return CannotSend(
            f"the LangGraph server has no graph {graph!r}: set assistant_id of agent {self.name!r} to one of "
            f"{', '.join(graphs)} ({refused.problem})"
        )

    async def _search_graphs(self, values: Values) -> list[str]:
        url = f"{self._root}/assistants/search"
        found = (await self._sender.post(url, {"limit": _MAX_ASSISTANTS}, _read_json, values=values)).value
        names = [text_at(assistant, "graph_id") for assistant in objects_in(found)]
        return list(dict.fromkeys(filter(None, names)))

    async def state(self, thread: str, values: Values) -> ThreadState:
        """Read a thread's state. A failure is returned, not raised, because it is not the agent's failure."""
        url = f"{self._root}/threads/{thread}/state"
        try:
            thread_state = (await self._sender.get(url, _read_json, values=values)).value
        except (NoReply, CannotSend, ProgramDelayed) as error:
            return ThreadState(
                error=f"the thread's state could not be read: {str(error).replace(thread, '<thread>')}"
            )
        if not isinstance(thread_state, Mapping) or "values" not in thread_state:
            return ThreadState(
                error=f"{self._root} answered no state of a thread, but: {excerpt(thread_state)}"
            )
        following = thread_state.get("next")
        return ThreadState(
            values=thread_state["values"],
            following=tuple(map(str, following)) if isinstance(following, list) else (),
        )


async def _ignore(_: DirectResponse) -> None:
    pass


async def _read_json(response: DirectResponse) -> Any:
    if_stream = "the LangGraph server answered with a stream where JSON was expected"
    return await read_json_body(response, PLACE, if_stream)


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
        modes = ["updates", _TOKENS_MODE] if config.streaming else ["updates"]
        self._streamed = {"stream_mode": modes, "stream_subgraphs": True}
        self._placeholders = Template([config.body, config.headers]).names
        self._adds_message = not (
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
        self, assistant: str, user_text: UserText, sent: SentMessage, state: Mapping[str, Any], values: Values
    ) -> dict[str, Any]:
        """Return the body of a run with a user message and the session's state as input."""
        run_input = {key: state[key] for key in self.state_keys(state)} | self._input.filled(values)
        if self._adds_message:
            message = {"role": "user", "content": content_of(user_text), "id": sent.id}
            run_input = {"messages": [message], **run_input}
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
