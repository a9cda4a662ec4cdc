"""The API of a LangGraph server: runs of a graph, its threads and assistants, and the bodies of requests.

Runs are always streamed, even without token streaming, because the final state lacks messages that a graph
has removed and messages of subgraphs, such as the agents of a supervisor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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
from agentest.agents.json_reader import excerpt, read_json
from agentest.agents.langgraph.messages import PLACE, GraphRun, SentMessage, StreamReader, read_answer
from agentest.agents.port import IgnoredCounter, NoReply, Resources
from agentest.config.agents.agent_servers import LangGraphAgent
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
_NO_ADDRESS_STATUSES = (404, 405)
_MAX_ASSISTANTS = 100
_TOKENS_MODE = "messages-tuple"
_MESSAGE_PLACEHOLDERS = {"message", "messages"}


@dataclass(frozen=True, slots=True)
class _RefusedProbe:
    status: int
    problem: str
    seen: ProbeResponse


class Graph:
    """One graph of a LangGraph server. Stores nothing about conversations."""

    def __init__(self, config: LangGraphAgent, resources: Resources) -> None:
        self.name = config.name
        self.path = JsonPath(config.reply) if config.reply else None
        self.approvals = config.approvals
        self.requests = RunBodies(config)
        self.ignored = IgnoredCounter(config.name, resources)
        self._on_note = resources.on_note
        self._assistant = config.assistant_id
        self._root = config.endpoint.rstrip("/")
        self._sender = HttpSender(config, resources.client, resources.timeout_s, PLACE, _TIMEOUT_HINT)
        self.server = LangGraphServer(self._root, config.name, self._sender)
        self._reader = StreamReader(self.ignored.note)
        self._streams: bool | None = None
        """True if the server streams runs; None while that is unknown."""

    async def assistant(self, values: Values) -> str:
        """Return the assistant to run. Raises CannotSend if none is configured and there are several."""
        return self._assistant or await self.server.only_graph(values)

    async def run(self, thread: str, body: dict[str, object], values: Values) -> HttpAnswer[GraphRun]:
        """Run the graph once and return the result. Raises NoReply, and CannotSend for an unknown graph."""
        kind = "wait" if self._streams is False else "stream"
        answer, result = await self._send(thread, kind, body, values)
        if (
            isinstance(result, _RefusedProbe)
            and result.status in _NO_ADDRESS_STATUSES
            and self._streams is None
        ):
            answer, result = await self._send(thread, "wait", body, values)
            if isinstance(result, GraphRun):
                self._note_no_streaming()
        if isinstance(result, _RefusedProbe):
            raise await self._refusal(result, answer.retries, body["assistant_id"], values)
        self._streams = self._streams is not False
        return HttpAnswer(result, answer.latency_ms, answer.retries, answer.first_token_ms)

    async def _send(
        self, thread: str, kind: str, body: dict[str, object], values: Values
    ) -> tuple[HttpAnswer[GraphRun | _RefusedProbe], GraphRun | _RefusedProbe]:
        runs = f"{self._root}/threads/{thread}/runs"
        accept = {"accept": "text/event-stream"} if kind == "stream" else {}
        sent = {k: v for k, v in body.items() if accept or not k.startswith("stream_")}
        run_ids: list[str] = []

        async def read(response: DirectResponse) -> GraphRun | _RefusedProbe:
            location = response.headers.get("content-location", "")
            run_ids.extend(_RUN_ID.findall(location))
            return await self._read(response, run_ids.append)

        async def cancel() -> None:
            if run_ids:
                # Without `wait`, because nothing depends on the run's end.
                await self._sender.post(f"{runs}/{run_ids[-1]}/cancel", {}, _ignore, values=values)

        async with cancelled_on_server(cancel):
            answer = await self._sender.post(
                f"{runs}/{kind}", sent, read, _REFUSAL_STATUSES, values=values, headers=accept
            )
        return answer, answer.value

    def _note_no_streaming(self) -> None:
        if self._streams is None:
            self._on_note(
                f"agent {self.name!r}: its server has no /runs/stream, so only calls that its final state "
                "shows are seen, and none of graphs inside"
            )
        self._streams = False

    async def _refusal(
        self, refused: _RefusedProbe, retries: int, graph: object, values: Values
    ) -> Exception:
        graphs = await self.server.graphs(values)
        if not graphs or graph in graphs or _is_uuid(graph):
            return NoReply(await self._sender.advised(refused.problem, refused.seen), retries)
        return CannotSend(
            f"the LangGraph server has no graph {graph!r}: set assistant_id of agent {self.name!r} to one of "
            f"{', '.join(graphs)} ({refused.problem})"
        )

    async def _read(
        self, response: DirectResponse, on_run: Callable[[str], object]
    ) -> GraphRun | _RefusedProbe:
        """Read a run's result or a refusal. `on_run` receives the run's id."""
        if response.status_code in _REFUSAL_STATUSES:
            problem = await self._sender.problem(response)
            return _RefusedProbe(response.status_code, problem, probe_response_of(response))
        return await read_body(response, True, read_answer, lambda events: self._reader.read(events, on_run))


async def _ignore(_: DirectResponse) -> None:
    pass


def _is_uuid(value: object) -> bool:
    try:
        return bool(UUID(str(value)))
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """The state of a thread after a run, or the error if it could not be read."""

    values: Any = None
    following: tuple[str, ...] = ()
    """The nodes that run next."""
    error: str | None = None


class LangGraphServer:
    """The graphs and threads of a LangGraph server. Stores nothing about conversations."""

    def __init__(self, root: str, agent: str, sender: HttpSender) -> None:
        self._root = root
        self._agent = agent
        self._sender = sender
        self._only_graph: str | None = None
        self._search_lock = anyio.Lock()

    async def only_graph(self, values: Values) -> str:
        """Return the server's only graph. Raises NoReply, and CannotSend if there is not exactly one."""
        async with self._search_lock:
            if self._only_graph is None:
                graphs = await self._search_graphs(values)
                if len(graphs) != 1:
                    raise CannotSend(self.missing_assistant_text(graphs))
                self._only_graph = graphs[0]
        return self._only_graph

    def missing_assistant_text(self, graphs: list[str]) -> str:
        """Return the error for a missing `assistant_id`, with the server's graphs."""
        offered = f"the server has {', '.join(graphs)}" if graphs else "the server tells of none"
        return (
            f"agent {self._agent!r} has no assistant_id: set it in the agent's configuration to one of the "
            f"graphs of {self._root} ({offered})"
        )

    async def graphs(self, values: Values) -> list[str]:
        """Return the names of the server's graphs; an empty list if the request fails."""
        try:
            return await self._search_graphs(values)
        except (NoReply, CannotSend, ProgramDelayed):
            return []

    async def _search_graphs(self, values: Values) -> list[str]:
        url = f"{self._root}/assistants/search"
        found = (await self._sender.post(url, {"limit": _MAX_ASSISTANTS}, _read_json, values=values)).value
        assistants = found if isinstance(found, list) else []
        names = [a.get("graph_id") for a in assistants if isinstance(a, Mapping)]
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

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


async def _read_json(response: DirectResponse) -> Any:
    return await read_body(response, False, _json_of, _refuse_stream)


def _json_of(body: bytes) -> Any:
    return read_json(body, PLACE)


async def _refuse_stream(_: Any) -> Any:
    raise NoReply("the LangGraph server answered with a stream where JSON was expected")


def thread_of(session_id: str) -> str:
    """Return the thread id for a session: a UUID, because LangGraph's servers accept no other ids."""
    try:
        return str(UUID(session_id))
    except ValueError:
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
