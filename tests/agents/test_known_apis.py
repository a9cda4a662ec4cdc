"""The configurations in the documentation reach stand-ins for servers with a public API."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import hurrying
import pytest
import yaml
from anyio.from_thread import start_blocking_portal
from http_agents import Routes, held, opened, replies, served
from known_apis import accepted_jobs, chatkit, direct_line, gradio, graphql, realtime, threads_and_runs

from agentest import scenario
from agentest.config.file import load_values
from agentest.domain.transcript import Blame, Conversation
from agentest.testing import run_scenarios

PAGE = (Path(__file__).parent.parent.parent / "docs" / "agents" / "known-apis.md").read_text(encoding="utf-8")
TURNS = ("Hi", 'a "b"\n&ü', "Thanks")
AT_ONCE = 20


def documented(heading: str, url: str) -> dict[str, Any]:
    """The agent below a heading of the page, at another address and without long waits."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    block = re.search(r"```yaml\n(.*?)```", section, re.S)
    assert block
    text = re.sub(r"(http|ws)s?://[\w.:]+", lambda match: url.replace("http", match[1]), block[1])
    agent = yaml.safe_load(re.sub(r"\$\{\w+:-(\w+)\}", r"\1", text))["agent"]
    for step in (agent.get("poll"), *agent.get("then", ())):
        if isinstance(step, dict) and ("until" in step or step is agent.get("poll")):
            step["every_ms"] = 1
            step |= {"quiet_ms": 1000} if "quiet_ms" in step else {}
    return dict(agent)


@contextmanager
def at(routes: Routes) -> Iterator[str]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(served(routes)) as url:
        yield url


def said(text: str) -> str:
    return text


def in_two(text: str) -> str:
    return f"{text}. Anything else?"


APIS: dict[str, tuple[Callable[[], Routes], Callable[[str], str]]] = {
    "ChatKit": (chatkit, said),
    "Gradio": (gradio, said),
    "Direct Line": (direct_line, in_two),
    "Jobs with 202 and Location": (accepted_jobs, said),
    "Threads and runs": (threads_and_runs, said),
    "OpenAI Realtime": (realtime, said),
    "GraphQL subscriptions": (graphql, said),
}


@pytest.mark.parametrize("heading", APIS)
def test_conversations_at_once_stay_apart(heading: str) -> None:
    """Many conversations of three turns: each reply is that to its own message in its own conversation."""
    routes, form = APIS[heading]

    async def talk() -> list[Conversation]:
        done: dict[int, Conversation] = {}
        async with served(routes()) as url:
            agent = load_values({"agent": documented(heading, url)}, "test", Path()).config.agent
            async with opened(agent, timeout_s=60) as client, anyio.create_task_group() as tasks:

                async def one(number: int) -> None:
                    lines = [f"{turn} {number}" for turn in TURNS]
                    done[number] = await held(client, *lines, number=number)

                for number in range(AT_ONCE):
                    tasks.start_soon(one, number)
        return [done[number] for number in range(AT_ONCE)]

    for number, conversation in enumerate(hurrying.run(talk)):
        expected = [form(f"{index}. {turn} {number}") for index, turn in enumerate(TURNS, 1)]
        assert replies(conversation) == expected


@pytest.mark.parametrize(
    ("heading", "problem"),
    [
        ("ChatKit", "no model"),
        ("Gradio", "the agent reports an error (event `error`)"),
        ("Threads and runs", "no model"),
        ("OpenAI Realtime", "no model"),
        ("GraphQL subscriptions", "no model"),
    ],
)
def test_an_error_of_the_server_is_the_agents_failure(heading: str, problem: str) -> None:
    async def talk() -> Conversation:
        async with served(APIS[heading][0]()) as url:
            agent = load_values({"agent": documented(heading, url)}, "test", Path()).config.agent
            async with opened(agent, timeout_s=60) as client:
                return await held(client, "Hi", "fail")

    failure = hurrying.run(talk).failure
    assert failure.blame is Blame.AGENT
    assert problem in failure.message


def test_a_ban_sees_the_calls_that_chatkit_reports() -> None:
    """The server may run other tools that nothing reports, so a ban is failed or errored, never passed."""
    with at(chatkit()) as url:
        result = run_scenarios(
            [
                scenario("kept", turns=["Hi"], trajectory={"forbidden": ["pay"]}),
                scenario("broken", turns=["Hi", "pay"], trajectory={"forbidden": ["pay"]}),
            ],
            agent=documented("ChatKit", url),
        )
    assert {each.name: each.verdict.status for each in result.scenarios} == {
        "kept": "errored",
        "broken": "failed",
    }


def test_mocks_answer_the_functions_of_realtime() -> None:
    """Two calls at once are answered before one response is asked for, and a ban on the function fails."""
    paid: list[int] = []

    def pay(amount: int) -> dict[str, int]:
        paid.append(amount)
        return {"paid": amount}

    with at(realtime()) as url:
        result = run_scenarios(
            [
                scenario(
                    "paid",
                    turns=["pay", "Thanks"],
                    tools={"pay": pay},
                    trajectory={"expected": ["pay", "pay"]},
                ),
                scenario("banned", turns=["pay"], tools={"pay": pay}, trajectory={"forbidden": ["pay"]}),
            ],
            agent=documented("OpenAI Realtime", url),
        )
    assert {each.name: each.verdict.status for each in result.scenarios} == {
        "paid": "passed",
        "banned": "failed",
    }
    turns = result.scenarios[0].conversations[0].conversation.turns
    assert [turn.agent_message for turn in turns] == ["Paid: [1, 2]", "2. Thanks"]
    assert sorted(paid) == [1, 1, 2, 2]
