"""Finding and reading the configuration file: YAML or Python, `.env`, `${VAR}`, errors with key and line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from dotenv import dotenv_values
from pydantic import BaseModel, ValidationError

from agentest.config import AGENT_CLASSES, AGENT_KEYS, AGENT_TYPES, Config, HttpAgent, Section
from agentest.errors import ConfigError
from agentest.importing import import_file, user_traceback
from agentest.redact import (
    HIDDEN,
    Redactor,
    environment_secrets,
    header_secrets,
    looks_secret,
    secret_values,
    url_secrets,
)
from agentest.spelling import did_you_mean, snake_case

NAMES = ("agentest.config.py", "agentest.config.yaml", "agentest.config.yml")
_VARIABLE = re.compile(r"\$(?P<escaped>\$)?\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")

Path_ = tuple[str | int, ...]
"""Where a value stands in the file: keys and list indices from the top."""

_TEXT_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
_MOST_REPEATED = 100_000
"""How many values aliases (`*name`) may add to those that a file has: as many a machine reads in a second."""
_CHARACTERS_A_VALUE = 100
"""A long text that is repeated counts as several values."""
_TOO_DEEP = "is nested too deeply, or a part of it contains itself"
_OURS = re.compile(r" or instance of \w+")
_UNION_MEMBERS = ("str", "list[str]", "callable", "[key]")


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, where it came from, and what must never be shown."""

    config: Config
    path: Path
    redact: Redactor = field(default_factory=Redactor)


def find(root: Path) -> Path:
    """The configuration file of a working directory. Raises ConfigError when there is none."""
    for name in NAMES:
        if (root / name).is_file():
            return root / name
    raise ConfigError(
        f"no configuration found in {root}: expected {NAMES[0]}, {NAMES[1]} or {NAMES[2]}. "
        "Write one with at least\n  agent:\n    endpoint: http://localhost:8000/v1/chat/completions\n"
        "or name another file with --config PATH."
    )


def load(path: Path, environ: MutableMapping[str, str] = os.environ) -> LoadedConfig:
    """Read and check a configuration file.

    A `.env` file beside it is read into `environ` first, without overriding what is there. Raises
    ConfigError that names the file, the key (and its line in YAML), what was found and what was expected.
    """
    if not path.is_file():
        raise ConfigError(f"configuration file {path} does not exist")
    _read_dotenv(path.parent / ".env", environ)
    data, lines = _read_python(path, environ) if path.suffix == ".py" else _read_yaml(path)
    used: dict[str, str] = {}
    try:
        config = Config.model_validate(_interpolate(data, environ, used))
    except _Unset as unset:
        raise ConfigError(
            f"{_place(path, unset.path, lines)}: the environment variable {unset.name} is not set. "
            f"Set it, or give a default: ${{{unset.name}:-default}}"
        ) from None
    except ValidationError as error:
        redact = Redactor([*secret_values(used), *environment_secrets(environ)])
        raise ConfigError(_describe(error, path, lines, redact)) from None
    except RecursionError:
        raise ConfigError(f"{path}: {_TOO_DEEP}") from None
    secrets = [*secret_values(used), *environment_secrets(environ), *secrets_of(config)]
    return LoadedConfig(config, path, Redactor(secrets))


def _read_dotenv(path: Path, environ: MutableMapping[str, str]) -> None:
    try:
        found = dotenv_values(path)
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    for name, value in found.items():
        if value is not None:
            environ.setdefault(name, value)


def _read_python(path: Path, environ: Mapping[str, str]) -> tuple[Any, dict[Path_, int]]:
    redact = Redactor(environment_secrets(environ))
    try:
        module = import_file(path)
    except KeyboardInterrupt:
        raise
    except ValidationError as error:  # of a Config(…) that the module makes
        raise ConfigError(_describe(error, path, {(): user_traceback(error, path)[1]}, redact)) from None
    except BaseException as error:  # noqa: BLE001 - the user's module may raise anything, sys.exit() too
        shown, line = user_traceback(error, path)
        raise ConfigError(f"{path}:{line}: importing the configuration failed\n{redact(shown)}") from None
    if not hasattr(module, "config"):
        raise ConfigError(f"{path}: the module has no `config`; write config = {{'agent': …}}")
    if not isinstance(module.config, Config | Mapping):
        raise ConfigError(
            f"{path}: `config` is of type {type(module.config).__name__}, expected a dict or Config"
        )
    return module.config, {}


def _read_yaml(path: Path) -> tuple[Any, dict[Path_, int]]:
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            _Sizes(path).measure(node)
        data = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{path}{line}: the YAML does not parse: {problem}") from None
    except ValueError as error:  # a date like 2024-13-45
        raise ConfigError(f"{path}: the YAML does not parse: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: {_TOO_DEEP}") from None
    if node is None or not isinstance(data, dict):
        found = "is empty" if data is None else f"holds a {type(data).__name__}"
        raise ConfigError(f"{path}: {found}, expected keys and values, at least `agent`")
    lines: dict[Path_, int] = {}
    try:
        _note_lines(node, (), lines, path)
    except RecursionError:
        raise ConfigError(f"{path}: {_TOO_DEEP}") from None
    return data, lines


class _Sizes:
    """How many values each node of a file stands for, its aliases written out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[yaml.Node, int] = {}
        self._entered: set[yaml.Node] = set()
        self._written = 0
        """What the nodes looked at so far come to without repetitions."""

    def measure(self, node: yaml.Node) -> int:
        """Raises ConfigError where aliases would make a node endlessly long."""
        if node in self._entered and node not in self._sizes:
            raise RecursionError  # the node is a part of itself
        if node not in self._sizes:
            self._entered.add(node)
            own = 1 + (len(node.value) // _CHARACTERS_A_VALUE if _is_text(node) else 0)
            self._written += own
            self._sizes[node] = own + sum(map(self.measure, _parts(node)))
            if self._sizes[node] - self._written > _MOST_REPEATED:
                raise self._too_many(node.start_mark.line + 1)
        return self._sizes[node]

    def _too_many(self, line: int) -> ConfigError:
        return ConfigError(
            f"{self._path}:{line}: aliases (`*name`) repeat parts of the file so often that more than "
            f"{_MOST_REPEATED:,} values come of it; write out what is really needed"
        )


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
    """What the node directly holds."""
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair


def _note_lines(node: yaml.Node, at: Path_, lines: dict[Path_, int], path: Path) -> None:
    """Note the line of every key and list item; refuse a key that is no text or is given twice."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[*at, index] = item.start_mark.line + 1
            _note_lines(item, (*at, index), lines, path)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            where = f"{path}:{line}: the key `{_dotted((*at, key))}`"
            if key_node.tag not in _TEXT_TAGS:
                raise ConfigError(f"{where} is not a text for YAML; put it in quotes")
            if key in seen and key != "<<":
                raise ConfigError(f"{where} is given twice, first on line {seen[key]}")
            seen[key] = line
            lines[*at, snake_case(key)] = line
            _note_lines(value_node, (*at, snake_case(key)), lines, path)


class _Unset(Exception):
    def __init__(self, name: str, path: Path_) -> None:
        self.name = name
        self.path = path


def _interpolate(value: Any, environ: Mapping[str, str], used: dict[str, str], at: Path_ = ()) -> Any:
    """The value with `${VAR}` replaced in every string; `$${VAR}` stays as `${VAR}`."""
    if isinstance(value, str):
        return _fill(value, environ, used, at)
    if isinstance(value, Section):
        value = _given(value)
    if isinstance(value, Mapping):
        return {k: _interpolate(v, environ, used, (*at, k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_interpolate(v, environ, used, (*at, i)) for i, v in enumerate(value)]
    return value


def _given(section: Section) -> dict[str, Any]:
    """What a Python configuration gave a section. Its `type` makes an agent of `compare` a whole one."""
    names = {*section.model_fields_set, *({"type"} & type(section).model_fields.keys())}
    return {name: getattr(section, name) for name in type(section).model_fields if name in names}


def _fill(text: str, environ: Mapping[str, str], used: dict[str, str], at: Path_) -> str:
    def replace(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match[0][1:]
        name, default = match["name"], match["default"]
        value = environ.get(name)
        if value is None or (value == "" and default is not None):
            if default is None:
                raise _Unset(name, at)
            return default
        used[name] = value
        return value

    return _VARIABLE.sub(replace, text)


def secrets_of(config: Config) -> list[str]:
    """What a configuration holds that must not be shown, wherever it came from."""
    secrets: list[str] = []
    for agent in (config.agent, *config.agents.values(), *config.compare):
        if isinstance(agent, HttpAgent):
            secrets += _agent_secrets(agent)
    for options in (config.provider_options, config.user.provider_options, config.judge.provider_options):
        secrets += [*header_secrets(options.headers), *url_secrets(options.base_url or "")]
        secrets += [options.api_key] if options.api_key else []
    return secrets


def _agent_secrets(agent: HttpAgent) -> list[str]:
    secrets = [*url_secrets(agent.endpoint), *header_secrets(agent.headers)]
    if agent.server:
        secrets += [*url_secrets(agent.server.ready), *secret_values(agent.server.env)]
    return secrets


def _describe(error: ValidationError, path: Path, lines: dict[Path_, int], redact: Redactor) -> str:
    problems: dict[str, str] = {}
    for details in error.errors(include_url=False):
        at = _place_of(details)
        # A value that may be of two types fails as both of them: once is enough.
        problems.setdefault(_place(path, at, lines), _problem(details, at, redact))
    return "\n".join(f"{place}: {problem}" for place, problem in problems.items())


def _problem(details: Any, at: Path_, redact: Redactor) -> str:
    kind, found = details["type"], details["input"]
    if kind == "extra_forbidden":
        return _unknown_key(details["loc"])
    if kind == "union_tag_invalid":
        name = details["ctx"]["tag"]
        return f"there is no agent type {name!r}; {did_you_mean(name, AGENT_TYPES)}"
    if kind == "missing":
        return "the key is missing"
    message = _OURS.sub("", details["msg"].removeprefix("Value error, "))
    shown = _shown(found, at, redact)
    if kind == "value_error" or shown is None:
        return redact(message)
    return f"found {shown}; {message[0].lower()}{message[1:]}"


def _shown(found: Any, at: Path_, redact: Redactor) -> str | None:
    if isinstance(found, str | int | float | bool) or found is None:
        secret = found is not None and any(looks_secret(str(part)) for part in at)
        return HIDDEN if secret else redact.error(repr(found))
    return None


def _place_of(details: Any) -> Path_:
    """Where the problem is, without the levels that pydantic puts in and the user's file does not have."""
    loc, kind = details["loc"], details["type"]
    tag_at = {"agent": 1, "agents": 2, "compare": 2}.get(loc[0] if loc else "")
    if kind == "union_tag_invalid":
        return (*loc, "type")
    if tag_at and len(loc) > tag_at:
        loc = (*loc[:tag_at], *loc[tag_at + 1 :])
    if loc and kind not in ("extra_forbidden", "missing") and loc[-1] in _UNION_MEMBERS:
        loc = loc[:-1]
    return tuple(loc)


def _unknown_key(loc: Path_) -> str:
    """What is valid where an unknown key was found; `loc` as pydantic tells it, with the type of an agent."""
    key, section = str(loc[-1]), _section_at(loc[:-1])
    hint = did_you_mean(key, section.model_fields)
    if issubclass(section, AGENT_CLASSES) and snake_case(key) in AGENT_KEYS:
        names = ", ".join(f"`{name}`" for name in sorted(section.model_fields))
        hint = f"an agent of this type takes {names}"
    return f"unknown key `{key}`; {hint}"


def _section_at(loc: Path_) -> type[BaseModel]:
    """The section in which a key stands."""
    section: type[BaseModel] = Config
    parts = loc
    if parts and parts[0] in ("agent", "agents", "compare"):
        tag_at = 1 if parts[0] == "agent" else 2
        section, parts = AGENT_CLASSES[AGENT_TYPES.index(str(parts[tag_at]))], parts[tag_at + 1 :]
    for part in parts:
        info = section.model_fields.get(str(part))
        section = _section_of(info.annotation if info else None) or section
    return section


def _section_of(annotation: Any) -> type[Section] | None:
    candidates = (annotation, *getattr(annotation, "__args__", ()))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)


def _place(path: Path, at: Path_, lines: dict[Path_, int]) -> str:
    """`file:line: key`, with the line of the nearest key that stands in the file."""
    spelt = tuple(snake_case(part) if isinstance(part, str) else part for part in at)
    key = f": {_dotted(at)}" if at else ""
    for depth in range(len(at), -1, -1):
        if spelt[:depth] in lines:
            return f"{path}:{lines[spelt[:depth]]}{key}"
    return f"{path}{key}"


def _dotted(at: Path_) -> str:
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")
