"""`agentest run --record` and `--replay` with agents whose model is behind the gateway."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
from aiohttp import web
from project import Project
from scripted_provider import FORMS, Provider, served

SUPPORT = Path(__file__).parents[2] / "support"
NOWHERE = "http://127.0.0.1:9"
SCENARIOS = """
def find(q):
    return {"mocked": q}

for i in range(20):
    scenario(
        f"guest {i}",
        turns=[f"both {i}", f"recall of {i}"],
        tools={"find": find},
        trajectory={"expected": ["find", "send", "find"]},
        expect={"says": f"'mocked': '{i}2'"},
    )
"""
ONE = 'scenario("asks", turns=["look one", "recall it"], tools={"find": 7})\n'
CHANGING = """
import os, sys
sys.path.insert(0, {support!r})
import scripted_provider as provider

asked = provider.Chat.request

def request(self, history, *, stream):
    told = {{"role": "system", "content": f"You help guests. It is {{os.environ['DAY']}}."}}
    return asked(self, [told, *history], stream=stream)

provider.Chat.request = request
import gateway_agent
gateway_agent.main(*sys.argv[1:])
"""
KEYLESS = """
import os, sys
sys.path.insert(0, {support!r})
assert os.environ["OPENAI_API_KEY"], "the client of OpenAI does not start without a key"
import gateway_agent
gateway_agent.main(*sys.argv[1:])
"""


KEYED = """
import os, sys
sys.path.insert(0, {support!r})
import scripted_provider as provider

asked, say = provider.Chat.request, provider.Conversation.say

def request(self, history, *, stream):
    key = os.environ["SHOP"]  # as of a file, so that nothing knows it for a secret
    headers = {{"Authorization": f"Bearer {{key}}-1"}}
    tools = [{{"type": "mcp", "headers": headers, "access_token": f"{{key}}-2"}}]
    told = {{"api_key": key, "prompt_cache_key": "the-cache-of-the-shop", "eos_token": "<|end_of_text|>"}}
    request = asked(self, history, stream=stream)
    return {{**request, **told, "tools": [*request["tools"], *tools]}}

async def say_with_key(self, text):
    key = os.environ["SHOP"]
    sent = {{"model": "e", "input": [text], "client_secret": key + "-3"}}
    await self.client.post(self.base + "/v1/embeddings", json=sent)
    others = f"{{key}} {{key}}-1 {{key}}-2 {{key}}-3 the-cache-of-the-shop <|end_of_text|>"
    return f"{{await say(self, text)}} {{others}}"

provider.Chat.request, provider.Conversation.say = request, say_with_key
import gateway_agent
gateway_agent.main(*sys.argv[1:])
"""
EMBEDDING = """
import sys
sys.path.insert(0, {support!r})
import gateway_agent, scripted_provider

say = scripted_provider.Conversation.say

async def say_after_search(self, text):
    found = await self.client.post(self.base + "/v1/embeddings", json={{"model": "e", "input": [text]}})
    return f"{{await say(self, text)}} {{found.json()['data']}}"

scripted_provider.Conversation.say = say_after_search
gateway_agent.main(*sys.argv[1:])
"""


class Embeddings(Provider):
    """A provider that also has embeddings."""

    def app(self) -> web.Application:
        self.texts: set[str] = set()
        app = web.Application()
        app.router.add_post("/v1/embeddings", self._embed)
        app.router.add_post("/{path:.*}", self._handle)
        return app

    async def _embed(self, request: web.Request) -> web.Response:
        (text,) = (await request.json())["input"]
        self.texts.add(text)
        return web.json_response({"data": [len(text), text[-1]]})


@contextmanager
def running(provider: Provider) -> Iterator[str]:
    """Serve the provider for the block."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(provider.app())) as origin,
    ):
        yield origin


def configure(
    project: Project,
    upstream: str,
    *words: str,
    agent: Path = SUPPORT / "gateway_agent.py",
    gateway: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    **keys: Any,
) -> None:
    server = {
        "command": [sys.executable, str(agent), "{port}", *words],
        "ready": "tcp://127.0.0.1:{port}",
        "env": env or {},
    }
    settings = {
        "type": "http",
        "endpoint": "http://127.0.0.1:{port}/chat",
        "body": {"message": "{{message}}", "session": "{{session_id}}"},
        "reply": "reply",
        "model_gateway": {
            "upstream": {"openai": f"{upstream}/v1", "anthropic": upstream, "google": upstream},
            **(gateway or {}),
        },
        "server": server,
    }
    project.config("", agent=settings, metrics=[], **keys)


def said(project: Project) -> bytes:
    """All messages and calls of the last run."""
    turns = [
        {key: turn[key] for key in ("userMessage", "agentMessage", "toolCalls", "usage")}
        for scenario in project.results["scenarios"]
        for conversation in scenario["conversations"]
        for turn in conversation["turns"]
    ]
    for turn in turns:
        for call in turn["toolCalls"]:
            call.pop("durationMs", None)
    return json.dumps(turns).encode()


def cassettes(project: Project) -> str:
    return "".join(
        path.read_text() for path in sorted((project.root / ".agentest/cassettes").glob("*.jsonl"))
    )


@pytest.mark.parametrize("stream", [(), ("stream",)], ids=["whole", "stream"])
@pytest.mark.parametrize("form", FORMS)
def test_a_replay_needs_no_provider_and_repeats_every_byte(
    project: Project, form: str, stream: tuple[str, ...]
) -> None:
    project.scenario(SCENARIOS)
    provider = Provider()
    with running(provider) as upstream:
        configure(project, upstream, form, *stream, unmocked_tools="passthrough", concurrency=20)
        recorded = project.run("--record")
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    before, asked = said(project), len(provider.histories)
    assert asked == 20 * 4

    configure(project, NOWHERE, form, *stream, unmocked_tools="passthrough", concurrency=20)
    replayed = project.run("--replay")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert said(project) == before
    assert len(provider.histories) == asked
    assert "its model: recorded" in recorded.stdout
    assert "its model: replayed" in replayed.stdout


def test_credentials_in_bodies_are_redacted_everywhere_and_not_compared(project: Project) -> None:
    """Also those of other APIs, and for tools of the provider. The history is evidence, and stays."""
    agent = project.write("keyed.py", KEYED.format(support=str(SUPPORT)))
    keys = ["hunter2hunter2hunter2", "short"]
    project.scenario(ONE)
    with running(Embeddings()) as upstream:
        configure(project, upstream, "chat", agent=agent)
        recorded = project.run("--record", env={"SHOP": keys[0]})
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    files = [each for each in (project.root / ".agentest").rglob("*") if each.is_file()]
    assert [each for each in files if keys[0].encode() in each.read_bytes()] == []
    assert b"the-cache-of-the-shop <|end_of_text|>" in said(project)
    assert "the-cache-of-the-shop" in cassettes(project)

    configure(project, NOWHERE, "chat", agent=agent)
    replayed = project.run("--replay", env={"SHOP": keys[1]})
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def changing_agent(project: Project) -> Path:
    """An agent whose instructions contain the environment's day."""
    return project.write("changing.py", CHANGING.format(support=str(SUPPORT)))


def test_a_miss_names_the_first_difference_and_what_to_ignore(project: Project) -> None:
    project.scenario(ONE)
    agent = changing_agent(project)
    with running(Provider()) as upstream:
        configure(project, upstream, "chat", agent=agent, env={"DAY": "Monday"})
        assert project.run("--record").returncode == 0
        configure(project, upstream, "chat", agent=agent, env={"DAY": "Tuesday"})
        run = project.run("--replay")

    assert run.returncode == 2, run.stdout
    (scenario,) = project.results["scenarios"]
    assert scenario["status"] == "errored"
    told = " ".join(run.stdout.split())
    assert "scenario 'asks', conversation 1, turn 1" in told
    assert 'messages[0].content is "… help guests. It is Tuesday."' in told
    assert 'it is "… help guests. It is Monday."' in told
    assert 'model_gateway.ignore: ["messages[0].content"]' in told


@pytest.mark.parametrize("ignored", ["messages[0].content", "/It is \\w+day/"])
def test_what_is_ignored_may_differ_from_earlier_recordings(project: Project, ignored: str) -> None:
    project.scenario(ONE)
    agent = changing_agent(project)
    with running(Provider()) as upstream:
        configure(project, upstream, "chat", agent=agent, env={"DAY": "Monday"})
        assert project.run("--record").returncode == 0
        before = said(project)
    gateway = {"ignore": [ignored]}
    configure(project, NOWHERE, "chat", agent=agent, gateway=gateway, env={"DAY": "Tuesday"})

    assert project.run("--replay").returncode == 0
    assert said(project) == before


def test_what_is_not_recorded_is_asked_under_replay_or_record_alone(project: Project) -> None:
    project.scenario(ONE)
    provider = Provider()
    with running(provider) as upstream:
        configure(project, upstream, "chat")
        assert project.run("--record").returncode == 0
        assert len(provider.histories) == 3
        project.scenario(ONE + ONE.replace("asks", "more").replace("one", "two"))
        assert project.run("--replay").returncode == 2
        assert len(provider.histories) == 3
        assert project.run("--replay-or-record").returncode == 0
        assert len(provider.histories) == 6
        before = said(project)

    assert project.run("--replay").returncode == 0
    assert said(project) == before


def test_cassettes_hold_no_key_of_the_agent(project: Project) -> None:
    key = "the-key-of-the-agent-9f8e7d"
    project.scenario(ONE)
    agent = project.write(
        "keyed.py",
        f"import sys\nsys.path.insert(0, {str(SUPPORT)!r})\n"
        "import httpx, gateway_agent\nclient = httpx.AsyncClient\n"
        f"headers = {{'Authorization': 'Bearer {key}', 'x-api-key': '{key}'}}\n"
        "httpx.AsyncClient = lambda **keys: client(headers=headers, **keys)\n"
        "gateway_agent.main(*sys.argv[1:])\n",
    )
    echo = Provider(reply=lambda _: (f"Your key is {key}.", []))
    with running(echo) as upstream:
        configure(project, upstream, "chat", agent=agent)
        project.run("--record")

    assert "Your key is [redacted]." in cassettes(project)
    assert key not in cassettes(project)
    assert "authorization" not in cassettes(project).lower()
    configure(project, NOWHERE, "chat", agent=agent)
    project.run("--replay")
    assert project.results["scenarios"][0]["status"] == "passed"


def test_requests_without_an_answer_of_the_model_are_replayed_as_well(project: Project) -> None:
    project.scenario(
        "for i in range(5):\n    scenario(f'guest {i}', turns=[f'hello of guest {i}'], tools={})\n"
    )
    agent = project.write("embedding.py", EMBEDDING.format(support=str(SUPPORT)))
    provider = Embeddings()
    with running(provider) as upstream:
        configure(project, upstream, "chat", agent=agent)
        recorded = project.run("--record")
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert provider.texts == {f"hello of guest {i}" for i in range(5)}
    before = said(project)
    configure(project, NOWHERE, "chat", agent=agent)

    replayed = project.run("--replay")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert said(project) == before


def test_an_agent_under_replay_is_started_without_keys(project: Project) -> None:
    project.scenario(ONE)
    agent = project.write("keyless.py", KEYLESS.format(support=str(SUPPORT)))
    with running(Provider()) as upstream:
        configure(project, upstream, "chat", agent=agent, env={"OPENAI_API_KEY": "real"})
        assert project.run("--record").returncode == 0
    configure(project, NOWHERE, "chat", agent=agent)

    assert project.run("--replay").returncode == 0


def test_the_gateways_mode_decides_over_the_command_line(project: Project) -> None:
    project.scenario(ONE)
    provider = Provider()
    with running(provider) as upstream:
        configure(project, upstream, "chat", gateway={"mode": "record"})
        assert project.run().returncode == 0
        before = said(project)
        configure(project, NOWHERE, "chat", gateway={"mode": "replay"})
        assert project.run("--offline").returncode == 0
        assert said(project) == before
        assert len(provider.histories) == 3
        configure(project, upstream, "chat", gateway={"mode": "live"})
        assert project.run().returncode == 0
        assert len(provider.histories) == 6


def test_a_replay_without_any_recording_says_how_to_record(project: Project) -> None:
    project.scenario(ONE)
    configure(project, NOWHERE, "chat")
    run = project.run("--replay")

    assert run.returncode == 2
    assert "agentest run --record" in run.stderr


def test_an_invalid_pattern_is_refused(project: Project) -> None:
    project.scenario(ONE)
    configure(project, NOWHERE, "chat", gateway={"ignore": ["/(/"]})

    assert "is not a regular expression" in " ".join(project.run().stderr.split())


@pytest.mark.parametrize("per_worker", [False, True])
def test_what_workers_record_any_number_of_processes_replays(project: Project, per_worker: bool) -> None:
    project.scenario(SCENARIOS)
    with running(Provider()) as upstream:
        configure(project, upstream, "chat", unmocked_tools="passthrough")
        path = project.root / "agentest.config.yaml"
        path.write_text(path.read_text().replace('"env": {}', f'"per_worker": {json.dumps(per_worker)}'))
        recorded = project.run("--record", "--workers", "2")
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    before = said(project), cassettes(project)

    for workers in ([], ["--workers", "3"]):
        replayed = project.run("--replay", *workers)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        assert (said(project), cassettes(project)) == before
