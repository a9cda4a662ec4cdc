"""An agent of Google's ADK in this process: google-adk's runner, with sessions in memory.

The agent runs its tools itself, as behind ADK's server: calls are observed, mocks do not apply.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from agentest.agents.adk_module.finding import Found, find_agent, load_google_adk
from agentest.agents.adk_server.content import user_content
from agentest.agents.adk_server.events import read_run
from agentest.agents.adk_server.replies import read_reply
from agentest.agents.adk_server.sessions import holds, other_state
from agentest.agents.in_time import answer_in_time
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.agents.reading import shown
from agentest.config.agents.adk import AdkModuleAgent
from agentest.domain.messages import Message, UserText, last_said
from agentest.scenarios.session import Session
from agentest.support.calling import Steps, words_of
from agentest.support.errors import AgentError, AgentestError, ConfigError, SessionMismatch
from agentest.support.json_text import NotJson, json_text, safe_repr
from agentest.support.redact import Redactor, environment_secrets

_DEFAULT_USER = "agentest"


async def open_agent(name: str, config: AdkModuleAgent, resources: Resources) -> AdkModuleClient:
    """The client of a google-adk agent in this process. Raises ConfigError where it cannot be had."""
    load_google_adk(name)
    try:
        found = await find_agent(config.module, config.agent_name, resources.root)
    except ValueError as error:
        raise ConfigError(f"agent {name!r}: module: {_known_secrets()(str(error))}") from None
    client = AdkModuleClient(name, config, found, resources.timeout_s)
    resources.closing.push_async_callback(_close, client, resources.on_note)
    return client


async def _close(client: AdkModuleClient, on_note: Callable[[str], None]) -> None:
    """Close what google-adk has opened. The conversations are over: what goes wrong is a note."""
    try:
        await client.close()
    except Exception as error:  # noqa: BLE001 - toolsets and plugins of the user's may raise anything
        problem = f"closing it raised {type(error).__name__}: {words_of(error)}"
        on_note(f"agent {client.name!r}: {_known_secrets()(problem)}")


def _known_secrets() -> Redactor:
    """Hides what the environment holds now: the agent's own `.env` was not read when the run was prepared."""
    return Redactor(environment_secrets(os.environ))


@dataclass(frozen=True, slots=True)
class _States:
    """The state of a session before the agent's answer, where that was its first, and after it."""

    before: Mapping[str, Any] | None
    after: Mapping[str, Any]


class AdkModuleClient:
    """Runs an agent. What it keeps of conversations is google-adk's: their sessions."""

    takes_attachments = True

    def __init__(self, name: str, config: AdkModuleAgent, found: Found, timeout_s: float) -> None:
        self.name = name
        self._config = config
        self._found = found
        self._timeout_s = timeout_s
        self._redact = _known_secrets()
        self._runners: dict[tuple[str, str], Any] = {}
        """By the app's name and the session's id."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer to the last message of the user; the first turn creates the session.

        Raises NoReply, with the calls that were made before, and SessionMismatch.
        """
        try:
            return await self._reply(messages, ctx)
        except NoReply as error:
            raise NoReply(self._redact(str(error)), error.retries, error.observed) from error

    async def _reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        events: list[Any] = []
        said = last_said(messages)

        def call(steps: Steps) -> Awaitable[_States]:
            return steps.of(self._run(said, ctx, events))

        try:
            timed = await answer_in_time(call, self._timeout_s, "the google-adk agent", self.name)
        except AgentError as error:
            raise NoReply(str(error), 0, _calls_so_far(events, ctx)) from error
        reply = read_reply(events, ctx.turn_index, latency_ms=timed.latency_ms)
        return replace(reply, state=timed.value.after, state_before=timed.value.before)

    async def _run(self, said: UserText, ctx: TurnContext, events: list[Any]) -> _States:
        """Let the agent answer. Its events are kept as they come."""
        session = ctx.session or Session()
        app_name = self._config.app_name or session.app_name or self._found.app_name
        runner = self._runner(app_name, ctx.session_id)
        place = {"user_id": self._user_id(session), "session_id": ctx.session_id}
        before = await self._begun(runner, place, session.state) if ctx.turn_index == 0 else None
        message = import_module("google.genai.types").Content.model_validate_json(
            json.dumps(user_content(said))
        )
        async with aclosing(runner.run_async(**place, new_message=message)) as stream:
            async for event in stream:
                events.append(event.model_dump(mode="json", by_alias=True, exclude_none=True))
        now = await runner.session_service.get_session(app_name=runner.app_name, **place)
        return _States(before, _plain(now.state))

    async def _begun(self, runner: Any, place: Mapping[str, str], asked: Mapping[str, Any]) -> dict[str, Any]:
        """Create the session, or find that it exists already. Returns the state with which it begins.

        Raises SessionMismatch where that is not what the scenario asks for.
        """
        app = {"app_name": runner.app_name}
        session = await runner.session_service.get_session(**app, **place)
        if session is not None and not holds(session.state, asked):
            found = f"has the state {shown(_plain(session.state))}"
            raise SessionMismatch(other_state(place["session_id"], asked, found))
        if session is None:
            session = await runner.session_service.create_session(**app, **place, state=dict(asked))
        return _plain(session.state)

    def _user_id(self, session: Session) -> str:
        return self._config.user_id or session.user_id or _DEFAULT_USER

    def _runner(self, app_name: str, session_id: str) -> Any:
        """The runner of one session: state of user and app is seen by no other conversation."""
        key = (app_name, session_id)
        if key not in self._runners:
            in_memory = import_module("google.adk.runners").InMemoryRunner
            self._runners[key] = in_memory(**self._what_runs(), **self._named(app_name))
        return self._runners[key]

    def _named(self, app_name: str) -> dict[str, str]:
        """The name, where it is not the App's own: not every google-adk takes one beside an App."""
        app = self._found.app
        return {} if app is not None and app.name == app_name else {"app_name": app_name}

    def _what_runs(self) -> dict[str, Any]:
        agent, app = self._found.agent, self._found.app
        if app is not None:
            return {"app": app if app.root_agent is agent else app.model_copy(update={"root_agent": agent})}
        is_agent = isinstance(agent, import_module("google.adk.agents.base_agent").BaseAgent)
        return {"agent": agent} if is_agent else {"node": agent}

    async def close(self) -> None:
        """Close what the runners have opened: toolsets and plugins, which all of them share."""
        for runner in [*self._runners.values()][:1]:
            await runner.close()
        if self._found.closes is not None:
            await self._found.closes.aclose()


def _calls_so_far(events: Sequence[Any], ctx: TurnContext) -> tuple[Any, ...]:
    try:
        return read_run(events, ctx.turn_index).calls
    except AgentestError:
        return ()


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as JSON has it. It may hold anything: what is no JSON is kept as Python shows it."""
    return {str(key): _plain_value(value) for key, value in state.items()}


def _plain_value(value: Any) -> Any:
    try:
        return json.loads(json_text(value))
    except NotJson:
        return safe_repr(value)
