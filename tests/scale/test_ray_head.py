"""Whether a cluster's head node still answers; without Ray."""

from __future__ import annotations

import asyncio

import anyio
from project import free_port

from agentest.scale.ray.head import watched_head


async def lost_head() -> None:
    told: list[str] = []
    asked, lost = anyio.Event(), anyio.Event()

    def on_lost(problem: str) -> None:
        told.append(problem)
        lost.set()

    def asks(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.close()

    port = free_port()
    head = await asyncio.start_server(asks, "127.0.0.1", port)
    with anyio.fail_after(20):
        async with watched_head(f"127.0.0.1:{port}", on_lost, every_s=0.01, lost_after_s=1):
            await asked.wait()
            assert not told
            head.close()
            await lost.wait()
    assert told == [f"the head node of the Ray cluster (127.0.0.1, port {port}) has not answered for 1 s"]


async def short_run() -> None:
    told: list[str] = []
    async with watched_head(f"ray://127.0.0.1:{free_port()}", told.append):
        pass
    assert not told


def test_a_head_node_that_answers_no_more_is_told_once() -> None:
    anyio.run(lost_head)


def test_who_looks_ends_with_the_run() -> None:
    anyio.run(short_run)
