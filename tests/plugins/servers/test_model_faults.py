"""`model_faults`: what does the agent do when its model fails?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from project import Project
from scripted_provider import FORM_OF, FORMS, Provider
from test_model_gateway import Gateway, Talk, anyio_backend, gateway
from test_model_gateway_faults import request_of
from test_model_gateway_run import SCHEMA, configure, provider, upstream

from agentest import fault, scenario
from agentest.domain.changes import DueFaults, Fault, InjectedFault
from agentest.plugins.servers.port import ModelFaults
from agentest.support.errors import ScenarioError

__all__ = ["anyio_backend", "provider", "upstream"]

EACH_WAY = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
EACH_FORM = pytest.mark.parametrize("form", FORMS)


@asynccontextmanager
async def failing(
    form: str, *faults: Fault, hang_s: float = 30, **mocks: Any
) -> AsyncIterator[tuple[Gateway, Talk]]:
    """Begin a conversation whose model fails."""
    async with gateway() as gate:
        gate.faults = ModelFaults(faults=faults, hang_s=hang_s)
        async with gate.talk(form, "a", **mocks) as talk:
            yield gate, talk


async def asked(gate: Gateway, talk: Talk, form: str, *, stream: bool) -> httpx.Response:
    path, body = request_of(form, stream=stream)
    talk.turn = 0
    with talk.known.said("look one"):
        return await gate.client.post(gate.origin + path, json=body)


def answer_of(form: str, response: httpx.Response, *, stream: bool) -> dict[str, Any]:
    """Return the whole answer, assembled as clients do it."""
    if not stream:
        return dict(response.json())
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    return dict(FORM_OF[form]().assembled([json.loads(line) for line in lines]))


@pytest.mark.anyio
@EACH_WAY
@EACH_FORM
async def test_a_rate_limit_is_an_error_that_clients_repeat(form: str, stream: bool) -> None:
    async with failing(form, fault("rate_limit", at=2)) as (gate, talk):
        responses = [await asked(gate, talk, form, stream=stream) for _ in range(3)]
        traces = await talk.known.end_turn()

    assert [response.status_code for response in responses] == [200, 429, 200]
    limited = responses[1]
    assert limited.headers["retry-after"] == "1"
    assert "x-should-retry" not in limited.headers
    error = limited.json()["error"]
    kind = {"anthropic": error.get("type"), "gemini": error.get("status")}.get(form, error.get("code"))
    assert kind in ("rate_limit_error", "RESOURCE_EXHAUSTED", "rate_limit_exceeded")
    assert traces.faults == (InjectedFault("rate_limit", 2),)


@pytest.mark.anyio
@EACH_FORM
async def test_a_model_that_hangs_answers_with_an_error_at_last(form: str) -> None:
    async with failing(form, fault("timeout"), hang_s=0.01) as (gate, talk):
        response = await asked(gate, talk, form, stream=False)

    assert response.status_code == 504
    assert "did not answer" in response.json()["error"]["message"]
    assert gate.provider.histories == []


@pytest.mark.anyio
async def test_a_model_hangs_until_the_client_gives_up() -> None:
    path, body = request_of("chat", stream=False)
    async with (
        failing("chat", fault("timeout")) as (gate, talk),
        httpx.AsyncClient(trust_env=False) as client,
    ):
        with talk.known.said("look one"):
            with pytest.raises(httpx.ReadTimeout):
                await client.post(gate.origin + path, json=body, timeout=0.2)
            assert (await client.post(gate.origin + path, json=body)).status_code == 200
        assert (await talk.known.end_turn()).faults == (InjectedFault("timeout", 1),)


@pytest.mark.anyio
@EACH_WAY
@EACH_FORM
async def test_an_answer_is_truncated(form: str, stream: bool) -> None:
    async with failing(form, fault("truncated")) as (gate, talk):
        response = await asked(gate, talk, form, stream=stream)

    assert response.status_code == 200
    assert (
        '"length"' in response.text or "max_tokens" in response.text.lower() or "max_output" in response.text
    )
    assert "what you can do n" in response.text
    assert answer_of(form, response, stream=stream)


@pytest.mark.anyio
@EACH_WAY
@EACH_FORM
async def test_a_model_refuses(form: str, stream: bool) -> None:
    async with failing(form, fault("refusal")) as (gate, talk):
        response = await asked(gate, talk, form, stream=stream)

    assert response.status_code == 200
    assert "SAFETY" in response.text if form == "gemini" else "refusal" in response.text
    assert gate.provider.histories == []


@pytest.mark.anyio
@EACH_WAY
@EACH_FORM
async def test_a_broken_call_of_a_mocked_tool_is_answered_inside(form: str, stream: bool) -> None:
    async with failing(form, fault("malformed_arguments"), stream=stream) as (gate, talk):
        response = await asked(gate, talk, form, stream=stream)

    assert response.status_code == 200
    assert talk.agent.ran == []
    assert gate.provider.refused == []
    if form == "gemini":  # the API itself reports them
        assert "MALFORMED_FUNCTION_CALL" in response.text
        return
    first, *_ = talk.calls
    assert first.name == "find"
    assert first.invalid_arguments


@pytest.mark.anyio
@EACH_WAY
@pytest.mark.parametrize("form", ["chat", "responses", "stored responses"])
async def test_the_agent_receives_a_broken_call_of_its_own_tool(form: str, stream: bool) -> None:
    async with failing(form, fault("malformed_arguments", tool="send")) as (gate, talk):
        response = await asked(gate, talk, form, stream=stream)

    text = response.text.replace("\\", "")
    assert '"send"' in text
    assert '{"value": "' in text


@pytest.mark.anyio
@EACH_WAY
@pytest.mark.parametrize("form", [form for form in FORMS if form != "anthropic"])  # which wants thoughts
async def test_the_conversation_goes_on_after_a_truncated_answer(form: str, stream: bool) -> None:
    async with failing(form, fault("truncated", at=3), stream=stream) as (gate, talk):
        for text in ("both one", "tell me", "recall"):
            last = await talk.say(text)

    assert gate.provider.refused == []
    assert "'mocked': 'one'" in last
    assert [each.text for each in gate.provider.histories[-1] if each.role == "user"] == [
        "both one",
        "tell me",
        "recall",
    ]


def test_each_request_meets_one_fault_and_the_others_wait() -> None:
    faults = (fault("rate_limit", at=2), fault("timeout"), fault("truncated"), fault("malformed_arguments"))
    due = DueFaults(faults)

    met = [due.take(number, frozenset({"find"} if number > 4 else ())) for number in range(1, 7)]

    assert [each and each.kind for each in met] == [
        "timeout",
        "rate_limit",
        "truncated",
        None,
        "malformed_arguments",
        None,
    ]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("timout", "model_faults[0]: fault: unknown kind 'timout'; did you mean `timeout`?"),
        ({"kind": "timeout", "at": 0}, "`at` is 0; write a whole number of at least 1"),
        ({"at": 1}, "model_faults[0].kind: is missing"),
        ({"kind": "timeout", "when": 1}, "unknown key `when`"),
        (3, "unknown kind 3"),
    ],
)
def test_a_fault_that_cannot_be_is_an_error_at_its_line(value: Any, told: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario("s", turns=["Hi."], model_faults=[value])

    assert told in str(error.value)


def test_faults_have_a_form_in_data() -> None:
    data = scenario("s", turns=["Hi."], model_faults=["timeout", {"kind": "refusal", "at": 2, "times": 3}])

    assert data.model_faults == (fault("timeout"), fault("refusal", at=2, times=3))


def test_faults_are_in_the_results(project: Project, upstream: str, provider: Provider) -> None:
    project.scenario(
        "from agentest import fault\n"
        "scenario('asks', turns=['hello', 'hello again'], model_faults=[fault('truncated', at=2)])\n"
        "scenario('is limited', turns=['good day'], model_faults=[fault('rate_limit')])\n"
        "scenario('is refused', turns=['good night'], model_faults=[fault('refusal')])"
    )
    configure(project, upstream, "chat")
    run = project.run("--verbose")

    assert run.returncode == 1, run.stdout + run.stderr
    assert "fault  truncated (request 2 to its model)" in run.stdout
    assert "fault  rate_limit (request 1 to its model)" in run.stdout
    results = project.results
    Draft202012Validator(json.loads(Path(SCHEMA).read_text())).validate(results)
    asks, limited, refused = (each["conversations"][0] for each in results["scenarios"])
    assert [turn.get("faults") for turn in asks["turns"]] == [None, [{"kind": "truncated", "at": 2}]]
    assert limited["unfinishedTurn"]["faults"] == [{"kind": "rate_limit", "at": 1}]
    assert refused["unfinishedTurn"]["faults"] == [{"kind": "refusal", "at": 1}]
    assert len(provider.histories) == 1


def test_a_fault_that_no_request_meets_is_a_warning(project: Project, upstream: str) -> None:
    project.scenario(
        "scenario('asks', turns=['hello'], model_faults=['truncated', {'kind': 'timeout', 'at': 9}])"
    )
    configure(project, upstream, "chat")
    run = project.run("--strict")

    assert run.returncode == 2, run.stdout + run.stderr
    (warning,) = (
        each for each in project.results["summary"]["warnings"] if "model_faults" in each["message"]
    )
    assert warning["code"] == "vacuous-check"
    assert "model_faults[1]" in warning["message"]


def test_faults_need_a_gateway(project: Project) -> None:
    project.scenario("scenario('asks', turns=['hello'], model_faults=['timeout'])")
    project.config("http://127.0.0.1:9/x")
    run = project.run()

    assert run.returncode == 2
    told = " ".join(run.stdout.split())
    assert "model_faults: agent 'agent' calls its model without Agentest" in told
