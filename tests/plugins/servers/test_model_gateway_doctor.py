"""`agentest doctor` with a model gateway: the line to set for a running agent, and whether it works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import anyio.from_thread
import httpx
import pytest
from model_server import Answer, ModelServer
from project import DEADLINE_S, Project, free_port, wait_until
from scripted_provider import Chat, Provider, served
from test_model_gateway_run import SUPPORT, configure

from agentest.plugins.servers.gateway_check import FRAMEWORKS

DOCS = Path(__file__).parents[3] / "docs" / "model-gateway.md"


@pytest.fixture
def upstream() -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(Provider().app())) as origin,
    ):
        yield origin


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.scenario("scenario('asks', turns=['look one'], tools={'find': 1})")
    return project


def already_running(project: Project, agent: ModelServer, upstream: str, timeout_ms: int) -> str:
    """Configure an agent that runs already. Returns the address of its gateway."""
    port = free_port()
    settings = {
        "type": "http",
        "endpoint": f"{agent.origin}/chat",
        "body": {"message": "{{message}}"},
        "reply": "reply",
        "model_gateway": {"port": port, "upstream": {"openai": f"{upstream}/v1"}},
    }
    project.config("", agent=settings, metrics=[], request_timeout_ms=timeout_ms)
    return f"http://127.0.0.1:{port}"


def test_it_prints_the_line_and_waits_for_a_request(project: Project, upstream: str) -> None:
    made = Chat()

    def has_called() -> bool:
        try:
            body = made.request([made.user("hello")], stream=False)
            return httpx.post(f"{gateway}/openai/v1/chat/completions", json=body, trust_env=False).is_success
        except httpx.TransportError:
            return False

    with ModelServer(Answer(b'{"reply": "Hello."}')) as agent:
        gateway = already_running(project, agent, upstream, 120_000)
        doctor = project.start("--offline", command="doctor")
        try:
            wait_until(has_called)
            out, err = doctor.communicate(timeout=DEADLINE_S)
        finally:
            doctor.kill()

    assert doctor.returncode == 0, out + err
    assert f"\n    OPENAI_BASE_URL={gateway}/openai/v1\n" in out
    assert f"\n    ANTHROPIC_BASE_URL={gateway}/anthropic\n" in out
    assert "send it a message" in err
    assert "✓ gateway: a request of the agent to its model arrived" in out
    assert "✓ tool calls: reported by its model gateway" in out


def test_it_names_the_variable_of_each_framework_if_no_request_comes(project: Project, upstream: str) -> None:
    with ModelServer(Answer(b'{"reply": "Hello."}')) as agent:
        gateway = already_running(project, agent, upstream, 300)
        done = project.agentest("doctor", "--offline")

    text = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "✗ gateway: no request to a model arrived within 0.3 s" in text
    assert f"LlamaIndex: OPENAI_API_BASE={gateway}/openai/v1" in text
    assert f"ANTHROPIC_API_URL={gateway}/anthropic" in text
    assert f"GEMINI_API_BASE={gateway}/google/v1beta" in text
    assert f"AI SDK with Google reads none: write baseURL {gateway}/google/v1beta" in text


def test_a_server_of_the_agent_is_told(project: Project, upstream: str) -> None:
    configure(project, upstream, "chat", server={"copies": 2})
    done = project.agentest("doctor", "--offline")

    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ gateway: its `server` receives the address, each of its 2 copies its own" in text
    assert "✓ gateway: a request of the agent to its model arrived" in text


def test_a_server_whose_agent_calls_its_model_elsewhere_is_reported(project: Project, upstream: str) -> None:
    configure(project, upstream, "chat", server={"env": {"AGENT_MODEL": f"{upstream}/v1"}})
    agent = project.write(
        "elsewhere.py",
        "import os, runpy, sys\n"
        f"sys.path.insert(0, {str(SUPPORT)!r})\n"
        "os.environ['OPENAI_BASE_URL'] = os.environ['AGENT_MODEL']\n"
        "runpy.run_module('gateway_agent', run_name='__main__')\n",
    )
    path = project.root / "agentest.config.yaml"
    path.write_text(path.read_text().replace(str(SUPPORT / "gateway_agent.py"), str(agent)))
    done = project.agentest("doctor", "--offline")

    text = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "✗ gateway: no request to a model arrived, although the agent answered" in text
    assert "Its code may set another address: use AGENTEST_MODEL_URL there" in text
    assert "LlamaIndex: OPENAI_API_BASE" in text
    assert "– tool calls: its model gateway would report them, and no request has reached it" in text
    assert "Ready" not in text


@pytest.mark.parametrize(("frameworks", "variables"), FRAMEWORKS)
def test_the_documentation_has_the_same_table(frameworks: str, variables: tuple[str, ...]) -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", DOCS.read_text(encoding="utf-8"), re.M)
    named = {re.sub(r" \(.*\)", "", who): tuple(re.findall(r"`([A-Z_]+)`", what)) for who, what in rows}
    assert named[frameworks] == variables
