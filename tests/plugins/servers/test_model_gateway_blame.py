"""Errors between an agent and its model never blame the agent, and are reported once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import anyio.from_thread
import pytest
from aiohttp import web
from project import Project
from scripted_provider import Provider, served
from test_model_gateway import anyio_backend, gateway
from test_model_gateway_faults import Faulty, request_of
from test_model_gateway_run import SUPPORT, configure
from wire import closed_port

__all__ = ["anyio_backend"]

SCENARIOS = """
for i in range(3):
    scenario(f"guest {i}", turns=[f"look {i}"], tools={"find": 1})
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.scenario(SCENARIOS)
    return project


@pytest.fixture
def refusing() -> Iterator[str]:
    """An API that accepts no key."""

    async def refuse(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"error": {"message": "Incorrect API key provided"}}, status=401)

    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(Faulty(refuse).app())) as origin,
    ):
        yield origin


def printed(project: Project, *, status: int) -> str:
    run = project.run()
    assert run.returncode == status, run.stdout + run.stderr
    return " ".join((run.stdout + run.stderr).split())


def apologize(project: Project) -> None:
    """Let the agent answer its user with status 200 if its model fails."""
    agent = project.write(
        "polite.py",
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(SUPPORT)!r})\n"
        "from aiohttp import web\n"
        "answer = web.json_response\n"
        "def polite(data, status=200):\n"
        "    return answer({'reply': 'Sorry, something went wrong.'} if status == 500 else data)\n"
        "web.json_response = polite\n"
        "runpy.run_module('gateway_agent', run_name='__main__')\n",
    )
    path = project.root / "agentest.config.yaml"
    path.write_text(path.read_text().replace(str(SUPPORT / "gateway_agent.py"), str(agent)))


@pytest.mark.parametrize("polite", [False, True], ids=["500", "200"])
def test_a_model_that_cannot_be_reached_is_not_the_agents_fault(project: Project, polite: bool) -> None:
    upstream = f"http://127.0.0.1:{closed_port()}"
    configure(project, upstream, "chat")
    if polite:
        apologize(project)
    text = printed(project, status=2)

    assert f"the gateway cannot reach the model at {upstream}/v1/chat/completions" in text
    assert {each["status"] for each in project.results["scenarios"]} == {"errored"}


def test_a_model_without_tls_is_not_the_agents_fault(project: Project, refusing: str) -> None:
    configure(project, refusing.replace("http:", "https:"), "anthropic")
    text = printed(project, status=2)

    assert "it does not speak TLS" in text
    assert {each["status"] for each in project.results["scenarios"]} == {"errored"}


@pytest.mark.parametrize("form", ["chat", "anthropic", "gemini"])
def test_a_key_that_the_model_refuses_is_told_once(project: Project, refusing: str, form: str) -> None:
    configure(project, refusing, form)
    text = printed(project, status=2)

    assert text.count("give the agent a valid key") == 1
    assert f"the model at {refusing}/" in text
    assert {each["status"] for each in project.results["scenarios"]} == {"errored"}


KEY = "hunter2hunter2hunter2"


@pytest.mark.parametrize(
    "given",
    [
        {"headers": {"Authorization": f"Bearer {KEY}"}},
        {"headers": {"x-api-key": KEY}},
        {"headers": {"x-goog-api-key": KEY}},
        {"headers": {"api-key": KEY}},
        {"params": {"key": KEY}},
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [(), ("--workers", "1")], ids=["alone", "workers"])
def test_a_key_that_passes_the_gateway_is_redacted_everywhere(
    project: Project, given: dict[str, Any], options: Sequence[str]
) -> None:
    async def repeat(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"the key '{KEY}' has no quota"}}, status=429)

    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(Faulty(repeat).app())) as origin,
    ):
        configure(project, origin, "chat")
        agent = project.write(
            "talkative.py",
            "import runpy, sys\n"
            f"sys.path.insert(0, {str(SUPPORT)!r})\n"
            "import functools, httpx\n"
            f"httpx.AsyncClient = functools.partial(httpx.AsyncClient, **{given!r})\n"
            "from aiohttp import web\n"
            "answer = web.json_response\n"
            "web.json_response = lambda data, status=200: answer({'reply': data.get('error', '')})\n"
            "runpy.run_module('gateway_agent', run_name='__main__')\n",
        )
        path = project.root / "agentest.config.yaml"
        path.write_text(path.read_text().replace(str(SUPPORT / "gateway_agent.py"), str(agent)))
        run = project.run(*options)

    assert "has no quota" in json.dumps(project.results)
    assert KEY not in run.stdout + run.stderr
    files = [each for each in project.root.rglob("*") if each.is_file() and each != agent]
    assert [each for each in files if KEY.encode() in each.read_bytes()] == []


def test_an_error_before_any_request_mentions_the_gateway(project: Project) -> None:
    upstream = f"http://127.0.0.1:{closed_port()}"
    configure(project, upstream, "chat")
    agent = project.write(
        "elsewhere.py",
        "import os, runpy, sys\n"
        f"sys.path.insert(0, {str(SUPPORT)!r})\n"
        f"os.environ['OPENAI_BASE_URL'] = '{upstream}/v1'\n"
        "runpy.run_module('gateway_agent', run_name='__main__')\n",
    )
    path = project.root / "agentest.config.yaml"
    path.write_text(path.read_text().replace(str(SUPPORT / "gateway_agent.py"), str(agent)))
    text = printed(project, status=1)

    assert "no request to a model had reached the gateway at http://127.0.0.1:" in text
    assert "set OPENAI_BASE_URL, ANTHROPIC_BASE_URL or GOOGLE_GEMINI_BASE_URL" in text
    messages = " ".join(each["message"] for each in project.results["scenarios"][0]["reasons"])
    assert "no request to a model ever reached model_gateway of agent 'agent'" in messages
    assert "({{model_url}} or AGENTEST_MODEL_URL)" in messages
    assert "AGENTEST_MCP_URL" not in text


@pytest.mark.anyio
async def test_an_agent_that_recovers_is_judged() -> None:
    async def once(_: web.Request, number: int) -> web.StreamResponse:
        if number == 1:
            return web.json_response({}, status=401)
        return web.json_response(provider_answer())

    def provider_answer() -> dict[str, Any]:
        return {"choices": [{"message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}]}

    async with gateway(provider=Faulty(once)) as gate, gate.talk("chat", "a") as talk:
        path, body = request_of("chat", stream=False)
        await gate.client.post(gate.origin + path, json=body)
        assert "refuses the key" in str(await talk.known.error_of(None))
        await gate.client.post(gate.origin + path, json=body)

    assert await talk.known.error_of(None) is None
    assert "refuses the key" in str(await talk.known.error_of(Exception("it failed")))


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("begins", [False, True])
async def test_a_model_that_hangs_is_given_up_and_named(stream: bool, begins: bool) -> None:
    async def hang(request: web.Request, _: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if begins:
            await response.prepare(request)
            await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}\n\n')
        await anyio.sleep_forever()
        return response

    path, body = request_of("chat", stream=stream)
    async with gateway(provider=Faulty(hang)) as gate, gate.talk("chat", "a") as talk:
        talk.known.timeout_s = 0.2
        response = await gate.client.post(gate.origin + path, json=body)
        error = str(await talk.known.error_of(None))

    assert response.status_code == (200 if stream and begins else 504)
    assert "/v1/chat/completions has not answered within 0.18 s" in response.text
    assert "has not answered within" in error


@pytest.mark.anyio
async def test_a_model_that_hangs_is_named_if_the_agent_is_given_up() -> None:
    late = Exception("no reply within 60 s: raise request_timeout_ms")
    async with gateway() as gate, gate.talk("chat", "a") as talk:
        talk.known.asked[monotonic()] = "http://model"
        with talk.known.said("look one"):
            talk.known.gateway.reached = True
            assert await talk.known.error_of(late) is None  # it was asked only now
            talk.known.timeout_s = 0
            error = str(await talk.known.error_of(late))
            await talk.known.error_of(None)
        talk.known.asked = {monotonic(): "http://other"}
        with talk.known.said("look two"):
            talk.known.note_hanging()
        other = str(await talk.known.error_of(late))

    assert "the model at http://model had not answered after" in error
    assert "the model at http://other had not answered after" in other
    assert "request_timeout_ms" not in error + other


@pytest.mark.anyio
async def test_a_refused_request_is_not_the_agents_fault() -> None:
    path, body = request_of("chat", stream=False)
    async with gateway() as gate, gate.talk("chat", "a") as talk, gate.talk("chat", "b") as other:
        with talk.known.said("something"), other.known.said("something"):
            refused = await gate.client.post(gate.origin + path, json=body)
            assert "did not pass" in str(await talk.known.error_of(None))
            assert "did not pass" in str(await other.known.error_of(None))
        with talk.known.said("look one"):
            await gate.client.post(gate.origin + path, json=body)
            assert await talk.known.error_of(None) is None
            assert "did not pass" in str(await other.known.error_of(None))  # its agent may still need it

    assert refused.status_code == 409


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/openai/v1/x/%2e%2e/chat/completions", "has a segment `.` or `..`"),
        ("/azure/openai/deployments/m/chat/completions", "write model_gateway.upstream.azure"),
    ],
)
async def test_a_path_that_the_gateway_cannot_pass_on_is_no_fault_of_the_agent(
    path: str, problem: str
) -> None:
    async with gateway() as gate, gate.talk("chat", "a") as talk:
        with talk.known.said("something"):
            response = await gate.client.post(gate.origin + path, json={})
            assert problem in str(await talk.known.error_of(None))
    assert response.status_code == 404
    assert problem in "\n".join(gate.notes)


@pytest.mark.anyio
async def test_a_late_request_of_an_ended_conversation_is_no_fault_of_another() -> None:
    path, body = request_of("chat", stream=False)
    body["messages"][0]["content"] = "look for a table"
    async with gateway() as gate:
        async with gate.talk("chat", "a") as talk:
            await talk.say("look for a table")
        async with gate.talk("chat", "b") as other, gate.talk("chat", "c"):
            with other.known.said("something"):
                assert (await gate.client.post(gate.origin + path, json=body)).status_code == 409
                assert await other.known.error_of(None) is None


@pytest.mark.anyio
async def test_a_model_that_is_not_there_is_told_once_and_the_agent_is_judged() -> None:
    async def missing(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no model gpt-9"}}, status=404)

    async with gateway(provider=Faulty(missing)) as gate, gate.talk("chat", "a") as talk:
        path, body = request_of("chat", stream=False)
        for _ in range(2):
            await gate.client.post(gate.origin + path, json=body)

    assert await talk.known.error_of(None) is None
    (note,) = gate.notes
    assert "/v1/chat/completions answered agent " in note
    assert "no model gpt-9" in note
    assert note.endswith("Check the name of the agent's model, and model_gateway.upstream")


@pytest.mark.anyio
async def test_an_answer_that_is_no_json_names_the_models_address() -> None:
    async def page(_: web.Request, __: int) -> web.StreamResponse:
        return web.Response(text="<html>Log in</html>")

    async with gateway(provider=Faulty(page)) as gate, gate.talk("chat", "a") as talk:
        path, body = request_of("chat", stream=False)
        await gate.client.post(gate.origin + path, json=body)

    problem = str(await talk.known.error_of(None))
    assert "/v1/chat/completions is not a JSON object: '<html>Log in</html>'" in problem


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["openai/v1/batches", "anthropic/v1/messages/batches"])
async def test_batches_are_refused_under_mocks_and_else_passed_on(path: str) -> None:
    async def accept(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"id": "batch_1"})

    async with gateway(provider=Faulty(accept)) as gate, gate.talk("chat", "a") as talk:
        refused = await gate.client.post(f"{gate.origin}/{path}", json={})
        assert "sends a batch" in str(await talk.known.error_of(None))
    async with gateway(provider=Faulty(accept)) as other, other.talk("chat", "a", mocks={}):
        passed = await other.client.post(f"{other.origin}/{path}", json={})
        listed = await other.client.get(f"{other.origin}/{path}")

    assert refused.status_code == 400
    assert "mocks cannot answer" in refused.json()["error"]["message"]
    assert [note.count("sends a batch") for note in gate.notes] == [1]
    assert passed.json() == {"id": "batch_1"}
    assert listed.status_code != 400


@pytest.mark.anyio
async def test_websockets_are_refused_and_told() -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    async with gateway(provider=Provider()) as gate, gate.talk("responses", "a") as talk:
        responses = [
            await gate.client.get(f"{gate.origin}/openai/v1/responses", headers=upgrade) for _ in range(2)
        ]

    assert [each.status_code for each in responses] == [400, 400]
    assert "opens a WebSocket" in responses[0].json()["error"]["message"]
    assert [note.count("opens a WebSocket") for note in gate.notes] == [1]
    assert "opens a WebSocket" in str(await talk.known.error_of(Exception("it failed")))


def offer(*keys: str) -> dict[str, Any]:
    """Return a request that offers the tool `find` under these keys."""
    tool: Any = {"name": "find"}
    for key in reversed(keys):
        tool = [tool] if key in ("tools", "functions", "functionDeclarations") else tool
        tool = {key: tool}
    return {"model": "m", "messages": [{"role": "user", "content": "look one"}], **tool}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("openai/v1/chat/completions", offer("functions")),
        ("openai/v1/assistants", offer("tools", "function")),
        ("api/chat", offer("tools", "function")),
        ("google/v1beta/interactions", offer("tools")),
        ("google/v1beta/models/m:rawPredict", offer("tools")),
        ("google/v1beta/models/m:streamGenerateContent", offer("tools", "functionDeclarations")),
    ],
)
async def test_a_mocked_tool_is_never_offered_in_a_form_that_the_gateway_cannot_read(
    path: str, body: dict[str, Any]
) -> None:
    async def answer(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"choices": [{"message": {"function_call": {"name": "find"}}}]})

    async with gateway(provider=Faulty(answer)) as gate, gate.talk("chat", "a") as talk:
        refused = await gate.client.post(f"{gate.origin}/{path}", json=body)
        assert await talk.known.error_of(None) is not None
    async with gateway(provider=Faulty(answer)) as other, other.talk("chat", "a", mocks={}) as seen:
        passed = await other.client.post(f"{other.origin}/{path}", json=body)

    assert refused.status_code == 400
    assert gate.provider.count == 0  # type: ignore[attr-defined]
    assert "find" in passed.text
    assert seen.serving.doubt_of(0)  # its calls were not seen


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["anthropic/v1/messages/count_tokens", "google/v1beta/models/m:countTokens"])
async def test_tools_may_be_counted(path: str) -> None:
    async def count(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({"tokens": 7})

    async with gateway(provider=Faulty(count)) as gate, gate.talk("chat", "a") as talk:
        response = await gate.client.post(f"{gate.origin}/{path}", json=offer("tools"))

    assert response.json() == {"tokens": 7}
    assert talk.serving.doubt_of(0) is None
