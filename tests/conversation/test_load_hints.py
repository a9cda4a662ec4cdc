"""Errors caused by too many concurrent conversations suggest a solution."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from stand_ins import Asked, Given, standing_in

from agentest import scenario
from agentest.agents.error_hints import load_hint
from agentest.agents.http_sender import ErrorAdvisor, HttpSender
from agentest.agents.port import AgentReply, TurnContext
from agentest.agents.server_process import AgentServers, RecentOutput
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.mocks.resolver import MockResolver
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse, open_client
from agentest.testing import run_scenarios

MEMORY = "keep sessions in memory (`adk api_server --session_service_uri memory://`)"
FEWER = "lower `concurrency`, or raise the server's own limit"


@pytest.mark.parametrize(
    ("status", "body", "cure"),
    [
        (500, {"error": "(sqlite3.OperationalError) database is locked"}, MEMORY),
        (503, "Exceeded concurrency limit.", FEWER),
        (503, {"error": "server busy, please try again. maximum pending requests exceeded"}, FEWER),
        (500, "QueuePool limit of size 5 overflow 10 reached, connection timed out", FEWER),
        (429, "", FEWER),
        (500, {"error": "KeyError: session"}, None),
        (503, "Service Unavailable", None),
    ],
)
def test_an_error_of_a_loaded_server_names_its_cure(status: int, body: Any, cure: str | None) -> None:
    with standing_in(lambda _: Given(body, status)) as url:
        agent = {"endpoint": f"{url}/v1/chat/completions", "retries": 0}
        result = run_scenarios([scenario("s", turns=["Hello."])], agent=agent)
    failure = result.scenarios[0].conversations[0].conversation.failure
    assert failure is not None
    assert (cure is not None and cure in failure.message) is bool(cure)
    assert ("at once" in failure.message or "at a time" in failure.message) is bool(cure)


def test_the_output_of_the_agents_server_counts() -> None:
    output = RecentOutput("the agent's server")

    class Fails:
        name = "agent"

        async def reply(self, messages: Any, ctx: TurnContext) -> AgentReply:
            output.add("sqlalchemy.exc.OperationalError: database is locked")
            raise AgentError("answered 500: Internal Server Error")

    spec, mocks = ConversationSpec("s-1", "s", 1), MockResolver({}, scenario="s", conversation_id="s-1")
    loop = TurnLoop(spec, Fails(), ScriptedUser(["Hello."]), mocks, servers=AgentServers((output,)))
    failure = anyio.run(loop.run).failure
    assert failure is not None
    assert failure.message.startswith("answered 500: Internal Server Error. SQLite lets one conversation")


@pytest.mark.parametrize("others", [0, 2])
def test_a_time_out_says_whether_other_requests_were_under_way(others: int) -> None:
    over = threading.Event()

    def never(_: Asked) -> Given | None:
        over.wait()
        return None

    async def post(url: str) -> None:
        async with open_client() as client:
            config = ChatCompletionsAgent(type="chat_completions", endpoint=url, retries=0)
            advisor = ErrorAdvisor(config, client)
            advisor.under_way = others
            await HttpSender(config, client, 0.1, "", advisor=advisor).post(url, {}, read)

    async def read(_: DirectResponse) -> None:
        raise AssertionError("there is no answer")

    with standing_in(never) as url:
        try:
            with pytest.raises(AgentError) as caught:
                anyio.run(post, f"{url}/v1/chat/completions")
        finally:
            over.set()
    said = "while others were under way. If it answers few at once, lower `concurrency`"
    assert (said in str(caught.value)) is (others > 0)


def test_an_agents_own_texts_do_not_indicate_load() -> None:
    assert load_hint(["the agent's reply is empty", "our concurrency is great", "limited offer"]) == ""
