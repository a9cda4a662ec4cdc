"""`agentest init`: decide which files a project needs, and write those that are missing."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from zlib import crc32

import yaml

from agentest.agents.http_sender import NO_HEADERS
from agentest.agents.protocol_probe import settings_line
from agentest.cli.main import read_configured_plugins
from agentest.config.agent_types import DEFAULT_TYPE, settings_class
from agentest.config.config import Config
from agentest.config.file import NAMES, repository_root
from agentest.plugin import PLUGINS, Kind
from agentest.plugins.authoring.api_inference import DetectedAgent
from agentest.plugins.authoring.endpoint_detection import detect_agent
from agentest.plugins.authoring.request_examples import RequestExample
from agentest.scenarios.discovery import search
from agentest.support.errors import UsageError, errors_as
from agentest.support.files import path_from, write_atomically
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean

IGNORED = (".agentest/", ".env")  # entries for .gitignore: files that runs write, and keys
CiName = Literal["github", "gitlab"]
CONFIG = "agentest.config.yaml"
DEMO_AGENT = "demo_agent.py"
FIRST = "scenarios/first.sim.py"
SCHEMAS = ("config", "scenarios")  # JSON Schemas for editors: of the configuration, and of `*.sim.yaml`
_REPORTERS = "^(console|"
_NAMED: Mapping[Kind, str] = {"agent type": "chat_completions", "change": "duplicate", "reporter": _REPORTERS}
"""Kinds of features whose names are in the schemas → the first name of a list, or how a pattern begins."""
SCHEMA_FOLDER = ".agentest"
"""Folder of their copies, to which YAML files refer: a path into the installation differs on each machine."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file, and what happened to it."""

    path: Path
    deed: str  # "wrote", "added to" or "stays"
    about: str  # a few words about the file's purpose, or why it was left unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResult:
    """The result of `begin`."""

    files: tuple[WrittenFile, ...]
    notes: tuple[str, ...] = ()  # notes for the user, one sentence each
    step: Literal["run", "check", "complete"]  # the user's next step; "check" a configuration that was there
    is_complete: bool = True  # False if an agent was looked for, and not all of its settings were found


def begin(
    folder: Path,
    endpoint: str | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
    examples: Sequence[RequestExample] = (),
    *,
    demo: bool = False,
    ci: CiName | None = None,
) -> InitResult:
    """Write the missing files. Raises UsageError before anything is written, or as its message says.

    `headers` are those of every request to the endpoint, `examples` are requests to the agent that work.
    """
    if sum(map(bool, (demo, endpoint, examples))) > 1:
        raise UsageError("--demo, --endpoint and --curl or --har exclude each other: each brings an agent")
    folder = folder.absolute()
    existing = next((folder / name for name in NAMES if (folder / name).exists()), None)
    # The demo's scenarios must not run against the user's agent.
    if demo and existing and DEMO_AGENT not in _text_of(existing):
        raise UsageError(
            f"{existing} is there already, and the demo has a configuration of its own: name another folder, "
            "like agentest init demo --demo"
        )
    agent = detect_agent(endpoint, headers, examples) if endpoint or examples else None
    make_folder(folder)
    ci_file = _ci(ci, folder)
    written = (
        *_project(folder, existing, agent, demo=demo),
        ignore(folder),
        *(_schema_copy(name, folder) for name in SCHEMAS),
        *([ci_file] if ci_file else []),
        *(_variables(folder / ".env", agent.variables) if agent else ()),
    )
    notes = list(agent.remarks) if agent else []
    if agent and agent.tried and not agent.is_complete:
        notes.append("\n  ".join(("Tried, in this order:", *agent.tried)))
    if agent and agent.is_known and existing and not _has_agent(existing, agent.settings):
        line = f"For this agent, write in {existing.name}: agent: {{{settings_line(agent.settings)}}}"
        notes.insert(0, line)
    if ci_file and ci_file.deed == "wrote":
        path = path_from(repository_root(folder), ci_file.path)
        if ci_file.path.parent.name == ".gitlab":
            notes.append(f"There is a .gitlab-ci.yml already: write in it\n  include:\n    - local: {path}")
        notes.append(
            f"Replace OWNER in {path} with the account of Agentest's repository: the package is not on an "
            "index yet"
        )
    is_ready = demo or (agent and agent.is_complete and not existing)
    is_other = agent and existing and not _has_agent(existing, {"endpoint": agent.settings["endpoint"]})
    return InitResult(
        files=written,
        notes=tuple(notes),
        step="run" if is_ready else "check" if existing else "complete",
        is_complete=agent is None or (agent.is_complete and not is_other),
    )


def _variables(path: Path, variables: Mapping[str, str]) -> Iterator[WrittenFile]:
    """Write the values that the environment does not have to `.env`."""
    known = _text_of(path) if path.exists() else None
    lines = {n: f"{n}={shlex.quote(v)}" for n, v in variables.items() if os.environ.get(n) != v}
    others = {name for name in lines if re.search(rf"(?m)^[ \t]*(export[ \t]+)?{name}[ \t]*=", known or "")}
    if new := [name for name in lines if name not in others]:
        with _writing(path):
            path.touch(mode=0o600)
            _append_lines(path, known, [lines[name] for name in new])
        yield WrittenFile(path, "added to" if known else "wrote", f"the values of {', '.join(new)}")
    if changed := [name for name in others if lines[name] not in (known or "").splitlines()]:
        yield WrittenFile(
            path, "stays", f"it has other values of {', '.join(changed)}: check which are right"
        )


def _has_agent(config: Path, settings: Mapping[str, Any]) -> bool:
    with suppress(yaml.YAMLError, OSError):
        found = yaml.safe_load(_text_of(config)) if config.suffix != ".py" else None
        known = found if isinstance(found, dict) else {}
        several = known.get("agents")
        agents = [known.get("agent"), *(several.values() if isinstance(several, dict) else ())]
        full = [{"type": DEFAULT_TYPE, **agent} for agent in agents if isinstance(agent, dict)]
        return any(all(agent.get(key) == settings[key] for key in settings) for agent in full)
    return False


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _project(
    folder: Path, existing: Path | None, agent: DetectedAgent | None, *, demo: bool
) -> Iterator[WrittenFile]:
    if existing:
        yield WrittenFile(existing, "stays", "it was there")
    elif demo:
        about = "the agent, and how it is started"
        yield write_new(folder / CONFIG, _demo_config(port_for(folder)), about)
    elif agent:
        hints = _CREDENTIALS + _SERVER
        if agent.is_known:
            hints += _GATEWAY if not settings_class(agent.settings["type"]).shows_own_calls else ""
        text = _config_text(agent.settings, agent.remarks, hints)
        yield write_new(folder / CONFIG, text, f"type: {agent.settings['type']}")
    else:
        text = _config_text({"endpoint": PLACEHOLDER}, _ABOUT_PLACEHOLDER, _CREDENTIALS + _SERVER)
        yield write_new(folder / CONFIG, text, "write your agent's address into it")
    if demo:
        text = (_TEMPLATES / DEMO_AGENT).read_text(encoding="utf-8")
        yield write_new(folder / DEMO_AGENT, text, "a small agent, to try things on")
    include, exclude = (
        Config.model_fields[key].get_default(call_default_factory=True) for key in ("include", "exclude")
    )
    scenario = next(iter(search(folder, include, exclude).files), None)
    if scenario and scenario != folder / FIRST:
        yield WrittenFile(scenario, "stays", "there are scenarios")
    else:
        name = "demo.sim.txt" if demo else "first.sim.txt"
        text = (_TEMPLATES / name).read_text(encoding="utf-8")
        yield write_new(folder / FIRST, text, "what users do, and what must happen")


def schema_text(name: str) -> str:
    """Return a JSON Schema for editors, with the names that the project's plug-ins add."""
    read_configured_plugins()
    text = files("agentest").joinpath(f"schemas/{name}.schema.json").read_text(encoding="utf-8")
    features = {first: PLUGINS.all(kind).items() for kind, first in _NAMED.items()}
    added = {k: [n for n, each in v if not each.path.startswith("agentest.")] for k, v in features.items()}
    return json.dumps(_completed(json.loads(text), added), indent=1) if any(added.values()) else text


def _completed(part: Any, added: Mapping[str, Sequence[str]]) -> Any:
    if isinstance(part, dict):
        return {key: _completed(value, added) for key, value in part.items()}
    if isinstance(part, list):
        more = [name for first, names in added.items() if first in part for name in names]
        return [_completed(value, added) for value in part] + more
    if isinstance(part, str) and part.startswith(_REPORTERS):
        return part.replace("^(", f"^({''.join(f'{re.escape(name)}|' for name in added[_REPORTERS])}", 1)
    return part


def _schema_copy(name: str, folder: Path) -> WrittenFile:
    path, text = folder / SCHEMA_FOLDER / f"{name}.schema.json", schema_text(name)
    if path.exists() and _text_of(path) != text:
        with _writing(path):
            write_atomically(path, text.encode())
        return WrittenFile(path, "wrote", "of this version, for editors")
    return write_new(path, text, "lets editors complete keys")


def _ci(ci: CiName | None, folder: Path) -> WrittenFile | None:
    if ci is None:
        return None
    root = repository_root(folder)
    path, gitlab = root / ".github/workflows/agentest.yml", root / ".gitlab-ci.yml"
    if ci == "gitlab":
        is_own = not gitlab.exists() or (
            gitlab.is_file() and _text_of(gitlab).startswith("# Written by `agentest")
        )
        path = gitlab if is_own else root / ".gitlab/agentest.gitlab-ci.yml"
    text = ci_text(ci, PurePosixPath(folder.relative_to(root).as_posix()))
    return write_new(path, text, "runs the scenarios for every change")


def ci_text(ci: CiName, folder: PurePosixPath) -> str:
    """Return a workflow or job for a project in this folder of its repository; `.` is the root."""
    is_root = str(folder) == "."
    if ci == "github":
        where = f"    defaults:\n      run:\n        working-directory: {_yaml_scalar(str(folder))}\n"
    else:
        where = f"    - {_yaml_scalar(f'cd {shlex.quote(str(folder))}')}\n"
    text = (_TEMPLATES / f"{ci}.yml").read_text(encoding="utf-8")
    text = text.replace("    # WORKING-DIRECTORY\n", "" if is_root else where)
    return text.replace("FOLDER", "" if is_root else f"{folder}/")


def make_folder(path: Path) -> None:
    """Create a folder with its parents. Raises UsageError."""
    with _writing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise UsageError(f"{path} is a file, and a folder is expected; name another DIR") from None


def write_new(path: Path, text: str, about: str) -> WrittenFile:
    """Write a file and create its folder, unless the file exists. Raises UsageError."""
    if path.parent.exists() or not path.parent.is_symlink():
        make_folder(path.parent)
    with _writing(path):
        try:
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            return WrittenFile(path, "stays", "it was there")
    return WrittenFile(path, "wrote", about)


def ignore(folder: Path) -> WrittenFile:
    """Add missing entries to .gitignore. Raises UsageError."""
    path = folder / ".gitignore"
    with _writing(path):
        known = path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else None
        lines = {line.strip().lstrip("/").rstrip("/*") for line in (known or "").splitlines()}
        missing = [entry for entry in IGNORED if entry.rstrip("/") not in lines]
        if missing:
            _append_lines(path, known, missing)
    if not missing:
        return WrittenFile(path, "stays", f"it has {' and '.join(IGNORED)}")
    return WrittenFile(path, "wrote" if known is None else "added to", " and ".join(missing))


def _append_lines(path: Path, known: str | None, entries: list[str]) -> None:
    end = "\r\n" if known and "\r\n" in known else "\n"
    before = end if known and not known.endswith("\n") else ""
    with path.open("ab") as file:
        file.write((before + "".join(entry + end for entry in entries)).encode())


def _writing(path: Path) -> AbstractContextManager[None]:
    return errors_as(
        UsageError,
        f"{path} cannot be written. Files written before it stay; fix its permissions, or name another DIR, "
        "and run agentest init again: ",
        OSError,
    )


_FIRST, _MANY = 10_000, 10_000  # below the ports that systems assign to outgoing connections


def port_for(folder: Path) -> int:
    """Return a free port, which is usually the same for the same folder.

    Two demos on one machine get different ports, so that neither mistakes the other's agent for its own.
    """
    start = crc32(str(folder.resolve()).encode("utf-8", "surrogateescape"))
    for step in range(_MANY):
        port = _FIRST + (start + step) % _MANY
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    return _FIRST


PLACEHOLDER = "http://localhost:8000/v1/chat/completions"
_ABOUT_PLACEHOLDER = (
    "Replace the endpoint with your agent's. If it does not speak chat completions, it needs a `type`: start",
    "the agent and run `agentest doctor`, which detects it. For an API of its own, `agentest init FOLDER",
    "--curl 'curl …'` writes these lines for a request that works, and `agentest docs http` explains them.",
)
_TEMPLATES = Path(__file__).parent / "templates"
_HEAD = f"""\
# yaml-language-server: $schema={SCHEMA_FOLDER}/config.schema.json
# The agent under test, and the settings of runs. Written by `agentest init`.
"""
_CREDENTIALS = """\
  # headers: # ${NAME} is a variable of the environment, or of a file .env next to this file
  #   Authorization: "Bearer ${AGENT_TOKEN}"
"""
_SERVER = """\
  # server: # starts the agent before the first scenario and stops it after the run
  #   command: python my_agent.py
  #   ready: http://localhost:8000/health
"""
_GATEWAY = """\
  # model_gateway: {port: 8900} # its reply had no tool calls: this shows them, and mocks can answer.
  #   `agentest doctor` then prints the command that starts your agent. With `server`, write true.
"""
_REST = """
# The model plays simulated users and judges. Without one, runs are offline: no judge is called.
# model: openai/gpt-5-mini # put its key, OPENAI_API_KEY, into the environment or into .env

# conversations_per_scenario: 3 # for simulated users; scripts run once
# thresholds: {helpfulness: 4, goal_completion: 0.8, pass_rate: 0.9}
reporters: [console, json]
"""


def _demo_config(port: int) -> str:
    origin = f"http://127.0.0.1:{port}"
    server = {"command": f"python demo_agent.py --port {port}", "ready": f"{origin}/health"}
    agent = {"name": "demo", "endpoint": f"{origin}/v1/chat/completions", "server": server}
    return _config_text(agent, (), "")


def _config_text(agent: Mapping[str, Any], remarks: tuple[str, ...], hints: str) -> str:
    lines = [line for remark in remarks for line in remark.splitlines()]
    comments = "".join(f"# {clean(line)}\n" for line in lines)
    settings = yaml.safe_dump({"agent": dict(agent)}, sort_keys=False, allow_unicode=True, width=1000)
    return f"{_HEAD}{comments}{settings}{hints}{_REST}"


def _yaml_scalar(text: str) -> str:
    return yaml.safe_dump(text, width=1000).splitlines()[0]
