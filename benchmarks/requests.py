"""Plain requests to the fake agent, and nothing else: `python -m benchmarks.requests --client aiohttp …`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator

from benchmarks.bare import CLIENTS, Post
from benchmarks.workload import plain_question


async def run(options: argparse.Namespace) -> None:
    """All requests, `options.concurrency` of them at once."""
    numbers = iter(range(options.requests))
    async with CLIENTS[options.client]() as post, asyncio.TaskGroup() as tasks:
        for _ in range(options.concurrency):
            tasks.create_task(_one_after_another(post, options.agent_port, numbers))


async def _one_after_another(post: Post, port: int, numbers: Iterator[int]) -> None:
    for number in numbers:
        await post(port, {"messages": [{"role": "user", "content": plain_question(number)}]})


def main() -> None:
    """Entry point of a bare client's process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=CLIENTS, required=True)
    for name in ("agent-port", "requests", "concurrency"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
