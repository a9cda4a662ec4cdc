"""What a LangGraph server says of its graphs and threads, beside the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from agentest.agents.answers import read_body
from agentest.agents.http_sender import HttpSender
from agentest.agents.langgraph.runs import PLACE
from agentest.agents.port import NoReply
from agentest.agents.reading import read_json, shown
from agentest.support.errors import CannotSend, HeldUp
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Values

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
