"""The configuration: keys, defaults, spellings, variables, and errors with their location."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.agents.in_process import CustomAgent
from agentest.config.config import Config
from agentest.config.file import LoadedConfig, find_config, load
from agentest.domain.results import Severity
from agentest.plugin import PLUGINS
from agentest.support.errors import ConfigError
from agentest.support.text import did_you_mean, snake_case, snake_keys

AGENT = "agent:\n  endpoint: http://h/v1\n"


class Folder:
    """A folder with a configuration in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(
        self, text: str, environ: MutableMapping[str, str] | None = None, name: str = "agentest.config.yaml"
    ) -> LoadedConfig:
        path = self.root / name
        path.write_text(text, encoding="utf-8")
        return load(path, {} if environ is None else environ)

    def config(self, text: str, environ: MutableMapping[str, str] | None = None) -> Config:
        return self.load(text, environ).config

    def problem(
        self, text: str, environ: MutableMapping[str, str] | None = None, name: str = "agentest.config.yaml"
    ) -> str:
        """The error, with the file's path shortened to FILE."""
        with pytest.raises(ConfigError) as caught:
            self.load(text, environ, name)
        return str(caught.value).replace(str(self.root / name), "FILE")

    def python(self, text: str) -> LoadedConfig:
        return self.load(text, name="agentest.config.py")

    def python_problem(self, text: str) -> str:
        return self.problem(text, name="agentest.config.py")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# Finding the file


def test_configuration_file_priority(tmp_path: Path) -> None:
    """The Python module has priority over .yaml, and .yaml over .yml."""
    for name in ("agentest.config.yml", "agentest.config.yaml", "agentest.config.py"):
        (tmp_path / name).write_text("")
        assert find_config(tmp_path).name == name


def test_a_missing_configuration_is_explained(tmp_path: Path) -> None:
    """The message says where it was searched and what to write."""
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))) as caught:
        find_config(tmp_path)
    for part in (
        "agentest.config.py",
        "agentest.config.yaml",
        "agentest.config.yml",
        "--config",
    ):
        assert part in str(caught.value)
    assert {*re.findall(r"agentest ([a-z]+)", str(caught.value))} <= PLUGINS.all("command").keys()


def test_a_missing_config_option_file_is_named(tmp_path: Path) -> None:
    """A file given with --config that does not exist is named; so is a folder."""
    for path in (tmp_path / "nope.yaml", tmp_path):
        with pytest.raises(ConfigError, match=r"does not exist|Is a directory"):
            load(path, {})


# Keys and defaults


def test_defaults(folder: Folder) -> None:
    """Every key but `agent` has the default of the contract."""
    config = folder.config(AGENT)
    assert config.agent == ChatCompletionsAgent(name="agent", endpoint="http://h/v1")
    assert (config.agents, config.compare, config.custom_metrics, config.thresholds) == ({}, [], [], {})
    assert (config.model, config.provider, config.metrics) == (None, None, None)
    assert (config.conversations_per_scenario, config.max_turns, config.concurrency) == (3, 8, 20)
    assert (config.request_timeout_ms, config.debounce_ms) == (30_000, 0)
    assert config.include == ["**/*.sim.py", "**/*.sim.yaml", "**/*.sim.yml"]
    assert config.exclude == [".venv/**", "venv/**", "node_modules/**", ".git/**"]
    assert (config.reporters, config.output_dir) == (["console"], ".agentest")
    assert (config.unmocked_tools, config.severity) == ("error", Severity.HIGH)
    assert (config.judge.samples, config.judge.model, config.user.model) == (1, None, None)


def test_defaults_of_an_agent() -> None:
    """An agent's own defaults are those of the contract."""
    agent = ChatCompletionsAgent.model_validate(
        {"endpoint": "https://h", "server": {"command": "x", "ready": "tcp://h:1"}}
    )
    assert (agent.type, agent.retries, agent.streaming) == ("chat_completions", 2, False)
    assert agent.server is not None
    assert (agent.server.timeout_s, agent.server.reuse, agent.server.env) == (60, True, {})


SNAKE = """
agent:
  endpoint: http://h
  server: {command: x, ready: "http://h", timeout_s: 5}
provider: openai
provider_options: {base_url: "http://p", api_key: k}
judge: {max_tokens: 5, timeout_ms: 9, samples: 3}
conversations_per_scenario: 1
max_turns: 2
request_timeout_ms: 3
debounce_ms: 4
custom_metrics: ["a:B"]
output_dir: out
unmocked_tools: passthrough
fail_on_error_severity: low
metrics: [goal_completion]
thresholds: {goal_completion: 1, pass_rate: 0.5}
"""
CAMEL = """
agent:
  endpoint: http://h
  server: {command: x, ready: "http://h", timeoutS: 5}
provider: openai
providerOptions: {baseURL: "http://p", apiKey: k}
judge: {maxTokens: 5, timeoutMs: 9, samples: 3}
conversationsPerScenario: 1
maxTurns: 2
requestTimeoutMs: 3
debounceMs: 4
customMetrics: ["a:B"]
outputDir: out
unmockedTools: passthrough
failOnErrorSeverity: low
metrics: [goalCompletion]
thresholds: {goalCompletion: 1, passRate: 0.5}
"""


def test_both_spellings(folder: Folder) -> None:
    """Every key means the same in camelCase, names of metrics too."""
    assert folder.config(SNAKE) == folder.config(CAMEL)
    assert folder.config(CAMEL).thresholds == {"goal_completion": 1, "pass_rate": 0.5}


@given(st.sampled_from(sorted(Config.model_fields)))
def test_any_key_in_camel_case(name: str) -> None:
    """The camelCase of any key is read as that key."""
    head, *rest = name.split("_")
    camel = head + "".join(part.capitalize() for part in rest)
    assert snake_case(camel) == name
    assert snake_keys({camel: 1}, Config.model_fields) == {name: 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (AGENT + "conversation_per_scenario: 3\n", "FILE:3: conversation_per_scenario: unknown key"),
        (AGENT + "maxTurn: 3\n", "FILE:3: maxTurn: unknown key `maxTurn`; did you mean `max_turns`?"),
        (AGENT + "  retry: 3\n", "FILE:3: agent.retry: unknown key `retry`; did you mean `retries`?"),
        (AGENT + "  server:\n    comand: x\n    ready: http://h\n", "FILE:4: agent.server.comand: unknown"),
        (
            AGENT + "judge:\n  sampels: 3\n",
            "FILE:4: judge.sampels: unknown key `sampels`; did you mean `samp",
        ),
        (AGENT + "user:\n  providerOptions:\n    keyy: 3\n", "FILE:5: user.provider_options.keyy: unknown"),
        (AGENT + "provider_options: {baseUri: x}\n", "FILE:3: provider_options.baseUri: unknown key"),
        (
            AGENT + "agents:\n  b:\n    endpont: http://h\n",
            "FILE:5: agents.b.endpont: unknown key `endpont`; did",
        ),
        (AGENT + "agents:\n  server:\n    endpont: x\n", "did you mean `endpoint`?"),
        (AGENT + "agents:\n  custom:\n    endpont: x\n", "FILE:5: agents.custom.endpont: unknown key"),
        (
            AGENT + "compare:\n  - {name: b, bdy: {}}\n",
            "FILE:4: compare[0].bdy: unknown key `bdy`; did you mean `b",
        ),
        (
            "agent: {type: custom, hanlder: 'a:b'}\n",
            "FILE:1: agent.hanlder: unknown key `hanlder`; did you mean `h",
        ),
        (AGENT + "zzz: 1\n", "valid are: `agent`, `agents`"),
        (
            AGENT + "patience: 2\n",
            "unknown key `patience`; it is an option of scenarios: scenario(…, patience=…)",
        ),
        (AGENT + "judge: {check: true}\n", "FILE:3: judge.check: unknown key `check`; it is a key of `user`"),
        ("agent:\n  url: http://x\n", "FILE:2: agent.url: unknown key `url`; did you mean `endpoint`?"),
        (AGENT + "  max_turns: 3\n", "agent.max_turns: unknown key `max_turns`; it is a key of the whole "),
        (AGENT + "user: {skipDecided: true}\n", "unknown key `skipDecided`; it is a key of `judge`"),
    ],
)
def test_unknown_keys_get_a_suggestion(folder: Folder, text: str, said: str) -> None:
    """An unknown key is reported with file, line and the nearest valid key of its section."""
    assert said in folder.problem(text)


@pytest.mark.parametrize("text", ["maxTurns: 1\nmax_turns: 2\n", "user: {maxTokens: 1, max_tokens: 2}\n"])
def test_both_spellings_at_once(folder: Folder, text: str) -> None:
    """A key that is given in both spellings is an error."""
    assert "is given twice, in both spellings" in folder.problem(AGENT + text)


def test_a_threshold_in_both_spellings(folder: Folder) -> None:
    """A threshold that is given in both spellings is an error, not the last of the two."""
    said = folder.problem(AGENT + "thresholds: {goalCompletion: 1, goal_completion: 0.5}\n")
    assert "FILE:3: thresholds: `goal_completion` is given twice" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_turns: 2\n", "FILE: agent: the key is missing"),
        ("agent: 5\n", "FILE:1: agent: found 5; expected keys and values"),
        ("agent: {name: x}\n", "FILE:1: agent.endpoint: the key is missing"),
        (
            "agent: {endpont: http://h/x}\n",
            "FILE:1: agent.endpont: unknown key `endpont`; did you mean `endpoint`?\nFILE:1: agent.en",
        ),
        ("agent: {type: custom}\n", "FILE:1: agent.handler: the key is missing"),
        ("agent: {type: custom, handler: 5}\n", "FILE:1: agent.handler: found 5"),
        (
            "agent: {type: smalltalk}\n",
            "FILE:1: agent.type: there is no agent type 'smalltalk'; valid are: `",
        ),
        (
            "agent: {type: FastAPI}\n",
            "there is no agent type 'FastAPI'. The type is the protocol that the agent speaks: http",
        ),
        (
            "agent: {type: pydantic-ai}\n",
            "custom (the agent object in Python)",
        ),
        (
            "agent: {handler: a:b}\n",
            "unknown key `handler`; it is one of type: custom; an agent of this type",
        ),
        ("agent: {type: chat_completion, endpoint: x}\n", "did you mean `chat_completions`?"),
        (AGENT + "agents: {b: {type: nope}}\n", "FILE:3: agents.b.type: there is no agent type 'nope'"),
        (
            AGENT + "compare: [{name: b, type: nope}]\n",
            "FILE:3: compare[0].type: there is no agent type 'nope'",
        ),
        ("agent: {endpoint: ftp://h}\n", "FILE:1: agent.endpoint: must start with http:// or https://"),
        ("agent: {endpoint: localhost:80}\n", "must start with http:// or https://"),
        ("agent: {endpoint: 'http://'}\n", "has no valid host and port"),
        ("agent: {endpoint: 'http://h:99999'}\n", "is not a URL"),
        ("agent: {endpoint: 'http://h:0'}\n", "has no valid host and port"),
        ("agent: {endpoint: 'http://[::1'}\n", "is not a URL"),
        ("agent: {endpoint: 'http://a b/'}\n", "is not a URL: it has a space"),
        ('agent: {endpoint: "http://h/\\n"}\n', "is not a URL: it has a space, a line break"),
        ("agent: {endpoint: 'http://xn--/'}\n", "is not a URL"),
        ("agent: {endpoint: 'http://é..x/'}\n", "is not a URL"),
        (
            AGENT + "  retries: -1\n",
            "FILE:3: agent.retries: found -1; input should be greater than or equal to 0",
        ),
        (AGENT + "  body: {messages: hi}\n", "`messages` is put before the conversation and must be a list"),
        (AGENT + "  body: {since: 2024-01-31}\n", "cannot be sent as JSON: a date"),
        (AGENT + "  body: {x: .nan}\n", "cannot be sent as JSON"),
        (AGENT + "  server: {command: '', ready: http://h}\n", "agent.server.command: is empty"),
        (AGENT + "  server: {command: [], ready: http://h}\n", "agent.server.command: is empty"),
        (AGENT + "  server: {command: 5, ready: http://h}\n", "FILE:3: agent.server.command: found 5"),
        (
            AGENT + "  server: {command: x, ready: nope}\n",
            "agent.server.ready: is neither an http(s) URL nor tcp",
        ),
        (AGENT + "  server: {command: x, ready: 'tcp://h'}\n", "needs a port: tcp://host:port"),
        (AGENT + "  server: {command: x}\n", "FILE:3: agent.server.ready: the key is missing"),
        (AGENT + "  server: {command: x, ready: http://h, timeout_s: 0}\n", "server.timeout_s: found 0"),
        (AGENT + "  server: {command: x, ready: http://h, timeout_s: .inf}\n", "finite number"),
        (AGENT + "max_turns: 0\n", "FILE:3: max_turns: found 0; input should be greater than or equal to 1"),
        (AGENT + "max_turns: yes\n", "FILE:3: max_turns: a number is expected, not true or false"),
        (AGENT + "concurrency: 1.5\n", "FILE:3: concurrency: found 1.5; expected a whole number"),
        (AGENT + "conversations_per_scenario: many\n", "found 'many'; expected a whole number"),
        (AGENT + "debounce_ms: -1\n", "FILE:3: debounce_ms: found -1"),
        (AGENT + "parallel: maybe\n", "FILE:3: parallel: found 'maybe'; expected true or false"),
        (AGENT + "paralel: false\n", "FILE:3: paralel: unknown key `paralel`; did you mean `parallel`?"),
        (AGENT + "max_concurrency: 0\n", "FILE:3: max_concurrency: found 0; input should be greater than"),
        (AGENT + "judge: {samples: 2}\n", "FILE:3: judge.samples: must be odd, so that a majority exists"),
        (AGENT + "judge: {samples: 0}\n", "FILE:3: judge.samples: found 0"),
        (AGENT + "judge: {temperature: .inf}\n", "FILE:3: judge.temperature: found inf"),
        (AGENT + "judge: {temperature: -1}\n", "FILE:3: judge.temperature: found -1"),
        (
            AGENT + "provider: claude\n",
            "FILE:3: provider: found 'claude'; input should be 'openai', 'anthropic'",
        ),
        (AGENT + "model: ''\n", "FILE:3: model: found ''"),
        (AGENT + "model: 4\n", "found 4; expected a text; write model: openai/gpt-5-mini"),
        (AGENT + "tags: [Is it?]\n", "the YAML does not parse: expected ',' or ']', but got '?'; quote the"),
        (AGENT + "provider_options: {base_url: nope}\n", "provider_options.base_url: must start with http"),
        (AGENT + "provider_options: {body: {since: 2024-01-31}}\n", "provider_options.body: cannot be sent"),
        (
            AGENT + "unmocked_tools: null\n",
            "FILE:3: unmocked_tools: found None; input should be 'error', 'pass",
        ),
        (AGENT + "fail_on_error_severity: awful\n", "input should be 'low', 'medium', 'high' or 'critical'"),
        (AGENT + "reporters: [jsn]\n", "FILE:3: reporters: there is no reporter 'jsn'; did you mean `json`?"),
        (
            AGENT + "reporters: json\n",
            "FILE:3: reporters: found 'json'; expected a list; write reporters: ['json']",
        ),
        (AGENT + "thresholds: {helpfulness: high}\n", "FILE:3: thresholds.helpfulness: found 'high'"),
        (AGENT + "thresholds: {helpfulness: true}\n", "thresholds.helpfulness: a number is expected"),
        (AGENT + "thresholds: {helpfulness: .nan}\n", "the threshold of `helpfulness` must be a number"),
        (AGENT + "include: '**/*.py'\n", "FILE:3: include: found '**/*.py'; expected a list"),
        (AGENT + "user: 5\n", "FILE:3: user: found 5; expected keys and values\n"[:-1]),
        (AGENT + "agents: [1]\n", "FILE:3: agents: "),
        (AGENT + "compare: {name: b}\n", "FILE:3: compare: "),
        (AGENT + "compare: [5]\n", "FILE:3: compare[0]: found 5"),
        (AGENT + "compare: [{body: {model: a}}]\n", "FILE:3: compare[0]: needs a `name`"),
        (AGENT + "max_turns:\n", "FILE:3: max_turns: found None; expected a whole number"),
        (
            'agent: {endpoint: "http://a/v1", headers: {a: 1}}\n',
            "FILE:1: agent.headers.a: found 1; expected a text\n"[:-1],
        ),
        (AGENT + "compare: [{body: {}}]\n", "compare[0]: needs a `name`"),
        (AGENT + "compare: [{name: agent}]\n", "compare: two agents are named 'agent'"),
        (AGENT + "compare: [{name: b}, {name: b}]\n", "compare: two agents are named 'b'"),
        (
            AGENT + "agents: {agent: {endpoint: http://other}}\n",
            "agents.agent: the agent under test has that",
        ),
    ],
)
def test_wrong_values_are_explained(folder: Folder, text: str, said: str) -> None:
    """A wrong value is reported with file, line, key, the value and what was expected."""
    assert said in folder.problem(text)


def test_all_problems_are_reported_together(folder: Folder) -> None:
    """Several mistakes are reported together, one line each."""
    lines = folder.problem(AGENT + "max_turns: 0\nconcurrency: 0\nnope: 1\n").splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["FILE:3", "FILE:4", "FILE:5"]


def test_a_threshold_is_checked_in_python() -> None:
    """Nonsense in a threshold is refused wherever the configuration comes from."""
    for wrong in ({"a": float("inf")}, {5: 1}, {"a": None}):
        with pytest.raises(ValidationError):
            Config.model_validate({"agent": {"endpoint": "http://h"}, "thresholds": wrong})


def test_a_configuration_is_immutable(folder: Folder) -> None:
    """No attribute of a configuration can be set."""
    config: Any = folder.config(AGENT)
    with pytest.raises(ValidationError):
        config.max_turns = 3


# Headers


@pytest.mark.parametrize("name", ["", "a b", "a:b", "é", "a\\nb"])
def test_invalid_header_names_are_refused(folder: Folder, name: str) -> None:
    """A header name that HTTP does not allow is refused."""
    assert "is not a valid header name" in folder.problem(AGENT + f'  headers: {{"{name}": x}}\n')


@pytest.mark.parametrize(
    "place", ["agent:\n  endpoint: http://h\n  headers:", AGENT + "providerOptions:\n  headers:"]
)
def test_line_breaks_in_headers_are_refused(folder: Folder, place: str) -> None:
    """The value is not shown."""
    said = folder.problem(place + ' {Authorization: "Bearer topsecret\\r\\nX-Evil: 1"}\n')
    assert "headers: the value of header 'Authorization' has a line break" in said
    assert "topsecret" not in said


def test_valid_headers_are_accepted(folder: Folder) -> None:
    """Everything that HTTP allows in a header is accepted unchanged."""
    agent = folder.config(AGENT + "  headers: {X-A_b.c: 'x\ty', empty: '', latin: é}\n").agent
    assert isinstance(agent, ChatCompletionsAgent)
    assert agent.headers == {"X-A_b.c": "x\ty", "empty": "", "latin": "é"}


# YAML


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "FILE: is empty, expected keys and values, at least `agent`"),
        ("# nothing\n", "FILE: is empty"),
        ("null\n", "FILE: is empty"),
        ("- a\n", "FILE: holds a list, expected keys and values"),
        ("text\n", "FILE: holds a str"),
        ("agent:\n  endpoint: [\n", "FILE:3: the YAML does not parse: "),
        ("agent: {a: b: c}\n", "FILE:1: the YAML does not parse: "),
        (AGENT + "\tmax_turns: 1\n", "FILE:3: the YAML does not parse: "),
        (AGENT + "a: @b\n", "FILE:3: the YAML does not parse: "),
        (AGENT + "a: *b\n", "FILE:3: the YAML does not parse: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "the YAML does not parse: but found another document"),
        (AGENT + "a: 2024-13-45\n", "FILE: the YAML does not parse: month must be in 1..12"),
        (
            AGENT + "a: !!python/object/apply:os.system [ls]\n",
            "FILE:3: the YAML does not parse: could not determ",
        ),
        (AGENT + "a: \0\n", "FILE: the YAML does not parse: "),
        ("agent: &a\n  x: *a\n", "FILE: is nested too deeply, or a part of it contains itself"),
        ("a: " + "[" * 1200, "FILE: is nested too deeply"),
        (
            AGENT + "max_turns: 1\nmax_turns: 2\n",
            "FILE:4: the key `max_turns` is given twice, first on line 3",
        ),
        (
            "agent:\n  endpoint: a\n  endpoint: b\n",
            "FILE:3: the key `agent.endpoint` is given twice, first on line 2",
        ),
        (AGENT + "agents:\n  b: {}\n  b: {}\n", "FILE:5: the key `agents.b` is given twice"),
        (AGENT + "on: 1\n", "FILE:3: the key `on` is not a text for YAML; put it in quotes"),
        (AGENT + "thresholds: {5: 1}\n", "FILE:3: the key `thresholds.5` is not a text"),
        ("? [a]\n: b\n", "FILE:1: the YAML does not parse: found unhashable key"),
        ("agent:\n  body: {text: {{message}}}\n", "FILE:2: the YAML does not parse: found unhashable key; "),
        ("agent:\n  body: {text: {{message}}}\n", 'placeholders stand in quotes: "{{message}}"'),
    ],
)
def test_invalid_yaml_is_explained(folder: Folder, text: str, said: str) -> None:
    """YAML that does not parse, or is not a mapping, is reported with its line if it has one."""
    assert said in folder.problem(text)


def bomb(levels: int, form: str) -> str:
    """A file whose every level holds nine times the level below: `{}` of the form is what is repeated."""
    rows = ["a0: &a0 {x: lol}" if "<<" in form else "a0: &a0 [lol]"]
    rows += [f"a{n}: &a{n} {form.format(', '.join([f'*a{n - 1}'] * 9))}" for n in range(1, levels)]
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("form", ["[{}]", "{{<<: [{}]}}", "{{k: [{}]}}"])
def test_alias_bombs_are_refused(folder: Folder, form: str) -> None:
    """Nested aliases that would expand for years are refused at once, with the offending line."""
    said = folder.problem(bomb(40, form))
    assert "FILE:6: aliases (`*name`) repeat parts of the file so often that more than 100,000" in said


def test_aliases_of_long_texts_are_limited(folder: Folder) -> None:
    """A long text that is repeated often counts by its length."""
    text = f"t: &t {'x' * 100_000}\nl: [{', '.join(['*t'] * 5_000)}]\n"
    assert "FILE:2: aliases (`*name`) repeat" in folder.problem(text)


def test_harmless_aliases_are_accepted(folder: Folder) -> None:
    """A long file is read whatever its length, and a part may be repeated some hundred times."""
    headers = "{" + ", ".join(f"h{n}: v" for n in range(200)) + "}"
    agents = "".join(f"  a{n}: {{endpoint: 'http://h', headers: *h}}\n" for n in range(200))
    text = f"agent: {{endpoint: 'http://h', headers: &h {headers}}}\nagents:\n{agents}"
    assert len(folder.config(text).agents) == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "agent:\n  type: custom\n  handler: 'a:b'\n  body: {}\n",
            "FILE:4: agent.body: unknown key `body`; ",
        ),
        (
            AGENT + "agents: {b: {type: custom, handler: 'a:b', endpoint: 'http://h'}}\n",
            "agents.b.endpoint: unknown key `endpoint`; ",
        ),
        (
            AGENT + "compare: [{name: b, type: http, endpoint: 'http://h', server: {comand: x, ready: y}}]\n",
            "compare[0].server.comand: unknown key `comand`; did you mean `command`?",
        ),
        (
            "agent:\n  endpoint: http://h/v1\n  tools:\n    - {name: a, descripton: b}\n",
            "FILE:4: agent.tools[0].descripton: unknown key `descripton`; did you mean `description`?",
        ),
    ],
)
def test_keys_of_another_agent_type_are_explained(folder: Folder, text: str, said: str) -> None:
    """The error lists the keys that this agent type accepts, unless one of them is spelled nearly so."""
    problem = folder.problem(text)
    assert said in problem
    takes = "an agent of this type takes `call_sources`, `context`, "
    assert (takes in problem) == ("did you mean" not in said)


def test_a_file_that_is_not_utf8_is_reported(folder: Folder) -> None:
    """The error says that the file is not UTF-8."""
    path = folder.root / "agentest.config.yml"
    path.write_bytes(b"agent: \xff\n")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(path, {})


def test_anchors_and_merges(folder: Folder) -> None:
    """YAML's own means of sharing work, in either spelling of the keys."""
    text = (
        "agent: &base\n  endpoint: http://h\n  headers: {a: b}\n"
        "agents:\n  two:\n    <<: *base\n    endpoint: http://two\n"
    )
    two = folder.config(text).agents["two"]
    assert two == ChatCompletionsAgent(name="two", endpoint="http://two", headers={"a": "b"})


def test_a_byte_order_mark(folder: Folder) -> None:
    """A byte order mark, as some editors write it, does not matter."""
    assert folder.config("\ufeff" + AGENT).max_turns == 8


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_is_a_configuration_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Any text is a configuration or a ConfigError that names the file."""
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(AGENT + text, encoding="utf-8")
    said = str(path)
    try:
        load(path, {})
    except ConfigError as error:
        said = str(error)
    assert str(path) in said


# Variables


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "one"),
        ("x${A}y${B}z", "xoneytwoz"),
        ("${A:-other}", "one"),
        ("${NONE:-other}", "other"),
        ("${NONE:-}", ""),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${NONE:-a:b/c-d}", "a:b/c-d"),
        ("$${A}", "${A}"),
        ("$${NONE}", "${NONE}"),
        ("$A", "$A"),
        ("${}", "${}"),
        ("${1A}", "${1A}"),
        ("$", "$"),
        ("${NESTED}", "${A}"),
    ],
)
def test_variables_are_filled_in(folder: Folder, text: str, value: str) -> None:
    """`${VAR}` is filled in once, `${VAR:-default}` if it is unset or empty, `$${VAR}` stays `${VAR}`."""
    environ = {"A": "one", "B": "two", "EMPTY": "", "NESTED": "${A}"}
    assert folder.config(AGENT + f"output_dir: '{text}'\n", environ).output_dir == value


def test_variables_at_any_depth(folder: Folder) -> None:
    """Variables are filled in at any depth, and their values count as numbers if a number is expected."""
    text = (
        "agent:\n  endpoint: ${URL}/v1\n  headers: {x: '${A}'}\n  body: {list: ['${A}', {deep: '${A}'}]}\n"
        "max_turns: ${N}\nthresholds: {helpfulness: '${T:-3.5}'}\n"
    )
    config = folder.config(text, {"URL": "http://h", "A": "one", "N": "4"})
    assert isinstance(config.agent, ChatCompletionsAgent)
    assert config.agent.endpoint == "http://h/v1"
    assert config.agent.headers == {"x": "one"}
    assert config.agent.body == {"list": ["one", {"deep": "one"}]}
    assert (config.max_turns, config.thresholds) == (4, {"helpfulness": 3.5})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agent:\n  endpoint: ${URL}\n", "FILE:2: agent.endpoint: the environment variable URL is not set"),
        (
            AGENT + "include:\n  - a\n  - ${B}/x\n",
            "FILE:5: include[1]: the environment variable B is not set",
        ),
        (AGENT + "outputDir: ${C}\n", "FILE:3: outputDir: the environment variable C is not set"),
    ],
)
def test_unset_variables_are_explained(folder: Folder, text: str, said: str) -> None:
    """An unset variable without a default is reported with key and line, and how to give a default."""
    found = folder.problem(text)
    assert said in found
    assert ":-default}" in found


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="$'\x85\u2028\u2029\ufeff")))
def test_variable_values_are_not_expanded(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    """The value of a variable is used unchanged."""
    path = tmp_path_factory.getbasetemp() / "value.yaml"
    path.write_text(AGENT + "output_dir: ${V}-\n")
    assert load(path, {"V": value + "${V}"}).config.output_dir == value + "${V}-"


# .env


def test_dotenv_is_read(folder: Folder) -> None:
    """A .env file next to the configuration is read, for it and for everything after it."""
    (folder.root / ".env").write_text("A=from-file\nB='quoted value'\n# comment\nC\n")
    environ: dict[str, str] = {}
    assert folder.config(AGENT + "output_dir: ${A} ${B}\n", environ).output_dir == "from-file quoted value"
    assert environ == {"A": "from-file", "B": "quoted value"}


@pytest.mark.parametrize("real", ["real", ""])
def test_dotenv_does_not_override_the_environment(folder: Folder, real: str) -> None:
    """Variables of the real environment have priority, even if they are empty."""
    (folder.root / ".env").write_text("A=from-file\n")
    assert folder.config(AGENT + "output_dir: x${A}\n", {"A": real}).output_dir == f"x{real}"


def test_an_unreadable_dotenv_is_named(folder: Folder) -> None:
    """The error names the .env file."""
    (folder.root / ".env").write_bytes(b"A=\xff\xfe\n")
    assert ".env: cannot be read" in folder.problem(AGENT)


# Python


def test_a_python_configuration(folder: Folder) -> None:
    """A module may hold a dict, with functions and objects in it, and variables in its strings."""
    config = folder.load(
        "def handler(messages, ctx):\n    return 'hi'\n"
        "config = {'agent': {'type': 'custom', 'handler': handler}, 'outputDir': '${A}',\n"
        "          'include': ('${A}/*.py',), 'customMetrics': [handler]}\n",
        {"A": "one"},
        "agentest.config.py",
    ).config
    assert isinstance(config.agent, CustomAgent)
    assert callable(config.agent.handler)
    assert (config.output_dir, config.include) == ("one", ["one/*.py"])
    assert config.custom_metrics == [config.agent.handler]


def test_a_config_object(folder: Folder) -> None:
    """A module may hold a Config; its strings are filled in too, and agents to compare stay whole."""
    config = folder.load(
        "from agentest.config import ChatCompletionsAgent, Config, JudgeSettings\n"
        "config = Config(\n"
        "    agent=ChatCompletionsAgent(endpoint='http://h', headers={'x': '${A}'}, body={'t': 1}),\n"
        "    compare=[ChatCompletionsAgent(name='b', endpoint='http://b')],\n"
        "    judge=JudgeSettings(samples=3), max_turns=2,\n"
        ")\n",
        {"A": "one"},
        "agentest.config.py",
    ).config
    assert config.agent == ChatCompletionsAgent(endpoint="http://h", headers={"x": "one"}, body={"t": 1})
    assert config.compare == [ChatCompletionsAgent(name="b", endpoint="http://b")]
    assert (config.judge.samples, config.max_turns) == (3, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "FILE: the module has no `config`; write config ="),
        ("config = 5\n", "FILE: `config` is of type int, expected a dict or Config"),
        ("import os\n\nraise ValueError('boom')\n", "FILE:3: importing the configuration failed\n"),
        ("def f(:\n", "FILE:1: importing the configuration failed\n"),
        ("import sys\nsys.exit(3)\n", "FILE:2: importing the configuration failed\n"),
        ("class Stop(BaseException): ...\nraise Stop\n", "FILE:2: importing the configuration failed\n"),
        ("import nowhere_to_be_found\n", "No module named 'nowhere_to_be_found'"),
        (
            "config = {}\nconfig['agent'] = config\n",
            "FILE: is nested too deeply, or a part of it contains itself",
        ),
        (
            "config = {'agent': {'endpoint': 'http://h'}, 'maxTurn': 1}\n",
            "FILE: maxTurn: unknown key `maxTurn`",
        ),
        (
            "config = {'agent': {'endpoint': '${NO}'}}\n",
            "FILE: agent.endpoint: the environment variable NO is not",
        ),
        (
            "from agentest.config import Config\nconfig = Config(agent={'endpoint': 'http://h'}, nope=1)\n",
            "FILE:2: nope: unknown key `nope`",
        ),
        (
            "config = {'agent': {'endpoint': 'http://h'}, 'thresholds': {5: 1}}\n",
            "FILE: thresholds[5]: found 5",
        ),
    ],
)
def test_a_failing_python_configuration_is_reported(folder: Folder, text: str, said: str) -> None:
    """A module that fails is reported with line and traceback, a wrong value as in any other file."""
    assert said in folder.python_problem(text)


def test_tracebacks_show_only_user_files(folder: Folder) -> None:
    """The traceback of a configuration shows the user's files."""
    (folder.root / "config_helper.py").write_text("def go():\n    raise KeyError('deep')\n")
    said = folder.python_problem("import config_helper\nconfig_helper.go()\n")
    assert "KeyError: 'deep'" in said
    assert "config_helper.py" in said
    assert re.findall(r'File "([^"]+)"', said) == ["FILE", str(folder.root / "config_helper.py")]


# Agents by name, and comparison


def test_agents_are_named_by_their_keys(folder: Folder) -> None:
    """An entry of `agents` is named by its key, unless it names itself."""
    text = (
        "agents: {b: {endpoint: http://b}, c: {name: other, endpoint: http://c}, "
        "d: {type: custom, handler: a:b}}\n"
    )
    agents = folder.config(AGENT + text).agents
    assert {key: agent.name for key, agent in agents.items()} == {"b": "b", "c": "other", "d": "d"}


def test_compare_overrides_the_agent(folder: Folder) -> None:
    """An entry of `compare` is the agent with `body` merged shallowly and the rest replaced."""
    text = (
        "agent:\n  endpoint: http://h\n  headers: {a: '1', b: '2'}\n"
        "  body: {model: small, options: {x: 1}, seed: 1}\n"
        "compare:\n"
        "  - {name: big, body: {model: big, options: {y: 2}}}\n"
        "  - {name: elsewhere, endpoint: http://e, headers: {c: '3'}}\n"
        "  - {name: whole, type: chat_completions, endpoint: http://w}\n"
        "  - {name: own, type: custom, handler: a:b}\n"
    )
    big, elsewhere, whole, own = folder.config(text).compare
    body = {"model": "small", "options": {"x": 1}, "seed": 1}
    merged = {"model": "big", "options": {"y": 2}, "seed": 1}
    headers = {"a": "1", "b": "2"}
    assert big == ChatCompletionsAgent(name="big", endpoint="http://h", headers=headers, body=merged)
    assert elsewhere == ChatCompletionsAgent(
        name="elsewhere", endpoint="http://e", headers={"c": "3"}, body=body
    )
    assert whole == ChatCompletionsAgent(name="whole", endpoint="http://w")
    assert own == CustomAgent(type="custom", name="own", handler="a:b")


def test_compare_can_replace_a_handler(folder: Folder) -> None:
    """An override of an agent in Python replaces its handler."""
    text = (
        "def one(messages, ctx): ...\ndef two(messages, ctx): ...\n"
        "config = {'agent': {'type': 'custom', 'handler': one}, 'compare': [{'name': 'b', 'handler': two}]}\n"
    )
    [other] = folder.python(text).config.compare
    assert isinstance(other, CustomAgent)
    assert getattr(other.handler, "__name__", None) == "two"


# Secrets


def test_messages_show_no_secrets(folder: Folder) -> None:
    """No message shows the value of a variable, or a value whose key is secret."""
    environ = {"MY_API_KEY": "hunter2-hunter2", "COUNT": "nine"}
    said = folder.problem(AGENT + "max_turns: ${MY_API_KEY}\nconcurrency: ${COUNT}\n", environ)
    assert "max_turns: found '[redacted]'" in said
    assert "concurrency: found 'nine'" in said
    assert "hunter2" not in folder.problem("agent: {endpoint: 'ftp://${MY_API_KEY}'}\n", environ)
    assert "12345678" not in folder.problem(AGENT + "  headers: {Authorization: 12345678}\n")
    assert "12345678" not in folder.problem(AGENT + "provider_options: {api_key: 12345678}\n")


def test_secret_variables_and_headers_are_redacted(folder: Folder) -> None:
    """Values of variables, headers and keys that look secret are hidden wherever text is shown."""
    redact = folder.load(
        "agent:\n  endpoint: http://h/${PATH_PART}\n"
        "  headers: {Authorization: 'Bearer ${T}', X-Plain: visible}\n"
        "agents: {b: {endpoint: http://b, headers: {X-Api-Key: 'key-of-b'}}}\n"
        "judge: {provider_options: {api_key: 'judges-own-key', headers: {cookie: 'crumbs-crumbs'}}}\n"
        "output_dir: ${DB_PASSWORD}\n",
        {"T": "abcd-token-abcd", "PATH_PART": "v1-path", "DB_PASSWORD": "pass-word"},
    ).redact
    secrets = ["abcd-token-abcd", "key-of-b", "judges-own-key", "crumbs-crumbs", "pass-word"]
    shown = redact(f"{' '.join(secrets)} visible v1-path")
    assert shown == "[redacted] [redacted] [redacted] [redacted] [redacted] visible v1-path"


# Instructions of agents


def test_instructions_and_their_files(folder: Folder, tmp_path: Path) -> None:
    """Instructions are in the configuration or in a file next to it; an override replaces either form, and an
    agent without an override keeps those of `agent`."""
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "bot.md").write_text("Be kind.\n")
    config = folder.config(
        "agent: {endpoint: http://h/v1, instructionsFile: prompts/bot.md}\n"
        "agents: {b: {endpoint: http://b/v1, instructions: Be short.}}\n"
        "compare:\n- {name: c}\n- {name: d, instructions: Be exact.}\n"
        "- {name: e, instructions_file: prompts/bot.md}\n"
    )
    assert config.agent.instructions == "Be kind.\n"
    assert config.agents["b"].instructions == "Be short."
    assert [a.instructions for a in config.compare] == ["Be kind.\n", "Be exact.", "Be kind.\n"]
    given = folder.python(
        "config = {'agent': {'type': 'custom', 'handler': print, 'instructions_file': 'prompts/bot.md'}}"
    )
    assert given.config.agent.instructions == "Be kind.\n"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            "instructions: x\n  instructions_file: y",
            "agent: instructions and instructions_file exclude each other",
        ),
        ("instructions: ' '", "FILE:3: agent.instructions: is empty"),
        ("instructions: [x]", "FILE:3: agent.instructions: found a list; expected a text"),
        (
            "instructions_file: missing.md",
            "FILE:3: agent.instructions_file: FOLDER/missing.md does not exist",
        ),
        ("instructions_file: .", "FILE:3: agent.instructions_file: FOLDER cannot be read: Is a directory"),
        ("instructions_file: empty.md", "FILE:3: agent.instructions_file: FOLDER/empty.md is empty"),
        (
            "instructions_file: binary.md",
            "FILE:3: agent.instructions_file: FOLDER/binary.md cannot be read: it is not UTF-8 text",
        ),
    ],
)
def test_wrong_instructions_are_explained(folder: Folder, tmp_path: Path, keys: str, problem: str) -> None:
    """Both forms at once, a wrong type, and an unreadable file are errors that name the key."""
    (tmp_path / "empty.md").write_text("\n")
    (tmp_path / "binary.md").write_bytes(b"\xe9\xff")
    assert problem in folder.problem(AGENT + f"  {keys}\n").replace(str(tmp_path), "FOLDER")


# Spelling


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("matchMode", "match_mode"),
        ("baseURL", "base_url"),
        ("apiKey", "api_key"),
        ("timeoutMs", "timeout_ms"),
        ("toolCalls", "tool_calls"),
        ("snake_case", "snake_case"),
        ("", ""),
    ],
)
def test_snake_case(given_name: str, name: str) -> None:
    """camelCase, with its abbreviations, becomes snake_case; snake_case stays."""
    assert snake_case(given_name) == name


def test_suggestions() -> None:
    """A suggestion is the nearest valid name in any spelling; where none is near, all are shown."""
    assert did_you_mean("maxTurn", ["max_turns", "max_calls"]) == "did you mean `max_turns`?"
    assert did_you_mean("xyz", ["b", "a"]) == "valid are: `a`, `b`"
