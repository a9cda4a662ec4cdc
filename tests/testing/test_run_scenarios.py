"""`run_scenarios`: agents, configurations and models it accepts, and errors for anything else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, best, completion, model_keys
from project import free_port

from agentest import scenario
from agentest.config import ChatCompletionsAgent, Config
from agentest.domain.results import RunResult
from agentest.support.errors import AgentUnreachable, ConfigError, UsageError
from agentest.testing import Options, ScriptedAgent, ScriptedModel, arun_scenarios, run_scenarios

GREETS = scenario("greets", turns=[{"user_message": "Hi", "expect": {"contains": "hello"}}])
BOOKS = scenario("books", goal="Book a haircut.", conversations_per_scenario=1)


def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
    return "hello from a handler"


def greeting() -> ModelServer:
    """An agent that records its request headers."""
    return ModelServer(completion("hello"))


def passed(result: RunResult) -> bool:
    return [s.verdict.passed for s in result.scenarios] == [True]


def reply(result: RunResult) -> str:
    return result.scenarios[0].conversations[0].conversation.turns[0].agent_message


def configured(folder: Path, **keys: Any) -> Path:
    path = folder / "agentest.config.yaml"
    path.write_text(json.dumps(keys))  # JSON is YAML
    return path


def test_whatever_a_configuration_takes_is_an_agent() -> None:
    """An endpoint, a mapping, an object of `agentest.config`, a function or a fake is an agent."""
    with ScriptedAgent(["hello"], name="scripted") as server, greeting() as other:
        section = {"type": "chat_completions", "endpoint": other.origin, "headers": {"x-tenant": "salon"}}
        made = ChatCompletionsAgent(endpoint=server.endpoint, name="made")
        agents: list[Any] = [server, server.endpoint, section, made, handler]
        results = [run_scenarios([GREETS], agent=agent) for agent in agents]
    assert all(map(passed, results))
    assert [result.agents[0] for result in results] == ["scripted", "agent", "agent", "made", "agent"]
    assert other.received[0].headers["x-tenant"] == "salon"


def test_a_configuration_of_values() -> None:
    """The configuration is a mapping in either spelling, or a Config; keywords override its keys."""
    elsewhere = {"endpoint": "http://127.0.0.1:9/", "name": "elsewhere"}
    with ScriptedAgent(["hello"], name="scripted") as server:
        mine = {"endpoint": server.endpoint, "name": "mine"}
        whole: dict[str, Any] = {"agent": mine, "requestTimeoutMs": 5000, "thresholds": {"pass_rate": 1}}
        assert passed(run_scenarios([GREETS], config=whole))
        assert passed(run_scenarios([GREETS], config=Config.model_validate(whole)))
        both = {"agent": elsewhere, "agents": {"mine": mine}, "compare": [{"name": "other"}]}
        assert run_scenarios([GREETS], config=both, agent="mine").agents == ("mine",)
        assert run_scenarios([GREETS], config=both, agent=server).agents == ("scripted",)
        twice = run_scenarios(
            [scenario("twice", goal="Say hello.")], config=whole, conversationsPerScenario=2
        )
        assert len(twice.scenarios[0].conversations) == 2


def test_a_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of the file or its folder also loads its `.env`, models and relative paths."""
    (tmp_path / ".env").write_text("SALON_TENANT=salon-of-the-file\n")
    (tmp_path / "own_code.py").write_text(
        "from agentest import QuantitativeMetric\n"
        "def handler(messages, ctx):\n    return 'hello from the file'\n"
        "class Words(QuantitativeMetric):\n    def score(self, input):\n"
        "        return len(input.agent_message.split()), 'counted'\n"
    )
    monkeypatch.delenv("SALON_TENANT", raising=False)
    with greeting() as server, ModelServer(script=best) as model:
        path = configured(
            tmp_path,
            agent={"endpoint": server.origin, "headers": {"x-tenant": "${SALON_TENANT}"}},
            agents={"inside": {"type": "custom", "handler": "own_code:handler"}},
            custom_metrics=["own_code:Words"],
            metrics=["coherence"],
            **model_keys(model),
        )
        judged = run_scenarios([BOOKS], config=path)
        assert server.received[0].headers["x-tenant"] == "salon-of-the-file"
        assert judged.models == {"user": "m", "judge": "m"}
        assert judged.scenarios[0].averages == {"coherence": 5, "words": 1}
        assert run_scenarios([BOOKS], config=path, model="n").models == {"user": "n", "judge": "n"}
        asked = len(model.received)
        inside = run_scenarios([GREETS], config=str(tmp_path), agent="inside")
        assert reply(inside) == "hello from the file"
        scripted = run_scenarios([BOOKS], config=path, model=ScriptedModel(scores={"coherence": 2}))
        assert scripted.scenarios[0].averages["coherence"] == 2
        offline = run_scenarios([BOOKS], config=path, options=Options(offline=True))
        assert offline.models == {"user": None, "judge": None}
        assert len(model.received) == asked


def test_the_model_of_the_environment_is_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AGENTEST_MODEL counts only with a configuration file, as for `agentest run`."""
    monkeypatch.setenv("AGENTEST_MODEL", "ollama/from-the-environment")
    path = configured(tmp_path, agent={"type": "custom", "handler": "json:dumps"})

    def judge(**keys: Any) -> str | None:
        return run_scenarios([GREETS], agent=handler, **keys).models["judge"]

    assert judge(config=path) == "ollama/from-the-environment"
    assert judge() is None
    assert judge(model="ollama/named") == "ollama/named"
    assert judge(user={"model": "ollama/u"}, judge={"model": "ollama/j"}) == "ollama/j"


SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": "hello"}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
"""


def test_an_agent_with_a_server(tmp_path: Path) -> None:
    """The command of `server` starts in the configuration's folder and ends with the run."""
    (tmp_path / "serve.py").write_text(SERVER)
    port = free_port()
    server = {"command": [sys.executable, "serve.py", str(port)], "ready": f"tcp://127.0.0.1:{port}"}
    section = {"endpoint": f"http://127.0.0.1:{port}/", "server": server, "retries": 0}
    assert passed(run_scenarios([GREETS], config=configured(tmp_path, agent=section)))
    with pytest.raises(AgentUnreachable, match="agent 'agent' cannot be reached"):
        run_scenarios([GREETS], agent={"endpoint": f"http://127.0.0.1:{port}/", "retries": 0})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, r"run_scenarios: which agent\? Give one with agent=…, or a configuration with config=…"),
        (
            {"agent": 5},
            "agent: 5 is not an agent: expected an endpoint, a mapping as in a configuration, a handler",
        ),
        (
            {"agent": "a/agentest.config.yaml"},
            r"name a configuration file with config='a/agentest.config.yaml'",
        ),
        ({"agent": Path("c.py")}, r"name a configuration file with config='c.py'"),
        ({"agent": "localhost:8000"}, r"run_scenarios: agent.endpoint: must start with http:// or https://"),
        ({"agent": {"type": "adkk", "endpoint": "http://h"}}, "agent.type: there is no agent type 'adkk'"),
        (
            {"agent": {"endpoint": "http://h", "heders": {}}},
            "agent.heders: unknown key `heders`; did you mean",
        ),
        (
            {"agent": handler, "max_turnz": 3},
            "run_scenarios: max_turnz: unknown key `max_turnz`; did you mean",
        ),
        ({"agent": handler, "max_turns": 0}, "run_scenarios: max_turns: found 0; input should be greater"),
        (
            {"agent": handler, "max_turns": 3, "maxTurns": 3},
            "run_scenarios: `max_turns` is given twice, in both",
        ),
        (
            {"agent": {"endpoint": "http://h", "headers": {"x": "${NOT_SET_AT_ALL}"}}},
            "NOT_SET_AT_ALL is not set",
        ),
        ({"config": "missing.yaml"}, "configuration file .*missing.yaml does not exist"),
        ({"config": 5}, "config: 5 is neither a path nor a mapping nor a Config"),
        ({"config": {"agent": {"endpoint": "http://h"}}, "agent": "other"}, "there is no agent 'other'"),
        ({"agent": handler, "model": 5}, "model: 5 is neither a model's name nor an object with `complete`"),
        (
            {"agent": handler, "model": "llama3.2"},
            "model 'llama3.2' names no provider; write it as provider/model",
        ),
        ({"agent": handler, "options": Options(workers=2)}, "options: run_scenarios runs in this process"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:40],
)
def test_invalid_arguments_are_explained(given: dict[str, Any], says: str) -> None:
    """The ConfigError has the key, the value and what was expected."""
    with pytest.raises(ConfigError, match=says):
        run_scenarios([GREETS], **given)


def test_a_wrong_key_with_a_file(tmp_path: Path) -> None:
    """The error has the line for a key of the file, and none for a keyword that replaces it."""
    path = tmp_path / "agentest.config.yaml"
    path.write_text("agent:\n  endpoint: http://127.0.0.1:9/\nmax_turns: 0\n")
    with pytest.raises(ConfigError, match=r"agentest.config.yaml:3: max_turns: found 0"):
        run_scenarios([GREETS], config=path)
    with pytest.raises(ConfigError, match=r"agentest.config.yaml: max_turns: found -1"):
        run_scenarios([GREETS], config=path, maxTurns=-1)
    with pytest.raises(ConfigError, match="no configuration found in"):
        run_scenarios([GREETS], config=tmp_path.parent)


@pytest.mark.anyio
async def test_in_async_code_the_error_names_arun_scenarios() -> None:
    """It takes the same arguments."""
    with pytest.raises(UsageError, match="`await arun_scenarios"):
        run_scenarios([GREETS], agent=handler)
    result = await arun_scenarios([GREETS], agent=handler)
    assert result.scenarios[0].verdict.passed
