"""If this machine cannot open connections, conversations are errored and do not blame the agent."""

from __future__ import annotations

import errno
import os
from typing import Any

import anyio
import pytest
from lacking_machine import NOTHING_LEFT, Machine

from agentest.agents.http_sender import HttpSender
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.support.errors import AgentError, CannotSend


async def post(client: Any, retries: int) -> object:
    url = "http://bot/v1/chat/completions"
    config = ChatCompletionsAgent(type="chat_completions", endpoint=url, retries=retries)

    async def read(response: Any) -> None:
        raise AssertionError("there is no answer")

    return await HttpSender(config, client, 5, "").post(url, {}, read)


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("number", NOTHING_LEFT)
def test_nothing_to_make_a_connection_with(retries: int, number: int) -> None:
    machine = Machine(number)
    with pytest.raises(CannotSend) as caught:
        anyio.run(post, machine, retries)
    expected = f"this machine has no more to give ({os.strerror(number)}); lower `concurrency`"
    assert expected in str(caught.value)
    assert machine.asked == retries + 1


def test_an_agent_that_refuses_has_failed() -> None:
    with pytest.raises(AgentError, match="nobody listens there"):
        anyio.run(post, Machine(errno.ECONNREFUSED), 0)
