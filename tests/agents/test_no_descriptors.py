"""Where this machine can make no connection, conversations are errored: it says nothing of the agent."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from aiohttp import ClientConnectionError, ClientConnectorError

from agentest.agents.http_sender import HttpSender
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import TurnContext
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.domain.messages import UserText
from agentest.plugins.protocols.websocket.client import WebSocketConnector
from agentest.plugins.protocols.websocket.settings import WebSocketAgent
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, CannotSend

CONTEXT = TurnContext("c-1", "s", 0, lambda *_: None, session_id="x")


class Machine:
    """A client of a machine that has something, or nothing, to connect with."""

    def __init__(self, number: int) -> None:
        self.asked = 0
        self._number = number

    async def send_direct(self, *request: Any) -> Any:
        try:
            await self.open_websocket()
        except OSError as error:
            raise ClientConnectionError("no connection") from error

    async def open_websocket(self, *request: Any) -> Any:
        self.asked += 1
        key: Any = SimpleNamespace(host="bot", port=80, is_ssl=False, ssl=True)
        told = OSError(self._number, os.strerror(self._number))
        raise ClientConnectorError(key, told) from told


async def post(client: Any, retries: int) -> object:
    url = "http://bot/v1/chat/completions"
    config = ChatCompletionsAgent(type="chat_completions", endpoint=url, retries=retries)

    async def read(response: Any) -> None:
        raise AssertionError("there is no answer")

    return await HttpSender(config, client, 5, "").post(url, {}, read)


async def open_socket(client: Any, retries: int) -> object:
    config = WebSocketAgent(type="websocket", endpoint="ws://bot/", reply="reply", retries=retries)
    with TimeLimit(5) as limit:
        return await WebSocketConnector(config, client).connect(TurnValues([UserText("Hi")], CONTEXT), limit)


@pytest.mark.parametrize("way", [post, open_socket])
@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
def test_nothing_to_make_a_connection_with(way: Any, retries: int, number: int) -> None:
    machine = Machine(number)
    with pytest.raises(CannotSend) as caught:
        anyio.run(way, machine, retries)
    assert f"this machine has no more to give ({os.strerror(number)}); lower `concurrency`" in str(
        caught.value
    )
    assert machine.asked == retries + 1


@pytest.mark.parametrize("way", [post, open_socket])
def test_an_agent_that_refuses_has_failed(way: Any) -> None:
    with pytest.raises(AgentError, match="nobody listens there"):
        anyio.run(way, Machine(errno.ECONNREFUSED), 0)
