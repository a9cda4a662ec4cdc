"""Running a graph behind a LangGraph server.

Runs are streamed even where nobody asked for tokens: the final state alone lacks what a graph has removed
from it, and everything that graphs inside it, like the agents of a supervisor, keep to themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import anyio

from agentest.agents.chat_completions import content_of
from agentest.agents.detection import Seen
from agentest.agents.http_sender import HttpAnswer, HttpSender, cancelled_on_server, read_body, seen_of
from agentest.agents.json_reader import read_json, shown
from agentest.agents.langgraph.messages import PLACE, RunTold, Sent, StreamReader, read_answer
from agentest.agents.port import Ignored, NoReply, Resources
from agentest.config.agents.langgraph import LangGraphAgent
from agentest.domain.messages import UserText
from agentest.support.errors import CannotSend, HeldUp
from agentest.support.http.client import DirectResponse
from agentest.support.json_path import JsonPath
from agentest.support.templates import Template, Values

_LATE = (
    "`langgraph dev` takes one run at a time unless it was started with --n-jobs-per-worker 20; otherwise "
    "lower `concurrency`"
)
_RUN_ID = re.compile(r"/runs/([^/?#]+)")
_REFUSED = (404, 405, 422)
"""How a server answers that has no such graph, or no such address."""
_NO_ADDRESS = (404, 405)


@dataclass(frozen=True, slots=True)
class _Refused:
    status: int
    problem: str
    seen: Seen


class Graph:
    """One graph of a LangGraph server. Keeps nothing of any conversation."""

    def __init__(self, config: LangGraphAgent, resources: Resources) -> None:
        self.name = config.name
        self.path = JsonPath(config.reply) if config.reply else None
        self.approvals = config.approvals
        self.requests = Requests(config)
        self.ignored = Ignored(config.name, resources)
        self._on_note = resources.on_note
        self._assistant = config.assistant_id
        self._root = config.endpoint.rstrip("/")
        self._sender = HttpSender(config, resources.client, resources.timeout_s, PLACE, _LATE)
        self.server = Server(self._root, config.name, self._sender)
        self._reader = StreamReader(self.ignored.note)
        self._streams: bool | None = None
        """Whether the server streams runs; None: not known yet."""

    async def assistant(self, values: Values) -> str:
        """The graph to run. Raises CannotSend where the server has several."""
        return self._assistant or await self.server.only_graph(values)

    async def run(self, thread: str, body: dict[str, object], values: Values) -> HttpAnswer[RunTold]:
        """What a run tells. Raises NoReply, and CannotSend where there is no such graph."""
        kind = "wait" if self._streams is False else "stream"
        answer, told = await self._send(thread, kind, body, values)
        if isinstance(told, _Refused) and told.status in _NO_ADDRESS and self._streams is None:
            answer, told = await self._send(thread, "wait", body, values)
            if isinstance(told, RunTold):
                self._cannot_stream()
        if isinstance(told, _Refused):
            raise await self._refusal(told, answer.retries, body["assistant_id"], values)
        self._streams = self._streams is not False
        return HttpAnswer(told, answer.latency_ms, answer.retries, answer.first_token_ms)

    async def _send(
        self, thread: str, kind: str, body: dict[str, object], values: Values
    ) -> tuple[HttpAnswer[RunTold | _Refused], RunTold | _Refused]:
        runs = f"{self._root}/threads/{thread}/runs"
        accept = {"accept": "text/event-stream"} if kind == "stream" else {}
        sent = {k: v for k, v in body.items() if accept or not k.startswith("stream_")}
        begun: list[str] = []

        async def read(response: DirectResponse) -> RunTold | _Refused:
            place = response.headers.get("content-location", "")
            begun.extend(_RUN_ID.findall(place))
            return await self._read(response, begun.append)

        async def cancel() -> None:
            if begun:
                # Without `wait`: the run's end is nobody's concern.
                await self._sender.post(f"{runs}/{begun[-1]}/cancel", {}, _nothing, values=values)

        async with cancelled_on_server(cancel):
            answer = await self._sender.post(
                f"{runs}/{kind}", sent, read, _REFUSED, values=values, headers=accept
            )
        return answer, answer.value

    def _cannot_stream(self) -> None:
        if self._streams is None:
            self._on_note(
                f"agent {self.name!r}: its server has no /runs/stream, so only calls that its final state "
                "shows are seen, and none of graphs inside"
            )
        self._streams = False

    async def _refusal(self, told: _Refused, retries: int, graph: object, values: Values) -> Exception:
        graphs = await self.server.graphs(values)
        if not graphs or graph in graphs or _is_uuid(graph):
            return NoReply(await self._sender.advised(told.problem, told.seen), retries)
        return CannotSend(
            f"the LangGraph server has no graph {graph!r}: set assistant_id of agent {self.name!r} to one of "
            f"{', '.join(graphs)} ({told.problem})"
        )

    async def _read(self, response: DirectResponse, on_run: Callable[[str], object]) -> RunTold | _Refused:
        """What the run tells, or what is wrong with the request. `on_run` receives the id of the run."""
        if response.status_code in _REFUSED:
            problem = await self._sender.problem(response)
            return _Refused(response.status_code, problem, seen_of(response))
        return await read_body(response, True, read_answer, lambda events: self._reader.read(events, on_run))


async def _nothing(_: DirectResponse) -> None:
    """What the answer says is of no use."""


def _is_uuid(value: object) -> bool:
    try:
        return bool(UUID(str(value)))
    except ValueError:
        return False


_MOST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """A thread after a run; `error` says why it is not known."""

    values: Any = None
    following: tuple[str, ...] = ()
    """The nodes that are still to be run."""
    error: str | None = None


class Server:
    """A LangGraph server's graphs and threads. Holds nothing of any conversation."""

    def __init__(self, root: str, agent: str, sender: HttpSender) -> None:
        self._root = root
        self._agent = agent
        self._sender = sender
        self._only: str | None = None
        self._asking = anyio.Lock()

    async def only_graph(self, values: Values) -> str:
        """The server's graph, where it has one alone. Raises CannotSend that names them, and NoReply."""
        async with self._asking:
            if self._only is None:
                graphs = await self._graphs(values)
                if len(graphs) != 1:
                    raise CannotSend(self.lacks_assistant(graphs))
                self._only = graphs[0]
        return self._only

    def lacks_assistant(self, graphs: list[str]) -> str:
        found = f"the server has {', '.join(graphs)}" if graphs else "the server tells of none"
        return (
            f"agent {self._agent!r} has no assistant_id: set it in the agent's configuration to one of the "
            f"graphs of {self._root} ({found})"
        )

    async def graphs(self, values: Values) -> list[str]:
        """The names of its graphs; none where it does not tell."""
        try:
            return await self._graphs(values)
        except (NoReply, CannotSend, HeldUp):
            return []

    async def _graphs(self, values: Values) -> list[str]:
        url = f"{self._root}/assistants/search"
        found = (await self._sender.post(url, {"limit": _MOST}, _read_json, values=values)).value
        assistants = found if isinstance(found, list) else []
        names = [a.get("graph_id") for a in assistants if isinstance(a, Mapping)]
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

    async def state(self, thread: str, values: Values) -> ThreadState:
        """A thread's state. Never raises: that it cannot be read is not the agent's failure."""
        url = f"{self._root}/threads/{thread}/state"
        try:
            found = (await self._sender.get(url, _read_json, values=values)).value
        except (NoReply, CannotSend, HeldUp) as error:
            return ThreadState(
                error=f"the thread's state could not be read: {str(error).replace(thread, '<thread>')}"
            )
        if not isinstance(found, Mapping) or "values" not in found:
            return ThreadState(error=f"{self._root} answered no state of a thread, but: {shown(found)}")
        following = found.get("next")
        return ThreadState(
            values=found["values"],
            following=tuple(map(str, following)) if isinstance(following, list) else (),
        )


async def _read_json(response: DirectResponse) -> Any:
    return await read_body(response, False, _json, _no_stream)


def _json(body: bytes) -> Any:
    return read_json(body, PLACE)


async def _no_stream(_: Any) -> Any:
    raise NoReply("the LangGraph server answered with a stream where JSON was expected")


_TOKENS = "messages-tuple"
_MESSAGE = {"message", "messages"}


def thread_of(session_id: str) -> str:
    """The thread of a session: these servers take UUIDs alone."""
    try:
        return str(UUID(session_id))
    except ValueError:
        return str(uuid5(NAMESPACE_URL, f"agentest:{session_id}"))


class Requests:
    """Makes the bodies of runs from what the configuration says."""

    def __init__(self, config: LangGraphAgent) -> None:
        body = dict(config.body)
        self._input = Template(body.pop("input", {}))
        self._resume = Template(body.pop("command", None))
        self._body = Template(body)
        modes = ["updates", _TOKENS] if config.streaming else ["updates"]
        self._streamed = {"stream_mode": modes, "stream_subgraphs": True}
        self._placed = Template([config.body, config.headers]).names
        self._adds_message = not ("messages" in config.body.get("input", {}) or self._input.names & _MESSAGE)

    def state_keys(self, state: Mapping[str, Any]) -> list[str]:
        """The keys of a session's state that go into the graph's; `body` and `headers` place the others."""
        if "state" in self._placed:
            return []
        placed = {name.split(".")[1] for name in self._placed if name.startswith("state.")}
        return [key for key in state if key not in placed]

    def run(
        self, assistant: str, said: UserText, sent: Sent, state: Mapping[str, Any], values: Values
    ) -> dict[str, Any]:
        """The body of a run with a user's message; `state` goes into that of the graph."""
        given = {key: state[key] for key in self.state_keys(state)} | self._input.filled(values)
        if self._adds_message:
            message = {"role": "user", "content": content_of(said), "id": sent.id}
            given = {"messages": [message], **given}
        return {**self._common(assistant, values), "if_not_exists": "create", "input": given}

    def answer(self, assistant: str, resume: Any, values: Values) -> dict[str, Any]:
        """The body of a run that answers interrupts."""
        return {**self._common(assistant, values), "command": {"resume": resume}}

    def own_resume(self, values: Values) -> Any:
        """The answer to interrupts that the configuration writes out (`body.command.resume`); None: none."""
        command = self._resume.filled(values)
        return None if command is None else command["resume"]

    def _common(self, assistant: str, values: Values) -> dict[str, Any]:
        return {**self._body.filled(values), **self._streamed, "assistant_id": assistant}
