"""`agentest run` with agents whose only mark is that they call a model over HTTP."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
from jsonschema import Draft202012Validator
from project import Project, free_port
from scripted_provider import FORMS, Provider, served

import agentest
from agentest.agents.call_source_addresses import Addresses

SCHEMA = Path(agentest.__file__).parent / "schemas" / "results.schema.json"
SUPPORT = Path(__file__).parents[2] / "support"
SCENARIOS = """
def find(q):
    return {"mocked": q}

for i in range(5):
    scenario(
        f"guest {i}",
        turns=[f"both {i}", f"recall of {i}"],
        tools={"find": find},
        trajectory={"expected": ["find", "send", "find"]},
        expect={"says": f"'mocked': '{i}2'"},
    )
"""


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def upstream(provider: Provider) -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(provider.app())) as origin,
    ):
        yield origin


@pytest.fixture
def other_api() -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(Provider().app())) as origin,
    ):
        yield origin


def configure(
    project: Project,
    upstream: str,
    *words: str,
    gateway: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None,
    **keys: Any,
) -> None:
    """Write a configuration whose server starts the agent with these words."""
    settings = {
        "type": "http",
        "endpoint": "http://127.0.0.1:{port}/chat",
        "body": {"message": "{{message}}", "session": "{{session_id}}", **(body or {})},
        "reply": "reply",
        "model_gateway": {
            "upstream": {"openai": f"{upstream}/v1", "anthropic": upstream, "google": upstream},
            **(gateway or {}),
        },
        "server": {
            "command": [sys.executable, str(SUPPORT / "gateway_agent.py"), "{port}", *words],
            "ready": "tcp://127.0.0.1:{port}",
            **(server or {}),
        },
        **(agent or {}),
    }
    project.config("", agent=settings, metrics=[], **keys)


@pytest.mark.parametrize("form", FORMS)
def test_function_tools_of_any_agent_are_mocked(
    project: Project, upstream: str, provider: Provider, form: str
) -> None:
    project.scenario(SCENARIOS)
    configure(project, upstream, form, "stream", unmocked_tools="passthrough")
    run = project.run()

    assert run.returncode == 0, run.stdout + run.stderr
    results = project.results
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(results)
    turn = results["scenarios"][0]["conversations"][0]["turns"][0]
    assert [(call["name"], call["mocked"], call["seenBy"]) for call in turn["toolCalls"]] == [
        ("find", True, "model"),
        ("send", False, "model"),
        ("find", True, "model"),
    ]
    assert [call["result"] for call in turn["toolCalls"]] == [
        {"mocked": "0"},
        {"real": "0"},
        {"mocked": "02"},
    ]
    assert turn["usage"]["completionTokens"] == 15
    requests = turn["modelRequests"]
    assert [each.get("round", 0) for each in requests] == [0, 0, 1]
    assert [message["text"] for message in requests[0]["prompt"]][-1:] == ["both 0"]
    assert [call.get("answeredInside", False) for call in requests[0]["calls"]] == [True, False]
    assert 0 < turn["modelMs"] <= sum(each["latencyMs"] for each in requests) + 0.01
    assert "its model" in project.agentest("show", "-v").stdout
    assert provider.refused == []


@pytest.mark.parametrize("form", ["chat", "anthropic", "gemini"])
@pytest.mark.parametrize("by", ["server.env", "environment"])
def test_an_address_that_the_agent_has_for_its_model_is_the_upstream(
    project: Project, upstream: str, provider: Provider, form: str, by: str
) -> None:
    """So a proxy's key never goes to the usual API."""
    own = {
        "OPENAI_BASE_URL": f"{upstream}/v1",
        "ANTHROPIC_BASE_URL": upstream,
        "GOOGLE_GEMINI_BASE_URL": f"{upstream}/",
    }
    project.scenario("scenario('asks', turns=['look one'], tools={'find': 1})")
    server = {"env": own} if by == "server.env" else None
    configure(project, upstream, form, gateway={"upstream": {}}, server=server)
    run = project.run(env=own if by == "environment" else None)

    assert run.returncode == 0, run.stdout + run.stderr
    assert len(provider.histories) == 2


def test_a_call_without_a_mock_ends_the_conversation_before_the_tool_runs(
    project: Project, upstream: str
) -> None:
    project.scenario(SCENARIOS)
    configure(project, upstream, "chat")
    run = project.run()

    assert run.returncode == 1
    assert "✗ send has no mock" in " ".join(run.stdout.split())
    left = project.results["scenarios"][0]["conversations"][0]["unfinishedTurn"]
    (request,) = left["modelRequests"]
    assert [call["name"] for call in request["calls"]] == ["find", "send"]
    assert left["modelMs"] > 0


def test_requests_to_the_model_survive_a_merge(project: Project, upstream: str) -> None:
    project.scenario(SCENARIOS)
    configure(project, upstream, "chat", unmocked_tools="passthrough")
    for shard in (1, 2):
        assert project.run("--shard", f"{shard}/2").returncode == 0
    merged = project.agentest("merge", ".agentest/runs", "--output-dir", "whole", "--reporter", "json")

    assert merged.returncode == 0, merged.stdout + merged.stderr
    whole = json.loads((project.root / "whole" / "results.json").read_text())
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(whole)
    turns = [turn for each in whole["scenarios"] for turn in each["conversations"][0]["turns"]]
    assert [len(turn["modelRequests"]) for turn in turns] == [3, 1] * 5
    assert whole["summary"]["time"]["modelMs"] > 0


def change_agent(project: Project, *lines: str) -> None:
    """Let the agent of the configuration run these lines before it starts."""
    agent = project.write(
        "changed_agent.py",
        "\n".join(
            [
                "import os, runpy, sys",
                f"sys.path.insert(0, {str(SUPPORT)!r})",
                *lines,
                "runpy.run_module('gateway_agent', run_name='__main__')",
            ]
        ),
    )
    path = project.root / "agentest.config.yaml"
    path.write_text(path.read_text().replace(str(SUPPORT / "gateway_agent.py"), str(agent)))


def test_an_agent_that_does_not_use_the_gateway_is_told_apart(project: Project, upstream: str) -> None:
    project.scenario("scenario('asks', turns=['look one'], tools={'find': 1})")
    configure(project, upstream, "chat")
    change_agent(project, f"os.environ['OPENAI_BASE_URL'] = '{upstream}/v1'")
    run = project.run()

    assert run.returncode == 2
    assert "the agent called no model through the gateway" in " ".join(run.stdout.split())


def test_an_agent_that_does_not_use_the_gateway_gets_no_further_messages(
    project: Project, upstream: str, provider: Provider
) -> None:
    """Its real tools would run in every conversation."""
    project.scenario("for i in range(30): scenario(f'asks {i}', turns=[f'look {i}'], tools={'find': 1})")
    configure(project, upstream, "chat", concurrency=3)
    change_agent(project, f"os.environ['OPENAI_BASE_URL'] = '{upstream}/v1'")
    run = project.run()

    assert run.returncode == 2
    assert 5 <= len(provider.histories) / 2 <= 8
    text = " ".join(run.stdout.split())
    assert "this conversation was not begun: the agent replied in 5 others without a request" in text
    assert "set OPENAI_BASE_URL" in text


@pytest.mark.parametrize("given", [None, "shop.internal,10.0.0.0/8", "*"])
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize("by", ["environment", "server.env"])
def test_an_agent_behind_a_proxy_reaches_the_gateway_without_it(
    project: Project, upstream: str, by: str, name: str, given: str | None
) -> None:
    """The user's own exceptions stay."""
    project.scenario("scenario('asks', turns=['look one'], tools={'find': 1}, expect={'says': 'Done'})")
    own = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    own |= {name: given} if given else {}
    configure(project, upstream, "chat", server={"env": own} if by == "server.env" else None)
    change_agent(
        project,
        "import httpx, json",
        "client = httpx.AsyncClient",
        "httpx.AsyncClient = lambda trust_env, timeout: client(trust_env=True, timeout=timeout)",
        "known = {name: os.environ.get(name) for name in ('no_proxy', 'NO_PROXY')}",
        f"open({str(project.root / 'known')!r}, 'w').write(json.dumps(known))",
    )
    run = project.run(env=own if by == "environment" else None)

    assert run.returncode == 0, run.stdout + run.stderr
    hosts = "*" if given == "*" else ",".join([*([given] if given else []), "127.0.0.1", "localhost"])
    assert json.loads((project.root / "known").read_text()) == {"no_proxy": hosts, "NO_PROXY": hosts}


@pytest.mark.parametrize("form", ["chat", "gemini"])
def test_an_agent_whose_address_lacks_the_token_is_told_the_right_one(
    project: Project, upstream: str, provider: Provider, form: str
) -> None:
    project.scenario("scenario('asks', turns=['look one'], trajectory={'forbidden': ['find']})")
    configure(project, upstream, form, gateway={"port": (port := free_port())})
    change_agent(
        project,
        f"os.environ['OPENAI_BASE_URL'] = 'http://127.0.0.1:{port}/openai/v1'",
        f"os.environ['GOOGLE_GEMINI_BASE_URL'] = 'http://127.0.0.1:{port}/google'",
    )
    run = project.run()

    variable, path = (
        ("OPENAI_BASE_URL", "openai/v1") if form == "chat" else ("GOOGLE_GEMINI_BASE_URL", "google")
    )
    problem = f"its address lacks the gateway's token: set {variable}=http://127.0.0.1:{port}/<token>/{path},"
    assert run.returncode == 2
    (asks,) = project.results["scenarios"]
    assert asks["status"] == "errored"
    assert problem in json.dumps(asks)
    assert problem in " ".join(run.stdout.split())
    assert provider.histories == []


@pytest.mark.parametrize("given", ["", "the-token-of-the-environment"])
@pytest.mark.parametrize("workers", [(), ("--workers", "1")])
def test_the_token_stays_the_same_and_in_no_report(
    project: Project, upstream: str, workers: tuple[str, ...], given: str
) -> None:
    project.scenario("""
scenario('asks', turns=['look one', 'look two'], tools={'find': 1}, expect={'says': '/openai/v1'})
scenario('fails', turns=['fail'], tools={'find': 1})
""")
    configure(project, upstream, "chat", reporters=["console", "json", "junit"])
    change_agent(
        project,
        "from scripted_provider import Conversation, Refused",
        "say, url = Conversation.say, os.environ['OPENAI_BASE_URL']",
        "async def say_url(self, text):",
        "    if text == 'fail':",
        "        raise Refused(f'{url} failed')",
        "    return await say(self, text) + url",
        "Conversation.say = say_url",
        f"open({str(project.root / 'urls')!r}, 'a').write(url + '\\n')",
    )
    env = {"AGENTEST_GATEWAY_TOKEN": given} if given else None
    runs = [project.run(*workers, env=env) for _ in range(2)]

    tokens = {url.split("/")[3] for url in (project.root / "urls").read_text().splitlines()}
    stored = project.root / ".agentest" / "gateway-token"
    assert tokens == {given or stored.read_text()}
    assert stored.exists() is not bool(given)
    assert [each["status"] for each in project.results["scenarios"]] == ["passed", "failed"]
    assert given or stat.S_IMODE(stored.stat().st_mode) == 0o600
    (token,) = tokens
    for run in runs:
        assert token not in run.stdout + run.stderr
    for path in (project.root / ".agentest").rglob("*"):
        assert path == stored or not path.is_file() or token.encode() not in path.read_bytes(), path


TOOLLESS = (
    "self.client.post(self.base + self.form.path, json={'model': 'm', 'messages': [self.form.user(text)]})"
)
UNSEEN = """
def find(q):
    return {"mocked": q}

def check(name, judged, turns=("look one", "odd")):
    scenario(name, turns=turns, tools={"find": find}, **judged)

check("nothing judged", {"expect": {"says": "odd"}})
check("met", {"trajectory": {"match_mode": "contains", "expected": ["find"]}})
check("a ban", {"trajectory": {"forbidden": ["cancel"]}})
check("a limit", {"trajectory": {"max_calls": 3}})
check("strict", {"trajectory": {"match_mode": "strict", "expected": ["find"]}})
check("not met", {"trajectory": {"match_mode": "contains", "expected": ["cancel"]}})
check("a broken ban", {"trajectory": {"forbidden": ["find"]}})
check("a ban of what was seen", {"trajectory": {"forbidden": ["cancel"]}}, turns=("look one", "recall"))
"""


@pytest.mark.parametrize(
    ("say", "why"),
    [
        ("asyncio.sleep(0, 'odd')", "in turn 2 the agent made no request to a model through the gateway"),
        (TOOLLESS, "in turn 2 the agent was answered no request to its model that offers tools"),
    ],
    ids=["no request", "no tools"],
)
def test_what_a_call_in_an_unseen_turn_could_change_is_not_judged(
    project: Project, upstream: str, say: str, why: str
) -> None:
    project.scenario(UNSEEN)
    configure(project, upstream, "chat", unmocked_tools="passthrough")
    if say is TOOLLESS:
        say = f"asyncio.ensure_future(odd(lambda: {say}))"
    agent = project.write(
        "odd_agent.py",
        "import asyncio, runpy, sys\n"
        f"sys.path.insert(0, {str(SUPPORT)!r})\n"
        "from scripted_provider import Conversation\n"
        "say = Conversation.say\n"
        "async def odd(post):\n    assert (await post()).status_code == 200\n    return 'odd'\n"
        f"Conversation.say = lambda self, text: {say} if text == 'odd' else say(self, text)\n"
        "runpy.run_module('gateway_agent', run_name='__main__')\n",
    )
    path = project.root / "agentest.config.yaml"
    path.write_text(path.read_text().replace(str(SUPPORT / "gateway_agent.py"), str(agent)))
    project.run()

    statuses = {each["name"]: each["status"] for each in project.results["scenarios"]}
    assert statuses == {
        "nothing judged": "passed",
        "met": "passed",
        "a ban": "errored",
        "a limit": "errored",
        "strict": "errored",
        "not met": "errored",
        "a broken ban": "failed",
        "a ban of what was seen": "passed",
    }
    assert json.dumps(project.results).count(why) >= 4


OFFERED = """
def check(name, text, tools, **judged):
    scenario(name, turns=[text], tools=tools, expect={"says": "Done"}, **judged)

check("a ban of a specialist's tool", "past", {"send": 1}, trajectory={"forbidden": ["send"]})
check("a mock of a specialist's tool", "past", {"send": 1}, trajectory={"forbidden": ["find"]})
check("an expected call", "past", {"send": 1}, trajectory={"expected": ["send"]})
check("a ban of a tool that nothing knows", "hello", {}, trajectory={"forbidden": ["cancel"]})
check("a ban of a tool that is offered", "hello", {}, trajectory={"forbidden": ["find"]})
check("a ban of a tool that is offered later", "hello", {"late": 1}, trajectory={"forbidden": ["late"]})
check("a ban by a pattern", "hello", {"late": 1}, trajectory={"forbidden": ["l*"]})
scenario("calls", turns=["look one"], tools={"find": 1}, trajectory={"expected": ["find"]})
if LATE:
    scenario("offers late", turns=["hello", "late"], tools={"late": 1}, trajectory={"forbidden": ["late"]})
"""


@pytest.mark.parametrize("late", [True, False])
def test_a_tool_that_the_agent_never_offers_its_model_may_have_run_unseen(
    project: Project, upstream: str, other_api: str, late: bool
) -> None:
    """A specialist with the address of another API in code may have it, in a turn that is seen otherwise."""
    project.scenario(OFFERED.replace("LATE", str(late)))
    configure(project, upstream, "chat", unmocked_tools="passthrough", strict=True)
    change_agent(
        project,
        "from scripted_provider import Chat, Conversation",
        "request, say = Chat.request, Conversation.say",
        "def offering(self, history, *, stream):",
        "    tool = 'late' if 'late' in str(history) else 'find'",
        "    offered = [{'type': 'function', 'function': {'name': tool, 'parameters': {}}}]",
        "    return request(self, history, stream=stream) | {'tools': offered}",
        "async def asks_specialist(self, text):",
        "    if text == 'past':",
        f"        specialist = Conversation(self.form, {other_api!r}, self.client)",
        "        Chat.request = request",
        "        await specialist.say('both one')",
        "        assert specialist.ran",
        "    Chat.request = offering",
        "    return await say(self, text)",
        "Conversation.say = asks_specialist",
    )
    project.run("--concurrency", "1")

    scenarios = project.results["scenarios"]
    offered = "passed" if late else "errored"
    assert {each["name"]: each["status"] for each in scenarios} == {
        "a ban of a specialist's tool": "errored",
        "a mock of a specialist's tool": "errored",
        "an expected call": "failed",
        "calls": "passed",
        "a ban of a tool that nothing knows": "errored",
        "a ban of a tool that is offered": "passed",
        "a ban of a tool that is offered later": offered,
        "a ban by a pattern": offered,
        **({"offers late": "passed"} if late else {}),
    }
    ban, mock = (json.dumps(each) for each in scenarios[:2])
    unseen = "which agent 'agent' offered its model in no turn, so its calls cannot be seen"
    assert f"trajectory.forbidden names tool 'send', {unseen}" in ban
    assert f"tools names tool 'send', {unseen}" in mock


@pytest.mark.parametrize("copies", [1, 2])
def test_conversations_in_workers_have_the_gateway_of_the_run(
    project: Project, upstream: str, provider: Provider, copies: int
) -> None:
    project.scenario(SCENARIOS)
    configure(project, upstream, "chat", server={"copies": copies}, unmocked_tools="passthrough")
    run = project.run("--workers", "2")

    assert run.returncode == 0, run.stdout + run.stderr
    turns = [turn for each in project.results["scenarios"] for turn in each["conversations"][0]["turns"]]
    assert [len(turn["modelRequests"]) for turn in turns] == [3, 1] * 5
    assert [call["result"] for call in turns[4]["toolCalls"]] == [
        {"mocked": "2"},
        {"real": "2"},
        {"mocked": "22"},
    ]
    assert turns[4]["usage"]["completionTokens"] == 15
    assert {tool["name"] for tool in turns[4]["briefing"]["tools"]} == {"find", "send"}
    assert provider.refused == []


def test_a_worker_knows_why_the_model_did_not_answer(project: Project) -> None:
    project.scenario("scenario('asks', turns=['look one'], tools={'find': 1})")
    configure(project, "http://127.0.0.1:9", "chat")
    run = project.run("--workers", "1")

    assert run.returncode == 2
    assert project.results["scenarios"][0]["status"] == "errored"
    assert "the model at http://127.0.0.1:9" in " ".join(run.stdout.split())


def test_only_one_place_answers_calls(project: Project, upstream: str) -> None:
    project.scenario(SCENARIOS)
    project.config(
        "http://127.0.0.1:9/x",
        agent={"endpoint": "http://127.0.0.1:9/x", "model_gateway": True, "mcp_mock": {"port": 9}},
    )
    run = project.run()

    assert run.returncode == 2
    assert "leave `mcp_mock` out" in " ".join(run.stderr.split())


def test_frameworks_are_kept_from_reporting_to_the_api_of_a_model() -> None:
    """Their connections would look like calls past the gateway. OpenTelemetry needs the SDK's traces."""
    told = Addresses(model="http://127.0.0.1:1/token").by_variable
    assert told["OPENAI_AGENTS_DISABLE_TRACING"] == told["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    traced = Addresses(model="http://127.0.0.1:1/token", otlp="http://127.0.0.1:2").by_variable
    assert "OPENAI_AGENTS_DISABLE_TRACING" not in traced
    assert "OPENAI_AGENTS_DISABLE_TRACING" not in Addresses(mcp="http://127.0.0.1:1").by_variable
