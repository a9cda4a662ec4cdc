"""Run a Google ADK agent in this process.

google-adk's own runner executes the agent, with sessions in memory. The agent runs its tools itself, as it
does behind `adk api_server`: calls are observed, and mocks do not apply.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from inspect import isawaitable
from pathlib import Path
from typing import Any

from dotenv import load_dotenv

from agentest.agents.json_reader import excerpt
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.agents.python_agent import call_with_timeout
from agentest.config.fields import AgentObject
from agentest.domain.messages import Message, Session, UserText, last_user_message
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ToolCall
from agentest.plugins.frameworks.adk_settings import AdkModuleAgent
from agentest.plugins.frameworks.client import AskedCall, decide, with_decisions
from agentest.plugins.frameworks.tool_gate import FindGate, ToolGate, any_gate, gate_in_front
from agentest.plugins.protocols.adk_server.client import (
    confirmation_answer,
    confirmations,
    contains_state,
    read_reply,
    read_run,
    state_mismatch_text,
    user_content,
)
from agentest.support.calling import message_of_error
from agentest.support.errors import AgentError, AgentestError, ConfigError, SessionMismatch, errors_as
from agentest.support.function_threads import BlockingTimer
from agentest.support.importing import Imports
from agentest.support.json_text import NotJson, json_text, safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor, environment_secrets

_LOGGERS = ("google_adk", "google_genai")
_LAZY_MODULES = (
    "flows.llm_flows.auto_flow",
    "auth.auth_preprocessor",
    "models.google_llm",
    "apps.compaction",
)
"""Modules that google-adk would import during the first turn. That takes seconds, which would count as the
agent's latency."""
_State = Mapping[str, Any]
_EXPECTED_NAMES = "`root_agent`, `get_agent_async` or `app`"


async def open_agent(name: str, config: AdkModuleAgent, resources: Resources) -> AdkModuleClient:
    """Return the client of a google-adk agent that runs in this process.

    Raises ConfigError if google-adk or the agent cannot be imported.
    """
    load_google_adk(name)
    with errors_as(lambda text: ConfigError(f"agent {name!r}: module: {_known_secrets()(text)}"), ""):
        source = await find_agent(config.module, config.agent_name, resources.root)
    client = AdkModuleClient(name, config, source, resources.timeout_s)
    resources.closing.push_async_callback(client.close, resources.on_note)
    return client


def _known_secrets() -> Redactor:
    return Redactor(environment_secrets(os.environ))


class AdkModuleClient:
    """Runs one agent. google-adk's session services store the state of the conversations."""

    takes_attachments = True

    def __init__(self, name: str, config: AdkModuleAgent, source: AdkAgentSource, timeout_s: float) -> None:
        self.name = name
        self._config = config
        self._found = source
        self._timeout_s = timeout_s
        self._redact = _known_secrets()
        self._runners: dict[tuple[str, str], Any] = {}  # (app name, session id) → runner

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the reply to the user's last message. The first turn creates the session.

        Raises NoReply, which includes the calls made so far, and SessionMismatch.
        """
        try:
            return await self._reply(messages, ctx)
        except NoReply as error:
            raise NoReply(self._redact(str(error)), error.retries, error.observed) from error

    async def _reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        events: list[Any] = []
        user_text, gate = last_user_message(messages), ToolGate.of(ctx)

        def call(steps: BlockingTimer) -> Awaitable[tuple[_State | None, _State]]:
            return steps.of(self._run(user_text, ctx, events, gate))

        try:
            states, latency_ms = await call_with_timeout(
                call, self._timeout_s, "the google-adk agent", self.name
            )
        except AgentError as error:
            calls: tuple[ToolCall, ...] = ()
            with suppress(AgentestError):
                calls = read_run(events, ctx.turn_index, decided=_decisions(gate))[0].observed
            raise NoReply(str(error), 0, calls) from error
        reply = read_reply(events, ctx.turn_index, decided=_decisions(gate))
        reply = replace(reply, latency_ms=latency_ms, approvals=gate.approver.answered)
        return replace(reply, state_before=states[0], state=states[1])

    async def _run(
        self, user_text: UserText, ctx: TurnContext, events: list[Any], gate: ToolGate
    ) -> tuple[_State | None, _State]:
        """Run one turn. Events are appended to `events` as they arrive, so a time-out does not lose them."""
        session = ctx.session or Session()
        app_name = self._config.app_name or session.app_name or self._found.app_name
        runner = self._runner(app_name, ctx.session_id)
        user_id = self._config.user_id or session.user_id or "agentest"
        session_key = {"user_id": user_id, "session_id": ctx.session_id}
        before = (
            await self._find_or_create_session(runner, session_key, session.state)
            if ctx.turn_index == 0
            else None
        )
        given: Mapping[str, Any] | None = user_content(user_text)
        while given is not None:
            message = import_module("google.genai.types").Content.model_validate_json(json.dumps(given))
            begin = len(events)
            async with aclosing(runner.run_async(**session_key, new_message=message)) as stream:
                async for event in stream:
                    events.append(event.model_dump(mode="json", by_alias=True, exclude_none=True))
            given = _confirmations(events[begin:], gate)
        now = await runner.session_service.get_session(app_name=runner.app_name, **session_key)
        return before, _json_state(now.state)

    async def _find_or_create_session(
        self, runner: Any, session_key: Mapping[str, str], expected_state: Mapping[str, Any]
    ) -> dict[str, Any]:
        app = {"app_name": runner.app_name}
        session = await runner.session_service.get_session(**app, **session_key)
        if session is not None and not contains_state(session.state, expected_state):
            actual = f"has the state {excerpt(_json_state(session.state))}"
            raise SessionMismatch(state_mismatch_text(session_key["session_id"], expected_state, actual))
        if session is None:
            session = await runner.session_service.create_session(
                **app, **session_key, state=dict(expected_state)
            )
        return _json_state(session.state)

    def _runner(self, app_name: str, session_id: str) -> Any:
        """Return the session's own runner, so that conversations do not share user and app state."""
        key = (app_name, session_id)
        if key not in self._runners:
            agent, app, arguments = self._found.agent, self._found.app, dict[str, Any]()
            if app is not None:
                is_its_root = app.root_agent is agent
                arguments["app"] = app if is_its_root else app.model_copy(update={"root_agent": agent})
            else:
                is_agent = isinstance(agent, import_module("google.adk.agents.base_agent").BaseAgent)
                arguments["agent" if is_agent else "node"] = agent
            if app is None or app.name != app_name:
                arguments["app_name"] = app_name
            self._runners[key] = import_module("google.adk.runners").InMemoryRunner(**arguments)
        return self._runners[key]

    async def close(self, on_note: Callable[[str], None]) -> None:
        """Close the toolsets and plugins, which all runners share. Errors become notes: it is over."""
        try:
            for runner in [*self._runners.values()][:1]:
                await runner.close()
            if self._found.closes is not None:
                await self._found.closes.aclose()
        except Exception as error:  # noqa: BLE001 - the user's toolsets and plugins may raise anything
            problem = f"closing it raised {type(error).__name__}: {message_of_error(error)}"
            on_note(f"agent {self.name!r}: {_known_secrets()(problem)}")


def _confirmations(events: Sequence[Any], gate: ToolGate) -> Mapping[str, Any] | None:
    """Return the message that answers the confirmations of a run; None if there are none. Raises NoReply."""
    asked = confirmations(events)
    if not asked:
        return None
    calls = [AskedCall(call.get("name"), call.get("args") or {}, call.get("id")) for call in asked.values()]
    return confirmation_answer(asked, decide(gate, calls))


def _decisions(gate: ToolGate) -> dict[str, Approval]:
    return {str(call.call_id): call.approval for call in gate.decided.values() if call.approval}


def _json_state(state: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in state.items():
        try:
            made[str(key)] = json.loads(json_text(value))
        except NotJson:
            made[str(key)] = safe_repr(value)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class AdkAgentSource:
    """A google-adk agent, and the app that it belongs to."""

    agent: Any
    app: Any = None  # the `App` around the agent, with its plugins and caches, if there is one
    app_name: str  # the default app name of sessions: the App's name, else the module's
    closes: Any = None  # the exit stack that the agent's module returned together with the agent


async def find_agent(source: str | AgentObject, agent_name: str | None, root: Path) -> AdkAgentSource:
    """Return the agent of a module (`pkg.my_agent`) or folder (`agents/my_agent`), or the given object.

    Raises ValueError if there is no such agent or if the module cannot be imported.
    """
    if not isinstance(source, AgentObject):
        candidates = await _found_in_module(source, root)
    else:
        value = source.value
        app = value if _is_app(value) else None
        agent = value.root_agent if app else value
        candidates = AdkAgentSource(agent=agent, app=app, app_name=value.name)
    if agent_name is None:
        return candidates
    chosen = candidates.agent.find_agent(agent_name)
    if chosen is None:
        names = ", ".join(f"`{name}`" for name in _agent_names(candidates.agent))
        raise ValueError(f"there is no agent {agent_name!r} in it; there are {names}")
    return replace(candidates, agent=chosen)


def _agent_names(agent: Any) -> Iterator[str]:
    yield agent.name
    for sub_agent in getattr(agent, "sub_agents", None) or ():
        yield from _agent_names(sub_agent)


def _is_app(value: Any) -> bool:
    return isinstance(value, importlib.import_module("google.adk.apps.app").App)


async def _found_in_module(source: str, root: Path) -> AdkAgentSource:
    name, modules = _import_source(source, root)
    for module in modules:
        app = getattr(module, "app", None)
        app = app if _is_app(app) else None
        agent, closes = await _agent_of(module)
        if agent is None and app is not None:
            agent = app.root_agent
        if agent is not None:
            if not any(kind.__module__.startswith("google.adk.") for kind in type(agent).__mro__):
                problem = f"the agent of module {module.__name__!r} is none of google-adk's, but"
                raise ValueError(f"{problem} {agent!r:.100}")
            return AdkAgentSource(agent=agent, app=app, app_name=app.name if app else name, closes=closes)
    raise ValueError(f"module {modules[0].__name__!r} has no {_EXPECTED_NAMES}, and neither has its `agent`")


async def _agent_of(module: Any) -> tuple[Any, Any]:
    agent = getattr(module, "root_agent", None)
    factory = getattr(module, "get_agent_async", None)
    if agent is not None or not callable(factory):
        return agent, None
    try:
        made = factory()
        made = await made if isawaitable(made) else made
    except Exception as error:
        raise ValueError(
            f"get_agent_async raised {type(error).__name__}: {message_of_error(error)}"
        ) from error
    return made if isinstance(made, tuple) else (made, None)


def _import_source(source: str, root: Path) -> tuple[str, list[Any]]:
    folder = Path(root, source)
    load_dotenv(folder / ".env", override=False)  # google-adk's own tools also read the model keys from here
    if not (source.startswith(".") or "/" in source or os.sep in source):
        return _import_module(source, root)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {source!r} in {root}")
    return _import_module(folder.resolve().name, folder.resolve().parent)


def _import_module(name: str, parent: Path) -> tuple[str, list[Any]]:
    try:
        with Imports().importable(parent):
            module = importlib.import_module(name)
            inner = getattr(module, "agent", None)
            submodule = f"{module.__name__}.agent"  # a package may not import its `agent` submodule itself
            if not inner and hasattr(module, "__path__") and importlib.util.find_spec(submodule):
                inner = importlib.import_module(submodule)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's module may raise anything, even SystemExit
        raise ValueError(
            f"importing {name!r} failed: {type(error).__name__}: {message_of_error(error)}"
        ) from error
    package_name = name.removesuffix(".agent").rpartition(".")[2]
    return package_name, [inner, module] if inner is not None else [module]


def load_google_adk(name: str) -> None:
    """Import google-adk. Raises ConfigError if it is not installed.

    Adds null handlers to its loggers. Otherwise, Python would print a long traceback for every agent error,
    although the results already contain it.
    """
    for logger in _LOGGERS:
        logging.getLogger(logger).addHandler(logging.NullHandler())
    try:
        importlib.import_module("google.adk.runners")
        for module in _LAZY_MODULES:
            with suppress(ModuleNotFoundError):
                importlib.import_module(f"google.adk.{module}")
    except ImportError as error:
        raise ConfigError(
            f"agent {name!r} runs in this process by google-adk, which cannot be imported ({error}). "
            "Install it: pip install google-adk. Or start the agent with `adk api_server`, and test that "
            "server (agentest docs adk-agents)"
        ) from None


_WAIT_PREFIX = "adk_request_"
"""Prefix of google-adk's pseudo-calls that wait for a confirmation, a credential or an input."""


async def open_object(
    name: str,
    agent: Any,
    resources: Resources,
    make_context: Callable[..., Any] | None,
    make_agent: Callable[[], Any] | None,  # noqa: ARG001 - an agent serves any number of conversations
) -> MockedAdkAgent:
    """Return the client of an agent or an App. Raises ConfigError if google-adk cannot run it."""
    if make_context is not None:
        raise ConfigError(f"agent {name!r}: context: agents of google-adk take none; leave the key out")
    load_google_adk(name)
    mocks = _plugin_class()("agentest", any_gate, records_transfers=True)
    if _is_app(agent):
        app = agent.model_copy(update={"plugins": [mocks, *agent.plugins]})
    else:
        app = import_module("google.adk.apps.app").App(name=agent.name, root_agent=agent, plugins=[mocks])
    config = AdkModuleAgent(type="adk_module", name=name, module=AgentObject(app))
    return MockedAdkAgent(await open_agent(name, config, resources))


class MockedAdkAgent:
    """Runs an agent whose tools are answered by mocks. Each conversation has its own session."""

    takes_attachments = True

    def __init__(self, client: AdkModuleClient) -> None:
        self.name = client.name
        self._client = client

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the reply to the user's last message. Raises NoReply and SessionMismatch."""
        gate = ToolGate.of(ctx)
        try:
            with gate_in_front(gate):
                reply = await self._client.reply(messages, ctx)
        except NoReply as error:
            _record_other_calls(error.observed, gate)
            left = ((call, call.approval) for call in error.observed if not call.ran)
            waits = tuple(call for call, how in left if how and not gate.leave(call.call_id, how))
            raise gate.ended or NoReply(str(error), error.retries, waits) from error
        _record_other_calls(reply.observed, gate)
        if gate.ended is not None:
            raise gate.ended
        return with_decisions(replace(reply, observed=()), gate)


def _record_other_calls(calls: Sequence[ToolCall], gate: ToolGate) -> None:
    """Record calls that reached no tool. Raises AgentError for a call that waits for input."""
    for call in calls:
        if call.name.startswith(_WAIT_PREFIX):
            raise AgentError(
                f"the agent's run waits for input ({call.name.removeprefix(_WAIT_PREFIX)}). That is not "
                "supported in process: remove it from the agent under test"
            )
        if not gate.saw(call.call_id, call.name, call.args):
            gate.note(call.name, call.args, call.result)


def asking_plugin(find: FindGate) -> Any:
    """Return a plugin through which all tools call a gate. It does not record transfers between agents."""
    return _plugin_class()("agentest.mocks", find)


@cache
def _plugin_class() -> type[Any]:
    base: Any = import_module("google.adk.plugins.base_plugin").BasePlugin
    on_path = import_module("agentest.plugins.protocols.adk_server.on_path.agentest_adk")
    of_the_framework = on_path.FRAMEWORK_TOOLS

    class MockPlugin(base):  # type: ignore[misc]
        """Answers tool calls instead of the tools, and records the results of real tools."""

        def __init__(self, name: str, find: FindGate, *, records_transfers: bool = False) -> None:
            super().__init__(name=name)
            self._find = find
            self._records_transfers = records_transfers

        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> Any:
            if tool.name in of_the_framework or (gate := self._find(tool.name)) is None:
                return None
            if await on_path.is_not_confirmed(tool, tool_args, tool_context):
                return None  # google-adk asks, or refuses
            answer = await gate.begin(tool.name, dict(tool_args), tool_context.function_call_id)
            if answer is None:
                return None
            return answer.value if isinstance(answer.value, dict) else {"result": answer.value}

        async def after_tool_callback(
            self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any
        ) -> None:
            if tool.name in of_the_framework:
                if self._records_transfers and (gate := self._find(tool.name)):
                    gate.note(tool.name, dict(tool_args), result)
            elif gate := self._find(tool.name):
                call_id = tool_context.function_call_id
                gate.end(call_id, result, asks=call_id in tool_context.actions.requested_tool_confirmations)

        async def on_tool_error_callback(
            self, *, tool: Any, tool_context: Any, error: Exception, **_: Any
        ) -> None:
            if gate := self._find(tool.name):
                gate.fail(tool_context.function_call_id, error)

    return MockPlugin
