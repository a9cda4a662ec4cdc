"""Agents of which a part calls a model on another machine past the gateway: in a network of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from project import COMMAND, DEADLINE_S, Project, clean_environment
from test_model_gateway_bypass import SCENARIOS
from test_model_gateway_run import SUPPORT, configure
from two_networks import Network, two_networks

from agentest.agents.call_source_addresses import model_variables


def _has_networks() -> bool:
    if not (shutil.which("ip") and shutil.which("unshare")):
        return False
    made = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    return made.returncode == 0


pytestmark = pytest.mark.skipif(not _has_networks(), reason="needs root on Linux, and `ip`")
MODEL = """
import sys
sys.path.insert(0, {support!r})
from aiohttp import web
from scripted_provider import Provider


class Model(Provider):
    async def _handle(self, request):
        return web.json_response({{}}) if request.method == "GET" else await super()._handle(request)


async def main():
    runner = web.AppRunner(Model().app(), handler_cancellation=True, auto_decompress=False)
    await runner.setup()
    for port in (8000, 443):
        await web.TCPSite(runner, "0.0.0.0", port).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


import asyncio
asyncio.run(main())
"""
AGENT = """
import runpy, subprocess, sys
sys.path.insert(0, {support!r})
from contextlib import suppress

import httpx
from aiohttp import web

answer, pooled = web.json_response, httpx.Client(trust_env=False)


def reply(data, status=200):
    if "reply" in data:
        {call}
    return answer(data, status=status)


web.json_response = reply
runpy.run_module("gateway_agent", run_name="__main__")
"""
TOKEN = {"AGENTEST_GATEWAY_TOKEN": "0123456789abcdef"}
REMOTE = "10.99.0.2"
HOSTS = {
    "api.openai.com": "10.99.0.3",
    "api.anthropic.com": "10.99.0.4",
    "generativelanguage.googleapis.com": "10.99.0.5",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A network of which another has a model, at port 8000 and at the ports of known APIs."""
    with ExitStack() as stack:
        here, there = stack.enter_context(two_networks())
        for address in HOSTS.values():
            there.run("ip", "address", "add", f"{address}/24", "dev", "wire")
        model = there.inside(sys.executable, "-c", MODEL.format(support=str(SUPPORT)))
        process = stack.enter_context(subprocess.Popen(model, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield here


def within(project: Project, *command: str, hosts: Mapping[str, str] = HOSTS) -> list[str]:
    """The command that runs this one where the names of known APIs lead to the model."""
    names = "".join(f"{address} {name}\n" for name, address in hosts.items())
    file = project.write("hosts", f"127.0.0.1 localhost\n{names}")
    return ["unshare", "--mount", "sh", "-c", f'mount --bind {file} /etc/hosts && exec "$@"', "sh", *command]


def run(
    project: Project, network: Network, hosts: Mapping[str, str] = HOSTS
) -> subprocess.CompletedProcess[str]:
    """Run `agentest run` in a network."""
    return subprocess.run(
        network.inside(*within(project, *COMMAND, "run", hosts=hosts)),
        cwd=project.root,
        env=clean_environment(TOKEN),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def configured(
    project: Project, call: str, *, gateway: dict[str, Any] | None = None, agent: dict[str, Any] | None = None
) -> Project:
    """A project with an agent that makes a call after each reply."""
    project.scenario(SCENARIOS)
    code = project.write("agent.py", AGENT.format(support=str(SUPPORT), call=call))
    server = {"command": [sys.executable, str(code), "{port}", "chat"]}
    model = f"http://{REMOTE}:8000"
    configure(project, model, server=server, gateway=gateway, agent=agent, unmocked_tools="passthrough")
    return project


OPENAI, ANTHROPIC, GOOGLE = (f"http://{name}:443/v1/x" for name in HOSTS)


@pytest.mark.parametrize(
    ("url", "api", "direct_hosts"),
    [
        (f"http://{REMOTE}:8000/v1/x", f"http://{REMOTE}:8000", []),
        (f"http://{REMOTE}:8000/v1/x", None, [REMOTE]),
        (OPENAI, "https://api.openai.com", []),
        (ANTHROPIC, "https://api.anthropic.com", ["api.openai.com"]),
        (OPENAI, None, ["api.openai.com"]),
        (OPENAI.replace("443", "8000"), None, []),  # another service, such as a database
    ],
)
def test_a_connection_to_a_model_elsewhere_counts(
    project: Project, here: Network, url: str, api: str | None, direct_hosts: list[str]
) -> None:
    done = run(configured(project, f"pooled.get({url!r})", gateway={"direct_hosts": direct_hosts}), here)

    status = {each["name"]: each["status"] for each in project.results["scenarios"]}
    errored = "errored" if api else "passed"
    assert status == {"mocked": errored, "banned": errored, "replied": "passed"}, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    assert ("past the gateway" in text) == bool(api)
    who = r"process \d+ \(python.*, connected to [\d.]+\) of the agent"
    assert not api or re.search(f"{who} called a model at {api} past the gateway", text), text


@pytest.mark.parametrize("upstream", ["127.0.0.1", "10.99.0.1"])
@pytest.mark.parametrize("called", ["127.0.0.1", "10.99.0.1"])
def test_a_model_on_this_machine_is_the_same_by_each_of_its_addresses(
    project: Project, here: Network, upstream: str, called: str
) -> None:
    """By that of loopback, and by that of the local network."""
    model = here.inside(sys.executable, "-c", MODEL.format(support=str(SUPPORT)))
    with subprocess.Popen(model, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            gateway = {"upstream": {"openai": f"http://{upstream}:8000/v1"}}
            done = run(configured(project, f"pooled.get('http://{called}:8000/v1/x')", gateway=gateway), here)
        finally:
            process.kill()

    status = {each["name"]: each["status"] for each in project.results["scenarios"]}
    assert status == {"mocked": "errored", "banned": "errored", "replied": "passed"}, done.stdout
    assert f"called a model at http://{upstream}:8000 past the gateway" in " ".join(done.stdout.split())


def test_a_connection_that_is_never_made_does_not_count(project: Project, here: Network) -> None:
    """As of statistics that a firewall drops."""
    api = "http://10.98.0.1:443"  # neither network has it
    call = f"with suppress(httpx.ConnectTimeout): pooled.get({api!r}, timeout=0.5)"
    gateway = {"upstream": {"openai": f"http://{REMOTE}:8000/v1", "anthropic": api}}
    done = run(configured(project, call, gateway=gateway), here)

    assert done.returncode == 0, done.stdout + done.stderr


def test_names_that_a_proxy_answers_for_are_only_noted(project: Project, here: Network) -> None:
    """All names lead to its address, also that of the page that the agent reads."""
    proxied = dict.fromkeys([*HOSTS, "page.example"], HOSTS["api.openai.com"])
    done = run(configured(project, "pooled.get('http://page.example:443/')"), here, proxied)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "perhaps process" in done.stderr


def test_an_address_that_other_services_share_is_only_noted(project: Project, here: Network) -> None:
    done = run(configured(project, f"pooled.get({GOOGLE!r})"), here)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "perhaps process" in done.stderr
    assert "Other services may have the same address" in " ".join(done.stderr.split())


def test_an_agent_that_is_already_running_is_known_by_its_environment(
    project: Project, here: Network
) -> None:
    agent = {"endpoint": "http://127.0.0.1:9000/chat", "server": None}
    configured(project, f"pooled.get({OPENAI!r})", agent=agent, gateway={"port": 8900})
    gateway = f"http://127.0.0.1:8900/{TOKEN['AGENTEST_GATEWAY_TOKEN']}"
    command = here.inside(*within(project, sys.executable, "agent.py", "9000", "chat"))
    environment = clean_environment(model_variables(gateway))
    with subprocess.Popen(command, cwd=project.root, env=environment) as running:
        try:
            done = run(project, here)
        finally:
            running.kill()

    status = {each["name"]: each["status"] for each in project.results["scenarios"]}
    assert status == {"mocked": "errored", "banned": "errored", "replied": "passed"}, done.stdout
