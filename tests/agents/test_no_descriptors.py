"""Where this machine can make no connection, conversations are errored: it says nothing of the agent."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from descriptors import no_more_than
from wire import closed_port

from agentest.agents.http_sender import HttpSender
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import TurnContext
from agentest.agents.websocket.connecting import Connector
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.agents.websocket import WebSocketAgent
from agentest.errors import AgentError, CannotSend
from agentest.http.client import Client, open_client
from agentest.messages import UserText
from agentest.support.deadlines import TimeLimit
from agentest.testing import ScriptedAgent

CONTEXT = TurnContext("c-1", "s", 0, lambda *_: None, session_id="x")


async def post(client: Client, url: str, retries: int) -> object:
    config = ChatCompletionsAgent(type="chat_completions", endpoint=url, retries=retries)

    async def read(response: Any) -> None:
        raise AssertionError("there is no answer")

    return await HttpSender(config, client, 5, "").post(url, {}, read)


async def open_socket(client: Client, url: str, retries: int) -> object:
    url = url.replace("http", "ws", 1)
    config = WebSocketAgent(type="websocket", endpoint=url, reply="reply", retries=retries)
    with TimeLimit(5) as limit:
        return await Connector(config, client).connect(TurnValues([UserText("Hi")], CONTEXT), limit)


@pytest.mark.parametrize("way", [post, open_socket])
@pytest.mark.parametrize("retries", [0, 1])
def test_no_file_descriptors_for_a_connection(way: Any, retries: int) -> None:
    async def ask(url: str) -> str:
        async with open_client() as client:
            with pytest.raises(AgentError):  # and everything is imported then
                await way(client, f"http://127.0.0.1:{closed_port()}", 0)
            with no_more_than(0), pytest.raises(CannotSend) as caught:
                await way(client, url, retries)
        return str(caught.value)

    with ScriptedAgent(lambda body: "fine") as server:
        said = anyio.run(ask, server.endpoint)
        assert not server.requests
    assert "this machine has no more to give (Too many open files)" in said
    assert "lower `concurrency`" in said
