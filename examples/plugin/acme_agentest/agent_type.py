"""An agent type: assistants that speak Acme's JSON-RPC."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from agentest.agents.http_sender import HttpSender
from agentest.agents.json_reader import read_object
from agentest.agents.port import AgentReply, Resources, TurnContext
from agentest.config.agents.over_http import HttpAgent
from agentest.domain.messages import Message, last_user_message
from agentest.domain.tool_visibility import ToolVisibility
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse


class AcmeAgent(HttpAgent):
    """The keys of `type: acme`, beside those of all agents over HTTP."""

    natural_visibility: ClassVar[ToolVisibility] = ToolVisibility.REPORTED

    type: Literal["acme"]
    department: str = "support"
    call_log: str = "acme-calls.jsonl"
    """The file to which the assistant writes its tool calls."""

    @property
    def call_sources(self) -> tuple[str, ...]:
        return (*super().call_sources, "acme-log")


def open_agent(name: str, config: AcmeAgent, resources: Resources) -> "AcmeClient":
    """Create the client of an assistant."""
    return AcmeClient(config, resources)


class AcmeClient:
    """Sends each message to the assistant, which remembers the conversation."""

    def __init__(self, config: AcmeAgent, resources: Resources) -> None:
        self.name = config.name
        self._config = config
        self._sender = HttpSender(
            config, resources.client, resources.timeout_s, "Acme's assistants are at http://HOST:PORT/rpc"
        )

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        params = {
            "session": ctx.session_id,
            "department": self._config.department,
            "message": last_user_message(messages).text,
        }
        request = {"jsonrpc": "2.0", "id": 1, "method": "say", "params": params}
        answer = await self._sender.post(self._config.endpoint, request, _read)
        return replace(answer.value, latency_ms=answer.latency_ms, retries=answer.retries)


async def _read(response: DirectResponse) -> AgentReply:
    answer: dict[str, Any] = read_object(await response.read(), "")
    if "error" in answer:
        raise AgentError(f"the assistant reports an error: {answer['error']}")
    return AgentReply(text=answer["result"]["reply"])
