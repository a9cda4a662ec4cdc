"""Sending a run to an AG-UI agent, and reading its events as they come."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentest.agents.ag_ui.run import TOLD, Run
from agentest.agents.ag_ui.thread import Wire
from agentest.agents.bypassed_tools import OwnTools, named_tools
from agentest.agents.http_sender import EventStream, HttpAnswer, HttpSender, read_body
from agentest.agents.json_reader import cut_stream, read_event, read_json, shown
from agentest.agents.port import Ignored, Resources, TurnContext
from agentest.config.agents.ag_ui import AgUiAgent
from agentest.config.agents.tools import AgentTool
from agentest.domain.messages import ToolSpec
from agentest.mocks.binding import any_tool
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


_TOO_MANY = re.compile(r"(?i)\bconcurren|\btoo many (?:runs|requests|sessions|executions)")


def own_tools(agent: str) -> OwnTools:
    """What an agent behind AG-UI was seen to run itself."""
    return OwnTools(
        agent,
        handed_over="have the agent hand the call over (take the tool from its own; ag-ui-adk: AGUIToolset; "
        "LangGraph: bind the tools of the state)",
        left_out=" and its name in `client_tools`",
    )


def declared_tools(ctx: TurnContext, config: AgUiAgent) -> tuple[ToolSpec, ...]:
    """The tools to declare: those that `client_tools` names; else the scenario's mocks, but none where mock
    servers answer in the place of the agent's own tools: two of one name are a conflict.

    What the configuration tells of a tool (`tools`) counts more than what its mock does.
    """
    known = {spec.name: spec for spec in ctx.tools}
    told = {tool.name: tool for tool in config.tools or ()}
    by_default = () if config.mock_servers else tuple(known)
    names = by_default if config.client_tools is None else config.client_tools
    return tuple(_told(known.get(name) or any_tool(name), told.get(name)) for name in names)


def _told(spec: ToolSpec, told: AgentTool | None) -> ToolSpec:
    if told is None:
        return spec
    parameters = spec.parameters if told.parameters is None else told.parameters
    return replace(spec, description=told.description or spec.description, parameters=parameters)


def conflict(problem: str, declared: Sequence[ToolSpec]) -> str:
    """What to say, in addition, of a run that was refused at once, with tools declared for it.

    A refusal that names some of them is about these; one that tells of an error alone may be, but for one
    of too many runs at once.
    """
    named = [spec.name for spec in declared if re.search(rf"(?<!\w){re.escape(spec.name)}(?!\w)", problem)]
    if named:
        others = [spec.name for spec in declared if spec.name not in named]
        return (
            f"; {named_tools(named)}: declared to the agent since the scenario mocks it. If the agent has it "
            f"itself: take it from the agent, or set `client_tools: {json.dumps(others)}` and leave the mock "
            "out (the agent's own tool then runs)"
        )
    if _TOO_MANY.search(problem):
        return "; it takes no more at once: lower `concurrency` (--concurrency)"
    if declared and TOLD in problem:
        return (
            f"; declared to it: {named_tools([spec.name for spec in declared])}. If it has one of that name "
            "itself, `client_tools` says which to declare"
        )
    return ""
