"""Conversations with stand-ins for servers with a public API, by the documented configurations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import hurrying
import yaml
from anyio.from_thread import start_blocking_portal
from http_agents import Routes, held, opened, replies, served

from agentest.config.file import load_values
from agentest.domain.transcript import Blame, Conversation

PAGE = (Path(__file__).parents[2] / "docs" / "agents" / "known-apis.md").read_text(encoding="utf-8")
TURNS = ("Hi", 'a "b"\n&ü', "Thanks")
AT_ONCE = 20


def documented(heading: str, url: str) -> dict[str, Any]:
    """The agent documented under a heading, at another address and without long waits."""
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


def check_conversations_at_once(heading: str, routes: Routes, form: Callable[[str], str]) -> None:
    """Many conversations of three turns: each reply is that to its own message in its own conversation."""

    async def talk() -> list[Conversation]:
        done: dict[int, Conversation] = {}
        async with served(routes) as url:
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


def check_failure(heading: str, routes: Routes, problem: str) -> None:
    """An error of the server is the agent's failure."""

    async def talk() -> Conversation:
        async with served(routes) as url:
            agent = load_values({"agent": documented(heading, url)}, "test", Path()).config.agent
            async with opened(agent, timeout_s=60) as client:
                return await held(client, "Hi", "fail")

    failure = hurrying.run(talk).failure
    assert failure.blame is Blame.AGENT
    assert problem in failure.message
