"""Run google-adk agent objects like `adk_module` does, with a plugin that lets mocks answer their tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from agentest.agents.adk_module import AdkModuleClient, load_google_adk, open_agent
from agentest.agents.in_process.framework_interface import FindGate
from agentest.agents.in_process.tool_gate import ToolGate, current_gate, gate_in_front
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.adk import AdkModuleAgent
from agentest.config.fields import GivenObject
from agentest.domain.messages import Message
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError

_WAIT_PREFIX = "adk_request_"
"""Prefix of google-adk's pseudo-calls that wait for a confirmation, a credential or an input."""


async def open_object(name: str, agent: Any, resources: Resources) -> MockedAdkAgent:
    """Return the client of an agent or an App. Raises ConfigError if google-adk cannot run it."""
    load_google_adk(name)
    config = AdkModuleAgent(type="adk_module", name=name, module=GivenObject(_with_mocks(agent)))
    return MockedAdkAgent(await open_agent(name, config, resources))


def _with_mocks(agent: Any) -> Any:
    """Return an App with our plugin before all others. The agent itself is unchanged."""
    app = import_module("google.adk.apps.app").App
    mocks = _plugin_class()("agentest", lambda _: current_gate(), records_transfers=True)
    if isinstance(agent, app):
        return agent.model_copy(update={"plugins": [mocks, *agent.plugins]})
    return app(name=agent.name, root_agent=agent, plugins=[mocks])


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
            raise gate.ended or NoReply(str(error), error.retries) from error
        _record_other_calls(reply.observed, gate)
        if gate.ended is not None:
            raise gate.ended
        return replace(reply, observed=())


def _record_other_calls(calls: Sequence[ToolCall], gate: ToolGate) -> None:
    """Record calls that reached no tool. Raises AgentError for a call that waits for input."""
    for call in calls:
        if call.name.startswith(_WAIT_PREFIX):
            raise AgentError(
                f"the agent's run waits for somebody ({call.name.removeprefix(_WAIT_PREFIX)}). That is not "
                "supported in process: leave what asks for it out of the agent under test"
            )
        if not gate.saw(None, call.name, call.args):
            gate.note(call.name, call.args, call.result)


def asking_plugin(find: FindGate) -> Any:
    """Return a plugin through which all tools call a gate. It does not record transfers between agents."""
    return _plugin_class()("agentest.mocks", find)


@cache
def _plugin_class() -> type[Any]:
    base: Any = import_module("google.adk.plugins.base_plugin").BasePlugin
    of_the_framework = import_module("agentest.agents.adk_server.on_path.agentest_adk").FRAMEWORK_TOOLS

    class MockPlugin(base):  # type: ignore[misc]
        """Answers tool calls instead of the tools, and records the results of real tools."""

        def __init__(self, name: str, find: FindGate, *, records_transfers: bool = False) -> None:
            super().__init__(name=name)
            self._find = find
            self._records_transfers = records_transfers

        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> Any:
            if tool.name in of_the_framework or (gate := self._find(tool.name)) is None:
                return None
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
                gate.end(tool_context.function_call_id, result)

        async def on_tool_error_callback(
            self, *, tool: Any, tool_context: Any, error: Exception, **_: Any
        ) -> None:
            if gate := self._find(tool.name):
                gate.fail(tool_context.function_call_id, error)

    return MockPlugin
