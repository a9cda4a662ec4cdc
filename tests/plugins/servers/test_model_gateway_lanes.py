"""Copies of an agent's server: each has one conversation at a time, and its own address of the gateway."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from aiohttp import web
from project import Project
from scripted_provider import FORMS, Provider, Refused, served
from test_model_gateway import Gateway, Talk, anyio_backend, gateway, made
from test_model_gateway_run import SUPPORT, configure

from agentest.config.file import load
from agentest.plugins.servers.port import ModelAccess
from agentest.support.errors import ConfigError

__all__ = ["anyio_backend"]

COPIES = 3
SERVER = {"command": "serve --port {port}", "ready": "tcp://h:{port}", "copies": 2}
ALIKE = """
def found(i):
    return lambda q: {"mocked": i}

for i in range(7):
    scenario(
        f"guest {i}",
        turns=["both one", "recall"],
        tools={"find": found(f"table {i}")},
        trajectory={"expected": ["find", "send", "find"]},
        expect={"says": f"I recall {{'mocked': 'table {i}'}} {{'real': 'one'}} {{'mocked': 'table {i}'}}"},
    )
"""


@dataclass
class Gathering(Provider):
    """A provider that answers its first requests together, once as many have come as there are copies."""

    gathered: int = 0
    complete: anyio.Event = field(default_factory=anyio.Event)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.gathered += 1
        if self.gathered == COPIES:
            self.complete.set()
        with anyio.fail_after(60):
            await self.complete.wait()
        return await super()._handle(request)


@contextmanager
def upstream_of(provider: Provider) -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(provider.app())) as origin,
    ):
        yield origin


@pytest.mark.parametrize(
    "named",
    [{"server": {"copies": COPIES}}, {"body": {"gateway": "{{model_url}}"}}],
    ids=["copies", "address"],
)
@pytest.mark.parametrize("form", FORMS)
def test_conversations_that_say_the_same_run_at_once_if_addresses_tell_them_apart(
    project: Project, form: str, named: dict[str, Any]
) -> None:
    provider = Gathering()
    project.scenario(ALIKE)
    with upstream_of(provider) as upstream:
        configure(project, upstream, form, unmocked_tools="passthrough", **named)
        run = project.run()

    assert run.returncode == 0, run.stdout + run.stderr
    assert provider.refused == []
    assert "one after the other" not in run.stderr


def test_repeated_conversations_run_at_once_in_copies(project: Project) -> None:
    provider = Gathering()
    project.scenario("""
scenario("guest", goal="look one", max_turns=1, tools={"find": 1}, trajectory={"expected": ["find"]})
""")
    with upstream_of(provider) as upstream:
        configure(project, upstream, "chat", server={"copies": COPIES})
        run = project.run("--repeat", f"{COPIES}..{COPIES}", "--offline")

    assert run.returncode == 0, run.stdout + run.stderr
    assert provider.gathered == 2 * COPIES


def changed_agent(project: Project, say: str) -> None:
    """Make the agent do something different if the user writes "odd"."""
    agent = project.write(
        "odd_agent.py",
        "import asyncio, os, runpy, sys\n"
        f"sys.path.insert(0, {str(SUPPORT)!r})\n"
        "from scripted_provider import Conversation\n"
        "say = Conversation.say\n"
        f"Conversation.say = lambda self, text: {say} if text == 'odd' else say(self, text)\n"
        "runpy.run_module('gateway_agent', run_name='__main__')\n",
    )
    path = project.root / "agentest.config.yaml"
    path.write_text(path.read_text().replace(str(SUPPORT / "gateway_agent.py"), str(agent)))


@pytest.mark.parametrize(
    ("say", "printed"),
    [
        ("os._exit(3)", "copy 1 of the agent's server exited with status 3"),
        ("asyncio.Event().wait()", ""),
    ],
    ids=["dies", "hangs"],
)
def test_a_copy_that_fails_gets_no_further_conversation(project: Project, say: str, printed: str) -> None:
    project.scenario("""
for i in range(7):
    scenario(f"guest {i}", turns=["look one" if i else "odd"], tools={"find": 1})
""")
    with upstream_of(Provider()) as upstream:
        configure(project, upstream, "chat", server={"copies": 2}, request_timeout_ms=8000)
        changed_agent(project, say)
        run = project.run()

    assert run.returncode == 1, run.stdout + run.stderr
    results = project.results["scenarios"]
    assert [each["status"] for each in results] == ["failed", *["passed"] * 6]
    assert printed in run.stderr


def test_copies_that_do_not_start_are_one_error(project: Project) -> None:
    project.scenario("scenario('guest', turns=['look one'], tools={'find': 1})")
    command = [sys.executable, "-c", "raise SystemExit('no')", "{port}"]
    with upstream_of(Provider()) as upstream:
        configure(project, upstream, "chat", server={"copies": 2, "command": command})
        run = project.run()

    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert " ".join(run.stderr.split()).count("exited with status 1 before it was ready") == 1


@pytest.mark.anyio
async def test_a_copy_has_one_conversation_at_a_time() -> None:
    at_work: set[int | None] = set()
    all_lanes: set[int | None] = set()
    both = anyio.Event()

    async def hold(gate: Gateway) -> None:
        async with gate.talk("chat", "same") as talk:
            assert talk.known.lane not in at_work
            at_work.add(talk.known.lane)
            all_lanes.add(talk.known.lane)
            if len(at_work) == 2:
                both.set()
            await both.wait()
            assert await talk.say("look one") == "Done."
            assert made(talk.calls) == [("find", "one", True)]
            at_work.remove(talk.known.lane)

    async with gateway(lanes=2) as gate, anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(hold, gate)
    assert all_lanes == {1, 2}


@pytest.mark.anyio
async def test_a_copy_that_may_still_be_at_work_rests() -> None:
    lanes = []
    async with gateway(lanes=2) as gate:
        async with gate.talk("chat", "same") as talk:
            assert talk.known.lane == 1
            gate.traffic.rest(talk.known.who.key, 3600)
        for _ in range(3):
            async with gate.talk("chat", "same") as talk:
                lanes.append(talk.known.lane)

    assert lanes == [2, 2, 2]


@pytest.mark.anyio
async def test_without_copies_the_next_conversation_that_says_the_same_waits_for_an_agent_at_work() -> None:
    async with gateway() as gate, anyio.create_task_group() as tasks:
        async with gate.talk("chat", "same") as first:
            with pytest.raises(TimeoutError), first.known.said("look one"):
                raise TimeoutError
            gate.traffic.rest(first.known.who.key, 3600)

        @asynccontextmanager
        async def waits() -> AsyncIterator[None]:
            tasks.cancel_scope.cancel()
            yield

        access = ModelAccess(mocked=frozenset(), opening="same", timeout_s=1)
        async with gate.traffic.under_way(first.known.who, first.serving, access, waits):
            pytest.fail("it did not wait")
    async with gateway() as gate:
        async with gate.talk("chat", "same") as first:
            with pytest.raises(TimeoutError), first.known.said("look one"):
                raise TimeoutError
            gate.traffic.rest(first.known.who.key, 0)
        async with gate.talk("chat", "same") as second:
            assert await second.say("look one") == "Done."


@pytest.mark.anyio
@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_conversation_that_is_cancelled_before_it_begins_keeps_no_place(lanes: int) -> None:
    begun, scope = anyio.Event(), anyio.CancelScope()

    @asynccontextmanager
    async def cancelled() -> AsyncIterator[None]:
        begun.set()
        yield
        scope.cancel()
        await anyio.lowlevel.checkpoint()

    async def begin(gate: Gateway, like: Talk) -> None:
        access = ModelAccess(mocked=frozenset(), opening="same", timeout_s=1)
        with scope:
            async with gate.traffic.under_way(like.known.who, like.serving, access, cancelled):
                pytest.fail("it was not cancelled")

    async def fill(gate: Gateway, stack: AsyncExitStack) -> Talk:
        for _ in range(lanes):
            talk = await stack.enter_async_context(gate.talk("chat", "same"))
        return talk

    async with gateway(lanes=lanes) as gate:
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            tasks.start_soon(begin, gate, await fill(gate, stack))
            await begun.wait()
        assert scope.cancelled_caught
        with anyio.fail_after(60):
            async with AsyncExitStack() as stack:
                await fill(gate, stack)


@pytest.mark.anyio
async def test_whatever_a_copy_sends_is_of_its_conversation() -> None:
    async with gateway(lanes=2) as gate, gate.talk("chat", "a") as first, gate.talk("chat", "b") as second:
        first.known.texts.append("look one")
        second.known.texts.append("look two")
        assert await first.agent.say("look two") == "Done."
        assert await second.agent.say("look one, which the user never said") == "Done."

    assert made(first.resolver.calls) == [("find", "two", True)]
    assert [name for name, *_ in made(second.resolver.calls)] == ["find"]


@pytest.mark.anyio
async def test_a_late_request_of_a_copy_is_not_taken_for_one_of_its_next_conversation() -> None:
    async with gateway(lanes=2) as gate:
        async with gate.talk("chat", "a") as first:
            await first.say("look one hour later")
        async with gate.talk("chat", "b") as other, gate.talk("chat", "c") as next_one:
            assert (other.known.lane, next_one.known.lane) == (2, 1)
            next_one.known.texts.append("look two")
            with pytest.raises(Refused, match="conversation a of agent 'shop', which has ended"):
                await first.agent.say("look one again")

    assert next_one.resolver.calls == ()


@pytest.mark.anyio
async def test_a_copy_without_a_conversation_is_refused_mocked_tools() -> None:
    async with gateway(lanes=2) as gate, gate.talk("chat", "a") as first:
        first.agent.base = f"{gate.origin}/lane/2/openai"
        with pytest.raises(Refused, match="no conversation is under way with copy 2 of the agent"):
            await first.agent.say("look one")

    assert gate.provider.histories == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one port": (
        {"server": {"command": "x", "ready": "tcp://h:1", "copies": 2}, "endpoint": "http://h:1/v1"},
        "`server.copies` starts the agent 2 times, and all of them would have one port: write {port}",
    ),
    "reuse": (
        {"server": {**SERVER, "reuse": True}},
        "`server.copies` starts 2: leave `reuse` out",
    ),
    "per worker": (
        {"server": {**SERVER, "per_worker": True}},
        "`server.copies` and `server.per_worker` exclude each other",
    ),
    "no gateway": ({"model_gateway": False}, "`server.copies` needs `model_gateway`"),
    "none": ({"server": {**SERVER, "copies": 0}}, "copies"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_copies_are_explained(tmp_path: Path, name: str) -> None:
    keys, problem = WRONG[name]
    agent = {"endpoint": "http://h:{port}/v1", "model_gateway": True, "server": SERVER, **keys}
    path = tmp_path / "agentest.config.yaml"
    path.write_text(f"agent: {json.dumps(agent)}")
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load(path, {})


def test_servers_of_all_agents_have_no_copies(tmp_path: Path) -> None:
    path = tmp_path / "agentest.config.yaml"
    servers = [{"command": "x", "ready": "tcp://h:1", "copies": 2}]
    path.write_text(f"agent: {{endpoint: 'http://h:1/'}}\nservers: {json.dumps(servers)}")
    with pytest.raises(ConfigError, match="`copies` is for an agent's own server"):
        load(path, {})
