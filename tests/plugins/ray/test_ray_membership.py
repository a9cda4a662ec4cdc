"""Whether a run still belongs to its cluster: the head answers, and takes its node for alive; without Ray."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest
from project import free_port

from agentest.plugins.ray.address import TAKEN_FOR_DEAD, watch_membership


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
        async with watch_membership(
            f"127.0.0.1:{port}", lambda: False, on_lost, every_s=0.01, lost_after_s=1
        ):
            await asked.wait()
            assert not told
            head.close()
            await lost.wait()
    assert told == [f"the head node of the Ray cluster (127.0.0.1, port {port}) has not answered for 1 s"]


async def dead_node() -> None:
    looks = iter([False, False, True])
    told: list[str] = []
    lost = anyio.Event()

    def on_lost(problem: str) -> None:
        told.append(problem)
        lost.set()

    head = f"127.0.0.1:{free_port()}"
    with anyio.fail_after(20):
        async with watch_membership(head, lambda: next(looks), on_lost, every_s=0.01, lost_after_s=60):
            await lost.wait()
    assert told == [TAKEN_FOR_DEAD]


async def silent_cluster() -> None:
    answers, asked = threading.Event(), threading.Event()

    def never() -> bool:
        assert threading.current_thread().daemon  # or the process could not exit before the answer
        asked.set()
        return answers.wait()

    told: list[str] = []
    with anyio.fail_after(20):
        async with watch_membership("127.0.0.1:1", never, told.append, every_s=0.01, lost_after_s=60):
            await anyio.to_thread.run_sync(asked.wait, 20)
            assert asked.is_set()
    answers.set()
    assert not told


async def short_run() -> None:
    told: list[str] = []
    async with watch_membership(f"ray://127.0.0.1:{free_port()}", lambda: False, told.append):
        pass
    assert not told


@pytest.mark.slow
def test_a_head_node_that_answers_no_more_is_told_once() -> None:
    anyio.run(lost_head)


def test_who_looks_ends_with_the_run() -> None:
    anyio.run(short_run)


def test_a_node_that_the_cluster_has_declared_dead_is_reported_once() -> None:
    anyio.run(dead_node)


def test_a_cluster_that_does_not_answer_keeps_no_run_from_its_end() -> None:
    anyio.run(silent_cluster)
