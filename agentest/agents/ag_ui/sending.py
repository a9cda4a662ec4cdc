"""Sending a run to an AG-UI agent, and reading its events as they come."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.agents.ag_ui.run import Run
from agentest.agents.ag_ui.wire import Wire
from agentest.agents.answers import EventStream, read_body
from agentest.agents.http_sender import HttpAnswer, HttpSender
from agentest.agents.ignored import Ignored
from agentest.agents.port import Resources
from agentest.agents.reading import cut_stream, read_event, read_json, shown
from agentest.config.agents.ag_ui import AgUiAgent
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.http.sse import Event
from agentest.support.templates import Template, Values

AG_UI_PLACE = "is this the address at which the agent takes AG-UI runs, like http://localhost:8000/agent?"


@dataclass(frozen=True, slots=True)
class Request:
    """One run to be sent, and what stands for placeholders in the agent's headers."""

    payload: Wire
    values: Values


class Sending:
    """Sends runs. Holds nothing of any conversation."""

    def __init__(self, config: AgUiAgent, resources: Resources) -> None:
        self.body = Template(config.body)
        self._endpoint = config.endpoint
        self._sender = HttpSender(config, resources.client, resources.timeout_s, AG_UI_PLACE)
        self.ignored = Ignored(config.name, resources)

    async def send(self, request: Request, run: Run) -> HttpAnswer[None]:
        """Have a run told what its events say. Raises NoReply; what came before an error is in the run."""

        async def stream(events: EventStream) -> None:
            await self._read(events, run)

        async def read(response: DirectResponse) -> None:
            await read_body(response, True, _no_stream, stream)

        return await self._sender.post(self._endpoint, request.payload, read, values=request.values)

    async def _read(self, events: EventStream, run: Run) -> None:
        known = 0
        async for event in events:
            if event.data.strip() in ("", "[DONE]"):
                continue  # some servers keep the connection alive with empty events
            wire = _typed(event)
            if run.take(wire):
                known += 1
            else:
                self.ignored.note("event", wire["type"])
            if run.spoke:
                events.note_first_token()
            if run.finished:
                return
        if not known:
            raise AgentError(f"the agent's stream ended without any event of AG-UI ({AG_UI_PLACE})")
        raise cut_stream("RUN_FINISHED or RUN_ERROR")


def _typed(event: Event) -> Wire:
    wire = read_event(event.data)
    if not isinstance(wire.get("type"), str):
        wire["type"] = event.name
    return wire


def _no_stream(body: bytes) -> None:
    """An answer that is no stream is none of AG-UI. Raises AgentError that shows it."""
    data = read_json(body, AG_UI_PLACE)
    error = data.get("error") if isinstance(data, dict) else None
    if error:
        raise AgentError(f"the agent answered with an error: {shown(error)}")
    raise AgentError(
        "the agent's answer is JSON, and AG-UI answers with server-sent events "
        f"({AG_UI_PLACE}): {shown(data)}"
    )
