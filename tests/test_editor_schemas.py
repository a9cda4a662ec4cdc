"""The JSON Schemas for editors: up to date, and consistent with the program."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from editor_schemas import FOLDER, GENERATORS, text_of
from jsonschema import Draft7Validator

from agentest.config.file import load
from agentest.scenarios.discovery import discover
from agentest.support.errors import ConfigError

ROOT = Path(__file__).parents[1]
ENVIRON = {"AGENT_TOKEN": "t", "PORT": "8000", "TURNS": "4", "PARALLEL": "no"}


def validator(name: str) -> Draft7Validator:
    return Draft7Validator(json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")))


CONFIG, SCENARIOS = validator("config"), validator("scenarios")


def as_editors_read(text: str) -> Any:
    """A YAML document as JSON: dates are texts."""

    def converted(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: converted(item) for key, item in value.items()}
        if isinstance(value, list):
            return [converted(item) for item in value]
        return value.isoformat() if isinstance(value, datetime.date) else value

    return converted(yaml.safe_load(text))


@pytest.mark.parametrize("name", GENERATORS)
def test_the_stored_schema_is_up_to_date(name: str) -> None:
    """It matches models and signatures; `python tests/support/editor_schemas.py` rewrites it."""
    stored = (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    Draft7Validator.check_schema(json.loads(stored))
    if name == "config" and tuple(map(int, pydantic.VERSION.split(".")[:2])) < (2, 14):
        pytest.skip("older versions of pydantic describe fewer keys")
    assert stored == text_of(name)


def documented() -> Iterator[Any]:
    """All YAML in the documentation, the examples and the project's own folders."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for match in re.finditer(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
            yield pytest.param(match[1], id=f"{page.name}:{page.read_text()[: match.start()].count(chr(10))}")
    for folder in ("examples", "scenarios"):
        for path in sorted((ROOT / folder).rglob("*.yaml")):
            yield pytest.param(path.read_text(encoding="utf-8"), id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize("text", list(documented()))
def test_documented_files_fit_the_schemas(text: str) -> None:
    """Every configuration and scenario file that users may copy is valid in their editor.

    The schemas have what Agentest hands in itself, so those of the example plug-in are left out.
    """
    data = as_editors_read(text)
    if isinstance(data, dict) and data.get("agent", {}).get("type") == "acme":
        pytest.skip("an agent type of another package")
    if isinstance(data, dict) and "agent" in data:
        CONFIG.validate(data)
    elif isinstance(data, dict) and "scenarios" in data:
        SCENARIOS.validate(data)


HTTP = "agent: {endpoint: 'http://localhost:8000'}\n"
GOOD_CONFIGS = [
    HTTP,
    "agent: {endpoint: 'http://localhost:${PORT}', headers: {Authorization: 'Bearer ${AGENT_TOKEN}'}}\n",
    HTTP
    + "maxTurns: 4\nconversationsPerScenario: 2\njudge: {batch: false, confirm: openai/gpt-5, samples: 3}\n",
    HTTP + "max_turns: '${TURNS}'\nconcurrency: '5'\nparallel: '${PARALLEL}'\nstrict: 'yes'\n",
    HTTP + "repeat: 3..20\ndate: 2024-05-15\nreporters: [console, junit=out.xml]\nmodel: null\n",
    HTTP + "repeat: {min: 3, max: 9}\nthresholds: {pass_rate: 0.9}\nmetrics: [goalCompletion]\n",
    HTTP
    + "compare:\n  - {name: b, body: {model: x}}\n  - {name: c, type: a2a, endpoint: 'http://localhost:1'}\n",
    HTTP + "servers: {db: {command: [db], ready: 'tcp://localhost:1', watch: src, timeoutS: 5}}\n",
    HTTP + "agents:\n  other: {type: command, command: [python, a.py]}\n",
    "agent: {app: 'pkg.mod:app'}\n",
    "agent: {type: http, endpoint: 'http://localhost:1', body: {m: '{{message}}'}, reply: answer,\n"
    "  setup: {endpoint: 'http://localhost:1/s', save: {sid: id}}}\n",
    "agent: {type: custom, handler: 'pkg.mod:agent', tools: [search, {name: pay, parameters: {}}]}\n",
    "agent: {type: a2a, endpoint: 'http://localhost:1', protocolVersion: 1.0, traces: {port: 4318}}\n",
    "agent: {endpoint: 'http://localhost:{port}/', modelGateway: true, exclusive: true,\n"
    "  server: {command: 'a {port}', ready: 'http://localhost:{port}/'}, mcp_mock: false}\n",
]
BAD_CONFIGS = [
    "{}\n",
    "agent: {}\n",
    "agent: http://localhost\n",
    "agent: {endpoint: 'http://localhost:1', headrs: {}}\n",
    "agent: {type: htp, endpoint: 'http://localhost:1'}\n",
    "agent: {type: a2a}\n",
    "agent: {type: a2a, endpoint: 'http://localhost:1', handler: x}\n",
    "agent: {type: command, command: python agent.py}\n",
    "agent: {type: custom}\n",
    "agent: {endpoint: 'http://localhost:1', server: {command: x}}\n",
    "agent: {endpoint: 'http://localhost:1', tool_visibility: seen}\n",
    HTTP + "max_turn: 4\n",
    HTTP + "max_turns: many\n",
    HTTP + "max_turns: 0\n",
    HTTP + "max_turns: true\n",
    HTTP + "strict: perhaps\n",
    HTTP + "reporters: [consol]\n",
    HTTP + "reporters: console\n",
    HTTP + "include: '**/*.sim.py'\n",
    HTTP + "provider: opnai\n",
    HTTP + "judge: {sample: 3}\n",
    HTTP + "judge: {batch: all}\n",
    HTTP + "user: {temperature: warm}\n",
    HTTP + "thresholds: {pass_rate: high}\n",
    HTTP + "fail_on_error_severity: worst\n",
    HTTP + "unmocked_tools: pass\n",
    HTTP + "goal: x\n",
    HTTP + "repeat: 3..4\nconversations_per_scenario: 4\n",
    HTTP + "compare: [{body: {model: x}}]\n",
    HTTP + "compare: [{name: b, bodi: {model: x}}]\n",
]


@pytest.mark.parametrize("text", [*GOOD_CONFIGS, *BAD_CONFIGS])
def test_editor_and_program_agree_on_configurations(tmp_path: Path, text: str) -> None:
    """The schema accepts what the program accepts, and rejects common mistakes."""
    path = tmp_path / "agentest.config.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        load(path, dict(ENVIRON))
        problem = ""
    except ConfigError as error:
        problem = str(error)
    assert bool(problem) == (text in BAD_CONFIGS), problem
    errors = [error.message for error in CONFIG.iter_errors(as_editors_read(text))]
    assert bool(errors) == bool(problem), (errors, problem)


GOOD_SCENARIOS = [
    "{name: a, goal: g}",
    "{name: a, turns: [x, {userMessage: y, expect: {says: z, maxWords: 5, regex: {regex: a,"
    " ignoreCase: true}}}]}",
    "{name: a, goal: g, tools: {t: 5, u: {sequence: [1, {error: x}]},"
    " v: {httpResponse: {status: 404}}, w: {error: 1}}}",
    "{name: a, goal: g, trajectory: {matchMode: inOrder, expected: [a, {name: b,"
    " args: {x: {one_of: [1, 2]}}},"
    " {any_of: [c, d]}, {exactly: {name: e}}], reads: 'get_*', max_calls_per_tool: {a: 1}}}",
    "{name: a, goal: g, trajectory: [{before: [a, b]}, {name: n, expectedWrites: [c],"
    " forbidden: {name: d}}]}",
    "{name: a, goal: g, trajectory: {forbidden: [{regex: 'x.*', flags: i}], never_after: [[a, b], [c, d]]}}",
    "{name: a, goal: g, assertions: {toolCalls: {expected: []}}, mocks: {tools: {t: x}}, user_tools: {t: 1}}",
    "{name: a, goal: g, expect: [{says: {number: 5}, in_turn: 0}, {neverSays: [a,"
    " {regex: b}]}], max_turns: null}",
    "{name: a, goal: g, criteria: [x, {text: y, required: false}], modelFaults: [timeout,"
    " {kind: refusal, at: 2}]}",
    "{name: a, goal: g, session: {state: {a: 1}}, skip: later, repeat: 3..5, date: 2024-05-15,"
    " parallel: false}",
    "{name: a, goal: g, repeat: {min: 3}, knowledge: [x, {content: y}], thresholds: {passRate: 1}, tags: []}",
    "{name: 'a {n}', each: [{n: 1}], turns: ['{n}'], max_turns: '{n}', trajectory: {max_calls: '{n}'}}",
    "{each: [{name: x, goal: g}]}",
]
BAD_SCENARIOS = [
    "{goal: g}",
    "{name: a}",
    "{name: 5, goal: g}",
    "{name: a, gaol: g}",
    "{name: a, goal: g, turns: []}",
    "{name: a, turns: x}",
    "{name: a, turns: [{message: x}]}",
    "{name: a, turns: [{user_message: x, expect: {contain: y}}]}",
    "{name: a, turns: [{user_message: x, expect: {}}]}",
    "{name: a, turns: [{user_message: x, expect: {says: 5}}]}",
    "{name: a, turns: [x], max_turns: two}",
    "{name: a, turns: [x], tags: t}",
    "{name: a, turns: [x], check: f}",
    "{name: a, turns: [x], tools: [t]}",
    "{name: a, turns: [x], tools: {t: {sequence: []}}}",
    "{name: a, turns: [x], tools: {t: {http_response: {statu: 404}}}}",
    "{name: a, turns: [x], tools: {t: {sequence: [{http_response: {status: 99}}]}}}",
    "{name: a, turns: [x], trajectory: {match_mode: exact, expected: [a]}}",
    "{name: a, turns: [x], trajectory: {match_mode: strict}}",
    "{name: a, turns: [x], trajectory: {expectd: [a]}}",
    "{name: a, turns: [x], trajectory: {expected: [{name: a, arg: {x: 1}}]}}",
    "{name: a, turns: [x], trajectory: {expected: [{args: {x: 1}}]}}",
    "{name: a, turns: [x], trajectory: {expected: [5]}}",
    "{name: a, turns: [x], trajectory: {expected: [a], max_calls: -1}}",
    "{name: a, turns: [x], trajectory: a}",
    "{name: a, turns: [x], expect: {say: y}}",
    "{name: a, turns: [x], expect: {in_turn: 0}}",
    "{name: a, turns: [x], expect: {says: {txt: y}}}",
    "{name: a, turns: [x], model_faults: [slow]}",
    "{name: a, turns: [x], criteria: [{txt: y}]}",
    "{name: a, turns: [x], session: {stat: {}}}",
    "{name: a, turns: [x], final_state: {}}",
    "{name: a, turns: [x], thresholds: {pass_rate: high}}",
    "{name: a, turns: [x], skip: ''}",
    "{name: a, turns: [x], each: []}",
]


@pytest.mark.parametrize("entry", [*GOOD_SCENARIOS, *BAD_SCENARIOS])
def test_editor_and_program_agree_on_scenarios(tmp_path: Path, entry: str) -> None:
    """The schema accepts what the program accepts, and rejects common mistakes."""
    text = f"scenarios:\n  - {entry}\n"
    (tmp_path / "a.sim.yaml").write_text(text, encoding="utf-8")
    problems = discover(tmp_path, ["*.sim.yaml"], []).problems
    assert bool(problems) == (entry in BAD_SCENARIOS), problems
    errors = [error.message for error in SCENARIOS.iter_errors(as_editors_read(text))]
    assert bool(errors) == bool(problems), (errors, problems)


@pytest.mark.parametrize(
    "text", ["", "scenario: []\n", "scenarios: {}\n", "scenarios: []\n", "defaults: {name: x}\n"]
)
def test_editor_and_program_agree_on_the_top_level(tmp_path: Path, text: str) -> None:
    """A file without its list of scenarios is wrong for both."""
    (tmp_path / "a.sim.yaml").write_text(text, encoding="utf-8")
    assert discover(tmp_path, ["*.sim.yaml"], []).problems
    assert list(SCENARIOS.iter_errors(as_editors_read(text)))
