"""The same calls in the same order without Agentest: `python -m benchmarks.bare --client sockets …`.

Each call is encoded and decoded as JSON, and nothing else is done: what is left is the client's own cost.
As in Agentest, a conversation keeps its place while it goes on; judging a turn begins when the turn closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from benchmarks.payloads import GOAL_JUDGE, Payload, agent_payload, judge_payload, user_payload
from benchmarks.workload import LABEL_JUDGES, TURN_JUDGES, endpoint, plain_question

Post = Callable[[int, Payload], Awaitable[Any]]
"""Send a payload to a port of this machine; returns the decoded answer."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    "content-length: {}\r\n\r\n"
)


@asynccontextmanager
async def sockets() -> AsyncIterator[Post]:
    """asyncio streams, with idle connections kept."""
    idle: dict[int, list[Connection]] = {}

    async def post(port: int, payload: Payload) -> Any:
        kept = idle.setdefault(port, [])
        reader, writer = kept.pop() if kept else await asyncio.open_connection("127.0.0.1", port)
        content = json.dumps(payload).encode()
        writer.write(_HEAD.format(len(content)).encode() + content)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        answer = json.loads(await reader.readexactly(length))
        kept.append((reader, writer))
        return answer

    yield post
    for _, writer in (connection for kept in idle.values() for connection in kept):
        writer.close()


@asynccontextmanager
async def with_aiohttp() -> AsyncIterator[Post]:
    """aiohttp without a limit on connections."""
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(port: int, payload: Payload) -> Any:
            async with session.post(endpoint(port), json=payload) as response:
                return await response.json()

        yield post


@asynccontextmanager
async def with_httpx() -> AsyncIterator[Post]:
    """httpx without a limit on connections."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits) as client:

        async def post(port: int, payload: Payload) -> Any:
            return (await client.post(endpoint(port), json=payload)).json()

        yield post


CLIENTS: dict[str, Callable[[], AbstractAsyncContextManager[Post]]] = {
    "sockets": sockets,
    "aiohttp": with_aiohttp,
    "httpx": with_httpx,
}


async def run(options: argparse.Namespace) -> None:
    """All conversations, at most `options.concurrency` of them at once."""
    places = asyncio.Semaphore(options.concurrency or options.conversations)
    async with CLIENTS[options.client]() as post, asyncio.TaskGroup() as tasks:
        for _ in range(options.conversations):
            tasks.create_task(_conversation(post, places, options))


async def _conversation(post: Post, places: asyncio.Semaphore, options: argparse.Namespace) -> None:
    async with asyncio.TaskGroup() as judging:
        async with places:
            for turn in range(options.turns):
                if not options.scripted:
                    await post(options.model_port, user_payload(turn))
                await post(options.agent_port, agent_payload(turn, after_tool=False))
                await post(options.agent_port, agent_payload(turn, after_tool=True))
                for metric in () if options.scripted else (*TURN_JUDGES, *LABEL_JUDGES):
                    judging.create_task(_judge(post, options.model_port, turn, metric))
        if not options.scripted:
            judging.create_task(_judge(post, options.model_port, options.turns - 1, GOAL_JUDGE))


async def run_requests(options: argparse.Namespace) -> None:
    """Plain requests to the agent, `options.concurrency` of them at once."""
    numbers = iter(range(options.requests))
    async with CLIENTS[options.client]() as post, asyncio.TaskGroup() as tasks:
        for _ in range(options.concurrency):
            tasks.create_task(_one_after_another(post, options.agent_port, numbers))


async def _one_after_another(post: Post, port: int, numbers: Iterator[int]) -> None:
    for number in numbers:
        await post(port, {"messages": [{"role": "user", "content": plain_question(number)}]})


async def _judge(post: Post, port: int, turn: int, metric: str) -> None:
    await post(port, judge_payload(turn, metric))


def main() -> None:
    """Entry point of a bare client's process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--agent-port", type=int, required=True)
    for name in ("model-port", "conversations", "turns"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--requests", type=int, default=0, help="this many plain requests, no conversations")
    parser.add_argument("--concurrency", type=int, default=0, help="0: all at once")
    parser.add_argument("--scripted", action="store_true", help="call the agent only, and no model")
    options = parser.parse_args()
    asyncio.run(run_requests(options) if options.requests else run(options))


if __name__ == "__main__":
    main()
