"""Running a graph behind a LangGraph server.

Runs are streamed even where nobody asked for tokens: the final state alone lacks what a graph has removed
from it, and everything that graphs inside it, like the agents of a supervisor, keep to themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from agentest.agents.answers import read_body
from agentest.agents.giving_up import cancelled_on_server
from agentest.agents.http_sender import HttpAnswer, HttpSender, seen_of
from agentest.agents.ignored import Ignored
from agentest.agents.langgraph.requests import Requests
from agentest.agents.langgraph.runs import PLACE, RunTold, StreamReader, read_answer
from agentest.agents.langgraph.threads import Server
from agentest.agents.port import NoReply, Resources
from agentest.agents.probing import Seen
from agentest.config.agents.langgraph import LangGraphAgent
from agentest.support.errors import CannotSend
from agentest.support.http.client import DirectResponse
from agentest.support.json_path import JsonPath
from agentest.support.templates import Values

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
