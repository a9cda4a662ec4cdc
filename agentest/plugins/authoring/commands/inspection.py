"""Check the source of a scenario file, or explain the configuration, without running anything.

A separate program, because it imports the project's code, which may have changed since the last time:

    python -B -m agentest.plugins.authoring.commands.inspection OUTPUT REQUEST

REQUEST is JSON: `{"root", "config", "source", "path"}`, without the last two for the configuration.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentest.config.file import LoadedConfig
from agentest.domain.results import ScenarioResult, Status
from agentest.plugins.authoring.agent_checks import agents_to_check, check_calls
from agentest.runner.agents import check_mocks
from agentest.runner.plan import Options, Plan, Unit, make_plan
from agentest.runner.prepare import RunRequest, configure, prepared_for
from agentest.scenarios.discovery import discover, discover_file
from agentest.support.errors import UsageError
from agentest.support.files import shown_path
from agentest.support.importing import Imports
from agentest.support.json_text import Json, encoded, json_or, plain
from agentest.support.text import shortened

_VALUE_CHARS = 300


def check_source(request: RunRequest, path: Path, source: str) -> Json:
    """Return the problems of a scenario file's source, with their lines, and the scenarios that it defines.

    Args:
        path: where the file would be saved; it decides which modules can be imported.

    Raises UsageError if the configuration has a mistake.
    """
    loaded = configure(request)
    config = loaded.config
    mine = shown_path(path, request.root)
    # The names of the other files' scenarios are taken.
    others = discover(request.root, config.include, [*config.exclude, mine], (), loaded.path).scenarios
    found = discover_file(path, Imports(), others, request.root, source.encode())
    found = found.redacted(loaded.redact)
    plan = make_plan(loaded, found, request.options, request.root, others)
    problems = [*_problems(plan), *_unreachable_mocks(plan, loaded, mine)]
    if not found.scenarios and not problems:
        problems.append({"line": 1, "message": f"{mine} defines no scenario: call scenario(…)"})
    return {
        "valid": not problems,
        "path": mine,
        "problems": problems,
        "scenarios": [_scenario(unit) for unit in plan.entries if isinstance(unit, Unit)],
    }


def explain(request: RunRequest) -> Json:
    """Return the settings of the configuration, its agents, the models, and what stands in the way of a run.

    Raises UsageError if the configuration has a mistake.
    """
    loaded = configure(request)
    problems: list[str] = []
    models: dict[str, str | None] = {}
    try:
        models = prepared_for(request, loaded, Plan((), {}, False, units=())).model_names
    except UsageError as error:
        problems.append(loaded.redact(str(error)))
    return {
        "file": str(loaded.path),
        "settings": _settings(loaded, given=True),
        "defaults": _settings(loaded, given=False),
        "agents": list(_agents(request, loaded)),
        "models": models,
        "problems": problems,
    }


def _problems(plan: Plan) -> Iterator[Json]:
    for entry in plan.entries:
        if isinstance(entry, ScenarioResult) and entry.verdict.status is Status.ERRORED:
            place, message = f"{entry.file}:{entry.line}: ", entry.verdict.reasons[0].message
            for each in message.removeprefix(place).split(f"\n{place}"):
                yield {"line": entry.line, "message": each}


def _unreachable_mocks(plan: Plan, loaded: LoadedConfig, file: str) -> Iterator[Json]:
    try:
        check_mocks(plan)
    except UsageError as error:
        message = loaded.redact(str(error))
        lines = [unit.scenario.line for unit in plan.units if f"{file}:{unit.scenario.line}" in message]
        yield {"line": lines[0] if lines else None, "message": message}


def _scenario(unit: Unit) -> Json:
    scenario = unit.scenario
    return {
        "name": scenario.name,
        "line": scenario.line,
        "agent": unit.agent,
        "kind": "scripted" if scenario.scripted else "simulated",
        "conversations": unit.conversations,
        "mocks": sorted(scenario.tools),
    }


def _settings(loaded: LoadedConfig, *, given: bool) -> Json:
    config = loaded.config
    names = [name for name in type(config).model_fields if (name in config.model_fields_set) is given]
    return {name: _value(loaded, getattr(config, name)) for name in names}


def _value(loaded: LoadedConfig, value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    content = plain(dump(exclude_unset=True) if dump else value)
    text = loaded.redact(json.dumps(content, ensure_ascii=False))
    short = shortened(text, _VALUE_CHARS)
    return json_or(text, short) if len(text) <= _VALUE_CHARS else short  # a redacted secret can end a text


def _agents(request: RunRequest, loaded: LoadedConfig) -> Iterator[Json]:
    for agent in agents_to_check(request, loaded, None):
        calls = check_calls(agent)
        yield {
            "name": agent.name,
            "type": agent.config.type,
            "address": loaded.redact(agent.config.address),
            "calls": calls.text,
            "advice": calls.advice,
        }


def main(arguments: list[str]) -> None:
    """Write the answer to the file given as the first argument."""
    wanted = json.loads(arguments[1])
    root, config = Path(wanted["root"]), wanted.get("config")
    os.chdir(root)
    offline = "source" in wanted
    request = RunRequest(root, Path(config) if config else None, Options(offline=offline))
    try:
        content = (
            check_source(request, root / wanted["path"], wanted["source"]) if offline else explain(request)
        )
    except UsageError as error:
        content = {"error": str(error)}
    Path(arguments[0]).write_bytes(encoded(content))


if __name__ == "__main__":
    main(sys.argv[1:])
