"""`agentest doctor` with a model gateway: the line to set for a running agent, and whether it works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio.from_thread
import httpx
import pytest
from model_server import Answer, ModelServer
from project import DEADLINE_S, Project, free_port, wait_until
from scripted_provider import Chat, Provider, served
from test_model_gateway_run import SUPPORT, configure

from agentest.plugins.servers.gateway_check import FRAMEWORKS, gateway_token
from agentest.support.errors import ConfigError

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
    token = project.write(".agentest/gateway-token", "0123456789abcdef").read_text()
    return f"http://127.0.0.1:{port}/{token}"


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


def test_it_names_the_line_if_an_agent_calls_without_the_token(project: Project, upstream: str) -> None:
    def has_called() -> bool:
        try:
            return httpx.post(f"{origin}/v1/messages", json={}, trust_env=False).status_code == 403
        except httpx.TransportError:
            return False

    with ModelServer(Answer(b'{"reply": "Hello."}')) as agent:
        gateway = already_running(project, agent, upstream, 1500)
        origin = gateway.rpartition("/")[0]
        doctor = project.start("--offline", command="doctor", env={"AGENTEST_GATEWAY_TOKEN": "x" * 16})
        try:
            wait_until(has_called)
            out, err = doctor.communicate(timeout=DEADLINE_S)
        finally:
            doctor.kill()

    text = " ".join(out.split())
    assert doctor.returncode == 2, out + err
    assert f"lacks the gateway's token: set AGENTEST_MODEL_URL={origin}/<token>" in text
    assert f"OPENAI_BASE_URL={origin}/$AGENTEST_GATEWAY_TOKEN/openai/v1 " in text


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
    assert text.count(f"OPENAI_BASE_URL={gateway}/openai/v1") == 1
    assert "LiteLLM: OPENAI_BASE_URL, ANTHROPIC_API_BASE=" in text


def test_each_request_may_carry_the_address(project: Project, upstream: str) -> None:
    configure(project, upstream, "chat", body={"gateway": "{{model_url}}"})
    done = project.agentest("doctor", "--offline")

    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each request carries the address ({{model_url}}), so all conversations run at once" in text
    assert "✓ gateway: a request of the agent to its model arrived" in text


@pytest.mark.parametrize(("copies", "words"), [(1, []), (2, []), (1, ["{{model_url}}"])])
def test_a_server_of_the_agent_is_told(
    project: Project, upstream: str, copies: int, words: list[str]
) -> None:
    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    env = dict.fromkeys(proxies, "http://127.0.0.1:9" if words else "")
    configure(project, upstream, "chat", *words, server={"copies": copies, "env": env})
    done = project.agentest("doctor", "--offline")

    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout + done.stderr
    if copies == 2:
        assert "✓ gateway: its `server` receives the address, each of its 2 copies its own" in text
    else:
        assert "conversations that begin alike take turns: let `server` start copies" in text
    advice = "other users see the token in its command line: move {{model_url}} to server.env"
    assert (advice in text) == bool(words)
    unseen = "Calls past the gateway are not noticed: connections lead to the proxy in HTTPS_PROXY."
    assert (unseen in text) == bool(words)
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


def test_the_token_is_stored_once_for_all_runs(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        (token,) = set(pool.map(lambda _: gateway_token(tmp_path / "runs", {}), range(20)))

    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["gateway-token"]
    assert len(token) == 32
    assert gateway_token(tmp_path / "runs", {"AGENTEST_GATEWAY_TOKEN": "x" * 16}) == "x" * 16


def test_a_token_that_cannot_be_used_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "gateway-token").write_text("")
    for folder, token, problem in (
        (tmp_path, "short", "AGENTEST_GATEWAY_TOKEN is not a token"),
        (tmp_path, "with/slash/in/the/middle", "write 16 or more letters and digits"),
        (tmp_path, "", "delete the file, or set AGENTEST_GATEWAY_TOKEN"),
        (tmp_path / "file", "", "cannot be stored"),
    ):
        with pytest.raises(ConfigError, match=problem):
            gateway_token(folder, {"AGENTEST_GATEWAY_TOKEN": token})


@pytest.mark.parametrize(("frameworks", "variables"), FRAMEWORKS)
def test_the_documentation_has_the_same_table(frameworks: str, variables: tuple[str, ...]) -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", DOCS.read_text(encoding="utf-8"), re.M)
    named = {re.sub(r" \(.*\)", "", who): tuple(re.findall(r"`([A-Z_]+)`", what)) for who, what in rows}
    assert named[frameworks] == variables
