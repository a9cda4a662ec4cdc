"""Agents of which a part calls its model at an address in its code, past the gateway."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.from_thread
import anyio.to_thread
import httpx
import pytest
from aiohttp import web
from project import Project, free_port, wait_until
from scripted_provider import Provider, served
from test_model_gateway_run import SUPPORT, configure

from agentest.agents.call_source_addresses import model_variables

pytestmark = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="needs a list of connections, as of Linux"
)
SCENARIOS = """
scenario("mocked", turns=["look 0"], tools={"find": 1}, expect={"says": "Done"})
scenario("banned", turns=["look 1"], trajectory={"forbidden": ["send"]})
scenario("replied", turns=["look 2"], expect={"says": "Done"})
"""
AGENT = """
import runpy, subprocess, sys
sys.path.insert(0, {support!r})
import httpx
from aiohttp import web

URL, answer = {url!r}, web.json_response
pooled = httpx.Client(trust_env=False)
BY_PROGRAM = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"


{at_start}


def reply(data, status=200):
    if "reply" in data:
        {call}
    return answer(data, status=status)


web.json_response = reply
runpy.run_module("gateway_agent", run_name="__main__")
"""
WAYS = {
    "a connection for each request": "httpx.get(URL, trust_env=False)",
    "a connection that stays open": "pooled.get(URL)",
    "another name of this machine": "httpx.get(URL.replace('127.0.0.1', 'localhost'), trust_env=False)",
    "a program without the environment": "subprocess.run([sys.executable, '-c', BY_PROGRAM, URL], env={})",
}


class Model(Provider):
    """A provider that answers other requests, too, and keeps their connections."""

    others_call = False  # True if another program calls it during each request to a model

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.others_call and request.method == "POST":
            address = f"http://{request.host}/v1/x"
            await anyio.to_thread.run_sync(lambda: httpx.get(address, trust_env=False))
        return web.json_response({}) if request.method == "GET" else await super()._handle(request)


@pytest.fixture
def upstream() -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(Model().app())) as origin,
    ):
        yield origin


def configured(
    project: Project,
    upstream: str,
    call: str = "pass",
    at_start: str = "",
    gateway: dict[str, Any] | None = None,
) -> Project:
    project.scenario(SCENARIOS)
    words = {"support": str(SUPPORT), "url": f"{upstream}/v1/x", "call": call, "at_start": at_start}
    agent = project.write("agent.py", AGENT.format_map(words))
    command = [sys.executable, str(agent), "{port}", "chat"]
    server = {"command": command}
    configure(project, upstream, "chat", server=server, gateway=gateway, unmocked_tools="passthrough")
    return project


@pytest.mark.parametrize("way", WAYS)
def test_a_part_of_the_agent_that_passes_the_gateway_by_is_noticed(
    project: Project, upstream: str, way: str
) -> None:
    """What a call in it could change is errored; a reply is judged unless mocks might have been missed."""
    run = configured(project, upstream, WAYS[way]).run()

    assert run.returncode == 2, run.stdout + run.stderr
    status = {each["name"]: each["status"] for each in project.results["scenarios"]}
    assert status == {"mocked": "errored", "banned": "errored", "replied": "passed"}
    told = (
        rf"in turn 1 (a part|process \d+ \(\w+\)) of the agent called a model at {upstream} past the gateway"
    )
    assert re.search(told, " ".join(run.stdout.split())), run.stdout


def test_an_api_at_an_ipv6_address_is_exempt_as_the_message_says(project: Project, upstream: str) -> None:
    """The port tells an API on this machine."""
    call = WAYS["a connection that stays open"]
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(Model().app())) as model,
    ):
        gateway = {"upstream": {"openai": f"{model}/v1", "google": upstream.replace("127.0.0.1", "[::1]")}}
        text = " ".join(configured(project, upstream, call, gateway=gateway).run().stdout.split())
        assert 'write model_gateway.direct_hosts: ["[::1]"]' in text
        run = configured(project, upstream, call, gateway={**gateway, "direct_hosts": ["[::1]"]}).run()

    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("others_call", [False, True])
def test_connections_of_others_to_the_same_model_are_not_the_agents(
    project: Project, upstream: str, monkeypatch: pytest.MonkeyPatch, others_call: bool
) -> None:
    monkeypatch.setattr(Model, "others_call", others_call)
    with httpx.Client(trust_env=False) as other:
        other.get(f"{upstream}/v1/x")
        run = configured(project, upstream).run()
        other.get(f"{upstream}/v1/x")

    assert run.returncode == 0, run.stdout + run.stderr


def test_an_agent_of_another_gateway_is_not_the_agent(project: Project, upstream: str) -> None:
    """It has the same token in its environment, as from another configuration of the project."""
    token = "0123456789abcdef"
    code = "import httpx, sys; client = httpx.Client(trust_env=False); client.get(sys.argv[1])"
    words = [sys.executable, "-u", "-c", f"{code}; print('ready'); sys.stdin.read()", f"{upstream}/v1/x"]
    environment = {**os.environ, **model_variables(f"http://127.0.0.1:1/{token}")}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        run = configured(project, upstream).run(env={"AGENTEST_GATEWAY_TOKEN": token})
        other.kill()

    assert run.returncode == 0, run.stdout + run.stderr


def test_what_the_agent_called_before_the_first_conversation_is_of_none(
    project: Project, upstream: str
) -> None:
    """Such as whether its model is there."""
    run = configured(project, upstream, at_start=WAYS["a connection for each request"]).run()

    assert run.returncode == 0, run.stdout + run.stderr


def test_what_was_closed_before_the_run_is_not_the_agents(project: Project, upstream: str) -> None:
    """If the agent runs already, conversations begin at once, perhaps soon after those of another run."""
    token = "0123456789abcdef"
    address, gateway = f"http://127.0.0.1:{free_port()}", free_port()
    words = [sys.executable, SUPPORT / "gateway_agent.py", address.rpartition(":")[2], "chat"]
    variables = model_variables(f"http://127.0.0.1:{gateway}/{token}")
    project.scenario(SCENARIOS)
    project.config(
        "",
        agent={
            "type": "http",
            "endpoint": f"{address}/chat",
            "body": {"message": "{{message}}", "session": "{{session_id}}"},
            "reply": "reply",
            "model_gateway": {"port": gateway, "upstream": {"openai": f"{upstream}/v1"}},
        },
        metrics=[],
        unmocked_tools="passthrough",
    )
    with subprocess.Popen(words, env={**os.environ, **variables}) as agent:
        try:
            wait_until(lambda: is_open(address))
            for _ in range(3):
                httpx.get(f"{upstream}/v1/x", trust_env=False)
            run = project.run(env={"AGENTEST_GATEWAY_TOKEN": token})
        finally:
            agent.kill()

    assert run.returncode == 0, run.stdout + run.stderr


def is_open(address: str) -> bool:
    try:
        return httpx.get(address, trust_env=False).status_code == 404
    except httpx.TransportError:
        return False


def test_what_python_code_of_the_run_calls_is_not_the_agents(project: Project, upstream: str) -> None:
    """Its connections may be closed before anything could tell whose they are."""
    configured(project, upstream)
    project.scenario(f"""
import httpx

def find(q):
    httpx.get({upstream!r} + "/v1/x", trust_env=False)
    return q

scenario("mocked", turns=["look 0"], tools={{"find": find}}, expect={{"says": "Done"}})
""")
    run = project.run()

    assert run.returncode == 0, run.stdout + run.stderr
