"""Requests for runs of an AG-UI agent: declared tools, sending, and reading of events as they arrive."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentest.agents.ag_ui.run import REPORTED_ERROR_PREFIX, AgUiRun
from agentest.agents.ag_ui.thread import Wire
from agentest.agents.bypassed_tools import BypassDetector, quote_tool_names
from agentest.agents.http_sender import EventStream, HttpAnswer, HttpSender, read_body
from agentest.agents.json_reader import read_event, read_json, shown, truncated_stream_error
from agentest.agents.port import IgnoredCounter, Resources, TurnContext
from agentest.config.agents.ag_ui import AgUiAgent
from agentest.config.agents.tools import AgentTool
from agentest.domain.messages import ToolSpec
from agentest.mocks.binding import any_tool
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.http.sse import Event
from agentest.support.templates import Template, Values

AG_UI_PLACE = "is this the address at which the agent takes AG-UI runs, like http://localhost:8000/agent?"
_TOO_MANY_RUNS = re.compile(r"(?i)\bconcurren|\btoo many (?:runs|requests|sessions|executions)")


@dataclass(frozen=True, slots=True)
class AgUiRequest:
    """The request for one run, and the values for placeholders in the agent's headers."""

    payload: Wire
    values: Values


class AgUiSender:
    """Sends requests for runs to one endpoint. Stores nothing about conversations."""

    def __init__(self, config: AgUiAgent, resources: Resources) -> None:
        self.body = Template(config.body)
        self._endpoint = config.endpoint
        self._sender = HttpSender(config, resources.client, resources.timeout_s, AG_UI_PLACE)
        self.ignored = IgnoredCounter(config.name, resources)

    async def send(self, request: AgUiRequest, run: AgUiRun) -> HttpAnswer[None]:
        """Send a request and add its events to `run`. Raises NoReply; `run` then has the earlier events."""

        async def stream(events: EventStream) -> None:
            await self._read(events, run)

        async def read(response: DirectResponse) -> None:
            await read_body(response, True, _refuse_json, stream)

        return await self._sender.post(self._endpoint, request.payload, read, values=request.values)

    async def _read(self, events: EventStream, run: AgUiRun) -> None:
        known = 0
        async for event in events:
            if event.data.strip() in ("", "[DONE]"):
                continue  # some servers keep the connection alive with empty events
            wire = _read_wire(event)
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
        raise truncated_stream_error("RUN_FINISHED or RUN_ERROR")


def _read_wire(event: Event) -> Wire:
    wire = read_event(event.data)
    if not isinstance(wire.get("type"), str):
        wire["type"] = event.name
    return wire


def _refuse_json(body: bytes) -> None:
    """Raise AgentError with the body: AG-UI responses are always streams."""
    data = read_json(body, AG_UI_PLACE)
    error = data.get("error") if isinstance(data, dict) else None
    if error:
        raise AgentError(f"the agent answered with an error: {shown(error)}")
    raise AgentError(
        "the agent's answer is JSON, and AG-UI answers with server-sent events "
        f"({AG_UI_PLACE}): {shown(data)}"
    )


def own_tools(agent: str) -> BypassDetector:
    """Create the record of tools that an agent behind AG-UI runs itself."""
    return BypassDetector(
        agent,
        handed_over="have the agent hand the call over (take the tool from its own; ag-ui-adk: AGUIToolset; "
        "LangGraph: bind the tools of the state)",
        left_out=" and its name in `client_tools`",
    )


def declared_tools(ctx: TurnContext, config: AgUiAgent) -> tuple[ToolSpec, ...]:
    """Return the tools to declare to the agent.

    These are the tools in `client_tools`, by default the scenario's mocks. If mock servers replace the
    agent's tools, the default is empty, because two tools with one name conflict. The configuration's
    description and parameters (`tools`) override those of the mock.
    """
    known = {spec.name: spec for spec in ctx.tools}
    configured = {tool.name: tool for tool in config.tools or ()}
    by_default = () if config.mock_servers else tuple(known)
    names = by_default if config.client_tools is None else config.client_tools
    return tuple(_with_config(known.get(name) or any_tool(name), configured.get(name)) for name in names)


def _with_config(spec: ToolSpec, configured: AgentTool | None) -> ToolSpec:
    if configured is None:
        return spec
    parameters = spec.parameters if configured.parameters is None else configured.parameters
    return replace(spec, description=configured.description or spec.description, parameters=parameters)


def failure_hint(problem: str, declared: Sequence[ToolSpec]) -> str:
    """Return a hint for the error of a run that failed at once, "" for none.

    Args:
        problem: the error's text. If it names declared tools, the hint is about them. If the agent reports
            any other error than too many runs, the hint lists all declared tools.
        declared: the tools that the request declared.
    """
    named = [spec.name for spec in declared if re.search(rf"(?<!\w){re.escape(spec.name)}(?!\w)", problem)]
    if named:
        others = [spec.name for spec in declared if spec.name not in named]
        return (
            f"; {quote_tool_names(named)}: declared to the agent since the scenario mocks it. If the agent "
            f"has it itself: take it from the agent, or set `client_tools: {json.dumps(others)}` and leave "
            "the mock out (the agent's own tool then runs)"
        )
    if _TOO_MANY_RUNS.search(problem):
        return "; it takes no more at once: lower `concurrency` (--concurrency)"
    if declared and REPORTED_ERROR_PREFIX in problem:
        return (
            f"; declared to it: {quote_tool_names([spec.name for spec in declared])}. "
            "If it has one of that name itself, `client_tools` says which to declare"
        )
    return ""
